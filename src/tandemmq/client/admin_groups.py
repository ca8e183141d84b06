"""The chapter of `Admin` about consumer groups: their settings, members, offsets and lag.

Groups are read from the brokers' whole tables of groups: a broker that is asked for the settings of one group
may create it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from tandemmq.api import broker_admin, broker_consume
from tandemmq.api.broker_admin import END_OF_QUEUE_MS
from tandemmq.client.admin_base import (
    AdminClient,
    address_of,
    cluster_name,
    masters_of,
    require_inside,
    serving_replicas,
)
from tandemmq.client.changes import change_each
from tandemmq.client.groups import (
    GroupChanges,
    change_at,
    check_changes,
    move_group,
    move_queue,
    read_members,
)
from tandemmq.client.route_cache import RouteView
from tandemmq.errors import BadRequest, GroupExists, GroupNotFound, NoRoute
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import ClientConnection, SubscriptionData
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.protocol.requests.admin import IfExists
from tandemmq.protocol.topic_names import check_group, is_system_group


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One consumer group: its online members by client id, each with its address; its newest subscription by
    topic; and its settings by broker name. `problems` has the reasons of the brokers, by address, that do
    not report the members.
    """

    name: str
    members: Mapping[str, ClientConnection]
    subscriptions: Mapping[str, SubscriptionData]
    settings: Mapping[str, SubscriptionGroupConfig]
    problems: Mapping[str, str]


class GroupAdmin(AdminClient):
    """The part of `Admin` for consumer groups."""

    async def groups(self) -> list[str]:
        """Returns the names of all groups, sorted, without those of brokers and tools."""
        tables = await self._group_tables(await self._serving_brokers())
        return sorted({name for table in tables.values() for name in table if not is_system_group(name)})

    async def group_config(self, group: str) -> dict[str, SubscriptionGroupConfig]:
        """Returns the settings of a group at each broker that has it, by broker name. Queries the masters, or
        a slave where a broker has no master. Raises GroupNotFound.
        """
        configs = await self._held_configs(await self._serving_brokers(), group)
        if not configs:
            raise GroupNotFound(f"no broker has the group {group!r}")
        return configs

    async def describe_group(self, group: str) -> GroupDescription:
        """Returns the members, subscriptions and settings of a group. Raises GroupNotFound if no broker has
        the group and no member is online.
        """
        brokers = await self._serving_brokers()
        configs, online = await asyncio.gather(
            self._held_configs(brokers, group), read_members(self._remoting, brokers.values(), group)
        )
        if not configs and not online.members:
            raise GroupNotFound(f"no broker has the group {group!r}, and no member is online")
        newest = {
            topic: max(by_broker.values(), key=lambda data: data.version)
            for topic, by_broker in sorted(online.subscriptions.items())
        }
        return GroupDescription(group, dict(sorted(online.members.items())), newest, configs, online.refused)

    async def create_group(
        self,
        group: str,
        *,
        cluster: str | None = None,
        exist_ok: bool = False,
        **settings: Unpack[GroupChanges],
    ) -> bool:
        """Creates the group on every master of the cluster that lacks it. Settings that are not given have
        RocketMQ's defaults.

        Returns True if a master lacked the group. An existing group is not changed. If its settings differ
        from the given ones, that is an error unless `exist_ok` is set.

        Raises:  GroupExists for a group with other settings. Nothing was created then, except when another
                 caller created the group at the same moment. BadRequest for an invalid name or setting, or a
                 missing `cluster` when the number of clusters is not one. NoRoute when the cluster has no
                 master. PartlyChanged when some of several masters failed.
        """
        check_group(group)
        fields = check_changes(settings)
        masters = await self._masters(cluster)
        held = await self._held_configs(masters, group)
        if not exist_ok:
            for name, config in held.items():
                _require_equal(name, config, fields)
        lacking = [name for name in masters if name not in held]
        new = SubscriptionGroupConfig(name=group)

        async def create_at(name: str) -> None:
            await change_at(self._remoting, masters[name], new, fields, if_exists=IfExists.KEEP)
            if not exist_ok:
                for config in (await self._held_configs({name: masters[name]}, group)).values():
                    _require_equal(name, config, fields)

        await change_each(lacking, create_at)
        return bool(lacking)

    async def update_group(
        self, group: str, *, cluster: str | None = None, **settings: Unpack[GroupChanges]
    ) -> None:
        """Changes the given settings of a group on every master of the cluster that has it; other settings
        are kept.

        Raises:  GroupNotFound; BadRequest for an invalid setting, or a missing `cluster` when the number of
                 clusters is not one; PartlyChanged when some of several masters failed.
        """
        fields = check_changes(settings)
        masters = await self._masters(cluster)
        held = await self._held_configs(masters, group)
        if not held:
            raise GroupNotFound(f"none of the masters has the group {group!r}")
        await change_each(held, lambda name: change_at(self._remoting, masters[name], held[name], fields))

    async def delete_group(
        self, group: str, *, cluster: str | None = None, keep_offsets: bool = False
    ) -> None:
        """Deletes the group with its offsets on every master of the cluster; an unknown group is not an
        error. Slaves follow their master. With `keep_offsets` a new group of that name continues at them.

        Raises:  BadRequest for a group of brokers or tools. NoRoute when a broker of the cluster has no
                 master now: that broker keeps the group. PartlyChanged when some of several masters failed.
        """
        if is_system_group(group):
            raise BadRequest(f"{group} is a group of the brokers or of tools")
        info = await self.cluster_info()
        masters, without_master = masters_of(info, cluster_name(info, cluster))
        await change_each(
            masters,
            lambda name: broker_admin.delete_group(
                self._remoting, masters[name], group, removes_offsets=not keep_offsets
            ),
        )
        if without_master:
            raise NoRoute(
                f"group {group!r} is deleted, but not at {', '.join(without_master)}, which has no master"
                " now: delete it again when it has one"
            )

    # Offsets

    async def committed_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Returns, per queue, the committed offset of the group; None for a queue without a commit."""
        view = await self._view(topic)
        return {
            queue: await broker_consume.query_committed_offset(
                self._remoting, address_of(view, queue), group, topic, queue.queue_id, zero_if_missing=False
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
        address = address_of(view, queue)
        await broker_consume.commit_offset(
            self._remoting, address, group, queue.topic, queue.queue_id, offset
        )

    async def set_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Moves a group, running or not, to the given offset of each of these queues; other queues keep
        theirs. Returns the new offsets.

        Raises:  QueueNotFound, BadRequest for an offset outside its queue, and NoRoute when a broker has no
                 master, before anything is moved; BadRequest at a broker of RocketMQ 4.9, which moves single
                 queues only while no member is online; PartlyChanged when some of several queues failed.
        """
        masters: dict[tuple[str, str], str] = {}
        for topic in sorted({queue.topic for queue in offsets}):
            ends = await self.topic_offsets(topic)
            moved = {queue: offset for queue, offset in offsets.items() if queue.topic == topic}
            for queue, offset in moved.items():
                require_inside(ends, queue, offset)
            found = _require_masters(await self._view(topic), {queue.broker_name for queue in moved})
            masters |= {(topic, name): address for name, address in found.items()}

        named = {f"{one.topic} {one.broker_name}/{one.queue_id}": one for one in offsets}

        async def move(name: str) -> dict[MessageQueue, int]:
            queue = named[name]
            address = masters[queue.topic, queue.broker_name]
            return await move_queue(self._remoting, address, group, queue, offsets[queue])

        return _merged(await change_each(named, move))

    async def reset_offsets(self, group: str, topic: str, time_ms: int) -> dict[MessageQueue, int]:
        """Moves a group, running or not, to a time (-1: to the end). Returns the new offset per queue.

        Raises:  NoRoute when a broker has no master, before anything is moved; PartlyChanged when some of
                 several brokers failed.
        """
        view = await self._view(topic)
        queues: dict[str, list[MessageQueue]] = {}
        for queue in view.subscribe_queues:
            queues.setdefault(queue.broker_name, []).append(queue)
        masters = _require_masters(view, queues)

        async def move(name: str) -> dict[MessageQueue, int]:
            return await move_group(self._remoting, masters[name], group, queues[name], time_ms)

        return _merged(await change_each(masters, move))

    async def skip_to_end(self, group: str, topic: str) -> dict[MessageQueue, int]:
        """Moves a group, running or not, to the end of each queue of the topic: it never consumes the
        messages of now. Returns the new offset per queue. Raises as `reset_offsets` does.
        """
        return await self.reset_offsets(group, topic, END_OF_QUEUE_MS)

    # Inside

    async def _serving_brokers(self) -> dict[str, str]:
        """Returns, for every broker of all clusters, the address of its master, or of a slave."""
        info = await self.cluster_info()
        return serving_replicas({name: broker.addresses for name, broker in info.brokers.items()})

    async def _group_tables(
        self, brokers: Mapping[str, str]
    ) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        """Returns all groups of each of these brokers, by broker name and group."""
        found = await asyncio.gather(
            *(broker_admin.query_group_configs(self._remoting, one) for one in brokers.values())
        )
        return {name: table.groups for name, table in zip(brokers, found, strict=True)}

    async def _held_configs(
        self, brokers: Mapping[str, str], group: str
    ) -> dict[str, SubscriptionGroupConfig]:
        """Returns the settings of a group at those of these brokers that have it, by broker name."""
        tables = await self._group_tables(brokers)
        return {name: table[group] for name, table in tables.items() if group in table}

    async def _require_group(self, group: str, topic: str) -> None:
        view = await self._view(topic)
        for address in serving_replicas(view.addresses).values():
            if group in await broker_admin.query_groups_of_topic(self._remoting, address, topic):
                return
        raise GroupNotFound(f"group {group!r} has no offset in topic {topic!r}, and no member reads it")


def _require_masters(view: RouteView, broker_names: Iterable[str]) -> dict[str, str]:
    """Returns the masters of these brokers, as broker name -> address. Raises NoRoute."""
    masters: dict[str, str] = {}
    for name in sorted(broker_names):
        address = view.master_address(name)
        if address is None:
            raise NoRoute(f"broker {name!r} has no master: offsets cannot be reset there")
        masters[name] = address
    return masters


def _merged(moved: Mapping[str, dict[MessageQueue, int]]) -> dict[MessageQueue, int]:
    return {queue: offset for one in moved.values() for queue, offset in one.items()}


def _require_equal(broker_name: str, held: SubscriptionGroupConfig, fields: Mapping[str, Any]) -> None:
    """Raises GroupExists if the group at a broker differs from these fields of a request."""
    wanted = {name: (getattr(held, name), value) for name, value in fields.items() if name != "attributes"}
    for key, value in fields.get("attributes", {}).items():
        wanted[key[1:]] = (held.attributes.get(key[1:]), value if key.startswith("+") else None)
    differs = [f"{name}={has}, not {wants}" for name, (has, wants) in wanted.items() if has != wants]
    if differs:
        raise GroupExists(
            f"group {held.name!r} exists with other settings, at {broker_name} it has {'; '.join(differs)}:"
            " exist_ok=True accepts it as it is, update_group changes it"
        )
