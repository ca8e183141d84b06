"""The route cache: one view per topic, and what all views together say of the brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tandemmq.api import broker_consume, nameserver
from tandemmq.client.consumer.offsets import find_offset, serving_address
from tandemmq.client.options import StartFrom
from tandemmq.client.route_cache import NameServers, RouteCache
from tandemmq.errors import NoRoute
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from tandemmq.runtime.machine import LoopClock
from tandemmq.runtime.tasks import TaskScope
from waits import until


def route_to(master: str) -> TopicRoute:
    queue = QueueData(broker_name="b", read_queue_count=1, write_queue_count=1, permission=6)
    return TopicRoute(
        queues=(queue,), brokers=(BrokerData(cluster="c", broker_name="b", addresses={0: master}),)
    )


@pytest.mark.parametrize("asked_first", ["Old", "New"])
async def test_the_newest_answer_names_the_master(asked_first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = dict.fromkeys(("Old", "New"), route_to("127.0.0.1:1"))

    async def answer(client: object, address: str, topic: str, **options: Any) -> TopicRoute:
        return routes[topic]

    monkeypatch.setattr(nameserver, "query_route", answer)
    client: Any = None
    tasks = TaskScope("routes")
    servers = NameServers(client, ["127.0.0.1:9876"])
    cache = RouteCache(servers, clock=LoopClock(), tasks=tasks, refresh_s=30)
    for topic in sorted(routes, key=lambda one: one != asked_first):
        await cache.refresh(topic)
    routes["New"] = route_to("127.0.0.1:2")
    await cache.refresh("New")
    assert cache.broker_addresses() == {"b": {0: "127.0.0.1:2"}}
    await cache.refresh("Old")
    assert cache.broker_addresses() == {"b": {0: "127.0.0.1:1"}}, "an answer that changes no view is newer"
    await tasks.close()


async def test_a_missing_address_is_looked_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def answer(client: object, address: str, topic: str, **options: Any) -> None:
        asked.append(topic)

    monkeypatch.setattr(nameserver, "query_route", answer)
    client: Any = None
    tasks = TaskScope("routes")
    servers = NameServers(client, ["127.0.0.1:9876"])
    cache = RouteCache(servers, clock=LoopClock(), tasks=tasks, refresh_s=30)
    instance: Any = SimpleNamespace(routes=cache)
    with pytest.raises(NoRoute, match="has no master"):
        cache.require_master("Sent", "b")
    with pytest.raises(NoRoute, match="no address"):
        serving_address(instance, MessageQueue("Read", "b", 0), ())
    await until(lambda: len(asked) == 2)
    assert sorted(asked) == ["Read", "Sent"]
    await tasks.close()


async def test_an_offset_is_looked_up_at_the_newest_route(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(client: object, address: str, topic: str, **options: Any) -> TopicRoute:
        return route_to("127.0.0.1:1")

    async def query(client: object, address: str, topic: str, queue_id: int) -> int:
        assert address == "127.0.0.1:1"
        return 7

    monkeypatch.setattr(nameserver, "query_route", answer)
    monkeypatch.setattr(broker_consume, "query_max_offset", query)
    client: Any = None
    tasks = TaskScope("routes")
    cache = RouteCache(NameServers(client, ["127.0.0.1:9876"]), clock=LoopClock(), tasks=tasks, refresh_s=30)
    instance: Any = SimpleNamespace(routes=cache, remoting=None)
    assert await find_offset(MessageQueue("T", "b", 0), StartFrom.LAST, None, instance) == 7
    with pytest.raises(NoRoute, match="no address"):
        await find_offset(MessageQueue("T", "gone", 0), StartFrom.LAST, None, instance)
    await tasks.close()
