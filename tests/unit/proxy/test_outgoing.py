"""Stored messages as clients get them: every field that some client needs is set."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from send_rig import CALLER, message, request

from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.properties import SYSTEM_NAMES, encode_properties
from tandemmq.protocol.record import Record
from tandemmq.proxy.body_codec import digest_of
from tandemmq.proxy.incoming import read_messages
from tandemmq.proxy.options import ProxyOptions
from tandemmq.proxy.outgoing import render_message
from tandemmq.proxy.schema import enum_number, message_class

Message = message_class("Message")
NOW_MS = 1_700_000_000_000


def stored(body: bytes = b"hello", *, properties: dict[str, str] | bytes = b"", **changes: Any) -> Record:
    record = Record(
        topic="T",
        queue_id=3,
        queue_offset=17,
        log_offset=5_000,
        size=200,
        body=body,
        body_crc=0,
        flag=0,
        sys_flag=0,
        born_at_ms=NOW_MS + 1,
        born_host=encode_host("192.0.2.1", 40_000),
        stored_at_ms=NOW_MS + 2,
        store_host=encode_host("192.0.2.2", 10_911),
        retry_count=0,
        prepared_offset=0,
        raw_properties=properties if isinstance(properties, bytes) else encode_properties(properties),
    )
    for name, value in changes.items():
        setattr(record, name, value)
    return record


def render(record: Record, **arguments: Any) -> Any:
    return Message(**render_message(record, topic="T", **arguments))


def kind(name: str) -> int:
    return enum_number("MessageType", name)


def test_bare_message_has_all_fields_that_clients_need():
    found = render(stored(), receipt_handle="handle", invisible_ms=30_500)
    system = found.system_properties
    assert found.topic.name == "T"
    assert found.body == b"hello"
    assert system.message_id == "C000020200002A9F0000000000001388"
    assert (system.body_digest.type, system.body_digest.checksum) == (2, "5D41402ABC4B2A76B9719D911017C592")
    assert system.body_encoding == enum_number("Encoding", "IDENTITY")
    assert system.message_type == kind("NORMAL")
    assert system.born_timestamp.ToMilliseconds() == NOW_MS + 1
    assert system.store_timestamp.ToMilliseconds() == NOW_MS + 2
    assert (system.born_host, system.store_host) == ("192.0.2.1", "192.0.2.2:10911")
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 17, 1)
    assert system.receipt_handle == "handle"
    assert system.invisible_duration.ToMilliseconds() == 30_500
    for absent in ("tag", "delivery_timestamp", "message_group", "trace_context", "priority", "lite_topic"):
        assert not system.HasField(absent), absent


def test_message_of_a_check_has_an_empty_handle_and_no_invisible_time():
    system = render(stored()).system_properties
    assert system.HasField("receipt_handle")
    assert not system.HasField("invisible_duration")


def test_topic_is_the_one_asked_for():
    found = render_message(stored(), topic="Orders", namespace="shop")
    assert found["topic"] == {"name": "Orders", "resource_namespace": "shop"}


def test_properties_become_fields():
    found = render(
        stored(
            properties={
                "TAGS": "t",
                "KEYS": "k1 k2  k3",
                "UNIQ_KEY": "01AB",
                "TRACE_CONTEXT": "00-1",
                "__SHARDINGKEY": "g",
                "__LITE_TOPIC": "l",
                "__BORNHOST": "producer-1",
                "DLQ_ORIGIN_TOPIC": "Origin",
                "DLQ_ORIGIN_MESSAGE_ID": "9F",
                "CLUSTER": "c",
                "colour": "red",
            },
            retry_count=4,
        )
    )
    system = found.system_properties
    assert dict(found.user_properties) == {"colour": "red"}
    assert (system.tag, list(system.keys), system.message_id) == ("t", ["k1", "k2", "k3"], "01AB")
    assert (system.trace_context, system.born_host) == ("00-1", "producer-1")
    assert (system.message_group, system.lite_topic) == ("g", "l")
    assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("Origin", "9F")
    assert system.delivery_attempt == 5


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        ({"TRAN_MSG": "true", "__SHARDINGKEY": "g"}, "TRANSACTION"),
        ({"DELAY": "3", "__SHARDINGKEY": "g"}, "DELAY"),
        ({"__SHARDINGKEY": "g", "_SYS_MSG_PRIORITY_": "3"}, "FIFO"),
        ({"_SYS_MSG_PRIORITY_": "3"}, "PRIORITY"),
        ({"__LITE_TOPIC": "x"}, "LITE"),
        ({}, "NORMAL"),
    ],
)
def test_kind_follows_from_the_properties(properties: dict[str, str], name: str):
    assert render(stored(properties=properties)).system_properties.message_type == kind(name)


@pytest.mark.parametrize(
    ("properties", "due_ms"),
    [
        ({"TIMER_DELIVER_MS": str(NOW_MS)}, NOW_MS),
        ({"TIMER_DELAY_SEC": "5"}, NOW_MS + 5_001),
        ({"TIMER_DELAY_MS": "5"}, NOW_MS + 6),
        ({"TIMER_DELIVER_MS": "soon"}, None),
        ({"DELAY": "3"}, None),
    ],
)
def test_delivery_time(properties: dict[str, str], due_ms: int | None):
    system = render(stored(properties=properties)).system_properties
    found = system.delivery_timestamp.ToMilliseconds() if system.HasField("delivery_timestamp") else None
    assert found == due_ms


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [
        (zlib.compress(b"hello" * 9), 0x1),
        (zlib.compress(b"hello" * 9), 0x301),
        (gzip.compress(b"hello" * 9, mtime=0), 0x1),
    ],
)
def test_compressed_body_arrives_plain(body: bytes, sys_flag: int):
    found = render(stored(body, sys_flag=sys_flag))
    assert found.body == b"hello" * 9
    expected = hashlib.md5(b"hello" * 9, usedforsecurity=False).hexdigest().upper()
    assert found.system_properties.body_digest.checksum == expected


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [
        (b"plain", 0x1),
        (b"plain", 0x701),
        (gzip.compress(b"hello", mtime=0)[:-3], 0x1),
        (b"\x1f\x8bplain", 0x1),
    ],
)
def test_body_that_does_not_decode_is_delivered_as_stored(body: bytes, sys_flag: int):
    found = render(stored(body, sys_flag=sys_flag))
    assert found.body == body
    expected = hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    assert found.system_properties.body_digest.checksum == expected


def test_gzip_bomb_is_delivered_as_stored():
    bomb = gzip.compress(bytes(65 * 1024 * 1024), mtime=0)
    assert render(stored(bomb, sys_flag=0x1)).body == bomb


@pytest.mark.parametrize("at_ms", [-(2**63), -1, 2**63 - 1])
@pytest.mark.parametrize("field", ["born_at_ms", "stored_at_ms"])
def test_times_of_no_calendar_are_clamped(field: str, at_ms: int):
    system = render(stored(**{field: at_ms})).system_properties
    found = system.born_timestamp if field == "born_at_ms" else system.store_timestamp
    assert 0 <= found.ToMilliseconds() <= 253_402_300_799_999


@pytest.mark.parametrize("retries", [-1, 2**31 - 1])
def test_attempts_fit_into_their_field(retries: int):
    assert 1 <= render(stored(retry_count=retries)).system_properties.delivery_attempt < 2**31


@pytest.mark.parametrize("text", ["99999999999", "-1", "x", "1" * 50])
def test_priority_out_of_range_is_left_out(text: str):
    system = render(stored(properties={"_SYS_MSG_PRIORITY_": text})).system_properties
    assert not system.HasField("priority")


def test_properties_that_are_not_utf8_are_delivered_with_replacements():
    found = render(stored(properties=b"a\x01\xff\x02TAGS\x01\xfe\x02"))
    assert dict(found.user_properties) == {"a": "�"}


def test_ipv6_hosts():
    host = encode_host("2001:db8::1", 10_911)
    system = render(stored(born_host=host, store_host=host)).system_properties
    assert (system.born_host, system.store_host) == ("2001:db8::1", "[2001:db8::1]:10911")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tag": "t", "keys": ["a", "b"], "user": {"x": "1", "y": "2"}},
        {"message_group": "g", "trace_context": "00-1"},
        {"delivery_timestamp": {"seconds": NOW_MS // 1000 + 60}},
        {"priority": 7},
        {"kind": "TRANSACTION", "orphaned_transaction_recovery_duration": {"seconds": 30}},
        {"born_timestamp": {"seconds": 1_600_000_000, "nanos": 7_000_000}, "born_host": "h"},
    ],
)
def test_message_returns_to_clients_as_it_was_sent(fields: dict[str, Any]):
    sent = request(message(**fields)).messages[0]
    [one] = read_messages(request(message(**fields)), caller=CALLER, options=ProxyOptions(), now_ms=NOW_MS)[1]
    record = stored(one.body, properties=one.properties, born_at_ms=one.born_at_ms)
    found = render(record)
    assert (found.body, found.user_properties) == (sent.body, sent.user_properties)
    before, after = sent.system_properties, found.system_properties
    names = [field.name for field, _ in before.ListFields() if field.name != "message_type"]
    assert "message_id" in names
    for name in names:
        assert getattr(after, name) == getattr(before, name), name
    assert after.message_type == enum_number("MessageType", one.kind.value)


INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
NAMES = st.sampled_from(("colour", *sorted(SYSTEM_NAMES)))
VALUES = st.one_of(st.integers().map(str), st.binary(max_size=8).map(lambda raw: raw.decode("latin-1")))
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=5).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode("latin-1")
)


@given(
    body=st.binary(max_size=20),
    raw_properties=st.one_of(PAIRS, st.binary(max_size=40)),
    sys_flag=INT32,
    queue_id=INT32,
    queue_offset=INT64,
    born_at_ms=INT64,
    stored_at_ms=INT64,
    born_host=HOSTS,
    store_host=HOSTS,
    retry_count=INT32,
)
def test_whatever_a_broker_stored_can_be_delivered(**fields: Any):
    raw = fields.pop("raw_properties")
    record = stored(fields.pop("body"), properties=raw, **fields)
    found = Message.FromString(render(record).SerializeToString())
    system = found.system_properties
    assert system.message_type
    assert system.body_encoding
    assert system.body_digest.checksum == digest_of(found.body)["checksum"]
    for time in (system.born_timestamp, system.store_timestamp, system.delivery_timestamp):
        assert 0 <= time.ToMilliseconds() <= 253_402_300_799_999
