"""The settler of delivered messages, in and outside of its consumer's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest
from client_fakes import running_cluster

from tandemmq.client import Consumer, PopConsumer, Producer
from tandemmq.client.consumer.settling import DONE, Settler
from tandemmq.errors import ClientError, MessageIllegal


class FakeConsumer:
    """A consumer that remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def ack(self, *messages: Any) -> Awaitable[None]:
        self.calls.append(("ack", *messages))
        return DONE

    async def retry_later(self, message: Any, *, delay_s: float | None = None) -> None:
        await asyncio.sleep(0)
        self.calls.append(("retry_later", message, delay_s))

    async def dead_letter(self, message: Any, *, reason: str) -> None:
        raise ClientError(reason)

    async def reply(self, request: Any, body: bytes, *, properties: Mapping[str, str] | None = None) -> None:
        self.calls.append(("reply", request, body, properties))


async def test_the_loop_awaits_and_other_threads_block() -> None:
    consumer, settler = FakeConsumer(), Settler()
    settler.open(consumer)

    def use() -> None:
        settler.ack("a")
        settler.retry_later("b", 2.5)
        settler.reply("c", b"body", None)
        with pytest.raises(ClientError, match="why"):
            settler.dead_letter("d", "why")

    await asyncio.to_thread(use)
    expected = [("ack", "a"), ("retry_later", "b", 2.5), ("reply", "c", b"body", None)]
    assert consumer.calls == expected
    consumer.calls.clear()
    await settler.ack("a")
    await settler.retry_later("b", 2.5)
    await settler.reply("c", b"body", None)
    assert consumer.calls == expected
    with pytest.raises(ClientError, match="why"):
        await settler.dead_letter("d", "why")


@pytest.mark.parametrize("given", ["x", None, []])
async def test_an_object_that_is_no_received_message_is_refused(given: Any) -> None:
    async with (
        running_cluster(T=1) as cluster,
        Consumer("c", cluster.namesrv) as consumer,
        PopConsumer("p", cluster.namesrv) as popping,
        Producer("s", cluster.namesrv) as producer,
    ):
        for call in (
            lambda: consumer.ack(given),
            lambda: consumer.retry_later(given),
            lambda: consumer.retry_later(given, delay_s=1.0),
            lambda: consumer.dead_letter(given, reason="why"),
            lambda: producer.reply(given, b"body"),
        ):
            with pytest.raises(MessageIllegal, match="expected a ReceivedMessage, got"):
                await call()
        for call in (
            lambda: popping.ack(given),
            lambda: popping.nack(given),
            lambda: popping.dead_letter(given, reason="why"),
        ):
            with pytest.raises(MessageIllegal, match="expected a PoppedMessage, got"):
                await call()
