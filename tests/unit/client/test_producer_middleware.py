"""Middleware around the sends of a producer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from client_fakes import running_cluster

from tandemmq.client import Message, Producer, ProducerOptions, SendResult
from tandemmq.client.hooks import CallSend
from tandemmq.errors import ClientError, ConfigError, TandemError
from tandemmq.protocol.codes import ResponseCode


async def test_middleware_surrounds_sends_of_every_kind() -> None:
    calls: list[str] = []

    async def outer(messages: Sequence[Message], call_next: CallSend) -> list[SendResult]:
        calls.append(f"outer {len(messages)}")
        try:
            return await call_next(messages)
        except TandemError:
            calls.append("failed")
            raise

    async def inner(messages: Sequence[Message], call_next: CallSend) -> list[SendResult]:
        return await call_next([Message(one.topic, one.body + b"!") for one in messages])

    options = ProducerOptions(middleware=[outer, inner], retry_count_max=0)
    async with running_cluster(T=1) as cluster, Producer("P", cluster.namesrv, options=options) as producer:
        one = Message("T", b"one")
        assert (await producer.send(one)).is_ok
        assert (await (await producer.start_send(one))).is_ok
        assert len(await producer.send_batch([one, one])) == 2
        assert (await producer.send_many([one] * 3)).ok_count == 3
        assert calls == ["outer 1", "outer 1", "outer 2", "outer 3"]
        records = [record for queue in cluster[0].queues.values() for record, _ in queue.records]
        assert len(records) == 7
        assert all(b"one!" in record for record in records)
        cluster[0].refuse = lambda header: ResponseCode.MESSAGE_ILLEGAL
        with pytest.raises(TandemError):
            await producer.send(one)
        assert calls[-1] == "failed"


async def test_middleware_that_returns_no_results_is_named() -> None:
    async def lose(messages: Sequence[Message], call_next: CallSend) -> list[SendResult]:
        await call_next(messages)
        return []

    options = ProducerOptions(middleware=[lose])
    async with running_cluster(T=1) as cluster, Producer("P", cluster.namesrv, options=options) as producer:
        with pytest.raises(ClientError, match="one per message"):
            await producer.send(Message("T", b"one"))
    with pytest.raises(ConfigError, match="middleware"):
        ProducerOptions(middleware=["log"])  # type: ignore[list-item]
