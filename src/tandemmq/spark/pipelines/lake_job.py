"""Streams into lakes, exactly once (`run_lake_job`, used by landing and rollup).

Two logs make it exactly once: Spark's checkpoint records the offsets of batch N before the batch runs, and
the lake accepts batch N at most once. If a process is killed between the two, the next run repeats batch N
with the same offsets, and the lake accepts it only if it lacks it. The checkpoint is inside the output
directory by default, so that both are kept or deleted together (spec spark 12.20).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from tandemmq.spark.lake.files import CONTROL_DIR
from tandemmq.spark.lake.home import Lake, check_table, check_writer, hold_directory
from tandemmq.spark.lake.summaries import LakeMeter, Measure, read_committed
from tandemmq.spark.pipelines.events import Reporter
from tandemmq.spark.pipelines.options import StreamOptions
from tandemmq.spark.pipelines.runner import Job, Runner, open_workplace
from tandemmq.spark.session import choose_file_manager, warm_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


LOG_FILE = "spark.log"
ONCE_RESTARTS_MAX = 3


def run_lake_job(
    options: StreamOptions,
    reporter: Reporter,
    lake: Lake,
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
    out, is_long = lake.root, options.is_continuous
    check_table(lake)  # before the lock, so that a refused landing leaves no new directory
    with hold_directory(out):
        check_writer(lake, options.checkpoint_dir)
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
