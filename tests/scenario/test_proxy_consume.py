"""Consumers of the gRPC protocol before a real cluster: retries, dead letters, order, and several proxies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from proxy_rig import ConsumerProxy, consumer_proxy

from tandemmq.api import broker_admin
from tandemmq.client import Message
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.proxy.renewal import RenewalOptions
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code
from tandemmq.testing import Cluster
from waits import until

ForwardRequest = message_class("ForwardMessageToDeadLetterQueueRequest")

OK = int(Code.OK)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster() as cluster:
        await cluster.create_topic("T", queue_count=1)
        yield cluster


async def fill(cluster: Cluster, count: int) -> None:
    async with cluster.producer() as producer:
        for number in range(count):
            await producer.send(Message("T", b"%d" % number))


async def make_group(cluster: Cluster, proxy: ConsumerProxy, **settings: object) -> None:
    config = SubscriptionGroupConfig(name=proxy.group, **settings)  # type: ignore[arg-type]  # real fields
    await broker_admin.create_group(proxy.remoting, cluster.master_address, config)


def bodies(messages: list) -> list[bytes]:  # type: ignore[type-arg]
    return [message.body for message in messages]


async def test_a_message_comes_again_after_its_invisible_time_and_once_acknowledged_never(
    cluster: Cluster,
) -> None:
    await fill(cluster, 2)
    async with consumer_proxy(cluster.name_servers) as proxy:
        first, second = await proxy.receive_all("T", 2)
        assert await proxy.ack("T", first) == [OK]
        assert await proxy.change("T", second, 100) == OK
        [again] = await proxy.receive_all("T", 1)
        assert again.body == second.body
        assert again.system_properties.delivery_attempt == 2
        assert again.topic.name == "T"
        assert await proxy.ack("T", second) == [Code.INVALID_RECEIPT_HANDLE]
        assert await proxy.ack("T", again) == [OK]
        assert await proxy.receive("T", long_polling_timeout={}) == []


async def test_handles_are_valid_at_a_second_proxy_after_the_first_is_gone(cluster: Cluster) -> None:
    """The messages are renewed by the first proxy, so their first invisible time is over."""
    await fill(cluster, 3)
    quick = RenewalOptions(invisible_ms=1_500, ahead_ms=1_000)
    async with consumer_proxy(cluster.name_servers, renewal=quick) as proxy:
        first, second, third = await proxy.receive_all("T", 3, auto_renew=True)
        start_s = proxy.clock.monotonic()
        await until(lambda: proxy.clock.monotonic() > start_s + 3, "two renewals have passed")
        assert await proxy.ack("T", first) == [OK]
    async with consumer_proxy(cluster.name_servers, renewal=quick) as other:
        assert await other.ack("T", second) == [OK]
        [again] = await other.receive_all("T", 1, auto_renew=True)
        assert again.body == third.body, "nobody renews it, so it appears again"
        assert await other.ack("T", third) == [Code.INVALID_RECEIPT_HANDLE]
        assert await other.ack("T", again) == [OK]


async def test_dead_letters_are_made_by_the_client_and_for_one_that_tries_for_ever(cluster: Cluster) -> None:
    await fill(cluster, 2)
    async with consumer_proxy(cluster.name_servers) as proxy:
        await make_group(cluster, proxy, retry_count_max=1)
        forwarded, failing = await proxy.receive_all("T", 2)
        request = ForwardRequest(
            group={"name": "G"},
            topic={"name": "T"},
            receipt_handle=forwarded.system_properties.receipt_handle,
            message_id=forwarded.system_properties.message_id,
        )
        assert (await proxy.receipts.handle_forward(proxy.caller(), request)).status.code == OK
        assert await proxy.change("T", failing, 100) == OK
        [again] = await proxy.receive_all("T", 1)
        assert await proxy.change("T", again, 100) == OK
        reader = ConsumerProxy(cluster.name_servers, "G-dead", RenewalOptions(), 200)
        try:
            await until(lambda: reader.brokers.topics.refresh("%DLQ%G"), "there is a topic of dead letters")
            await make_group(cluster, reader)
            dead: list = []  # type: ignore[type-arg]
            while len(dead) < 2:
                dead += await reader.receive("%DLQ%G")
            assert sorted(bodies(dead)) == [b"0", b"1"]
        finally:
            await reader.close()
        assert await proxy.receive("T", long_polling_timeout={}) == []


async def test_a_receive_cancelled_while_it_is_held_loses_nothing(cluster: Cluster) -> None:
    async with consumer_proxy(cluster.name_servers) as proxy:
        lost: list = []  # type: ignore[type-arg]
        held = proxy.ask_receive("T", lost)
        await until(lambda: proxy.receiving.held_count == 1, "the receive is held")
        held.cancel()
        await until(lambda: proxy.receiving.held_count == 0, "the broker no longer holds the pop")
        await fill(cluster, 1)
        [message] = await proxy.receive_all("T", 1)
        assert (message.body, message.system_properties.delivery_attempt) == (b"0", 1)
        assert lost == []


async def test_a_fifo_group_keeps_the_order_across_proxies_and_cancelled_receives(cluster: Cluster) -> None:
    """Two proxies share a fifo group; some receives are cancelled, each after more turns of the loop."""
    count = 20
    async with (
        consumer_proxy(cluster.name_servers) as one,
        consumer_proxy(cluster.name_servers) as two,
    ):
        await make_group(cluster, one, is_orderly=True)
        await fill(cluster, count)
        seen: list[bytes] = []
        cancelled_count = 0
        for turn in range(10 * count):
            proxy, other = (one, two) if turn % 2 else (two, one)
            messages: list = []  # type: ignore[type-arg]
            call = proxy.ask_receive("T", messages, batch_size=2, attempt_id=f"try-{turn}")
            for _ in range(turn if turn % 2 else 0):
                await asyncio.sleep(0)
            if turn % 2:
                call.cancel()
            await asyncio.wait([call])
            cancelled_count += call.cancelled()
            for message in messages:  # also those that came before the cancellation
                assert await other.ack("T", message) == [OK]
                seen.append(message.body)
            if len(seen) == count:
                break
        assert seen == [b"%d" % number for number in range(count)]
        assert cancelled_count


async def test_a_repeated_fifo_receive_gets_its_messages_at_once_at_another_proxy(cluster: Cluster) -> None:
    async with (
        consumer_proxy(cluster.name_servers) as one,
        consumer_proxy(cluster.name_servers) as two,
    ):
        await make_group(cluster, one, is_orderly=True)
        await fill(cluster, 2)
        fifo = {"batch_size": 1, "auto_renew": True}
        [first] = await one.receive_all("T", 1, attempt_id="mine", **fifo)
        rivals = [one.ask_receive("T", [], attempt_id=f"rival-{number}", **fifo) for number in range(8)]
        await until(lambda: one.receiving.held_count == 8, "the rivals wait")
        [again] = await asyncio.wait_for(two.receive("T", attempt_id="mine", **fifo), 20)
        assert again.body == first.body
        assert await one.ack("T", first) == [Code.INVALID_RECEIPT_HANDLE]
        for rival in rivals:
            rival.cancel()
        assert await two.ack("T", again) == [OK]
