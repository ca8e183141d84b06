"""Bit flips in bytes that were on disk: no later record is lost, and no damaged byte is served."""

from __future__ import annotations

import pytest
from store_rig import ROOT, Rig, heal_disturbed, record, unremovable

from tandemmq.errors import BrokerUnreachable, ClientError, Corrupt, RequestTimeout, ServiceNotAvailable
from tandemmq.protocol.record import decode_records, record_size
from tandemmq.store import FlushMode, GetStatus, MessageStore, PutStatus
from tandemmq.store.damage import seal
from tandemmq.store.recovery import Recovered, Recovery
from tandemmq.store.retention import HOUR_MS

LOG = ROOT / "commitlog"
COPIES = ROOT / "damaged"
COUNT = 60
FILE_BYTES = 16_384


async def filled(rig: Rig, count: int = COUNT) -> int:
    """Returns an open store with `count` records on disk, and the size of a record."""
    store = await rig.open()
    rig.put(store, *(record(b"%03d" % n + b"x" * 100, keys=f"k{n:03}") for n in range(count)))
    await rig.clock.pass_time(11)
    rig.stores.append(store)
    return store.reader.get("T", 0, 0, count_max=1).bytes


def place(rig: Rig, number: int) -> int:
    """Returns the log offset of record `number`."""
    return rig.stores[-1].queue_entries("T", 0, number, 1)[0][0]


def flip(rig: Rig, log_offset: int, mask: int = 1) -> None:
    """Flips one bit."""
    path = LOG / f"{log_offset // FILE_BYTES * FILE_BYTES:020d}"
    file = rig.disk.open(path)
    at = log_offset % FILE_BYTES
    file.pwrite(at, (bytes([file.pread(at, 1)[0] ^ mask]),))
    file.close()


def without_queues(rig: Rig) -> None:
    """Removes the queues, so that the next start reads the log from its beginning."""
    directory = ROOT / "consumequeue" / "T" / "0"
    for name in rig.disk.list(directory):
        rig.disk.remove(directory / name)
    rig.disk.remove(directory)
    rig.disk.remove(directory.parent)


def log_bytes(rig: Rig) -> bytes:
    return b"".join(rig.disk.read_bytes(LOG / name) for name in rig.disk.list(LOG))


def read(store: MessageStore, *, is_bulk: bool = False) -> list[int]:
    """Returns the numbers of all messages that a consumer receives."""
    found: list[int] = []
    offset = store.queue_min("T", 0)
    while offset < store.queue_max("T", 0):
        result = store.reader.get("T", 0, offset, count_max=32, is_bulk=is_bulk)
        found += [int(r.body[:3]) for piece in result.slices for r in decode_records(piece)]
        assert result.next_offset > offset, result
        offset = result.next_offset
    assert store.reader.get("T", 0, offset, count_max=1).status is GetStatus.OFFSET_OVERFLOW_ONE
    return found


FIELDS = {"body": 95, "size": 3, "magic": 5, "offset": 30, "body size": 87}


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("field", FIELDS)
async def test_a_flipped_bit_costs_the_one_message_and_the_sends(is_clean: bool, field: str) -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES, flush_mode=FlushMode.SYNC_FLUSH)
    await filled(rig)
    at = place(rig, 10)
    end = rig.stores[-1].max_log_offset
    if is_clean:
        await rig.stores[-1].close()
    rig.kill()
    flip(rig, at + FIELDS[field])
    before = log_bytes(rig)
    for _ in range(2):
        store = await rig.open()
        others = [n for n in range(COUNT) if n != 10]
        assert read(store) == others
        assert read(store, is_bulk=True) == others
        assert store.read_record(at) is None
        assert store.max_log_offset == end
        assert store.log.valid_view(0, FILE_BYTES).nbytes == at
        assert log_bytes(rig)[: len(before)] == before
        with pytest.raises(ServiceNotAvailable, match=f"bytes {at} to "):
            store.appender.append([record()], lambda _: None)
        assert store.facts().damaged_range_count == 1
        await store.close()


@pytest.mark.parametrize("file_number", [1, 2, 3])
async def test_a_file_that_ends_before_a_damaged_record_is_not_taken_for_an_old_one(
    file_number: int,
) -> None:
    """A file's age is that of the first record after it, or of the next file if that record is damaged."""
    rig = Rig(commit_log_file_bytes=FILE_BYTES, queue_flush_thorough_interval_ms=1000)
    await filled(rig, 280)
    await rig.stores[-1].close()
    rig.kill()
    flip(rig, file_number * FILE_BYTES + FIELDS["body"])
    without_queues(rig)
    store = await rig.open()
    assert [begin for begin, _, _ in store.damaged_ranges] == [file_number * FILE_BYTES]
    assert store.max_log_offset > 3 * FILE_BYTES
    await rig.clock.pass_time(11)
    assert store.cleaner.clean(at_any_hour=True) == 0
    rig.clock._start_ms += 30 * 24 * HOUR_MS
    assert store.cleaner.clean(at_any_hour=True) == (2 if file_number == 3 else 3)
    await store.close()


async def test_a_damaged_last_record_is_no_torn_one() -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    size = await filled(rig)
    at = place(rig, COUNT - 1)
    await rig.stores[-1].close()
    flip(rig, at + 95)
    store = await rig.open()
    assert read(store) == list(range(COUNT - 1))
    assert store.queue_max("T", 0) == COUNT
    assert store.max_log_offset == at + size
    await store.close()


async def test_a_damaged_blank_does_not_end_the_log() -> None:
    """No valid byte follows it in its file: the scan continues in the next one."""
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    size = await filled(rig, 100)
    per_file = (FILE_BYTES - 8) // size
    await rig.stores[-1].close()
    flip(rig, per_file * size + 5)
    without_queues(rig)
    store = await rig.open()
    assert read(store) == list(range(100))
    assert [(begin, end) for begin, end, _ in store.damaged_ranges] == [(per_file * size, FILE_BYTES)]
    await store.close()


async def test_damage_is_served_around_when_the_queues_are_built_from_the_log() -> None:
    """The offset of the damaged message in its queue stays empty."""
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    await filled(rig)
    at = place(rig, 10)
    await rig.stores[-1].close()
    without_queues(rig)
    flip(rig, at + 95)
    store = await rig.open()
    assert read(store) == [n for n in range(COUNT) if n != 10]
    assert store.queue_max("T", 0) == COUNT
    await store.close()


async def test_another_brokers_log_is_not_cut_in_its_middle_either() -> None:
    """Such a log does not state what was on disk; but after a clean stop nothing is torn."""
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    await filled(rig)
    at = place(rig, 10)
    await rig.stores[-1].close()
    rig.note_durable(None)
    flip(rig, at + 95)
    store = await rig.open()
    assert read(store) == [n for n in range(COUNT) if n != 10]
    await store.close()


PER_FILE, OLD = 79, 240
"""The records per file, and the number synced long before the newest one: they reach into a fourth file."""


async def aged(rig: Rig) -> int:
    """Returns a store that lost power, its durable mark and its queues; and the end of its log."""
    size = await filled(rig, OLD)
    assert (FILE_BYTES - 8) // size == PER_FILE
    store = rig.stores[-1]
    await rig.clock.pass_time(70)
    rig.put(store, record(b"%03d" % OLD))
    await rig.clock.pass_time(70)
    rig.power_cut()
    rig.note_durable(None)
    without_queues(rig)
    return store.max_log_offset


@pytest.mark.parametrize(
    "damaged",
    [
        (PER_FILE - 1,),
        (PER_FILE - 1, PER_FILE),
        (PER_FILE - 1, PER_FILE, PER_FILE + 1, 2 * PER_FILE - 1, 2 * PER_FILE),
        (PER_FILE - 1, *range(PER_FILE, 2 * PER_FILE)),
        (2, PER_FILE - 1, 3 * PER_FILE - 1),
    ],
)
async def test_a_blank_is_as_old_as_what_follows_it_when_no_durable_mark_is_left(
    damaged: tuple[int, ...],
) -> None:
    """A BLANK has no store time, and must not make synced records after it look like a torn tail."""
    rig = Rig(commit_log_file_bytes=FILE_BYTES, consume_queue_file_bytes=2000)  # a gap of 80: no restart
    end = await aged(rig)
    places = [place(rig, number) for number in damaged]
    for at in places:
        flip(rig, at + FIELDS["body"])
    store = await rig.open()
    assert store.max_log_offset == end
    assert read(store) == [n for n in range(OLD + 1) if n not in damaged]
    for at in places:
        assert any(begin <= at < stop for begin, stop, _ in store.damaged_ranges), at
    await store.close()


@pytest.mark.parametrize("behind", ["new records", "an unused file", "no file"])
async def test_unsynced_tail_before_a_blank_is_truncated_without_a_durable_mark(
    behind: str,
) -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    await filled(rig, PER_FILE - 5)
    store = rig.stores[-1]
    await rig.clock.pass_time(70)
    rig.put(store, *(record(b"%03d" % n + b"x" * 100, keys=f"k{n:03}") for n in range(PER_FILE - 5, 90)))
    await rig.clock.pass_time(70)
    at = place(rig, PER_FILE - 1)
    assert place(rig, PER_FILE) == FILE_BYTES
    rig.power_cut()
    rig.note_durable(None)
    flip(rig, at + FIELDS["body"])
    without_queues(rig)
    if behind == "an unused file":
        rig.disk.open(LOG / f"{FILE_BYTES:020d}").pwrite(0, (bytes(FILE_BYTES),))
    elif behind == "no file":
        rig.disk.remove(LOG / f"{FILE_BYTES:020d}")
    store = await rig.open()
    assert store.max_log_offset == at
    assert not store.damaged_ranges
    assert read(store) == list(range(PER_FILE - 1))
    await store.close()


async def test_recovery_vouches_for_no_entries_behind_the_end_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checkpoint confirmed them when the log was longer; files with records without entries must not be
    cleaned.
    """
    recovered: list[Recovered] = []
    run = Recovery.run

    async def keep(self: Recovery, *, has_abort: bool, same_boot: bool = False) -> Recovered:
        recovered.append(await run(self, has_abort=has_abort, same_boot=same_boot))
        return recovered[-1]

    monkeypatch.setattr(Recovery, "run", keep)
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    await aged(rig)
    at = place(rig, 10)
    rig.note_durable(at)
    flip(rig, at + FIELDS["body"])
    store = await rig.open()
    assert store.max_log_offset == at
    assert recovered[-1].tables_end <= at
    await store.close()


async def test_torn_tail_after_a_power_cut_is_truncated_and_kept_aside() -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    await filled(rig)
    at = place(rig, 50)
    end = rig.stores[-1].max_log_offset
    rig.power_cut(keeps_all=True)
    rig.note_durable(at)
    flip(rig, at + 95)
    before = log_bytes(rig)
    store = await rig.open()
    assert read(store) == list(range(50))
    assert store.max_log_offset == at
    assert not any(log_bytes(rig)[at:])
    (name,) = rig.disk.list(COPIES)
    assert rig.disk.read_bytes(COPIES / name) == before[at:end]
    rig.put(store, record(b"050"))
    assert read(store) == list(range(51))
    await store.close()


async def test_a_torn_last_record_leaves_no_copy() -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    await filled(rig)
    at = place(rig, COUNT - 1)
    rig.power_cut(keeps_all=True)
    rig.note_durable(at)
    flip(rig, at + 95)
    store = await rig.open()
    assert store.max_log_offset == at
    assert not rig.disk.list(COPIES)
    await store.close()


async def test_a_log_file_that_was_on_disk_and_is_missing_is_told() -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    await filled(rig, 100)
    await rig.stores[-1].close()
    rig.disk.remove(LOG / rig.disk.list(LOG)[-1])
    with pytest.raises(Corrupt, match="the files after this one are missing"):
        await rig.open()


async def test_a_hole_at_the_very_end_of_a_record_is_found() -> None:
    """The record ends a few bytes before its sector; the next one begins with the zeros of its size."""
    for beyond in (1, 2, 3):
        rig = Rig(commit_log_file_bytes=8192)
        store = await rig.open()
        rig.put(store, record(b"first"))
        begin = store.max_log_offset
        pad = 3 * 512 - beyond - begin - record_size(record(b"x", keys="k"), 8) + 1
        rig.put(store, record(b"x", keys="k" * pad), record(b"behind"))
        end = store.queue_entries("T", 0, 2, 1)[0][0]
        assert end == 3 * 512 - beyond
        await rig.clock.pass_time(11)
        rig.power_cut(keeps_all=True)
        rig.note_durable(begin)
        file = rig.disk.open(LOG / ("0" * 20))
        assert not any(file.pread(end, beyond))
        file.pwrite(2 * 512, (bytes(512),))
        store = await rig.open()
        assert store.max_log_offset == begin, beyond
        assert store.queue_max("T", 0) == 1
        await store.close()


async def healed(store: MessageStore, data: bytes) -> int:
    """Heals the store from another copy of the log; returns how many ranges remain."""

    async def fetch(log_offset: int, size: int) -> bytes:
        return data[log_offset : log_offset + size]

    return await store.healer.heal_all(fetch)


@pytest.mark.parametrize("has_queues", [True, False])
@pytest.mark.parametrize("numbers", [(10,), (10, 11, 40), (0,), (COUNT - 1,)])
async def test_a_range_is_healed_from_another_copy_while_the_store_is_open(
    has_queues: bool, numbers: tuple[int, ...]
) -> None:
    """Readers get the messages at once, sends are accepted, and the damaged bytes are kept aside."""
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    await filled(rig)
    places = [place(rig, number) for number in numbers]
    await rig.stores[-1].close()
    sound = log_bytes(rig)
    for at in places:
        flip(rig, at + 95)
    damaged = log_bytes(rig)
    if not has_queues:
        without_queues(rig)
    store = await rig.open()
    assert read(store) == [n for n in range(COUNT) if n not in numbers]
    touched: dict[tuple[str, int], int] = {}
    store.dispatcher.on_dispatch(touched.update)
    assert await healed(store, sound) == 0
    assert touched == {("T", 0): COUNT}
    assert read(store) == read(store, is_bulk=True) == list(range(COUNT))
    assert log_bytes(rig) == sound
    kept = b"".join(rig.disk.read_bytes(COPIES / name) for name in rig.disk.list(COPIES))
    assert all(damaged[at : at + 200] in kept for at in places)
    rig.put(store, record(b"060"))
    assert read(store) == list(range(COUNT + 1))
    rig.kill()
    store = await rig.open()
    assert read(store) == list(range(COUNT + 1))
    await store.close()


@pytest.mark.parametrize("has_queues", [True, False])
async def test_healed_records_survive_a_power_cut(has_queues: bool) -> None:
    """Its queue entries survive as well: a restart creates none so far below the end."""
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    await filled(rig, 280)
    store = rig.stores[-1]
    rig.put(store, *(record(b"%03d" % n + b"x" * 100) for n in range(280, 360)))
    await rig.clock.pass_time(11)
    at = place(rig, 10)
    await store.close()
    sound = log_bytes(rig)
    flip(rig, at + 95)
    if not has_queues:
        without_queues(rig)
    store = await rig.open()
    await rig.clock.pass_time(11)
    assert await healed(store, sound) == 0
    rig.power_cut()
    store = await rig.open()
    assert read(store) == list(range(360))
    assert log_bytes(rig) == sound
    await store.close()


async def damaged_store(rig: Rig) -> tuple[MessageStore, bytes]:
    """Returns a store of several files with a damaged message in the first one, and the original log."""
    await filled(rig, 280)
    at = place(rig, 10)
    await rig.stores[-1].close()
    sound = log_bytes(rig)
    flip(rig, at + 95)
    store = await rig.open()
    await rig.clock.pass_time(11)
    return store, sound


async def test_a_range_that_retention_takes_while_it_is_fetched_is_over() -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    store, sound = await damaged_store(rig)
    deleted: list[int] = []

    async def fetch(log_offset: int, size: int) -> bytes:
        if not deleted:
            rig.clock._start_ms += 30 * 24 * HOUR_MS
            deleted.append(store.cleaner.clean(at_any_hour=True))
        return sound[log_offset : log_offset + size]

    assert await store.healer.heal_all(fetch) == 0
    assert deleted == [3]
    assert not store.damaged_ranges
    assert not rig.disk.exists(COPIES)
    await store.close()


@pytest.mark.parametrize("error", [RequestTimeout("no answer"), BrokerUnreachable("refused")])
async def test_a_peer_that_does_not_answer_is_not_taken_for_the_disk(error: ClientError) -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    store, sound = await damaged_store(rig)

    async def fetch(log_offset: int, size: int) -> bytes:
        raise error

    with pytest.raises(type(error)):
        await store.healer.heal_all(fetch)
    assert await healed(store, sound) == 0
    await store.close()


async def test_nothing_is_written_where_nothing_around_can_be_compared() -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    await filled(rig, count=1)
    at = place(rig, 0)
    await rig.stores[-1].close()
    sound = log_bytes(rig)
    flip(rig, at + 95)
    damaged = log_bytes(rig)
    store = await rig.open()
    with pytest.raises(Corrupt, match="no valid bytes beside the range to compare with the other copy"):
        await healed(store, sound)
    assert log_bytes(rig) == damaged
    await store.close()


@pytest.mark.parametrize("how", ["damaged too", "another history", "too short"])
async def test_nothing_is_written_from_a_copy_that_does_not_fit(how: str) -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    await filled(rig)
    at = place(rig, 10)
    await rig.stores[-1].close()
    other = bytearray(log_bytes(rig))
    flip(rig, at + 95)
    damaged = log_bytes(rig)
    if how == "damaged too":
        other[at + 100] ^= 1
    elif how == "another history":
        other[at - 20] ^= 1
    else:
        del other[at + 50 :]
    store = await rig.open()
    with pytest.raises(Corrupt, match="not healed"):
        await healed(store, bytes(other))
    assert log_bytes(rig) == damaged
    assert len(store.damaged_ranges) == 1
    with pytest.raises(ServiceNotAvailable):
        store.appender.append([record()], lambda _: None)
    await store.close()


@pytest.mark.parametrize("turn", range(4))
async def test_a_range_whose_file_expires_while_it_is_healed_is_forgotten(turn: int) -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    store, sound = await damaged_store(rig)

    async def expire() -> None:
        rig.clock._start_ms += 30 * 24 * HOUR_MS
        assert store.cleaner.clean(at_any_hour=True)

    assert await heal_disturbed(rig, store, sound, turn, expire) == 0
    await store.close()


@pytest.mark.parametrize("turn", range(4))
async def test_a_range_whose_file_cannot_be_deleted_is_healed(turn: int) -> None:
    """The range is still in the log."""
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    store, sound = await damaged_store(rig)

    async def expire() -> None:
        rig.clock._start_ms += 30 * 24 * HOUR_MS
        with unremovable(rig, LOG / f"{0:020d}"):
            assert store.cleaner.clean(at_any_hour=True) == 0

    assert await heal_disturbed(rig, store, sound, turn, expire) == 0
    assert log_bytes(rig) == sound
    assert read(store) == list(range(280))
    assert rig.put(store, record(b"280")) == [PutStatus.PUT_OK]
    assert rig.fatal == []
    await store.close()


async def test_damage_expires_though_a_later_file_cannot_be_deleted() -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    store, _ = await damaged_store(rig)
    rig.clock._start_ms += 30 * 24 * HOUR_MS
    with unremovable(rig, LOG / f"{FILE_BYTES:020d}"):
        assert store.cleaner.clean(at_any_hour=True) == 1
    assert store.damaged_ranges == ()
    assert rig.put(store, record(b"new")) == [PutStatus.PUT_OK]
    await store.close()


@pytest.mark.parametrize("other_fits", [True, False])
async def test_nobody_is_asked_for_a_range_that_expires_while_another_is_healed(other_fits: bool) -> None:
    """The other copy may lack it, too; and that is not a failure of the heal."""
    rig = Rig(commit_log_file_bytes=FILE_BYTES, clean_forcibly_enable=True)
    await filled(rig, 280)
    places = [place(rig, number) for number in (10, 20)]
    await rig.stores[-1].close()
    sound = log_bytes(rig)
    for at in places:
        flip(rig, at + 95)
    store = await rig.open()
    await rig.clock.pass_time(11)
    assert [begin for begin, _, _ in store.damaged_ranges] == places
    asked: list[int] = []

    async def fetch(log_offset: int, size: int) -> bytes:
        if not asked:
            rig.clock._start_ms += 30 * 24 * HOUR_MS
            assert store.cleaner.clean(at_any_hour=True) > 0
        asked.append(log_offset)
        return sound[log_offset : log_offset + size] if other_fits else b""

    assert await store.healer.heal_all(fetch) == 0
    assert places[1] not in asked
    assert rig.put(store, record(b"new")) == [PutStatus.PUT_OK]
    await store.close()


@pytest.mark.parametrize("is_filler", [False, True])
@pytest.mark.parametrize("damaged", [range(3, 5), range(6), range(5, 8), range(2, 8)])
async def test_a_damaged_message_does_not_hide_those_around_it_from_a_search_by_time(
    damaged: range, is_filler: bool
) -> None:
    """No readable message of the wanted time is missed, whichever message the search probes first."""
    rig = Rig(commit_log_file_bytes=FILE_BYTES, flush_mode=FlushMode.SYNC_FLUSH)
    store = await rig.open()
    for number in range(8):
        rig.put(store, record(b"%03d" % number))
        await rig.clock.pass_time(1)
    rig.stores.append(store)
    size = store.reader.get("T", 0, 0, count_max=1).bytes
    start = store.reader.stored_at("T", 0, 0)
    times = {number: store.reader.stored_at("T", 0, number) for number in range(8)}
    places = [place(rig, number) for number in damaged]
    if is_filler:
        await store.close()
        without_queues(rig)
    for at in places:
        flip(rig, at + FIELDS["offset"])
    if is_filler:
        store = await rig.open()
    else:
        await store.scrub(0, store.max_log_offset)
    assert sum(end - begin for begin, end, _ in store.damaged_ranges) == len(damaged) * size
    kept = [number for number in times if number not in damaged]
    for time_ms in range(start - 500, start + 9000, 500):
        first = store.reader.offset_by_time("T", 0, time_ms)
        assert [n for n in kept if n >= first] == [n for n in kept if times[n] >= time_ms]
        last = store.reader.offset_by_time("T", 0, time_ms, upper=True)
        before = [n for n in kept if times[n] <= time_ms]
        assert last == (before[-1] if before else store.queue_min("T", 0))
    await store.close()


async def test_messages_are_taken_again_when_the_damage_has_expired() -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    store, _ = await damaged_store(rig)
    with pytest.raises(ServiceNotAvailable, match="damaged"):
        store.appender.append([record()], lambda _: None)
    rig.clock._start_ms += 30 * 24 * HOUR_MS
    assert store.cleaner.clean(at_any_hour=True) > 0
    assert store.damaged_ranges == ()
    assert rig.put(store, record(b"new")) == [PutStatus.PUT_OK]
    await store.close()


@pytest.mark.parametrize("is_being_healed", [False, True])
async def test_what_is_left_of_a_range_whose_first_file_is_forced_out_is_healed(
    is_being_healed: bool,
) -> None:
    """No valid byte lies between the two files: they are one range."""
    rig = Rig(commit_log_file_bytes=FILE_BYTES, clean_forcibly_enable=True, delete_file_count_max=1)
    await filled(rig, 280)
    number = next(n for n in range(280) if place(rig, n) == FILE_BYTES)
    last = place(rig, number - 1)
    await rig.stores[-1].close()
    sound = log_bytes(rig)
    rig.disk.open(LOG / f"{0:020d}").pwrite(last + 4, (bytes(FILE_BYTES - last - 4),))
    flip(rig, FILE_BYTES + 95)
    store = await rig.open()
    ((begin, end, _),) = store.damaged_ranges
    assert begin == last < FILE_BYTES < end
    await rig.clock.pass_time(11)

    async def force_out() -> None:
        room, rig.disk.total_bytes = rig.disk.total_bytes, 1
        assert store.cleaner.clean() == 1
        rig.disk.total_bytes = room
        assert store.cleaner.clean() == 0

    async def fetch(log_offset: int, size: int) -> bytes:
        await force_out()
        return sound[log_offset : log_offset + size]

    if is_being_healed:
        assert await store.healer.heal_all(fetch) == 1, "the other copy is not to blame"
    else:
        await force_out()
    assert [(begin, end) for begin, end, _ in store.damaged_ranges] == [(FILE_BYTES, end)]
    assert await healed(store, sound) == 0
    assert read(store) == list(range(number, 280))
    assert rig.put(store, record(b"280")) == [PutStatus.PUT_OK]
    await store.close()


NUMBER_AT = 20
"""The position of the queue offset within a record."""


@pytest.mark.parametrize("has_queues", [True, False])
@pytest.mark.parametrize("number", [10, 11, COUNT - 2])
@pytest.mark.parametrize("bit", range(64))
async def test_a_turned_bit_in_a_record_s_number_costs_that_message_alone(
    bit: int, number: int, has_queues: bool
) -> None:
    """No checksum covers the queue offset."""
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    await filled(rig)
    flip(rig, place(rig, number) + NUMBER_AT + 7 - bit // 8, 1 << bit % 8)
    if not has_queues:
        without_queues(rig)
    rig.kill()
    store = await rig.open()
    assert read(store) == [n for n in range(COUNT) if n != number]
    rig.put(store, record(b"%03d" % COUNT + b"x" * 100))
    await rig.clock.pass_time(11)
    assert read(store)[-1] == COUNT
    assert store.queue_max("T", 0) == COUNT + 1
    await store.close()


async def test_a_message_behind_sealed_ones_is_kept_though_no_other_follows_it() -> None:
    """More messages were given up than a queue file has entries: no single bit flip causes such an offset."""
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    store = await rig.open()
    rig.stores.append(store)
    rig.put(store, *(record(b"%03d" % n) for n in range(19)))
    await rig.clock.pass_time(2)
    begin, end = place(rig, 5), place(rig, 18)
    raw = seal(begin, end - begin, reaches_file_end=False, stored_at_ms=rig.clock.now_ms())
    file = rig.disk.open(LOG / f"{0:020d}")
    file.pwrite(begin, (raw,))
    file.close()
    rig.kill()
    store = await rig.open()
    assert read(store)[-1] == 18
    assert store.queue_max("T", 0) == 19
    await store.close()


@pytest.mark.parametrize("count", [2, 3, COUNT])
@pytest.mark.parametrize("bit", range(63))
async def test_a_turned_bit_in_a_first_record_s_number_costs_no_other(bit: int, count: int) -> None:
    rig = Rig(commit_log_file_bytes=FILE_BYTES)
    await filled(rig, count)
    flip(rig, NUMBER_AT + 7 - bit // 8, 1 << bit % 8)
    without_queues(rig)
    rig.kill()
    store = await rig.open()
    assert set(range(1, count)) <= set(read(store))
    await store.close()
