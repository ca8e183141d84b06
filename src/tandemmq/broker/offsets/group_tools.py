"""Tools for the offsets of groups: 223 what its clients hold, 308 corrections, 314 copy to another group.

Source: spec semantics 11.4 and 15, spec remoting 8.6 and 9.11.
"""

from __future__ import annotations

from typing import Final

from tandemmq.broker.clients.consumer_table import ConsumerTable
from tandemmq.broker.clients.membership import Member
from tandemmq.broker.guards import invalid, require_group, require_topic
from tandemmq.broker.offsets.offset_table import OffsetTable
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import BrokerUnreachable, Busy, RemoteProtocolError, RequestRejected, RequestTimeout
from tandemmq.protocol.bodies.codec import MessageQueue
from tandemmq.protocol.bodies.offset import (
    ConsumerStatus,
    decode_consumer_status,
    encode_consumer_status,
    encode_correction_offsets,
)
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.admin import (
    CloneGroupOffsetRequest,
    ConsumerStatusRequest,
    CorrectionOffsetRequest,
)
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock
from tandemmq.store.message_store import MessageStore

CLIENTS_TIMEOUT_S: Final = 5.0
"""For all members together; tools do not wait longer."""
CLIENT_COUNT_MAX: Final = 256
"""Ours: members asked for one answer; a larger group is asked client by client."""

LONG_MAX: Final = 2**63 - 1


class GroupTools:
    """Reads and copies offsets of groups."""

    def __init__(
        self,
        options: BrokerOptions,
        *,
        store: MessageStore,
        offsets: OffsetTable,
        topics: TopicTable,
        groups: GroupTable,
        consumers: ConsumerTable,
        clock: Clock,
    ) -> None:
        self._options = options
        self._store = store
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._consumers = consumers
        self._clock = clock

    async def handle_consumer_status(self, channel: Channel, command: Command) -> Command:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): asks the members one after another."""
        header = command.decode(ConsumerStatusRequest)
        wanted = header.client_id
        members = [m for m in self._consumers.members(header.group) if not wanted or m.client_id == wanted]
        if not members:
            who = f"consumer {wanted[:160]!r}" if wanted else "consumer"
            raise RequestRejected(
                f"no {who} of the group {header.group[:160]!r} is online", code=ResponseCode.SYSTEM_ERROR
            )
        if len(members) > CLIENT_COUNT_MAX:
            raise invalid(
                f"the group has {len(members)} members, {CLIENT_COUNT_MAX} can be asked at once: name one"
            )
        question = ConsumerStatusRequest(topic=header.topic, group=header.group)
        deadline_s = self._clock.monotonic() + CLIENTS_TIMEOUT_S
        clients = {}
        for member in members:
            left_s = deadline_s - self._clock.monotonic()
            clients[member.client_id] = await _ask(member, question, timeout_s=max(left_s, 0.001))
        return command.reply(body=encode_consumer_status(ConsumerStatus(clients=clients)))

    def handle_correction(self, channel: Channel, command: Command) -> Command:
        """QUERY_CORRECTION_OFFSET (308): per queue of the compared group the lowest offset of all groups but
        the filtered ones; the highest number there is where the compared group itself is behind that.
        """
        header = command.decode(CorrectionOffsetRequest)
        filtered = {name for name in (header.filter_groups or "").split(",") if name}
        lowest: dict[int, int] = {}
        for group in self._offsets.groups_of(header.topic):
            if group in filtered:
                continue
            for queue_id, offset in self._offsets.committed_queues(group, header.topic).items():
                if offset >= self._store.queue_min(header.topic, queue_id):
                    lowest[queue_id] = min(offset, lowest.get(queue_id, LONG_MAX))
        compared = self._offsets.committed_queues(header.compare_group, header.topic)
        corrections = {
            queue_id: LONG_MAX if lowest[queue_id] > offset else lowest[queue_id]
            for queue_id, offset in compared.items()
            if queue_id in lowest
        }
        return command.reply(body=encode_correction_offsets(corrections))

    def handle_clone(self, channel: Channel, command: Command) -> Command:
        """CLONE_GROUP_OFFSET (314): without a topic, all that the source has; RocketMQ copies none then."""
        header = command.decode(CloneGroupOffsetRequest)
        if self._options.is_slave:
            raise RequestRejected(
                "a slave changes no offsets: ask the master", code=ResponseCode.SYSTEM_ERROR
            )
        now_ms = self._clock.now_ms()
        if header.topic:
            require_topic(self._topics, header.topic)
        require_group(self._groups, header.target_group, now_ms)
        online = self._consumers.get(header.source_group)
        for topic in [header.topic] if header.topic else self._offsets.topics_of(header.source_group):
            is_left = online is not None and topic not in online.subscriptions
            if self._topics.get(topic) is None or (is_left and not header.is_offline):
                continue
            for queue_id, offset in self._offsets.committed_queues(header.source_group, topic).items():
                self._offsets.commit(header.target_group, topic, queue_id, offset, now_ms)
        return command.reply()


async def _ask(
    member: Member, question: ConsumerStatusRequest, *, timeout_s: float
) -> dict[MessageQueue, int]:
    """The client's offsets in memory.

    Raises:  RequestRejected when it does not answer, or not with offsets.
    """
    command = Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question)
    try:
        answer = await member.channel.request(command, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestRejected(
                f"the consumer {member.client_id} answered {answer.code}: {answer.remark}",
                code=ResponseCode.SYSTEM_ERROR,
            )
        return decode_consumer_status(answer.body).queues
    except (RequestTimeout, BrokerUnreachable, Busy, RemoteProtocolError) as error:
        raise RequestRejected(
            f"the consumer {member.client_id}: {error}", code=ResponseCode.SYSTEM_ERROR
        ) from None
