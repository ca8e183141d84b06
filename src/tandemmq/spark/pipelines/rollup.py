"""Rollup: messages, bytes and latencies per topic, tag and minute, into a small table (`lake_job`).

The table takes each message exactly once. `read_rollup` reads it without Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tandemmq.errors import ConfigError
from tandemmq.spark.options import parse_options
from tandemmq.spark.pipelines.events import Reporter
from tandemmq.spark.pipelines.lake_job import CHECKPOINT_DIR, LakeTarget, run_lake_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupOptions:
    """What `tandemmq pipeline rollup` can be told; one of `topic` (several with commas) and `pattern`."""

    name_servers: str
    out: Path
    topic: str = ""
    pattern: str = ""
    master: str = "local[*]"
    is_continuous: bool = True
    trigger_s: float = 10.0
    batch_records_max: int = 1_000_000
    source: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if bool(self.topic) == bool(self.pattern):
            raise ConfigError("give either --topic or --topic-pattern")

    @property
    def subject(self) -> str:
        return self.topic or self.pattern

    def source_options(self) -> dict[str, str]:
        chosen = {"subscribe": self.topic} if self.topic else {"subscribePattern": self.pattern}
        return {
            "nameServer": self.name_servers,
            **chosen,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.batch_records_max),
            **dict(self.source),
        }

    def target(self) -> LakeTarget:
        return LakeTarget(
            out=self.out,
            checkpoint_dir=self.out / CHECKPOINT_DIR,
            is_continuous=self.is_continuous,
            trigger_s=self.trigger_s,
        )


def run_rollup(options: RollupOptions, reporter: Reporter) -> int:
    """Runs until everything is read, or when continuous until a signal; the process's exit code.

    Raises:  ConfigError before anything is started.
    """
    from tandemmq.spark.pipelines.rollup_table import measure_batch, read_sums, show_rollup

    parse_options(options.source_options(), is_streaming=True)
    live_since_ms = round(time.time() * 1000) if options.is_continuous else None

    def make(spark: SparkSession) -> DataFrame:
        return make_stream(spark, options.source_options(), live_since_ms)

    code = run_lake_job(
        "rollup", options.subject, options.master, options.target(), make, reporter, measure_batch
    )
    for exhibit in show_rollup(read_sums(options.out)):
        reporter.report(exhibit)
    return code


def make_stream(spark: SparkSession, source: dict[str, str], live_since_ms: int | None) -> DataFrame:
    """The partial sums of a stream; see `fold_messages`."""
    from tandemmq.spark.pipelines.rollup_fold import INPUT_COLUMNS, PARTIAL_DDL

    messages = spark.readStream.format("tandemmq").options(**source, columns=",".join(INPUT_COLUMNS)).load()
    return messages.mapInArrow(make_fold(live_since_ms), PARTIAL_DDL)


def make_fold(live_since_ms: int | None) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """What each task does with its rows."""

    def fold(batches: Iterable[Any]) -> Iterator[Any]:
        from tandemmq.spark.pipelines.rollup_fold import fold_messages

        return fold_messages(batches, now_ms=lambda: round(time.time() * 1000), live_since_ms=live_since_ms)

    return fold
