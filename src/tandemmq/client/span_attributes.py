"""The attributes of spans about messages, by OpenTelemetry's messaging conventions.

Two generations of names exist. `OTEL_SEMCONV_STABILITY_OPT_IN` chooses: without it the names of 2024; with
`messaging` those of the present registry, where the system is `messaging.system.name` and RocketMQ's own
names begin with `rocketmq.`; with `messaging/dup` both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tandemmq.protocol import properties as names
from tandemmq.protocol.message import Message, ReceivedMessage, is_delayed

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"

SYSTEM: Final = "messaging.system"
OPERATION: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
TOPIC: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
CLIENT_ID: Final = "messaging.client.id"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
NAMESPACE: Final = "messaging.rocketmq.namespace"
MODEL: Final = "messaging.rocketmq.consumption_model"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
_OF_MESSAGE: Final = "messaging.rocketmq.message."
_OWN: Final = "messaging.rocketmq."

Attributes = dict[str, "AttributeValue"]


def of_operation(name: str, kind: str, topics: Sequence[str]) -> Attributes:
    """Returns the attributes of an operation on messages of these topics; `kind` is its type."""
    found: Attributes = {SYSTEM: "rocketmq", OPERATION: name, OPERATION_TYPE: kind}
    if len(set(topics)) == 1:
        found[TOPIC] = topics[0]
    return found


def of_message(message: Message, *, is_half: bool = False) -> Attributes:
    """Returns the attributes of a message to send."""
    sharding_key = message.properties.get(names.SHARDING_KEY)
    kind = "normal"
    if is_half:
        kind = "transaction"
    elif sharding_key:
        kind = "fifo"
    elif is_delayed(message):
        kind = "delay"
    found: Attributes = {f"{_OF_MESSAGE}type": kind}
    if message.delay_level:
        found[f"{_OF_MESSAGE}delay_time_level"] = message.delay_level
    if message.deliver_at_ms is not None:
        found[f"{_OF_MESSAGE}delivery_timestamp"] = message.deliver_at_ms
    keys = tuple(message.keys.split()) if isinstance(message.keys, str) else tuple(message.keys)
    return found | _common(message.tags, keys, sharding_key)


def of_received(message: ReceivedMessage) -> Attributes:
    """Returns the attributes of a received message."""
    found: Attributes = {PARTITION: str(message.queue_id), MESSAGE_ID: message.message_id}
    return found | _common(message.tags, message.keys, message.properties.get(names.SHARDING_KEY))


def _common(tags: str, keys: tuple[str, ...], sharding_key: str | None) -> Attributes:
    found: Attributes = {}
    if tags:
        found[f"{_OF_MESSAGE}tag"] = tags
    if keys:
        found[f"{_OF_MESSAGE}keys"] = keys
    if sharding_key:
        found[f"{_OF_MESSAGE}group"] = sharding_key
    return found


def of_server(address: str | None) -> Attributes:
    """Returns the attributes of a peer, `host:port`; none without an address."""
    if not address:
        return {}
    host, _, port = address.rpartition(":")
    return {SERVER_ADDRESS: host.strip("[]"), SERVER_PORT: int(port)}


def translate(attributes: Mapping[str, AttributeValue]) -> Attributes:
    """Returns the attributes under the names that the environment asks for."""
    wanted = {piece.strip() for piece in os.environ.get(OPT_IN, "").split(",")}
    if not wanted & {"messaging", "messaging/dup"}:
        return dict(attributes)
    fresh = {_fresh_name(name): value for name, value in attributes.items()}
    return {**attributes, **fresh} if "messaging/dup" in wanted else fresh


def _fresh_name(name: str) -> str:
    if name == SYSTEM:
        return "messaging.system.name"
    return f"rocketmq.{name.removeprefix(_OWN)}" if name.startswith(_OWN) else name
