"""Messages of one task -> partial sums by topic, tag and minute, as Arrow batches.

Stateless: each task gives the sums of its own rows, readers add them up (`rollup_table`). So a batch can be
repeated, and the lake takes it once, without Spark keeping any state.

Latencies are counted by size: counts of any parts can be added, percentiles are read from the sum. Four
buckets per doubling make a percentile right to 9 %. Bucket 0 holds what took less than a millisecond (or,
between machines whose clocks differ, less than nothing). Pure: numpy and pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

PER_DOUBLING = 4
BUCKETS = 28 * PER_DOUBLING + 1
"""The last one holds everything from 2.6 days on."""

Counts = NDArray[np.int64]


def find_buckets(milliseconds: NDArray[Any]) -> NDArray[np.int64]:
    """The bucket of each latency."""
    places = np.floor(np.log2(np.maximum(milliseconds, 1)) * PER_DOUBLING).astype(np.int64) + 1
    places[milliseconds < 1] = 0
    result: NDArray[np.int64] = np.minimum(places, BUCKETS - 1)
    return result


def find_percentile(counts: Counts, share: float) -> float | None:
    """Milliseconds that `share` (0..1) of the latencies do not exceed; None without latencies."""
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
PARTIAL_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("tag", pa.string()),
        ("minute", pa.timestamp("us", tz="UTC")),
        ("messages", pa.int64()),
        ("bytes", pa.int64()),
        ("bornToStoreMax", pa.int64()),
        ("bornToStore", pa.list_(pa.int64())),
        ("consumed", pa.int64()),
        ("storeToConsumerMax", pa.int64()),
        ("storeToConsumer", pa.list_(pa.int64())),
    ]
)
MINUTE_MS = 60_000
TAGS_MAX = 1_000
OTHER_TAGS = "(other)"
"""Where further tags of a topic are counted: tags made of ids must not make the table endless."""

GROUPS_MAX = 20_000
"""More sums than that are handed on, and begun anew."""

Ints = NDArray[np.int64]
Key = tuple[str, str, int]


def _zeros() -> Counts:
    return np.zeros(BUCKETS, dtype=np.int64)


@dataclass(slots=True)
class Sums:
    """Of the messages of one topic, tag and minute; latencies in milliseconds."""

    messages: int = 0
    size_bytes: int = 0
    stored_max: int = 0
    stored: Counts = field(default_factory=_zeros)
    consumed_max: int = 0
    consumed: Counts = field(default_factory=_zeros)

    def add(self, other: Sums) -> None:
        """Counts in what another task, or batch, counted of the same minute."""
        self.messages += other.messages
        self.size_bytes += other.size_bytes
        self.stored_max = max(self.stored_max, other.stored_max)
        self.stored += other.stored
        self.consumed_max = max(self.consumed_max, other.consumed_max)
        self.consumed += other.consumed


def fold_messages(
    batches: Iterable[Any], *, now_ms: Callable[[], int], live_since_ms: int | None
) -> Iterator[Any]:
    """The partial sums of batches with INPUT_COLUMNS.

    How long messages waited for the consumer is told of those only that were stored since `live_since_ms`:
    of older ones the wait says when the pipeline was started.
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
    """Per group the counts by bucket, and the longest."""
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
    """The sums as one Arrow batch, in a fixed order."""
    keys = sorted(sums)
    values = [sums[key] for key in keys]
    minutes = [minute * MINUTE_MS * 1000 for _, _, minute in keys]
    arrays = [
        pa.array([topic for topic, _, _ in keys], pa.string()),
        pa.array([tag for _, tag, _ in keys], pa.string()),
        pa.array(minutes, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.array([one.messages for one in values], pa.int64()),
        pa.array([one.size_bytes for one in values], pa.int64()),
        pa.array([one.stored_max for one in values], pa.int64()),
        pa.array([one.stored for one in values], pa.list_(pa.int64())),
        pa.array([int(one.consumed.sum()) for one in values], pa.int64()),
        pa.array([one.consumed_max for one in values], pa.int64()),
        pa.array([one.consumed for one in values], pa.list_(pa.int64())),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=PARTIAL_SCHEMA)
