"""Headers for sending: plain, batch, retry, transactions, request-reply (spec remoting 9.2, 9.6, 9.7, 9.10).

SEND_MESSAGE has long wire names, SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE the letters `a` to `n`. Both headers
have the same attributes, so that handlers need not distinguish them.
"""

from __future__ import annotations

from msgspec import field

from tandemmq.protocol.header_codec import Header, Int32, Int64


class SentFields(Header, frozen=True, kw_only=True):
    """The first fields of a message that is sent or, as a reply, pushed on."""

    producer_group: str = field(name="producerGroup")
    topic: str
    default_topic: str = field(name="defaultTopic")
    default_topic_queue_count: Int32 = field(name="defaultTopicQueueNums")
    queue_id: Int32 = field(name="queueId")
    sys_flag: Int32 = field(name="sysFlag")
    born_at_ms: Int64 = field(name="bornTimestamp")
    flag: Int32


class SendRequest(SentFields, frozen=True, kw_only=True):
    """SEND_MESSAGE (10) and SEND_REPLY_MESSAGE (324). A negative queue_id lets the broker choose."""

    properties: str | None = None
    retry_count: Int32 | None = field(name="reconsumeTimes", default=None)
    is_unit_mode: bool = field(name="unitMode", default=False)
    retry_count_max: Int32 | None = field(name="maxReconsumeTimes", default=None)
    is_batch: bool = field(name="batch", default=False)
    broker_name: str | None = field(name="bname", default=None)


class SendRequestV2(Header, frozen=True, kw_only=True):
    """SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320) and SEND_REPLY_MESSAGE_V2 (325)."""

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_count: Int32 = field(name="d")
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_at_ms: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str | None = field(name="i", default=None)
    retry_count: Int32 | None = field(name="j", default=None)
    is_unit_mode: bool = field(name="k", default=False)
    retry_count_max: Int32 | None = field(name="l", default=None)
    is_batch: bool = field(name="m", default=False)
    broker_name: str | None = field(name="n", default=None)


class SendResponse(Header, frozen=True, kw_only=True):
    """The answer to every send. `message_id` is the offset message id; for a batch one per message, joined by
    commas.

    The region and trace fields are always present: Java's clients read extFields without a null check.
    """

    message_id: str = field(name="msgId")
    queue_id: Int32 = field(name="queueId")
    queue_offset: Int64 = field(name="queueOffset")
    transaction_id: str | None = field(name="transactionId", default=None)
    batch_unique_id: str | None = field(name="batchUniqId", default=None)
    recall_handle: str | None = field(name="recallHandle", default=None)
    region: str = field(name="MSG_REGION", default="DefaultRegion")
    is_traced: bool = field(name="TRACE_ON", default=True)


class SendBackRequest(Header, frozen=True, kw_only=True):
    """CONSUMER_SEND_MSG_BACK (36): redelivers the message at `log_offset` later."""

    log_offset: Int64 = field(name="offset")
    group: str
    delay_level: Int32 = field(name="delayLevel")
    original_message_id: str | None = field(name="originMsgId", default=None)
    original_topic: str | None = field(name="originTopic", default=None)
    is_unit_mode: bool = field(name="unitMode", default=False)
    retry_count_max: Int32 | None = field(name="maxReconsumeTimes", default=None)
    broker_name: str | None = field(name="bname", default=None)


class EndTransactionRequest(Header, frozen=True, kw_only=True):
    """END_TRANSACTION (37): 8 commits, 12 rolls back, 0 leaves the half message as it is."""

    producer_group: str = field(name="producerGroup")
    half_queue_offset: Int64 = field(name="tranStateTableOffset")
    log_offset: Int64 = field(name="commitLogOffset")
    decision: Int32 = field(name="commitOrRollback")
    unique_key: str = field(name="msgId")
    topic: str | None = None
    is_from_check: bool = field(name="fromTransactionCheck", default=False)
    transaction_id: str | None = field(name="transactionId", default=None)
    broker_name: str | None = field(name="bname", default=None)


class CheckTransactionRequest(Header, frozen=True, kw_only=True):
    """CHECK_TRANSACTION_STATE (39), broker to producer, oneway; the body is the half message."""

    half_queue_offset: Int64 = field(name="tranStateTableOffset")
    log_offset: Int64 = field(name="commitLogOffset")
    topic: str | None = None
    unique_key: str | None = field(name="msgId", default=None)
    transaction_id: str | None = field(name="transactionId", default=None)
    message_id: str | None = field(name="offsetMsgId", default=None)
    broker_name: str | None = field(name="bname", default=None)


class PushReplyRequest(SentFields, frozen=True, kw_only=True):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326), from the broker to the client that waits for a reply."""

    born_host: str = field(name="bornHost")
    store_host: str = field(name="storeHost")
    stored_at_ms: Int64 = field(name="storeTimestamp")
    properties: str | None = None
    retry_count: Int32 | None = field(name="reconsumeTimes", default=None)
    is_unit_mode: bool = field(name="unitMode", default=False)


class RecallRequest(Header, frozen=True):
    """RECALL_MESSAGE (370): recalls a timer message that is not due yet."""

    topic: str
    recall_handle: str = field(name="recallHandle")
    producer_group: str | None = field(name="producerGroup", default=None)


class RecallResponse(Header, frozen=True, kw_only=True):
    """The answer to RECALL_MESSAGE. Java's clients trace a recall only if the answer names a region."""

    message_id: str = field(name="msgId")
    region: str | None = field(name="MSG_REGION", default=None)
