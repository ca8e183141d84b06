"""Tests the division of ranges into tasks: everything once, large ranges split, small ones packed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandemmq.spark.offsets import OffsetRange, PackingOptions, QueueKey
from tandemmq.spark.packing import PlannedTask, leave_out, plan_tasks


def _ranges(*sizes: int) -> list[OffsetRange]:
    return [OffsetRange(QueueKey("t", "b", n), 100, 100 + size) for n, size in enumerate(sizes)]


def _sizes(tasks: list[tuple[OffsetRange, ...]]) -> list[int]:
    return [sum(item.size for item in task) for task in tasks]


options = st.builds(
    PackingOptions,
    partitions_min=st.integers(min_value=0, max_value=20),
    records_max=st.integers(min_value=0, max_value=500),
    pack_records=st.integers(min_value=0, max_value=1000),
)


@given(st.lists(st.integers(min_value=1, max_value=3000), max_size=12), options)
def test_every_offset_is_in_exactly_one_task(sizes: list[int], packing: PackingOptions) -> None:
    ranges = _ranges(*sizes)
    read = [
        (p.queue, at) for task in plan_tasks(ranges, packing) for p in task for at in range(p.begin, p.end)
    ]
    assert read == [(item.queue, at) for item in ranges for at in range(item.begin, item.end)]


@given(st.lists(st.integers(min_value=1, max_value=3000), max_size=12), options)
def test_no_piece_is_larger_than_allowed(sizes: list[int], packing: PackingOptions) -> None:
    pieces = [piece for task in plan_tasks(_ranges(*sizes), packing) for piece in task]
    if packing.records_max:
        assert all(piece.size <= packing.records_max for piece in pieces)


def test_small_ranges_share_a_task_and_a_large_one_is_alone() -> None:
    assert _sizes(plan_tasks(_ranges(10, 10, 10, 500, 10), PackingOptions(pack_records=30))) == [30, 500, 10]


def test_packing_can_be_switched_off() -> None:
    assert _sizes(plan_tasks(_ranges(1, 2, 3), PackingOptions(pack_records=0))) == [1, 2, 3]


def test_large_ranges_are_cut_into_equal_pieces() -> None:
    assert _sizes(plan_tasks(_ranges(1000), PackingOptions(records_max=300))) == [250, 250, 250, 250]


def test_a_minimum_of_tasks_cuts_in_proportion() -> None:
    tasks = plan_tasks(_ranges(900, 100), PackingOptions(partitions_min=10))
    assert len(tasks) >= 10
    assert max(_sizes(tasks)) <= 100


def test_nothing_to_read_is_no_task() -> None:
    assert plan_tasks([], PackingOptions(partitions_min=4)) == []


def _name_rows(tasks: list[PlannedTask]) -> dict[tuple[int, int], tuple[QueueKey, int]]:
    """Returns the message of each row, by task and row number, as sinks name rows."""
    return {
        (number, row): message
        for number, task in enumerate(tasks)
        for row, message in enumerate((p.queue, at) for p in task for at in range(p.begin, p.end))
    }


@given(
    st.lists(st.integers(min_value=1, max_value=300), min_size=1, max_size=8),
    options,
    st.dictionaries(st.integers(0, 7), st.integers(min_value=0, max_value=400), max_size=4),
)
def test_no_row_gets_the_name_of_another_when_messages_are_lost(
    sizes: list[int], packing: PackingOptions, lost: dict[int, int]
) -> None:
    planned = plan_tasks(_ranges(*sizes), packing)
    resume_at = {QueueKey("t", "b", queue_id): 100 + count for queue_id, count in lost.items()}
    left = leave_out(planned, resume_at)
    before, after = _name_rows(planned), _name_rows(left)
    assert all(before.get(name, message) == message for name, message in after.items())
    kept = [(queue, at) for queue, at in before.values() if at >= resume_at.get(queue, 0)]
    assert sorted(after.values()) == sorted(kept)
    if not lost:
        assert left == planned
