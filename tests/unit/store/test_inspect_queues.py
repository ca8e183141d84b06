"""Checking ConsumeQueues against the log: each injected fault is named with its queue and offset."""

from __future__ import annotations

import asyncio
import shutil
import struct
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
from tandemmq.protocol.record import Record, decode_records
from tandemmq.runtime.disk import RealDisk
from tandemmq.store import MessageStore, StoreOptions
from tandemmq.store.consume_queue import FILLER, UNIT
from tandemmq.store.inspect import Finding, StorePart

UNIT_BYTES = 20
QUEUE_OFFSET_AT = 20
STORED_AT = 56


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


def records_of(path: Path) -> list[Record]:
    data = path.read_bytes()
    end = data.rindex(b"\xcb\xd4\x31\x94") - 4 if b"\xcb\xd4\x31\x94" in data else len(data.rstrip(b"\0"))
    return list(decode_records(data[:end]))


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
    """Nothing of the record is left, but its entry still identifies its queue."""
    log_offset, size, _ = UNIT.unpack(queue_file(root).read_bytes()[40:60])
    change(log_files(root)[0], log_offset, b"\xff" * size)
    (found,) = damages(check(root))
    assert (found.part, found.offset) == (StorePart.LOG, log_offset)
    assert (found.topic, found.queue_id, found.queue_offset) == ("A", 0, 2)


def test_due_times_by_other_delay_levels_are_a_note(root: Path) -> None:
    report = check(root, delays_ms=(7_000,))
    assert report.is_clean
    assert any("delay levels" in note for note in notes(report))


def test_due_time_of_a_damaged_store_time_is_no_number_too_large(root: Path) -> None:
    """No checksum covers the store time."""
    path, delayed = next(
        (path, r)
        for path in log_files(root)
        for r in records_of(path)
        if r.topic == "SCHEDULE_TOPIC_XXXX" and b"DELAY\x010" not in r.raw_properties
    )
    change(path, delayed.log_offset - int(path.name) + STORED_AT, struct.pack(">q", 2**63 - 1))
    (found,) = damages(check(root))
    assert "ms before the one in front of it" in found.reason
    assert "the entry is due at another time than by these delay levels" in notes(check(root))


def test_records_without_entry_are_counted_though_a_queue_offset_falls(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store", 120)
    placed = [(path, r) for path in log_files(root) for r in records_of(path) if not r.sys_flag]
    path, last = [(path, r) for path, r in placed if (r.topic, r.queue_id) == ("A", 0)][-1]
    change(path, last.log_offset - int(path.name) + QUEUE_OFFSET_AT, struct.pack(">q", 1))
    second = queue_file(root, index=1)
    missing = last.queue_offset - int(second.name) // UNIT_BYTES
    second.write_bytes(bytes(QUEUE_FILE_BYTES))
    (found,) = (f for f in damages(check(root)) if "behind" in f.reason)
    assert found.reason == f"the queue is behind the log: {missing} records without entry"
    assert (found.path, found.size_bytes) == (second, missing * UNIT_BYTES)


def test_entry_whose_record_would_end_behind_all_offsets_is_damage(root: Path) -> None:
    path = queue_file(root)
    change(path, entry_count(path) * UNIT_BYTES, UNIT.pack(2**63 - 1, 100, 5))
    assert queue_damage(root).reason == "the entry is ahead of the log: it points behind the log's end"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", [2**63 // 400 * 400, 10**17])
def test_stray_queue_file_with_an_absurd_name_does_not_keep_the_check(root: Path, name: int) -> None:
    path = queue_file(root)
    (path.parent / f"{name:020d}").write_bytes(path.read_bytes())
    reasons = [f.reason for f in damages(check(root))]
    assert ("the file does not follow the one before it" in reasons) is bool(reasons) is (name == 10**17)


def test_queue_offset_that_leaves_a_gap_in_the_log_is_damage(tmp_path: Path) -> None:
    async def run() -> None:
        clock = ManualClock()
        options = StoreOptions(root=tmp_path, **SIZES)
        store = await MessageStore.open(options, disk=RealDisk(), clock=clock)
        for number in range(6):
            store.appender.append([record(b"%d" % number)], lambda _: None)
            if number == 3:
                store.queues.table["T", 0].next_offset += 2
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
                await store.deletions.drop(["T"])
            store.appender.append([record(b"%d" % number)], lambda _: None)
            clock.run_soon()
        await store.close()

    asyncio.run(run())
    report = check(tmp_path)
    assert damages(report) == notes(report) == []
    # RocketMQ has no such file.
    for copy in (tmp_path / "config").glob("deletedTopics.json*"):
        copy.unlink()
    report = check(tmp_path)
    assert damages(report) == []
    assert "the queue restarts here, as after its topic was deleted and created again" in notes(report)


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
