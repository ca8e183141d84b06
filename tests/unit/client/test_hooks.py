"""The hooks of an application: queues that come and go, connections that are lost and return."""

from __future__ import annotations

import pytest
from client_fakes import FakeBroker, running_cluster
from test_push_consumer import FAST, QUEUE, push

from tandemmq.client import ClientOptions, MessageQueue, ReceivedMessage
from tandemmq.errors import ConfigError
from waits import until


async def test_queues_are_named_when_they_come_and_before_they_go() -> None:
    calls: list[tuple[str, tuple[MessageQueue, ...]]] = []
    handled: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message)

    async with running_cluster(T=2, **{"%RETRY%g": 1}) as cluster:
        consumer = push(
            cluster,
            handle,
            on_assigned=lambda queues: calls.append(("assigned", queues)),
            on_revoked=lambda queues: calls.append(("revoked", (*queues, *consumer.assigned))),
        )
        async with consumer:
            await until(lambda: calls)
            consumer.unsubscribe("T")
            await until(lambda: len(calls) == 2)
    both = (QUEUE, MessageQueue("T", "a", 1))
    assert calls[0] == ("assigned", both)
    assert calls[1][0] == "revoked"
    assert calls[1][1][:2] == both
    assert set(both) <= set(calls[1][1][2:]), "the queues are still assigned"
    assert len(calls) == 2, "the close names no queue that has gone before"


async def test_lost_connections_and_their_return_are_reported() -> None:
    calls: list[tuple[str, str]] = []
    client = ClientOptions(
        heartbeat_s=FAST.heartbeat_s,
        route_refresh_s=FAST.route_refresh_s,
        on_disconnected=lambda address: calls.append(("lost", address)),
        on_reconnected=lambda address: calls.append(("back", address)),
    )
    async with running_cluster(FakeBroker("a"), T=1) as cluster:
        async with push(cluster, print, client=client) as consumer:
            await until(lambda: consumer.assigned)
            assert calls == []
            address = cluster[0].address
            channel = consumer.instance.remoting.open_channel(address)
            assert channel is not None
            channel.abort("the cable is cut")
            await until(lambda: calls == [("lost", address), ("back", address)])
        assert calls == [("lost", address), ("back", address)], "a close of the client is no loss"


def test_async_hooks_are_refused() -> None:
    async def hook(address: str) -> None: ...

    with pytest.raises(ConfigError, match="on_disconnected"):
        ClientOptions(on_disconnected=hook)
