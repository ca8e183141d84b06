"""The methods of a delivered message, and retries after seconds, with consumers of every kind."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest
from client_rig import FAST, Rig, running_cluster, take
from test_client_push import push

from tandemmq.client import (
    BlockingConsumer,
    BlockingPopConsumer,
    ConsumerOptions,
    Message,
    MessageModel,
    PopConsumer,
    PopOptions,
    Producer,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.errors import BadRequest, ClientError
from tandemmq.protocol.topic_names import dlq_topic
from waits import PATIENCE_S, until

REASONED = {"reason": "no\x01such\ncustomer " + "x" * 2_000}
REASON = "no such customer " + "x" * 1_007


async def letters_of(rig: Rig, count: int) -> list[tuple[bytes, str]]:
    async with rig.consumer("dead", dlq_topic("CG")) as dead:
        found = await take(dead, count)
    return sorted((one.body, one.properties["dead_letter_reason"]) for one in found)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_settles_its_messages_itself(tmp_path: Path, is_async: bool) -> None:
    """In a batch each message has an outcome of its own."""
    tried: dict[bytes, list[float]] = defaultdict(list)
    lock = threading.Lock()

    def settle(message: ReceivedMessage) -> object:
        with lock:
            tried[message.body].append(time.monotonic())
        if message.body == b"1":
            return message.dead_letter(**REASONED)
        if message.body == b"2" and message.retry_count == 0:
            return message.retry_later(delay_s=2)
        return message.ack()

    def handle(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            settle(message)
        raise ValueError("this changes no outcome")

    async def handle_async(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            await settle(message)  # type: ignore[misc]
        raise ValueError("this changes no outcome")

    async with running_cluster(tmp_path) as rig:
        await rig.fill("T", 20)
        handler = handle_async if is_async else handle
        async with push(rig, handler, batch_count_max=10, retry_delay_level=1) as consumer:
            await until(lambda: len(tried[b"2"]) == 2)
            await until(lambda: sum(consumer.positions.values()) == 21)
        assert await letters_of(rig, 1) == [(b"1", REASON)]
    assert {body: len(times) for body, times in tried.items() if len(times) != 1} == {b"2": 2}
    first, second = tried[b"2"]
    assert 1.0 < second - first < 9, "sooner than at the next delay level"


async def test_failed_messages_are_retried_after_these_seconds(tmp_path: Path) -> None:
    tried: list[float] = []

    async def handle(message: ReceivedMessage) -> None:
        tried.append(time.monotonic())
        raise ValueError("not now")

    async with running_cluster(tmp_path) as rig:
        await rig.fill("T", 1)
        async with (
            push(rig, handle, retry_delays_s=(0, 2), retry_count_max=3),
            rig.consumer("dead", dlq_topic("CG")) as dead,
        ):
            (letter,) = await take(dead, 1)
    pauses = [later - earlier for earlier, later in itertools.pairwise(tried)]
    assert len(pauses) == 3
    assert pauses[0] < 1 < pauses[1]
    assert pauses[2] > 1
    assert letter.retry_count == 4


async def test_a_reader_settles_messages_and_awaits_acks_of_any_consumer(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig:
        await rig.fill("T", 3)
        async with rig.consumer(auto_ack=False) as consumer:
            first, second, third = await take(consumer, 3)
            await first.dead_letter(reason="")
            await second.retry_later(delay_s=0)
            await consumer.ack(third)
            (again,) = await take(consumer, 1)
            assert (again.body, again.retry_count) == (b"1", 1)
            await again.ack()
            await until(lambda: sum(consumer.positions.values()) == 4)
            with pytest.raises(BadRequest, match="delay_s -1: must be a number from 0 to 259200"):
                await again.retry_later(delay_s=-1)
        assert await letters_of(rig, 1) == [(b"0", "unknown")]


async def test_pops_settle_their_messages(tmp_path: Path) -> None:
    options = PopOptions(client=FAST, start_from=StartFrom.FIRST)
    async with running_cluster(tmp_path) as rig:
        await rig.fill("T", 3)
        async with PopConsumer("CG", rig.namesrv, options=options) as consumer:
            consumer.subscribe("T")
            bodies: list[tuple[bytes, int]] = []
            while len(bodies) < 4:
                for message in await consumer.receive():
                    bodies.append((message.body, message.retry_count))
                    if message.body == b"0":
                        await message.dead_letter(**REASONED)
                    elif message.body == b"1" and message.retry_count == 0:
                        await message.retry_later(delay_s=0.1)
                    else:
                        await message.ack()
            assert sorted(bodies) == [(b"0", 0), (b"1", 0), (b"1", 1), (b"2", 0)]
            assert await consumer.receive(timeout_s=0.2) == []
        assert await letters_of(rig, 1) == [(b"0", REASON)]


async def test_threads_settle_messages_and_wait_for_it(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig, Producer("P", rig.namesrv) as producer:

        def answer() -> None:
            options = ConsumerOptions(client=FAST, start_from=StartFrom.FIRST)
            with BlockingConsumer("answers", rig.namesrv, options=options) as consumer:
                consumer.subscribe("T")
                for message in consumer:
                    message.reply(b"for " + message.body)
                    break

        answering = asyncio.create_task(asyncio.to_thread(answer))
        reply = await producer.request(Message("T", b"me"), timeout_s=PATIENCE_S)
        assert reply.body == b"for me"
        await answering

        def pop() -> None:
            options = PopOptions(client=FAST, start_from=StartFrom.FIRST)
            with BlockingPopConsumer("CG", rig.namesrv, options=options) as consumer:
                consumer.subscribe("T")
                (message,) = consumer.receive(timeout_s=PATIENCE_S)
                message.dead_letter(reason="from a thread")
            with pytest.raises(ClientError, match="closed"):
                message.ack()

        await asyncio.to_thread(pop)
        assert await letters_of(rig, 1) == [(b"me", "from a thread")]


async def test_what_cannot_be_sent_back_is_refused(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig:
        await rig.fill("T", 1)
        async with rig.consumer("all", model=MessageModel.BROADCASTING, offsets_dir=str(tmp_path)) as one:
            (message,) = await take(one, 1)
            with pytest.raises(ClientError, match="broadcasting"):
                await message.retry_later(delay_s=1)
            with pytest.raises(ClientError, match="broadcasting"):
                await message.dead_letter(reason="none")
        async with rig.consumer("ordered", orderly=True) as one:
            (message,) = await take(one, 1)
            with pytest.raises(ClientError, match="suspend"):
                await message.retry_later(delay_s=1)
        async with rig.consumer("owned") as one:
            (message,) = await take(one, 1)
            with pytest.raises(ClientError, match="no consumer"):
                ReceivedMessage(message.record).ack()
