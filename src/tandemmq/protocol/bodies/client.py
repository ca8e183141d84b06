"""Members of groups, their connections and their queue locks (spec remoting 9.4, 9.8, 11.9, 11.13)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import field

from tandemmq.protocol.bodies.codec import Body, MessageQueue, decode_body, encode_body
from tandemmq.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from tandemmq.protocol.command import Buffer


class ConsumerList(Body, frozen=True, kw_only=True):
    """Client ids of a group's members; the answer to 38."""

    client_ids: tuple[str, ...] = field(name="consumerIdList", default=())


class LockRequest(Body, frozen=True, kw_only=True):
    """The body of LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42)."""

    client_id: str = field(name="clientId", default="")
    consumer_group: str = field(name="consumerGroup", default="")
    queues: tuple[MessageQueue, ...] = field(name="mqSet", default=())
    is_this_broker_only: bool = field(name="onlyThisBroker", default=False)


class LockAnswer(Body, frozen=True, kw_only=True):
    """The queues that the client now holds; may be none."""

    locked: tuple[MessageQueue, ...] = field(name="lockOKMQSet", default=())


class ClientConnection(Body, frozen=True, kw_only=True):
    """One client of a group and where it connects from."""

    address: str = field(name="clientAddr", default="")
    client_id: str = field(name="clientId", default="")
    language: str = "JAVA"
    version: int = 0


class Refusal(Body, frozen=True, kw_only=True):
    """Ours: what a consumer asked for and did not get. `client`: its id in a heartbeat, else its address."""

    client: str = ""
    code: int = 0
    count: int = 0
    last_at_ms: int = field(name="lastTime", default=0)
    reason: str = ""
    request: str = ""


class ConsumerConnections(Body, frozen=True, kw_only=True):
    """The answer to GET_CONSUMER_CONNECTION_LIST (203)."""

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

    group: str = ""
    subscription: SubscriptionData | None = field(name="subscriptionData", default=None)
    topic: str = ""


class DirectlyConsumed(Body, frozen=True, kw_only=True):
    """The answer to CONSUME_MESSAGE_DIRECTLY (309): what a consumer's listener made of one message."""

    is_auto_commit: bool = field(name="autoCommit", default=True)
    result: str = field(name="consumeResult", default="CR_SUCCESS")
    is_ordered: bool = field(name="order", default=False)
    remark: str = ""
    took_ms: int = field(name="spentTimeMills", default=0)


def encode_consumer_list(client_ids: Iterable[str]) -> bytes:
    return encode_body(ConsumerList(client_ids=tuple(client_ids)))


def decode_consumer_list(data: Buffer) -> tuple[str, ...]:
    """The ids, each once; their order is the wire's."""
    return tuple(dict.fromkeys(decode_body(data, ConsumerList).client_ids))


def encode_directly_consumed(outcome: DirectlyConsumed) -> bytes:
    return encode_body(outcome)


def encode_lock_request(request: LockRequest) -> bytes:
    return encode_body(request)


def decode_lock_request(data: Buffer) -> LockRequest:
    return decode_body(data, LockRequest)


def encode_lock_answer(locked: Iterable[MessageQueue]) -> bytes:
    return encode_body(LockAnswer(locked=tuple(locked)))


def decode_lock_answer(data: Buffer) -> frozenset[MessageQueue]:
    return frozenset(decode_body(data, LockAnswer).locked)


def encode_consumer_connections(connections: ConsumerConnections) -> bytes:
    return encode_body(connections, has_sets=True)


def decode_consumer_connections(data: Buffer) -> ConsumerConnections:
    return decode_body(data, ConsumerConnections)


def encode_producer_connections(connections: Iterable[ClientConnection]) -> bytes:
    return encode_body(ProducerConnections(connections=tuple(connections)))


def decode_producer_connections(data: Buffer) -> tuple[ClientConnection, ...]:
    return decode_body(data, ProducerConnections).connections


def encode_producer_table(producers: Mapping[str, Iterable[ProducerInfo]]) -> bytes:
    return encode_body(AllProducers(groups={group: tuple(infos) for group, infos in producers.items()}))


def decode_producer_table(data: Buffer) -> dict[str, tuple[ProducerInfo, ...]]:
    return decode_body(data, AllProducers).groups


def encode_group_subscription(subscription: GroupSubscription) -> bytes:
    return encode_body(subscription, has_sets=True)
