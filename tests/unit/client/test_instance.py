"""The event loop that a client belongs to, and names of wrong types."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from client_fakes import running_cluster

from tandemmq.client import Admin, Consumer, Message, PopConsumer, Producer, PushConsumer, ReceivedMessage
from tandemmq.errors import BadRequest, ClientError


async def handle(message: ReceivedMessage) -> None:
    raise AssertionError(message)


async def test_a_client_in_another_event_loop_names_the_mistake() -> None:
    def fails_elsewhere(call: Callable[[], Awaitable[object]]) -> None:
        async def run() -> None:
            with pytest.raises(ClientError, match="started in another event loop"):
                await call()

        asyncio.run(run())

    async with running_cluster(T=1) as cluster, AsyncExitStack() as started:
        producer = await started.enter_async_context(Producer("p", cluster.namesrv))
        consumer = await started.enter_async_context(Consumer("g", cluster.namesrv))
        push = await started.enter_async_context(PushConsumer("h", cluster.namesrv, handle))
        pop = await started.enter_async_context(PopConsumer("i", cluster.namesrv))
        admin = await started.enter_async_context(Admin(cluster.namesrv))
        for member in (consumer, push, pop):
            member.subscribe("T")
        for client in (producer, consumer, push, pop, admin):
            await asyncio.to_thread(fails_elsewhere, client.close)
            await asyncio.to_thread(fails_elsewhere, client.ping)
        await asyncio.to_thread(fails_elsewhere, lambda: producer.send(Message("T", b"b")))
        await asyncio.to_thread(fails_elsewhere, lambda: consumer.poll(1, 0.1))
        await asyncio.to_thread(fails_elsewhere, lambda: pop.receive(timeout_s=0.1))
        assert (await producer.send(Message("T", b"b"))).is_ok


@pytest.mark.parametrize("wrong", [{"topic": None}, {"topic": ["T", "U"]}, {"topic": "T", "sql": 5}])
def test_a_subscription_of_another_type_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="must be str"):
        Consumer("g", "127.0.0.1:9876").subscribe(**wrong)
