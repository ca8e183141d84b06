"""Landing: everything in a topic into a directory of Parquet files, each message exactly once.

Two logs make that true: Spark's checkpoint says which offsets belong to batch N before the batch runs, and
the lake takes batch N at most once. Whatever is killed between the two, the next run repeats batch N with the
same offsets and finds it there, or not. The checkpoint lies inside the output directory by default, so that
both live and die together (spec spark 12.20).
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandemmq.errors import ConfigError
from tandemmq.spark.columns import find_column, select_columns
from tandemmq.spark.lake.files import CONTROL_DIR, list_batches, read_owner, read_summary
from tandemmq.spark.lake.parquet import ParquetOptions, check_partition_columns
from tandemmq.spark.options import PropertiesAs, parse_options
from tandemmq.spark.pipelines.events import Reporter
from tandemmq.spark.pipelines.runner import Job, Runner, StopFlag, Totals
from tandemmq.spark.session import build_session, warm_up

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHECKPOINT_DIR = "_checkpoint"
LOCK_FILE = "lock"
LOG_FILE = "spark.log"

DEFAULT_COLUMNS = (
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "msgId",
    "tags",
    "keys",
    "body",
    "bornTimestamp",
    "storeTimestamp",
    "properties",
)
ONCE_RESTARTS_MAX = 3
TASKS_PER_BATCH = 4
"""A full batch of one queue is split into about so many tasks; four equal queues are not split at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingOptions:
    """What `tandemmq pipeline landing` can be told."""

    name_servers: str
    topic: str
    out: Path
    checkpoint: Path | None = None
    master: str = "local[*]"
    is_continuous: bool = True
    trigger_s: float = 1.0
    batch_records_max: int = 500_000
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    is_body_text: bool = False
    source: tuple[tuple[str, str], ...] = ()
    """Further options of the source: name and value."""

    @property
    def checkpoint_dir(self) -> Path:
        return self.checkpoint or self.out / CHECKPOINT_DIR

    def source_options(self) -> dict[str, str]:
        """The options of the source; those that the user gave win."""
        return {
            "nameServer": self.name_servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.batch_records_max),
            "maxRecordsPerPartition": str(self.batch_records_max // TASKS_PER_BATCH * 5 // 4 + 1),
            **dict(self.source),
        }

    def schema(self) -> str:
        """The columns to land, in Spark's DDL."""
        properties_as = parse_options(self.source_options(), is_streaming=True).properties_as
        chosen = select_columns(self.columns, properties_as)
        types = {"body": "string"} if self.is_body_text else {}
        return ", ".join(f"`{column.label}` {types.get(column.name, column.type)}" for column in chosen)


def run_landing(options: LandingOptions, reporter: Reporter) -> int:
    """Runs until everything is read, or with `is_continuous` until a signal; the process's exit code.

    Raises:  ConfigError before anything is started, for options or a directory that cannot work.
    """
    check_landing(options)
    stop = StopFlag()
    with stop.listening(), hold_directory(options.out):
        check_checkpoint(options)
        log_file = options.out / CONTROL_DIR / LOG_FILE
        spark = build_session(f"landing {options.topic}", options.master, log_file=log_file)
        warm_up(spark)
        try:
            # Spark took SIGINT for itself when the session began.
            with stop.listening():
                return Runner(_make_job(spark, options), reporter, stop).run()
        finally:
            # A Java that died is reported by the runner and cannot be stopped any more.
            with suppress(Exception):
                spark.stop()


def check_landing(options: LandingOptions) -> None:
    """Refuses options that would fail later, somewhere inside Spark."""
    parse_options(options.source_options(), is_streaming=True)
    names = [find_column(name).name for name in options.columns]
    if parse_options(options.source_options(), is_streaming=True).properties_as is PropertiesAs.NONE:
        names = [name for name in names if name != "properties"]
    check_partition_columns(names, options.partition_by)
    ParquetOptions(partition_by=options.partition_by, compression=options.compression)


def check_checkpoint(options: LandingOptions) -> None:
    """Refuses a checkpoint that does not belong to the directory, in either direction.

    Raises:  ConfigError: rows would be doubled, or skipped, in silence.
    """
    query = read_query_id(options.checkpoint_dir)
    owner = read_owner(options.out)
    if owner is not None and owner != query:
        found = "is empty" if query is None else f"belongs to query {query}"
        raise ConfigError(
            f"{options.out} was written with another checkpoint (query {owner}); {options.checkpoint_dir} "
            f"{found}. Give the old one with --checkpoint, or another directory with --out."
        )
    if owner is None and list_batches(options.out):
        raise ConfigError(f"{options.out} holds batches but not the record of the query that wrote them")


def read_query_id(checkpoint: Path) -> str | None:
    """The id of the query that a checkpoint belongs to; None when there is no checkpoint."""
    try:
        return str(json.loads((checkpoint / "metadata").read_text())["id"])
    except FileNotFoundError:
        return None


def _make_job(spark: SparkSession, options: LandingOptions) -> Job:
    # The Spark classes import pyspark, which `--help` shall not pay for.
    from tandemmq.spark.lake.sink import SINK_NAME, LakeSink
    from tandemmq.spark.source import TandemSource

    spark.dataSource.register(TandemSource)
    spark.dataSource.register(LakeSink)

    def start() -> Any:
        stream = (
            spark.readStream.format(TandemSource.name())
            .schema(options.schema())
            .options(**options.source_options())
            .load()
        )
        writer = (
            stream.writeStream.format(SINK_NAME)
            .queryName(f"landing {options.topic}")
            .option("checkpointLocation", str(options.checkpoint_dir.absolute()))
            .option("partitionBy", ",".join(options.partition_by))
            .option("compression", options.compression)
        )
        if options.is_continuous:
            writer = writer.trigger(processingTime=f"{round(options.trigger_s * 1000)} milliseconds")
        else:
            writer = writer.trigger(availableNow=True)
        return writer.start(str(options.out.absolute()))

    meter = LakeMeter(options.out)
    return Job(
        topic=options.topic,
        out=str(options.out),
        start=start,
        measure_batch=meter.measure_batch,
        measure_all=meter.measure_all,
        restarts_max=None if options.is_continuous else ONCE_RESTARTS_MAX,
    )


class LakeMeter:
    """Rows and bytes of a lake; each batch is looked at once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seen: set[int] = set()
        self._rows = 0
        self._size_bytes = 0

    def measure_batch(self, batch_id: int) -> Totals:
        summary = read_summary(self._root, batch_id)
        return Totals(rows=summary.rows, size_bytes=summary.size_bytes)

    def measure_all(self) -> Totals:
        for batch_id in set(list_batches(self._root)) - self._seen:
            self._seen.add(batch_id)
            summary = read_summary(self._root, batch_id)
            self._rows += summary.rows
            self._size_bytes += summary.size_bytes
        return Totals(rows=self._rows, size_bytes=self._size_bytes)


@contextmanager
def hold_directory(out: Path) -> Iterator[None]:
    """Holds the directory for this process; the lock goes with the process, however it ends.

    Raises:  ConfigError when another landing holds it.
    """
    control = out / CONTROL_DIR
    control.mkdir(parents=True, exist_ok=True)
    with (control / LOCK_FILE).open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another landing writes to {out} right now") from error
        yield
