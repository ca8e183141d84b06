"""Tests the sums of a rollup: independent of the batches, accurate percentiles, bounded size."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tandemmq.spark.pipelines.rollup
from tandemmq.spark.pipelines.rollup import (
    BUCKETS,
    OTHER_TAGS,
    PARTIAL_SCHEMA,
    find_buckets,
    find_percentile,
    fold_messages,
    read_rollup,
    read_sums,
    rollup_charts,
)

NOON_MS = 1_700_000_000_000


def _batch(rows: list[tuple[str, str | None, bytes, int, int]]) -> Any:
    topics, tags, bodies, born, stored = zip(*rows, strict=True)
    stamp = pa.timestamp("us", tz="UTC")
    return pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(topics),
            "tags": pa.array(tags, pa.string()),
            "body": pa.array(bodies, pa.binary()),
            "bornTimestamp": pa.array([(NOON_MS + at) * 1000 for at in born], pa.int64()).cast(stamp),
            "storeTimestamp": pa.array([(NOON_MS + at) * 1000 for at in stored], pa.int64()).cast(stamp),
        }
    )


def _fold(batches: list[Any], *, now: int = 0, live_since: int | None = None) -> list[dict[str, Any]]:
    since = None if live_since is None else NOON_MS + live_since
    found = fold_messages(batches, now_ms=lambda: NOON_MS + now, live_since_ms=since)
    return [row for batch in found for row in batch.to_pylist()]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 0.99, 1.0])
def test_a_percentile_is_right_to_nine_percent(share: float) -> None:
    values = np.sort(np.random.default_rng(7).lognormal(4, 2, 5000)).astype(np.int64) + 1
    counts = np.bincount(find_buckets(values), minlength=BUCKETS)
    exact = values[max(0, int(np.ceil(share * len(values))) - 1)]
    found = find_percentile(counts, share)
    assert found is not None
    assert abs(found - exact) <= 0.095 * exact + 0.5


def test_the_smallest_and_the_longest_have_buckets() -> None:
    assert find_buckets(np.array([-5, 0, 1, 2, 2**40])).tolist() == [0, 0, 1, 5, BUCKETS - 1]
    assert find_percentile(np.zeros(BUCKETS, dtype=np.int64), 0.5) is None


def test_messages_are_summed_by_topic_tag_and_minute() -> None:
    rows = [
        ("T", "a", b"12", 0, 4),
        ("T", "a", b"345", 0, 8),
        ("T", None, b"", 0, 0),
        ("T", "a", b"6", 90_000, 90_000),
        ("U", "a", b"7", 5, 0),
    ]
    found = _fold([_batch(rows[:2]), _batch(rows[2:])], now=100_000, live_since=80_000)
    keys = [(row["topic"], row["tag"], row["messages"], row["bytes"], row["bornToStoreMax"]) for row in found]
    assert keys == [
        ("T", "", 1, 0, 0),
        ("T", "a", 2, 5, 8),
        ("T", "a", 1, 1, 0),
        ("U", "a", 1, 1, 0),
    ]
    assert [row["consumed"] for row in found] == [0, 0, 1, 0]
    assert found[2]["storeToConsumerMax"] == 10_000
    assert found[1]["minute"] == datetime.fromtimestamp(NOON_MS // 60_000 * 60, UTC)
    assert _fold([_batch(rows)], now=100_000, live_since=80_000) == found


def test_tags_without_end_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tandemmq.spark.pipelines.rollup, "TAGS_MAX", 3)
    found = _fold([_batch([("T", f"t{n}", b"x", 0, 0) for n in range(10)])])
    assert len(found) == 4
    assert {row["tag"]: row["messages"] for row in found}[OTHER_TAGS] == 7


def test_the_table_adds_up_all_parts(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    for number in range(3):
        directory = tmp_path / f"batch={number:08d}"
        directory.mkdir()
        rows = _fold([_batch([("T", "a", b"xy", 0, 4 + number), ("U", "b", b"z", 0, 60_000)])])
        pq.write_table(pa.Table.from_pylist(rows, schema=PARTIAL_SCHEMA), directory / "part-00000.parquet")
    first, second = read_rollup(tmp_path)
    assert (first.topic, first.messages, first.size_bytes) == ("T", 3, 6)
    assert first.born_to_store.max_ms == 6
    assert first.store_to_consumer.p50_ms is None
    assert second.messages == 3
    assert [row.topic for row in read_rollup(tmp_path, topic="U")] == ["U"]
    assert read_rollup(tmp_path, end_ms=first.minute_ms) == []
    assert len(rollup_charts(read_sums(tmp_path))) == 5
    assert read_rollup(tmp_path / "nothing") == []
