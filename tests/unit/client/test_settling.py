"""The settler of delivered messages, in and outside of its consumer's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest

from tandemmq.client.consumer.settling import DONE, Settler
from tandemmq.errors import ClientError


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
