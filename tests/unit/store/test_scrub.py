"""The search for damage in the log of an open store."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from store_rig import Rig, record
from test_damage import COUNT, FIELDS, FILE_BYTES, filled, flip, healed, log_bytes, place, read

from tandemmq.runtime.ports import File
from tandemmq.store import FlushMode, GetResult, GetStatus, MessageStore, reader
from tandemmq.store.consume_queue import UNIT
from tandemmq.store.outcomes import RecordFilter
from tandemmq.store.scrub import BLOCK_BYTES, FIRST_DELAY_S
from tandemmq.telemetry import events

ROUND_S = 120
COUNT_LONG = 300
QUEUE_OFFSET_AT = 20
SCRUB: dict[str, Any] = {"commit_log_file_bytes": FILE_BYTES, "scrub_interval_ms": ROUND_S * 1000}


def found(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Returns the offset of each reported damage, and its finder."""
    return [(r.log_offset, r.found_by) for r in caplog.records if r.msg == events.LOG_DAMAGED]  # type: ignore[attr-defined]


def ranges(store: MessageStore) -> list[tuple[int, int]]:
    return [(begin, end) for begin, end, _ in store.damaged_ranges]


@pytest.mark.parametrize("field", FIELDS)
async def test_a_flipped_bit_in_an_old_file_is_found_while_the_store_is_open(
    field: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is reported once and skipped by reads, and sends continue."""
    rig = Rig(**SCRUB, flush_mode=FlushMode.SYNC_FLUSH)
    size = await filled(rig, 300)
    store = rig.stores[-1]
    told: list[int] = []
    store.on_damaged = lambda: told.append(len(store.damaged_ranges))
    at = place(rig, 10)
    flip(rig, at + FIELDS[field])
    with caplog.at_level(logging.ERROR):
        await rig.clock.pass_time(FIRST_DELAY_S + 5)
        await rig.clock.pass_time(ROUND_S + 5)
    assert ranges(store) == [(at, at + size)]
    assert found(caplog) == [(at, "scrub")]
    assert told == [1]
    others = [n for n in range(300) if n != 10]
    assert read(store) == read(store, is_bulk=True) == others
    assert store.facts().damaged_range_count == 1
    assert store.facts().damaged_bytes == size
    assert store.recorder.scrubbed_bytes > store.max_log_offset
    rig.put(store, record(b"300"))
    await rig.clock.pass_time(1)
    assert read(store) == [*others, 300]
    await store.close()


async def test_damage_found_by_scrubbing_is_healed() -> None:
    rig = Rig(**SCRUB)
    await filled(rig)
    store = rig.stores[-1]
    sound = log_bytes(rig)
    for number in (10, 11, 40, COUNT - 1):
        flip(rig, place(rig, number) + 95)
    await rig.clock.pass_time(FIRST_DELAY_S + 5)
    assert read(store) == [n for n in range(COUNT) if n not in (10, 11, 40, COUNT - 1)]
    assert await healed(store, sound) == 0
    assert read(store) == read(store, is_bulk=True) == list(range(COUNT))
    assert log_bytes(rig) == sound
    await rig.clock.pass_time(ROUND_S + 5)
    assert not store.damaged_ranges
    await store.close()


@pytest.mark.parametrize("number", [0, 1, 200, COUNT_LONG - 1])
async def test_where_another_copy_differs_it_is_looked_at_once(number: int) -> None:
    """Only from there on: earlier parts are read in a later round."""
    rig = Rig(**SCRUB, message_bytes_max=128)
    size = await filled(rig, COUNT_LONG)
    store = rig.stores[-1]
    damaged = sorted({20, number, COUNT_LONG - 1})
    for one in damaged:
        flip(rig, place(rig, one) + 95)
    await store.scrub(place(rig, number) + 95, store.max_log_offset)
    known = [place(rig, one) for one in damaged if one >= number]
    assert ranges(store) == [(at, at + size) for at in known]
    await store.close()


async def test_damage_at_the_end_of_a_file_ends_with_it() -> None:
    """The BLANK after the last record, and the first record of the next file."""
    rig = Rig(**SCRUB)
    size = await filled(rig, 300)
    store = rig.stores[-1]
    blank_at = (FILE_BYTES - 8) // size * size
    flip(rig, blank_at + 5)
    flip(rig, FILE_BYTES + 95)
    await rig.clock.pass_time(FIRST_DELAY_S + 5)
    assert ranges(store) == [(blank_at, FILE_BYTES), (FILE_BYTES, FILE_BYTES + size)]
    await store.close()


async def test_a_record_longer_than_a_block_is_checked_as_a_whole() -> None:
    rig = Rig(**{**SCRUB, "commit_log_file_bytes": 4 * BLOCK_BYTES})
    store = await rig.open()
    rig.put(store, record(b"first"), record(bytes(2 * BLOCK_BYTES) + b"x"), record(b"last"))
    await rig.clock.pass_time(11)
    await rig.clock.pass_time(FIRST_DELAY_S + 5)
    assert not store.damaged_ranges
    (first, long, last) = (entry[0] for entry in store.queue_entries("T", 0, 0, 3))
    assert store.recorder.scrubbed_bytes > last
    file = rig.disk.open(store.options.log_dir / ("0" * 20))
    file.pwrite(long + 2 * BLOCK_BYTES, (b"\1",))
    file.close()
    await rig.clock.pass_time(ROUND_S + 5)
    assert ranges(store) == [(long, last)]
    assert store.read_record(first) is not None
    await store.close()


async def test_the_speed_is_kept_and_nothing_is_read_when_it_is_switched_off() -> None:
    for speed in (0, 1000):
        rig = Rig(**SCRUB, scrub_bytes_per_second=speed)
        await filled(rig, 300)
        store = rig.stores[-1]
        await rig.clock.pass_time(FIRST_DELAY_S + 12)
        if speed:
            assert 0 < store.recorder.scrubbed_bytes < 3 * FILE_BYTES
        else:
            assert store.recorder.scrubbed_bytes == 0
        await store.close()
        assert rig.fatal == []


async def test_files_that_are_deleted_meanwhile_are_passed_over() -> None:
    rig = Rig(
        **SCRUB,
        scrub_bytes_per_second=1000,
        clean_first_delay_ms=10 * 24 * 3_600_000,
    )
    await filled(rig, 300)
    store = rig.stores[-1]
    await rig.clock.pass_time(FIRST_DELAY_S + 1)
    assert 0 < store.recorder.scrubbed_bytes < 2 * FILE_BYTES
    for _ in range(2):
        store.log.log.drop_oldest()
    store.cleaner.cut_tables()
    await rig.clock.pass_time(ROUND_S)
    assert not store.damaged_ranges
    assert rig.fatal == []
    await store.close()


async def test_a_file_that_cannot_be_read_is_told_and_passed_over(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(**SCRUB)
    await filled(rig, 300)
    store = rig.stores[-1]
    at = place(rig, 299)
    flip(rig, at + 95)
    first = store.log.log.segments[0]
    file_type = type(first.file)
    sound_pread = file_type.pread

    def pread(file: File, offset: int, size: int) -> bytes:
        if file.path == first.path:
            raise OSError(5, "Input/output error")
        return sound_pread(file, offset, size)  # type: ignore[arg-type]

    monkeypatch.setattr(file_type, "pread", pread)
    await rig.clock.pass_time(FIRST_DELAY_S + 5)
    monkeypatch.undo()
    failed = [r for r in caplog.records if r.msg == events.LOG_SCRUB_FAILED]
    assert [r.log_offset for r in failed] == [0]  # type: ignore[attr-defined]
    assert [begin for begin, _ in ranges(store)] == [at]
    assert rig.fatal == []
    await store.close()


async def from_disk(rig: Rig) -> None:
    """Makes the queue read from its files, as after an idle time."""
    await rig.clock.pass_time(11)
    rig.stores[-1].queues.table["T", 0].drop_tail()


def entry_place(rig: Rig, number: int) -> tuple[Path, int]:
    """Returns the file of the queue with the entry of message `number`, and its byte position."""
    options = rig.stores[-1].options
    at = number * 20 % options.consume_queue_file_bytes
    return options.root / "consumequeue" / "T" / "0" / f"{number * 20 - at:020}", at


def overwrite_entry(rig: Rig, number: int, data: bytes) -> None:
    """Overwrites the entry of message `number` in the queue's file."""
    path, at = entry_place(rig, number)
    file = rig.disk.open(path)
    file.pwrite(at, (data,))
    file.close()


def flip_entry(rig: Rig, number: int, byte: int, bit: int) -> bytes:
    """Flips a bit in a byte of the entry; returns the original entry."""
    path, at = entry_place(rig, number)
    entry = rig.disk.read_bytes(path)[at : at + 20]
    changed = bytearray(entry)
    changed[byte] ^= bit
    overwrite_entry(rig, number, bytes(changed))
    return entry


@pytest.mark.parametrize(
    ("at", "bit"), [(0, 0x80), (3, 1), (6, 2), (7, 4), (8, 0x80), (10, 1), (11, 1), (18, 1)]
)
async def test_a_turned_bit_in_a_queue_entry_is_found_and_mended(
    at: int, bit: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(**SCRUB)
    await filled(rig, 300)
    store = rig.stores[-1]
    await from_disk(rig)
    entry = flip_entry(rig, 10, at, bit)
    assert store.queue_entries("T", 0, 10, 1) != [UNIT.unpack(entry)]
    await rig.clock.pass_time(FIRST_DELAY_S + 5)
    assert store.queue_entries("T", 0, 10, 1) == [UNIT.unpack(entry)]
    assert read(store) == read(store, is_bulk=True) == list(range(300))
    told = [r for r in caplog.records if r.msg == events.QUEUE_ENTRY_REPAIRED]
    assert [(r.topic, r.queue_id, r.queue_offset) for r in told] == [("T", 0, 10)]  # type: ignore[attr-defined]
    await store.close()
    again = await rig.open()
    assert read(again) == list(range(300))
    await again.close()


@pytest.mark.parametrize("is_bulk", [False, True])
@pytest.mark.parametrize(
    ("at", "bit"), [(0, 0x80), (3, 1), (6, 2), (7, 4), (8, 0x80), (8, 0x40), (10, 1), (11, 1), (11, 0x10)]
)
async def test_readers_wait_while_the_record_of_a_wrong_entry_is_looked_for(
    at: int, bit: int, is_bulk: bool
) -> None:
    """Otherwise readers would conclude that retention deleted the message, or would get other bytes."""
    rig = Rig(**SCRUB)
    await filled(rig, 300)
    store = rig.stores[-1]
    await from_disk(rig)
    flip_entry(rig, 15, at, bit)
    told: list[object] = []
    store.dispatcher.on_dispatch(told.append)
    assert store.reader.get("T", 0, 12, count_max=100, is_bulk=is_bulk).next_offset == 15
    assert (
        store.reader.get("T", 0, 15, count_max=100, is_bulk=is_bulk).status is GetStatus.OFFSET_OVERFLOW_ONE
    )
    await rig.clock.pass_time(1)
    assert told
    assert store.reader.get("T", 0, 15, count_max=1, is_bulk=is_bulk).status is GetStatus.FOUND
    assert read(store, is_bulk=is_bulk) == list(range(300))
    await store.close()


EVERYTHING = RecordFilter(lambda _properties: True, 1_000)


@pytest.mark.parametrize("how", ["plain", "bulk", "filter"])
@pytest.mark.parametrize("other", [14, 17, 250])
async def test_an_entry_that_names_the_record_of_another_place_is_mended_when_it_is_read(
    other: int, how: str
) -> None:
    rig = Rig(**SCRUB)
    await filled(rig, 300)
    store = rig.stores[-1]
    await from_disk(rig)
    overwrite_entry(rig, 15, UNIT.pack(*store.queue_entries("T", 0, other, 1)[0]))
    record_filter = EVERYTHING if how == "filter" else None

    def get(offset: int) -> GetResult:
        return store.reader.get(
            "T", 0, offset, count_max=100, is_bulk=how == "bulk", record_filter=record_filter
        )

    assert get(12).next_offset == 15
    assert get(15).status is GetStatus.OFFSET_OVERFLOW_ONE
    await rig.clock.pass_time(1)
    assert get(12).next_offset == 20
    assert read(store, is_bulk=how == "bulk") == list(range(300))
    await store.close()


@pytest.mark.parametrize("is_bulk", [False, True])
async def test_a_record_that_tells_a_wrong_place_of_itself_is_given_to_its_readers(is_bulk: bool) -> None:
    """No checksum covers its queue offset; its entry and the bytes at that log offset agree on everything
    else.
    """
    rig = Rig(**SCRUB)
    await filled(rig, 300)
    store = rig.stores[-1]
    await from_disk(rig)
    flip(rig, place(rig, 10) + QUEUE_OFFSET_AT + 7)
    await rig.clock.pass_time(0)
    assert store.reader.get("T", 0, 10, count_max=1, is_bulk=is_bulk).status is GetStatus.OFFSET_OVERFLOW_ONE
    await rig.clock.pass_time(1)
    assert store.reader.get("T", 0, 10, count_max=1, is_bulk=is_bulk).next_offset == 11
    assert read(store, is_bulk=is_bulk)[11:] == list(range(11, 300))
    await store.close()


@pytest.mark.parametrize("is_bulk", [False, True])
@pytest.mark.parametrize("is_record", [False, True])
async def test_many_entries_that_cannot_be_mended_are_passed_in_steps(
    is_record: bool, is_bulk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(**SCRUB | {"consume_queue_file_bytes": 6_000})
    await filled(rig, 300)
    store = rig.stores[-1]
    await from_disk(rig)
    log_offset, size, tag = store.queue_entries("T", 0, 250, 1)[0]
    for number in range(20, 120):
        overwrite_entry(rig, number, UNIT.pack(log_offset + (not is_record), size, tag))
    monkeypatch.setattr(store.reader, "_on_wrong_entry", lambda _queue, _offset: False)
    looks: list[int] = []
    first_wrong = reader._first_wrong

    def counted(*args: Any) -> Any:
        looks.append(1)
        return first_wrong(*args)

    monkeypatch.setattr(reader, "_first_wrong", counted)
    offset, given, most = 0, 0, 0
    while offset < 300:
        looks.clear()
        got = store.reader.get("T", 0, offset, count_max=1_000, is_bulk=is_bulk)
        assert got.next_offset > offset
        offset, given, most = got.next_offset, given + got.count, max(most, len(looks))
    assert given == (300 if is_record else 200)
    assert most <= reader.WRONG_ENTRIES_MAX + 2
    await store.close()


async def test_an_entry_whose_record_is_nowhere_keeps_nobody_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(**SCRUB)
    size = await filled(rig, 300)
    store = rig.stores[-1]
    await from_disk(rig)
    flip(rig, place(rig, 10) + FIELDS["body"])
    overwrite_entry(rig, 10, UNIT.pack(1 << 50, size, 0))
    assert store.reader.get("T", 0, 10, count_max=1).status is GetStatus.OFFSET_OVERFLOW_ONE
    await rig.clock.pass_time(1)
    assert read(store) == read(store, is_bulk=True) == [n for n in range(300) if n != 10]
    told = [r for r in caplog.records if r.msg == events.QUEUE_ENTRY_LOST]
    assert [r.queue_offset for r in told] == [10]  # type: ignore[attr-defined]
    await store.close()


async def test_scrubbing_does_not_restore_entries_of_a_deleted_topic_with_the_same_name() -> None:
    rig = Rig(**SCRUB)
    await filled(rig, 30)
    store = rig.stores[-1]
    await store.deletions.drop(["T"])
    rig.put(store, *(record(b"%03d" % n) for n in range(100, 120)))
    before = store.queue_entries("T", 0, 0, 100)
    await rig.clock.pass_time(FIRST_DELAY_S + 15)
    assert store.recorder.scrubbed_bytes
    assert store.queue_entries("T", 0, 0, 100) == before
    await store.close()
