"""The route cache: one view per topic, and what all views together say of the brokers."""

from __future__ import annotations

from typing import Any

import pytest

from tandemmq.api import nameserver
from tandemmq.client.route_cache import NameServers, RouteCache
from tandemmq.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from tandemmq.runtime.machine import LoopClock
from tandemmq.runtime.tasks import TaskScope


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
