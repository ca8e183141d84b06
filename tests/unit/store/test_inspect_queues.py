"""Checking ConsumeQueues against the log: each planted fault is named with its queue and place."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from inspect_rig import (
    QUEUE_FILE_BYTES,
    SIZES,
    change,
    check,
    damages,
    flip,
    log_files,
    make_store,
    notes,
    queue_file,
    some_records,
    write_store,
)
from store_rig import record

from sim.memory import ManualClock
from tandemmq.runtime.disk import RealDisk
from tandemmq.store import MessageStore, StoreOptions
from tandemmq.store.consume_queue import FILLER, UNIT
from tandemmq.store.inspect import Finding, StorePart

UNIT_BYTES = 20


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("inspect") / "store")


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store"))


def queue_damage(root: Path) -> Finding:
    (found,) = damages(check(root))
    assert found.part is StorePart.QUEUE
    return found


def entry_count(path: Path) -> int:
    return -(-len(path.read_bytes().rstrip(b"\0")) // UNIT_BYTES)


@pytest.mark.parametrize(
    ("byte", "reason"),
    [
        (6, "points to another place of the log than its record's"),
        (10, "has another size than its record"),
        (19, "has another tag hash than its record"),
    ],
)
def test_flipped_bit_in_an_entry_is_found(root: Path, byte: int, reason: str) -> None:
    path = queue_file(root)
    flip(path, 3 * UNIT_BYTES + byte, 1)
    found = queue_damage(root)
    assert (found.path, found.offset, found.size_bytes) == (path, 3 * UNIT_BYTES, UNIT_BYTES)
    assert (found.topic, found.queue_id, found.queue_offset) == ("A", 0, 3)
    assert found.reason == f"the entry {reason}"


def test_neighbours_with_the_same_fault_are_one_range(root: Path) -> None:
    path = queue_file(root)
    change(path, 2 * UNIT_BYTES, bytes(4 * UNIT_BYTES))
    found = queue_damage(root)
    assert (found.offset, found.size_bytes) == (2 * UNIT_BYTES, 4 * UNIT_BYTES)
    assert found.reason == "each of 4 entries is missing"


def test_entry_of_another_queue_is_found(root: Path) -> None:
    foreign = queue_file(root, "B").read_bytes()[:UNIT_BYTES]
    change(queue_file(root), UNIT_BYTES, foreign)
    assert "points to another place" in queue_damage(root).reason


def test_entries_behind_the_last_one_must_not_point_to_foreign_records(root: Path) -> None:
    path = queue_file(root)
    count = entry_count(path)
    change(path, count * UNIT_BYTES, queue_file(root, "B").read_bytes()[:UNIT_BYTES])
    found = queue_damage(root)
    assert found.queue_offset == count
    assert found.reason == "the entry points to a record of B/0 at queue offset 0"
    change(path, count * UNIT_BYTES, UNIT.pack(77, 200, 0))
    assert queue_damage(root).reason == "the entry points to no record"


@pytest.mark.parametrize("has_abort", [True, False])
def test_queue_ahead_of_the_log_is_damage_unless_the_store_crashed(root: Path, has_abort: bool) -> None:
    if has_abort:
        (root / "abort").write_bytes(b"1")
    path = queue_file(root)
    change(path, entry_count(path) * UNIT_BYTES, UNIT.pack(10**9, 200, 0))
    report = check(root)
    assert report.is_clean is has_abort
    (found,) = (f for f in report.findings.listed if f.part is StorePart.QUEUE)
    assert "is ahead of the log" in found.reason


@pytest.mark.parametrize("has_abort", [True, False])
def test_queue_behind_the_log_is_damage_unless_the_store_crashed(root: Path, has_abort: bool) -> None:
    if has_abort:
        (root / "abort").write_bytes(b"1")
    path = queue_file(root)
    count = entry_count(path)
    change(path, (count - 3) * UNIT_BYTES, bytes(3 * UNIT_BYTES))
    report = check(root)
    assert report.is_clean is has_abort
    (found,) = (f for f in report.findings.listed if f.part is StorePart.QUEUE)
    assert (found.topic, found.queue_id, found.queue_offset) == ("A", 0, count - 3)
    assert found.reason == "the queue is behind the log: 3 records without entry"


def test_missing_queue_is_damage_but_not_of_a_deleted_topic(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "A")
    report = check(root)
    assert {f.queue_id for f in damages(report)} == {0, 1}
    assert all("the queue has no files" in f.reason for f in damages(report))
    topics = root / "config" / "topics.json"
    topics.write_text(topics.read_text().replace('"A"', '"other"'))
    report = check(root)
    assert report.is_clean
    assert any("deleted?" in note for note in notes(report))


def test_lengths_and_gaps_of_queue_files_are_found(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store", 120)
    second = queue_file(root, index=1)
    assert int(second.name) == QUEUE_FILE_BYTES
    second.unlink()
    reasons = [f.reason for f in damages(check(root))]
    assert any("is missing" in reason or "behind" in reason for reason in reasons)
    first = queue_file(root)
    first.write_bytes(first.read_bytes()[:100])
    assert any(f.reason == "the file must have 400 bytes, it has 100" for f in damages(check(root)))


def test_entries_of_damaged_records_name_the_queue_of_the_damage(root: Path) -> None:
    """Nothing of the record is left, but its entry still says whose it was."""
    log_offset, size, _ = UNIT.unpack(queue_file(root).read_bytes()[40:60])
    change(log_files(root)[0], log_offset, b"\xff" * size)
    (found,) = damages(check(root))
    assert (found.part, found.offset) == (StorePart.LOG, log_offset)
    assert (found.topic, found.queue_id, found.queue_offset) == ("A", 0, 2)


def test_due_times_by_other_delay_levels_are_a_note(root: Path) -> None:
    report = check(root, delays_ms=(7_000,))
    assert report.is_clean
    assert any("delay levels" in note for note in notes(report))


def test_queue_offset_that_leaves_a_gap_in_the_log_is_damage(tmp_path: Path) -> None:
    async def run() -> None:
        clock = ManualClock()
        options = StoreOptions(root=tmp_path, **SIZES)
        store = await MessageStore.open(options, disk=RealDisk(), clock=clock)
        for number in range(6):
            store.append([record(b"%d" % number)], lambda _: None)
            if number == 3:
                store._queues.table["T", 0].next_offset += 2
            clock.run_soon()
        await store.close()

    asyncio.run(run())
    reasons = [f.reason for f in damages(check(tmp_path))]
    assert "a record has queue offset 6 where 4 follows" in reasons


def test_topic_that_was_deleted_and_made_again_is_clean(tmp_path: Path) -> None:
    async def run() -> None:
        clock = ManualClock()
        options = StoreOptions(root=tmp_path, **SIZES)
        store = await MessageStore.open(options, disk=RealDisk(), clock=clock)
        for number in range(9):
            if number == 5:
                await store.drop_topics(["T"])
            store.append([record(b"%d" % number)], lambda _: None)
            clock.run_soon()
        await store.close()

    asyncio.run(run())
    report = check(tmp_path)
    assert damages(report) == notes(report) == []
    # RocketMQ keeps no such file.
    for copy in (tmp_path / "config").glob("deletedTopics.json*"):
        copy.unlink()
    report = check(tmp_path)
    assert damages(report) == []
    assert "the queue begins anew here, as after its topic was deleted and made again" in notes(report)


def test_expired_records_and_fillers_are_as_they_should_be(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    log_files(root)[0].unlink()
    assert check(root).is_clean
    kept_from = next(
        n for n in range(20) if UNIT.unpack_from(queue_file(root).read_bytes(), 20 * n)[0] >= 4096
    )
    change(queue_file(root), 0, FILLER * kept_from)
    assert check(root).is_clean


def test_light_queues_are_not_judged(root: Path) -> None:
    light = root / "consumequeue" / "%LMQ%x" / "0"
    shutil.copytree(root / "consumequeue" / "A" / "0", light)
    report = check(root)
    assert report.is_clean
    assert "not checked: a light queue has entries for records of other topics" in notes(report)


def test_very_many_topics_are_told_apart(tmp_path: Path) -> None:
    records = some_records(5) + [record(b"x", topic=f"T{n % 40}ü", tags="ü") for n in range(120)]
    asyncio.run(write_store(tmp_path / "store", records))
    report = check(tmp_path / "store")
    assert damages(report) == []
    assert report.queue_count == 44
