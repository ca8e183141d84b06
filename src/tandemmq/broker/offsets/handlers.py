"""Requests about consumer offsets, from consumers and from operators.

`OffsetHandlers` serves consumers; `GroupTools` and `ResetHandlers` serve tools.
Source: spec semantics 11.2, 11.4, 15 and 19; spec remoting 8.6, 9.5 and 9.11.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tandemmq.broker.clients.consumer_table import Member
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.guards import invalid, require_group, require_queue, require_topic
from tandemmq.broker.offsets.claims import Claims
from tandemmq.errors import (
    BrokerUnreachable,
    Busy,
    GroupNotFound,
    RemoteProtocolError,
    RequestRejected,
    RequestTimeout,
)
from tandemmq.protocol.bodies import progress
from tandemmq.protocol.bodies.codec import MessageQueue
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests import admin, consume
from tandemmq.remoting.channel import Channel


@dataclass(slots=True)
class OffsetHandlers:
    """Handles queries of consumer offsets (14, 15), queue ends (30, 31) and offsets by time (29, 32), from
    the offset table and the store's queues.
    """

    core: BrokerCore
    claims: Claims

    def handle_query(self, channel: Channel, command: Command) -> Command:
        """Handles QUERY_CONSUMER_OFFSET (14). A new group starts at 0 if the queue still has its first
        message; a group whose progress was lost starts at the oldest message.
        """
        header = command.decode(consume.QueryOffsetRequest)
        topic, queue_id = header.topic, header.queue_id
        offset = self.core.offsets.committed(header.consumer_group, topic, queue_id)
        if offset is None:
            self._check_queue(topic, queue_id)
        self.claims.trust(channel, header)
        if offset is None and self.core.offsets.is_forgotten(header.consumer_group):
            offset = self.core.store.queue_min(topic, queue_id)
        elif offset is None:
            if header.zero_if_missing is False or not self._starts_at_zero(topic, queue_id):
                raise RequestRejected(
                    f"the group {header.consumer_group[:160]} has no offset for queue {queue_id} of {topic}",
                    code=ResponseCode.QUERY_NOT_FOUND,
                )
            offset = 0
        return command.reply(
            ResponseCode.SUCCESS,
            consume.QueryOffsetResponse(offset=offset, seen=self._record_before(topic, queue_id, offset)),
        )

    def _record_before(self, topic: str, queue_id: int, offset: int) -> str | None:
        """Returns the record before the offset. A client that queried a slave presents it to the master,
        whose log may differ.
        """
        found = self.core.store.reader.find_record(topic, queue_id, offset - 1)
        return None if found is None else consume.SeenRecord(offset - 1, *found).render()

    def handle_update(self, channel: Channel, command: Command) -> Command:
        """Handles UPDATE_CONSUMER_OFFSET (15). While a reset is pending, the commit is answered but
        dropped.
        """
        header = command.decode(consume.UpdateOffsetRequest)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        now_ms = self.core.clock.now_ms()
        require_group(self.core.groups, group, now_ms, channel.peer[0])
        self._check_queue(topic, queue_id)
        if header.committed_offset < 0:
            raise invalid(f"commitOffset {header.committed_offset} must not be negative")
        if self.core.offsets.waiting_reset(group, topic, queue_id) is None:
            offset = self.claims.judge_commit(channel, header, is_tool=not command.is_oneway)
            self.core.offsets.commit(group, topic, queue_id, offset, now_ms)
        return command.reply()

    def handle_max(self, channel: Channel, command: Command) -> Command:
        """Handles GET_MAX_OFFSET (30)."""
        header = command.decode(consume.GetMaxOffsetRequest)
        self._check_queue(header.topic, header.queue_id)
        offset = self.core.store.queue_max(header.topic, header.queue_id)
        self.claims.record_answer(channel, (header.topic, header.queue_id), offset)
        return command.reply(ResponseCode.SUCCESS, consume.GetMaxOffsetResponse(offset=offset))

    def handle_min(self, channel: Channel, command: Command) -> Command:
        """Handles GET_MIN_OFFSET (31)."""
        header = command.decode(consume.GetMinOffsetRequest)
        self._check_queue(header.topic, header.queue_id)
        offset = self.core.store.queue_min(header.topic, header.queue_id)
        return command.reply(ResponseCode.SUCCESS, consume.GetMinOffsetResponse(offset=offset))

    def handle_search(self, channel: Channel, command: Command) -> Command:
        """Handles SEARCH_OFFSET_BY_TIMESTAMP (29)."""
        header = command.decode(consume.SearchOffsetRequest)
        self._check_queue(header.topic, header.queue_id)
        offset = self.core.store.reader.offset_by_time(
            header.topic, header.queue_id, header.timestamp_ms, upper=header.is_upper
        )
        self.claims.record_answer(channel, (header.topic, header.queue_id), offset)
        return command.reply(ResponseCode.SUCCESS, consume.SearchOffsetResponse(offset=offset))

    def handle_earliest(self, channel: Channel, command: Command) -> Command:
        """Handles GET_EARLIEST_MSG_STORETIME (32): -1 for an empty queue."""
        header = command.decode(consume.EarliestStoreTimeRequest)
        self._check_queue(header.topic, header.queue_id)
        at_ms = self.core.store.reader.earliest_stored_at(header.topic, header.queue_id)
        return command.reply(ResponseCode.SUCCESS, consume.EarliestStoreTimeResponse(timestamp_ms=at_ms))

    def _starts_at_zero(self, topic: str, queue_id: int) -> bool:
        """Returns True if the queue still has its first message, recent enough to be in memory."""
        if self.core.store.queue_min(topic, queue_id) > 0:
            return False
        return not self.core.store.reader.get(topic, queue_id, 0, count_max=1).suggest_slave

    def _check_queue(self, topic: str, queue_id: int) -> None:
        config = self.core.topics.get(topic) or require_topic(self.core.topics, topic)
        if not 0 <= queue_id < _queue_count(config):
            require_queue(config, queue_id, queue_count=_queue_count(config))


def _queue_count(config: TopicConfig) -> int:
    """Returns the number of queues that may hold messages: those being removed are read, but not written."""
    return max(config.read_queue_count, config.write_queue_count)


CLIENTS_TIMEOUT_S: Final = 5.0
"""The time in seconds for all members together; tools wait no longer."""
CLIENT_COUNT_MAX: Final = 256
"""TandemMQ's own limit: members asked for one answer; a larger group is asked client by client."""

LONG_MAX: Final = 2**63 - 1


@dataclass(slots=True)
class GroupTools:
    """Handles an operator's requests about group offsets: 223 reads clients' offsets, 308 corrects, 314
    copies them to another group.
    """

    core: BrokerCore

    async def handle_consumer_status(self, channel: Channel, command: Command) -> Command:
        """Handles INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): asks the members one after another."""
        header = command.decode(admin.ConsumerStatusRequest)
        client_id = header.client_id
        members = [
            m for m in self.core.consumers.members(header.group) if not client_id or m.client_id == client_id
        ]
        if not members:
            described = f"consumer {client_id[:160]!r}" if client_id else "consumer"
            raise RequestRejected(f"no {described} of the group {header.group[:160]!r} is online")
        if len(members) > CLIENT_COUNT_MAX:
            raise invalid(
                f"the group has {len(members)} members, {CLIENT_COUNT_MAX} can be queried at once: name one"
            )
        question = admin.ConsumerStatusRequest(topic=header.topic, group=header.group)
        deadline_s = self.core.clock.monotonic() + CLIENTS_TIMEOUT_S
        clients = {}
        for member in members:
            remaining_s = deadline_s - self.core.clock.monotonic()
            clients[member.client_id] = await _query_offsets(
                member, question, timeout_s=max(remaining_s, 0.001)
            )
        return command.reply(body=progress.encode_consumer_status(progress.ConsumerStatus(clients=clients)))

    def handle_correction(self, channel: Channel, command: Command) -> Command:
        """Handles QUERY_CORRECTION_OFFSET (308). Returns, per queue of the compared group, the lowest offset
        of all groups but the filtered ones; 2^63-1 where the compared group is behind that offset.
        """
        header = command.decode(admin.CorrectionOffsetRequest)
        filtered = {name for name in (header.filter_groups or "").split(",") if name}
        lowest: dict[int, int] = {}
        for group in self.core.offsets.groups_of(header.topic):
            if group in filtered:
                continue
            for queue_id, offset in self.core.offsets.committed_queues(group, header.topic).items():
                if offset >= self.core.store.queue_min(header.topic, queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, LONG_MAX))
        compared = self.core.offsets.committed_queues(header.compare_group, header.topic)
        corrections = {
            queue_id: LONG_MAX if lowest[queue_id] > offset else lowest[queue_id]
            for queue_id, offset in compared.items()
            if queue_id in lowest
        }
        return command.reply(body=progress.encode_correction_offsets(corrections))

    def handle_clone(self, channel: Channel, command: Command) -> Command:
        """Handles CLONE_GROUP_OFFSET (314). Without a topic it copies all of the source's offsets; RocketMQ
        copies none then.
        """
        header = command.decode(admin.CloneGroupOffsetRequest)
        if self.core.options.is_slave:
            raise RequestRejected("this broker is a slave and changes no offsets: use the master")
        now_ms = self.core.clock.now_ms()
        if header.topic:
            require_topic(self.core.topics, header.topic)
        require_group(self.core.groups, header.target_group, now_ms, channel.peer[0])
        online = self.core.consumers.get(header.source_group)
        for topic in [header.topic] if header.topic else self.core.offsets.topics_of(header.source_group):
            has_unsubscribed = online is not None and topic not in online.subscriptions
            if self.core.topics.get(topic) is None or (has_unsubscribed and not header.is_offline):
                continue
            for queue_id, offset in self.core.offsets.committed_queues(header.source_group, topic).items():
                self.core.offsets.commit(header.target_group, topic, queue_id, offset, now_ms)
        return command.reply()


async def _query_offsets(
    member: Member, question: admin.ConsumerStatusRequest, *, timeout_s: float
) -> dict[MessageQueue, int]:
    """Returns the client's offsets in memory.

    Raises:  RequestRejected when the client does not answer, or answers without offsets.
    """
    command = Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question)
    try:
        answer = await member.channel.request(command, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestRejected(f"the consumer {member.client_id} answered {answer.code}: {answer.remark}")
        return progress.decode_consumer_status(answer.body).queues
    except (RequestTimeout, BrokerUnreachable, Busy, RemoteProtocolError) as error:
        raise RequestRejected(f"the consumer {member.client_id}: {error}") from None


ALL_QUEUES = -1
NO_OFFSET = -1


@dataclass(slots=True)
class ResetHandlers:
    """INVOKE_BROKER_TO_RESET_OFFSET (222): an operator moves a group to another position (spec semantics
    11.4).

    There are two ways. By default the broker stores the new offsets and redirects the group's next pulls.
    With useServerSideResetOffset=false it pushes the offsets to the online clients, as brokers before 5.2
    did.
    """

    core: BrokerCore

    def handle_reset(self, channel: Channel, command: Command) -> Command:
        """Handles INVOKE_BROKER_TO_RESET_OFFSET (222): returns the new offset of each queue (spec semantics
        15).
        """
        header = command.decode(admin.ResetOffsetRequest)
        if self.core.options.is_slave:
            raise RequestRejected("this broker is a slave and resets no offsets: use the master")
        targets = self._targets(header)
        if self.core.options.server_side_reset:
            now_ms = self.core.clock.now_ms()
            for queue_id, offset in targets.items():
                self.core.offsets.reset(header.group, header.topic, queue_id, offset, now_ms)
                # The next pull delivers the reset, so a held pull must not wait until its deadline.
                self.core.long_polls.wake_queue((header.topic, queue_id))
        else:
            targets = self._lowered(header, targets)
            self._push(header, targets)
        return command.reply(body=progress.encode_reset_offsets(self._by_queue(header.topic, targets)))

    def _targets(self, header: admin.ResetOffsetRequest) -> dict[int, int]:
        """Returns the new offset of each queue."""
        config = require_topic(self.core.topics, header.topic)
        if self.core.groups.get(header.group) is None:
            raise GroupNotFound(f"the group {header.group[:160]!r} does not exist")
        if header.queue_id is None or header.queue_id == ALL_QUEUES:
            return {
                queue_id: self._offset_at(header.topic, queue_id, header.timestamp_ms)
                for queue_id in range(_queue_count(config))
            }
        require_queue(config, header.queue_id, queue_count=_queue_count(config))
        return {header.queue_id: self._one_target(header, header.queue_id)}

    def _one_target(self, header: admin.ResetOffsetRequest, queue_id: int) -> int:
        if header.offset is None or header.offset == NO_OFFSET:
            return self._offset_at(header.topic, queue_id, header.timestamp_ms)
        low = self.core.store.queue_min(header.topic, queue_id)
        high = self.core.store.queue_max(header.topic, queue_id) + 1
        if not low <= header.offset <= high:
            raise RequestRejected(
                f"offset {header.offset} of queue {queue_id} of {header.topic} is outside {low}..{high}"
            )
        return header.offset

    def _offset_at(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Returns the first offset stored at or after the time; the queue's end for a negative time."""
        if time_ms < 0:
            return self.core.store.queue_max(topic, queue_id)
        return self.core.store.reader.offset_by_time(topic, queue_id, time_ms)

    def _lowered(self, header: admin.ResetOffsetRequest, targets: Mapping[int, int]) -> dict[int, int]:
        """Returns the targets, limited to the committed offsets unless forced: no queue is moved forward
        then.
        """
        lowered = {}
        for queue_id, target in targets.items():
            current = self.core.offsets.committed(header.group, header.topic, queue_id)
            if current is None:
                raise RequestRejected(
                    f"the group {header.group} has no offset for queue {queue_id} of {header.topic}"
                )
            lowered[queue_id] = target if header.is_forced else min(target, current)
        return lowered

    def _push(self, header: admin.ResetOffsetRequest, targets: Mapping[int, int]) -> None:
        members = self.core.consumers.members(header.group)
        if not members:
            raise RequestRejected(
                f"no consumer of the group {header.group} is online", code=ResponseCode.CONSUMER_NOT_ONLINE
            )
        push = admin.ResetClientOffsetRequest(
            topic=header.topic,
            group=header.group,
            timestamp_ms=header.timestamp_ms,
            is_forced=header.is_forced,
            queue_id=ALL_QUEUES,
        )
        offsets = self._by_queue(header.topic, targets)
        for member in members:
            body = progress.encode_reset_offsets(offsets, as_list=member.language == LanguageCode.CPP)
            code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            member.channel.send(Command.request(code, push, body=body, oneway=True))

    def _by_queue(self, topic: str, offsets: Mapping[int, int]) -> dict[MessageQueue, int]:
        broker_name = self.core.options.broker_name
        return {
            MessageQueue(topic=topic, broker_name=broker_name, queue_id=queue_id): offset
            for queue_id, offset in offsets.items()
        }
