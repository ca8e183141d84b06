"""Groups by request: create or change (200, 225), delete (207), show one (352), forbid a topic (353).

Source: spec semantics 16.4.
"""

from __future__ import annotations

from tandemmq.broker.guards import invalid, read_body, require_group, require_topic
from tandemmq.broker.offsets.offset_table import OffsetTable
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.table_file import TableFile, TableSaver, save_or_reject
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import GroupNotFound, NotPermitted
from tandemmq.protocol.bodies.group import (
    GroupForbidden,
    SubscriptionGroupConfig,
    decode_group_config,
    decode_group_config_list,
    encode_group_config,
    encode_group_forbidden,
)
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.admin import DeleteGroupRequest, GroupConfigRequest, GroupForbiddenRequest
from tandemmq.protocol.topic_names import group_fault
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock

RETRY_QUEUE_COUNT_MAX = 1_024
_INT32_MAX = 2**31 - 1


class GroupHandlers:
    """Changes the group table; a change is on disk before it is answered."""

    def __init__(
        self,
        options: BrokerOptions,
        *,
        groups: GroupTable,
        topics: TopicTable,
        offsets: OffsetTable,
        saver: TableSaver,
        file: TableFile,
        clock: Clock,
    ) -> None:
        self._options = options
        self._groups = groups
        self._topics = topics
        self._offsets = offsets
        self._saver = saver
        self._file = file
        self._clock = clock

    async def handle_create(self, channel: Channel, command: Command) -> Command:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
        config = read_body(decode_group_config, command.body)
        self._require_master()
        _check(config)
        if self._groups.put(config, self._clock.now_ms()):
            await save_or_reject(self._saver, self._file)
        return command.reply()

    async def handle_create_list(self, channel: Channel, command: Command) -> Command:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (225): all of them, or none when one is refused."""
        configs = read_body(decode_group_config_list, command.body)
        self._require_master()
        if not configs:
            raise invalid("groupConfigList must name at least one group")
        for config in configs:
            _check(config)
        self._groups.require_room(config.name for config in configs)
        now_ms = self._clock.now_ms()
        changed = [config for config in configs if self._groups.put(config, now_ms)]
        if changed:
            await save_or_reject(self._saver, self._file)
        return command.reply()

    async def handle_forbid(self, channel: Channel, command: Command) -> Command:
        """UPDATE_AND_GET_GROUP_FORBIDDEN (353): whether a group may read a topic, changed first if asked."""
        header = command.decode(GroupForbiddenRequest)
        group, topic = header.group, header.topic
        if header.is_readable is not None:
            self._require_master()
            require_topic(self._topics, topic)
            if self._groups.get(group) is None:
                raise GroupNotFound(f"the group {group[:160]!r} does not exist")
            now_ms = self._clock.now_ms()
            if self._groups.forbid_reading(group, topic, now_ms, is_forbidden=not header.is_readable):
                await save_or_reject(self._saver, self._file)
        is_readable = not self._groups.is_read_forbidden(group, topic)
        answer = GroupForbidden(group=group, topic=topic, is_readable=is_readable)
        return command.reply(body=encode_group_forbidden(answer))

    async def handle_delete(self, channel: Channel, command: Command) -> Command:
        """DELETE_SUBSCRIPTIONGROUP (207); its offsets go when the request says so."""
        header = command.decode(DeleteGroupRequest)
        self._require_master()
        if header.cleans_offsets or header.removes_offsets:
            self._offsets.drop_group(header.group)
        if self._groups.remove(header.group, self._clock.now_ms()):
            await save_or_reject(self._saver, self._file)
        return command.reply()

    def handle_show(self, channel: Channel, command: Command) -> Command:
        """GET_SUBSCRIPTIONGROUP_CONFIG (352): the asker is about to use the group, so it is made."""
        config = require_group(self._groups, command.decode(GroupConfigRequest).group, self._clock.now_ms())
        return command.reply(body=encode_group_config(config))

    def _require_master(self) -> None:
        if self._options.is_slave:
            raise NotPermitted("a slave takes its groups from its master: change them there")


def _check(config: SubscriptionGroupConfig) -> None:
    """Raises BadRequest for a name or number that no group may have."""
    fault = group_fault(config.name)
    if fault:
        raise invalid(f"groupName: {fault}")
    for name, value, high in (
        ("retryQueueNums", config.retry_queue_count, RETRY_QUEUE_COUNT_MAX),
        ("brokerId", config.broker_id, _INT32_MAX),
        ("whichBrokerWhenConsumeSlowly", config.slow_read_broker_id, _INT32_MAX),
    ):
        if not 0 <= value <= high:
            raise invalid(f"{name} {value} of the group {config.name} is outside 0..{high}")
    if not -1 <= config.retry_count_max <= _INT32_MAX or not 0 <= config.sys_flag <= _INT32_MAX:
        raise invalid(f"retryMaxTimes or groupSysFlag of the group {config.name} is no 32-bit number")
