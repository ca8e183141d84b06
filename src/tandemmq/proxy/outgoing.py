"""A stored message as clients of the gRPC protocol get it: received, popped again, or in a transaction check.

Invariants: message_type, body_encoding, body_digest with its type, born_timestamp and receipt_handle are
            always set, because some client fails without each of them; every value is in the range of its
            field, whatever the broker stored.
Source:     spec proxy 5.10, 5.11.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tandemmq.protocol import properties as names
from tandemmq.protocol.record import Record
from tandemmq.proxy.body_codec import digest_of, plain_body
from tandemmq.proxy.kinds import enum_of_kind, is_system_name, kind_of
from tandemmq.proxy.schema import enum_number
from tandemmq.proxy.values import duration, timestamp, whole_number
from tandemmq.remoting.options import render_address
from tandemmq.units import INT32_MAX

_IDENTITY: Final = enum_number("Encoding", "IDENTITY")
_TEXTS: Final = {
    "tag": names.TAGS,
    "message_group": names.SHARDING_KEY,
    "trace_context": names.TRACE_CONTEXT,
    "lite_topic": names.LITE_TOPIC,
}
"""The system properties that are delivered as they were stored."""


def render_message(
    record: Record,
    *,
    topic: str,
    namespace: str = "",
    receipt_handle: str = "",
    invisible_ms: int | None = None,
) -> dict[str, Any]:
    """Returns the fields of the `Message` of a stored record.

    `topic`: the name that the client uses, also for a record of a retry topic. A body that cannot be
    decompressed is delivered as stored.
    """
    properties = record.properties
    body = plain_body(record)
    resource = {"name": topic}
    if namespace:
        resource["resource_namespace"] = namespace
    return {
        "topic": resource,
        "user_properties": {key: text for key, text in properties.items() if not is_system_name(key)},
        "system_properties": {
            "message_id": record.unique_key or record.message_id,
            "body_digest": digest_of(body),
            "body_encoding": _IDENTITY,
            "born_timestamp": timestamp(record.born_at_ms),
            "born_host": properties.get(names.BORN_HOST) or record.born_address[0],
            "store_timestamp": timestamp(record.stored_at_ms),
            "store_host": render_address(record.store_address),
            "receipt_handle": receipt_handle,
            "queue_id": record.queue_id,
            "queue_offset": record.queue_offset,
            "delivery_attempt": min(max(record.retry_count, 0) + 1, INT32_MAX),
            **_optional_fields(record, properties),
            **({} if invisible_ms is None else {"invisible_duration": duration(invisible_ms)}),
        },
        "body": body,
    }


def _optional_fields(record: Record, properties: Mapping[str, str]) -> dict[str, Any]:
    """Returns the kind of the message, and the system properties that only some messages have."""
    fields: dict[str, Any] = {"message_type": enum_of_kind(kind_of(properties))}
    for field, name in _TEXTS.items():
        if text := properties.get(name):
            fields[field] = text
    if keys := properties.get(names.KEYS):
        fields["keys"] = names.split_keys(keys)
    due_ms = _due_ms(record, properties)
    if due_ms is not None:
        fields["delivery_timestamp"] = timestamp(due_ms)
    recovery_s = whole_number(properties.get(names.CHECK_IMMUNITY_TIME))
    if recovery_s is not None and 0 < recovery_s <= INT32_MAX:
        fields["orphaned_transaction_recovery_duration"] = duration(recovery_s * 1000)
    priority = names.parse_priority(properties.get(names.PRIORITY))
    if priority is not None:
        fields["priority"] = priority
    origin_topic = properties.get(names.DLQ_ORIGIN_TOPIC)
    origin_id = properties.get(names.DLQ_ORIGIN_MESSAGE_ID)
    if origin_topic and origin_id:
        fields["dead_letter_queue"] = {"topic": origin_topic, "message_id": origin_id}
    return fields


def _due_ms(record: Record, properties: Mapping[str, str]) -> int | None:
    """Returns the time at which the message was to be delivered; None for one with a delay level.

    A relative delay counts from the time of sending. Java adds it to the time of the delivery, which is later
    by the delay than any time that the producer meant.
    """
    at_ms = whole_number(properties.get(names.TIMER_DELIVER_MS))
    if at_ms is not None:
        return at_ms
    delay_s = whole_number(properties.get(names.TIMER_DELAY_SEC))
    if delay_s is not None:
        return record.born_at_ms + delay_s * 1000
    delay_ms = whole_number(properties.get(names.TIMER_DELAY_MS))
    return None if delay_ms is None else record.born_at_ms + delay_ms
