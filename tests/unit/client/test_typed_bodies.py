"""Typed bodies and middleware: a bad body is a dead letter, and never stops a consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from client_fakes import FakeCluster, running_cluster
from test_push_consumer import QUEUE, push, push_options
from test_returning import returned

from tandemmq.client import Consumer, ConsumerOptions, Json, MsgPack, ReceivedMessage, StartFrom
from tandemmq.errors import ConfigError
from waits import PATIENCE_S, until


@dataclass
class Order:
    number: int


ORDERS = Json(Order)
BAD = (b"{", b'{"number": "x"}')


def fill(cluster: FakeCluster) -> None:
    for body in (b'{"number": 1}', *BAD, b'{"number": 2}'):
        cluster[0].put("T", 0, body)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("changes", [{}, {"batch_count_max": 4}, {"middleware": "counting"}])
async def test_a_handler_gets_values_and_bad_bodies_become_dead_letters(
    is_async: bool, changes: dict[str, Any]
) -> None:
    seen: list[Order] = []
    calls: list[str] = []

    def handle(argument: Any) -> None:
        messages = argument if isinstance(argument, list) else [argument]
        seen.extend(message.value for message in messages)

    async def handle_async(argument: Any) -> None:
        handle(argument)

    async def outer(message: ReceivedMessage, call_next: Callable[[Any], Awaitable[object]]) -> object:
        calls.append("outer")
        return await call_next(message)

    async def inner(message: ReceivedMessage, call_next: Callable[[Any], Awaitable[object]]) -> object:
        calls.append("inner")
        return await call_next(message)

    if "middleware" in changes:
        changes = {"middleware": (outer, inner)}
    async with running_cluster(T=1, **{"%RETRY%g": 1}) as cluster:
        fill(cluster)
        handler = handle_async if is_async else handle
        async with push(cluster, handler, serializer=ORDERS, worker_count=1, **changes) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 4)
        reasons = [one["dead_letter_reason"] for one in returned(cluster)]
        assert cluster[0].handed_back == []
    assert seen == [Order(1), Order(2)]
    assert len(reasons) == 2
    assert all(one.startswith("invalid body: ") for one in reasons)
    assert calls == (["outer", "inner"] * 4 if "middleware" in changes else [])


@pytest.mark.parametrize("is_async", [True, False])
async def test_middleware_sees_errors_and_decides_about_messages(is_async: bool) -> None:
    errors: list[str] = []

    def handle(message: ReceivedMessage) -> None:
        raise ValueError(message.body.decode())

    async def handle_async(message: ReceivedMessage) -> None:
        handle(message)

    async def swallow(message: ReceivedMessage, call_next: Callable[[Any], Awaitable[object]]) -> None:
        try:
            await call_next(message)
        except ValueError as error:
            errors.append(str(error))

    async with running_cluster(T=1) as cluster:
        cluster[0].put("T", 0, b"0")
        async with push(cluster, handle_async if is_async else handle, middleware=[swallow]) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 1)
        assert cluster[0].handed_back == []
    assert errors == ["0"]


async def test_a_reader_gets_only_valid_messages() -> None:
    settings = push_options()
    options = ConsumerOptions(
        client=settings.client, start_from=settings.start_from, commit_s=0.1, serializer=ORDERS
    )
    async with running_cluster(T=1, **{"%RETRY%g": 1}) as cluster:
        fill(cluster)
        consumer = Consumer("g", cluster.namesrv, options=options)
        consumer.subscribe("T")
        async with consumer:
            values: list[Order] = []
            async for message in consumer:
                values.append(message.value)
                if len(values) == 2:
                    break
            assert values == [Order(1), Order(2)]
            fill(cluster)
            values.clear()
            while len(values) < 2:
                values += [message.value for message in await consumer.poll()]
            assert values == [Order(1), Order(2)]
            await consumer.poll(timeout_s=0)
            assert consumer.positions[QUEUE] == 8
        assert len(returned(cluster)) == 4


@pytest.mark.parametrize("reads_one", [True, False])
async def test_a_cancelled_read_loses_no_message_to_a_dead_letter(
    reads_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(T=1, **{"%RETRY%g": 1}) as cluster:
        fill(cluster)
        options = ConsumerOptions(client=push_options().client, start_from=StartFrom.FIRST, serializer=ORDERS)
        consumer = Consumer("g", cluster.namesrv, options=options)
        consumer.subscribe("T")

        async def read() -> list[Order]:
            if reads_one:
                return [(await anext(consumer)).value]
            return [message.value for message in await consumer.poll()]

        async with consumer:
            values = await read() if reads_one else []
            asking = asyncio.Event()

            async def ask_forever(message: ReceivedMessage, *, reason: str) -> None:
                asking.set()
                await asyncio.Event().wait()

            with monkeypatch.context() as patch:
                patch.setattr(consumer, "dead_letter", ask_forever)
                reading = asyncio.ensure_future(read())
                await asking.wait()
                reading.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reading
            while len(values) < 2:
                values += await read()
            await consumer.poll(timeout_s=0)
            assert values == [Order(1), Order(2)]
            assert consumer.positions[QUEUE] == 4
        assert len(returned(cluster)) == 2


async def test_a_cancelled_read_does_not_return_messages_of_a_queue_that_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = ConsumerOptions(client=push_options().client, start_from=StartFrom.FIRST, serializer=ORDERS)
    async with running_cluster(T=1) as cluster:
        fill(cluster)
        consumer = Consumer("g", cluster.namesrv, options=options)
        consumer.subscribe("T")
        asking = asyncio.Event()

        async def ask_forever(message: ReceivedMessage, *, reason: str) -> None:
            asking.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(consumer, "dead_letter", ask_forever)
        async with consumer:
            reading = asyncio.ensure_future(consumer.poll(timeout_s=PATIENCE_S))
            await asking.wait()
            consumer._assignment.readers[QUEUE].move_to(4)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert len(consumer._inbox) == 0


async def test_a_body_that_cannot_be_decompressed_is_not_decoded() -> None:
    """The body holds the stored bytes then, which may look valid."""
    seen: list[Order] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message.value)

    async with running_cluster(T=1, **{"%RETRY%g": 1}) as cluster:
        cluster[0].put("T", 0, b'{"number": 1}', sys_flag=0x301)
        async with push(cluster, handle, serializer=ORDERS) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 1)
        (properties,) = returned(cluster)
    assert properties["dead_letter_reason"].startswith("invalid body: message body is not a zlib stream")
    assert seen == []


def test_serializers_are_checked() -> None:
    for wrong in (Json, "json"):
        with pytest.raises(ConfigError, match="serializer"):
            push_options(serializer=wrong)
    with pytest.raises(ConfigError, match="middleware"):
        push_options(middleware=["count"])
    assert MsgPack(Order).decode(MsgPack(Order).encode(Order(3))) == Order(3)
    with pytest.raises(ValueError, match="truncated"):
        ORDERS.decode(b"{")
