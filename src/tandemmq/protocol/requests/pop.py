"""Pop consumption: headers of POP, ACK, CHANGE, PEEK, NOTIFICATION, POLLING_INFO.

Source: spec remoting 12.7, spec semantics 14.

Reading is lenient: what only newer clients send has a default.
"""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.header_codec import Header, Int32, Int64

ANY_QUEUE = -1
INIT_MIN = 0
INIT_MAX = 1


class PopRequest(Header, frozen=True, kw_only=True):
    """POP_MESSAGE (200050). `queue_id` -1: any queue.

    `poll_ms` counts from `born_at_ms`, or from the arrival when that is 0: RocketMQ's proxy sends none.
    """

    consumer_group: str = field(name="consumerGroup")
    topic: str
    queue_id: Int32 = field(name="queueId")
    count_max: Int32 = field(name="maxMsgNums")
    invisible_ms: Int64 = field(name="invisibleTime")
    poll_ms: Int64 = field(name="pollTime", default=0)
    born_at_ms: Int64 = field(name="bornTime", default=0)
    init_mode: Int32 = field(name="initMode", default=INIT_MIN)
    expression_type: str | None = field(name="expType", default=None)
    expression: str | None = field(name="exp", default=None)
    is_ordered: bool | None = field(name="order", default=None)
    attempt_id: str | None = field(name="attemptId", default=None)


class PopResponse(Header, frozen=True, kw_only=True):
    """Answer to POP_MESSAGE and PEEK_MESSAGE; the lists are in `protocol/pop_receipts.py`."""

    pop_time_ms: Int64 = field(name="popTime", default=0)
    invisible_ms: Int64 = field(name="invisibleTime", default=0)
    revive_queue_id: Int32 = field(name="reviveQid", default=0)
    rest_count: Int64 = field(name="restNum", default=0)
    start_offset_info: str | None = field(name="startOffsetInfo", default=None)
    message_offset_info: str | None = field(name="msgOffsetInfo", default=None)
    order_count_info: str | None = field(name="orderCountInfo", default=None)


class PeekRequest(Header, frozen=True, kw_only=True):
    """PEEK_MESSAGE (200052)."""

    consumer_group: str = field(name="consumerGroup")
    topic: str
    queue_id: Int32 = field(name="queueId")
    count_max: Int32 = field(name="maxMsgNums")


class AckRequest(Header, frozen=True, kw_only=True):
    """ACK_MESSAGE (200051). `topic` is where the message was read, also when that is a retry topic."""

    consumer_group: str = field(name="consumerGroup")
    topic: str
    queue_id: Int32 = field(name="queueId")
    extra_info: str = field(name="extraInfo")
    offset: Int64


class ChangeInvisibleRequest(Header, frozen=True, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    consumer_group: str = field(name="consumerGroup")
    topic: str
    queue_id: Int32 = field(name="queueId")
    extra_info: str = field(name="extraInfo")
    offset: Int64
    invisible_ms: Int64 = field(name="invisibleTime")


class ChangeInvisibleResponse(Header, frozen=True, kw_only=True):
    """The parts of the new handle."""

    pop_time_ms: Int64 = field(name="popTime", default=0)
    invisible_ms: Int64 = field(name="invisibleTime", default=0)
    revive_queue_id: Int32 = field(name="reviveQid", default=0)


class NotificationRequest(Header, frozen=True, kw_only=True):
    """NOTIFICATION (200054): is there something to pop; waits like a pop, with the same times."""

    consumer_group: str = field(name="consumerGroup")
    topic: str
    queue_id: Int32 = field(name="queueId")
    poll_ms: Int64 = field(name="pollTime", default=0)
    born_at_ms: Int64 = field(name="bornTime", default=0)
    is_ordered: bool | None = field(name="order", default=None)
    attempt_id: str | None = field(name="attemptId", default=None)
    expression_type: str | None = field(name="expType", default=None)
    expression: str | None = field(name="exp", default=None)


class NotificationResponse(Header, frozen=True, kw_only=True):
    """Answer to NOTIFICATION."""

    has_message: bool = field(name="hasMsg", default=False)
    is_polling_full: bool = field(name="pollingFull", default=False)


class PollingInfoRequest(Header, frozen=True, kw_only=True):
    """POLLING_INFO (200055)."""

    consumer_group: str = field(name="consumerGroup")
    topic: str
    queue_id: Int32 = field(name="queueId")


class PollingInfoResponse(Header, frozen=True, kw_only=True):
    """How many requests are held."""

    count: Int32 = field(name="pollingNum", default=0)
