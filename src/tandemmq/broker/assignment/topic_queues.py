"""The queues of a topic on all brokers, as the name servers tell them; kept for a while.

At a bound: the topic that was asked for longest ago is forgotten. Without name servers: this broker's own.
"""

from __future__ import annotations

from typing import Final

from tandemmq.api.nameserver import query_route
from tandemmq.broker.options import PERMISSION_READ, BrokerOptions
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies.codec import MessageQueue
from tandemmq.protocol.bodies.route import TopicRoute
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.ports import Clock

KEPT_S: Final = 30.0
"""RocketMQ's period of looking again (spec semantics 20.1)."""
TOPICS_MAX: Final = 4_096
ASK_TIMEOUT_S: Final = 2.0
"""For all name servers together: clients wait 3 s for their assignment."""


class TopicQueues:
    """Readable queues by topic."""

    def __init__(
        self, options: BrokerOptions, *, topics: TopicTable, client: RemotingClient, clock: Clock
    ) -> None:
        self._options = options
        self._topics = topics
        self._client = client
        self._clock = clock
        self._kept: dict[str, tuple[float, list[MessageQueue] | None]] = {}

    async def find(self, topic: str) -> list[MessageQueue] | None:
        """Sorted by broker and queue; None when nobody knows the topic."""
        kept = self._kept.get(topic)
        if kept is not None and self._clock.monotonic() - kept[0] < KEPT_S and kept[1] is not None:
            return kept[1]
        if not self._options.name_servers:
            return self._own(topic)
        is_known, queues = await self._ask(topic)
        if not is_known:  # no name server answered: what was known before is better than nothing
            return kept[1] if kept is not None else None
        self._kept.pop(topic, None)
        while len(self._kept) >= TOPICS_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[topic] = (self._clock.monotonic(), queues)
        return queues

    async def _ask(self, topic: str) -> tuple[bool, list[MessageQueue] | None]:
        addresses = self._options.name_servers
        for address in addresses:
            try:
                timeout_s = ASK_TIMEOUT_S / len(addresses)
                route = await query_route(self._client, address, topic, timeout_s=timeout_s)
            except TandemError:
                continue
            return True, None if route is None else readable_queues(topic, route)
        return False, None

    def _own(self, topic: str) -> list[MessageQueue] | None:
        config = self._topics.get(topic)
        if config is None or not config.is_readable:
            return None
        return _queues_of(topic, self._options.broker_name, config.read_queue_count)


def readable_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """Sorted by broker and queue."""
    queues: list[MessageQueue] = []
    for data in route.queues:
        if data.permission & PERMISSION_READ:
            queues += _queues_of(topic, data.broker_name, data.read_queue_count)
    return sorted(queues)


def _queues_of(topic: str, broker_name: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic=topic, broker_name=broker_name, queue_id=number) for number in range(count)]
