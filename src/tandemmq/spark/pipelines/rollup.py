"""Counts messages, bytes and latencies per topic, tag and minute, in a small table (`lake_job`).

Tasks compute partial sums of their rows (`fold_messages`); the table accepts each message exactly once.
`read_rollup` reads it without Spark, and turns the partial sums into one row per topic, tag and minute.

    for row in read_rollup(Path("/data/rollup")):
        print(row.topic, row.tag, row.minute_ms, row.messages, row.born_to_store.p99_ms)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tandemmq.protocol.record_scan import Ints
from tandemmq.spark.lake.files import Totals, batch_dir, list_batches
from tandemmq.spark.lake.home import Lake, LakeFormat
from tandemmq.spark.options import parse_options
from tandemmq.spark.pipelines.events import BarChart, Exhibit, Line, LineChart, Reporter, ReportTable
from tandemmq.spark.pipelines.lake_job import run_lake_job
from tandemmq.spark.pipelines.options import RollupOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# The fold: messages of one task -> partial sums by topic, tag and minute, as Arrow batches.
#
# Stateless: each task returns the sums of its own rows, and readers add them up (`read_sums`). A batch can
# therefore be repeated, and the lake accepts it once, without state in Spark.
#
# Latencies are counted in buckets: counts of any parts can be added, and percentiles are read from the sum.
# Four buckets per doubling make a percentile accurate to 9 %. Bucket 0 contains latencies under a millisecond
# (or negative ones, between machines whose clocks differ). Pure: numpy and pyarrow.

PER_DOUBLING = 4
BUCKETS = 28 * PER_DOUBLING + 1
"""The number of buckets; the last one contains everything from 2.6 days on."""

Counts = NDArray[np.int64]


def find_buckets(milliseconds: NDArray[Any]) -> NDArray[np.int64]:
    """Returns the bucket of each latency."""
    places = np.floor(np.log2(np.maximum(milliseconds, 1)) * PER_DOUBLING).astype(np.int64) + 1
    places[milliseconds < 1] = 0
    result: NDArray[np.int64] = np.minimum(places, BUCKETS - 1)
    return result


def find_percentile(counts: Counts, share: float) -> float | None:
    """Returns the milliseconds that `share` (0..1) of the latencies do not exceed; None without latencies."""
    total = int(counts.sum())
    if not total:
        return None
    wanted = max(1, int(np.ceil(share * total)))
    bucket = int(np.searchsorted(np.cumsum(counts), wanted))
    return 0.0 if bucket == 0 else float(2 ** ((bucket - 0.5) / PER_DOUBLING))


INPUT_COLUMNS = ("topic", "tags", "body", "bornTimestamp", "storeTimestamp")
PARTIAL_DDL = (
    "topic string, tag string, minute timestamp, messages bigint, bytes bigint, "
    "bornToStoreMax bigint, bornToStore array<bigint>, "
    "consumed bigint, storeToConsumerMax bigint, storeToConsumer array<bigint>"
)
_ARROW = {
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "bigint": pa.int64(),
    "array<bigint>": pa.list_(pa.int64()),
}
PARTIAL_SCHEMA = pa.schema(
    [(name, _ARROW[kind]) for name, _, kind in (part.partition(" ") for part in PARTIAL_DDL.split(", "))]
)
MINUTE_MS = 60_000
TAGS_MAX = 1_000
OTHER_TAGS = "(other)"
"""The tag under which tags beyond TAGS_MAX of a topic are counted: tags that contain ids must not make the
table grow without bound.
"""

GROUPS_MAX = 20_000
"""The number of sums at which a task emits them and begins with new ones."""

Key = tuple[str, str, int]


def _zeros() -> Counts:
    return np.zeros(BUCKETS, dtype=np.int64)


@dataclass(slots=True)
class Sums:
    """Sums over the messages of one topic, tag and minute; latencies in milliseconds."""

    messages: int = 0
    size_bytes: int = 0
    stored_max: int = 0
    stored: Counts = field(default_factory=_zeros)
    consumed_max: int = 0
    consumed: Counts = field(default_factory=_zeros)

    def add(self, other: Sums) -> None:
        """Adds the sums of another task, or batch, for the same minute."""
        self.messages += other.messages
        self.size_bytes += other.size_bytes
        self.stored_max = max(self.stored_max, other.stored_max)
        self.stored += other.stored
        self.consumed_max = max(self.consumed_max, other.consumed_max)
        self.consumed += other.consumed


_FIELDS = {
    "messages": "messages",
    "bytes": "size_bytes",
    "bornToStoreMax": "stored_max",
    "bornToStore": "stored",
    "storeToConsumerMax": "consumed_max",
    "storeToConsumer": "consumed",
}
"""The columns of the partial sums and the fields of `Sums` that they hold."""


def fold_messages(
    batches: Iterable[Any], *, now_ms: Callable[[], int], live_since_ms: int | None
) -> Iterator[Any]:
    """Yields the partial sums of batches with INPUT_COLUMNS.

    The time until consumption is counted only for messages stored since `live_since_ms`: for older ones it
    depends on when the pipeline was started.
    """
    sums: dict[Key, Sums] = {}
    tags: dict[str, set[str]] = {}
    for batch in batches:
        for key, part in _fold_batch(batch, now_ms(), live_since_ms):
            topic, tag, minute = key
            known = tags.setdefault(topic, set())
            if tag not in known and len(known) >= TAGS_MAX:
                key = (topic, OTHER_TAGS, minute)
            known.add(key[1])
            sums.setdefault(key, Sums()).add(part)
        if len(sums) > GROUPS_MAX:
            yield encode_sums(sums)
            sums = {}
    if sums:
        yield encode_sums(sums)


def _fold_batch(batch: Any, now_ms: int, live_since_ms: int | None) -> Iterator[tuple[Key, Sums]]:
    if not batch.num_rows:
        return
    topics, topic = _encode(batch.column("topic"))
    tags, tag = _encode(batch.column("tags"))
    stored_at = _milliseconds(batch.column("storeTimestamp"))
    minute = stored_at // MINUTE_MS
    first = int(minute.min())
    span = int(minute.max()) - first + 1
    code = (topic * len(tags) + tag) * span + (minute - first)
    codes, group = np.unique(code, return_inverse=True)
    count = len(codes)
    sizes = pc.fill_null(pc.binary_length(batch.column("body")), 0).to_numpy(zero_copy_only=False)
    waited = np.maximum(stored_at - _milliseconds(batch.column("bornTimestamp")), 0)
    is_live = np.zeros(len(code), dtype=np.bool_) if live_since_ms is None else stored_at >= live_since_ms
    taken = np.maximum(now_ms - stored_at, 0)
    messages = np.bincount(group, minlength=count)
    size_bytes = np.bincount(group, weights=sizes, minlength=count).astype(np.int64)
    stored, stored_max = _count(group, waited, count)
    consumed, consumed_max = _count(group[is_live], taken[is_live], count)
    for index, value in enumerate(codes.tolist()):
        rest, minutes = divmod(value, span)
        topic_number, tag_number = divmod(rest, len(tags))
        sums = Sums(
            int(messages[index]),
            int(size_bytes[index]),
            int(stored_max[index]),
            stored[index],
            int(consumed_max[index]),
            consumed[index],
        )
        yield (topics[topic_number], tags[tag_number], first + minutes), sums


def _count(group: Ints, milliseconds: Ints, count: int) -> tuple[Counts, Ints]:
    """Returns, per group, the counts by bucket and the maximum."""
    places = group * BUCKETS + find_buckets(milliseconds)
    counts = np.bincount(places, minlength=count * BUCKETS).reshape(count, BUCKETS)
    longest = np.zeros(count, dtype=np.int64)
    np.maximum.at(longest, group, milliseconds)
    return counts.astype(np.int64), longest


def _encode(column: Any) -> tuple[list[str], Ints]:
    encoded = pc.fill_null(column, "").dictionary_encode()
    return encoded.dictionary.to_pylist(), np.asarray(encoded.indices).astype(np.int64)


def _milliseconds(column: Any) -> Ints:
    moments = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    result: Ints = pc.fill_null(moments, 0).to_numpy(zero_copy_only=False) // 1000
    return result


def encode_sums(sums: dict[Key, Sums]) -> Any:
    """Returns the sums as one Arrow batch, in a fixed order."""
    rows = [
        {
            "topic": topic,
            "tag": tag,
            "minute": minute * MINUTE_MS * 1000,
            "consumed": int(one.consumed.sum()),
            **{name: getattr(one, field) for name, field in _FIELDS.items()},
        }
        for (topic, tag, minute), one in sorted(sums.items(), key=lambda item: item[0])
    ]
    return pa.RecordBatch.from_pylist(rows, schema=PARTIAL_SCHEMA)


# The table as readers see it.

TOPICS_SHOWN_MAX = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles in milliseconds; None if nothing was measured."""

    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    max_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupRow:
    """One row of the table. `minute_ms`: the begin of the minute. `store_to_consumer`: only for messages that
    were followed live.
    """

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
    """Returns the rows by topic, tag and minute; only of one topic, or of minutes in `[begin_ms, end_ms)`, if
    given.
    """
    return [make_row(key, sums) for key, sums in sorted(read_sums(root, topic, begin_ms, end_ms).items())]


def read_sums(
    root: Path, topic: str | None = None, begin_ms: int | None = None, end_ms: int | None = None
) -> dict[Key, Sums]:
    """Returns the sums over all parts."""
    files = [
        str(path) for batch in list_batches(root) for path in sorted(batch_dir(root, batch).glob("*.parquet"))
    ]
    found: dict[Key, Sums] = {}
    if not files:
        return found
    for batch in ds.dataset(files, format="parquet").to_batches(filter=_filter(topic, begin_ms, end_ms)):
        for row in batch.to_pylist():
            minute = round(row["minute"].timestamp() * 1000) // MINUTE_MS
            values = {field: row[name] for name, field in _FIELDS.items()}
            counts = {name: np.array(values[name], dtype=np.int64) for name in ("stored", "consumed")}
            part = Sums(**{**values, **counts})
            found.setdefault((row["topic"], row["tag"], minute), Sums()).add(part)
    return found


def measure_batch(root: Path, batch: int) -> Totals:
    """Returns the messages and bytes that a batch counted."""
    files = sorted(batch_dir(root, batch).glob("*.parquet"))
    tables = [pq.ParquetFile(path).read(columns=["messages", "bytes"]) for path in files]
    rows, size_bytes = (
        sum(sum(table.column(name).to_pylist()) for table in tables) for name in ("messages", "bytes")
    )
    return Totals(rows=rows, size_bytes=size_bytes)


def _filter(topic: str | None, begin_ms: int | None, end_ms: int | None) -> Any:
    conditions = []
    if topic is not None:
        conditions.append(pc.field("topic") == topic)
    if begin_ms is not None:
        conditions.append(pc.field("minute") >= _moment(begin_ms // MINUTE_MS * MINUTE_MS))
    if end_ms is not None:
        conditions.append(pc.field("minute") < _moment(end_ms))
    return reduce(and_, conditions) if conditions else None


def _moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def make_row(key: Key, sums: Sums) -> RollupRow:
    """Returns one topic, tag and minute as readers see it."""
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
    # A percentile is the middle of its bucket; the maximum is exact, and bounds it.
    p50, p95, p99 = (
        None if found is None else round(min(found, float(longest)), 1)
        for found in (find_percentile(counts, share) for share in (0.5, 0.95, 0.99))
    )
    return Latency(p50_ms=p50, p95_ms=p95, p99_ms=p99, max_ms=None if p50 is None else float(longest))


def group_sums(sums: dict[Key, Sums], group: Callable[[Key], Key]) -> dict[Key, Sums]:
    """Returns the sums by a coarser key."""
    found: dict[Key, Sums] = {}
    for key, part in sums.items():
        found.setdefault(group(key), Sums()).add(part)
    return found


def rollup_charts(sums: dict[Key, Sums]) -> list[Exhibit]:
    """Returns the plots and tables of a report."""
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
        def counts_of(one: Sums) -> float | None:
            found = find_percentile(read(one), share)
            return None if found is None else min(found, float(longest(one)))

        return counts_of

    lines = [_line(f"p{share * 100:g}", sums, "", percentile(share)) for share in (0.5, 0.95, 0.99)]
    note = "" if any(line.points for line in lines) else "measured while the rollup follows its topics live"
    return LineChart(title=title, unit="ms", lines=tuple(lines), is_clock=True, note=note)


def _table(rows: Iterable[RollupRow]) -> ReportTable:
    ends, shares = ("store", "consumer"), ("p50", "p99")
    return ReportTable(
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


# The pipeline.


def run_rollup(options: RollupOptions, reporter: Reporter) -> int:
    """Runs until everything is read, or, if continuous, until a signal; returns the exit code.

    Raises:  ConfigError before anything is started.
    """
    parse_options(options.source_options(), is_streaming=True)
    live_since_ms = round(time.time() * 1000) if options.is_continuous else None
    code = run_lake_job(
        options,
        reporter,
        Lake(options.out, LakeFormat.PARQUET),
        lambda spark: make_stream(spark, options.source_options(), live_since_ms),
        measure=measure_batch,
    )
    for exhibit in rollup_charts(read_sums(options.out)):
        reporter.report(exhibit)
    return code


def make_stream(spark: SparkSession, source: dict[str, str], live_since_ms: int | None) -> DataFrame:
    """Returns the partial sums of a stream; see `fold_messages`."""

    def fold(batches: Iterable[Any]) -> Iterator[Any]:
        return fold_messages(batches, now_ms=lambda: round(time.time() * 1000), live_since_ms=live_since_ms)

    messages = spark.readStream.format("tandemmq").options(**source, columns=",".join(INPUT_COLUMNS)).load()
    return messages.mapInArrow(fold, PARTIAL_DDL)
