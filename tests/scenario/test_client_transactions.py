"""Transactions, requests, SQL92 subscriptions and timed messages with TandemMQ's client and a real broker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from client_rig import FAST, Rig, running_cluster, running_rig, take

from tandemmq.api import broker_send
from tandemmq.client import (
    BlockingTransactionProducer,
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
    TransactionState,
)
from tandemmq.client.instance import ClientInstance
from tandemmq.errors import BadRequest, ClientError, MessageIllegal, RequestRejected, RequestTimeout
from waits import PATIENCE_S

CHECKED_FAST = {"transaction_timeout_ms": 50, "transaction_check_period_ms": 100}
CONSUMING = ConsumerOptions(client=FAST, start_from=StartFrom.FIRST)
PRODUCING = ProducerOptions(client=FAST)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    settings = {**CHECKED_FAST, "property_filter_enable": True, "recall_enable": True}
    async with running_rig(tmp_path) as rig:
        await rig.start_broker(**settings)
        yield rig


async def received(rig: Rig, topic: str, count: int, **subscription: str) -> list[bytes]:
    async with Consumer("readers", rig.namesrv, options=CONSUMING) as consumer:
        consumer.subscribe(topic, **subscription)
        return [message.body for message in await take(consumer, count)]


async def never(_message: ReceivedMessage) -> TransactionState:
    raise AssertionError("nothing to ask about")


async def test_only_committed_messages_arrive(rig: Rig) -> None:
    states = {b"yes": TransactionState.COMMIT, b"no": TransactionState.ROLLBACK}

    async def work(message: Message) -> TransactionState:
        return states[message.body]

    # The broker may check while the decision is on its way.
    async with TransactionProducer(
        "pays", rig.namesrv, check=lambda message: states[message.body], options=PRODUCING
    ) as producer:
        for body in (b"no", b"yes"):
            result = await producer.send(Message(topic="Pay", body=body), work)
            assert result.state is states[body]
            assert result.sent.is_ok
    assert await received(rig, "Pay", 1) == [b"yes"]


async def test_broker_asks_about_what_was_left_open(rig: Rig) -> None:
    asked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message)
        if len(asked) == 1:
            raise OSError("the database is away")
        return TransactionState.COMMIT

    async with TransactionProducer("pays", rig.namesrv, check=check, options=PRODUCING) as producer:
        await producer.producer.queues("Pay")
        await producer.producer.instance.beat()
        with pytest.raises(RuntimeError, match="half way"):
            await producer.send(Message(topic="Pay", body=b"later", keys="k1"), fail_half_way)
        assert await received(rig, "Pay", 1) == [b"later"]
    assert len(asked) >= 2
    assert (asked[0].topic, asked[0].keys, asked[0].body) == ("Pay", ("k1",), b"later")


def fail_half_way(_message: Message) -> TransactionState:
    raise RuntimeError("half way")


async def test_transactional_message_cannot_be_delayed_or_have_a_priority(rig: Rig) -> None:
    async with TransactionProducer("pays", rig.namesrv, check=never, options=PRODUCING) as producer:
        with pytest.raises(MessageIllegal, match="cannot be delayed"):
            await producer.send_half(Message(topic="Pay", body=b"x", delay_level=1))
        with pytest.raises(MessageIllegal, match="cannot have a priority"):
            await producer.send_half(Message(topic="Pay", body=b"x", priority=0))
        again = TransactionProducer("pays", check=never, instance=producer.producer.instance)
        with pytest.raises(ClientError, match="already has"):
            await again.start()


async def test_blocking_producer_asks_in_a_thread_of_its_own(rig: Rig) -> None:
    def run() -> None:
        with BlockingTransactionProducer(
            "pays", rig.namesrv, check=lambda _: TransactionState.COMMIT, options=PRODUCING
        ) as producer:
            result = producer.send(Message(topic="Pay", body=b"now"), lambda _: TransactionState.COMMIT)
            assert result.state is TransactionState.COMMIT
            producer.send(Message(topic="Pay", body=b"asked"), lambda _: TransactionState.UNKNOWN)
            done.wait(2 * PATIENCE_S)

    done = threading.Event()
    working = asyncio.get_running_loop().run_in_executor(None, run)
    try:
        assert sorted(await received(rig, "Pay", 2)) == [b"asked", b"now"]
    finally:
        done.set()
        await working


async def test_request_gets_its_reply(rig: Rig) -> None:
    async with (
        Producer("askers", rig.namesrv, options=PRODUCING) as producer,
        Consumer("answerers", rig.namesrv, options=CONSUMING) as consumer,
    ):
        consumer.subscribe("Ask")

        async def answer() -> None:
            async for message in consumer:
                await consumer.reply(message, b"re: " + message.body, properties={"by": "us"})

        answering = asyncio.ensure_future(answer())
        try:
            replies = await asyncio.gather(
                *(producer.request(Message(topic="Ask", body=b"%d" % n), PATIENCE_S) for n in range(20))
            )
        finally:
            answering.cancel()
        assert [reply.body for reply in replies] == [b"re: %d" % n for n in range(20)]
        assert replies[0].properties["by"] == "us"


async def test_request_without_reply_ends_in_time(rig: Rig) -> None:
    async with Producer("askers", rig.namesrv, options=PRODUCING) as producer:
        with pytest.raises(RequestTimeout, match="no reply"):
            await producer.request(Message(topic="Ask", body=b"hello?"), 1.5)
        async with Consumer("late", rig.namesrv, options=CONSUMING) as consumer:
            consumer.subscribe("Ask")
            [message] = await take(consumer, 1)
            await consumer.reply(message, b"too late")  # accepted, although the requester no longer waits
        await producer.send(Message(topic="Plain", body=b"no request"))
        async with Consumer("plain", rig.namesrv, options=CONSUMING) as consumer:
            consumer.subscribe("Plain")
            [message] = await take(consumer, 1)
            with pytest.raises(MessageIllegal, match="requests no reply"):
                await consumer.reply(message, b"x")


@pytest.mark.parametrize("late_s", [0.0, 0.2])
async def test_reply_to_a_client_that_left_is_refused_at_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """A busy loop may begin the first attempt late."""
    call_master, send_reply, addresses = ClientInstance.call_master, broker_send.send_reply, []

    async def call_late(
        instance: ClientInstance, topic: str, name: str, ask: Any, *, timeout_s: float
    ) -> Any:
        def ask_late(address: str, remaining_s: float) -> Any:
            return ask(address, remaining_s - late_s)

        return await call_master(instance, topic, name, ask_late, timeout_s=timeout_s)

    async def send_counted(remoting: Any, address: str, *args: Any, **kwargs: Any) -> Any:
        addresses.append(address)
        return await send_reply(remoting, address, *args, **kwargs)

    monkeypatch.setattr(ClientInstance, "call_master", call_late)
    monkeypatch.setattr(broker_send, "send_reply", send_counted)
    async with Producer("askers", rig.namesrv, options=PRODUCING) as producer:
        with pytest.raises(RequestTimeout):
            await producer.request(Message(topic="Ask", body=b"hello?"), 1.0)
    async with Consumer("late", rig.namesrv, options=CONSUMING) as consumer:
        consumer.subscribe("Ask")
        [message] = await take(consumer, 1)
        with pytest.raises(RequestRejected, match="not connected"):
            await consumer.reply(message, b"too late")
    assert len(addresses) == 1


async def test_sql_subscription_brings_what_it_takes(rig: Rig) -> None:
    async with Producer("p", rig.namesrv, options=PRODUCING) as producer:
        for number in range(40):
            properties = {"price": str(number), "region": "EU" if number % 2 else "US"}
            await producer.send(Message(topic="Sql", body=b"%d" % number, properties=properties))
    bodies = await received(rig, "Sql", 5, sql="price >= 30 AND region = 'EU'")
    assert sorted(bodies) == [b"31", b"33", b"35", b"37", b"39"]


async def test_sql_that_cannot_work_is_refused_before_it_is_used(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig:
        consumer = Consumer("c", rig.namesrv, options=CONSUMING)
        with pytest.raises(BadRequest, match="ends too early"):
            consumer.subscribe("Sql", sql="price >")
        with pytest.raises(BadRequest, match="not both"):
            consumer.subscribe("Sql", "TagA", sql="price > 1")
        async with Producer("p", rig.namesrv, options=PRODUCING) as producer:
            await producer.send(Message(topic="Sql", body=b"x"))
        await rig.wait_for_route("Sql")
        consumer.subscribe("Sql", sql="price > 1")
        with pytest.raises(RequestRejected, match="enablePropertyFilter"):
            await consumer.start()
        left = [task.get_name() for task in asyncio.all_tasks()]
        assert not [name for name in left if name.startswith(("client.", "consumer-c."))]


async def test_timed_message_comes_in_time_or_not_at_all(rig: Rig) -> None:
    async with Producer("p", rig.namesrv, options=PRODUCING) as producer:
        with pytest.raises(MessageIllegal, match="only one"):
            await producer.send(Message(topic="Timed", body=b"x", delay_ms=5, delay_level=1))
        recalled = await producer.send(Message(topic="Timed", body=b"recalled", delay_ms=3_000))
        await producer.send(Message(topic="Timed", body=b"kept", delay_ms=3_500))
        assert recalled.recall_handle is not None
        assert await producer.recall("Timed", recalled.recall_handle) == recalled.unique_key
        with pytest.raises(ClientError, match="is not a recall handle"):
            await producer.recall("Timed", "nonsense")
        at_ms = int(time.time() * 1000) + 5_000
        await producer.send(Message(topic="Timed", body=b"at", deliver_at_ms=at_ms))
    assert await received(rig, "Timed", 2) == [b"kept", b"at"]
