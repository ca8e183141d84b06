"""Recovery reads the log in blocks; their borders must not matter."""

from __future__ import annotations

from random import Random

import pytest
from store_rig import Rig, bodies, record

from tandemmq.store import BrokerRole, MessageStore, dispatcher, recovery_scan
from tandemmq.units import Buffer

QUEUES = [(topic, queue_id) for topic in ("A", "B") for queue_id in range(2)]


async def fill(rig: Rig, store: MessageStore, seed: int) -> None:
    """Appends random records of two topics, one of which is deleted and recreated twice."""
    dice = Random(seed)
    for number in range(120):
        if number in (50, 80):
            await store.deletions.drop(["A"])
        topic, queue_id = dice.choice(QUEUES)
        item = record(
            bytes([number]) * dice.choice((0, 10, 500)),
            topic=topic,
            queue_id=queue_id,
            tags=f"t{number % 3}",
            unique_key=f"u{number}",
            keys=f"k{number} all",
            sys_flag=dice.choice((0, 0, 0, 0x4, 0x8)),
            properties={"long": "x" * dice.choice((1, 700))},
        )
        rig.put(store, item)


def content(store: MessageStore) -> list[object]:
    found: list[object] = [store.max_log_offset, store.query_keys("A", "all", 64, 0, 1 << 60)]
    for key in QUEUES:
        found += [store.queue_min(*key), store.queue_max(*key), bodies(store, *key)]
    return found


@pytest.mark.parametrize("block_bytes", [100, 700, 1500, 4095])
@pytest.mark.parametrize("is_cut", [False, True])
async def test_blocks_of_any_size_recover_the_same(
    monkeypatch: pytest.MonkeyPatch, block_bytes: int, is_cut: bool
) -> None:
    rig = Rig()
    store = await rig.open()
    await fill(rig, store, block_bytes)
    await rig.clock.pass_time(2)
    expected = content(store)
    if is_cut:
        rig.power_cut()
    else:
        rig.kill()
    monkeypatch.setattr(recovery_scan, "BLOCK_BYTES", block_bytes)
    again = await rig.open()
    assert content(again) == expected
    await again.close()
    third = await rig.open()
    assert content(third) == expected
    await third.close()


@pytest.mark.parametrize("block_bytes_min", [1, 400, 3000])
async def test_slave_makes_the_same_tables_from_blocks(
    monkeypatch: pytest.MonkeyPatch, block_bytes_min: int
) -> None:
    monkeypatch.setattr(dispatcher, "BLOCK_BYTES_MIN", block_bytes_min)
    master_rig, slave_rig = Rig(), Rig(role=BrokerRole.SLAVE)
    master, slave = await master_rig.open(), await slave_rig.open()
    await fill(master_rig, master, 7)
    changes: list[dict[tuple[str, int], int]] = []
    slave.dispatcher.on_dispatch(lambda changed: changes.append(dict(changed)))
    dice = Random(block_bytes_min)
    position = 0
    while position < master.max_log_offset:
        piece: Buffer = master.log.valid_view(position, dice.choice((1, 90, 700, 4096)))
        slave.append_raw(position, bytes(piece))
        position += len(piece)
    assert slave.dispatched.value == master.dispatched.value
    assert content(slave) == content(master)
    newest = {key: new for changed in changes for key, new in changed.items()}
    assert newest == {key: master.queue_max(*key) for key in QUEUES}
    await slave.close()
    await master.close()
