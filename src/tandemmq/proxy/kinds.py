"""The kind of a message, which its properties determine.

The same rule applies to a message that a client sends and to a stored one that it receives.

Source: spec proxy 5.1, 5.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from tandemmq.protocol import properties as names
from tandemmq.protocol.properties import SYSTEM_NAMES, TRANSIENT_PREFIX
from tandemmq.protocol.topic_names import is_dlq_topic, is_retry_topic
from tandemmq.proxy.schema import enum_number
from tandemmq.proxy.statuses import Code, RpcRefused


class MessageKind(Enum):
    """The kinds of messages, by the name that both a topic's `message.type` and the MessageType use."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    PRIORITY = "PRIORITY"
    LITE = "LITE"


MIXED: Final = "MIXED"
"""The `message.type` of topics that accept the kinds of `MIXED_KINDS`."""
MIXED_KINDS: Final = (MessageKind.NORMAL, MessageKind.FIFO, MessageKind.DELAY, MessageKind.TRANSACTION)

_ENUM_OF_KIND: Final = {kind: enum_number("MessageType", kind.value) for kind in MessageKind}
_DELAY_NAMES: Final = (names.DELAY, names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS)


def enum_of_kind(kind: MessageKind) -> int:
    """Returns the number of the MessageType."""
    return _ENUM_OF_KIND[kind]


def is_system_name(key: str) -> bool:
    """Returns True for a property that is not the user's."""
    return key in SYSTEM_NAMES or key.startswith(TRANSIENT_PREFIX)


def kind_of(properties: Mapping[str, str]) -> MessageKind:
    """Returns the kind of a message with these properties; the first rule that applies decides."""
    if properties.get(names.TRAN_MSG) == "true":
        return MessageKind.TRANSACTION
    if any(properties.get(name) for name in _DELAY_NAMES):
        return MessageKind.DELAY
    if properties.get(names.SHARDING_KEY):
        return MessageKind.FIFO
    if names.parse_priority(properties.get(names.PRIORITY)) is not None:
        return MessageKind.PRIORITY
    if properties.get(names.LITE_TOPIC):
        return MessageKind.LITE
    return MessageKind.NORMAL


def check_kind(topic: str, accepted: str, kind: MessageKind) -> None:
    """Checks the kind of a message against the topic's `message.type`, except for retry and dead letter
    topics.

    Raises:  RpcRefused MESSAGE_PROPERTY_CONFLICT_WITH_TYPE.
    """
    if accepted == kind.value or is_retry_topic(topic) or is_dlq_topic(topic):
        return
    if accepted == MIXED and kind in MIXED_KINDS:
        return
    raise RpcRefused(
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        f"topic {topic} has message.type {accepted}, the message is of kind {kind.value}: send it to a topic"
        f" of type {kind.value}{' or MIXED' if kind in MIXED_KINDS else ''}",
    )
