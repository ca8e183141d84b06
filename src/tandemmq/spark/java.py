"""Finding the Java that Spark needs, before Spark fails without it in some less clear way."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tandemmq.errors import ConfigError

JAVA_VERSION_MIN = 17
"""What Spark 4 is compiled for."""
ANSWER_S_MAX = 120.0
"""How long `java -version` may take: 0.1 s as a rule, over 30 s on a machine that is far too busy."""

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """The home directory of a Java that is new enough: JAVA_HOME, or the `java` on PATH.

    Raises:  ConfigError with one sentence that says what is missing and how to get it.
    """
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME", "")
    if home:
        program: str | None = shutil.which("java", path=str(Path(home) / "bin"))
        where = f"JAVA_HOME={home}"
    else:
        program = shutil.which("java", path=environment.get("PATH", ""))
        where = "PATH"
    if program is None:
        raise ConfigError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer and there is no java in {where}: install one "
            "(Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME."
        )
    version = parse_java_version(_ask_version(program))
    if version < JAVA_VERSION_MIN:
        raise ConfigError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {program} is Java {version or '?'}: "
            "set JAVA_HOME to a newer one."
        )
    return Path(program).resolve().parent.parent


def parse_java_version(text: str) -> int:
    """The major version in the output of `java -version`; 8 for `1.8.0`, 0 when there is none."""
    match = _VERSION.search(text)
    if match is None:
        return 0
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def _ask_version(program: str) -> str:
    try:
        result = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=ANSWER_S_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{program} -version did not answer within {ANSWER_S_MAX:g} s") from None
    except OSError:
        return ""
    return result.stderr + result.stdout
