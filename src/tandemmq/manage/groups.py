"""The consumer groups of a cluster: their settings, members and lag, and changes of them.

`read_groups` sends one request to each broker and returns all groups; `read_state` and `read_group` ask for
the details of the groups that are shown. Used by commands and by pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tandemmq.api import broker_admin
from tandemmq.client.changes import change_each
from tandemmq.client.groups import OnlineMembers, change_at, read_members
from tandemmq.errors import BadRequest, BrokersAway, GroupNotFound, RequestRejected
from tandemmq.manage.changes import answering_masters
from tandemmq.manage.progress import GroupLag, find_behind_s, read_lags, sum_lag
from tandemmq.manage.reach import READ_TIMEOUT_S, ask_tables, list_silent
from tandemmq.manage.tools import CALL_TIMEOUT_S, Target, Tools, find_targets, serving
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.topic_names import dlq_topic, is_retry_topic, is_system_group
from tandemmq.remoting.client import RemotingClient


@dataclass(frozen=True, slots=True)
class Group:
    """One consumer group with its settings at each broker that has it, by broker name."""

    name: str
    is_system: bool
    configs: Mapping[str, SubscriptionGroupConfig]

    @property
    def can_consume(self) -> bool:
        """True if consumption is allowed at every broker."""
        return all(config.is_consume_enabled for config in self.configs.values())


@dataclass(frozen=True, slots=True)
class ClusterGroups:
    """All groups, by name, the brokers that reported them, and the errors of the others."""

    groups: dict[str, Group]
    targets: list[Target]
    failed: dict[Target, str]


@dataclass(frozen=True, slots=True)
class GroupState:
    """The members and the progress of one group. `retry_count` messages wait in its retry topics;
    `dead_count` are in its dead-letter topic.
    """

    members: OnlineMembers
    lags: list[GroupLag]
    behind_s: int | None
    dead_count: int

    @property
    def lag(self) -> int:
        return sum_lag(self.lags)

    @property
    def retry_count(self) -> int:
        return sum_lag(one for one in self.lags if is_retry_topic(one.queue.topic))

    @property
    def problems(self) -> list[str]:
        """The reasons why members or progress may be incomplete, one for each such broker."""
        return [
            f"{address} does not tell members or progress: {reason}"
            for address, reason in self.members.refused.items()
        ]

    @property
    def topics(self) -> list[str]:
        """The topics in which the group has offsets or subscriptions, except its retry topics."""
        names = {one.queue.topic for one in self.lags} | self.members.subscriptions.keys()
        return sorted(name for name in names if not is_retry_topic(name))


async def read_groups(
    tools: Tools, targets: Iterable[Target] | None = None, *, timeout_s: float = READ_TIMEOUT_S
) -> ClusterGroups:
    """Returns all groups, with one request to one replica of each of these brokers, or of all brokers."""
    if targets is None:
        targets = await find_targets(tools)

    async def ask(target: Target) -> Mapping[str, SubscriptionGroupConfig]:
        return (await broker_admin.query_group_configs(tools.remoting, target.address)).groups

    configs, answered, failed = await ask_tables(serving(targets), ask, timeout_s=timeout_s)
    groups = {name: Group(name, is_system_group(name), held) for name, held in configs.items()}
    return ClusterGroups(groups, answered, failed)


async def read_states(
    tools: Tools, table: ClusterGroups, names: Iterable[str], now_ms: int
) -> dict[str, GroupState]:
    """Returns the state of some groups of the table."""
    shown = list(names)
    addresses = [target.address for target in table.targets]
    states = await asyncio.gather(*(read_state(tools, addresses, name, now_ms) for name in shown))
    return dict(zip(shown, states, strict=True))


async def read_group(tools: Tools, name: str, now_ms: int) -> tuple[Group, GroupState]:
    """Returns a group and its state. Raises GroupNotFound, with the brokers that do not answer."""
    table = await read_groups(tools)
    if name not in table.groups:
        away = "".join(f"; {text}" for text in list_silent(table.failed))
        raise GroupNotFound(f"no broker that answers has the group {name!r}{away}")
    addresses = [target.address for target in table.targets]
    return table.groups[name], await read_state(tools, addresses, name, now_ms)


async def read_state(tools: Tools, masters: list[str], group: str, now_ms: int) -> GroupState:
    """Returns the state of a group, from the brokers at these addresses."""
    members = await read_members(tools.remoting, masters, group)
    lags = await read_lags(tools, masters, group, members=members)
    dead = await asyncio.gather(*(_count_at(tools, address, dlq_topic(group)) for address in masters))
    return GroupState(members, lags, find_behind_s(lags, now_ms), sum(dead))


async def find_group_masters(tools: Tools, group: str) -> list[Target]:
    """Returns the masters that have the group.

    Raises:  BrokersAway when a master cannot be asked whether it has the group; GroupNotFound.
    """
    masters = await answering_masters(tools)
    table = await read_groups(tools, masters, timeout_s=CALL_TIMEOUT_S)
    if away := list_silent(table.failed):
        raise BrokersAway(f"nothing is changed: {'; '.join(away)}")
    if group not in table.groups:
        raise GroupNotFound(f"no broker has the group {group!r}")
    return [one for one in masters if one.broker_name in table.groups[group].configs]


async def change_group(
    tools: Tools, targets: Iterable[Target], group: str, changes: Mapping[str, Any]
) -> dict[Target, SubscriptionGroupConfig]:
    """Creates a group, or changes the given fields of its settings, at these brokers. Returns the settings
    that were sent to each of them. Raises the errors of `change_each`.
    """

    async def change(target: Target) -> SubscriptionGroupConfig:
        held = await _read_config(tools.remoting, target.address, group)
        held = held or SubscriptionGroupConfig(name=group)
        return await change_at(tools.remoting, target.address, held, changes)

    return await change_each(targets, change)


async def delete_group(
    tools: Tools, targets: Iterable[Target], group: str, *, removes_offsets: bool
) -> list[Target]:
    """Deletes a group at these brokers; returns them. Raises the errors of `change_each`."""

    deleted = await change_each(
        targets,
        lambda one: broker_admin.delete_group(
            tools.remoting, one.address, group, removes_offsets=removes_offsets
        ),
    )
    return list(deleted)


async def delete_everywhere(tools: Tools, group: Group, *, removes_offsets: bool = True) -> None:
    """Deletes the group at each master that has it.

    Raises:  BadRequest for a group of the brokers or of tools; the errors of `find_group_masters`, before
             anything is deleted, and of `change_each`.
    """
    if group.is_system:
        raise BadRequest(f"{group.name} is a group of the brokers or of tools")
    masters = await find_group_masters(tools, group.name)
    await delete_group(tools, masters, group.name, removes_offsets=removes_offsets)


async def _read_config(remoting: RemotingClient, address: str, group: str) -> SubscriptionGroupConfig | None:
    """Returns the group's settings at a broker, None if it lacks the group. A RocketMQ 4.9 broker can only
    list all groups; then the group is picked from the list.
    """
    try:
        return await broker_admin.query_group_config(remoting, address, group)
    except RequestRejected as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
    return (await broker_admin.query_group_configs(remoting, address)).groups.get(group)


async def _count_at(tools: Tools, address: str, topic: str) -> int:
    """Returns the number of messages of a topic at one broker; 0 if it lacks the topic."""
    try:
        stats = await broker_admin.query_topic_stats(tools.remoting, address, topic)
    except RequestRejected:
        return 0
    return sum(one.max_offset - one.min_offset for one in stats.queues.values())
