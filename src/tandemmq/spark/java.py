"""The Java that Spark needs: found before Spark fails without it in some less clear way; and an archive of
the classes that a session needs, which later sessions map into memory.

A session loads and verifies some 15,000 classes, which is half of the processor time of its start. The
archive is made once for each Java and Spark by `tandemmq pipeline prepare`; every session of this user
maps it.

Strategy:   Java writes it when a session ends that has done what pipelines do. It lands beside its place
            first and is renamed: a session sees a whole one or none. Java compares it with its own version
            and with the jars, and loads classes as always when something differs.
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
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING

from tandemmq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Java tells of each class that it leaves out, and of an archive of other jars, on standard output."""
WRITE_S_MAX = 300.0
TRAINING_ROWS = 1000


def archive_path(java_home: Path, environment: Mapping[str, str] | None = None) -> Path:
    """Where the archive of this Java and Spark lies, or would lie."""
    from pyspark import __version__ as spark_version

    environment = os.environ if environment is None else environment
    cache = environment.get("XDG_CACHE_HOME", "") or str(Path.home() / ".cache")
    release = java_home / "release"
    told = release.read_bytes() if release.exists() else bytes(java_home)
    java = hashlib.sha256(told).hexdigest()[:12]
    return Path(cache) / "tandemmq" / f"spark-{spark_version}-java-{java}.jsa"


def archive_options(java_home: Path) -> tuple[str, ...]:
    """What Java is told to use the archive; nothing while there is none."""
    path = archive_path(java_home)
    return (*QUIET, f"-XX:SharedArchiveFile={path}") if path.is_file() else ()


def make_archive(start_session: Callable[[tuple[str, ...]], SparkSession]) -> Path:
    """The archive, new, also when there was one. `start_session` starts one with these options of Java; there
    must be none in this process. Takes half a minute.

    Raises:  ConfigError when it cannot be written.
    """
    path = archive_path(find_java())
    new = path.with_suffix(f".{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # An archive that is in use cannot be the base of another one.
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
    """A small batch and a small stream, with Python and Parquet on both ends."""
    from tandemmq.spark.lake.sink import SINK_NAME, LakeSink

    spark.dataSource.register(LakeSink)
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
    """Returns when Java has ended, which writes the archive as its last work."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    spark.stop()
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    java.stdin.close()
    java.wait(WRITE_S_MAX)
