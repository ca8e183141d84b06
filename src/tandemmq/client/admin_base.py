"""The base of `Admin`: its connections, and the reads that its chapters share: cluster, routes, queues."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from tandemmq.api import broker_admin, broker_consume, nameserver
from tandemmq.client.consumer.replica_choice import choose_replica
from tandemmq.client.instance import Client, ClientInstance, InstanceUse
from tandemmq.client.options import ClientOptions, ServerNames
from tandemmq.client.route_cache import RouteView, build_view, is_known
from tandemmq.errors import BadRequest, NoRoute, QueueNotFound, TopicNotFound
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.route import ClusterInfo, TopicRoute
from tandemmq.units import MASTER_ID


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The offsets `[min_offset, max_offset)` of the messages in a queue."""

    min_offset: int
    max_offset: int

    @property
    def count(self) -> int:
        return self.max_offset - self.min_offset


class AdminClient(Client):
    """A client for administration. Use it from one event loop only."""

    def __init__(
        self,
        namesrv: ServerNames = "",
        *,
        options: ClientOptions | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        """Creates the client. With `instance` it shares that instance's connections, and `close` leaves the
        instance open.
        """
        self._use = InstanceUse(namesrv, options or ClientOptions(), instance)
        self._instance = self._use.instance
        self._remoting = self._instance.remoting

    async def start(self) -> Self:
        """Connects to a name server. Raises BrokerUnreachable when no name server accepts a connection."""
        await self._use.start()
        return self

    async def close(self) -> None:
        """Closes the connections."""
        await self._use.close()

    # The cluster

    @property
    def name_servers(self) -> tuple[str, ...]:
        """All configured name servers."""
        return self._instance.name_servers.addresses

    async def cluster_info(self) -> ClusterInfo:
        """Returns all registered brokers, by cluster and name."""
        return await self._instance.name_servers.ask(
            nameserver.query_cluster_info, knows=lambda info: bool(info.clusters)
        )

    async def topics(self) -> list[str]:
        """Returns the names of all topics, including system topics, sorted."""
        return await self._instance.name_servers.ask(nameserver.query_topics, knows=bool)

    async def topic_route(self, topic: str) -> TopicRoute:
        """Returns the queues and brokers of a topic. Raises TopicNotFound when no broker has registered the
        topic.
        """
        route = await self._query_route(topic)
        if route is None:
            raise TopicNotFound(f"topic {topic!r} is not registered at the name server")
        return route

    async def runtime_info(self, address: str) -> dict[str, str]:
        """Returns the statistics of one broker, as name -> text."""
        return await broker_admin.query_runtime_info(self._remoting, address)

    # Queues

    async def topic_offsets(self, topic: str) -> dict[MessageQueue, QueueRange]:
        """Returns the offset range of each queue of the topic, in queue order. Queries the masters, or a
        slave where a broker has no master.
        """
        view = await self._view(topic)
        ranges = await asyncio.gather(*(self._queue_range(view, queue) for queue in view.subscribe_queues))
        return dict(zip(view.subscribe_queues, ranges, strict=True))

    async def message_count(self, topic: str) -> int:
        """Returns the number of messages in the topic."""
        return sum(one.count for one in (await self.topic_offsets(topic)).values())

    async def offsets_at(self, topic: str, time_ms: int) -> dict[MessageQueue, int]:
        """Returns, per queue, the offset of the first message stored at or after `time_ms`."""
        view = await self._view(topic)
        return {
            queue: await broker_consume.search_offset(
                self._remoting, address_of(view, queue), topic, queue.queue_id, time_ms
            )
            for queue in view.subscribe_queues
        }

    # For the chapters

    async def _view(self, topic: str) -> RouteView:
        return build_view(topic, await self.topic_route(topic))

    async def _masters(self, cluster: str | None) -> dict[str, str]:
        """Returns broker name -> address, for every master of the cluster."""
        info = await self.cluster_info()
        name = cluster_name(info, cluster)
        masters, _ = masters_of(info, name)
        if not masters:
            raise NoRoute(f"cluster {name!r} has no master")
        return masters

    async def _query_route(self, topic: str) -> TopicRoute | None:
        """Returns the topic's route; None when no name server knows the topic."""
        return await self._instance.name_servers.ask(
            lambda client, address: nameserver.query_route(client, address, topic), knows=is_known
        )

    async def _queue_range(self, view: RouteView, queue: MessageQueue) -> QueueRange:
        address = address_of(view, queue)
        low = await broker_consume.query_min_offset(self._remoting, address, queue.topic, queue.queue_id)
        high = await broker_consume.query_max_offset(self._remoting, address, queue.topic, queue.queue_id)
        return QueueRange(low, high)


def known_clusters(info: ClusterInfo) -> str:
    """Returns the part of an error text that lists the known clusters."""
    if not info.clusters:
        return "no broker is registered at these name servers"
    return f"known clusters: {', '.join(sorted(info.clusters))}"


def cluster_name(info: ClusterInfo, cluster: str | None) -> str:
    """Returns the named cluster, or the only one. Raises BadRequest."""
    if cluster is not None:
        if cluster not in info.clusters:
            raise BadRequest(f"unknown cluster {cluster!r}; {known_clusters(info)}")
        return cluster
    if not info.clusters:
        raise BadRequest(known_clusters(info))
    if len(info.clusters) != 1:
        raise BadRequest(f"several clusters exist: name one of {sorted(info.clusters)}")
    return next(iter(info.clusters))


def masters_of(info: ClusterInfo, name: str) -> tuple[dict[str, str], list[str]]:
    """Returns the masters of a cluster, as broker name -> address, and the broker names without a master."""
    found = {one: info.brokers[one].addresses.get(MASTER_ID) for one in info.clusters[name]}
    masters = {one: address for one, address in found.items() if address is not None}
    return masters, [one for one in found if one not in masters]


def serving_replicas(brokers: Mapping[str, Mapping[int, str]]) -> dict[str, str]:
    """Returns, per broker, the address of its master, or of a slave while it has no master."""
    found = {name: choose_replica(addresses, MASTER_ID) for name, addresses in sorted(brokers.items())}
    return {name: replica.address for name, replica in found.items() if replica is not None}


def address_of(view: RouteView, queue: MessageQueue) -> str:
    """Returns the address at which the queue is read: its master, or a slave. Raises NoRoute."""
    replica = choose_replica(view.addresses.get(queue.broker_name, {}), MASTER_ID)
    if replica is None:
        raise NoRoute(f"no address is known for broker {queue.broker_name!r} of topic {queue.topic!r}")
    return replica.address


def require_inside(ends: Mapping[MessageQueue, QueueRange], queue: MessageQueue, offset: int | None) -> None:
    """Checks a queue, and an offset if given, against the offset ranges of its topic.

    Raises:  QueueNotFound; BadRequest for an offset outside the queue.
    """
    if queue not in ends:
        raise QueueNotFound(f"topic {queue.topic!r} has no queue {queue.queue_id} at {queue.broker_name!r}")
    one = ends[queue]
    if offset is not None and not one.min_offset <= offset <= one.max_offset:
        raise BadRequest(
            f"offset {offset} of queue {queue.queue_id} at {queue.broker_name!r}: must be from"
            f" {one.min_offset} to {one.max_offset}"
        )
