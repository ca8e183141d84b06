"""Opening the files of an earlier run: clean stops, crashes, damage, missing files."""

from __future__ import annotations

import asyncio
import itertools
import struct
from pathlib import Path

import pytest
from store_rig import ROOT, Rig, bodies, options, record, turn_until, unremovable

from sim.memory import MemoryDisk, NoFault
from tandemmq.errors import Corrupt, LogMissing, StoreError, StoreLocked
from tandemmq.store import FlushMode, MessageStore, PutStatus
from tandemmq.store.checkpoint import StoreMarks
from tandemmq.store.options import StorePaths
from tandemmq.store.recovery import (
    FileHead,
    RecoveryCase,
    RecoveryFacts,
    ScanFrom,
    choose_start,
    plan_recovery,
)
from tandemmq.telemetry import events

LOG = ROOT / "commitlog"
QUEUE = ROOT / "consumequeue" / "T" / "0"
FIRST = "0" * 20


def overwrite(disk: MemoryDisk, path: Path, offset: int, data: bytes) -> None:
    file = disk.open(path)
    file.pwrite(offset, (data,))
    file.close()


async def filled(rig: Rig, count: int, size: int = 100) -> MessageStore:
    store = await rig.open()
    rig.put(store, *(record(b"%03d" % n + b"x" * size) for n in range(count)))
    return store


def numbers(store: MessageStore) -> list[int]:
    return [int(body[:3]) for body in bodies(store)]


def test_every_combination_of_facts_is_a_case() -> None:
    seen = set()
    for has_log, has_queues, has_abort, had_log, has_other_queues in itertools.product(
        (False, True), repeat=5
    ):
        facts = RecoveryFacts(
            has_log=has_log,
            has_queues=has_queues,
            has_abort=has_abort,
            had_log=had_log,
            has_other_queues=has_other_queues,
        )
        case = plan_recovery(facts)
        assert (case.scan_from is ScanFrom.NOWHERE) == (not has_log), facts
        assert case.is_crash == (has_log and has_abort), facts
        seen.add(case)
    assert seen == set(RecoveryCase)


@pytest.mark.parametrize(
    ("scan_from", "dispatched_end", "safe_ms", "start"),
    [
        (ScanFrom.BEGINNING, 9999, 9999, 0),
        (ScanFrom.DISPATCHED, 250, 0, 2),
        (ScanFrom.DISPATCHED, 200, 0, 2),
        (ScanFrom.DISPATCHED, 199, 0, 1),
        (ScanFrom.DISPATCHED, -1, 0, 0),
        (ScanFrom.DISPATCHED, 9999, 0, 2),
        (ScanFrom.CHECKPOINT, 0, 19, 0),
        (ScanFrom.CHECKPOINT, 0, 20, 1),
        (ScanFrom.CHECKPOINT, 0, 99, 2),
    ],
)
def test_scan_begins_in_the_newest_file_that_qualifies(
    scan_from: ScanFrom, dispatched_end: int, safe_ms: int, start: int
) -> None:
    heads = [
        FileHead(base=0, is_valid=True, stored_at_ms=10),
        FileHead(base=100, is_valid=True, stored_at_ms=20),
        FileHead(base=200, is_valid=True, stored_at_ms=30),
        FileHead(base=300, is_valid=False, stored_at_ms=0),
    ]
    assert choose_start(heads, scan_from, dispatched_end=dispatched_end, safe_ms=safe_ms) == start


def test_a_time_that_is_too_old_skips_no_file() -> None:
    """A bit flip made the time old; the records of the files before it may be unsafe all the same."""
    times_ms = (10, 20, 30, 1, 50)
    heads = [FileHead(base=at, is_valid=True, stored_at_ms=ms) for at, ms in enumerate(times_ms)]
    assert choose_start(heads, ScanFrom.CHECKPOINT, dispatched_end=0, safe_ms=25) == 1


async def test_a_clean_stop_leaves_full_files_and_no_abort_mark() -> None:
    rig = Rig()
    store = await filled(rig, 60)
    await store.close()
    assert not rig.disk.exists(ROOT / "abort")
    assert {rig.disk.size(LOG / name) for name in rig.disk.list(LOG)} == {4096}
    assert {rig.disk.size(QUEUE / name) for name in rig.disk.list(QUEUE)} == {200}
    assert rig.disk.size(ROOT / "checkpoint") == 4096
    assert rig.disk.read_bytes(ROOT / "lock") == b"lock"


async def test_a_stop_that_cannot_delete_the_abort_mark_lets_the_store_be_opened_again() -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(b"one"))
    with unremovable(rig, ROOT / "abort"):
        await store.close()
    store = await rig.open()
    assert bodies(store) == [b"one"]
    await store.close()
    assert rig.fatal == []
    assert not rig.disk.exists(ROOT / "abort")


async def test_a_clean_restart_goes_on_where_the_log_ended() -> None:
    rig = Rig()
    store = await filled(rig, 60)
    end = store.max_log_offset
    await store.close()
    store = await rig.open()
    assert store.max_log_offset == end
    assert numbers(store) == list(range(60))
    placed = store.appender.append([record(b"060")], lambda _: None)
    rig.clock.run_soon()
    assert (placed.queue_offset, placed.log_offsets[0]) == (60, end)
    assert numbers(store) == list(range(61))
    await store.close()


async def test_checkpoint_vouches_for_the_last_record_after_a_clean_stop() -> None:
    """spec store 10."""
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(b"a"))
    await rig.clock.pass_time(5)
    placed = store.appender.append([record(b"b")], lambda _: None)
    await store.close()
    fields = struct.unpack_from(">qqqqq", rig.disk.read_bytes(ROOT / "checkpoint"))
    assert fields[0] == fields[1] == placed.stored_at_ms


async def test_what_was_written_survives_the_death_of_the_process() -> None:
    rig = Rig()
    await filled(rig, 60)
    rig.kill()
    assert rig.disk.exists(ROOT / "abort")
    store = await rig.open()
    assert numbers(store) == list(range(60))
    assert store.appender.append([record()], lambda _: None).queue_offset == 60
    await store.close()


async def test_only_flushed_bytes_survive_a_power_cut() -> None:
    rig = Rig(flush_mode=FlushMode.SYNC_FLUSH)
    store = await rig.open()
    acknowledged: list[object] = []
    for n in range(30):
        store.appender.append([record(b"%03d" % n + b"x" * 100)], acknowledged.append)
    await rig.clock.pass_time(0.1)
    assert len(acknowledged) == 30
    rig.power_cut()
    store = await rig.open()
    assert numbers(store) == list(range(30))
    await store.close()


async def test_unflushed_bytes_are_lost_by_a_power_cut_and_their_offsets_used_again() -> None:
    rig = Rig()
    store = await filled(rig, 3)
    await rig.clock.pass_time(61)
    rig.put(store, record(b"003"), record(b"004"))
    rig.power_cut()
    store = await rig.open()
    assert numbers(store) == [0, 1, 2]
    assert store.appender.append([record(b"003")], lambda _: None).queue_offset == 3
    await store.close()


@pytest.mark.parametrize("is_clean", [True, False])
async def test_a_torn_tail_is_cut_and_zeroed(is_clean: bool) -> None:
    rig = Rig()
    store = await filled(rig, 5)
    end = store.max_log_offset
    if is_clean:
        await store.close()
    rig.kill()
    torn = rig.disk.read_bytes(LOG / FIRST)[:150]
    overwrite(rig.disk, LOG / FIRST, end, torn)
    store = await rig.open()
    assert store.max_log_offset == end
    assert numbers(store) == list(range(5))
    assert not any(rig.disk.read_bytes(LOG / FIRST)[end:])
    await store.close()


async def test_a_torn_body_ends_the_log_before_it() -> None:
    rig = Rig()
    store = await filled(rig, 20)
    fifth = store.reader.get("T", 0, 5, count_max=1)
    assert fifth.count == 1
    size = store.max_log_offset // 20
    await store.close()
    rig.note_durable(5 * size)
    rig.disk.write_atomically(ROOT / "abort", b"1")
    overwrite(rig.disk, LOG / FIRST, 5 * size + 95, b"#")
    store = await rig.open()
    assert numbers(store) == list(range(5))
    assert store.queue_max("T", 0) == 5
    assert store.max_log_offset == 5 * size
    assert rig.put(store, record(b"005"))
    await store.close()
    store = await rig.open()
    assert numbers(store) == list(range(6))
    await store.close()


async def test_stale_records_behind_the_tail_never_come_back() -> None:
    """spec store 21.11: the zeroed tail prevents old records of the right size from being accepted again."""
    rig = Rig()
    store = await filled(rig, 10)
    size = store.max_log_offset // 10
    await store.close()
    rig.note_durable(2 * size)
    rig.disk.write_atomically(ROOT / "abort", b"1")
    overwrite(rig.disk, LOG / FIRST, 2 * size + 95, b"#")
    store = await rig.open()
    rig.put(store, record(b"new" + b"y" * 100))
    rig.kill()
    store = await rig.open()
    assert [body[:3] for body in bodies(store)] == [b"000", b"001", b"new"]
    await store.close()


async def test_a_record_that_says_another_offset_is_no_record() -> None:
    rig = Rig()
    store = await filled(rig, 5)
    size = store.max_log_offset // 5
    await store.close()
    data = rig.disk.read_bytes(LOG / FIRST)
    overwrite(rig.disk, LOG / FIRST, 5 * size, data[:size])
    store = await rig.open()
    assert numbers(store) == list(range(5))
    await store.close()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("kept", [0, 1, 7, 10, 11, 29])
async def test_a_queue_behind_the_log_is_completed(is_clean: bool, kept: int) -> None:
    """Entries are derived: missing ones at the end are rebuilt from the log, once (spec store 12)."""
    rig = Rig()
    store = await filled(rig, 30)
    await store.close()
    if not is_clean:
        rig.disk.write_atomically(ROOT / "abort", b"1")
    for n in range(kept, 30):
        path = QUEUE / f"{n * 20 // 200 * 200:020d}"
        overwrite(rig.disk, path, n * 20 % 200, bytes(20))
    store = await rig.open()
    assert numbers(store) == list(range(30))
    assert store.queue_max("T", 0) == 30
    await store.close()


@pytest.mark.parametrize("is_clean", [True, False])
async def test_missing_queue_directories_are_built_again(is_clean: bool) -> None:
    rig = Rig(commit_log_file_bytes=1024)
    store = await filled(rig, 40)
    await store.close()
    if not is_clean:
        rig.disk.write_atomically(ROOT / "abort", b"1")
    for name in rig.disk.list(QUEUE):
        rig.disk.remove(QUEUE / name)
    store = await rig.open()
    assert numbers(store) == list(range(40))
    await store.close()


@pytest.mark.parametrize("count", [3, 12, 40])
@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_topic_made_again_keeps_its_new_messages_after_a_crash(is_cut: bool, count: int) -> None:
    rig = Rig(flush_mode=FlushMode.SYNC_FLUSH)
    store = await filled(rig, 25)
    await rig.clock.pass_time(120)
    await store.deletions.drop(["T"])
    new = [b"new%02d" % number for number in range(count)]
    answers = rig.put(store, *(record(body) for body in new))
    await rig.clock.pass_time(0.1)
    assert answers == [PutStatus.PUT_OK] * count
    if is_cut:
        rig.power_cut()
    else:
        rig.kill()
    again = await rig.open()
    assert (bodies(again), again.queue_min("T", 0), again.queue_max("T", 0)) == (new, 0, count)
    rig.put(again, record(b"next"))
    await rig.clock.pass_time(0.1)
    assert bodies(again) == [*new, b"next"]
    await again.close()
    third = await rig.open()
    assert bodies(third) == [*new, b"next"]
    await third.close()


@pytest.mark.parametrize("ending", ["stop", "kill", "power cut", "without queues"])
async def test_messages_of_a_deleted_topic_do_not_come_back(ending: str) -> None:
    rig = Rig(flush_mode=FlushMode.SYNC_FLUSH)
    store = await filled(rig, 25)
    rig.put(store, record(b"kept", topic="Other"))
    await rig.clock.pass_time(120)
    await store.deletions.drop(["T"])
    assert store.queue_keys() == (("Other", 0),)
    if ending in ("stop", "without queues"):
        await store.close()
    elif ending == "kill":
        rig.kill()
    else:
        rig.power_cut()
    if ending == "without queues":
        for path in [path for path in rig.disk._nodes if "consumequeue" in path.parts]:
            rig.disk.remove(path)
    for _ in range(2):
        again = await rig.open()
        assert again.queue_keys() == (("Other", 0),)
        assert bodies(again, "Other") == [b"kept"]
        await again.close()


async def test_a_log_that_was_cut_below_a_deletion_goes_on_with_messages_that_stay() -> None:
    rig = Rig(flush_mode=FlushMode.ASYNC_FLUSH)
    store = await filled(rig, 3)
    await rig.clock.pass_time(120)
    rig.put(store, *(record(b"never on disk" + b"x" * 300) for _ in range(5)))
    await store.deletions.drop(["T"])
    rig.power_cut()
    again = await rig.open(flush_mode=FlushMode.SYNC_FLUSH)
    assert again.queue_keys() == ()
    rig.put(again, record(b"new"))
    await rig.clock.pass_time(0.1)
    rig.kill()
    third = await rig.open()
    assert bodies(third) == [b"new"]
    await third.close()


async def test_message_sent_during_a_topic_deletion_is_deleted_too() -> None:
    rig = Rig()
    store = await filled(rig, 3)
    deletion = asyncio.ensure_future(store.deletions.drop(["T"]))
    await turn_until(lambda: bool(store.deletions.ends))  # it is being written
    rig.put(store, record(b"meanwhile"))
    assert store.queue_max("T", 0) == 4
    await deletion
    assert store.queue_keys() == ()
    rig.kill()
    again = await rig.open()
    assert again.queue_keys() == ()
    await again.close()


async def test_no_slave_is_told_of_a_deletion_before_it_is_done() -> None:
    """Its master still has the topic's offsets, and reports them."""
    rig = Rig()
    store = await filled(rig, 3)
    deletion = asyncio.ensure_future(store.deletions.drop(["T"]))
    await turn_until(lambda: bool(store.deletions.ends))  # it is being written
    assert store.deletions.ends.keys() == {"T"}
    assert store.deletions.done == {}
    await deletion
    assert store.deletions.done == store.deletions.ends != {}
    await store.close()


class TablesUnwritable(NoFault):
    def on_write(self, path: Path, offset: int, size: int) -> int:
        return 0 if "config" in path.parts else size


async def test_a_deletion_that_cannot_be_written_changes_nothing() -> None:
    rig = Rig()
    store = await filled(rig, 3)
    rig.disk.fault = TablesUnwritable()
    with pytest.raises(OSError, match="no room"):
        await store.deletions.drop(["T"])
    assert numbers(store) == [0, 1, 2]
    assert store.deletions.ends == {}
    await store.close()


async def test_a_deletion_is_forgotten_once_its_messages_have_expired() -> None:
    rig = Rig(file_reserved_hours=3)
    store = await filled(rig, 60)
    await store.deletions.drop(["T"])
    rig.put(store, *(record(b"x" * 1000, topic="U") for _ in range(20)))
    await rig.clock.pass_time(1)
    assert list(store.deletions.ends) == ["T"]
    await rig.clock.pass_time(4 * 3600)
    rig.put(store, record(b"x", topic="U"))
    await rig.clock.pass_time(1)
    assert store.cleaner.clean(at_any_hour=True) or store.min_log_offset > 0
    await store.deletions.drop(["U"])
    assert list(store.deletions.ends) == ["U"]
    await store.close()


@pytest.mark.parametrize("is_clean", [True, False])
async def test_a_queue_ahead_of_the_log_is_cut(is_clean: bool) -> None:
    rig = Rig()
    store = await filled(rig, 30)
    size = 4096 // (store.reader.get("T", 0, 0, count_max=1).bytes)
    await store.close()
    rig.note_durable(None)
    if not is_clean:
        rig.disk.write_atomically(ROOT / "abort", b"1")
    for name in rig.disk.list(LOG)[1:]:
        rig.disk.remove(LOG / name)
    store = await rig.open()
    assert store.max_log_offset == 4096
    assert numbers(store) == list(range(store.queue_max("T", 0)))
    assert 0 < store.queue_max("T", 0) <= size
    await store.close()


async def without_its_log(rig: Rig) -> dict[str, bytes]:
    """Returns a store that was closed, and its log files, which were moved away."""
    store = await filled(rig, 5)
    await store.close()
    moved = {name: rig.disk.read_bytes(LOG / name) for name in rig.disk.list(LOG)}
    for name in moved:
        rig.disk.remove(LOG / name)
    return moved


@pytest.mark.parametrize("has_abort", [False, True])
async def test_a_start_without_the_log_is_refused_and_touches_nothing(has_abort: bool) -> None:
    rig = Rig()
    moved = await without_its_log(rig)
    if has_abort:
        rig.disk.write_atomically(ROOT / "abort", b"1")
    queues = rig.disk.read_bytes(QUEUE / FIRST)
    for _ in range(2):
        with pytest.raises(LogMissing, match="put the log files back, or remove /store/consumequeue"):
            await rig.open()
        assert rig.disk.exists(ROOT / "abort") == has_abort
        assert rig.disk.read_bytes(QUEUE / FIRST) == queues
    for name, content in moved.items():
        rig.disk.create(LOG / name, len(content)).pwrite(0, (content,))
    store = await rig.open()
    assert numbers(store) == list(range(5))
    await store.close()


async def test_without_the_queues_a_store_whose_log_is_gone_begins_again() -> None:
    rig = Rig()
    await without_its_log(rig)
    for name in rig.disk.list(QUEUE):
        rig.disk.remove(QUEUE / name)
    store = await rig.open()
    rig.put(store, record(b"007"))
    assert numbers(store) == [7]
    await store.close()
    assert numbers(await rig.open()) == [7]


async def test_queues_of_a_log_that_was_never_on_disk_are_dropped() -> None:
    """A power cut early in a store's life removes the log's directory entry but not the queues'."""
    rig = Rig()
    await without_its_log(rig)
    rig.disk.remove(ROOT / "checkpoint")
    store = await rig.open()
    assert store.max_log_offset == store.queue_max("T", 0) == 0
    assert rig.disk.list(ROOT / "consumequeue") == []
    await store.close()


async def test_an_unused_file_made_ahead_is_removed() -> None:
    rig = Rig()
    store = await filled(rig, 5)
    end = store.max_log_offset
    rig.kill()
    rig.disk.create(LOG / f"{4096:020d}", 4096)
    store = await rig.open()
    assert store.max_log_offset == end
    assert rig.disk.list(LOG) == [FIRST]
    await store.close()


@pytest.mark.parametrize("size", [0, 100])
async def test_a_file_whose_creation_was_cut_short_is_removed(size: int) -> None:
    rig = Rig()
    await filled(rig, 5)
    rig.kill()
    rig.disk.create(LOG / f"{4096:020d}", size)
    store = await rig.open()
    assert numbers(store) == list(range(5))
    assert rig.disk.list(LOG) == [FIRST]
    await store.close()


async def test_a_file_of_another_size_is_refused_by_name() -> None:
    rig = Rig()
    store = await filled(rig, 5)
    await store.close()
    with pytest.raises(Corrupt, match="must have 8192 bytes, it has 4096"):
        await rig.open(commit_log_file_bytes=8192)
    store = await rig.open()
    assert numbers(store) == list(range(5))
    await store.close()


async def test_a_gap_between_log_files_is_refused() -> None:
    rig = Rig(commit_log_file_bytes=1024)
    store = await filled(rig, 30)
    await store.close()
    rig.disk.remove(LOG / rig.disk.list(LOG)[1])
    with pytest.raises(Corrupt, match="does not follow"):
        await rig.open()


async def test_foreign_names_beside_the_files_are_left_alone() -> None:
    rig = Rig()
    store = await filled(rig, 5)
    await store.close()
    rig.disk.create(LOG / "notes.txt", 3)
    rig.disk.create(ROOT / "consumequeue" / "T" / "old" / "x", 3)
    store = await rig.open()
    assert numbers(store) == list(range(5))
    await store.close()
    assert rig.disk.exists(LOG / "notes.txt")


async def test_a_missing_checkpoint_costs_only_time() -> None:
    rig = Rig(commit_log_file_bytes=1024)
    await filled(rig, 40)
    rig.kill()
    rig.disk.remove(ROOT / "checkpoint")
    store = await rig.open()
    assert numbers(store) == list(range(40))
    await store.close()


class NoSync:
    """A disk on which no fsync of the log succeeds."""

    def on_create(self, path: Path, size: int) -> None: ...

    def on_write(self, path: Path, offset: int, size: int) -> int:
        return size

    def on_sync(self, path: Path) -> None:
        if path.parent == LOG:
            raise OSError(5, "input/output error")


async def test_a_crash_during_recovery_is_noticed_by_the_next_one() -> None:
    rig = Rig()
    await filled(rig, 5)
    rig.kill()

    works = rig.disk.fault
    rig.disk.fault = NoSync()
    with pytest.raises(Exception, match="cannot be opened"):
        await rig.open()
    assert rig.disk.exists(ROOT / "abort")
    rig.disk.fault = works
    store = await rig.open()
    assert numbers(store) == list(range(5))
    await store.close()


def left_on_this_boot(rig: Rig) -> bool:
    return StoreMarks(StorePaths(options()), rig.disk).same_boot


async def test_the_abort_mark_tells_whether_the_machine_has_been_restarted_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    await filled(rig, 3)
    rig.kill()
    assert left_on_this_boot(rig)
    rig.power_cut()
    assert not left_on_this_boot(rig)
    store = await rig.open()
    assert left_on_this_boot(rig)
    await store.close()
    assert not left_on_this_boot(rig)
    rig.disk.write_atomically(ROOT / "abort", b"4711")  # as RocketMQ leaves it
    assert not left_on_this_boot(rig)
    monkeypatch.setattr(rig.disk, "boot_id", lambda: "")
    assert not left_on_this_boot(rig)  # neither of them states a boot


async def test_after_a_failed_fsync_the_next_start_trusts_no_page_that_this_one_wrote() -> None:
    rig = Rig()
    store = await filled(rig, 3)
    rig.disk.fault = NoSync()
    rig.put(store, record(b"unsynced"))
    await rig.clock.pass_time(11)
    assert len(rig.fatal) == 1
    assert rig.disk.exists(ROOT / "abort")
    assert not left_on_this_boot(rig)
    await store.close()
    assert not left_on_this_boot(rig)


async def test_a_recovery_that_did_not_end_leaves_the_boot_of_the_life_before() -> None:
    """Otherwise the next start would take the remains of a power cut for everything written."""

    class NoSync(NoFault):
        def on_sync(self, path: Path) -> None:
            if path.parent == LOG:
                raise OSError(5, "input/output error")

    rig = Rig()
    await (await filled(rig, 3)).close()
    await filled(rig, 3)
    rig.power_cut()
    works, rig.disk.fault = rig.disk.fault, NoSync()
    with pytest.raises(StoreError, match="cannot be opened"):
        await rig.open()
    assert not left_on_this_boot(rig)
    rig.kill()
    rig.disk.fault = works
    await rig.open()
    assert left_on_this_boot(rig)


async def test_a_store_is_open_only_once() -> None:
    rig = Rig()
    store = await rig.open()
    with pytest.raises(StoreLocked):
        await rig.open()
    rig.put(store, record(b"still mine"))
    assert bodies(store) == [b"still mine"]
    await store.close()


async def test_recovery_is_repeatable() -> None:
    rig = Rig(commit_log_file_bytes=1024)
    await filled(rig, 40)
    rig.kill()
    first = await rig.open()
    facts = (first.max_log_offset, first.queue_max("T", 0), bodies(first))
    for _ in range(3):
        rig.kill()
        again = await rig.open()
        assert (again.max_log_offset, again.queue_max("T", 0), bodies(again)) == facts
    await again.close()


@pytest.mark.parametrize("torn_bytes", [6, 7, 8])
async def test_a_torn_last_entry_does_not_take_those_before_it(torn_bytes: int) -> None:
    """The torn entry names an early record, so no scanned record would seem new; the scan begins after the
    records of the first entries.
    """
    rig = Rig(commit_log_file_bytes=1024, consume_queue_file_bytes=2000)
    store = await rig.open()
    for n in range(20):
        rig.put(store, record(b"%02d" % n + b"x" * 100))
        await rig.clock.pass_time(10)
    before = bodies(store)
    rig.kill()
    rig.disk.open(ROOT / "consumequeue" / "T" / "0" / f"{0:020d}").pwrite(19 * 20, (bytes(torn_bytes),))
    store = await rig.open()
    assert (store.queue_min("T", 0), store.queue_max("T", 0)) == (0, 20)
    assert bodies(store) == before
    await store.close()


@pytest.mark.parametrize(
    ("at", "bit"),
    [
        pytest.param(None, 0, id="taken away"),
        pytest.param(20 * 12, 0x10, id="an offset far behind the log"),
        pytest.param(20 * 12, 0x80, id="an offset below 0"),
        pytest.param(20 * 12 + 8, 0x80, id="a size below 0"),
    ],
)
async def test_a_queue_that_is_not_as_it_was_left_is_built_anew(at: int | None, bit: int) -> None:
    """Its messages are in log files that no clean start reads, and it would assign their queue offsets again.

    A slave takes reused offsets for a deleted and recreated topic.
    """
    rig = Rig(consume_queue_file_bytes=2_000)
    store = await filled(rig, 20)
    rig.clock.advance(10)
    rig.put(store, *(record(b"y" * 100, topic="U") for _ in range(60)))
    rig.clock.advance(10)
    rig.put(store, *(record(b"y" * 100, topic="U") for _ in range(60)))
    rig.clock.advance(10)
    await store.close()
    if at is None:
        for name in rig.disk.list(QUEUE):
            rig.disk.remove(QUEUE / name)
    else:
        path = QUEUE / FIRST
        overwrite(rig.disk, path, at, bytes([rig.disk.read_bytes(path)[at] ^ bit]))
    again = await rig.open()
    assert numbers(again) == list(range(20))
    assert len(bodies(again, "U")) == 120
    rig.put(again, record(b"020"))
    assert numbers(again) == list(range(21))
    await again.close()
    third = await rig.open()
    assert numbers(third) == list(range(21))
    await third.close()


async def test_a_queue_whose_first_file_was_taken_away_is_built_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its end is unchanged: its oldest messages would appear to be deleted by retention."""
    rig = Rig(consume_queue_file_bytes=2_000)
    store = await filled(rig, 250)
    rig.put(store, *(record(b"y" * 100, topic="U") for _ in range(60)))
    await store.close()
    rig.disk.remove(QUEUE / FIRST)
    again = await rig.open()
    assert numbers(again) == list(range(250))
    assert again.queue_min("T", 0) == 0
    assert [record for record in caplog.records if record.message == events.QUEUES_REBUILT]
    await again.close()


async def test_a_store_that_is_as_it_was_left_reads_its_last_file_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(consume_queue_file_bytes=2_000)
    store = await filled(rig, 250)
    for _ in range(3):
        await store.close()
        store = await rig.open()
        assert numbers(store) == list(range(250))
    await store.close()
    assert not [record for record in caplog.records if record.message == events.QUEUES_REBUILT]


async def test_queues_without_messages_keep_their_numbers_when_others_are_built_anew() -> None:
    rig = Rig(consume_queue_file_bytes=2_000)
    store = await filled(rig, 3)
    rig.clock.advance(10)
    rig.put(store, *(record(b"y" * 100, topic="U") for _ in range(120)))
    for _ in range(2):
        store.log.log.drop_oldest()  # as retention does
    store.cleaner.cut_tables()
    assert store.queue_min("T", 0) == store.queue_max("T", 0) == 3
    rig.put(store, record(b"z", topic="V"))
    await store.close()
    rig.disk.remove(ROOT / "consumequeue" / "V" / "0" / FIRST)
    again = await rig.open()
    assert bodies(again, "V") == [b"z"]
    assert (again.queue_max("T", 0), again.queue_next("T", 0)) == (3, 3)
    await again.close()
