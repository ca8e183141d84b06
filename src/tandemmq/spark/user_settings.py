"""The user's own Spark settings from outside of the program, and their merger with our defaults.

Spark passes the settings of a session to Java as arguments, which win over `spark-defaults.conf`. Our
defaults must therefore leave out each setting that the file, or PYSPARK_SUBMIT_ARGS, has.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

JOINED = {
    "spark.driver.extraJavaOptions": " ",
    "spark.driver.defaultJavaOptions": " ",
    "spark.executor.defaultJavaOptions": " ",
    "spark.executorEnv.PYTHONPATH": os.pathsep,
}
"""The settings that are lists: the user's entries follow ours, so that they win, and their separators."""

_FLAGS = {
    "--master": "spark.master",
    "--driver-memory": "spark.driver.memory",
    "--executor-memory": "spark.executor.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
}
_SEPARATOR = re.compile(r"\s*[=:\s]\s*")
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC")


def find_settings(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the settings of `spark-defaults.conf` and, stronger, of PYSPARK_SUBMIT_ARGS."""
    environment = os.environ if environment is None else environment
    file, given = _parse_arguments(shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", "")))
    path = Path(file) if file else _defaults_path(environment)
    found = parse_defaults(path.read_text()) if path.is_file() else {}
    return {**found, **given}


def parse_defaults(text: str) -> dict[str, str]:
    """Returns the settings of a properties file; as in Spark, only those whose names begin with `spark.`."""
    lines = (line.strip() for line in text.replace("\\\n", "").splitlines())
    pairs = (_SEPARATOR.split(line, maxsplit=1) for line in lines if line.startswith("spark."))
    return {pair[0]: pair[1].strip() if len(pair) == 2 else "" for pair in pairs}


def merge_settings(ours: Mapping[str, str], theirs: Mapping[str, str]) -> dict[str, str]:
    """Returns our settings under those of the user. Lists are joined, except that a user's choice of Java's
    garbage collector replaces ours: Java accepts one.
    """
    merged = {**ours, **theirs}
    for name, separator in JOINED.items():
        if name in ours and theirs.get(name):
            mine = ours[name]
            if _COLLECTOR.search(theirs[name]):
                mine = _COLLECTOR.sub("", mine).strip()
            merged[name] = separator.join([mine, theirs[name]])
    return merged


def _defaults_path(environment: Mapping[str, str]) -> Path:
    # Importing pyspark takes 0.2 s, too long for `--help`.
    from pyspark.find_spark_home import _find_spark_home

    directory = environment.get("SPARK_CONF_DIR") or os.path.join(_find_spark_home(), "conf")
    return Path(directory) / "spark-defaults.conf"


def _parse_arguments(arguments: list[str]) -> tuple[str, dict[str, str]]:
    """Returns the properties file and the settings that arguments of spark-submit name."""
    file, found = "", {}
    words = iter([part for word in arguments for part in _split_flag(word)])
    for word in words:
        if word in ("--conf", "-c"):
            name, _, value = next(words, "").partition("=")
            found[name] = value
        elif word in _FLAGS:
            found[_FLAGS[word]] = next(words, "")
        elif word == "--properties-file":
            file = next(words, "")
    return file, found


def _split_flag(word: str) -> list[str]:
    """Returns the flag and value of `--flag=value`."""
    name, found, value = word.partition("=")
    return [name, value] if found and name.startswith("--") else [word]
