"""Tests finding Java, with a clear error if it is missing or too old, and the home with byte code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tandemmq.spark.java
from tandemmq.errors import ConfigError
from tandemmq.spark.java import find_java, link_home, parse_java_version


def _fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ('openjdk version "21-ea"', 21),
        ("no java here", 0),
    ],
)
def test_versions(text: str, version: int) -> None:
    assert parse_java_version(text) == version


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    home = _fake_java(tmp_path / "new", "21.0.1")
    other = _fake_java(tmp_path / "old", "17.0.1")
    assert find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}) == home
    assert find_java({"PATH": str(other / "bin")}) == other


def test_no_java_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"Spark needs Java 17 or newer, and no java was found in PATH: install"
    ):
        find_java({"PATH": str(tmp_path)})
    with pytest.raises(ConfigError, match=f"JAVA_HOME={tmp_path}"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"})


def test_an_old_java_is_refused(tmp_path: Path) -> None:
    home = _fake_java(tmp_path / "jdk", "1.8.0_402")
    with pytest.raises(ConfigError, match="is Java 8: set JAVA_HOME"):
        find_java({"JAVA_HOME": str(home)})


def test_a_java_that_does_not_answer_is_refused(tmp_path: Path) -> None:
    home = _fake_java(tmp_path / "jdk", "17")
    (home / "bin" / "java").write_text("no program at all")
    with pytest.raises(ConfigError, match=r"is Java \?"):
        find_java({"JAVA_HOME": str(home)})


def test_a_java_that_hangs_is_not_called_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = _fake_java(tmp_path / "jdk", "17")
    (home / "bin" / "java").write_text("#!/bin/sh\nexec sleep 600\n")
    monkeypatch.setattr(tandemmq.spark.java, "ANSWER_S_MAX", 0.1)
    with pytest.raises(ConfigError, match=r"bin/java -version did not answer within 0\.1 s"):
        find_java({"JAVA_HOME": str(home)})


def test_a_linked_home_is_that_of_spark_with_the_byte_code_of_pyspark(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    home = link_home(cache)
    assert home is not None
    assert link_home(cache) == home
    assert [path for path in (tmp_path / "tandemmq").iterdir() if path != home] == []
    assert list((home / "jars").glob("spark-core*.jar"))
    assert (home / "conf").is_symlink()
    path = os.pathsep.join(str(archive) for archive in (home / "python" / "lib").iterdir())
    script = (
        "import pyspark.serializers as s, py4j; print(s.__file__, s.__cached__, py4j.__file__, sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    module, cached, other = done.stdout.split()
    assert module.startswith(str(home))
    assert other.startswith(str(home))
    assert Path(cached).is_file()


def test_a_home_of_the_user_is_not_replaced(tmp_path: Path) -> None:
    assert link_home({"XDG_CACHE_HOME": str(tmp_path), "SPARK_HOME": "/opt/spark"}) is None
    assert list(tmp_path.iterdir()) == []


def test_without_a_cache_directory_there_is_no_linked_home(tmp_path: Path) -> None:
    (tmp_path / "tandemmq").write_text("a file")
    assert link_home({"XDG_CACHE_HOME": str(tmp_path)}) is None
