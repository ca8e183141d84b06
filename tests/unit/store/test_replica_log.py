"""A slave's store: raw bytes in, the same tables out."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_rig import ROOT, Rig, bodies, record, turn_until, unremovable

from sim.memory import NoFault
from tandemmq.errors import DiskFull, LogDiverged, ServiceNotAvailable
from tandemmq.store import BrokerRole, FlushMode, MessageStore, consume_queue, dispatcher

SLAVE = {"role": BrokerRole.SLAVE}


def copy(master: MessageStore, slave: MessageStore, *, chunk: int = 32_768, end: int | None = None) -> None:
    """Sends the bytes that the slave lacks, in chunks that may split records."""
    stop = master.max_log_offset if end is None else end
    while slave.max_log_offset < stop:
        at = slave.max_log_offset
        slave.append_raw(at, master.log.valid_view(at, min(chunk, stop - at)))


async def master_with(rig: Rig, count: int) -> MessageStore:
    store = await rig.open()
    for n in range(count):
        rig.put(store, record(b"%03d" % n + b"x" * 100, queue_id=n % 3, tags="AB"[n % 2], keys=f"k{n}"))
    return store


@pytest.mark.parametrize("chunk", [1, 7, 100, 150, 32_768])
async def test_a_slave_has_the_same_bytes_and_queues_however_chunks_are_cut(chunk: int) -> None:
    """spec replication 16, I1 and I7."""
    master_rig, slave_rig = Rig(), Rig(**SLAVE)
    master = await master_with(master_rig, 60)
    slave = await slave_rig.open()
    copy(master, slave, chunk=chunk)
    assert slave.dispatched.value == master.dispatched.value == slave.max_log_offset
    for queue_id in range(3):
        assert bodies(slave, queue_id=queue_id) == bodies(master, queue_id=queue_id)
    assert slave.query_keys("T", "k7", 8, 0, 2**62) == master.query_keys("T", "k7", 8, 0, 2**62) != []
    await master.close()
    await slave.close()
    for name in master_rig.disk.list(ROOT / "commitlog"):
        path = ROOT / "commitlog" / name
        assert master_rig.disk.read_bytes(path) == slave_rig.disk.read_bytes(path)
    for queue_id in range(3):
        directory = ROOT / "consumequeue" / "T" / str(queue_id)
        for name in master_rig.disk.list(directory):
            assert master_rig.disk.read_bytes(directory / name) == slave_rig.disk.read_bytes(directory / name)


async def test_a_slave_has_all_messages_of_a_topic_made_again() -> None:
    """The first one begins exactly where the deletion ends."""
    rig = Rig()
    master = await master_with(rig, 3)
    slave = await Rig(**SLAVE).open()
    copy(master, slave)
    await master.deletions.drop(["T"])
    assert await slave.deletions.apply(master.deletions.ends) == ["T"]
    rig.put(master, record(b"first"), record(b"second"))
    copy(master, slave)
    assert bodies(slave) == [b"first", b"second"]
    await master.close()
    await slave.close()


@pytest.mark.parametrize("block_bytes_min", [1, 1 << 20])
@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_deletion_that_nobody_told_shows_where_the_topic_is_made_again(
    monkeypatch: pytest.MonkeyPatch, block_bytes_min: int, is_cut: bool
) -> None:
    """A slave becomes master before a table brought the deletion."""
    monkeypatch.setattr(dispatcher, "BLOCK_BYTES_MIN", block_bytes_min)
    rig, slave_rig = Rig(), Rig(**SLAVE, flush_mode=FlushMode.SYNC_FLUSH)
    master = await master_with(rig, 12)
    rig.put(master, record(b"kept", topic="Other"))
    await master.deletions.drop(["T"])
    rig.put(master, record(b"early", queue_id=7), record(b"first"), record(b"second"))
    slave = await slave_rig.open()
    told: list[str] = []
    slave.queues.on_deleted = told.append
    copy(master, slave)
    await slave_rig.clock.pass_time(0.1)
    slave_rig.power_cut() if is_cut else await slave.close()
    assert told == ["T"]
    new = await slave_rig.open(role=BrokerRole.ASYNC_MASTER)
    assert 0 < new.deletions.ends["T"] <= master.deletions.ends["T"]
    assert sorted(new.queue_keys()) == [("Other", 0), ("T", 0), ("T", 7)]
    assert (bodies(new), bodies(new, queue_id=7)) == ([b"first", b"second"], [b"early"])
    slave_rig.put(new, record(b"third"), record(b"numbered anew", queue_id=1))
    await slave_rig.clock.pass_time(0.1)
    assert (bodies(new), bodies(new, queue_id=1)) == ([b"first", b"second", b"third"], [b"numbered anew"])
    assert new.queue_max("T", 1) == 1
    await new.close()
    await master.close()


async def test_a_deletion_that_shows_while_another_is_written_is_written_too() -> None:
    rig, slave_rig = Rig(), Rig(**SLAVE)
    master = await master_with(rig, 6)
    rig.put(master, record(topic="Gone"))
    await master.deletions.drop(["T"])
    rig.put(master, record(b"first"))
    slave = await slave_rig.open()
    copy(master, slave, end=master.deletions.ends["T"])
    deletion = asyncio.ensure_future(slave.deletions.apply({"Gone": slave.max_log_offset}))
    await turn_until(lambda: bool(slave.deletions.ends))  # it is being written
    copy(master, slave)
    assert await deletion == ["Gone"]
    slave_rig.kill()
    again = await slave_rig.open()
    assert sorted(again.deletions.ends) == ["Gone", "T"]
    assert again.queue_keys() == (("T", 0),)
    assert bodies(again) == [b"first"]
    await again.close()
    await master.close()


class Unwritable(NoFault):
    """A disk that accepts no write below a directory of the store."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def on_write(self, path: Path, offset: int, size: int) -> int:
        return 0 if self.directory in path.parts else size


async def test_a_deletion_that_cannot_be_written_keeps_what_changed_meanwhile() -> None:
    """A copy begins, so deletions reported beyond the end are discarded. A topic is recreated."""
    rig, slave_rig = Rig(), Rig(**SLAVE)
    master = await master_with(rig, 3)
    rig.put(master, record(topic="Gone"))
    end = master.max_log_offset
    await master.deletions.drop(["Gone"])
    rig.put(master, record(b"again", topic="Gone"))
    slave = await slave_rig.open()
    copy(master, slave, end=end)
    await slave.deletions.apply({"T": end + 500})
    slave_rig.disk.fault = Unwritable("config")
    deletion = asyncio.ensure_future(slave.deletions.apply({"Gone": end + 600, "U": end + 600}))
    await turn_until(lambda: "U" in slave.deletions.ends)  # it is being written
    slave.deletions.begin_copy()
    copy(master, slave)
    with pytest.raises(OSError, match="no room"):
        await deletion
    assert slave.deletions.ends == {"T": end, "Gone": end}
    assert bodies(slave, "Gone") == [b"again"]
    await slave.close()
    await master.close()


@pytest.mark.parametrize("follows", ["a copy", "an office", "an office on the full disk"])
async def test_deletion_ends_lowered_by_a_copy_are_written_once_the_disk_has_room(follows: str) -> None:
    rig = Rig(**SLAVE, flush_mode=FlushMode.SYNC_FLUSH)
    slave = await rig.open()
    slave.append_raw(0, (await master_with(Rig(), 3)).log.valid_view(0, 4096))
    await slave.deletions.apply({"Later": slave.max_log_offset + 5000})
    rig.disk.fault = Unwritable("config")
    slave.deletions.begin_copy()
    await rig.clock.pass_time(1)
    if follows == "an office on the full disk":
        with pytest.raises(OSError, match="no room"):
            slave.become(BrokerRole.ASYNC_MASTER)
        assert slave.role is BrokerRole.SLAVE
    rig.disk.fault = NoFault()
    if follows == "a copy":
        slave.deletions.begin_copy()
        await rig.clock.pass_time(1)
        rig.disk.fault = Unwritable("config")  # the change of role has nothing more to write
    slave.become(BrokerRole.ASYNC_MASTER)
    rig.disk.fault = NoFault()
    rig.put(slave, record(b"stays", topic="Later"))
    await rig.clock.pass_time(1)
    rig.kill()
    again = await rig.open(role=BrokerRole.ASYNC_MASTER)
    assert bodies(again, "Later") == [b"stays"]
    await again.close()


async def test_copied_deletion_survives_cancellation_of_its_caller() -> None:
    """The broker becomes master meanwhile: tasks that wait for its tables are cancelled."""
    rig = Rig(**SLAVE)
    slave = await rig.open()
    copy(await master_with(Rig(), 3), slave)
    deletion = asyncio.ensure_future(slave.deletions.apply({"T": slave.max_log_offset}))
    await turn_until(lambda: bool(slave.deletions.ends))  # it is being written
    deletion.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deletion
    assert slave.queue_keys() == ()
    rig.kill()
    again = await rig.open()
    assert again.deletions.ends.keys() == {"T"}
    await again.close()


async def test_topic_deletion_survives_cancellation_of_its_caller() -> None:
    rig = Rig()
    master = await master_with(rig, 3)
    deletion = asyncio.ensure_future(master.deletions.drop(["T"]))
    await turn_until(lambda: bool(master.deletions.ends))  # it is being written
    deletion.cancel()
    with pytest.raises(asyncio.CancelledError):
        await deletion
    assert master.queue_keys() == ()
    rig.kill()
    again = await rig.open()
    assert again.deletions.ends.keys() == {"T"}
    assert again.queue_keys() == ()
    await again.close()


async def test_a_slave_whose_queue_files_took_no_writes_gives_no_number_out_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It copies records one by one, then its disk has room again, then it becomes master."""
    monkeypatch.setattr(consume_queue, "TAIL_BYTES_MAX", 40)
    rig, slave_rig = Rig(), Rig(**SLAVE)
    master, slave = await rig.open(), await slave_rig.open()
    slave_rig.disk.fault = Unwritable("consumequeue")
    for n in range(5):
        rig.put(master, record(b"%d" % n))
        copy(master, slave)
    slave_rig.disk.fault = NoFault()
    await slave_rig.clock.pass_time(2)
    slave.become(BrokerRole.ASYNC_MASTER)
    slave.queues.begin_run()
    slave_rig.put(slave, record(b"5"))
    assert bodies(slave) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    await slave.close()
    await master.close()


async def test_a_record_that_is_not_whole_is_not_dispatched() -> None:
    master = await master_with(Rig(), 3)
    slave = await Rig(**SLAVE).open()
    size = master.max_log_offset // 3
    copy(master, slave, end=size + 10)
    assert (slave.appended.value, slave.dispatched.value) == (size + 10, size)
    copy(master, slave, end=2 * size)
    assert slave.dispatched.value == 2 * size
    await master.close()
    await slave.close()


async def test_bytes_that_do_not_continue_the_log_are_refused() -> None:
    """spec replication 16, I5."""
    master = await master_with(Rig(), 30)
    slave = await Rig(**SLAVE).open()
    copy(master, slave, end=500)
    for offset in (0, 499, 501, 4096):
        with pytest.raises(LogDiverged):
            slave.append_raw(offset, b"x" * 10)
    with pytest.raises(LogDiverged, match="second file"):
        slave.append_raw(500, bytes(4096))
    slave.append_raw(500, b"")
    assert slave.max_log_offset == 500
    copy(master, slave)
    assert bodies(slave) == bodies(master)
    await master.close()
    await slave.close()


async def test_an_empty_slave_may_begin_at_a_later_file() -> None:
    """An old-style master sends only its last file; queues begin where the copy does (spec store 5)."""
    master_rig, slave_rig = Rig(), Rig(**SLAVE)
    master = await master_with(master_rig, 100)
    slave = await slave_rig.open()
    base = master.max_log_offset // 4096 * 4096
    with pytest.raises(LogDiverged):
        slave.append_raw(base + 1, b"x")
    slave.append_raw(base, master.log.valid_view(base, 100))
    copy(master, slave, chunk=100)
    assert slave.min_log_offset == base
    for _life in range(2):
        for queue_id in range(3):
            low = slave.queue_min("T", queue_id)
            assert 0 < low < slave.queue_max("T", queue_id) == master.queue_max("T", queue_id)
            expected = bodies(master, queue_id=queue_id, offset=low)
            assert bodies(slave, queue_id=queue_id) == expected
            raw = slave_rig.disk
        await slave.close()
        entries = raw.read_bytes(ROOT / "consumequeue" / "T" / "0" / f"{low * 20 // 200 * 200:020d}")
        if low * 20 % 200:
            assert entries[:20].hex() == "0000000000000000" + "7fffffff" + "0000000000000000"
        slave = await slave_rig.open()
    await slave.close()
    await master.close()


@pytest.mark.parametrize("dies", ["close", "kill", "power cut"])
async def test_a_slave_goes_on_after_it_died_in_the_middle_of_a_record(dies: str) -> None:
    """spec replication 16, I6."""
    master = await master_with(Rig(), 60)
    rig = Rig(**SLAVE)
    slave = await rig.open()
    copy(master, slave, end=1000)
    if dies == "close":
        await slave.close()
    elif dies == "kill":
        rig.kill()
    else:
        rig.power_cut()
    slave = await rig.open()
    assert slave.max_log_offset <= 1000
    copy(master, slave, chunk=333)
    assert bodies(slave) == bodies(master)
    assert slave.dispatched.value == master.max_log_offset
    await slave.close()
    await master.close()


async def test_a_sync_flush_slave_shows_only_what_is_flushed() -> None:
    master = await master_with(Rig(), 10)
    rig = Rig(flush_mode=FlushMode.SYNC_FLUSH, **SLAVE)
    slave = await rig.open()
    copy(master, slave)
    assert slave.dispatched.value == 0
    await rig.clock.pass_time(0)
    assert slave.dispatched.value == master.max_log_offset
    await slave.close()
    await master.close()


async def test_a_full_disk_leaves_the_slave_as_it_was() -> None:
    master = await master_with(Rig(), 10)
    rig = Rig(**SLAVE)
    slave = await rig.open()
    copy(master, slave, end=500)
    works = rig.disk.fault.on_write
    rig.disk.fault.on_write = lambda path, offset, size: min(size, 5)  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        slave.append_raw(500, master.log.valid_view(500, 300))
    assert slave.max_log_offset == 500
    rig.disk.fault.on_write = works  # type: ignore[method-assign]
    copy(master, slave)
    assert bodies(slave) == bodies(master)
    await slave.close()
    await master.close()


@pytest.mark.parametrize("fails", ["create", "write"])
async def test_an_empty_slave_whose_first_write_fails_is_empty_still(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its master's log now begins at a later file, and possibly elsewhere when the disk has room."""
    master = await master_with(Rig(), 100)
    rig = Rig(**SLAVE)
    slave = await rig.open()
    base = master.max_log_offset // 4096 * 4096

    def refuse(*_: Any) -> int:
        raise OSError("no space left")

    for begin in (base, base - 4096):
        with monkeypatch.context() as patch:
            patch.setattr(rig.disk.fault, f"on_{fails}", refuse)
            with pytest.raises(DiskFull):
                slave.append_raw(begin, master.log.valid_view(begin, 100))
        assert (slave.min_log_offset, slave.max_log_offset, slave.appended.value) == (0, 0, 0)
    await slave.close()
    assert rig.disk.list(ROOT / "commitlog") == []
    slave = await rig.open()
    with monkeypatch.context() as patch:
        patch.setattr(rig.disk.fault, f"on_{fails}", refuse)
        with pytest.raises(DiskFull):
            slave.append_raw(base, master.log.valid_view(base, 100))
    copy(master, slave)
    assert bodies(slave) == bodies(master)
    await slave.close()
    await master.close()


async def test_foreign_bytes_stop_the_dispatch_and_not_the_copy() -> None:
    master = await master_with(Rig(), 10)
    slave = await Rig(**SLAVE).open()
    size = master.max_log_offset // 10
    copy(master, slave, end=2 * size)
    slave.append_raw(2 * size, b"#" * 200)
    slave.append_raw(2 * size + 200, b"#" * 200)
    assert slave.max_log_offset == 2 * size + 400
    assert slave.dispatched.value == 2 * size
    await slave.close()
    await master.close()


async def test_a_promoted_slave_goes_on_with_the_offsets_of_its_master() -> None:
    rig = Rig(**SLAVE)
    master = await master_with(Rig(), 30)
    slave = await rig.open()
    copy(master, slave)
    slave.become(BrokerRole.ASYNC_MASTER)
    placed = slave.appender.append([record(b"new")], lambda _: None)
    rig.clock.run_soon()
    assert placed.queue_offset == master.queue_max("T", 0)
    assert placed.log_offsets[0] == master.max_log_offset
    assert bodies(slave)[-1] == b"new"
    await slave.close()
    with pytest.raises(ServiceNotAvailable):
        slave.append_raw(0, b"x")
    await master.close()


@pytest.mark.parametrize("mode", list(FlushMode))
async def test_a_promoted_slave_drops_a_record_that_it_has_only_in_part(mode: FlushMode) -> None:
    rig = Rig(flush_mode=mode, **SLAVE)
    master = await master_with(Rig(), 5)
    slave = await rig.open()
    size = master.max_log_offset // 5
    copy(master, slave, end=3 * size + 100)
    slave.become(BrokerRole.ASYNC_MASTER)
    assert slave.max_log_offset == slave.appended.value == 3 * size
    rig.put(slave, record(b"new"))
    await rig.clock.pass_time(0)
    assert slave.dispatched.value == slave.appended.value > 3 * size
    expected = [*bodies(master)[:1], b"new"]
    assert bodies(slave) == expected
    await slave.close()
    slave = await rig.open(role=BrokerRole.ASYNC_MASTER)
    assert bodies(slave) == expected
    await slave.close()
    await master.close()


async def test_a_promoted_slave_drops_a_filler_that_it_has_only_in_part() -> None:
    """The filler's head reaches to the end of the file: the new master's records would be inside it."""
    master_rig, rig = Rig(), Rig(**SLAVE)
    master = await master_rig.open()
    filler = 0
    while master.max_log_offset < 4096:
        filler = master.max_log_offset
        master_rig.put(master, record(b"x" * 300))
    slave = await rig.open()
    copy(master, slave, end=filler + 20)
    slave.become(BrokerRole.ASYNC_MASTER)
    assert slave.max_log_offset == filler
    rig.put(slave, record(b"new"))
    expected = bodies(slave)
    assert expected[-1] == b"new"
    await slave.close()
    queue = ROOT / "consumequeue" / "T" / "0"
    for name in rig.disk.list(queue):
        rig.disk.remove(queue / name)
    slave = await rig.open(role=BrokerRole.ASYNC_MASTER)
    assert bodies(slave) == expected
    await slave.close()
    await master.close()


async def test_store_times_do_not_fall_when_a_slave_becomes_master() -> None:
    """Search by time and the checkpoint rely on it; the new master's clock may be behind the old one's."""
    master_rig, slave_rig = Rig(), Rig(**SLAVE)
    await master_rig.clock.pass_time(3600)
    master = await master_with(master_rig, 3)
    slave = await slave_rig.open()
    copy(master, slave)
    newest_ms = slave.reader.stored_at("T", 2, 0)
    assert newest_ms > slave_rig.clock.now_ms()
    slave.become(BrokerRole.ASYNC_MASTER)
    slave_rig.put(slave, record(b"new", queue_id=2))
    assert slave.reader.stored_at("T", 2, 1) == newest_ms
    await master.close()
    await slave.close()


async def test_the_first_message_of_a_queue_is_healed_right_behind_the_second_one() -> None:
    """Its filler is not in a file yet, and the entry must be written there all the same."""
    rig, slave_rig = Rig(), Rig(**SLAVE, flush_mode=FlushMode.SYNC_FLUSH)
    master = await master_with(rig, 6)
    first = master.max_log_offset
    rig.put(master, record(b"first", topic="New"))
    slave = await slave_rig.open()
    copy(master, slave)
    await slave_rig.clock.pass_time(1)
    await slave.close()
    slave_rig.disk.open(ROOT / "commitlog" / f"{0:020d}").pwrite(first + 4, (b"####",))
    queue = ROOT / "consumequeue" / "New" / "0"
    slave_rig.disk.remove(queue / f"{0:020d}")
    slave_rig.disk.remove(queue)
    slave = await slave_rig.open()
    assert [begin for begin, _, _ in slave.damaged_ranges] == [first]
    rig.put(master, record(b"second", topic="New"))
    copy(master, slave)
    await slave_rig.clock.pass_time(0.01)
    assert bodies(slave, "New") == [b"second"]

    async def fetch(log_offset: int, size: int) -> bytes:
        return bytes(master.log.valid_view(log_offset, size))

    assert await slave.healer.heal_all(fetch) == 0
    assert bodies(slave, "New") == [b"first", b"second"]
    await slave.close()
    slave = await slave_rig.open()
    assert bodies(slave, "New") == [b"first", b"second"]
    await slave.close()
    await master.close()


@pytest.mark.parametrize("role", [BrokerRole.SLAVE, BrokerRole.ASYNC_MASTER])
async def test_a_part_of_the_end_of_a_file_is_no_end_yet(role: BrokerRole) -> None:
    """A chunk may end within a BLANK, too: a slave that stops or becomes master then continues before it."""
    rig, slave_rig = Rig(), Rig(**SLAVE, flush_mode=FlushMode.SYNC_FLUSH)
    master = await rig.open()
    while master.max_log_offset < 4096:
        blank = master.max_log_offset
        rig.put(master, record(b"x" * 300))
    assert 4096 - blank > 100
    slave = await slave_rig.open()
    copy(master, slave, end=blank + 20)
    await slave_rig.clock.pass_time(0.1)
    assert slave.dispatched.value == blank
    if role is BrokerRole.SLAVE:
        await slave.close()
        slave = await slave_rig.open()
        copy(master, slave)
        await slave_rig.clock.pass_time(0.1)
        assert bodies(slave) == bodies(master)
    else:
        slave.become(role)
        slave_rig.put(slave, record(b"new"))
        await slave_rig.clock.pass_time(0.1)
        assert bodies(slave) == [*bodies(master)[:-1], b"new"]
    await slave.close()
    await master.close()


@pytest.mark.parametrize("begins_at", ["the same file", "another file", "its own"])
async def test_an_empty_slave_whose_first_file_takes_no_write_and_stays_copies_later(begins_at: str) -> None:
    """It holds nothing, so it may also become master, once the file is gone."""
    master = await master_with(Rig(), 100)
    rig = Rig(**SLAVE)
    slave = await rig.open()
    base = master.max_log_offset // 4096 * 4096
    file = ROOT / "commitlog" / f"{base:020d}"
    rig.disk.fault = Unwritable("commitlog")
    with unremovable(rig, file):
        with pytest.raises(DiskFull):
            slave.append_raw(base, master.log.valid_view(base, 100))
        rig.disk.fault = NoFault()
        assert rig.disk.exists(file)
        assert (slave.min_log_offset, slave.max_log_offset, slave.appended.value) == (0, 0, 0)
        slave.cleaner.clean()
        with pytest.raises(DiskFull):
            slave.append_raw(base, master.log.valid_view(base, 100))
        with pytest.raises(OSError, match="refuses"):
            slave.become(BrokerRole.ASYNC_MASTER)
    if begins_at == "its own":
        slave.become(BrokerRole.ASYNC_MASTER)
        while slave.max_log_offset < base + 100:
            rig.put(slave, record(b"x" * 300))
        expected, begin = bodies(slave), 0
    else:
        begin = base if begins_at == "the same file" else base - 4096
        slave.append_raw(begin, master.log.valid_view(begin, 4096))
        copy(master, slave)
        expected = bodies(slave)
        assert expected == bodies(master, offset=slave.queue_min("T", 0))
    await slave.close()
    assert rig.fatal == []
    slave = await rig.open()
    assert (slave.min_log_offset, bodies(slave)) == (begin, expected)
    await slave.close()
    await master.close()


async def test_a_slave_that_is_empty_still_is_so_after_a_stop_though_its_first_file_stays() -> None:
    master = await master_with(Rig(), 100)
    rig = Rig(**SLAVE)
    slave = await rig.open()
    rig.disk.fault = Unwritable("commitlog")
    with unremovable(rig, ROOT / "commitlog" / f"{4096:020d}"), pytest.raises(DiskFull):
        slave.append_raw(4096, master.log.valid_view(4096, 100))
    rig.disk.fault = NoFault()
    await slave.close()
    slave = await rig.open()
    assert slave.min_log_offset == slave.max_log_offset == 4096
    copy(master, slave)
    assert bodies(slave) == bodies(master, offset=slave.queue_min("T", 0))
    await slave.close()
    await master.close()


async def test_an_empty_log_goes_on_at_no_earlier_file_than_it_stands_at() -> None:
    """Its watermarks and its checkpoint state that everything before is on disk."""
    master = await master_with(Rig(), 100)
    rig = Rig(**SLAVE)
    slave = await rig.open()
    slave.append_raw(8192, master.log.valid_view(8192, 20))
    rig.kill()
    slave = await rig.open()
    assert slave.min_log_offset == slave.max_log_offset == 8192
    with pytest.raises(LogDiverged):
        slave.append_raw(4096, master.log.valid_view(4096, 4096))
    copy(master, slave)
    await slave.close()
    await master.close()


async def test_a_copy_that_begins_at_a_later_file_may_lead_before_its_first_fsync_is_over() -> None:
    """Its whole records do not begin at byte 0."""
    master = await master_with(Rig(), 100)
    rig = Rig(flush_mode=FlushMode.SYNC_FLUSH, **SLAVE)
    slave = await rig.open()
    slave.append_raw(8192, master.log.valid_view(8192, 4096))
    end = slave.max_log_offset
    assert slave.dispatched.value == 0
    slave.become(BrokerRole.ASYNC_MASTER)
    assert (slave.min_log_offset, slave.max_log_offset, slave.dispatched.value) == (8192, end, end)
    low = slave.queue_min("T", 0)
    assert bodies(slave) == bodies(master, offset=low)[: slave.queue_max("T", 0) - low]
    await slave.close()
    await master.close()


async def test_foreign_bytes_in_several_files_come_back_behind_no_end_of_a_master() -> None:
    """A slave that becomes master drops them; its own records are shorter, and then it is killed."""
    master, rig = await master_with(Rig(), 100), Rig(**SLAVE)
    slave = await rig.open()
    copy(master, slave, end=4096)
    slave.append_raw(4096, b"#" * 100 + bytes(master.log.valid_view(4196, 3996)))
    copy(master, slave, end=12288)
    slave.become(BrokerRole.ASYNC_MASTER)
    assert slave.max_log_offset == 4096
    while slave.max_log_offset < 9000:
        rig.put(slave, record(b"mine" + b"y" * 200))
    end, before = slave.max_log_offset, bodies(slave)
    await slave.sync()
    rig.kill()
    slave = await rig.open(role=BrokerRole.ASYNC_MASTER)
    assert (slave.max_log_offset, slave.damaged_ranges, bodies(slave)) == (end, (), before)
    await slave.close()
    await master.close()


async def test_a_slave_that_leads_leaves_nothing_of_a_failed_write_behind_its_end() -> None:
    """Neither the write nor its zeros were complete; otherwise the old master's records would reappear."""
    master, rig = await master_with(Rig(), 20), Rig(**SLAVE)
    slave = await rig.open()
    copy(master, slave, end=500)
    works = rig.disk.fault.on_write
    sizes = iter([1000])
    rig.disk.fault.on_write = lambda path, offset, size: next(sizes, 0)  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        slave.append_raw(500, master.log.valid_view(500, 1500))
    with pytest.raises(OSError, match="no room"):
        slave.become(BrokerRole.ASYNC_MASTER)
    assert slave.role is BrokerRole.SLAVE
    rig.disk.fault.on_write = works  # type: ignore[method-assign]
    slave.become(BrokerRole.ASYNC_MASTER)
    rig.put(slave, record(b"mine"))
    end, before = slave.max_log_offset, bodies(slave)
    assert end < 1500
    await slave.sync()
    rig.kill()
    slave = await rig.open(role=BrokerRole.ASYNC_MASTER)
    assert (slave.max_log_offset, slave.damaged_ranges, bodies(slave)) == (end, (), before)
    await slave.close()
    await master.close()


@pytest.mark.parametrize("has_expired", [False, True])
async def test_a_queue_whose_files_cannot_be_deleted_when_it_begins_anew_is_right_later(
    has_expired: bool,
) -> None:
    rig, slave_rig = Rig(), Rig(**SLAVE, consume_queue_file_bytes=60)
    master, slave = await rig.open(), await slave_rig.open(consume_queue_file_bytes=60)
    rig.put(master, *(record(b"x" * 1000) for _ in range(20)))
    copy(master, slave)
    await slave_rig.clock.pass_time(61)
    if has_expired:
        slave_rig.clock._start_ms += 30 * 24 * 3_600_000
        assert slave.cleaner.clean(at_any_hour=True) > 1
    directory = ROOT / "consumequeue" / "T" / "0"
    files = [directory / name for name in slave_rig.disk.list(directory)]
    await master.deletions.drop(["T"])
    again = [b"again %d" % n for n in range(3)]
    rig.put(master, *(record(body) for body in again))
    with unremovable(slave_rig, *files):
        copy(master, slave)
        await slave_rig.clock.pass_time(2)
        assert bodies(slave) == again
    await slave_rig.clock.pass_time(2)
    assert slave_rig.disk.list(directory) == [f"{0:020d}"]
    assert slave_rig.fatal == []
    slave_rig.kill()
    slave = await slave_rig.open()
    assert bodies(slave) == again
    await slave.close()
    await master.close()


@pytest.mark.parametrize("leads_again", [False, True])
async def test_a_master_that_turns_slave_while_it_syncs_finds_what_it_copies(leads_again: bool) -> None:
    """Entries of its own sends wait for the fsync, and the copied bytes follow them."""
    rig, other_rig = Rig(flush_mode=FlushMode.SYNC_FLUSH), Rig()
    store, other = await rig.open(), await other_rig.open()
    syncing = asyncio.Event()
    offload = rig.disk.offload

    async def hold(fn: Callable[..., object], *args: Any) -> object:
        await syncing.wait()
        return await offload(fn, *args)

    rig.disk.offload = hold  # type: ignore[method-assign]
    for body in (b"one", b"two"):
        rig.put(store, record(body))
        other_rig.put(other, record(body))
    assert store.dispatched.value < store.max_log_offset
    store.become(BrokerRole.SLAVE)
    other_rig.put(other, record(b"three"))
    copy(other, store)
    expected = [b"one", b"two", b"three"]
    if leads_again:
        store.become(BrokerRole.ASYNC_MASTER)
        assert store.dispatched.value == store.max_log_offset
        rig.put(store, record(b"four"))
        expected.append(b"four")
    syncing.set()
    await rig.clock.pass_time(1)
    assert bodies(store) == expected
    await store.close()
    await other.close()


async def test_what_is_copied_in_the_place_of_foreign_bytes_that_a_master_dropped_is_dispatched() -> None:
    rig = Rig(**SLAVE)
    master = await master_with(Rig(), 3)
    slave = await rig.open()
    size = master.max_log_offset // 3
    copy(master, slave, end=size)
    slave.append_raw(size, b"#" * 200)
    slave.become(BrokerRole.ASYNC_MASTER)
    assert slave.max_log_offset == slave.dispatched.value == size
    slave.become(BrokerRole.SLAVE)
    copy(master, slave)
    assert slave.dispatched.value == slave.max_log_offset == 3 * size
    await slave.close()
    await master.close()


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_deletion_that_was_lowered_while_the_disk_was_full_is_lowered_there_too(
    is_closed: bool,
) -> None:
    """A slave becomes master while it writes its master's deletions; no restart may hide its later
    messages.
    """
    master_rig, rig = Rig(), Rig(**SLAVE)
    master = await master_with(master_rig, 12)
    slave = await rig.open()
    copy(master, slave, end=master.max_log_offset // 12 * 6)
    await master.deletions.drop(["T"])
    await slave.deletions.apply(master.deletions.ends)
    write = rig.disk.write_atomically

    def full(path: Path, data: object, **_: object) -> None:
        raise OSError(errno.ENOSPC, "no space", str(path))

    rig.disk.write_atomically = full  # type: ignore[method-assign]
    taking = asyncio.create_task(slave.deletions.apply({"U": slave.max_log_offset}))
    await turn_until(slave.queues.deletions._lock.locked)
    slave.become(BrokerRole.ASYNC_MASTER)
    with pytest.raises(OSError, match="no space"):
        await taking
    rig.put(slave, record(b"stored"))
    await rig.clock.pass_time(2)
    rig.disk.write_atomically = write  # type: ignore[method-assign]
    if is_closed:
        await slave.close()
    else:
        await rig.clock.pass_time(2)
        rig.kill()
    slave = await rig.open(role=BrokerRole.ASYNC_MASTER)
    assert bodies(slave) == [b"stored"]
    await slave.close()
    await master.close()
