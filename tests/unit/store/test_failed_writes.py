"""A refused send never reappears; no error of the store is lost."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_rig import Rig, bodies, record, turn_until

from sim.workload import make_batch
from tandemmq.errors import FlushFailed, ServiceNotAvailable
from tandemmq.store import BrokerRole, FlushMode, MessageStore, PutStatus

REFUSED = [PutStatus.SERVICE_NOT_AVAILABLE]


class ShortWrites:
    """A disk that accepts `room` bytes of the next write, then works again; its fsyncs may fail."""

    def __init__(self, room: int, *, failures: int = 1) -> None:
        self.room = room
        self.failures = failures
        self.fails_sync = False
        self.synced: list[Path] = []

    def on_create(self, path: Path, size: int) -> None:
        return None

    def on_write(self, path: Path, offset: int, size: int) -> int:
        if self.failures and path.parent.name == "commitlog":
            self.failures -= 1
            return min(self.room, size)
        return size

    def on_sync(self, path: Path) -> None:
        if self.fails_sync:
            raise OSError(errno.EIO, "input/output error", str(path))
        self.synced.append(path)


async def broken_store(faults: ShortWrites, **changes: object) -> tuple[Rig, MessageStore]:
    rig = Rig(**changes)
    store = await rig.open()
    rig.put(store, record(b"kept"))
    rig.disk.fault = faults
    return rig, store


@pytest.mark.parametrize("mode", list(FlushMode))
async def test_a_refused_send_does_not_come_back_after_a_power_cut(mode: FlushMode) -> None:
    faults = ShortWrites(room=50)
    rig, store = await broken_store(faults, flush_mode=mode)
    await rig.clock.pass_time(11)
    faults.synced.clear()
    statuses = rig.put(store, record(b"refused", waits=False))
    assert statuses == []
    await rig.clock.pass_time(0)
    assert statuses == REFUSED
    assert [path.parent.name for path in faults.synced] == ["commitlog"]
    rig.power_cut()
    store = await rig.open()
    assert bodies(store) == [b"kept"]
    await store.close()


async def test_a_batch_whose_write_failed_gives_its_queue_offsets_back() -> None:
    rig, store = await broken_store(ShortWrites(room=50))
    batch = make_batch([record(b"%d" % n) for n in range(3)])
    assert batch is not None
    statuses: list[PutStatus] = []
    store.appender.append_batch(batch, statuses.append)
    await rig.clock.pass_time(0)
    assert statuses == REFUSED
    assert (store.queue_next("T", 0), store.queue_max("T", 0)) == (1, 1)
    await rig.clock.pass_time(11)
    assert store.appender.append_batch(batch, statuses.append).queue_offset == 1
    await rig.clock.pass_time(0)
    assert bodies(store) == [b"kept", b"0", b"1", b"2"]
    await store.close()


async def test_a_failed_fsync_of_the_zeros_is_fatal() -> None:
    faults = ShortWrites(room=10)
    faults.fails_sync = True
    rig, store = await broken_store(faults)
    statuses = rig.put(store, record(b"unknown"))
    await rig.clock.pass_time(0)
    assert statuses == [PutStatus.UNKNOWN_ERROR]
    assert [type(error) for error in rig.fatal] == [FlushFailed]
    assert store.facts().is_failed
    with pytest.raises(ServiceNotAvailable):
        store.appender.append([record()], pytest.fail)
    await store.close()
    assert rig.disk.exists(store.options.root / "abort")


async def test_the_failure_of_an_fsync_is_heard_when_who_asked_for_it_is_cancelled() -> None:
    """A second fsync succeeds, because the first one has marked the pages clean."""
    faults = ShortWrites(room=0, failures=0)
    rig, store = await broken_store(faults, flush_mode=FlushMode.ASYNC_FLUSH, flush_interval_ms=10**6)
    done, offload, threads = asyncio.Event(), rig.disk.offload, []

    async def in_a_thread(fn: Callable[..., Any], *args: Any) -> Any:
        async def run() -> Any:
            await done.wait()
            return await offload(fn, *args)

        threads.append(asyncio.create_task(run()))
        return await asyncio.shield(threads[-1])

    rig.disk.offload = in_a_thread  # type: ignore[method-assign]
    asking = asyncio.create_task(store.sync())
    await turn_until(lambda: bool(threads))
    asking.cancel()
    await asyncio.sleep(0)
    faults.fails_sync = True
    done.set()
    await asyncio.wait([asking])
    assert asking.cancelled()
    faults.fails_sync = False
    await store.sync()
    assert [type(error) for error in rig.fatal] == [FlushFailed]
    assert store.flushed.value < store.appended.value
    await store.close()


async def test_a_closed_store_has_nothing_to_sync() -> None:
    store = await Rig().open()
    await store.close()
    await store.sync()


async def test_zeros_that_cannot_be_written_are_written_before_the_next_send() -> None:
    faults = ShortWrites(room=50, failures=2)
    rig, store = await broken_store(faults)
    statuses = rig.put(store, record(b"unknown"))
    assert statuses == [PutStatus.UNKNOWN_ERROR]
    await rig.clock.pass_time(1.1)
    with pytest.raises(ServiceNotAvailable):
        store.appender.append([record()], pytest.fail)  # the zeros are being synced
    await rig.clock.pass_time(0)
    assert rig.put(store, record(b"next")) == [PutStatus.PUT_OK]
    await store.close()
    assert bodies(await rig.open()) == [b"kept", b"next"]


async def test_a_close_undoes_a_write_that_fails_in_it() -> None:
    faults = ShortWrites(room=50)
    _, store = await broken_store(faults)
    statuses: list[PutStatus] = []
    store.appender.append([record(b"last")], statuses.append)
    await store.close()
    assert statuses == REFUSED


async def test_a_close_that_cannot_undo_a_write_leaves_the_abort_file() -> None:
    faults = ShortWrites(room=50, failures=1000)
    rig, store = await broken_store(faults)
    store.appender.append([record(b"last")], lambda _: None)
    await store.close()
    assert rig.disk.exists(store.options.root / "abort")


async def test_bytes_of_a_failed_write_keep_a_master_from_becoming_a_slave() -> None:
    """Zeroing them later would overwrite the new master's records."""
    faults = ShortWrites(room=50, failures=3)
    rig, store = await broken_store(faults)
    rig.put(store, record(b"unknown"))
    with pytest.raises(OSError, match="failed write"):
        store.become(BrokerRole.SLAVE)
    assert store.role is BrokerRole.ASYNC_MASTER
    faults.failures = 0
    store.become(BrokerRole.SLAVE)
    await rig.clock.pass_time(0)
    assert [path.parent.name for path in faults.synced] == ["commitlog"], "while its file is there"
    await store.close()


async def test_a_failed_assertion_of_a_callback_stops_the_store() -> None:
    rig = Rig()
    store = await rig.open()

    def wrong(_appended: int) -> None:
        raise AssertionError("1 is not 2")

    store.appended.follow(wrong)
    statuses = rig.put(store, record())
    assert statuses == [PutStatus.PUT_OK] or statuses == [PutStatus.UNKNOWN_ERROR]
    assert [str(error) for error in rig.fatal] == ["1 is not 2"]
    with pytest.raises(ServiceNotAvailable, match="failed"):
        store.appender.append([record()], pytest.fail)
    await store.close()
    assert rig.disk.exists(store.options.root / "abort")


async def test_an_error_of_a_timer_stops_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    store = await rig.open()

    def wrong(_least_pages: int) -> bool:
        raise KeyError("lost")

    monkeypatch.setattr(store.flusher, "_has_work", wrong)
    await rig.clock.pass_time(1)
    assert [type(error) for error in rig.fatal] == [KeyError]
    await store.close()


async def test_nothing_counts_as_flushed_after_a_failed_fsync() -> None:
    """The kernel marks pages that it could not write as clean: another fsync would succeed."""
    faults = ShortWrites(room=0, failures=0)
    rig, store = await broken_store(faults)
    faults.fails_sync = True
    await store.sync()
    assert [type(error) for error in rig.fatal] == [FlushFailed]
    faults.fails_sync = False
    await store.sync()
    assert (store.flushed.value, faults.synced) == (0, [])
    await store.close()


async def test_a_store_closes_though_another_task_failed_as_a_flush_began() -> None:
    """The flush is cancelled before its first step."""
    rig = Rig(flush_mode=FlushMode.SYNC_FLUSH)
    store = await rig.open()

    async def fail() -> None:
        raise AssertionError("a fault of ours")

    store._core.tasks.start("fail", fail())
    await asyncio.sleep(0)  # the task has ended, but its end is not processed yet
    rig.put(store, record())
    flush = store.flusher._rounds._task
    assert flush is not None
    await store.close()
    assert (flush.cancelled(), len(rig.fatal)) == (True, 1)
