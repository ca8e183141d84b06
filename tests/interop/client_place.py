"""The parts that the cases of our Python client share: a topic and a group of a case's own, and the names of
the calls that a case makes.

`make client-both` runs the cases of `test_interop_client.py` and `test_interop_client_*.py`. Each public call
of the client is named by `calls` at a case or has a row in tests/architecture/test_client_cases.py, which
fails for a call that has neither.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import TypeVar

import pytest

from tandemmq.client import (
    ClientOptions,
    Consumer,
    ConsumerOptions,
    Message,
    PopConsumer,
    PopOptions,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.client.consumer.workers import AnyHandler
from waits import PATIENCE_S

F = TypeVar("F", bound=Callable[..., object])

CASES = [pytest.mark.interop, pytest.mark.timeout(180), pytest.mark.interop_case(row="other")]
"""The marks of a module of such cases."""

FAST = ClientOptions(heartbeat_s=1.0, route_refresh_s=1.0)
SENDING = ProducerOptions(client=FAST, timeout_s=20.0)


class Place:
    """A topic of its own with two queues, and a group of its own."""

    def __init__(self, namesrv: str) -> None:
        token = secrets.token_hex(4)
        self.namesrv = namesrv
        self.topic, self.group = f"T{token}", f"G{token}"

    def producer(self, **changes: object) -> Producer:
        settings: dict[str, object] = {"client": FAST, "timeout_s": 20.0, **changes}
        return Producer(f"P{self.group}", self.namesrv, options=ProducerOptions(**settings))  # type: ignore[arg-type]  # real fields

    def consumer(self, topic: str = "", tags: str = "*", group: str = "", **changes: object) -> Consumer:
        consumer = Consumer(
            group or self.group, self.namesrv, options=ConsumerOptions(**self._settings(changes))
        )
        if topic != "-":
            consumer.subscribe(topic or self.topic, tags)
        return consumer

    def push(self, handler: AnyHandler | None = None, **changes: object) -> PushConsumer:
        options = PushOptions(**self._settings(changes))
        consumer = PushConsumer(self.group, self.namesrv, handler, options=options)
        if handler is not None:
            consumer.subscribe(self.topic)
        return consumer

    def pop(self, **changes: object) -> PopConsumer:
        settings: dict[str, object] = {"client": FAST, "start_from": StartFrom.FIRST, **changes}
        consumer = PopConsumer(self.group, self.namesrv, options=PopOptions(**settings))  # type: ignore[arg-type]  # real fields
        consumer.subscribe(self.topic)
        return consumer

    def _settings(self, changes: dict[str, object]) -> dict[str, object]:  # type: ignore[type-arg]
        return {
            "client": FAST,
            "start_from": StartFrom.FIRST,
            "rebalance_s": 1.0,
            "commit_s": 0.5,
            "suspend_s": 2.0,
            **changes,
        }

    async def fill(self, count: int) -> None:
        """The numbers from 0 on, in both queues in turn."""
        async with self.producer() as producer:
            sends = [
                await producer.start_send(Message(topic=self.topic, body=b"%d" % number, tags="t"))
                for number in range(count)
            ]
            assert all(result.is_ok for result in await asyncio.gather(*sends))


def calls(*names: str) -> Callable[[F], F]:
    """Names the public calls of the client, as `Class.method` or `Options.field`, that the case makes."""
    return lambda case: case


only_5 = pytest.mark.parametrize("cluster", ["ours", "java_5"], indirect=True)
"""For calls that RocketMQ 4.9 does not serve; other cases check that the client says so."""


async def take(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(messages) < count:
            messages += await consumer.poll(count - len(messages), 0.5)
    return messages


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return sorted(message.body for message in messages)


def numbers(count: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(count))
