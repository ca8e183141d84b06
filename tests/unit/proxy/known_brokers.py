"""`Brokers` with fixed answers, for tests of handlers that only ask for topics and groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tandemmq.errors import TandemError, TopicNotFound
from tandemmq.protocol.bodies.route import BrokerData, QueueData, TopicRoute
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.proxy.brokers import Brokers, TopicAccess

READ_WRITE = 6


class KnownBrokers:
    """Topics, their kinds, and groups, as given; `failure` is raised instead of every answer."""

    def __init__(
        self,
        routes: Mapping[str, TopicRoute] | None = None,
        kinds: Mapping[str, str] | None = None,
        groups: Mapping[str, SubscriptionGroupConfig] | None = None,
    ) -> None:
        self.routes = dict(routes or {})
        self.kinds = dict(kinds or {})
        self.groups = dict(groups or {})
        self.failure: TandemError | None = None

    @property
    def brokers(self) -> Brokers:
        return cast(Brokers, self)

    async def topic(self, name: str) -> TopicAccess:
        self._check()
        if name not in self.routes:
            raise TopicNotFound(f"no route of topic {name}")
        return TopicAccess(name, self.routes[name])

    async def kind(self, topic: str) -> str:
        return self.kinds.get(topic, "NORMAL")

    async def group(self, name: str) -> SubscriptionGroupConfig:
        self._check()
        return self.groups.get(name) or SubscriptionGroupConfig(name=name)

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure


def route(*brokers: tuple[str, int, int, int], replicas: Mapping[int, str] | None = None) -> TopicRoute:
    """Returns a route of brokers: name, permission, read queues, write queues."""
    addresses = dict(replicas or {0: "10.0.0.1:10911"})
    return TopicRoute(
        brokers=tuple(BrokerData(broker_name=name, cluster="c", addresses=addresses) for name, *_ in brokers),
        queues=tuple(
            QueueData(broker_name=name, permission=perm, read_queue_count=read, write_queue_count=write)
            for name, perm, read, write in brokers
        ),
    )
