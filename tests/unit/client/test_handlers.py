"""Several handlers on one push consumer: each has its topic, its workers and its part of the inbox."""

from __future__ import annotations

import asyncio
import threading

import pytest
from client_fakes import running_cluster
from test_push_consumer import push_options

from tandemmq.client import BlockingPushConsumer, PushConsumer, ReceivedMessage
from tandemmq.client.consumer.handlers import SortingInbox
from tandemmq.client.consumer.inbox import Received
from tandemmq.errors import ClientError, ConfigError
from tandemmq.protocol.properties import encode_properties
from waits import PATIENCE_S, until


async def test_each_topic_has_its_handler_and_a_slow_one_delays_no_other() -> None:
    release = asyncio.Event()
    seen: dict[str, list[bytes]] = {"T": [], "U": [], "V": []}
    threads: set[str] = set()

    async with running_cluster(T=1, U=1, V=1) as cluster:

        async def handle_other(message: ReceivedMessage) -> None:
            seen[message.topic].append(message.body)

        consumer = PushConsumer("g", cluster.namesrv, handle_other, options=push_options())
        consumer.subscribe("V")

        @consumer.subscriber("T", worker_count=2)
        async def handle_slowly(message: ReceivedMessage) -> None:
            await release.wait()
            seen["T"].append(message.body)

        @consumer.subscriber("U", worker_count=1)
        def handle_in_thread(message: ReceivedMessage) -> None:
            threads.add(threading.current_thread().name)
            seen["U"].append(message.body)

        for topic in seen:
            for number in range(10):
                cluster[0].put(topic, 0, b"%d" % number)
        async with consumer:
            await until(lambda: len(seen["U"]) == len(seen["V"]) == 10)
            assert seen["T"] == []
            release.set()
            await until(lambda: len(seen["T"]) == 10)
            assert threads.isdisjoint({threading.main_thread().name})
        assert {cluster[0].offsets["g", topic, 0] for topic in seen} == {10}


async def test_a_handler_may_come_after_the_start() -> None:
    seen: list[bytes] = []
    async with running_cluster(T=1) as cluster, PushConsumer("g", cluster.namesrv) as consumer:

        @consumer.subscriber("T")
        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)

        await until(lambda: consumer.assigned)
        cluster[0].put("T", 0, b"0")
        await until(lambda: seen == [b"0"])


async def test_messages_without_a_handler_are_sent_back() -> None:
    """An earlier run of the group subscribed to topic U, and a retry of it is still to come."""
    seen: list[bytes] = []
    async with running_cluster(T=1, **{"%RETRY%g": 1}) as cluster:
        consumer = PushConsumer("g", cluster.namesrv, options=push_options())

        @consumer.subscriber("T")
        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)

        cluster[0].put("%RETRY%g", 0, b"of U", encode_properties({"RETRY_TOPIC": "U"}))
        cluster[0].put("%RETRY%g", 0, b"of T", encode_properties({"RETRY_TOPIC": "T"}))
        async with consumer:
            await until(lambda: seen == [b"of T"] and len(cluster[0].handed_back) == 1)


async def test_wrong_handlers_are_refused_by_name() -> None:
    consumer = PushConsumer("g", "127.0.0.1:1", options=push_options())
    with pytest.raises(ClientError, match="'T' has no handler"):
        consumer.subscribe("T")
    with pytest.raises(ClientError, match="must be a function"):
        consumer.add_handler("T", "print")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="worker_count"):
        consumer.add_handler("T", print, worker_count=0)
    consumer.add_handler("T", print)
    with pytest.raises(ClientError, match="already has a handler"):
        consumer.add_handler("T", print)
    blocking = BlockingPushConsumer("g", "127.0.0.1:1")
    blocking.subscriber("T")(print)
    with pytest.raises(ClientError, match="already has a handler"):
        blocking.subscriber("T")(print)


async def test_a_blocking_consumer_has_handlers_before_and_after_its_start() -> None:
    done = threading.Semaphore(0)
    async with running_cluster(T=1, U=1) as cluster:
        cluster[0].put("T", 0, b"0")
        cluster[0].put("U", 0, b"0")

        def use() -> None:
            consumer = BlockingPushConsumer("g", cluster.namesrv, options=push_options())
            consumer.subscriber("T")(lambda message: done.release())
            with consumer:
                consumer.subscriber("U")(lambda message: done.release())
                assert done.acquire(timeout=PATIENCE_S)
                assert done.acquire(timeout=PATIENCE_S)

        await asyncio.to_thread(use)


class FakeSource:
    """The reader of a queue."""

    def finish(self, message: ReceivedMessage) -> None: ...

    def holds(self, message: ReceivedMessage) -> bool:
        return True


class FakeMessage:
    def __init__(self, topic: str, number: int) -> None:
        self.topic, self.number = topic, number


def test_a_sorting_inbox_keeps_the_order_of_each_part() -> None:
    inbox = SortingInbox(100)
    part = inbox.add_part("T")
    source = FakeSource()
    given = [Received(source, FakeMessage("TUT"[n % 3], n)) for n in range(6)]  # type: ignore[arg-type]
    inbox.put(given, 60)

    def numbers(one: object) -> list[int]:
        return [delivery.message.number for delivery in one]  # type: ignore[attr-defined]

    taken = part.take_some(3)
    assert numbers(taken) == [0, 2, 3]
    others = inbox.take_some(1)
    inbox.put_back([*taken, *others])
    assert numbers(part.take_some(2)) == [0, 2]
    assert numbers(inbox.requeue(source)) == [1, 4, 3, 5]
    assert len(part) == len(inbox) == 0
    inbox.put((), 50)
    assert not inbox.has_room
    inbox.close()
    assert part.is_closed
