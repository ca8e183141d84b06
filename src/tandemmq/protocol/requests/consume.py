"""Headers for reading messages: pull, view by offset, query by key (spec remoting 9.3 and 9.9); offsets of
queues and consumer groups (9.5); pop consumption (12.7, spec semantics 14).
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import field

from tandemmq.protocol.header_codec import Header, Int32, Int64
from tandemmq.protocol.sys_flag import PULL_COMMIT_OFFSET, PULL_SUSPEND


class SeenRecord(NamedTuple):
    """The last record of a queue that a consumer received, or that was skipped because its group does not
    want it.

    An offset claimed by the consumer counts as progress in a log that contains this record.
    """

    queue_offset: int
    log_offset: int
    stored_at_ms: int

    def render(self) -> str:
        """Returns the form used in headers."""
        return f"{self.queue_offset},{self.log_offset},{self.stored_at_ms}"


def parse_seen(text: str | None) -> SeenRecord | None:
    """Parses the result of `SeenRecord.render`; None for anything else."""
    parts = (text or "").split(",", 3)
    if len(parts) != 3 or not all(part.isdecimal() and len(part) < 20 for part in parts):
        return None
    return SeenRecord(*map(int, parts))


class GroupQueueHeader(Header, frozen=True):
    """The first fields of requests of a group about a queue."""

    consumer_group: str = field(name="consumerGroup")
    topic: str
    queue_id: Int32 = field(name="queueId")


class QueueHeader(Header, frozen=True):
    """The fields of questions about a queue."""

    topic: str
    queue_id: Int32 = field(name="queueId")
    broker_name: str | None = field(name="bname", default=None)


class PullRequest(GroupQueueHeader, frozen=True, kw_only=True):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

    queue_offset: Int64 = field(name="queueOffset")
    count_max: Int32 = field(name="maxMsgNums")
    sys_flag: Int32 = field(name="sysFlag")
    committed_offset: Int64 = field(name="commitOffset")
    suspend_timeout_ms: Int64 = field(name="suspendTimeoutMillis")
    subscription_version: Int64 = field(name="subVersion")
    subscription: str | None = None
    expression_type: str | None = field(name="expressionType", default=None)
    bytes_max: Int32 | None = field(name="maxMsgBytes", default=None)
    request_source: Int32 | None = field(name="requestSource", default=None)
    # The misspelling is the wire's own.
    proxy_client_id: str | None = field(name="proxyFrowardClientId", default=None)
    broker_name: str | None = field(name="bname", default=None)
    # Ours: the answer size in bytes that the reader accepts. Brokers without support answer as always.
    bulk_bytes: Int32 | None = field(name="tandemBulkBytes", default=None)
    # Ours: with the above, requests the sizes of the records after them in the answer's body.
    wants_sizes: bool | None = field(name="tandemSizes", default=None)
    # Ours: the client that claims this offset, and the last record of the queue that it received or that an
    # answer reported as skipped (`SeenRecord.render`).
    client_id: str | None = field(name="tandemClientId", default=None)
    seen: str | None = field(name="tandemSeen", default=None)

    def seen_record(self) -> SeenRecord | None:
        return parse_seen(self.seen)

    @property
    def commits_offset(self) -> bool:
        return self.sys_flag & PULL_COMMIT_OFFSET != 0

    @property
    def may_suspend(self) -> bool:
        return self.sys_flag & PULL_SUSPEND != 0


class PullResponse(Header, frozen=True, kw_only=True):
    """The answer to a pull; with the codes 0, 19, 20 and 21 the first four fields are always required."""

    suggested_broker_id: Int64 = field(name="suggestWhichBrokerId")
    next_offset: Int64 = field(name="nextBeginOffset")
    min_offset: Int64 = field(name="minOffset")
    max_offset: Int64 = field(name="maxOffset")
    offset_delta: Int64 | None = field(name="offsetDelta", default=None)
    topic_sys_flag: Int32 | None = field(name="topicSysFlag", default=None)
    group_sys_flag: Int32 | None = field(name="groupSysFlag", default=None)
    forbidden_type: Int32 | None = field(name="forbiddenType", default=None)
    # Ours: the bytes at the end of the body that hold the size of each record, four bytes, big-endian.
    sizes_bytes: Int32 | None = field(name="tandemSizesBytes", default=None)
    # Ours: the record before `next_offset`, if the broker skipped some (`SeenRecord.render`). The next
    # request presents it, so that skipped records, too, identify the log of the claimed offset.
    passed: str | None = field(name="tandemPassed", default=None)

    def passed_record(self) -> SeenRecord | None:
        return parse_seen(self.passed)


class ForbiddenResponse(Header, frozen=True, kw_only=True):
    """The details of a pull refused with NO_PERMISSION: 1 broker, 2 group, 3 topic, 4 broadcast, 5
    subscription.
    """

    forbidden_type: Int32 | None = field(name="forbiddenType", default=None)


class ViewMessageRequest(Header, frozen=True):
    """VIEW_MESSAGE_BY_ID (33)."""

    log_offset: Int64 = field(name="offset")
    topic: str | None = None


class QueryMessageRequest(Header, frozen=True, kw_only=True):
    """QUERY_MESSAGE (12). With `is_unique_key` the key is a unique key and count_max becomes 32.

    `index_type`: K for a key, U for a unique key, T for the tags; empty means K.
    """

    topic: str
    key: str
    count_max: Int32 = field(name="maxNum")
    begin_at_ms: Int64 = field(name="beginTimestamp")
    end_at_ms: Int64 = field(name="endTimestamp")
    is_unique_key: bool = field(name="_UNIQUE_KEY_QUERY", default=False)
    index_type: str = field(name="indexType", default="")


class QueryMessageResponse(Header, frozen=True, kw_only=True):
    """The answer to QUERY_MESSAGE; the messages are the body."""

    index_updated_at_ms: Int64 = field(name="indexLastUpdateTimestamp")
    index_log_offset: Int64 = field(name="indexLastUpdatePhyoffset")


# Offsets.


class QueryOffsetRequest(GroupQueueHeader, frozen=True):
    """QUERY_CONSUMER_OFFSET (14). `zero_if_missing` None means yes."""

    zero_if_missing: bool | None = field(name="setZeroIfNotFound", default=None)
    broker_name: str | None = field(name="bname", default=None)


class QueryOffsetResponse(Header, frozen=True, kw_only=True):
    """The answer to QUERY_CONSUMER_OFFSET; code 22 if none is stored."""

    offset: Int64
    # Ours: the record before the offset, as SeenRecord; it identifies the log of this answer.
    seen: str | None = field(name="tandemSeen", default=None)

    def seen_record(self) -> SeenRecord | None:
        return parse_seen(self.seen)


class UpdateOffsetRequest(GroupQueueHeader, frozen=True):
    """UPDATE_CONSUMER_OFFSET (15), mostly oneway; lowering is allowed."""

    committed_offset: Int64 = field(name="commitOffset")
    broker_name: str | None = field(name="bname", default=None)
    # Ours: as in PullRequest.
    client_id: str | None = field(name="tandemClientId", default=None)
    seen: str | None = field(name="tandemSeen", default=None)

    def seen_record(self) -> SeenRecord | None:
        return parse_seen(self.seen)


class SearchOffsetRequest(Header, frozen=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: Int32 = field(name="queueId")
    timestamp_ms: Int64 = field(name="timestamp")
    boundary: str | None = field(name="boundaryType", default=None)
    broker_name: str | None = field(name="bname", default=None)

    @property
    def is_upper(self) -> bool:
        """True to select the last message at the time instead of the first; any value but `upper` means
        lower.
        """
        return self.boundary is not None and self.boundary.upper() == "UPPER"


class SearchOffsetResponse(Header, frozen=True, kw_only=True):
    """The answer to SEARCH_OFFSET_BY_TIMESTAMP."""

    offset: Int64


class GetMaxOffsetRequest(Header, frozen=True):
    """GET_MAX_OFFSET (30): the next offset to be written."""

    topic: str
    queue_id: Int32 = field(name="queueId")
    is_committed: bool = field(name="committed", default=True)
    broker_name: str | None = field(name="bname", default=None)


class GetMaxOffsetResponse(Header, frozen=True, kw_only=True):
    """The answer to GET_MAX_OFFSET."""

    offset: Int64


class GetMinOffsetRequest(QueueHeader, frozen=True):
    """GET_MIN_OFFSET (31)."""


class GetMinOffsetResponse(Header, frozen=True, kw_only=True):
    """The answer to GET_MIN_OFFSET."""

    offset: Int64


class EarliestStoreTimeRequest(QueueHeader, frozen=True):
    """GET_EARLIEST_MSG_STORETIME (32)."""


class EarliestStoreTimeResponse(Header, frozen=True, kw_only=True):
    """The answer to GET_EARLIEST_MSG_STORETIME; -1 if the queue is empty."""

    timestamp_ms: Int64 = field(name="timestamp")


# Pop consumption. Decoding is lenient: fields that only newer clients send have a default.

ANY_QUEUE = -1
INIT_MIN = 0
INIT_MAX = 1


class PopRequest(GroupQueueHeader, frozen=True, kw_only=True):
    """POP_MESSAGE (200050). `queue_id` -1: any queue.

    `poll_ms` counts from `born_at_ms`, or from the arrival if that is 0: RocketMQ's proxy sends none.
    """

    count_max: Int32 = field(name="maxMsgNums")
    invisible_ms: Int64 = field(name="invisibleTime")
    poll_ms: Int64 = field(name="pollTime", default=0)
    born_at_ms: Int64 = field(name="bornTime", default=0)
    init_mode: Int32 = field(name="initMode", default=INIT_MIN)
    expression_type: str | None = field(name="expType", default=None)
    expression: str | None = field(name="exp", default=None)
    is_ordered: bool | None = field(name="order", default=None)
    attempt_id: str | None = field(name="attemptId", default=None)
    # Ours: the consumer renews its leases in place if the broker can (`PopResponse.is_renewable`).
    is_renewable: bool | None = field(name="tandemRenewable", default=None)
    # Ours: names the request, so that its connection can end it while it is held (`PollingInfoRequest`).
    poll_id: str | None = field(name="tandemPollId", default=None)


class PopResponse(Header, frozen=True, kw_only=True):
    """The answer to POP_MESSAGE and PEEK_MESSAGE; the lists are in `protocol/pop_receipts.py`."""

    pop_time_ms: Int64 = field(name="popTime", default=0)
    invisible_ms: Int64 = field(name="invisibleTime", default=0)
    revive_queue_id: Int32 = field(name="reviveQid", default=0)
    rest_count: Int64 = field(name="restNum", default=0)
    start_offset_info: str | None = field(name="startOffsetInfo", default=None)
    message_offset_info: str | None = field(name="msgOffsetInfo", default=None)
    order_count_info: str | None = field(name="orderCountInfo", default=None)
    # Ours: True if the leases can be renewed in place (`ChangeInvisibleRequest.is_renewal`).
    is_renewable: bool | None = field(name="tandemRenewable", default=None)


class PeekRequest(GroupQueueHeader, frozen=True, kw_only=True):
    """PEEK_MESSAGE (200052)."""

    count_max: Int32 = field(name="maxMsgNums")


class AckRequest(GroupQueueHeader, frozen=True, kw_only=True):
    """ACK_MESSAGE (200051). `topic` is the topic that the message was read from, even a retry topic."""

    extra_info: str = field(name="extraInfo")
    offset: Int64
    # Ours: NO_MESSAGE instead of success for a handle whose lease has ended.
    is_strict: bool | None = field(name="tandemStrict", default=None)


class ChangeInvisibleRequest(AckRequest, frozen=True, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    invisible_ms: Int64 = field(name="invisibleTime")
    is_suspended: bool = field(name="suspend", default=False)
    """5.5: True if the message was not tried, so its next delivery does not count as a retry."""
    # Ours: moves the end of the whole lease, of all its open messages; their handles stay valid.
    is_renewal: bool | None = field(name="tandemRenewal", default=None)


class ChangeInvisibleResponse(Header, frozen=True, kw_only=True):
    """The parts of the new handle."""

    pop_time_ms: Int64 = field(name="popTime", default=0)
    invisible_ms: Int64 = field(name="invisibleTime", default=0)
    revive_queue_id: Int32 = field(name="reviveQid", default=0)


class NotificationRequest(GroupQueueHeader, frozen=True, kw_only=True):
    """NOTIFICATION (200054): asks if a message can be popped; waits like a pop, with the same times."""

    poll_ms: Int64 = field(name="pollTime", default=0)
    born_at_ms: Int64 = field(name="bornTime", default=0)
    is_ordered: bool | None = field(name="order", default=None)
    attempt_id: str | None = field(name="attemptId", default=None)
    expression_type: str | None = field(name="expType", default=None)
    expression: str | None = field(name="exp", default=None)


class NotificationResponse(Header, frozen=True, kw_only=True):
    """The answer to NOTIFICATION."""

    has_message: bool = field(name="hasMsg", default=False)
    is_polling_full: bool = field(name="pollingFull", default=False)


class PollingInfoRequest(GroupQueueHeader, frozen=True, kw_only=True):
    """POLLING_INFO (200055)."""

    # Ours: ends the held pop of this connection that has this id.
    ended_poll_id: str | None = field(name="tandemEndedPollId", default=None)


class PollingInfoResponse(Header, frozen=True, kw_only=True):
    """The number of held requests."""

    count: Int32 = field(name="pollingNum", default=0)
