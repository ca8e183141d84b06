"""A reader that has seen more at a slave than its master has flushed waits there; it is not moved back."""

from __future__ import annotations

from store_rig import Rig, record

from tandemmq.store import FlushMode, GetStatus


async def test_reader_ahead_of_the_flush_waits() -> None:
    rig = Rig()
    store = await rig.open(flush_mode=FlushMode.SYNC_FLUSH)
    first = record()
    rig.put(store, first, record(), record())
    place = first.topic, first.queue_id
    assert store.queue_max(*place) == 0
    for offset in (1, 3):
        result = store.reader.get(*place, offset, count_max=8)
        assert (result.status, result.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, offset)
    assert store.reader.get(*place, 4, count_max=8).status is not GetStatus.OFFSET_OVERFLOW_ONE
    await rig.clock.pass_time(0.01)
    assert store.queue_max(*place) == 3
    assert store.reader.get(*place, 1, count_max=8).status is GetStatus.FOUND
    assert store.reader.get(*place, 4, count_max=8).status is GetStatus.OFFSET_OVERFLOW_BADLY
    await store.close()
