"""Bodies about clients, from clients and brokers: heartbeats and subscriptions, group members, connections
and queue locks, and the assignment of queues (spec remoting 9.4, 9.8, 11.6, 11.9, 11.13).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import field

from tandemmq.protocol.bodies.codec import Body, MessageQueue, decode_body, encode_body, enum_names
from tandemmq.units import Buffer

# Bodies sent by clients: heartbeats and subscriptions.


class _WireName(StrEnum):
    """An enum that travels by name; FastJSON's ordinal as text and other letter cases are read too.

    The members are in Java's order. Plain ordinals are converted to names when bodies are read (`codec`).
    """

    @classmethod
    def _missing_(cls, value: object) -> _WireName | None:
        members = list(cls)
        if isinstance(value, str) and value.isdecimal() and len(value) < 3 and int(value) < len(members):
            return members[int(value)]
        return next((member for member in members if str(value).upper() == member.value), None)


class ConsumeType(_WireName):
    """The kind of consumer: pull clients, push clients (which pull too), pop clients."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(_WireName):
    """The distribution of messages: to every member, or shared among the members."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(_WireName):
    """The start of a group without an offset; the middle three are old names."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_AND_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Body, frozen=True, kw_only=True):
    """The messages of a topic that a group wants.

    `expression` is `*`, tags joined by `||`, or SQL92; `tag_hashes` are Java's string hashes of `tags`; a new
    `version` (ms) signals a change.
    """

    is_class_filter: bool = field(name="classFilterMode", default=False)
    tag_hashes: frozenset[int] = field(name="codeSet", default=frozenset())
    expression_type: str = field(name="expressionType", default="TAG")
    expression: str = field(name="subString", default="")
    version: int = field(name="subVersion", default=0)
    tags: frozenset[str] = field(name="tagsSet", default=frozenset())
    topic: str = ""


class ProducerData(Body, frozen=True, kw_only=True):
    """One producer group of a client."""

    group: str = field(name="groupName", default="")


class ConsumerData(Body, frozen=True, kw_only=True):
    """One consumer group of a client."""

    consume_from_where: ConsumeFromWhere = field(
        name="consumeFromWhere", default=ConsumeFromWhere.LAST_OFFSET
    )
    consume_type: ConsumeType = field(name="consumeType", default=ConsumeType.PASSIVELY)
    group: str = field(name="groupName", default="")
    message_model: MessageModel = field(name="messageModel", default=MessageModel.CLUSTERING)
    subscriptions: tuple[SubscriptionData, ...] = field(name="subscriptionDataSet", default=())
    is_unit_mode: bool = field(name="unitMode", default=False)


class Heartbeat(Body, frozen=True, kw_only=True):
    """The body of HEART_BEAT (34). With `is_without_subscriptions` the known subscriptions are kept."""

    HAS_SETS = True

    client_id: str = field(name="clientID", default="")
    consumers: tuple[ConsumerData, ...] = field(name="consumerDataSet", default=())
    fingerprint: int = field(name="heartbeatFingerprint", default=0)
    producers: tuple[ProducerData, ...] = field(name="producerDataSet", default=())
    is_without_subscriptions: bool = field(name="withoutSub", default=False)


class ClientConfigCheck(Body, frozen=True, kw_only=True):
    """The body of CHECK_CLIENT_CONFIG (46): asks if this subscription's expression compiles."""

    HAS_SETS = True

    client_id: str = field(name="clientId", default="")
    group: str = ""
    namespace: str | None = None
    subscription: SubscriptionData = field(name="subscriptionData", default=SubscriptionData())


# Members of groups, their connections and their queue locks.


class ConsumerList(Body, frozen=True, kw_only=True):
    """The client ids of a group's members; the answer to 38."""

    client_ids: tuple[str, ...] = field(name="consumerIdList", default=())


class LockRequest(Body, frozen=True, kw_only=True):
    """The body of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    client_id: str = field(name="clientId", default="")
    consumer_group: str = field(name="consumerGroup", default="")
    queues: tuple[MessageQueue, ...] = field(name="mqSet", default=())
    is_this_broker_only: bool = field(name="onlyThisBroker", default=False)


class LockAnswer(Body, frozen=True, kw_only=True):
    """The queues that the client has locked now; may be empty."""

    locked: tuple[MessageQueue, ...] = field(name="lockOKMQSet", default=())


class ClientConnection(Body, frozen=True, kw_only=True):
    """One client of a group, and its address."""

    address: str = field(name="clientAddr", default="")
    client_id: str = field(name="clientId", default="")
    language: str = "JAVA"
    version: int = 0


class Refusal(Body, frozen=True, kw_only=True):
    """A refused request of a consumer (ours). `client`: its id in a heartbeat, else its address. `group` is
    empty in a list for one group.
    """

    client: str = ""
    code: int = 0
    count: int = 0
    group: str = ""
    last_at_ms: int = field(name="lastTime", default=0)
    reason: str = ""
    request: str = ""


class ConsumerConnections(Body, frozen=True, kw_only=True):
    """The answer to GET_CONSUMER_CONNECTION_LIST (203)."""

    HAS_SETS = True

    connections: tuple[ClientConnection, ...] = field(name="connectionSet", default=())
    consume_from_where: ConsumeFromWhere = field(
        name="consumeFromWhere", default=ConsumeFromWhere.LAST_OFFSET
    )
    consume_type: ConsumeType = field(name="consumeType", default=ConsumeType.PASSIVELY)
    message_model: MessageModel = field(name="messageModel", default=MessageModel.CLUSTERING)
    subscriptions: dict[str, SubscriptionData] = field(name="subscriptionTable", default_factory=dict)
    refusals: tuple[Refusal, ...] | None = field(name="tandemRefusals", default=None)


class ProducerConnections(Body, frozen=True, kw_only=True):
    """The answer to GET_PRODUCER_CONNECTION_LIST (204)."""

    connections: tuple[ClientConnection, ...] = field(name="connectionSet", default=())


class ProducerInfo(Body, frozen=True, kw_only=True):
    """One producer in the answer to GET_ALL_PRODUCER_INFO (328)."""

    client_id: str = field(name="clientId", default="")
    language: str = "JAVA"
    updated_at_ms: int = field(name="lastUpdateTimestamp", default=0)
    address: str = field(name="remoteIP", default="")
    version: int = 0


class AllProducers(Body, frozen=True, kw_only=True):
    """The answer to GET_ALL_PRODUCER_INFO (328)."""

    groups: dict[str, tuple[ProducerInfo, ...]] = field(name="data", default_factory=dict)


class GroupSubscription(Body, frozen=True, kw_only=True):
    """The answer to QUERY_SUBSCRIPTION_BY_CONSUMER (345)."""

    HAS_SETS = True

    group: str = ""
    subscription: SubscriptionData | None = field(name="subscriptionData", default=None)
    topic: str = ""


class DirectlyConsumed(Body, frozen=True, kw_only=True):
    """The answer to CONSUME_MESSAGE_DIRECTLY (309): the result of a consumer's listener for one message."""

    is_auto_commit: bool = field(name="autoCommit", default=True)
    result: str = field(name="consumeResult", default="CR_SUCCESS")
    is_ordered: bool = field(name="order", default=False)
    remark: str = ""
    took_ms: int = field(name="spentTimeMills", default=0)


def encode_consumer_list(client_ids: Iterable[str]) -> bytes:
    return encode_body(ConsumerList(client_ids=tuple(client_ids)))


def decode_consumer_list(data: Buffer) -> tuple[str, ...]:
    """Returns the ids, each once, in wire order."""
    return tuple(dict.fromkeys(decode_body(data, ConsumerList).client_ids))


def encode_lock_answer(locked: Iterable[MessageQueue]) -> bytes:
    return encode_body(LockAnswer(locked=tuple(locked)))


def decode_lock_answer(data: Buffer) -> frozenset[MessageQueue]:
    return frozenset(decode_body(data, LockAnswer).locked)


def encode_producer_connections(connections: Iterable[ClientConnection]) -> bytes:
    return encode_body(ProducerConnections(connections=tuple(connections)))


def decode_producer_connections(data: Buffer) -> tuple[ClientConnection, ...]:
    return decode_body(data, ProducerConnections).connections


def encode_producer_table(producers: Mapping[str, Iterable[ProducerInfo]]) -> bytes:
    return encode_body(AllProducers(groups={group: tuple(infos) for group, infos in producers.items()}))


def decode_producer_table(data: Buffer) -> dict[str, tuple[ProducerInfo, ...]]:
    return decode_body(data, AllProducers).groups


# Server-side assignment: QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE, messageRequestMode.json (spec
# replication 6.2).

PULL = "PULL"
POP = "POP"
ModeName = Annotated[str, enum_names(PULL, POP)]


class AssignmentQuery(Body, frozen=True, kw_only=True):
    """The body of QUERY_ASSIGNMENT: asks for a client's queues of one topic."""

    client_id: str = field(name="clientId", default="")
    group: str = field(name="consumerGroup", default="")
    message_model: Annotated[str, enum_names("BROADCASTING", "CLUSTERING")] = field(
        name="messageModel", default="CLUSTERING"
    )
    strategy_name: str = field(name="strategyName", default="AVG")
    topic: str = ""


class QueueAssignment(Body, frozen=True, kw_only=True):
    """One queue and its mode; queue id -1 with POP: all queues of that broker."""

    queue: MessageQueue = field(name="messageQueue", default=MessageQueue())
    mode: ModeName = PULL


class Assignments(Body, frozen=True, kw_only=True):
    """The answer to QUERY_ASSIGNMENT. None: the client keeps its queues."""

    queues: list[QueueAssignment] | None = field(name="messageQueueAssignments", default=None)


class RequestMode(Body, frozen=True, kw_only=True):
    """The mode of a group for a topic; also the body of SET_MESSAGE_REQUEST_MODE."""

    group: str = field(name="consumerGroup", default="")
    mode: ModeName = PULL
    pop_share_queue_count: int = field(name="popShareQueueNum", default=0)
    topic: str = ""


class RequestModes(Body, frozen=True, kw_only=True):
    """The table topic -> group -> mode: messageRequestMode.json and the answer to 402."""

    modes: dict[str, dict[str, RequestMode]] = field(name="messageRequestModeMap", default_factory=dict)
