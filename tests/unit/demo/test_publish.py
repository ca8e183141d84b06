"""Publishing for the demo: a row whose send has no answer is in the topic once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandemmq.client import Message, Producer, SendResult
from tandemmq.demo.publish import Publisher, producer_options
from tandemmq.errors import BrokerUnreachable
from tandemmq.manage.tools import open_tools
from tandemmq.testing import Cluster
from tandemmq.testing.cluster import BROKER_NAME

COUNT = 200
STORED, LOST = b"70", b"140"


async def test_a_send_without_an_answer_is_found_or_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start_send = Producer.start_send
    failed: set[bytes] = set()

    async def fail_once(self: Producer, message: Message, **how: Any) -> asyncio.Future[SendResult]:
        body = bytes(message.body)
        if body not in (STORED, LOST) or body in failed:
            return await start_send(self, message, **how)
        failed.add(body)
        if body == STORED:
            await (await start_send(self, message, **how))
        raise BrokerUnreachable("no answer")

    monkeypatch.setattr(Producer, "start_send", fail_once)
    async with (
        Cluster() as cluster,
        open_tools(cluster.name_servers) as tools,
        Producer("demo", cluster.name_servers, options=producer_options()) as producer,
    ):
        await cluster.create_topic("flights", queue_count=2)
        publisher = Publisher(
            producer,
            tools,
            broker=BROKER_NAME,
            topic="flights",
            queue_count=2,
            on_progress=lambda count: None,
        )
        outcome = await publisher.publish(Message("flights", b"%d" % number) for number in range(COUNT))
        stored = [bytes(one.body) for one in await cluster.published("flights")]
    assert sorted(stored) == sorted(b"%d" % number for number in range(COUNT))
    assert (outcome.found, outcome.acknowledged, outcome.failures) == (1, COUNT, [])
