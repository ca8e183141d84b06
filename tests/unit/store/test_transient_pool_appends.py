"""Appends through the transient pool: the answers, reads and refusals, and their times (spec store 11)."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_rig import ROOT, Rig, bodies, options, record

from sim.memory import MemoryDisk
from tandemmq.errors import Busy, RequestRejected, ServiceNotAvailable
from tandemmq.protocol.record import decode_record
from tandemmq.runtime.disk import LockedMemory
from tandemmq.store import BrokerRole, FlushMode, MessageStore, PutStatus
from tandemmq.store.commit_log import CommitLog
from tandemmq.store.segmented_log import OpenFiles, SegmentedLog
from tandemmq.store.transient_pool import TransientPool
from tandemmq.telemetry import events
from tandemmq.units import ReplicaId

LOG = ROOT / "commitlog"


def pooled(**changes: Any) -> Rig:
    return Rig(transient_pool_enable=True, **changes)


class StuckDisk:
    """A fault that refuses writes to the log while it is enabled."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.is_stuck = False
        self.arriving = 0
        disk.fault = self

    def on_create(self, path: Path, size: int) -> None:
        return None

    def on_write(self, path: Path, offset: int, size: int) -> int:
        return self.arriving if self.is_stuck and path.parent == LOG else size

    def on_sync(self, path: Path) -> None:
        return None


async def test_a_send_is_answered_from_memory_and_readable_after_the_commit() -> None:
    rig = pooled()
    store = await rig.open()
    assert rig.put(store, record(b"a")) == [PutStatus.PUT_OK]
    assert store.appended.value == store.max_log_offset == store.dispatched.value == 0
    assert bodies(store) == []
    assert store.facts().uncommitted_bytes == store.accepted_log_offset > 0
    assert not any(rig.disk.read_bytes(LOG / "00000000000000000000"))
    await rig.clock.pass_time(0)
    assert bodies(store) == [b"a"]
    assert store.facts().uncommitted_bytes == 0
    assert store.accepted_log_offset == store.max_log_offset
    await store.close()


async def test_an_accepted_record_is_found_by_its_offset_before_it_is_committed() -> None:
    """The sender of a half message may end it at once; otherwise a fast client would be refused for ever."""
    rig = pooled(commit_log_file_bytes=1 << 16)
    store = await rig.open()
    rig.put(store, record(b"first"))
    await rig.clock.pass_time(0)
    begin = store.max_log_offset
    rig.put(store, record(b"second"))
    found = store.read_record(begin)
    assert store.max_log_offset == begin, "it is not committed"
    assert found is not None
    assert decode_record(found, log_offset=begin).body == b"second"
    assert len(found) == store.accepted_log_offset - begin
    assert [store.read_record(at) for at in (begin + 1, store.accepted_log_offset, 1 << 20)] == [None] * 3
    await rig.clock.pass_time(0.25)
    assert bytes(store.read_record(begin) or b"") == bytes(found)
    await store.close()


async def test_few_pages_wait_for_the_interval_and_many_do_not() -> None:
    rig = pooled(commit_log_file_bytes=1 << 16)
    store = await rig.open()
    rig.put(store, record(b"first"))
    await rig.clock.pass_time(0)
    assert bodies(store) == [b"first"], "the last commit is long ago"
    rig.put(store, record(b"second"))
    await rig.clock.pass_time(0.19)
    assert bodies(store) == [b"first"]
    await rig.clock.pass_time(0.02)
    assert bodies(store) == [b"first", b"second"]
    rig.put(store, record(b"x" * 4 * 4096))
    await rig.clock.pass_time(0)
    assert len(bodies(store)) == 3
    await store.close()


async def test_the_files_are_those_of_a_store_without_pool() -> None:
    contents = []
    for is_pooled in (False, True):
        rig = Rig(transient_pool_enable=is_pooled, commit_log_file_bytes=1024)
        store = await rig.open()
        for size in range(0, 400, 7):
            rig.put(store, record(b"%d" % size * (size // 3), queue_id=size % 3, keys=f"k{size}"))
            await rig.clock.pass_time(0)
        store.appender.append([record(b"1"), record(b"2" * 300), record(b"3" * 300)], lambda _: None)
        await store.close()
        names = rig.disk.list(LOG)
        assert len(names) > 5
        contents.append([(name, rig.disk.read_bytes(LOG / name)) for name in names])
    assert contents[0] == contents[1]


async def test_a_full_file_gives_its_buffer_back() -> None:
    rig = pooled(commit_log_file_bytes=1024, transient_pool_size=2)
    store = await rig.open()
    for number in range(40):
        assert rig.put(store, record(b"%02d" % number * 100)) == [PutStatus.PUT_OK]
        await rig.clock.pass_time(0)
    assert store.facts().pool_free_count == 1
    assert len(bodies(store)) == 40
    await store.close()


@pytest.mark.parametrize("fails_fast", [False, True])
async def test_without_a_buffer_a_send_is_refused_until_one_returns(fails_fast: bool) -> None:
    rig = pooled(commit_log_file_bytes=1024, transient_pool_size=2, fail_fast_without_buffer=fails_fast)
    store = await rig.open()
    accepted: list[bytes] = []

    def put_until_refused() -> RequestRejected:
        while True:
            body = b"%03d" % len(accepted) * 80
            try:
                statuses = rig.put(store, record(body))
            except RequestRejected as error:
                return error
            assert statuses == [PutStatus.PUT_OK]
            accepted.append(body)

    for _ in range(3):
        error = put_until_refused()
        assert isinstance(error, Busy) is not fails_fast
        assert error.code == (1 if fails_fast else 2)
        assert store.facts().pool_free_count == 0
        with pytest.raises(RequestRejected):
            store.appender.append([record(b"x" * 200), record(b"y" * 200)], pytest.fail)
        await rig.clock.pass_time(0.5)
        assert bodies(store) == accepted
    assert len(accepted) >= 9
    await store.close()
    assert bodies(await rig.open()) == accepted


@pytest.mark.parametrize("arriving", [0, 50])
async def test_a_failed_commit_keeps_everything_and_is_tried_again(arriving: int) -> None:
    rig = pooled()
    store = await rig.open()
    fault = StuckDisk(rig.disk)
    fault.arriving = arriving
    fault.is_stuck = True
    assert rig.put(store, *(record(b"%d" % n) for n in range(5))) == [PutStatus.PUT_OK] * 5
    await rig.clock.pass_time(0.3)
    with pytest.raises(ServiceNotAvailable):
        store.appender.append([record()], pytest.fail)
    assert store.appended.value == 0
    await rig.clock.pass_time(5)
    assert rig.fatal == []
    fault.is_stuck = False
    await rig.clock.pass_time(1.5)
    assert bodies(store) == [b"%d" % n for n in range(5)]
    assert rig.put(store, record(b"5")) == [PutStatus.PUT_OK]
    await store.close()
    assert len(bodies(await rig.open())) == 6


async def test_a_clean_stop_commits_everything() -> None:
    rig = pooled()
    store = await rig.open()
    statuses = rig.put(store, record(b"1"), record(b"2"))
    store.appender.append([record(b"3")], statuses.append)
    await store.close()
    assert statuses == [PutStatus.PUT_OK] * 3
    assert not rig.disk.exists(ROOT / "abort")
    assert bodies(await rig.open()) == [b"1", b"2", b"3"]


async def test_a_stop_that_cannot_commit_is_no_clean_one(caplog: pytest.LogCaptureFixture) -> None:
    rig = pooled()
    store = await rig.open()
    rig.put(store, record(b"1"))
    await rig.clock.pass_time(1)
    fault = StuckDisk(rig.disk)
    fault.is_stuck = True
    rig.put(store, record(b"2"))
    with caplog.at_level(logging.ERROR):
        await store.close()
    assert events.POOL_ABANDONED in caplog.messages
    assert rig.disk.exists(ROOT / "abort")
    fault.is_stuck = False
    rig.kill()
    assert bodies(await rig.open()) == [b"1"]


async def test_sends_that_wait_for_a_slave_wait_for_the_commit_too() -> None:
    """Spec replication 10."""
    rig = pooled(role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    store = await rig.open()
    statuses = rig.put(store, record(b"a"), record(b"b", waits=False))
    assert statuses == [PutStatus.PUT_OK]
    assert store.log.valid_view(0, 4096) == b""
    await rig.clock.pass_time(0)
    assert len(statuses) == 1
    store.replies.acks.report(ReplicaId("s"), store.max_log_offset)
    assert statuses == [PutStatus.PUT_OK] * 2
    rig.put(store, record(b"c"))
    late: list[PutStatus] = []
    store.appender.append([record(b"d")], late.append)
    await rig.clock.pass_time(4)
    assert late == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    await store.close()


async def test_slaves_and_sync_flush_go_without_pool() -> None:
    rig = pooled(flush_mode=FlushMode.SYNC_FLUSH)
    store = await rig.open()
    assert rig.put(store, record(b"a")) == []
    assert store.appended.value > 0
    assert store.facts().pool_free_count == 0
    await store.close()


async def test_a_change_of_role_commits_first_and_goes_on_behind() -> None:
    rig = pooled()
    store = await rig.open()
    rig.put(store, record(b"a"))
    store.appender.append([record(b"b")], lambda _: None)
    store.become(BrokerRole.SLAVE)
    assert bodies(store) == [b"a", b"b"]
    view = bytes(store.log.valid_view(0, 4096))
    other = Rig()
    master = await other.open()
    other.put(master, record(b"a"), record(b"b"), record(b"c"))
    store.append_raw(len(view), master.log.valid_view(len(view), 4096))
    await rig.clock.pass_time(1)
    assert bodies(store) == [b"a", b"b", b"c"]
    store.become(BrokerRole.ASYNC_MASTER)
    rig.put(store, record(b"d"))
    assert len(bodies(store)) == 3
    await rig.clock.pass_time(1)
    assert bodies(store) == [b"a", b"b", b"c", b"d"]
    await store.close()
    await master.close()


async def test_a_slave_with_a_pool_leaves_its_directory_as_after_a_clean_stop() -> None:
    rig = pooled(role=BrokerRole.SLAVE)
    store = await rig.open()
    other = Rig()
    master = await other.open()
    other.put(master, record(b"a"))
    store.append_raw(0, master.log.valid_view(0, 4096))
    await store.close()
    await master.close()
    assert not rig.disk.exists(ROOT / "abort")


async def test_a_change_of_role_that_cannot_commit_changes_nothing() -> None:
    rig = pooled()
    store = await rig.open()
    fault = StuckDisk(rig.disk)
    fault.is_stuck = True
    rig.put(store, record(b"a"))
    with pytest.raises(OSError, match="no room"):
        store.become(BrokerRole.SLAVE)
    assert store.role is BrokerRole.ASYNC_MASTER
    fault.is_stuck = False
    await rig.clock.pass_time(3)
    assert bodies(store) == [b"a"]
    await store.close()


async def test_checkpoint_never_vouches_for_what_is_in_the_pool_only() -> None:
    rig = pooled()
    store = await rig.open()
    first_ms = rig.clock.now_ms()
    rig.put(store, record(b"a"))
    await rig.clock.pass_time(1)
    fault = StuckDisk(rig.disk)
    fault.is_stuck = True
    rig.put(store, record(b"b"))
    await rig.clock.pass_time(100)
    assert store._core.checkpoint.times.log_stored_at_ms == first_ms
    fault.is_stuck = False
    await rig.clock.pass_time(100)
    assert store._core.checkpoint.times.log_stored_at_ms == first_ms + 1000
    await store.close()


async def test_a_failed_store_commits_nothing_more() -> None:
    rig = pooled()
    store = await rig.open()
    rig.put(store, record(b"a"))
    await rig.clock.pass_time(1)
    before = rig.disk.read_bytes(LOG / "00000000000000000000")

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, "broken")

    rig.disk.fault.on_sync = fail  # type: ignore[method-assign]
    rig.put(store, record(b"b"))
    await rig.clock.pass_time(0.01)
    rig.put(store, record(b"c"))
    store._fail(RuntimeError("for the test"))
    await rig.clock.pass_time(5)
    after = rig.disk.read_bytes(LOG / "00000000000000000000")
    assert after[: len(before.rstrip(b"\0"))] == before.rstrip(b"\0")
    assert b"c" not in after.rstrip(b"\0")[-20:]
    await store.close()
    assert rig.disk.exists(ROOT / "abort")


def make_pool(disk: MemoryDisk, allocate: Any, count: int) -> tuple[TransientPool, CommitLog]:
    files = OpenFiles(disk, 100)
    log = CommitLog(SegmentedLog(LOG, 256, files, sparse=False), disk, mapped_bytes_max=1 << 20)
    return TransientPool(options(transient_pool_size=count), log, allocate), log


def test_memory_is_made_when_needed_and_used_again_and_a_refused_lock_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made: list[LockedMemory] = []

    def allocate(size: int) -> LockedMemory:
        made.append(LockedMemory(size))
        made[-1].is_locked = False
        return made[-1]

    pool, log = make_pool(MemoryDisk(), allocate, 5)
    assert made == []
    with caplog.at_level(logging.WARNING):
        for base in range(0, 256 * 20, 256):
            pool.open_at(base)
            pool.write(base, (b"a" * 100, b"b" * 156))
            pool.end = base + 256
            if base:
                log.end = base
                pool.release_below(base)
    assert len(made) == 2
    assert caplog.messages == [events.POOL_MEMORY_NOT_LOCKED]
    (piece,) = pool.pieces(log.end, pool.end)
    assert (piece.segment.base, piece.position, bytes(piece.data)) == (256 * 19, 0, b"a" * 100 + b"b" * 156)


def test_exhaustion_is_told_once_until_a_buffer_returned(caplog: pytest.LogCaptureFixture) -> None:
    pool, log = make_pool(MemoryDisk(), LockedMemory, 1)
    pool.open_at(0)
    pool.end = 256
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(Busy):
                pool.open_at(256)
        log.end = 256
        pool.release_below(256)
        pool.open_at(256)
        pool.end = 512
        with pytest.raises(Busy):
            pool.open_at(512)
    assert caplog.messages.count(events.POOL_EXHAUSTED) == 2
    assert len(log.log.segments) == 2, "no file is made without a buffer"


async def test_the_pool_is_off_unless_asked_for() -> None:
    store = await MessageStore.open(options(), disk=MemoryDisk(), clock=Rig().clock)
    assert store._pool is None
    await store.close()


async def test_a_commit_that_a_change_of_role_overtakes_takes_nothing_back() -> None:
    """The slave's log continues after all bytes of the pool, while a smaller write is still in progress."""
    rig = pooled()
    store = await rig.open()
    offload = rig.disk.offload
    is_open, is_over = asyncio.Event(), asyncio.Event()

    async def slow(fn: Callable[..., Any], *args: Any) -> Any:
        await is_open.wait()
        try:
            return await offload(fn, *args)
        finally:
            is_over.set()

    rig.disk.offload = slow  # type: ignore[method-assign,assignment]
    rig.put(store, record(b"first"))
    await rig.clock.pass_time(1)
    rig.put(store, record(b"second"))
    assert store.max_log_offset == 0
    store.become(BrokerRole.SLAVE)
    end = store.max_log_offset
    assert end == store.accepted_log_offset > 0
    store.append_raw(end, b"#" * 200)
    is_open.set()
    await is_over.wait()
    await rig.clock.pass_time(1)
    assert store.max_log_offset == end + 200
    assert bodies(store) == [b"first", b"second"]
    await store.close()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_commit_that_ends_on_a_slave_is_the_last_one_and_blocks_nothing(fails: bool) -> None:
    """The change of role wrote its bytes; the log has continued in the next file meanwhile."""
    rig, other_rig = pooled(), Rig()
    store, other = await rig.open(), await other_rig.open()
    offload = rig.disk.offload
    is_open = asyncio.Event()
    commit_count = 0

    async def slow(fn: Callable[..., Any], *args: Any) -> Any:
        nonlocal commit_count
        if getattr(fn, "__name__", "") == "_write_all":
            commit_count += 1
            await is_open.wait()
            if fails and commit_count == 1:
                raise OSError(errno.EIO, "input/output error")
        return await offload(fn, *args)

    rig.disk.offload = slow  # type: ignore[method-assign,assignment]
    rig.put(store, record(b"first"))
    other_rig.put(other, record(b"first"), *(record(b"x" * 300) for _ in range(15)))
    await rig.clock.pass_time(1)
    store.become(BrokerRole.SLAVE)
    while (end := store.max_log_offset) < other.max_log_offset:
        store.append_raw(end, other.log.valid_view(end, 4096))
    assert end > 4096
    is_open.set()
    await rig.clock.pass_time(1)
    assert (rig.fatal, commit_count) == ([], 1)
    store.become(BrokerRole.ASYNC_MASTER)
    assert rig.put(store, record(b"new")) == [PutStatus.PUT_OK]
    await rig.clock.pass_time(1)
    assert bodies(store) == [*bodies(other), b"new"]
    await store.close()
    await other.close()


async def test_another_kind_of_master_goes_on_with_what_is_in_the_pool() -> None:
    rig = pooled()
    store = await rig.open()
    rig.put(store, record(b"in the pool"))
    statuses: list[PutStatus] = []
    store.appender.append([record(b"staged")], statuses.append)
    store.become(BrokerRole.SYNC_MASTER)
    rig.put(store, record(b"new"))
    await rig.clock.pass_time(1)
    assert statuses == [PutStatus.PUT_OK]
    assert bodies(store) == [b"in the pool", b"staged", b"new"]
    await store.close()
