"""Consumer offsets (14, 15), ends of queues (30, 31), positions in time (29, 32), resets by an operator
(222).

Source: spec semantics 11.2, 11.4 and 19; spec remoting 9.5.
"""

from __future__ import annotations

from tandemmq.broker.guards import invalid, require_group, require_queue, require_topic
from tandemmq.broker.offsets.claims import Claims
from tandemmq.broker.offsets.offset_table import OffsetTable
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.topics.topic_table import TopicTable
from tandemmq.errors import RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.offset import (
    EarliestStoreTimeRequest,
    EarliestStoreTimeResponse,
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    QueryOffsetRequest,
    QueryOffsetResponse,
    SearchOffsetRequest,
    SearchOffsetResponse,
    UpdateOffsetRequest,
)
from tandemmq.protocol.requests.pull import SeenRecord
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock
from tandemmq.store.message_store import MessageStore


class OffsetHandlers:
    """Answers from the offset table and the store's queues."""

    def __init__(
        self,
        *,
        store: MessageStore,
        offsets: OffsetTable,
        claims: Claims,
        topics: TopicTable,
        groups: GroupTable,
        clock: Clock,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._claims = claims
        self._topics = topics
        self._groups = groups
        self._clock = clock

    def handle_query(self, channel: Channel, command: Command) -> Command:
        """QUERY_CONSUMER_OFFSET (14): a new group on a queue that still has its first message starts at 0,
        one whose progress was lost at the oldest message.
        """
        header = command.decode(QueryOffsetRequest)
        topic, queue_id = header.topic, header.queue_id
        offset = self._offsets.committed(header.consumer_group, topic, queue_id)
        if offset is None:
            self._check_queue(topic, queue_id)
        self._claims.note_asked(channel, header)
        if offset is None and self._offsets.is_forgotten(header.consumer_group):
            offset = self._store.queue_min(topic, queue_id)
        elif offset is None:
            if header.zero_if_missing is False or not self._starts_at_zero(topic, queue_id):
                raise RequestRejected(
                    f"the group {header.consumer_group[:160]} has no offset for queue {queue_id} of {topic}",
                    code=ResponseCode.QUERY_NOT_FOUND,
                )
            offset = 0
        return command.reply(
            ResponseCode.SUCCESS,
            QueryOffsetResponse(offset=offset, seen=self._proof(topic, queue_id, offset)),
        )

    def _proof(self, topic: str, queue_id: int, offset: int) -> str | None:
        """The record before the offset: who asks a slave goes on with it at the master, whose log may be
        another one.
        """
        found = self._store.find_record(topic, queue_id, offset - 1)
        return None if found is None else SeenRecord(offset - 1, *found).render()

    def handle_update(self, channel: Channel, command: Command) -> Command:
        """UPDATE_CONSUMER_OFFSET (15); answered and dropped while a reset waits to be taken."""
        header = command.decode(UpdateOffsetRequest)
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        now_ms = self._clock.now_ms()
        require_group(self._groups, group, now_ms)
        self._check_queue(topic, queue_id)
        if header.committed_offset < 0:
            raise invalid(f"commitOffset {header.committed_offset} must not be negative")
        if self._offsets.waiting_reset(group, topic, queue_id) is None:
            offset = self._claims.judge_commit(channel, header, is_tool=not command.is_oneway)
            self._offsets.commit(group, topic, queue_id, offset, now_ms)
        return command.reply()

    def handle_max(self, channel: Channel, command: Command) -> Command:
        """GET_MAX_OFFSET (30)."""
        header = command.decode(GetMaxOffsetRequest)
        self._check_queue(header.topic, header.queue_id)
        offset = self._store.queue_max(header.topic, header.queue_id)
        return command.reply(ResponseCode.SUCCESS, GetMaxOffsetResponse(offset=offset))

    def handle_min(self, channel: Channel, command: Command) -> Command:
        """GET_MIN_OFFSET (31)."""
        header = command.decode(GetMinOffsetRequest)
        self._check_queue(header.topic, header.queue_id)
        offset = self._store.queue_min(header.topic, header.queue_id)
        return command.reply(ResponseCode.SUCCESS, GetMinOffsetResponse(offset=offset))

    def handle_search(self, channel: Channel, command: Command) -> Command:
        """SEARCH_OFFSET_BY_TIMESTAMP (29)."""
        header = command.decode(SearchOffsetRequest)
        self._check_queue(header.topic, header.queue_id)
        offset = self._store.offset_by_time(
            header.topic, header.queue_id, header.timestamp_ms, upper=header.is_upper
        )
        return command.reply(ResponseCode.SUCCESS, SearchOffsetResponse(offset=offset))

    def handle_earliest(self, channel: Channel, command: Command) -> Command:
        """GET_EARLIEST_MSG_STORETIME (32): -1 for an empty queue."""
        header = command.decode(EarliestStoreTimeRequest)
        self._check_queue(header.topic, header.queue_id)
        at_ms = self._store.earliest_stored_at(header.topic, header.queue_id)
        return command.reply(ResponseCode.SUCCESS, EarliestStoreTimeResponse(timestamp_ms=at_ms))

    def _starts_at_zero(self, topic: str, queue_id: int) -> bool:
        """True when the queue has its first message still, and that is not too far back to be in memory."""
        if self._store.queue_min(topic, queue_id) > 0:
            return False
        return not self._store.get(topic, queue_id, 0, count_max=1).suggest_slave

    def _check_queue(self, topic: str, queue_id: int) -> None:
        config = self._topics.get(topic) or require_topic(self._topics, topic)
        count = max(config.read_queue_count, config.write_queue_count)
        if not 0 <= queue_id < count:
            require_queue(config, queue_id, queue_count=count)
