"""The pop consumer's own steps, without a broker that pops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from client_fakes import running_cluster
from test_consumer import REQUEST
from test_returning import returned

from tandemmq.api import broker_consume
from tandemmq.client import PopConsumer
from tandemmq.errors import BadRequest, RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.message import PoppedMessage
from tandemmq.protocol.record import decode_records
from waits import until


async def test_a_dead_letter_is_stored_and_then_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_cluster(T=1, **{"%RETRY%g": 1}) as cluster:
        cluster[0].put("T", 0, b"0")
        (record,) = decode_records(cluster[0].queue("T", 0).records[0][0])
        message = PoppedMessage(record, topic="T", broker_name="a", handle="handle")
        async with PopConsumer("g", cluster.namesrv) as consumer:
            acked: list[tuple[PoppedMessage, int]] = []

            async def ack(*messages: PoppedMessage) -> None:
                acked.extend((one, len(returned(cluster))) for one in messages)

            monkeypatch.setattr(consumer, "ack", ack)
            await consumer.dead_letter(message, reason="never")
            assert acked == [(message, 1)]
            monkeypatch.setattr(cluster[0], "refuse", lambda _: ResponseCode.NO_PERMISSION)
            with pytest.raises(RequestRejected):
                await consumer.dead_letter(message, reason="never")
            assert acked == [(message, 1)]
        assert [one["dead_letter_reason"] for one in returned(cluster)] == ["never"]


async def test_a_request_that_is_delivered_again_can_be_answered() -> None:
    """No route leads to the retry topics of pops, so the reply follows that of the message's topic."""
    async with running_cluster(T=1) as cluster:
        cluster[0].put("%RETRY%g_T", 0, b"ping", REQUEST)
        (record,) = decode_records(cluster[0].queue("%RETRY%g_T", 0).records[0][0])
        message = PoppedMessage(record, topic="T", broker_name="a", handle="handle")
        async with PopConsumer("g", cluster.namesrv) as consumer:
            consumer.subscribe("T")
            await consumer.reply(message, b"pong")
        assert cluster[0].replies == [b"pong"]


async def test_a_broker_that_does_not_pop_is_named() -> None:
    async with running_cluster(T=1) as cluster, PopConsumer("g", cluster.namesrv) as consumer:
        consumer.subscribe("T")

        async def receive() -> bool:
            assert await consumer.receive(timeout_s=0) == []
            return False

        with pytest.raises(RequestRejected, match="broker 'a' does not serve pops: they need RocketMQ 5"):
            await until(receive)


async def test_a_message_of_the_changed_subscription_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker filters by the latest heartbeat, which may be newer than the request."""
    async with running_cluster(T=1) as cluster:
        cluster[0].put("T", 0, b"0", b"TAGS\x01b\x02")
        (record,) = decode_records(cluster[0].queue("T", 0).records[0][0])
        message = PoppedMessage(record, topic="T", broker_name="a", handle="handle")
        is_asked, may_answer = asyncio.Event(), asyncio.Event()

        async def pop(*_: Any) -> list[PoppedMessage]:
            if is_asked.is_set():
                return []
            is_asked.set()
            await may_answer.wait()
            return [message]

        monkeypatch.setattr(broker_consume, "pop", pop)
        async with PopConsumer("g", cluster.namesrv) as consumer:
            consumer.subscribe("T", "a")
            receiving = asyncio.create_task(consumer.receive(timeout_s=5.0))
            await is_asked.wait()
            consumer.subscribe("T", "b")
            may_answer.set()
            assert await receiving == [message]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"count_max": 33}, "count_max 33: must be a whole number from 1 to 32"),
        ({"count_max": 0}, "count_max 0: must be a whole number from 1 to 32"),
        ({"count_max": None}, "count_max None: must be a whole number"),
        ({"count_max": True}, "count_max True: must be a whole number"),
        ({"count_max": 2.0}, "count_max 2.0: must be a whole number"),
        ({"invisible_s": 0}, "invisible_s 0: must be a number from 0.001 to 259200"),
        ({"invisible_s": 0.0004}, "must be a number from 0.001"),  # 0 ms: others get the message at once
        ({"invisible_s": 259_201}, "invisible_s 259201: must be"),
        ({"invisible_s": float("nan")}, "invisible_s nan: must be"),
        ({"invisible_s": "5"}, "invisible_s '5': must be"),
    ],
)
async def test_bounds_of_a_receive(how: dict[str, Any], reason: str) -> None:
    async with running_cluster(T=1) as cluster, PopConsumer("g", cluster.namesrv) as consumer:
        consumer.subscribe("T")
        with pytest.raises(BadRequest, match=reason):
            await consumer.receive(**how)
