"""What clients say about themselves: heartbeats and subscriptions (spec remoting 9.4 and 11.6)."""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from tandemmq.protocol.bodies.codec import Body, decode_body, encode_body
from tandemmq.protocol.command import Buffer


class _WireName(StrEnum):
    """An enum that travels by name; FastJSON's number as text and other cases are read too.

    Its members stand in the order of Java. Plain numbers are made names where bodies are read (`codec`).
    """

    @classmethod
    def _missing_(cls, value: object) -> _WireName | None:
        members = list(cls)
        if isinstance(value, str) and value.isdecimal() and len(value) < 3 and int(value) < len(members):
            return members[int(value)]
        return next((member for member in members if str(value).upper() == member.value), None)


class ConsumeType(_WireName):
    """Who asks whom: pull clients, push clients (which pull too), pop clients."""

    ACTIVELY = "CONSUME_ACTIVELY"
    PASSIVELY = "CONSUME_PASSIVELY"
    POP = "CONSUME_POP"


class MessageModel(_WireName):
    """Whether each member gets every message, or the members share them."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeFromWhere(_WireName):
    """Where a group starts that has no offset; the middle three are old names."""

    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_AND_MIN_WHEN_BOOT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class SubscriptionData(Body, frozen=True, kw_only=True):
    """What of a topic a group wants.

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
    """The body of HEART_BEAT (34). With `is_without_subscriptions` the known subscriptions stay."""

    client_id: str = field(name="clientID", default="")
    consumers: tuple[ConsumerData, ...] = field(name="consumerDataSet", default=())
    fingerprint: int = field(name="heartbeatFingerprint", default=0)
    producers: tuple[ProducerData, ...] = field(name="producerDataSet", default=())
    is_without_subscriptions: bool = field(name="withoutSub", default=False)


class ClientConfigCheck(Body, frozen=True, kw_only=True):
    """The body of CHECK_CLIENT_CONFIG (46): does this subscription's expression compile."""

    client_id: str = field(name="clientId", default="")
    group: str = ""
    namespace: str | None = None
    subscription: SubscriptionData = field(name="subscriptionData", default=SubscriptionData())


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    return encode_body(heartbeat, has_sets=True)


def decode_heartbeat(data: Buffer) -> Heartbeat:
    return decode_body(data, Heartbeat)


def encode_client_config_check(check: ClientConfigCheck) -> bytes:
    return encode_body(check, has_sets=True)


def decode_client_config_check(data: Buffer) -> ClientConfigCheck:
    return decode_body(data, ClientConfigCheck)
