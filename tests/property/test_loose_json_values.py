"""The loose reader agrees with a strict one on JSON, reads its own dialect, and has only one kind of
failure.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import Heartbeat, LockRequest
from tandemmq.protocol.bodies.codec import decode_body, decode_kv_table, encode_body, encode_queue_key
from tandemmq.protocol.bodies.progress import (
    ConsumerOffsetTable,
    decode_consumer_status,
    decode_reset_offsets,
    encode_reset_offsets,
)
from tandemmq.protocol.bodies.register import decode_register_broker_body
from tandemmq.protocol.bodies.route import ClusterInfo, TopicRoute
from tandemmq.protocol.bodies.stats import decode_consume_stats
from tandemmq.protocol.bodies.tables import SubscriptionGroupTable, TopicConfigTable
from tandemmq.protocol.loose_json import parse


def shaped(shape: type[Any]) -> Callable[[Any], Any]:
    """Returns the decoder of a body without a spelling of its own."""
    return lambda data: decode_body(data, shape)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
QUEUES = st.builds(MessageQueue, TEXT, TEXT, st.integers(-1, 2**31 - 1))
DECODERS: list[Callable[[bytes], Any]] = [
    shaped(ClusterInfo),
    decode_consume_stats,
    shaped(ConsumerOffsetTable),
    decode_consumer_status,
    shaped(SubscriptionGroupTable),
    shaped(Heartbeat),
    decode_kv_table,
    shaped(LockRequest),
    decode_register_broker_body,
    decode_reset_offsets,
    shaped(TopicConfigTable),
    shaped(TopicRoute),
]


def has_reference(value: Any) -> bool:
    if isinstance(value, dict):
        return "$ref" in value or any(map(has_reference, value.values()))
    return isinstance(value, list) and any(map(has_reference, value))


def render_loose(value: Any) -> str:
    """Renders a value as FastJSON does: integer-like keys without quotes."""
    if isinstance(value, dict):
        pairs = (
            f"{key if key.isascii() and key.isdecimal() else json.dumps(key)}:{render_loose(item)}"
            for key, item in value.items()
        )
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(render_loose, value)) + "]"
    return json.dumps(value)


@given(VALUES.filter(lambda value: not has_reference(value)), st.booleans())
def test_strict_json_is_read_as_ever(value: Any, is_ascii: bool) -> None:
    assert parse(json.dumps(value, ensure_ascii=is_ascii)) == value
    assert parse(json.dumps(value, indent="\t")) == value


@given(
    st.recursive(
        st.integers() | TEXT,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.integers(0, 99).map(str) | TEXT.filter(lambda text: text != "$ref"), inner, max_size=4
            )
        ),
        max_leaves=15,
    )
)
def test_unquoted_integer_keys(value: Any) -> None:
    assert parse(render_loose(value)) == value


@given(st.text(max_size=60) | st.text("{}[]:,'\"\\u01eE.-$rfabSet \n", max_size=60))
@settings(max_examples=500)
def test_garbage_gives_only_remote_protocol_error(text: str) -> None:
    try:
        parse(text)
    except RemoteProtocolError:
        pass


@given(
    st.sampled_from(DECODERS), st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode())
)
@settings(max_examples=300)
def test_bodies_of_garbage_give_only_remote_protocol_error(
    decode: Callable[[bytes], Any], data: bytes
) -> None:
    try:
        decode(data)
    except RemoteProtocolError:
        pass


@given(st.dictionaries(QUEUES, st.integers(0, 2**63 - 1), max_size=6))
def test_offsets_by_queue_round_trip(offsets: dict[MessageQueue, int]) -> None:
    assert decode_reset_offsets(encode_reset_offsets(offsets)) == offsets


@given(QUEUES)
def test_queue_key_is_plain_json(queue: MessageQueue) -> None:
    assert json.loads(encode_queue_key(queue)) == {
        "brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic,
    }  # fmt: skip


@given(
    st.dictionaries(
        TEXT, st.dictionaries(st.integers(0, 1000), st.integers(0, 2**63 - 1), max_size=4), max_size=4
    )
)
def test_offset_table_round_trip(offsets: dict[str, dict[int, int]]) -> None:
    table = ConsumerOffsetTable(offsets=offsets)
    assert decode_body(encode_body(table), ConsumerOffsetTable) == table
