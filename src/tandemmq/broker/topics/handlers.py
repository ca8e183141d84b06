"""Requests about topics and groups: `TopicHandlers` and `GroupHandlers` change and show them.

Source: spec semantics 16.3 and 16.4, spec remoting 8.6.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import drop_or_reject, invalid, read_body, require_group, require_topic
from tandemmq.broker.options import PERMISSION_MAX
from tandemmq.broker.table_file import save_or_reject
from tandemmq.broker.topics.attributes import apply_group_attributes, apply_topic_attributes
from tandemmq.broker.topics.topic_table import system_topic_names
from tandemmq.errors import GroupNotFound, NotPermitted, ServiceNotAvailable
from tandemmq.protocol.bodies import tables
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.command import Command
from tandemmq.protocol.pop_receipts import pop_retry_v1, pop_retry_v2
from tandemmq.protocol.requests import admin
from tandemmq.protocol.topic_names import group_fault, is_system_topic, topic_fault
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Address
from tandemmq.telemetry import events
from tandemmq.units import INT32_MAX

log = logging.getLogger(__name__)

QUEUE_COUNT_MAX = 65_536
"""TandemMQ's own limit: a queue id has 32 bits, but every queue with messages is a directory and a file."""

_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


@dataclass(slots=True)
class TopicHandlers:
    """Creates or changes topics (17, 18), with attributes as `+key=value,-key`; deletes (215) and shows one
    (351); lists the system's (305).

    Each change of the topic table is on disk before it is answered. A new topic is also known to the name
    servers: `wait_registered` waits for them, once the broker is registered. `forward_deletion`: asks the
    elected master to delete a topic; None if the master is not elected.
    """

    core: BrokerCore
    wait_registered: Callable[[Iterable[str]], Awaitable[None]]
    forward_deletion: Callable[[str], Awaitable[None]] | None
    _system_names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self._system_names = system_topic_names(self.core.options)

    async def handle_create(self, channel: Channel, command: Command) -> Command:
        """Handles UPDATE_AND_CREATE_TOPIC (17)."""
        header = command.decode(admin.CreateTopicRequest)
        self._require_master()
        config = tables.TopicConfig(
            name=header.topic,
            read_queue_count=header.read_queue_count,
            write_queue_count=header.write_queue_count,
            permission=header.permission,
            filter_type=header.topic_filter_type,
            sys_flag=header.topic_sys_flag or 0,
            is_ordered=header.is_ordered,
        )
        config = self._checked(*self._kept(config, header.attributes, header.if_exists))
        hidden = self._hidden(config)
        if self._put(config, channel.peer, hidden):
            await save_or_reject(self.core.tables.saver, self.core.tables.topic_file)
        await self.wait_registered([config.name])
        return command.reply(remark=hidden)

    async def handle_create_list(self, channel: Channel, command: Command) -> Command:
        """Handles UPDATE_AND_CREATE_TOPIC_LIST (18): all topics are changed, or none if one is rejected."""
        configs = read_body(tables.TopicConfigList, command.body).topics
        self._require_master()
        if not configs:
            raise invalid("topicConfigList must name at least one topic")
        checked = [self._checked(config, tables.as_changes(config.attributes)) for config in configs]
        self.core.topics.require_room(config.name for config in checked)
        changed = [config for config in checked if self._put(config, channel.peer, self._hidden(config))]
        if changed:
            await save_or_reject(self.core.tables.saver, self.core.tables.topic_file)
        await self.wait_registered([config.name for config in checked])
        return command.reply()

    def _kept(
        self, config: tables.TopicConfig, attributes: str | None, if_exists: str | None
    ) -> tuple[tables.TopicConfig, str | None]:
        """Returns the configuration and the changed attributes of a request, with what an existing topic
        keeps. Nothing is awaited until the table is changed, so that no other request comes between.
        """
        if if_exists is not None and if_exists not in tuple(admin.IfExists):
            raise invalid(f"tmIfExists {if_exists[:32]!r} must be one of {', '.join(admin.IfExists)}")
        before = self.core.topics.get(config.name)
        if before is None or if_exists is None:
            return config, attributes
        if if_exists == admin.IfExists.KEEP:
            return before, None
        base = config
        if if_exists == admin.IfExists.GROW:
            base, attributes = before, None
        grown = replace(
            base,
            read_queue_count=max(before.read_queue_count, config.read_queue_count),
            write_queue_count=max(before.write_queue_count, config.write_queue_count),
        )
        return grown, attributes

    def _checked(self, config: tables.TopicConfig, changes: str | None) -> tables.TopicConfig:
        """Returns the resulting topic with its attributes changed as requested. Raises BadRequest."""
        self._check(config)
        before = self.core.topics.get(config.name)
        attributes = apply_topic_attributes(
            {} if before is None else before.attributes,
            changes,
            is_new=before is None,
            is_mixed_allowed=self.core.options.mixed_message_type_enable,
        )
        return msgspec.structs.replace(config, attributes=attributes)

    def _hidden(self, config: tables.TopicConfig) -> str | None:
        """Describes the unread messages in queues that the change removes from reading; None if there are
        none.

        The change is made all the same, because mqadmin expects that; TandemMQ's tools ask before they shrink
        a topic.
        """
        topic, before = config.name, self.core.topics.get(config.name)
        removed = range(config.read_queue_count, 0 if before is None else before.read_queue_count)
        begins = {queue_id: self.core.store.queue_min(topic, queue_id) for queue_id in removed}
        held = sum(self.core.store.queue_max(topic, queue_id) - begin for queue_id, begin in begins.items())
        if not held:
            return None
        unread = {"": held}  # by group; "" if no group reads the topic
        for group in self.core.offsets.groups_of(topic):
            queues = self.core.offsets.committed_queues(group, topic)
            read = sum(max(0, queues[one] - begins[one]) for one in queues.keys() & begins.keys())
            unread[group] = held - read
            unread.pop("", None)
        group, count = max(unread.items(), key=lambda one: one[1])
        if count <= 0:
            return None
        reader = f"the group {group} has" if group else "consumers have"
        return (
            f"queues {removed.start} to {removed.stop - 1} of {config.name} are no longer read, and {reader}"
            f" not read {count} of their messages: set the read queues back to {removed.stop} until they are"
            " read"
        )

    def _put(self, config: tables.TopicConfig, peer: Address, hidden: str | None) -> bool:
        is_new = self.core.topics.get(config.name) is None
        if not self.core.topics.put(config, self.core.clock.now_ms()):
            return False
        if hidden is not None:
            log.warning(events.TOPIC_SHRUNK, extra={"topic": config.name, "reason": hidden, "peer": peer})
        log.info(
            events.TOPIC_CREATED if is_new else events.TOPIC_CHANGED,
            extra={"topic": config.name, "queue_count": config.write_queue_count, "peer": peer},
        )
        return True

    async def handle_delete(self, channel: Channel, command: Command) -> Command:
        """Handles DELETE_TOPIC_IN_BROKER (215), including the topic's offsets and queues; an unknown topic is
        not an error.

        mqadmin sends it to every replica. A slave only answers: its topic goes with the master's next tables.
        A slave with an elected master forwards the request, because the sender may still take it for the
        master. A slave that became master may have queues of a topic that is in no table; they are deleted as
        well, or a new topic of that name would begin with them.
        """
        header = command.decode(admin.DeleteTopicRequest)
        topic = header.topic
        fault = topic_fault(topic)
        if fault:
            raise invalid(fault)
        if self.core.options.validate_system_topic_when_update and self._is_system(topic):
            raise invalid(f"the topic {topic} belongs to the system and must not be deleted")
        if self.core.options.is_slave:
            if self.forward_deletion is not None and header.is_passed_on:
                raise ServiceNotAvailable("this broker is not a master and deletes nothing")
            if self.forward_deletion is not None:
                await self.forward_deletion(topic)
            return command.reply()
        # The topic's pop retries are deleted as well, or a new topic of the name would begin with them.
        retries = {
            name
            for group in self.core.offsets.groups_of(topic)
            for name in (pop_retry_v1(group, topic), pop_retry_v2(group, topic))
        }
        stored = {name for name, _ in self.core.store.queue_keys()}
        names = [n for n in (topic, *sorted(retries)) if n in stored or self.core.topics.get(n) is not None]
        if names:
            await drop_or_reject(self.core.store, names)
            for name in names:
                self._delete(name, channel.peer)
            await save_or_reject(self.core.tables.saver, self.core.tables.topic_file)
        return command.reply()

    def _delete(self, topic: str, peer: Address) -> None:
        """Removes the topic from the tables; its queues are deleted already."""
        self.core.topics.remove(topic, self.core.clock.now_ms())
        self.core.offsets.drop_topic(topic)
        log.info(events.TOPIC_DELETED, extra={"topic": topic, "peer": peer})

    def handle_show(self, channel: Channel, command: Command) -> Command:
        """Handles GET_TOPIC_CONFIG (351)."""
        config = require_topic(self.core.topics, command.decode(admin.TopicConfigRequest).topic)
        return command.reply(body=encode_body(config))

    def handle_system_list(self, channel: Channel, command: Command) -> Command:
        """Handles GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""
        return command.reply(body=tables.encode_topic_list(sorted(self._system_names)))

    def _check(self, config: tables.TopicConfig) -> None:
        fault = topic_fault(config.name)
        if fault:
            raise invalid(fault)
        if self.core.options.validate_system_topic_when_update and self._is_system(config.name):
            raise invalid(f"the topic {config.name} belongs to the system and must not be changed")
        for name, count in (
            ("readQueueNums", config.read_queue_count),
            ("writeQueueNums", config.write_queue_count),
        ):
            if not 0 <= count <= QUEUE_COUNT_MAX:
                raise invalid(f"{name} {count} is outside 0..{QUEUE_COUNT_MAX}")
        if not 0 <= config.permission <= PERMISSION_MAX:
            raise invalid(f"perm {config.permission} is outside 0..{PERMISSION_MAX}")
        if config.filter_type not in _FILTER_TYPES:
            raise invalid(
                f"topicFilterType {config.filter_type[:32]!r} must be one of {', '.join(_FILTER_TYPES)}"
            )

    def _is_system(self, topic: str) -> bool:
        return topic in self._system_names or is_system_topic(topic)

    def _require_master(self) -> None:
        if self.core.options.is_slave:
            raise NotPermitted(
                "this broker is a slave and copies its topics from the master: change them there"
            )


RETRY_QUEUE_COUNT_MAX = 1_024


@dataclass(slots=True)
class GroupHandlers:
    """Creates or changes groups (200, 225), deletes one (207), shows one (352), forbids a topic (353).

    Each change of the group table is on disk before it is answered.
    """

    core: BrokerCore

    async def handle_create(self, channel: Channel, command: Command) -> Command:
        """Handles UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
        if_exists = command.decode(admin.CreateGroupRequest).if_exists
        config = read_body(tables.SubscriptionGroupConfig, command.body)
        self._require_master()
        if if_exists is not None and if_exists != admin.IfExists.KEEP:
            raise invalid(f"tmIfExists {if_exists[:32]!r} must be {admin.IfExists.KEEP} for a group")
        config = self._checked(config)
        if if_exists is not None and self.core.groups.get(config.name) is not None:
            return command.reply()
        if self.core.groups.put(config, self.core.clock.now_ms()):
            await save_or_reject(self.core.tables.saver, self.core.tables.group_file)
        return command.reply()

    async def handle_create_list(self, channel: Channel, command: Command) -> Command:
        """Handles UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225): all are changed, or none if one is
        rejected.
        """
        configs = read_body(tables.GroupConfigList, command.body).groups
        self._require_master()
        if not configs:
            raise invalid("groupConfigList must name at least one group")
        checked = [self._checked(config) for config in configs]
        self.core.groups.require_room(config.name for config in checked)
        now_ms = self.core.clock.now_ms()
        changed = [config for config in checked if self.core.groups.put(config, now_ms)]
        if changed:
            await save_or_reject(self.core.tables.saver, self.core.tables.group_file)
        return command.reply()

    async def handle_forbid(self, channel: Channel, command: Command) -> Command:
        """Handles UPDATE_AND_GET_GROUP_FORBIDDEN (353): returns whether a group may read a topic, after
        changing it if requested.
        """
        header = command.decode(admin.GroupForbiddenRequest)
        group, topic = header.group, header.topic
        if header.is_readable is not None:
            self._require_master()
            require_topic(self.core.topics, topic)
            if self.core.groups.get(group) is None:
                raise GroupNotFound(f"the group {group[:160]!r} does not exist")
            now_ms = self.core.clock.now_ms()
            if self.core.groups.forbid_reading(group, topic, now_ms, is_forbidden=not header.is_readable):
                await save_or_reject(self.core.tables.saver, self.core.tables.group_file)
        is_readable = not self.core.groups.is_read_forbidden(group, topic)
        answer = tables.GroupForbidden(group=group, topic=topic, is_readable=is_readable)
        return command.reply(body=encode_body(answer))

    async def handle_delete(self, channel: Channel, command: Command) -> Command:
        """Handles DELETE_SUBSCRIPTIONGROUP (207); the group's offsets are deleted if the request says so."""
        header = command.decode(admin.DeleteGroupRequest)
        self._require_master()
        drops_offsets = header.cleans_offsets or header.removes_offsets
        now_ms = self.core.clock.now_ms()
        if drops_offsets:
            self.core.offsets.drop_group(header.group, now_ms)
        if self.core.groups.remove(header.group, now_ms):
            await save_or_reject(self.core.tables.saver, self.core.tables.group_file)
        if drops_offsets:
            # A new group of this name must not start at the old group's offsets.
            await save_or_reject(self.core.tables.saver, self.core.tables.offset_file)
        return command.reply()

    def handle_show(self, channel: Channel, command: Command) -> Command:
        """Handles GET_SUBSCRIPTIONGROUP_CONFIG (352). The client is about to use the group, so it is
        created.
        """
        group = command.decode(admin.GroupConfigRequest).group
        config = require_group(self.core.groups, group, self.core.clock.now_ms(), channel.peer[0])
        return command.reply(body=encode_body(config))

    def _checked(self, config: tables.SubscriptionGroupConfig) -> tables.SubscriptionGroupConfig:
        """Returns the resulting group with its attributes changed as requested. Raises BadRequest."""
        _check(config)
        held = self.core.groups.get(config.name)
        before = {} if held is None else held.attributes
        return replace(config, attributes=apply_group_attributes(before, config.attributes))

    def _require_master(self) -> None:
        if self.core.options.is_slave:
            raise NotPermitted(
                "this broker is a slave and copies its groups from the master: change them there"
            )


def _check(config: tables.SubscriptionGroupConfig) -> None:
    """Raises BadRequest for an invalid name or number."""
    fault = group_fault(config.name)
    if fault:
        raise invalid(f"groupName: {fault}")
    for name, value, high in (
        ("retryQueueNums", config.retry_queue_count, RETRY_QUEUE_COUNT_MAX),
        ("brokerId", config.broker_id, INT32_MAX),
        ("whichBrokerWhenConsumeSlowly", config.slow_read_broker_id, INT32_MAX),
    ):
        if not 0 <= value <= high:
            raise invalid(f"{name} {value} of the group {config.name} is outside 0..{high}")
    if not -1 <= config.retry_count_max <= INT32_MAX or not 0 <= config.sys_flag <= INT32_MAX:
        raise invalid(f"retryMaxTimes or groupSysFlag of the group {config.name} is not a 32-bit number")
