"""Admin: topics, offsets and the state of the cluster, for tools and scripts.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.ensure_topic("Orders", queue_count=8)

A call about a whole topic queries, or acts on, every broker that hosts a part of the topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from tandemmq.api import broker_admin, broker_consume, nameserver
from tandemmq.client import admin_topics
from tandemmq.client.changes import change_each
from tandemmq.client.consumer.replica_choice import choose_replica
from tandemmq.client.instance import Client, ClientInstance, InstanceUse
from tandemmq.client.options import ClientOptions, ServerNames
from tandemmq.client.route_cache import RouteView, build_view, is_known
from tandemmq.errors import (
    BadRequest,
    BrokerUnreachable,
    GroupNotFound,
    NoRoute,
    NotPermitted,
    ProtocolError,
    RequestRejected,
    RequestTimeout,
    TopicNotFound,
)
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.route import ClusterInfo, TopicRoute
from tandemmq.protocol.bodies.tables import PERMISSION_DEFAULT, TopicConfig
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.record import Record
from tandemmq.protocol.requests.consume import QueryMessageRequest
from tandemmq.protocol.topic_names import check_topic
from tandemmq.remoting.options import render_address
from tandemmq.units import MASTER_ID

ROUTE_WAIT_S = 10.0
ROUTE_POLL_S = 0.05
VIEWS_AT_ONCE_MAX = 16
"""The number of brokers that are asked for one message at the same time."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The offsets `[min_offset, max_offset)` of the messages in a queue."""

    min_offset: int
    max_offset: int

    @property
    def count(self) -> int:
        return self.max_offset - self.min_offset


class Admin(Client):
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

    # Topics

    async def create_topic(
        self,
        topic: str,
        *,
        queue_count: int = 4,
        permission: int = PERMISSION_DEFAULT,
        cluster: str | None = None,
        attributes: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> bool:
        """Creates the topic on every master of the cluster that lacks it; returns once its route is known.

        Returns True if a master lacked the topic. An existing topic is not changed. If its settings differ,
        that is an error unless `exist_ok` is set.

        Raises:  TopicExists for a topic with other settings; BadRequest for an invalid name, a count below 1,
                 or a missing `cluster` when the number of clusters is not one; NoRoute when the cluster has
                 no master, or the route does not appear; PartlyChanged when some of several masters failed.
        """
        wanted = _new_topic(topic, queue_count, permission, attributes)
        masters = await self._masters(cluster)
        route = await self._query_route(topic)
        is_new = await admin_topics.create(self._remoting, masters, wanted, route, exist_ok=exist_ok)
        await self._wait_for_route(topic, set(masters))
        return is_new

    async def ensure_topic(
        self,
        topic: str,
        *,
        queue_count: int = 4,
        permission: int = PERMISSION_DEFAULT,
        cluster: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> bool:
        """Ensures that the topic has at least `queue_count` queues on every master of the cluster.

        Meant for the start of an application. Creates the topic where it is missing and adds queues where
        there are fewer; other settings are kept. Returns True if anything was changed. `permission` and
        `attributes` apply only where the topic is created.
        Raises:  the errors of `create_topic`, except TopicExists.
        """
        wanted = _new_topic(topic, queue_count, permission, attributes)
        masters = await self._masters(cluster)
        is_changed = await admin_topics.grow(self._remoting, masters, wanted)
        await self._wait_for_route(topic, set(masters))
        return is_changed

    async def update_topic(
        self,
        topic: str,
        *,
        queue_count: int | None = None,
        permission: int | None = None,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        force: bool = False,
    ) -> None:
        """Changes the given settings of a topic on every master of the cluster that has it; other settings
        are kept.

        When the number of queues is reduced, producers stop using the removed queues with their next route,
        within 30 s, while consumers continue to read them. The read queues are removed only when every group
        of the topic has consumed their messages. `force` removes them at once and makes unread messages
        unreachable.

        Raises:  TopicHasUnread when read queues have to stay (all other changes are applied); TopicNotFound;
                 BadRequest for a count below 1, or a missing `cluster` when the number of clusters is not
                 one.
        """
        admin_topics.require_queue_count(queue_count)
        changes: dict[str, object] = {"permission": permission, "attributes": attributes}
        if queue_count is not None:
            changes |= {"read_queue_count": queue_count, "write_queue_count": queue_count}
        named = {name: value for name, value in changes.items() if value is not None}
        masters = await self._masters(cluster)
        await admin_topics.change(self._remoting, masters, topic, named, force=force)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Deletes the topic on every master of the cluster and at the name servers; an unknown topic is not
        an error. Slaves follow their master. The name servers follow once every master has deleted it.

        Raises:  NoRoute when a broker of the cluster has no master now: that broker may bring the topic back.
                 PartlyChanged when some of several masters failed.
        """
        info = await self.cluster_info()
        name = _cluster_name(info, cluster)
        found = {one: info.brokers[one].addresses.get(MASTER_ID) for one in info.clusters[name]}
        masters = {one: address for one, address in found.items() if address is not None}
        without_master = [one for one in found if one not in masters]
        await change_each(masters, lambda address: broker_admin.delete_topic(self._remoting, address, topic))
        servers = self._instance.name_servers.addresses
        await change_each(
            {address: address for address in servers},
            lambda address: nameserver.delete_topic(self._remoting, address, topic, name),
        )
        self._instance.routes.untrack(topic)
        if without_master:
            raise NoRoute(
                f"topic {topic!r} is deleted, but not at {', '.join(without_master)}, which has no master"
                " now: delete it again when it has one"
            )

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
                self._remoting, _address_of(view, queue), topic, queue.queue_id, time_ms
            )
            for queue in view.subscribe_queues
        }

    # Groups

    async def committed_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Returns, per queue, the committed offset of the group; None for a queue without a commit."""
        view = await self._view(topic)
        return {
            queue: await broker_consume.query_committed_offset(
                self._remoting, _address_of(view, queue), group, topic, queue.queue_id, zero_if_missing=False
            )
            for queue in view.subscribe_queues
        }

    async def lag(self, group: str, topic: str) -> int:
        """Returns the number of messages of the topic that the group has not consumed yet. A queue without a
        commit counts with all its messages.

        Raises:  GroupNotFound when the group has neither an offset of the topic nor a member that reads it.
        """
        committed = await self.committed_offsets(group, topic)
        if all(offset is None for offset in committed.values()):
            await self._require_group(group, topic)
        total = 0
        for queue, one in (await self.topic_offsets(topic)).items():
            offset = committed.get(queue)
            total += one.max_offset - max(offset if offset is not None else 0, one.min_offset)
        return total

    async def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Stores the committed offset of one queue. The group must not be running."""
        view = await self._view(queue.topic)
        address = _address_of(view, queue)
        await broker_consume.commit_offset(
            self._remoting, address, group, queue.topic, queue.queue_id, offset
        )

    async def reset_offsets(self, group: str, topic: str, time_ms: int) -> dict[MessageQueue, int]:
        """Moves a group, running or not, to a time (-1: to the end). Returns the new offset per queue.

        Raises:  NoRoute when a broker has no master, before anything is moved; PartlyChanged when some of
                 several brokers failed.
        """
        view = await self._view(topic)
        masters: dict[str, str] = {}
        for broker_name in sorted({queue.broker_name for queue in view.subscribe_queues}):
            address = view.master_address(broker_name)
            if address is None:
                raise NoRoute(f"broker {broker_name!r} has no master: offsets cannot be reset there")
            masters[broker_name] = address
        moved = await change_each(
            masters,
            lambda address: broker_admin.reset_offsets(self._remoting, address, group, topic, time_ms),
        )
        return {queue: offset for one in moved.values() for queue, offset in one.items()}

    # Messages

    async def find_by_id(self, message_id: str) -> Record | None:
        """Returns the message with a broker's message id; None if no broker has it.

        The id contains the address at which the broker stored the message. A client of another network
        knows that broker by another address, and after a failover another broker has the message: the
        brokers are asked at the addresses that the name server announces to this client, and the record
        shows which answer is the right one. The address in the id is never dialled unless it is announced.
        Raises:  BadRequest for an invalid message id; BrokerUnreachable or NotPermitted if the message was
                 not found and a broker could not be asked, or refused.
        """
        where = decode_message_id(message_id)
        stored_at = render_address((where.ip, where.port))
        info = await self.cluster_info()
        known = {address for broker in info.brokers.values() for address in broker.addresses.values()}
        addresses = sorted(known, key=lambda one: (one != stored_at, one))
        unreachable: list[str] = []
        denial: NotPermitted | None = None

        async def view(address: str) -> Record | None:
            nonlocal denial
            try:
                return await broker_admin.view_message(self._remoting, address, where.log_offset)
            except (BrokerUnreachable, RequestTimeout) as error:
                unreachable.append(str(error))
            except NotPermitted as error:
                denial = error
            except (RequestRejected, ProtocolError):
                pass  # no message begins at this offset of another broker's log
            return None

        begin = 0
        while begin < len(addresses):
            # The broker that stored the message is asked alone: mostly it has it.
            end = begin + (1 if addresses[begin] == stored_at else VIEWS_AT_ONCE_MAX)
            for record in await asyncio.gather(*map(view, addresses[begin:end])):
                if record is not None and record.store_address == (where.ip, where.port):
                    return record
            begin = end
        if unreachable:
            raise BrokerUnreachable(f"no other broker has message {message_id}; {'; '.join(unreachable)}")
        if denial is not None:
            raise denial
        return None

    async def find_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 32,
        begin_at_ms: int = 0,
        end_at_ms: int = broker_admin.END_OF_TIME_MS,
    ) -> list[Record]:
        """Returns messages that carry the key and were stored between these times, from every broker of the
        topic.
        """
        span = (begin_at_ms, end_at_ms)
        return await self._find(topic, key, count_max=count_max, is_unique_key=False, span=span)

    async def find_by_unique_key(self, topic: str, unique_key: str) -> list[Record]:
        """Returns the message with the producer's id; several messages when a send was repeated."""
        return await self._find(topic, unique_key, count_max=32, is_unique_key=True)

    # Inside

    async def _find(
        self,
        topic: str,
        key: str,
        *,
        count_max: int,
        is_unique_key: bool,
        span: tuple[int, int] = (0, broker_admin.END_OF_TIME_MS),
    ) -> list[Record]:
        view = await self._view(topic)
        header = QueryMessageRequest(
            topic=topic,
            key=key,
            count_max=count_max,
            begin_at_ms=span[0],
            end_at_ms=span[1],
            is_unique_key=is_unique_key,
        )
        records: list[Record] = []
        for address in _serving(view):
            records += await broker_admin.query_messages(self._remoting, address, header)
        return records[:count_max]

    async def _view(self, topic: str) -> RouteView:
        return build_view(topic, await self.topic_route(topic))

    async def _masters(self, cluster: str | None) -> dict[str, str]:
        """Returns broker name -> address, for every master of the cluster."""
        info = await self.cluster_info()
        name = _cluster_name(info, cluster)
        addresses = ((one, info.brokers[one].addresses.get(MASTER_ID)) for one in info.clusters[name])
        masters = {one: address for one, address in addresses if address is not None}
        if not masters:
            raise NoRoute(f"cluster {name!r} has no master")
        return masters

    async def _query_route(self, topic: str) -> TopicRoute | None:
        """Returns the topic's route; None when no name server knows the topic."""
        return await self._instance.name_servers.ask(
            lambda client, address: nameserver.query_route(client, address, topic), knows=is_known
        )

    async def _wait_for_route(self, topic: str, broker_names: set[str]) -> None:
        clock = self._instance.clock
        deadline = clock.monotonic() + ROUTE_WAIT_S
        while True:
            route = await self._query_route(topic)
            if route is not None and broker_names <= {entry.broker_name for entry in route.queues}:
                return
            if clock.monotonic() > deadline:
                raise NoRoute(f"the brokers have topic {topic!r}, but the name server does not route it yet")
            await clock.sleep(ROUTE_POLL_S)

    async def _require_group(self, group: str, topic: str) -> None:
        view = await self._view(topic)
        for address in _serving(view):
            if group in await broker_admin.query_groups_of_topic(self._remoting, address, topic):
                return
        raise GroupNotFound(f"group {group!r} has no offset in topic {topic!r}, and no member reads it")

    async def _queue_range(self, view: RouteView, queue: MessageQueue) -> QueueRange:
        address = _address_of(view, queue)
        low = await broker_consume.query_min_offset(self._remoting, address, queue.topic, queue.queue_id)
        high = await broker_consume.query_max_offset(self._remoting, address, queue.topic, queue.queue_id)
        return QueueRange(low, high)


def _new_topic(
    topic: str, queue_count: int, permission: int, attributes: Mapping[str, str] | None
) -> TopicConfig:
    """Builds the configuration of a topic to create. Raises BadRequest."""
    check_topic(topic)
    admin_topics.require_queue_count(queue_count)
    return TopicConfig(
        name=topic,
        read_queue_count=queue_count,
        write_queue_count=queue_count,
        permission=permission,
        attributes=dict(attributes or {}),
    )


def known_clusters(info: ClusterInfo) -> str:
    """Returns the part of an error text that lists the known clusters."""
    if not info.clusters:
        return "no broker is registered at these name servers"
    return f"known clusters: {', '.join(sorted(info.clusters))}"


def _cluster_name(info: ClusterInfo, cluster: str | None) -> str:
    if cluster is not None:
        if cluster not in info.clusters:
            raise BadRequest(f"unknown cluster {cluster!r}; {known_clusters(info)}")
        return cluster
    if not info.clusters:
        raise BadRequest(known_clusters(info))
    if len(info.clusters) != 1:
        raise BadRequest(f"several clusters exist: name one of {sorted(info.clusters)}")
    return next(iter(info.clusters))


def _serving(view: RouteView) -> list[str]:
    """Returns, per broker of the topic, the address of its master, or of a slave while it has no master."""
    replicas = (choose_replica(addresses, MASTER_ID) for _, addresses in sorted(view.addresses.items()))
    return [replica.address for replica in replicas if replica is not None]


def _address_of(view: RouteView, queue: MessageQueue) -> str:
    replica = choose_replica(view.addresses.get(queue.broker_name, {}), MASTER_ID)
    if replica is None:
        raise NoRoute(f"no address is known for broker {queue.broker_name!r} of topic {queue.topic!r}")
    return replica.address
