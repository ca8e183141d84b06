"""The messages that a broker has stored, by topic and type."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.broker import arrivals
from tandemmq.broker.arrivals import DELAY, FIFO, NORMAL, Arrivals
from tandemmq.telemetry.metrics import Histogram
from tandemmq.telemetry.rocketmq_metrics import SIZE_BUCKETS


def fold(table: Arrivals) -> None:
    for _ in table.fold():
        pass


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.integers(1, 5_000_000)), max_size=60))
def test_folded_columns_equal_single_observations(sends: list[tuple[str, int]]) -> None:
    table = Arrivals(rows_max=9)
    expected = {topic: Histogram(SIZE_BUCKETS) for topic in "ABC"}
    for number, (topic, size) in enumerate(sends):
        table.row(topic, NORMAL).record(size)
        expected[topic].observe(size)
        if number % 7 == 0:
            fold(table)
    assert table.sent_count == len(sends)
    fold(table)
    for (topic, _), row in table.rows.items():
        assert (row.sizes.counts, row.sizes.total) == (expected[topic].counts, expected[topic].total)
        assert (row.messages, row.bytes) == (expected[topic].count, expected[topic].total)


def test_a_batch_is_one_size_and_many_messages() -> None:
    table = Arrivals(rows_max=9)
    row = table.row("T", NORMAL)
    row.record_batch(3, 100)
    fold(table)
    assert (row.messages, row.bytes, row.sizes.count, row.sizes.total) == (3, 100, 1, 33)


def test_types_have_rows_of_their_own() -> None:
    table = Arrivals(rows_max=9)
    for kind in (NORMAL, FIFO, DELAY, DELAY):
        table.row("T", kind).record(10)
    assert {kind: row.messages for (_, kind), row in table.rows.items()} == {NORMAL: 1, FIFO: 1, DELAY: 2}


def test_beyond_the_bound_and_for_retries_only_the_sum_grows() -> None:
    table = Arrivals(rows_max=1)
    for topic in ("A", "B", "%RETRY%G", "%DLQ%G"):
        table.row(topic, NORMAL).record(10)
    assert list(table.rows) == [("A", NORMAL)]
    assert table.sent_count == 4


def test_deleted_topics_leave_and_the_sum_stays() -> None:
    table = Arrivals(rows_max=1)
    table.row("A", NORMAL).record(10)
    table.keep_topics({"B"})
    assert not table.rows
    table.row("B", NORMAL).record(10)
    assert table.sent_count == 2


def test_long_columns_are_folded_in_steps() -> None:
    table = Arrivals(rows_max=9)
    for topic in "ABC":
        table.row(topic, NORMAL).unfolded.extend([10] * arrivals.SIZES_PER_STEP)
    assert len(list(table.fold())) == 3
    assert sum(row.sizes.count for row in table.rows.values()) == 3 * arrivals.SIZES_PER_STEP
