"""Streams into lakes, exactly once (`run_lake_job`, used by landing and rollup), and the rows of lakes as
DataFrames (`read_rows`).

Two logs make it exactly once: Spark's checkpoint records the offsets of batch N before the batch runs, and
the lake accepts batch N at most once. If a process is killed between the two, the next run repeats batch N
with the same offsets, and the lake accepts it only if it lacks it. The checkpoint is inside the output
directory by default, so that both are kept or deleted together (spec spark 12.20).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandemmq.errors import ConfigError
from tandemmq.spark.checkpoint import find_last_batch, read_query_id
from tandemmq.spark.lake.files import (
    BAD_RECORDS_DIR,
    CONTROL_DIR,
    Totals,
    list_batches,
    read_owner,
    read_summary,
)
from tandemmq.spark.lake.formats import list_committed, read_committed
from tandemmq.spark.lake.home import LakeFormat, hold_directory
from tandemmq.spark.lake.view import LakePiece, LakeView
from tandemmq.spark.pipelines.events import Reporter
from tandemmq.spark.pipelines.options import StreamOptions
from tandemmq.spark.pipelines.runner import Job, Runner, open_workplace
from tandemmq.spark.session import choose_file_manager, warm_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


LOG_FILE = "spark.log"
ONCE_RESTARTS_MAX = 3

Measure = Callable[[Path, int], Totals]
"""A function that returns the messages and bytes of a batch of a lake."""


def run_lake_job(
    options: StreamOptions,
    reporter: Reporter,
    make_stream: Callable[[SparkSession], DataFrame],
    sink: Mapping[str, str] | None = None,
    measure: Measure = read_committed,
    is_outdated: Callable[[SparkSession, int], bool] | None = None,
) -> int:
    """Runs until everything is read, or, if continuous, until a signal; returns the exit code.

    `make_stream` is called for each start of the query. `sink`: further options of the lake's sink.
    `is_outdated`: returns True if the finished batch requires another stream; the query then ends between two
    batches and is started anew.
    Raises:  ConfigError before anything is started, for an unusable directory.
    """
    out, is_long = options.out, options.is_continuous
    with hold_directory(out):
        check_checkpoint(out, options.checkpoint_dir)
        with open_workplace(options, reporter, out / CONTROL_DIR / LOG_FILE, is_long=is_long) as place:
            spark = place.spark
            warm_up(spark)
            # The first stream is made at once, so that an unusable one is rejected early.
            streams = chain([make_stream(spark)], (make_stream(spark) for _ in count()))
            meter = LakeMeter(out, measure)
            job = Job(
                topic=options.subject,
                out=str(out),
                start=lambda: _start_query(options, sink or {}, next(streams)),
                measure_batch=meter.measure_batch,
                measure_all=meter.measure_all,
                restarts_max=None if is_long else ONCE_RESTARTS_MAX,
                is_outdated=None if is_outdated is None else partial(is_outdated, spark),
            )
            return Runner(job, reporter, place.stop).run()


def check_checkpoint(out: Path, checkpoint_dir: Path) -> None:
    """Rejects a checkpoint that does not belong to the directory, or a directory that does not belong to the
    checkpoint.

    Raises:  ConfigError, because rows would silently be doubled or skipped.
    """
    planned, query = find_last_batch(checkpoint_dir / "offsets"), read_query_id(checkpoint_dir)
    landed = list_committed(out)
    last = max([*landed, *list_batches(out / BAD_RECORDS_DIR)], default=-1)
    owner = read_owner(out)
    if owner is not None and owner != query:
        found = "is empty" if query is None else f"belongs to query {query}"
        raise ConfigError(
            f"{out} was written with another checkpoint (query {owner}); {checkpoint_dir} {found}. Give the"
            " old one with --checkpoint, or another directory with --out."
        )
    if owner is None and landed:
        raise ConfigError(f"{out} holds batches but not the record of the query that wrote them")
    foreign = None if owner is not None else next(out.glob("*.parquet"), None)
    if foreign is not None:
        raise ConfigError(
            f"{out} holds {foreign.name}, which no landing wrote: readers of the directory would take its"
            " rows for messages. Give a directory of its own with --out."
        )
    if last > planned:
        raise ConfigError(
            f"{checkpoint_dir} ends with batch {planned}, and {out} has batch {last}: the newest files of"
            " the checkpoint are missing. The next batch would get the number of one that the lake has, and"
            " be dropped. Restore the files, or land the topic again in another directory with --out."
        )


def _start_query(options: StreamOptions, sink: Mapping[str, str], stream: DataFrame) -> Any:
    # The lock of the lake's directory excludes other drivers, wherever the directory is.
    choose_file_manager(stream.sparkSession)
    pause = {"processingTime": f"{round(options.trigger_s * 1000)} milliseconds"}
    return (
        stream.writeStream.format("tandemmq_lake")
        .queryName(f"{options.name} {options.subject}")
        .option("checkpointLocation", str(options.checkpoint_dir.absolute()))
        .options(**sink)
        .trigger(**(pause if options.is_continuous else {"availableNow": True}))
        .start(str(options.out.absolute()))
    )


class LakeMeter:
    """Measures the rows and bytes of a lake, and its bad records; each batch is read once."""

    def __init__(self, root: Path, measure: Measure = read_committed) -> None:
        self._root = root
        self._measure = measure
        self._seen: set[int] = set()
        self._seen_bad: set[int] = set()
        self._total = Totals()

    def measure_batch(self, batch_id: int) -> Totals:
        return self._measure(self._root, batch_id) + self._count_bad(batch_id)

    def _count_bad(self, batch_id: int) -> Totals:
        return Totals(bad=read_summary(self._root / BAD_RECORDS_DIR, batch_id).rows)

    def measure_all(self) -> Totals:
        committed = list_committed(self._root)
        batches = set(committed) - self._seen
        # In a compacted lake the batch numbers of bad records differ from those of the lake.
        last = max(committed, default=-1)
        found = list_batches(self._root / BAD_RECORDS_DIR)
        bad = {batch_id for batch_id in found if batch_id <= last} - self._seen_bad
        self._seen |= batches
        self._seen_bad |= bad
        for part in (*(self._measure(self._root, batch) for batch in batches), *map(self._count_bad, bad)):
            self._total += part
        return self._total


# The rows of a lake of any kind as a DataFrame: good rows and bad records.
#
# The columns are the union of all files' columns, null where a file lacks one; `badReason` is null for a good
# row. Columns that are directories (`dt`, `tags`) are text, as they were written.

_INFERENCE = "spark.sql.sources.partitionColumnTypeInference.enabled"
_FILE_NAME = "_tandemmq_file"
_DAY_S = 24 * 3600
_DAY = f"cast(floor(unix_seconds(storeTimestamp) / {_DAY_S}) AS int)"
_DERIVED = {
    "dt": f"cast(date_add(date'1970-01-01', {_DAY}) AS string)",
    "hour": f"lpad(cast(floor(pmod(unix_seconds(storeTimestamp), {_DAY_S}) / 3600) AS string), 2, '0')",
}
"""The expressions of partition columns; bad records have no partition directories."""

_settings = threading.Lock()


def read_rows(
    spark: SparkSession, view: LakeView, pieces: Sequence[LakePiece] | None = None
) -> DataFrame | None:
    """Returns the rows of some pieces, by default of all; None if they have no files."""
    chosen = view.pieces if pieces is None else pieces
    good = _read(spark, view.root, view, [place for piece in chosen for place in piece.places])
    bad = _read(spark, view.root / BAD_RECORDS_DIR, None, [p for piece in chosen for p in piece.bad_places])
    if good is not None and bad is not None:
        for name, expression in _DERIVED.items():
            if name in good.columns and name not in bad.columns and "storeTimestamp" in bad.columns:
                bad = bad.selectExpr("*", f"{expression} AS {name}")
    found = [frame for frame in (good, bad) if frame is not None]
    return reduce(_unite, found) if found else None


def _unite(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionByName(other, allowMissingColumns=True)


def _read(
    spark: SparkSession, root: Path, view: LakeView | None, places: Sequence[Path | str]
) -> DataFrame | None:
    """Returns the rows at the places. `view`: the lake's own view, None for plain files."""
    if not places:
        return None
    kind = LakeFormat.PARQUET if view is None else view.kind
    reader = spark.read.option("mergeSchema", "true")
    if kind is LakeFormat.PARQUET:
        reader = reader.option("basePath", str(root))
    with _texts_in_directories(spark):
        # Hadoop knows S3 only by this scheme.
        frame = reader.parquet(*(re.sub("^s3://", "s3a://", str(place)) for place in places))
    if view is None or not view.partitions:
        return frame
    return _add_partitions(spark, frame, view)


def _add_partitions(spark: SparkSession, frame: DataFrame, view: LakeView) -> DataFrame:
    """Adds the columns of a Delta table that are stored in its log instead of its files."""
    from pyspark.sql import functions as f

    names = list(next(iter(view.partitions.values())))
    if not names:
        return frame
    rows = [(file, *(values[name] for name in names)) for file, values in view.partitions.items()]
    ddl = ", ".join(f"`{name}` string" for name in (_FILE_NAME, *names))
    table = f.broadcast(spark.createDataFrame(rows, ddl))
    named = frame.select("*", f.col("_metadata.file_name").alias(_FILE_NAME))
    return named.join(table, on=_FILE_NAME).drop(_FILE_NAME)


@contextmanager
def _texts_in_directories(spark: Any) -> Iterator[None]:
    """Disables type inference for directory names: Spark would read the tag `007` as a number."""
    with _settings:
        before = spark.conf.get(_INFERENCE)
        spark.conf.set(_INFERENCE, "false")
        try:
            yield
        finally:
            spark.conf.set(_INFERENCE, before)
