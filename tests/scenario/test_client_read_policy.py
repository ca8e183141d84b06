"""Consumers that prefer a slave, or read only from the master."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from client_rig import Rig, numbers, running_cluster, take

from tandemmq.broker.broker import Broker
from tandemmq.client import ReadFrom
from waits import until


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running_cluster(tmp_path, with_slave=True) as subject:
        await subject.wait_for_slave("broker-a", "T")
        yield subject


def broker(rig: Rig, broker_id: int) -> Broker:
    return rig._brokers["broker-a", broker_id]


def found_count(rig: Rig, broker_id: int) -> int:
    """Returns the number of pulls of this broker that found messages."""
    parts = broker(rig, broker_id)._parts
    assert parts is not None
    return parts.core.stats.found_count


async def test_slave_is_read_and_the_tail_too(rig: Rig) -> None:
    await rig.fill("T", 200)
    await rig.wait_for_slave("broker-a")
    async with rig.consumer(read_from=ReadFrom.PREFER_SLAVE) as consumer:
        assert numbers(await take(consumer, 200)) == list(range(200))
        await rig.fill("T", 20, first=200)
        assert numbers(await take(consumer, 20)) == list(range(200, 220))
    assert found_count(rig, 1) > 0
    assert found_count(rig, 0) == 0


async def test_slave_that_is_too_far_behind_is_passed_over(rig: Rig) -> None:
    await rig.fill("T", 40)
    await rig.wait_for_slave("broker-a")
    replica = broker(rig, 1)._replica
    assert replica is not None
    replica.slave.set_master(None)
    await rig.fill("T", 40, first=40)
    async with rig.consumer(read_from=ReadFrom.PREFER_SLAVE, read_lag_count_max=5) as consumer:
        assert numbers(await take(consumer, 80)) == list(range(80))
    assert found_count(rig, 1) > 0
    assert found_count(rig, 0) > 0


async def test_slave_goes_on_while_the_master_is_away(rig: Rig) -> None:
    await rig.fill("T", 40)
    await rig.wait_for_slave("broker-a")
    async with rig.consumer(read_from=ReadFrom.PREFER_SLAVE) as consumer:
        await until(lambda: found_count(rig, 1) > 0, "reads at the slave")
        await rig.stop_broker("broker-a", 0)
        assert numbers(await take(consumer, 40)) == list(range(40))


async def test_master_alone_is_read_when_told_so(rig: Rig) -> None:
    await rig.fill("T", 40)
    async with rig.consumer(read_from=ReadFrom.MASTER) as consumer:
        assert numbers(await take(consumer, 40)) == list(range(40))
    assert found_count(rig, 1) == 0


async def test_messages_missing_on_the_slave_are_read_from_the_master(tmp_path: Path) -> None:
    """The slave's copy begins later, because it was refilled, or deleted messages that its master keeps."""
    async with running_cluster(tmp_path, with_slave=True, queue_count=1) as rig:
        await rig.wait_for_slave("broker-a", "T")
        await rig.fill("T", 40)
        await rig.wait_for_slave("broker-a")
        store = broker(rig, 1).store
        assert store is not None
        store.queues.table["T", 0].min_offset = 20
        async with rig.consumer(read_from=ReadFrom.PREFER_SLAVE) as consumer:
            assert numbers(await take(consumer, 40)) == list(range(40))
