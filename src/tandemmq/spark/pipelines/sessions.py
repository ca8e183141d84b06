"""The frame around every pipeline: its session, the signals that ask for the end, repetition."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tandemmq.spark.pipelines.runner import POLL_S, StopFlag
from tandemmq.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_LOG = Path("/dev/null")


@contextmanager
def open_session(
    app: str, master: str, log_file: Path | None = None, *, is_long: bool = False
) -> Iterator[tuple[SparkSession, StopFlag]]:
    """A session with our sources and sinks registered, and the flag that SIGTERM and SIGINT set.

    `is_long`: it runs until a signal. Both signals are taken from before Java starts until after it ended.
    """
    stop = StopFlag()
    with stop.listening():
        spark = build_session(app, master, log_file=log_file or NO_LOG, is_long=is_long)
        register_formats(spark)
        try:
            # Spark took SIGINT for itself when the session began.
            with stop.listening():
                yield spark, stop
        finally:
            # A Java that died is reported by the pipeline and cannot be stopped any more.
            with suppress(Exception):
                spark.stop()


def register_formats(spark: SparkSession) -> None:
    """Makes our formats known to a session that was not started from an installed package."""
    # The Spark classes import pyspark, which `--help` shall not pay for.
    from tandemmq.spark.commitlog.source import CommitLogSource
    from tandemmq.spark.lake.sink import LakeSink
    from tandemmq.spark.source import TandemSource

    for source in (TandemSource, CommitLogSource, LakeSink):
        spark.dataSource.register(source)


def repeat(work: Callable[[], int], *, every_s: float | None, stop: StopFlag) -> int:
    """Calls `work` once, or with `every_s` again and again until a signal; what it returned last."""
    code = work()
    while every_s is not None and not wait_for_stop(stop, every_s):
        code = work()
    return code


def wait_for_stop(stop: StopFlag, seconds: float) -> bool:
    """True as soon as a signal asked for the end, False when the time is over."""
    deadline = time.monotonic() + seconds
    while not stop.is_set and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return stop.is_set
