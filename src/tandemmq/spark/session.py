"""Builds a Spark session that is quiet, starts quickly, is bounded in memory, and has this package on every
worker.

The defaults suit the pipelines (spec spark SP-5, SP-64): no web interface, few shuffle partitions, reused
Python workers, UTC. The caller's arguments and `settings` override `spark-defaults.conf`, and both override
the defaults.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandemmq.spark.java import archive_options, find_java, link_home
from tandemmq.spark.user_settings import find_settings, merge_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER_MEMORY = "1g"
SHUFFLE_PARTITIONS = 4
SOCKET_DIRECTORY_LENGTH_MAX = 60
"""The maximum length of the path of the sockets' directory. Linux allows 107 bytes with the name of a socket,
which has 42.
"""

_JVM_OPTIONS = ("-XX:+UseSerialGC", "-Xshare:auto")

_QUICK_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1",)
"""The JVM option that restricts Java to its quick compiler: 9 instead of 15 s of CPU up to the first result,
but about twice the time for each row afterwards (1.7 instead of 0.8 us per row of 128 B; 2 cores, Java
17). The better compiler pays off from about 7 million rows.
"""

_ARROW_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
"""The JVM options that switch off Arrow's checks of the bounds and the null of each value, because Spark has
checked both already. A row of 18 columns then costs Java 1.3 instead of 1.8 us.
"""


def build_session(
    app: str,
    master: str = "",
    *,
    driver_memory: str = "",
    shuffle_partitions: int = 0,
    is_long: bool = False,
    log_file: Path | None = None,
    settings: Mapping[str, str] | None = None,
    java_options: Sequence[str] | None = None,
) -> SparkSession:
    """Returns a Spark session of this process with our formats registered; the running one if there is one
    already.

    `master`, `driver_memory`, `shuffle_partitions`: empty or 0 for those of `spark-defaults.conf`, else
    `local[*]`, 1 GiB and 4.
    `is_long`: use the better compiler, which starts more slowly and costs less per row; it pays off after
    minutes of work.
    `log_file` receives the standard error of Java and of Spark's workers, also for later sessions of this
    process, which share its Java.
    `java_options`: further JVM options; by default those that map the archive of classes, if there is one.
    Raises:  ConfigError if there is no recent enough Java.
    """
    java_home = find_java()
    os.environ["JAVA_HOME"] = str(java_home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    root = share_python_path()
    hush_pandas()
    # Importing pyspark takes 0.2 s, too long for `--help`.
    from pyspark.sql import SparkSession

    outside = find_settings()
    given = {
        "spark.master": master,
        "spark.driver.memory": driver_memory,
        "spark.sql.shuffle.partitions": str(shuffle_partitions or ""),
    }
    user = {**outside, **(settings or {}), **{name: value for name, value in given.items() if value}}
    machine = (*_JVM_OPTIONS, *(() if is_long else _QUICK_JVM_OPTIONS))
    archive = archive_options(java_home) if java_options is None else java_options
    master = user.get("spark.master", "local[*]")
    ours = _default_settings(master, root, (*machine, *archive))
    builder = SparkSession.builder.appName(app)
    for key, value in merge_settings(ours, user).items():
        builder = builder.config(key, value)
    with _errors_into(log_file), _starting_quickly(master):
        spark = builder.getOrCreate()
    register_formats(spark)
    if master.startswith("local"):
        choose_file_manager(spark)
    return spark


def register_formats(spark: SparkSession) -> None:
    """Registers our formats. Otherwise Spark looks for them once, in the Python of PYSPARK_PYTHON, and never
    finds them if that lacks the installed package.
    """
    from tandemmq.spark.commitlog_source import CommitLogSource
    from tandemmq.spark.lake.sink import LakeSink
    from tandemmq.spark.source import KafkaShapedSource, RocketSource, TandemSource

    for source in (TandemSource, RocketSource, KafkaShapedSource, CommitLogSource, LakeSink):
        spark.dataSource.register(source)


_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_QUICK_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""The manager that does not start a process `readlink` before each step: a batch starts 9 processes instead
of 41. On a local file system it is as safe as Spark's default: both look for the file and rename afterwards
(spec spark SP-78).
"""


def choose_file_manager(spark: SparkSession) -> None:
    """Chooses the quick manager of checkpoint files, unless the user chose one or this Spark has another."""
    java: Any = spark._jvm
    if spark.conf.get(_FILE_MANAGER, ""):
        return
    with suppress(Exception):
        java.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_QUICK_FILE_MANAGER)
        spark.conf.set(_FILE_MANAGER, _QUICK_FILE_MANAGER)


@contextmanager
def _starting_quickly(master: str) -> Iterator[None]:
    """Makes a Java that starts in the block import PySpark from the linked home."""
    # YARN sends the archives of the home to its executors, so they must be files there.
    home = link_home() if master.startswith(("local", "spark:")) else None
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def _default_settings(master: str, python_path: str, java_options: Sequence[str]) -> dict[str, str]:
    log_settings = files("tandemmq.spark").joinpath("log4j2.properties")
    defaults = {
        "spark.master": master,
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.driver.extraJavaOptions": " ".join(
            [*java_options, f"-Dlog4j2.configurationFile=file:{log_settings}"]
        ),
        # Placed in front of a user's extraJavaOptions.
        "spark.driver.defaultJavaOptions": _ARROW_OPTIONS,
        "spark.executor.defaultJavaOptions": _ARROW_OPTIONS,
        "spark.driver.bindAddress": "127.0.0.1" if master.startswith("local") else "0.0.0.0",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([python_path, os.environ.get("PYTHONPATH", "")]),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.python.worker.reuse": "true",
        # Java and Python wait this long for each other's handshake; the default of 15 s is too short on a
        # busy machine. The 10 s in which the planner process of a stream must connect are fixed
        # (pipelines.runner retries that).
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        # The default keeps too many progress reports and batches for a day of small batches.
        "spark.sql.streaming.numRecentProgressUpdates": "50",
        "spark.sql.streaming.minBatchesToRetain": "20",
    }
    if master.startswith("local"):
        defaults["spark.driver.host"] = "127.0.0.1"
        # Over TCP, each Python task waits 40 ms for its input: Java's second small write waits until the
        # first one is acknowledged (spec spark SP-76).
        directory = _make_socket_directory()
        if len(directory) <= SOCKET_DIRECTORY_LENGTH_MAX:
            defaults["spark.python.unix.domain.socket.enabled"] = "true"
            defaults["spark.python.unix.domain.socket.dir"] = directory
    return defaults


@cache
def _make_socket_directory() -> str:
    """Makes the directory for the sockets between Java and Python, which exists until this process ends. It
    is private, because Spark asks for no secret on such sockets.
    """
    directory = tempfile.mkdtemp(prefix="tandemmq-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def warm_up(spark: SparkSession) -> None:
    """Starts the first Python worker of the executors in the background, while a query is still planned.

    A query starts its Python processes one after the other, which takes seconds; this one needs no plan. It
    shortens the time to the first batch of a landing by 1.8 of 14.2 s (2 cores).
    """

    def run() -> None:
        # A failure here occurs again in the query itself, with a better error.
        with suppress(Exception):
            spark.range(1, numPartitions=1).mapInArrow(lambda batches: batches, "id long").collect()

    threading.Thread(target=run, name="spark-warm-up", daemon=True).start()


@contextmanager
def _errors_into(log_file: Path | None) -> Iterator[None]:
    """Redirects the standard error of child processes that are started in the block to the file."""
    if log_file is None:
        yield
        return
    log_file.parent.mkdir(parents=True, exist_ok=True)
    kept = os.dup(2)
    with log_file.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def hush_pandas() -> None:
    """Silences Spark's warning on every use of pandas 3 (spec spark SP-3), here and in each worker."""
    text = "PySpark does not yet fully support pandas"
    warnings.filterwarnings("ignore", message=text, category=FutureWarning)
    rules = [rule for rule in os.environ.get("PYTHONWARNINGS", "").split(",") if rule]
    if f"ignore:{text}" not in rules:
        os.environ["PYTHONWARNINGS"] = ",".join([*rules, f"ignore:{text}"])


def share_python_path() -> str:
    """Makes the directory that contains this package importable for child processes, and returns it.

    An installed package is found anyway. When run from a source tree it is not, and Spark starts its planners
    and readers with the environment of this process (spec spark SP-45, SP-51).
    """
    root = str(Path(__file__).resolve().parents[2])
    parts = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if root not in parts:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *parts])
    return root
