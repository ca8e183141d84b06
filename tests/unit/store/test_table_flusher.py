"""The times at which the derived tables reach the disk, and what the checkpoint records about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from store_rig import Rig, record

from sim.memory import NoFault
from tandemmq.store import flusher, table_flusher
from tandemmq.store.message_store import MessageStore


def queues_ms(store: MessageStore) -> int:
    return store._core.checkpoint.times.queues_stored_at_ms


async def test_a_minute_passes_before_the_checkpoint_vouches_for_a_quiet_store() -> None:
    rig = Rig()
    store = await rig.open()
    stored_at_ms = rig.clock.now_ms()
    rig.put(store, record(b"a"))
    await rig.clock.pass_time(50)
    assert queues_ms(store) == 0
    await rig.clock.pass_time(12)
    assert queues_ms(store) == stored_at_ms
    await store.close()


@pytest.mark.parametrize(("limit", "value"), [("BACKLOG_COUNT_MAX", 3), ("BACKLOG_BYTES_MAX", 300)])
async def test_a_busy_store_is_vouched_for_every_second(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(table_flusher, limit, value)
    rig = Rig()
    store = await rig.open()
    for _ in range(3):
        stored_at_ms = rig.clock.now_ms()
        rig.put(store, *(record(bytes(100)) for _ in range(3)))
        await rig.clock.pass_time(1.5)
        assert queues_ms(store) == stored_at_ms
    rig.put(store, record(b"a"))
    await rig.clock.pass_time(5)
    assert queues_ms(store) == stored_at_ms
    await store.close()


async def test_slow_disks_are_left_alone_most_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_flusher, "BACKLOG_COUNT_MAX", 1)
    rig = Rig()
    store = await rig.open()
    flusher = store.table_flusher
    rig.put(store, record(b"a"))
    await rig.clock.pass_time(1.5)
    first = queues_ms(store)
    flusher._thorough_s = 2.0  # as if the disk had needed that long
    rig.put(store, record(b"b"))
    await rig.clock.pass_time(7)
    assert queues_ms(store) == first
    await rig.clock.pass_time(3)
    assert queues_ms(store) > first
    await store.close()


class SlowQueueSync(NoFault):
    """A disk that calls back while the queues are being fsynced."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] | None = None

    def on_sync(self, path: Path) -> None:
        meanwhile = self.meanwhile
        if "consumequeue" in path.parts and meanwhile is not None:
            self.meanwhile = None
            meanwhile()


async def test_the_checkpoint_does_not_vouch_for_what_came_while_the_queues_were_synced() -> None:
    rig = Rig()
    store = await rig.open()
    stored_at_ms = rig.clock.now_ms()
    rig.put(store, record(b"a"))
    faults = rig.disk.fault = SlowQueueSync()

    def take_long_under_load() -> None:
        rig.clock._start_ms += 60_000
        rig.put(store, record(b"b"))

    faults.meanwhile = take_long_under_load
    assert await store.table_flusher.flush(is_thorough=True)
    assert faults.meanwhile is None
    assert queues_ms(store) == stored_at_ms
    await store.close()


async def test_the_checkpoint_does_not_vouch_for_entries_that_changed_while_they_were_synced() -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(store, *(record(b"a") for _ in range(3)))
    queue = store.queues.get_or_create(("T", 0))
    entry = queue.entry(1)
    assert entry is not None
    faults = rig.disk.fault = SlowQueueSync()
    flusher = store.table_flusher
    faults.meanwhile = lambda: queue.restore(1, *entry[:2], 99, replaces=True)
    assert not await flusher.flush(is_thorough=True)
    assert (queues_ms(store), flusher.tables_end) == (0, 0)
    assert await flusher.flush(is_thorough=True)
    assert flusher.tables_end == store.max_log_offset
    await store.close()


async def test_few_of_many_queues_are_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletions and changes while others are synced are also noticed."""
    monkeypatch.setattr(table_flusher, "QUEUES_PER_SYNC", 4)
    rig = Rig()
    store = await rig.open()
    rig.put(store, *(record(b"a", queue_id=number) for number in range(10)))
    rig.put(store, record(b"deleted", topic="Gone"))
    first = store.queues.get_or_create(("T", 0))
    entry = first.entry(0)
    assert entry is not None
    synced: list[int] = []
    offload = rig.disk.offload

    async def look(fn: Callable[..., object], *args: Any) -> object:
        if fn is flusher._sync_all:
            synced.append(len(args[0]))
            if len(synced) == 2:
                first.restore(0, *entry[:2], 99, replaces=True)
                await store.deletions.drop(["Gone"])
        return await offload(fn, *args)

    monkeypatch.setattr(rig.disk, "offload", look)
    assert not await store.table_flusher.flush(is_thorough=True)
    assert synced == [4, 4, 2]
    synced.clear()
    assert await store.table_flusher.flush(is_thorough=True)
    assert synced == [1]
    monkeypatch.undo()
    await store.close()
