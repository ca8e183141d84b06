"""A store whose process has no free descriptor waits, refuses sends, and continues; it does not end."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from store_rig import Rig, bodies, options, record

from few_descriptors import no_descriptor_left
from sim.memory import MemoryDisk
from tandemmq.errors import ServiceNotAvailable
from tandemmq.runtime.descriptors import RESERVE
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.runtime.ports import NotOpened
from tandemmq.store import FlushMode, MessageStore, PutStatus
from tandemmq.store.retention import HOUR_MS
from tandemmq.store.segmented_log import OpenFiles, SegmentedLog
from tandemmq.telemetry import events
from waits import until


@contextmanager
def nothing_opens(rig: Rig, store: MessageStore) -> Iterator[None]:
    """Closes every handle and makes every open fail."""

    def refuse(path: Path, *_facts: Any, **_named: Any) -> Any:
        raise NotOpened(errno.EMFILE, "Too many open files", str(path))

    before = rig.disk.open, rig.disk.create
    while store._core.files.close_some():
        pass
    rig.disk.open = rig.disk.create = refuse  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        rig.disk.open, rig.disk.create = before  # type: ignore[method-assign]


@pytest.mark.parametrize("mode", [FlushMode.SYNC_FLUSH, FlushMode.ASYNC_FLUSH])
async def test_a_flush_whose_file_cannot_be_opened_is_no_failed_fsync(
    mode: FlushMode, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(flush_mode=mode)
    store = await rig.open()
    rig.put(store, record(b"first"))
    with nothing_opens(rig, store):
        for _ in range(50):
            await rig.clock.pass_time(0.3)
        assert store.flushed.value < store.appended.value
        assert rig.fatal == []
        with pytest.raises(ServiceNotAvailable, match="Too many open files"):
            rig.put(store, record(b"refused"))
        told = [line.message for line in caplog.records]
        assert told.count(events.FLUSH_POSTPONED) == 1
    await rig.clock.pass_time(3.0)
    assert store.flushed.value == store.appended.value
    second = rig.put(store, record(b"second"))
    await rig.clock.pass_time(3.0)
    assert second == [PutStatus.PUT_OK]
    assert bodies(store) == [b"first", b"second"]
    await store.close()
    assert rig.fatal == []


async def test_a_store_that_closes_without_descriptors_ends_in_time() -> None:
    rig = Rig(flush_mode=FlushMode.ASYNC_FLUSH)
    store = await rig.open()
    rig.put(store, record(b"first"))
    with nothing_opens(rig, store):
        closing = asyncio.ensure_future(store.close())
        for _ in range(60):
            await rig.clock.pass_time(0.2)
        assert closing.done()
        assert "fsync failed" in str(rig.fatal[0])
    rig.kill()
    rig.fatal.clear()
    store = await rig.open()
    assert bodies(store) == [b"first"]
    await store.close()


async def test_rounds_of_tables_and_retention_wait_for_descriptors() -> None:
    rig = Rig(commit_log_file_bytes=1024, consume_queue_file_bytes=60)
    store = await rig.open()
    rig.put(store, *(record(b"x" * 200, keys=f"k{n}") for n in range(20)))
    await rig.clock.pass_time(61)
    rig.put(store, *(record(b"x" * 200, keys=f"late{n}") for n in range(3)))
    await rig.clock.pass_time(1.0)
    rig.clock._start_ms += 7 * 24 * HOUR_MS
    begin = store.min_log_offset
    with nothing_opens(rig, store):
        for _ in range(4):
            await rig.clock.pass_time(61)
            assert store.cleaner.clean(at_any_hour=True) == 0
        assert store.min_log_offset == begin
        assert rig.fatal == []
    await rig.clock.pass_time(61)
    assert store.cleaner.clean(at_any_hour=True) > 0
    assert store.has_key_index
    await store.close()
    store = await rig.open()
    assert len(store.query_keys("T", "late2", 32, 0, 1 << 62)) == 1
    await store.close()


async def test_keys_wait_for_a_file_that_cannot_be_opened() -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(b"before", keys="before"))
    await rig.clock.pass_time(61)
    assert store.indexes is not None
    with nothing_opens(rig, store):
        store.indexes.close()
        for number in range(80):  # more than the file has entries for
            store.indexes.add([(None, 1 << 20 | number, 100, record(keys=f"k{number}"), number)], 1)
            store.indexes.build()
        assert store.has_key_index
        with pytest.raises(NotOpened):
            await store.indexes.flush()
    assert await store.indexes.flush()
    found = [store.indexes.query("T", f"k{number}", 32, 0, 1 << 62) for number in range(80)]
    assert found == [[1 << 20 | number] for number in range(80)]


async def test_a_real_store_lives_on_the_handles_that_it_can_close(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Missing descriptors come from its own handles, and for short operations from the reserve."""
    RESERVE.hold(2)
    request.addfinalizer(RESERVE.release)
    fatal: list[BaseException] = []
    changes = {"commit_log_file_bytes": 4096, "consume_queue_file_bytes": 200}
    store = await MessageStore.open(
        options(**changes, root=tmp_path), disk=RealDisk(), clock=LoopClock(), on_fatal=fatal.append
    )
    count = 0

    def put(number: int) -> None:
        store.appender.append([record(b"%d" % number, queue_id=number % 20)], lambda _status: None)

    for number in range(100):
        put(number)
    await until(lambda: store.dispatched.value == store.appended.value > 0)
    with no_descriptor_left() as taken:
        for _ in range(12):
            os.close(taken.pop())
        for number in range(100, 200):
            put(number)
        await until(lambda: store.dispatched.value == store.accepted_log_offset)
        await store.sync()
        await store.table_flusher.flush_soon()
        for queue_id in range(20):
            count += len(bodies(store, queue_id=queue_id))
    assert (count, fatal) == (200, [])
    await store.close()


def test_a_file_that_is_mapped_keeps_its_own_handle() -> None:
    """Without its descriptor the map would read as zeros."""
    files = OpenFiles(MemoryDisk(), 8)
    log = SegmentedLog(Path("/log"), 64, files, sparse=False)
    first, second = log.open_at(0), log.open_at(64)
    opened, other = first.file, second.file
    tries = 0

    def view() -> memoryview:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise NotOpened(errno.ENOMEM, "Cannot allocate memory")
        return memoryview(b"x" * 64)

    opened.view = view  # type: ignore[method-assign]
    with pytest.raises(NotOpened):  # there is one other handle to close
        first.view()
    assert (opened.is_closed, other.is_closed, tries) == (False, True, 2)
    assert first.view() == b"x" * 64
