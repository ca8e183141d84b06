"""The moment at which a send is answered: flush modes, acknowledgements, timeouts, failures of the disk."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from store_rig import ROOT, Rig, bodies, record

from sim.workload import make_batch
from tandemmq.errors import Busy, FlushFailed, ServiceNotAvailable
from tandemmq.store import BrokerRole, FlushMode, MessageStore, PutStatus
from tandemmq.store.replies import count_sends
from tandemmq.units import ReplicaId

OK = PutStatus.PUT_OK
SLAVE = ReplicaId("slave")


def test_sends_that_do_not_wait_are_counted_too() -> None:
    assert count_sends([(10, print, 0), (20, print, 1), (90, print, 5)]) == 7


class Faults:
    """The faults that a test can switch on."""

    def __init__(self) -> None:
        self.arrives: Callable[[Path, int, int], int] = lambda path, offset, size: size
        self.fails_sync = False
        self.fails_create = False
        self.is_stuck = False

    def on_create(self, path: Path, size: int) -> None:
        if self.fails_create:
            raise OSError(errno.ENOSPC, "no room", str(path))

    def on_write(self, path: Path, offset: int, size: int) -> int:
        return self.arrives(path, offset, size)

    def on_sync(self, path: Path) -> None:
        if self.fails_sync:
            raise OSError(errno.EIO, "input/output error", str(path))


def broken(rig: Rig) -> Faults:
    faults = Faults()
    rig.disk.fault = faults
    return faults


async def turns(rig: Rig) -> None:
    await rig.clock.pass_time(0)


async def test_async_flush_answers_after_the_write() -> None:
    rig = Rig()
    store = await rig.open()
    assert rig.put(store, record()) == [OK]
    assert store.flushed.value == 0
    await store.close()


async def test_async_flush_flushes_when_the_interval_is_over() -> None:
    rig = Rig(commit_log_file_bytes=65536)
    store = await rig.open()
    rig.put(store, record(b"x" * 100))
    await rig.clock.pass_time(1)
    assert store.flushed.value == 0
    rig.put(store, record(b"x" * 20_000))
    await rig.clock.pass_time(0.6)
    assert store.flushed.value == store.appended.value
    rig.put(store, record(b"x" * 100))
    await rig.clock.pass_time(11)
    assert store.flushed.value == store.appended.value
    await store.close()


async def test_sync_flush_answers_and_shows_messages_after_the_fsync() -> None:
    """spec store 6: unflushed messages are not read."""
    rig = Rig(flush_mode=FlushMode.SYNC_FLUSH)
    store = await rig.open()
    statuses = rig.put(store, record(b"a"), record(b"b"))
    assert statuses == []
    assert store.queue_max("T", 0) == 0
    assert store.confirmed.value == 0
    await turns(rig)
    assert statuses == [OK, OK]
    assert bodies(store) == [b"a", b"b"]
    await store.close()


async def test_one_fsync_serves_all_sends_that_came_meanwhile() -> None:
    rig = Rig(flush_mode=FlushMode.SYNC_FLUSH, commit_log_file_bytes=65536)
    store = await rig.open()
    before = rig.disk.sync_count
    statuses = rig.put(store, record(b"first"))
    statuses_of_others = [rig.put(store, record(b"%d" % n)) for n in range(50)]
    await turns(rig)
    assert statuses == [OK]
    assert statuses_of_others == [[OK]] * 50
    assert rig.disk.sync_count - before <= 2
    await store.close()


async def test_a_message_that_need_not_wait_is_answered_at_once() -> None:
    rig = Rig(flush_mode=FlushMode.SYNC_FLUSH, role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    store = await rig.open()
    assert rig.put(store, record(waits=False)) == [OK]
    await store.close()


async def test_a_flush_that_takes_too_long_answers_flush_disk_timeout() -> None:
    rig = Rig(flush_mode=FlushMode.SYNC_FLUSH)
    store = await rig.open()
    offload = rig.disk.offload

    async def stuck(fn: Callable[..., object], *args: object) -> object:
        await rig.clock.sleep(7)
        return await offload(fn, *args)

    rig.disk.offload = stuck  # type: ignore[method-assign,assignment]
    statuses = rig.put(store, record(b"slow"))
    await rig.clock.pass_time(4.9)
    assert statuses == []
    await rig.clock.pass_time(0.2)
    assert statuses == [PutStatus.FLUSH_DISK_TIMEOUT]
    await rig.clock.pass_time(3)
    assert bodies(store) == [b"slow"]
    rig.disk.offload = offload  # type: ignore[method-assign]
    await rig.clock.pass_time(10)
    await store.close()


async def test_sync_master_waits_for_a_slave_and_shows_the_message_before() -> None:
    rig = Rig(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    store = await rig.open()
    statuses = rig.put(store, record(b"a"))
    assert statuses == []
    assert bodies(store) == [b"a"]
    store.replies.acks.report(SLAVE, store.appended.value - 1)
    assert statuses == []
    store.replies.acks.report(SLAVE, store.appended.value)
    assert statuses == [OK]
    await store.close()


async def test_a_block_is_confirmed_by_a_copy_of_all_its_messages() -> None:
    rig = Rig(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    store = await rig.open()
    rig.put(store, record(b"begins the file"))
    statuses: list[PutStatus] = []
    block = make_batch([record(b"a"), record(b"b", queue_id=1), record(b"c")])
    assert block is not None
    placed = store.appender.append_block(block, statuses.append)
    assert placed is not None
    rig.clock.run_soon()
    for log_offset, size in zip(placed.log_offsets, placed.sizes, strict=True):
        assert statuses == []
        store.replies.acks.report(SLAVE, log_offset + size - 1)
        assert statuses == []
        store.replies.acks.report(SLAVE, log_offset + size)
    assert statuses == [OK]
    await store.close()


async def test_a_store_tells_whether_its_next_sends_wait_for_slaves() -> None:
    rig = Rig(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    store = await rig.open()
    assert store.replies.awaits_acks
    store.become(BrokerRole.SLAVE)
    assert not store.replies.awaits_acks
    store.become(BrokerRole.ASYNC_MASTER)
    assert not store.replies.awaits_acks
    store.replies.require(frozenset({SLAVE}))
    assert store.replies.awaits_acks
    store.replies.require(frozenset())
    assert not store.replies.awaits_acks
    store.replies.require(None)
    store.become(BrokerRole.SYNC_MASTER)
    assert store.replies.awaits_acks
    await store.close()


async def test_a_repeat_is_not_confirmed_by_a_slave_that_began_behind_its_message() -> None:
    rig = Rig(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    store = await rig.open()
    first = rig.put(store, record(b"a" * 3000))
    await rig.clock.pass_time(3.1)
    assert first == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    repeats: list[PutStatus] = []
    later = rig.put(store, record(b"b" * 3000))
    store.replies.acks.report(SLAVE, store.appended.value, start=4096)
    assert later == [OK]
    store.confirm(0, repeats.append)
    assert repeats == []
    assert rig.put(store, record(b"c")) == []
    store.replies.acks.report(SLAVE, store.appended.value, start=4096)
    assert repeats == []
    await rig.clock.pass_time(3.1)
    assert repeats == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    store.confirm(4096, repeats.append)
    assert repeats[1:] == [OK]
    store.replies.acks.report(ReplicaId("whole"), store.appended.value)
    store.confirm(0, repeats.append)
    assert repeats[2:] == [OK]
    await store.close()


async def test_sync_master_without_a_slave_answers_flush_slave_timeout() -> None:
    """spec replication 16, I9: the message is stored all the same."""
    rig = Rig(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    store = await rig.open()
    statuses = rig.put(store, record(b"a"))
    await rig.clock.pass_time(2.9)
    late = rig.put(store, record(b"b"))
    assert statuses == []
    await rig.clock.pass_time(0.2)
    assert (statuses, late) == ([PutStatus.FLUSH_SLAVE_TIMEOUT], [])
    await rig.clock.pass_time(3)
    assert late == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    assert bodies(store) == [b"a", b"b"]
    await store.close()


async def test_a_master_that_needs_no_replica_waits_for_none() -> None:
    rig = Rig(role=BrokerRole.SYNC_MASTER, in_sync_replicas=1)
    store = await rig.open()
    assert rig.put(store, record()) == [OK]
    await store.close()


async def test_compatibility_with_4x_asks_for_one_near_slave() -> None:
    rig = Rig(role=BrokerRole.SYNC_MASTER, sync_master_compat4=True)
    store = await rig.open()
    assert rig.put(store, record()) == [PutStatus.SLAVE_NOT_AVAILABLE]
    store.replies.acks.report(SLAVE, store.appended.value)
    statuses = rig.put(store, record())
    assert statuses == []
    store.replies.acks.report(SLAVE, store.appended.value)
    assert statuses == [OK]
    await store.close()


async def test_too_many_waiting_sends_are_refused_until_some_end() -> None:
    rig = Rig(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2, waiting_sends_max=3)
    store = await rig.open()
    statuses = rig.put(store, *(record() for _ in range(3)))
    with pytest.raises(Busy):
        store.appender.append([record()], pytest.fail)
    store.replies.acks.report(SLAVE, store.appended.value)
    assert statuses == [OK] * 3
    assert rig.put(store, record()) == []
    await store.close()


async def test_sends_that_wait_when_the_store_closes_are_told() -> None:
    rig = Rig(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    store = await rig.open()
    statuses = rig.put(store, record())
    await store.close()
    assert statuses == [PutStatus.UNKNOWN_ERROR]


# A disk that fails.


@pytest.mark.parametrize("arrived", [0, 50, 200, 300])
async def test_a_failed_write_is_taken_back_whole(arrived: int) -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(b"before" + b"x" * 100))
    end = store.max_log_offset
    faults = broken(rig)
    is_full = True
    faults.arrives = lambda path, offset, size: min(arrived, size) if is_full and size > 100 else size
    statuses = rig.put(store, record(b"1" * 150), record(b"2" * 150))
    assert statuses == [PutStatus.UNKNOWN_ERROR] * 2 or statuses == [PutStatus.SERVICE_NOT_AVAILABLE] * 2
    assert store.max_log_offset == store.appended.value == end
    with pytest.raises(ServiceNotAvailable, match="the disk accepts no writes"):
        store.appender.append([record()], pytest.fail)
    is_full = False
    await rig.clock.pass_time(1.1)
    with pytest.raises(ServiceNotAvailable):
        store.appender.append([record()], pytest.fail)  # the remains of the write are being zeroed
    await turns(rig)
    assert rig.put(store, record(b"after")) == [OK]
    assert [body[:6] for body in bodies(store)] == [b"before", b"after"]
    assert not any(rig.disk.read_bytes(ROOT / "commitlog" / ("0" * 20))[store.max_log_offset :])
    await store.close()
    store = await rig.open()
    assert [body[:6] for body in bodies(store)] == [b"before", b"after"]
    await store.close()


async def test_a_failed_write_across_a_roll_is_taken_back_whole() -> None:
    rig = Rig(commit_log_file_bytes=1024)
    store = await rig.open()
    rig.put(store, record(b"x" * 500))
    faults = broken(rig)
    cuts = [10]
    faults.arrives = lambda path, offset, size: cuts.pop() if cuts and path.name.endswith("1024") else size
    statuses = rig.put(store, record(b"y" * 100), record(b"z" * 500))
    await turns(rig)
    assert statuses == [PutStatus.SERVICE_NOT_AVAILABLE] * 2
    faults.arrives = lambda path, offset, size: size
    await rig.clock.pass_time(1.1)
    rig.put(store, record(b"y" * 100), record(b"z" * 500), record(b"w" * 300))
    expected = [b"x" * 500, b"y" * 100, b"z" * 500, b"w" * 300]
    assert bodies(store) == expected
    await store.close()
    store = await rig.open()
    assert bodies(store) == expected
    await store.close()


async def test_no_room_for_the_next_file_refuses_before_staging() -> None:
    rig = Rig(commit_log_file_bytes=1024)
    store = await rig.open()
    rig.put(store, record(b"x" * 500))
    faults = broken(rig)
    faults.fails_create = True
    with pytest.raises(ServiceNotAvailable, match="no room"):
        store.appender.append([record(b"y" * 500)], pytest.fail)
    faults.fails_create = False
    await rig.clock.pass_time(1.1)
    assert rig.put(store, record(b"y" * 500)) == [OK]
    assert bodies(store) == [b"x" * 500, b"y" * 500]
    await store.close()


@pytest.mark.parametrize("mode", list(FlushMode))
async def test_a_failed_fsync_stops_the_store_for_good(mode: FlushMode) -> None:
    rig = Rig(flush_mode=mode, commit_log_file_bytes=65536)
    store = await rig.open()
    rig.put(store, record(b"safe"))
    await rig.clock.pass_time(11)
    faults = broken(rig)
    faults.fails_sync = True
    statuses = rig.put(store, record(b"x" * 30_000))
    await rig.clock.pass_time(1)
    assert statuses == ([PutStatus.UNKNOWN_ERROR] if mode is FlushMode.SYNC_FLUSH else [OK])
    assert [type(error) for error in rig.fatal] == [FlushFailed]
    with pytest.raises(ServiceNotAvailable, match="failed"):
        store.appender.append([record()], pytest.fail)
    faults.fails_sync = False
    syncs = rig.disk.sync_count
    await rig.clock.pass_time(70)
    await store.close()
    assert rig.disk.sync_count == syncs
    assert len(rig.fatal) == 1
    assert rig.disk.exists(ROOT / "abort")
    store = await rig.open()
    assert bodies(store)[0] == b"safe"
    await store.close()


async def test_a_failed_store_touches_no_file_any_more() -> None:
    rig = Rig(commit_log_file_bytes=65536)
    store = await rig.open()
    rig.put(store, record(b"x" * 30_000, keys="k"))
    faults = broken(rig)
    faults.fails_sync = True
    await rig.clock.pass_time(1)
    assert len(rig.fatal) == 1
    writes: list[Path] = []
    faults.arrives = lambda path, offset, size: (writes.append(path), size)[1]
    await rig.clock.pass_time(130)
    await store.close()
    assert writes == []


async def test_staged_records_are_not_written_after_a_store_failure() -> None:
    rig = Rig(flush_mode=FlushMode.SYNC_FLUSH)
    store = await rig.open()
    faults = broken(rig)
    staged: list[PutStatus] = []

    def fail_while_something_is_staged(path: Path) -> None:
        if path.parent.name != "commitlog":
            return
        store.appender.append([record(b"second")], staged.append)
        raise OSError(errno.EIO, "input/output error", str(path))

    faults.on_sync = fail_while_something_is_staged  # type: ignore[method-assign]
    first = rig.put(store, record(b"first"))
    end = store.max_log_offset
    await turns(rig)
    assert first == staged == [PutStatus.UNKNOWN_ERROR]
    assert store.max_log_offset == end
    await store.close()


async def test_queue_files_that_take_no_writes_stop_sends_but_lose_nothing() -> None:
    rig = Rig(consume_queue_file_bytes=4000)
    store = await rig.open()
    faults = broken(rig)
    faults.arrives = lambda path, offset, size: 0 if "consumequeue" in path.parts else size
    rig.put(store, *(record(b"%04d" % n) for n in range(30)))
    await rig.clock.pass_time(1.5)
    with pytest.raises(ServiceNotAvailable, match="queue files"):
        store.appender.append([record()], pytest.fail)
    assert len(bodies(store)) == 30
    faults.arrives = lambda path, offset, size: size
    await rig.clock.pass_time(1.5)
    assert rig.put(store, record(b"more")) == [OK]
    await store.close()
    assert not rig.disk.exists(ROOT / "abort")
    store = await rig.open()
    assert len(bodies(store)) == 31
    await store.close()


async def test_abort_stays_when_queues_could_not_be_written() -> None:
    """spec store 21.3."""
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(b"a"))
    faults = broken(rig)
    faults.arrives = lambda path, offset, size: 0 if "consumequeue" in path.parts else size
    await store.close()
    assert rig.disk.exists(ROOT / "abort")
    broken(rig)
    store = await rig.open()
    assert bodies(store) == [b"a"]
    await store.close()


async def test_marks_end_with_the_store() -> None:
    rig = Rig()
    store: MessageStore = await rig.open()
    heard: list[int] = []
    store.appended.follow(heard.append)
    rig.put(store, record())
    await store.close()
    assert heard == [store.appended.value]


async def test_send_waiting_for_the_disk_also_waits_for_a_slave_that_joins() -> None:
    """The slave holds only flushed bytes: if elected, it would lack the messages answered then."""
    rig = Rig(role=BrokerRole.SYNC_MASTER, flush_mode=FlushMode.SYNC_FLUSH)
    store = await rig.open()
    store.replies.require(frozenset())
    statuses = rig.put(store, record(b"first"), record(b"second"))
    store.replies.acks.report(SLAVE, 0)
    store.replies.require(frozenset({SLAVE}))
    later = rig.put(store, record(b"third"))
    await rig.clock.pass_time(0.1)
    assert store.flushed.value == store.appended.value
    assert (statuses, later) == ([], [])
    store.replies.acks.report(SLAVE, store.appended.value)
    assert (statuses, later) == ([OK, OK], [OK])
    await store.close()


async def test_sends_waiting_for_slaves_end_with_the_role() -> None:
    """The end offsets of a later term differ."""
    rig = Rig(role=BrokerRole.SYNC_MASTER)
    store = await rig.open()
    store.replies.require(frozenset({SLAVE}))
    statuses = rig.put(store, record())
    store.become(BrokerRole.SLAVE)
    store.detach()
    assert statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    store.become(BrokerRole.SYNC_MASTER)
    store.replies.require(frozenset())
    assert rig.put(store, record()) == [OK]
    await store.close()
