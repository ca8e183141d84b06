"""Finds the Java that Spark needs, with a clear error if it is missing, and makes two things that let
sessions start quickly: an archive of their Java classes, and a home of Spark with Python's byte code.

A session loads and verifies about 15,000 classes, which is half of the processor time of its start. The
command `tandemmq pipeline prepare` makes the archive once for each Java and Spark; every session of this user
then maps it. Each Python process of Spark imports PySpark from an archive without byte code, and compiles it
again; in the linked home it imports the installed package.

Strategy:   Java writes the archive at the end of a session that has done typical pipeline work. The file is
            written under a temporary name and renamed, so a session sees a whole archive or none. Java
            compares the archive with its own version and with the jars, and loads classes normally if
            something differs.
Source:     Java class data sharing (-XX:ArchiveClassesAtExit, -XX:SharedArchiveFile).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

from tandemmq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
"""The oldest Java that can run Spark 4."""
ANSWER_S_MAX = 120.0
"""The maximum time for `java -version`, in seconds: it usually takes 0.1 s, but over 30 s on an overloaded
machine.
"""

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def find_java(environment: Mapping[str, str] | None = None) -> Path:
    """Returns the home directory of a recent enough Java: JAVA_HOME, or the `java` on PATH.

    Raises:  ConfigError saying in one sentence what is missing and how to install it.
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
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and no java was found in {where}: install one "
            "(Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME."
        )
    version = parse_java_version(_run_version(program))
    if version < JAVA_VERSION_MIN:
        raise ConfigError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {program} is Java {version or '?'}: "
            "set JAVA_HOME to a newer one."
        )
    return Path(program).resolve().parent.parent


def parse_java_version(text: str) -> int:
    """Returns the major version in the output of `java -version`; 8 for `1.8.0`, 0 if there is none."""
    match = _VERSION.search(text)
    if match is None:
        return 0
    major = int(match[1])
    return int(match[2] or 0) if major == 1 else major


def _run_version(program: str) -> str:
    try:
        result = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=ANSWER_S_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{program} -version did not answer within {ANSWER_S_MAX:g} s") from None
    except OSError:
        return ""
    return result.stderr + result.stdout


QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Java options that keep standard output clean: without them Java reports every class left out of the
archive, and an archive made for other jars.
"""
WRITE_S_MAX = 300.0
TRAINING_ROWS = 1000


def archive_path(java_home: Path, environment: Mapping[str, str] | None = None) -> Path:
    """Returns the path of the archive for this Java and Spark, whether or not the file exists."""
    from pyspark import __version__ as spark_version

    release = java_home / "release"
    printed = release.read_bytes() if release.exists() else bytes(java_home)
    java = hashlib.sha256(printed).hexdigest()[:12]
    return _cache_directory(environment) / f"spark-{spark_version}-java-{java}.jsa"


def _cache_directory(environment: Mapping[str, str] | None) -> Path:
    environment = os.environ if environment is None else environment
    return Path(environment.get("XDG_CACHE_HOME", "") or Path.home() / ".cache") / "tandemmq"


def archive_options(java_home: Path) -> tuple[str, ...]:
    """Returns the Java options that use the archive; empty if there is no archive."""
    path = archive_path(java_home)
    return (*QUIET, f"-XX:SharedArchiveFile={path}") if path.is_file() else ()


def make_archive(start_session: Callable[[tuple[str, ...]], SparkSession]) -> Path:
    """Makes the archive, replacing an existing one, and returns its path. Takes half a minute.
    `start_session` starts a session with the given Java options; this process must not have a session yet.

    Raises:  ConfigError if the archive cannot be written.
    """
    path = archive_path(find_java())
    new = path.with_suffix(f".{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # An archive in use cannot be the base of another one.
        path.unlink(missing_ok=True)
        spark = start_session((*QUIET, f"-XX:ArchiveClassesAtExit={new}"))
        _train(spark)
        _end(spark)
        new.rename(path)
    except (OSError, TimeoutExpired) as error:
        raise ConfigError(f"the archive {path} was not written: {error}") from error
    finally:
        new.unlink(missing_ok=True)
    return path


def _train(spark: SparkSession) -> None:
    """Runs a small batch and a small stream, with Python and Parquet on both ends."""
    from tandemmq.spark.lake.sink import SINK_NAME

    schema = "id long, text string"
    with tempfile.TemporaryDirectory(prefix="tandemmq-prepare-") as directory:
        rows = spark.range(TRAINING_ROWS, numPartitions=2).selectExpr("id", "cast(id as string) AS text")
        rows.mapInArrow(lambda batches: batches, schema).write.parquet(f"{directory}/rows")
        table = spark.read.parquet(f"{directory}/rows")
        assert table.where("id >= 10").groupBy("text").count().count() == TRAINING_ROWS - 10
        writer = spark.readStream.schema(schema).parquet(f"{directory}/rows").writeStream.format(SINK_NAME)
        writer = writer.option("checkpointLocation", f"{directory}/lake/_checkpoint")
        writer.trigger(availableNow=True).start(f"{directory}/lake").awaitTermination()


def _end(spark: SparkSession) -> None:
    """Waits until Java has exited; writing the archive is its last step."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    spark.stop()
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    java.stdin.close()
    java.wait(WRITE_S_MAX)


def link_home(environment: Mapping[str, str] | None = None) -> Path | None:
    """Returns a home of Spark (SPARK_HOME) whose Python processes import the installed PySpark with its byte
    code, and makes it if necessary.

    Java puts `python/lib/pyspark.zip` of its home in front of the path of these processes. In this home,
    directories with links to the packages have the names of the archives; all else is a link to Spark's own
    home. Returns None if the user chose a home, if PySpark is not one that pip installed, or if the cache
    directory is not writable.
    """
    from pyspark import __file__ as module
    from pyspark import __version__ as spark_version

    environment = os.environ if environment is None else environment
    installed = Path(module).absolute().parent
    archives = list((installed / "python" / "lib").glob("py*.zip"))
    if environment.get("SPARK_HOME") or not archives:
        return None
    name = f"spark-{spark_version}-home-{hashlib.sha256(bytes(installed)).hexdigest()[:12]}"
    home = _cache_directory(environment) / name
    if home.is_dir():
        return home
    new = home.with_name(f"{name}.{os.getpid()}")
    try:
        for archive in archives:
            package = find_spec(re.split(r"[-.]", archive.name)[0])
            assert package is not None
            assert package.origin is not None
            directory = new / "python" / "lib" / archive.name
            directory.mkdir(parents=True)
            (directory / package.name).symlink_to(Path(package.origin).parent)
        # The user may make `conf` later.
        for entry in {path.name for path in installed.iterdir()} - {"python"} | {"conf"}:
            (new / entry).symlink_to(installed / entry)
        # Another process may have made the home meanwhile.
        with suppress(OSError):
            new.rename(home)
    except OSError:
        return None
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return home if home.is_dir() else None
