"""Rollup: messages, bytes and latencies per topic, tag and minute, into a small table (`lake_job`).

The table takes each message exactly once. `read_rollup` reads it without Spark: partial sums in, one row per
topic, tag and minute out.

    for row in read_rollup(Path("/data/rollup")):
        print(row.topic, row.tag, row.minute_ms, row.messages, row.born_to_store.p99_ms)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.files import Summary, batch_dir, list_batches
from tandemmq.spark.options import parse_options
from tandemmq.spark.pipelines.events import Reporter
from tandemmq.spark.pipelines.exhibits import BarChart, Exhibit, Line, LineChart, Table
from tandemmq.spark.pipelines.lake_job import CHECKPOINT_DIR, LakeTarget, run_lake_job
from tandemmq.spark.pipelines.rollup_fold import MINUTE_MS, Counts, Key, Sums, find_percentile

TOPICS_SHOWN_MAX = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Milliseconds; None where nothing was measured."""

    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupRow:
    """`minute_ms`: when the minute begins. `store_to_consumer`: of messages that were followed live."""

    topic: str
    tag: str
    minute_ms: int
    messages: int
    size_bytes: int
    born_to_store: Latency
    store_to_consumer: Latency


def read_rollup(
    root: Path, *, topic: str | None = None, begin_ms: int | None = None, end_ms: int | None = None
) -> list[RollupRow]:
    """The rows by topic, tag and minute; of one topic, or of minutes in [begin, end), if given."""
    return [make_row(key, sums) for key, sums in sorted(read_sums(root, topic, begin_ms, end_ms).items())]


def read_sums(
    root: Path, topic: str | None = None, begin_ms: int | None = None, end_ms: int | None = None
) -> dict[Key, Sums]:
    """All parts added up."""
    import pyarrow.dataset as ds

    files = [
        str(path) for batch in list_batches(root) for path in sorted(batch_dir(root, batch).glob("*.parquet"))
    ]
    found: dict[Key, Sums] = {}
    if not files:
        return found
    for batch in ds.dataset(files, format="parquet").to_batches(filter=_filter(topic, begin_ms, end_ms)):
        for row in batch.to_pylist():
            minute = round(row["minute"].timestamp() * 1000) // MINUTE_MS
            part = Sums(
                row["messages"],
                row["bytes"],
                row["bornToStoreMax"],
                np.array(row["bornToStore"], dtype=np.int64),
                row["storeToConsumerMax"],
                np.array(row["storeToConsumer"], dtype=np.int64),
            )
            found.setdefault((row["topic"], row["tag"], minute), Sums()).add(part)
    return found


def measure_batch(root: Path, batch: int) -> Summary:
    """Messages and bytes that a batch counted."""
    import pyarrow.parquet as pq

    files = sorted(batch_dir(root, batch).glob("*.parquet"))
    tables = [pq.ParquetFile(path).read(columns=["messages", "bytes"]) for path in files]
    rows, size_bytes = (
        sum(sum(table.column(name).to_pylist()) for table in tables) for name in ("messages", "bytes")
    )
    return Summary(rows=rows, size_bytes=size_bytes)


def _filter(topic: str | None, begin_ms: int | None, end_ms: int | None) -> Any:
    import pyarrow.compute as pc

    conditions = []
    if topic is not None:
        conditions.append(pc.field("topic") == topic)
    if begin_ms is not None:
        conditions.append(pc.field("minute") >= _moment(begin_ms // MINUTE_MS * MINUTE_MS))
    if end_ms is not None:
        conditions.append(pc.field("minute") < _moment(end_ms))
    chosen = None
    for condition in conditions:
        chosen = condition if chosen is None else chosen & condition
    return chosen


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def make_row(key: Key, sums: Sums) -> RollupRow:
    """One topic, tag and minute as readers see it."""
    topic, tag, minute = key
    return RollupRow(
        topic=topic,
        tag=tag,
        minute_ms=minute * MINUTE_MS,
        messages=sums.messages,
        size_bytes=sums.size_bytes,
        born_to_store=_latency(sums.stored, sums.stored_max),
        store_to_consumer=_latency(sums.consumed, sums.consumed_max),
    )


def _latency(counts: Counts, longest: int) -> Latency:
    # A percentile is the middle of its bucket; the longest one is exact, and nothing is longer.
    p50, p95, p99 = (
        None if found is None else round(min(found, float(longest)), 1)
        for found in (find_percentile(counts, share) for share in (0.5, 0.95, 0.99))
    )
    return Latency(p50_ms=p50, p95_ms=p95, p99_ms=p99, max_ms=None if p50 is None else float(longest))


def group_sums(sums: dict[Key, Sums], group: Callable[[Key], Key]) -> dict[Key, Sums]:
    """Sums by a coarser key."""
    found: dict[Key, Sums] = {}
    for key, part in sums.items():
        found.setdefault(group(key), Sums()).add(part)
    return found


def show_rollup(sums: dict[Key, Sums]) -> list[Exhibit]:
    """The plots and tables of a report."""
    by_topic = group_sums(sums, lambda key: (key[0], "", 0))
    busiest = sorted(by_topic, key=lambda key: -by_topic[key].messages)[:TOPICS_SHOWN_MAX]
    topics = [key[0] for key in busiest]
    by_minute = group_sums(sums, lambda key: (key[0], "", key[2]))
    overall = group_sums(sums, lambda key: ("", "", key[2]))
    by_tag = group_sums(sums, lambda key: (key[0], key[1], 0))
    exhibits: list[Exhibit] = [
        LineChart(
            title="Messages per minute",
            unit="messages",
            is_clock=True,
            lines=tuple(_line(topic, by_minute, topic, lambda one: one.messages) for topic in topics),
        ),
        _latencies("Producer to store", overall, lambda one: one.stored, lambda one: one.stored_max),
        _latencies("Store to consumer", overall, lambda one: one.consumed, lambda one: one.consumed_max),
        BarChart(
            title="Bytes by topic",
            unit="B",
            bars=tuple((topic, float(by_topic[topic, "", 0].size_bytes)) for topic in topics),
        ),
    ]
    return [*exhibits, _table([make_row(key, one) for key, one in sorted(by_tag.items())])]


def _line(name: str, sums: dict[Key, Sums], topic: str, read: Callable[[Sums], float | None]) -> Line:
    points = [
        (key[2] * 60.0, float(value))
        for key, one in sorted(sums.items())
        if key[0] == topic and (value := read(one)) is not None
    ]
    return Line(name, tuple(points))


def _latencies(
    title: str, sums: dict[Key, Sums], read: Callable[[Sums], Counts], longest: Callable[[Sums], int]
) -> LineChart:
    def percentile(share: float) -> Callable[[Sums], float | None]:
        def of(one: Sums) -> float | None:
            found = find_percentile(read(one), share)
            return None if found is None else min(found, float(longest(one)))

        return of

    lines = [_line(f"p{share * 100:g}", sums, "", percentile(share)) for share in (0.5, 0.95, 0.99)]
    note = "" if any(line.points for line in lines) else "measured while the rollup follows its topics live"
    return LineChart(title=title, unit="ms", lines=tuple(lines), is_clock=True, note=note)


def _table(rows: Iterable[RollupRow]) -> Table:
    ends, shares = ("store", "consumer"), ("p50", "p99")
    return Table(
        title="Topics and tags",
        columns=("topic", "tag", "messages", "bytes", *(f"{end} {p} ms" for end in ends for p in shares)),
        rows=tuple(
            (
                row.topic,
                row.tag,
                row.messages,
                row.size_bytes,
                row.born_to_store.p50_ms,
                row.born_to_store.p99_ms,
                row.store_to_consumer.p50_ms,
                row.store_to_consumer.p99_ms,
            )
            for row in rows
        ),
    )


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
    from tandemmq.spark.pipelines.rollup import measure_batch, read_sums, show_rollup

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
