"""INVOKE_BROKER_TO_RESET_OFFSET (222): an operator moves a group to another place (spec semantics 11.4).

Two ways: by default the broker keeps the new offsets and sends the group's next pulls there; with
useServerSideResetOffset=false it pushes them to the clients that are online, as brokers before 5.2 did.
"""

from __future__ import annotations

from collections.abc import Mapping

from tandemmq.broker.clients.consumer_table import ConsumerTable
from tandemmq.broker.guards import require_queue, require_topic
from tandemmq.broker.offsets.offset_table import OffsetTable
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.pull.long_poll import LongPolls
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import GroupNotFound, RequestRejected
from tandemmq.protocol.bodies.codec import MessageQueue
from tandemmq.protocol.bodies.offset import encode_reset_offsets
from tandemmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.admin import ResetClientOffsetRequest, ResetOffsetRequest
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock
from tandemmq.store.message_store import MessageStore

ALL_QUEUES = -1
NO_OFFSET = -1


class ResetHandlers:
    """Moves groups."""

    def __init__(
        self,
        options: BrokerOptions,
        *,
        store: MessageStore,
        offsets: OffsetTable,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerTable,
        long_polls: LongPolls,
        clock: Clock,
    ) -> None:
        self._options = options
        self._store = store
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._long_polls = long_polls
        self._clock = clock

    def handle_reset(self, channel: Channel, command: Command) -> Command:
        """INVOKE_BROKER_TO_RESET_OFFSET (222): where each queue goes on now, or is to (spec semantics 15)."""
        header = command.decode(ResetOffsetRequest)
        if self._options.is_slave:
            raise RequestRejected("a slave resets no offsets: ask the master", code=ResponseCode.SYSTEM_ERROR)
        targets = self._targets(header)
        if self._options.server_side_reset:
            now_ms = self._clock.now_ms()
            for queue_id, offset in targets.items():
                self._offsets.reset(header.group, header.topic, queue_id, offset, now_ms)
                # The reset is told with the next pull: one that is held must not wait its time out.
                self._long_polls.wake_queue((header.topic, queue_id))
        else:
            targets = self._lowered(header, targets)
            self._push(header, targets)
        return command.reply(body=encode_reset_offsets(self._by_queue(header.topic, targets)))

    def _targets(self, header: ResetOffsetRequest) -> dict[int, int]:
        """The new offset of each queue."""
        config = require_topic(self._topics, header.topic)
        if self._groups.get(header.group) is None:
            raise GroupNotFound(f"the group {header.group[:160]!r} does not exist")
        if header.queue_id is None or header.queue_id == ALL_QUEUES:
            return {
                queue_id: self._offset_at(header.topic, queue_id, header.timestamp_ms)
                for queue_id in range(config.write_queue_count)
            }
        require_queue(config, header.queue_id, queue_count=config.write_queue_count)
        return {header.queue_id: self._one_target(header, header.queue_id)}

    def _one_target(self, header: ResetOffsetRequest, queue_id: int) -> int:
        if header.offset is None or header.offset == NO_OFFSET:
            return self._offset_at(header.topic, queue_id, header.timestamp_ms)
        low = self._store.queue_min(header.topic, queue_id)
        high = self._store.queue_max(header.topic, queue_id) + 1
        if not low <= header.offset <= high:
            raise RequestRejected(
                f"offset {header.offset} of queue {queue_id} of {header.topic} is outside {low}..{high}",
                code=ResponseCode.SYSTEM_ERROR,
            )
        return header.offset

    def _offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        """The first message at or after the time; the end for a negative time."""
        if time_ms < 0:
            return self._store.queue_max(topic, queue_id)
        return self._store.offset_by_time(topic, queue_id, time_ms)

    def _lowered(self, header: ResetOffsetRequest, targets: Mapping[int, int]) -> dict[int, int]:
        """Without force nobody is moved forward."""
        lowered = {}
        for queue_id, target in targets.items():
            current = self._offsets.committed(header.group, header.topic, queue_id)
            if current is None:
                raise RequestRejected(
                    f"the group {header.group} has no offset for queue {queue_id} of {header.topic}",
                    code=ResponseCode.SYSTEM_ERROR,
                )
            lowered[queue_id] = target if header.is_forced else min(target, current)
        return lowered

    def _push(self, header: ResetOffsetRequest, targets: Mapping[int, int]) -> None:
        members = self._consumers.members(header.group)
        if not members:
            raise RequestRejected(
                f"no consumer of the group {header.group} is online", code=ResponseCode.CONSUMER_NOT_ONLINE
            )
        push = ResetClientOffsetRequest(
            topic=header.topic,
            group=header.group,
            timestamp_ms=header.timestamp_ms,
            is_forced=header.is_forced,
            queue_id=ALL_QUEUES,
        )
        offsets = self._by_queue(header.topic, targets)
        for member in members:
            body = encode_reset_offsets(offsets, as_list=member.language == LanguageCode.CPP)
            code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            member.channel.send(Command.request(code, push, body=body, oneway=True))

    def _by_queue(self, topic: str, offsets: Mapping[int, int]) -> dict[MessageQueue, int]:
        broker_name = self._options.broker_name
        return {
            MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id): offset
            for queue_id, offset in offsets.items()
        }
