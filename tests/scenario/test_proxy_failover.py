"""Consumers behind two proxies while the master of the broker is killed and another one is elected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from proxy_rig import ConsumerProxy, consumer_proxy, handle_of

from tandemmq.api import broker_admin
from tandemmq.api.controller import hand_over_group, read_sync_states
from tandemmq.client import Message
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.proxy.renewal import RenewalOptions
from tandemmq.proxy.statuses import Code
from tandemmq.runtime.machine import LoopClock
from tandemmq.testing import Cluster
from tandemmq.testing.cluster import BROKER_NAME
from waits import until

OK = int(Code.OK)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(elected=True) as cluster:
        await cluster.create_topic("T", queue_count=1)
        yield cluster


async def fill(cluster: Cluster, count: int) -> None:
    async with cluster.producer() as producer:
        for number in range(count):
            await producer.send(Message("T", b"%d" % number))


async def ack_until_answered(proxies: list[ConsumerProxy], message: Any) -> int:
    """Acknowledges as clients do: at any proxy, until the answer is OK or the handle is invalid."""
    for turn in range(600):
        [code] = await proxies[turn % len(proxies)].ack("T", message)
        if code in (OK, Code.INVALID_RECEIPT_HANDLE):
            return code
        await asyncio.sleep(0.05)
    raise AssertionError(f"the ack of {handle_of(message)} was never answered")


@pytest.mark.parametrize("is_fifo", [False, True])
async def test_a_kill_of_the_master_loses_nothing_and_repeats_no_acknowledged_message(
    cluster: Cluster, is_fifo: bool
) -> None:
    count = 40
    async with (
        consumer_proxy(cluster.name_servers) as one,
        consumer_proxy(cluster.name_servers) as two,
    ):
        config = SubscriptionGroupConfig(name="G", is_orderly=is_fifo)
        await broker_admin.create_group(one.remoting, cluster.master_address, config)
        await fill(cluster, count)
        acked: set[bytes] = set()
        given_up: set[bytes] = set()  # their handles were invalid: they come again, or were acknowledged
        order: list[bytes] = []
        killing: asyncio.Task[None] | None = None

        async def consume(own: ConsumerProxy, other: ConsumerProxy, name: str) -> None:
            nonlocal killing
            turn = 0
            while len(acked | given_up) < count:
                turn += 1
                try:
                    messages = await own.receive(
                        "T",
                        batch_size=2,
                        attempt_id=f"{name}-{turn}",
                        invisible_duration={"seconds": 2},
                        long_polling_timeout={"seconds": 1},
                    )
                except TandemError:  # clients repeat the receive
                    await asyncio.sleep(0.05)
                    continue
                for message in messages:
                    assert message.body not in acked, "an acknowledged message came again"
                    if message.body not in order:
                        order.append(message.body)
                    if len(acked) == count // 3 and killing is None:
                        killing = asyncio.create_task(cluster.lose_master())
                    code = await ack_until_answered([other, own], message)
                    (acked if code == OK else given_up).add(message.body)

        await asyncio.wait_for(asyncio.gather(consume(one, two, "one"), consume(two, one, "two")), 120)
        assert killing is not None
        await killing
        while rest := await one.receive("T", long_polling_timeout={"seconds": 4}):
            for message in rest:
                assert message.body in given_up - acked
                assert await ack_until_answered([two], message) == OK
                acked.add(message.body)
        expected = [b"%d" % number for number in range(count)]
        assert order == expected if is_fifo else sorted(order) == sorted(expected)


async def test_a_renewed_handle_is_valid_at_the_next_master_and_at_another_proxy(cluster: Cluster) -> None:
    await fill(cluster, 3)
    quick = RenewalOptions(invisible_ms=20_000, ahead_ms=19_000)
    async with (
        consumer_proxy(cluster.name_servers, renewal=quick) as one,
        consumer_proxy(cluster.name_servers, renewal=quick) as two,
    ):
        first, second, third = await one.receive_all("T", 3, auto_renew=True)
        start_s = one.clock.monotonic()
        await until(lambda: one.clock.monotonic() > start_s + 1.5, "a renewal has passed")
        await cluster.lose_master()
        assert await ack_until_answered([two], first) == OK
        assert await ack_until_answered([one], second) == OK
        assert await two.receive("T", long_polling_timeout={"seconds": 1}) == [], "the third is still held"
        assert await ack_until_answered([two], third) == OK


async def test_a_master_that_leads_again_does_not_hold_queues_for_its_earlier_pops(cluster: Cluster) -> None:
    """The client of such a pop gave its messages up, but its proxy still renews it."""
    quick = RenewalOptions(invisible_ms=20_000, ahead_ms=19_500)
    await fill(cluster, 4)
    first = cluster.master_address
    second = cluster.slave_address
    async with (
        consumer_proxy(cluster.name_servers, renewal=quick) as one,
        consumer_proxy(cluster.name_servers) as two,
    ):
        config = SubscriptionGroupConfig(name="G", is_orderly=True)
        await broker_admin.create_group(one.remoting, first, config)
        held = await one.receive_all("T", 2, batch_size=2, auto_renew=True)
        await hand_over(cluster, one, second)
        again = await receive_in_time(two, batch_size=2)
        assert [message.body for message in again] == [message.body for message in held]
        for message in again:
            assert await ack_until_answered([two], message) == OK
        await hand_over(cluster, one, first)
        assert [message.body for message in await receive_in_time(two)] == [b"2", b"3"]


async def hand_over(cluster: Cluster, proxy: ConsumerProxy, address: str) -> None:
    """Makes the broker at this address the master, once it has everything."""
    controller = cluster.controller_address

    async def leads() -> bool:
        group = (await read_sync_states(proxy.remoting, controller, [BROKER_NAME]))[BROKER_NAME]
        ids = {one.address: one.broker_id for one in group.in_sync}
        if address not in ids:
            return False
        if group.master_address != address:
            await hand_over_group(proxy.remoting, controller, BROKER_NAME, ids[address], clock=LoopClock())
        return group.master_address == address

    await until(leads, f"{address} leads", not_yet=(TandemError,))


async def receive_in_time(proxy: ConsumerProxy, **changes: Any) -> list[Any]:
    """Returns the first messages, long before the invisible time of a held pop has passed."""
    found: list[Any] = []

    async def is_answered() -> bool:
        found.extend(await proxy.receive("T", long_polling_timeout={"seconds": 1}, **changes))
        return bool(found)

    await until(is_answered, "messages are received", 12, not_yet=(TandemError,))
    return found
