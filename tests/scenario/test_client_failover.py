"""The client while brokers die and come back: reads continue at the slave, sends at another master."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from client_rig import FAST, numbers, running_cluster, running_rig, take

from tandemmq.api import nameserver
from tandemmq.client import (
    Admin,
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.errors import BrokerUnreachable, NoRoute, TopicNotFound
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.testing import Cluster
from waits import PATIENCE_S, until

ROUTE_PERIOD_S = 30.0


async def test_reading_goes_on_at_the_slave_and_back_at_the_master(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, with_slave=True, queue_count=2) as rig:
        await rig.fill("T", 50)
        async with rig.consumer() as consumer:
            seen = numbers(await take(consumer, 20))
            await rig.wait_for_slave("broker-a", "T", "%RETRY%CG")
            await rig.stop_broker()
            seen += numbers(await take(consumer, 30))
            assert sorted(seen) == list(range(50))
            with pytest.raises((NoRoute, BrokerUnreachable)):
                async with Producer("P", rig.namesrv) as producer:
                    await producer.send(Message(topic="T", body=b"x"), timeout_s=1)
            await rig.start_broker()
            await rig.fill("T", 10, first=50)
            assert numbers(await take(consumer, 10)) == list(range(50, 60))


async def test_offsets_of_the_outage_reach_the_master_again(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, with_slave=True, queue_count=1) as rig:
        await rig.fill("T", 20)
        queue = MessageQueue("T", "broker-a", 0)
        async with rig.consumer(auto_ack=False) as consumer, Admin(rig.namesrv) as admin:
            messages = await take(consumer, 20)
            await rig.wait_for_slave("broker-a", "T", "%RETRY%CG")
            await rig.stop_broker()
            consumer.ack(*messages)
            await until(consumer.commit, "a commit at the slave")
            await rig.start_broker()

            async def is_at_master() -> bool:
                return (await admin.committed_offsets("CG", "T")).get(queue) == 20

            not_yet = (BrokerUnreachable, NoRoute)
            await until(is_at_master, "the master knows the offset", not_yet=not_yet)


async def test_sends_move_to_the_other_master_without_loss(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        await rig.start_broker("broker-a")
        await rig.start_broker("broker-b")
        async with Admin(rig.namesrv) as admin:
            await admin.create_topic("T", queue_count=2)
        options = ProducerOptions(client=FAST, batch_linger_ms=0)
        async with Producer("P", rig.namesrv, options=options) as producer:
            results = []
            for number in range(600):
                if number == 300:
                    await rig.stop_broker("broker-a")
                results.append(await producer.send(Message(topic="T", body=b"%d" % number)))
        assert {result.queue.broker_name for result in results[:300]} == {"broker-a", "broker-b"}
        assert {result.queue.broker_name for result in results[300:]} == {"broker-b"}
        await rig.start_broker("broker-a")
        async with rig.consumer() as consumer:
            messages = await take(consumer, 600)
            assert set(numbers(messages)) == set(range(600))


async def test_many_sends_in_flight_survive_a_dying_broker(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        await rig.start_broker("broker-a")
        await rig.start_broker("broker-b")
        async with Admin(rig.namesrv) as admin:
            await admin.create_topic("T", queue_count=2)
        async with Producer("P", rig.namesrv, options=ProducerOptions(client=FAST)) as producer:
            await producer.send(Message(topic="T", body=b"0"))
            futures = [await producer.start_send(Message(topic="T", body=b"%d" % i)) for i in range(1, 2000)]
            stopping = asyncio.ensure_future(rig.stop_broker("broker-a"))
            results = await asyncio.gather(*futures)
            await stopping
            assert all(result.is_ok for result in results)
        await rig.start_broker("broker-a")
        async with rig.consumer() as consumer:
            seen: set[int] = set()
            async with asyncio.timeout(PATIENCE_S):
                while len(seen) < 2000:
                    seen.update(int(message.body) for message in await consumer.poll())
            assert seen == set(range(2000))


async def test_a_name_server_that_forgets_does_not_stop_a_running_client(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path) as rig,
        Producer("P", rig.namesrv, options=ProducerOptions(client=FAST)) as producer,
        rig.consumer() as consumer,
        Admin(rig.namesrv) as admin,
    ):
        await producer.send(Message(topic="T", body=b"0"))
        await nameserver.delete_topic(admin._remoting, rig.namesrv, "T", "DefaultCluster")
        with pytest.raises(TopicNotFound):
            await admin.topic_route("T")
        assert await producer._instance.routes.refresh("T") is not None, "the last view is kept"
        assert (await producer.send(Message(topic="T", body=b"1"))).is_ok
        assert numbers(await take(consumer, 2)) == [0, 1]


async def test_a_broker_whose_connection_to_the_name_server_broke_is_back_in_the_routes(
    tmp_path: Path,
) -> None:
    """The name server forgets the broker at once, and the next registration period is 30 s away."""
    async with running_cluster(tmp_path) as rig, Admin(rig.namesrv) as admin:
        broker = await rig.start_broker("broker-b")
        link = broker._client.open_channel(rig.namesrv)
        assert link is not None
        link.abort("the network breaks it")

        def registers_anew() -> bool:
            return broker._client.open_channel(rig.namesrv) not in (None, link)

        async def is_back() -> bool:
            return set((await admin.cluster_info()).brokers) == {"broker-a", "broker-b"}

        await until(registers_anew, timeout_s=15)
        await until(is_back)


async def test_requests_replies_and_hand_backs_follow_an_elected_master() -> None:
    """With an application's route period of 30 s, only failures make a client refresh the route."""
    reading = ConsumerOptions(start_from=StartFrom.FIRST, auto_ack=False, suspend_s=1.0)
    async with Cluster(elected=True) as cluster:
        await cluster.create_topic("Prices", queue_count=1)
        async with (
            Producer("shop", cluster.name_servers) as shop,
            Consumer("prices", cluster.name_servers, options=reading) as service,
        ):
            service.subscribe("Prices")
            for number in range(3):
                asking = asyncio.ensure_future(
                    shop.request(Message(topic="Prices", body=b"%d" % number), timeout_s=PATIENCE_S)
                )
                request = await find(service, b"%d" % number)
                await cluster.lose_master()
                began_s = time.monotonic()
                await service.reply(request, b"price %d" % number, timeout_s=PATIENCE_S)
                assert (await asking).body == b"price %d" % number
                await service.retry_later(request)
                assert time.monotonic() - began_s < ROUTE_PERIOD_S / 2
                await cluster.start_slave()


async def test_a_name_server_of_nobody_leads_no_client_astray(tmp_path: Path) -> None:
    """Whichever of the two name servers a client asks first."""
    (tmp_path / "other").mkdir()
    async with running_cluster(tmp_path) as rig, running_rig(tmp_path / "other") as empty:
        for names in (f"{rig.namesrv};{empty.namesrv}", f"{empty.namesrv};{rig.namesrv}"):
            for _ in range(8):  # the first one is chosen at random
                async with Producer("P", names) as producer, Admin(names) as admin:
                    assert (await producer.send(Message(topic="T", body=b"1"))).is_ok
                    assert (await producer.send(Message(topic="Made", body=b"1"))).is_ok
                    assert "T" in await admin.topics()
                    assert (await admin.cluster_info()).brokers
                    assert (await admin.topic_route("T")).queues


async def find(consumer: Consumer, body: bytes) -> ReceivedMessage:
    """Returns the first message with this body; acknowledges others, which were sent back."""
    while True:
        (message,) = await take(consumer, 1)
        if message.body == body:
            return message
        consumer.ack(message)
