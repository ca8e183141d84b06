"""The producer side of the gRPC proxy at a real broker: its handlers are called directly, without gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import pytest

from tandemmq.client import Admin, Message, ProducerOptions
from tandemmq.client.route_cache import NameServers
from tandemmq.errors import TandemError
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.proxy.brokers import Brokers
from tandemmq.proxy.options import ProxyOptions
from tandemmq.proxy.outgoing import render_message
from tandemmq.proxy.rpc import Caller
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.proxy.sending import ProduceHandlers
from tandemmq.proxy.sent_messages import SentMessageHandlers
from tandemmq.proxy.statuses import Code
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, SystemRandom, TcpNetwork
from tandemmq.runtime.tasks import TaskScope
from tandemmq.testing import Cluster
from unit.proxy.cores import make_core
from waits import until

SendMessageRequest = message_class("SendMessageRequest")
EndTransaction = message_class("EndTransactionRequest")
Recall = message_class("RecallMessageRequest")
ClientMessage = message_class("Message")
CALLER = Caller("client-1", "JAVA", "5.0.7", "", ("127.0.0.1", 40_000), inf)
TOPICS = {
    "Normal": "NORMAL",
    "Fifo": "FIFO",
    "Delay": "DELAY",
    "Half": "TRANSACTION",
    "Levels": "PRIORITY",
}


class ProxyHandlers:
    """The handlers of one proxy: nothing is shared with those of another one."""

    def __init__(self, name_servers: str, options: ProxyOptions) -> None:
        self.clock, self.tasks = LoopClock(), TaskScope("proxy")
        self.remoting = RemotingClient(network=TcpNetwork(), clock=self.clock)
        chance = SystemRandom()
        brokers = Brokers(
            self.remoting,
            NameServers(self.remoting, [name_servers]),
            clock=self.clock,
            chance=chance,
            tasks=self.tasks,
        )
        core = make_core(options=options, clock=self.clock, chance=chance, tasks=self.tasks, brokers=brokers)
        self.sending = ProduceHandlers(core)
        self.sent = SentMessageHandlers(core)

    async def send(self, *messages: dict[str, Any]) -> Any:
        return await self.sending.handle_send(CALLER, SendMessageRequest(messages=messages))

    async def end(self, sent: Any, resolution: str) -> Any:
        request = EndTransaction(
            topic={"name": "Half"},
            message_id=sent.entries[0].message_id,
            transaction_id=sent.entries[0].transaction_id,
            resolution=enum_number("TransactionResolution", resolution),
        )
        return await self.sent.handle_end_transaction(CALLER, request)

    async def close(self) -> None:
        await self.tasks.close()
        await self.remoting.close()


@asynccontextmanager
async def running_proxy(cluster: Cluster, **options: Any) -> AsyncIterator[ProxyHandlers]:
    proxy = ProxyHandlers(cluster.name_servers, ProxyOptions(**options))
    try:
        yield proxy
    finally:
        await proxy.close()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(settings={"recallMessageEnable": "true"}) as built:
        async with Admin(built.name_servers) as admin:
            for topic, kind in TOPICS.items():
                await admin.create_topic(topic, attributes={"message.type": kind})
        yield built


def message(topic: str, body: bytes, message_id: str, **system: Any) -> dict[str, Any]:
    user, kind = system.pop("user", {}), system.pop("kind", "NORMAL")
    return {
        "topic": {"name": topic},
        "body": body,
        "user_properties": user,
        "system_properties": {
            "message_id": message_id,
            "message_type": enum_number("MessageType", kind),
            **system,
        },
    }


async def received(cluster: Cluster, topic: str, count: int) -> Sequence[ReceivedMessage]:
    """Returns the messages of a topic once `count` have arrived."""
    found: list[ReceivedMessage] = []
    async with cluster.consumer(topic) as consumer:

        async def has_all() -> bool:
            found.extend(await consumer.poll(timeout_s=0.1))
            return len(found) >= count

        await until(has_all, f"{count} messages of {topic}")
    return found


async def test_message_arrives_with_its_fields(cluster: Cluster) -> None:
    async with running_proxy(cluster) as proxy:
        answer = await proxy.send(
            message("Normal", b"hello", "01AB", tag="t", keys=["k1", "k2"], user={"colour": "red"})
        )
        assert answer.status.code == Code.OK
        [found] = await received(cluster, "Normal", 1)
        assert (found.body, found.message_id, found.tags, found.keys) == (b"hello", "01AB", "t", ("k1", "k2"))
        assert found.properties["colour"] == "red"
        assert found.queue_offset == answer.entries[0].offset
        rendered = ClientMessage(**render_message(found.record, topic="Normal"))
        assert dict(rendered.user_properties) == {"colour": "red"}
        assert rendered.system_properties.born_host == "127.0.0.1"


async def test_messages_of_a_group_keep_their_order(cluster: Cluster) -> None:
    async with running_proxy(cluster) as one, running_proxy(cluster) as other:
        for number in range(10):
            proxy = one if number % 2 else other
            await proxy.send(message("Fifo", b"%d" % number, f"id{number}", message_group="group0"))
        found = await received(cluster, "Fifo", 10)
    assert len({one.queue_id for one in found}) == 1
    assert [one.body for one in found] == [b"%d" % number for number in range(10)]


async def test_batch_has_an_entry_per_message_with_its_offset(cluster: Cluster) -> None:
    async with running_proxy(cluster) as proxy:
        answer = await proxy.send(*(message("Normal", b"%d" % i, f"id{i}") for i in range(5)))
        found = await received(cluster, "Normal", 5)
    by_id = {one.message_id: one.queue_offset for one in found}
    assert by_id == {entry.message_id: entry.offset for entry in answer.entries}
    assert [entry.message_id for entry in answer.entries] == [f"id{i}" for i in range(5)]


async def test_delayed_message_can_be_recalled_at_another_proxy(cluster: Cluster) -> None:
    async with running_proxy(cluster) as one, running_proxy(cluster) as other:
        due = {"seconds": one.clock.now_ms() // 1000 + 4}
        lost = await one.send(message("Delay", b"recalled", "id0", delivery_timestamp=due))
        await one.send(message("Delay", b"kept", "id1", delivery_timestamp=due))
        request = Recall(topic={"name": "Delay"}, recall_handle=lost.entries[0].recall_handle)
        recalled = await other.sent.handle_recall(CALLER, request)
        assert (recalled.status.code, recalled.message_id) == (Code.OK, "id0")
        [found] = await received(cluster, "Delay", 1)
    assert found.body == b"kept"
    assert found.stored_at_ms >= due["seconds"] * 1000 - 1000


async def test_brokers_without_timers_deliver_at_the_end_of_a_level() -> None:
    async with Cluster(settings={"timerWheelEnable": "false"}) as cluster:
        async with Admin(cluster.name_servers) as admin:
            await admin.create_topic("Delay", attributes={"message.type": "DELAY"})
        async with running_proxy(cluster) as proxy:
            due = {"seconds": proxy.clock.now_ms() // 1000 + 1}
            delayed = message("Delay", b"late", "01AB", delivery_timestamp=due)
            with pytest.raises(TandemError, match="timerWheelEnable=false"):
                await proxy.send(delayed)
        async with running_proxy(cluster, uses_delay_levels=True) as proxy:
            assert (await proxy.send(delayed)).status.code == Code.OK
            [found] = await received(cluster, "Delay", 1)
            assert found.body == b"late"


async def test_message_with_a_priority_is_in_the_queue_of_its_level(cluster: Cluster) -> None:
    async with running_proxy(cluster) as proxy:
        for priority in (0, 2, 99):
            sent = await proxy.send(message("Levels", b"x", f"id{priority}", priority=priority))
            assert sent.status.code == Code.OK
        found = await received(cluster, "Levels", 3)
    assert {one.message_id: one.queue_id for one in found} == {"id0": 0, "id2": 2, "id99": 3}
    [highest] = [one.record for one in found if one.message_id == "id99"]
    rendered = ClientMessage(**render_message(highest, topic="Levels")).system_properties
    assert rendered.priority == 99
    assert rendered.message_type == enum_number("MessageType", "PRIORITY")


async def test_transaction_ends_at_another_proxy(cluster: Cluster) -> None:
    async with running_proxy(cluster) as one, running_proxy(cluster) as other:
        kept = await one.send(message("Half", b"kept", "id0", kind="TRANSACTION"))
        lost = await one.send(message("Half", b"lost", "id1", kind="TRANSACTION"))
        assert (await other.end(lost, "ROLLBACK")).status.code == Code.OK
        assert (await other.end(kept, "COMMIT")).status.code == Code.OK
        await one.send(message("Normal", b"last", "id2"))
        found = await received(cluster, "Half", 1)
    assert [one.body for one in found] == [b"kept"]


async def test_body_compressed_by_a_remoting_producer_arrives_plain(cluster: Cluster) -> None:
    body = b"hello" * 2_000
    async with cluster.producer(options=ProducerOptions(compress_from_bytes=1_000)) as producer:
        await producer.send(Message(topic="Normal", body=body))
    [found] = await received(cluster, "Normal", 1)
    assert len(found.record.body) < len(body)
    assert ClientMessage(**render_message(found.record, topic="Normal")).body == body


async def test_send_survives_a_restart_of_the_broker(cluster: Cluster) -> None:
    async with running_proxy(cluster) as proxy:
        await proxy.send(message("Normal", b"0", "id0"))
        await cluster.restart_master()
        answer = await proxy.send(message("Normal", b"1", "id1"))
        assert answer.status.code == Code.OK
    assert len(await received(cluster, "Normal", 2)) == 2


async def send_until_stored(proxy: ProxyHandlers, sent: dict[str, Any]) -> None:
    """Sends as clients do: again with the same id after an error."""

    async def is_stored() -> bool:
        return (await proxy.send(sent)).status.code == Code.OK

    await until(is_stored, "the message is stored", not_yet=(TandemError,))


@pytest.mark.parametrize("system", [{}, {"message_group": "group0"}], ids=["normal", "fifo"])
async def test_sends_follow_an_elected_master(system: dict[str, str]) -> None:
    count = 40
    async with Cluster(elected=True) as cluster:
        async with Admin(cluster.name_servers) as admin:
            await admin.create_topic("T", attributes={"message.type": "FIFO" if system else "NORMAL"})
        async with running_proxy(cluster) as proxy:
            stored: list[int] = []

            async def send_all() -> None:
                for number in range(count):
                    await send_until_stored(proxy, message("T", b"x", f"id{number}", **system))
                    stored.append(number)

            sending = asyncio.ensure_future(send_all())
            await until(lambda: len(stored) > 10, "the first sends")
            await cluster.lose_master()
            await sending
        found = await received(cluster, "T", count)
    ids = list(dict.fromkeys(one.message_id for one in found))
    assert len(ids) == count
    if system:
        assert len({one.queue_id for one in found}) == 1
        assert ids == [f"id{number}" for number in range(count)]
