"""Admin: topics, groups, offsets, access and the state of the cluster, for tools and scripts.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.ensure_topic("Orders", queue_count=8)

A call about a whole topic queries, or acts on, every broker that hosts a part of the topic.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.api import broker_admin, nameserver
from tandemmq.client import admin_topics
from tandemmq.client.admin_access import AccessAdmin
from tandemmq.client.admin_base import cluster_name, masters_of, serving_replicas
from tandemmq.client.admin_groups import GroupAdmin
from tandemmq.client.admin_messages import MessageAdmin
from tandemmq.client.changes import change_each
from tandemmq.errors import NoRoute, TopicNotFound
from tandemmq.protocol.bodies.tables import PERMISSION_DEFAULT, TopicConfig
from tandemmq.protocol.topic_names import check_topic

ROUTE_WAIT_S = 10.0
ROUTE_POLL_S = 0.05


class Admin(GroupAdmin, MessageAdmin, AccessAdmin):
    """A client for administration. Use it from one event loop only."""

    async def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """Returns the settings of a topic at each broker that has it, by broker name. Queries the masters, or
        a slave where a broker has no master. Raises TopicNotFound.
        """
        view = await self._view(topic)
        found = {
            name: await admin_topics.read_config(self._remoting, address, topic)
            for name, address in serving_replicas(view.addresses).items()
        }
        configs = {name: config for name, config in found.items() if config is not None}
        if not configs:
            raise TopicNotFound(f"none of the brokers has the topic {topic!r}")
        return configs

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
        name = cluster_name(info, cluster)
        masters, without_master = masters_of(info, name)
        await change_each(masters, lambda one: broker_admin.delete_topic(self._remoting, masters[one], topic))
        await change_each(
            self.name_servers, lambda address: nameserver.delete_topic(self._remoting, address, topic, name)
        )
        self._instance.routes.untrack(topic)
        if without_master:
            raise NoRoute(
                f"topic {topic!r} is deleted, but not at {', '.join(without_master)}, which has no master"
                " now: delete it again when it has one"
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
