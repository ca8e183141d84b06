"""Messages as users send and receive them."""

from __future__ import annotations

import re
import zlib
from typing import Any

import pytest

from tandemmq.errors import MessageIllegal
from tandemmq.protocol.compression import SYS_FLAGS, Compression, compressor
from tandemmq.protocol.message import (
    Message,
    ReceivedMessage,
    check_message,
    encode_wire_properties,
    wire_properties,
)
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.record import NewRecord, Record, decode_record, encode_record

KEY = "0A0000011F9018B4AAC2000000000001"


def test_everything_travels_as_properties() -> None:
    message = Message("t", b"b", tags="x", keys=("k1", "k2"), properties={"colour": "red"}, delay_level=3)
    assert wire_properties(message, KEY) == {
        "colour": "red",
        "KEYS": "k1 k2",
        "TAGS": "x",
        "DELAY": "3",
        "UNIQ_KEY": KEY,
        "WAIT": "true",
    }
    assert wire_properties(Message("t", b"b", wait_stored=False), KEY) == {"UNIQ_KEY": KEY, "WAIT": "false"}
    assert wire_properties(Message("t", b"b", priority=0), KEY)["_SYS_MSG_PRIORITY_"] == "0"


def test_too_many_properties_are_refused() -> None:
    with pytest.raises(MessageIllegal, match="properties"):
        encode_wire_properties(Message("t", b"b", properties={"a": "x" * 32767}), KEY)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("", b"b"), "blank"),
        (Message("a b", b"b"), "characters other"),
        (Message("%RETRY%" + "g" * 130, b"b"), "at most 127"),
        (Message("SCHEDULE_TOPIC_XXXX", b"b"), "takes no messages"),
        (Message("t", b""), "empty"),
        (Message("t", b"12345"), "at most 4"),
        (Message("t", b"b", keys=("a b",)), "without spaces"),
        (Message("t", b"b", keys=("",)), "non-empty"),
        (Message("t", b"b", properties={"TAGS": "x"}), "reserved"),
        (Message("t", b"b", properties={"a": " "}), "blank"),
        (Message("t", b"b", properties={"_SYS_MSG_PRIORITY_": "1"}), "reserved"),
        (Message("t", b"b", priority=-1), "the priority -1 must be from 0"),
        (Message("t", b"b", priority=2**31), "from 0 to 2147483647"),
        (Message("t", b"b", priority=1, delay_level=1), "must not be delayed"),
        (Message("t", b"b", priority=0, deliver_at_ms=1), "must not be delayed"),
        (Message("t", b"b", priority=0, properties={"__SHARDINGKEY": "k"}), "sharding key"),
    ],
)
def test_message_that_no_broker_would_store_is_refused(message: Message, reason: str) -> None:
    with pytest.raises(MessageIllegal, match=reason):
        check_message(message, bytes_max=4)


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"topic": None}, "topic must be str, not NoneType"),
        ({"body": "text"}, "body must be bytes, not str"),
        ({"body": None}, "body must be bytes, not NoneType"),
        ({"tags": ["a"]}, "tags must be str, not list"),
        ({"tags": None}, "tags must be str, not NoneType"),
        ({"keys": 5}, "keys must be str or a sequence of str, not int"),
        ({"keys": [5]}, "keys, and the names and values of properties, must be str"),
        ({"properties": None}, "properties must be a mapping of str to str, not NoneType"),
        ({"properties": {"price": 5}}, "keys, and the names and values of properties, must be str"),
        ({"properties": {5: "price"}}, "keys, and the names and values of properties, must be str"),
        ({"flag": "x"}, "flag must be int, not str"),
        ({"flag": 2**31}, "the flag 2147483648 must fit into 32 bits, with a sign"),
        ({"delay_level": "3"}, "delay_level must be int, not str"),
        ({"delay_ms": "3"}, "delay_ms must be int or None, not str"),
        ({"priority": "3"}, "priority must be int or None, not str"),
        ({"flag": 1.5}, "flag must be int, not float"),
        ({"delay_ms": 1.5}, "delay_ms must be int or None, not float"),
        ({"priority": 1.5}, "priority must be int or None, not float"),
    ],
)
def test_a_wrong_type_is_named(wrong: dict[str, Any], fault: str) -> None:
    with pytest.raises(MessageIllegal, match=re.escape(fault)):
        check_message(Message(**{"topic": "t", "body": b"b", **wrong}))


def test_good_message_is_accepted() -> None:
    check_message(Message("orders", b"b", tags="x", keys=["k"], properties={"colour": "red"}))


def stored(body: bytes, *, sys_flag: int = 0, properties: bytes = b"") -> Record:
    new = NewRecord(
        topic="%RETRY%g",
        queue_id=2,
        body=body,
        properties=properties,
        sys_flag=sys_flag,
        born_at_ms=5,
        born_host=encode_host("10.0.0.1", 1),
        retry_count=1,
    )
    return decode_record(
        encode_record(
            new, queue_offset=7, log_offset=9, stored_at_ms=6, store_host=encode_host("10.0.0.2", 2)
        )
    )


def test_consumer_gets_the_priority() -> None:
    assert ReceivedMessage(stored(b"x", properties=b"_SYS_MSG_PRIORITY_\x017\x02")).priority == 7
    assert ReceivedMessage(stored(b"x", properties=b"_SYS_MSG_PRIORITY_\x01high\x02")).priority is None
    assert ReceivedMessage(stored(b"x")).priority is None


def test_consumer_gets_the_content_and_its_own_topic() -> None:
    body, sys_flag = compressor(Compression.ZLIB)(b"x" * 5000), SYS_FLAGS[Compression.ZLIB]
    record = stored(body, sys_flag=sys_flag, properties=b"KEYS\x01a b\x02TAGS\x01t\x02")
    message = ReceivedMessage(record, topic="orders", broker_name="b0")
    assert (message.body, message.topic, message.broker_name) == (b"x" * 5000, "orders", "b0")
    assert (message.keys, message.tags, message.queue_id, message.queue_offset) == (("a", "b"), "t", 2, 7)
    assert (message.born_at_ms, message.stored_at_ms, message.retry_count) == (5, 6, 1)
    assert message.message_id == record.message_id
    assert message.properties == {"KEYS": "a b", "TAGS": "t"}
    assert "5000 bytes" in repr(message)


def test_producers_id_comes_first() -> None:
    record = stored(b"x", properties=b"UNIQ_KEY\x01" + KEY.encode())
    assert ReceivedMessage(record).message_id == KEY
    assert ReceivedMessage(record).topic == "%RETRY%g"


def test_body_that_cannot_be_decompressed_comes_as_it_is_stored() -> None:
    message = ReceivedMessage(stored(b"not compressed", sys_flag=0x12301))
    assert message.body == message.record.content == b"not compressed"
    assert message.body_fault.startswith("message body is not a zlib stream")
    assert message.body_fault in repr(message)
    assert message.body_sys_flag == 0x301, "sent again, a reader that can decode it still does"


def test_body_that_was_decompressed_is_sent_again_in_plain() -> None:
    message = ReceivedMessage(stored(zlib.compress(b"plain"), sys_flag=0x301))
    assert (message.body, message.body_fault, message.body_sys_flag) == (b"plain", "", 0)
    assert "body_fault" not in message.as_object()


@pytest.mark.parametrize("keys", ["N14228 UA1545", ("N14228", "UA1545")])
def test_keys_are_one_text_or_several(keys: str | tuple[str, ...]) -> None:
    message = Message(topic="T", body=b"b", keys=keys)
    check_message(message)
    assert wire_properties(message, "u")["KEYS"] == "N14228 UA1545"


@pytest.mark.parametrize(
    "field",
    [
        {"keys": ["a\x02b"]},
        {"tags": "\x02"},
        {"properties": {"a\x01": "b"}},
        {"keys": "\ud83d"},
        {"tags": "\ud83d"},
        {"properties": {"\ud83d": "b"}},
    ],
)
def test_a_text_without_a_wire_form_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(MessageIllegal, match="propert"):
        encode_wire_properties(Message(topic="T", body=b"b", **field), "u")


def test_only_spaces_separate_received_keys() -> None:
    keys = ["a\tb", "c\u3000d", "e"]
    sent = encode_wire_properties(Message(topic="T", body=b"b", keys=keys), "u")
    assert ReceivedMessage(stored(b"b", properties=sent)).keys == tuple(keys)


@pytest.mark.parametrize("keys", [" ", "a  b", " a", ("a b",), ("",)])
def test_blank_keys_are_refused(keys: str | tuple[str, ...]) -> None:
    with pytest.raises(MessageIllegal, match="must be non-empty"):
        check_message(Message(topic="T", body=b"b", keys=keys))


def test_a_message_shows_the_beginning_of_a_large_body() -> None:
    assert repr(Message("T", b"small", tags="a")) == "Message(topic='T', body=b'small', tags='a')"
    shown = repr(Message("T", b"x" * 4_000_000, keys=["k"], wait_stored=False, delay_ms=0))
    body = f"{b'x' * 64!r}... (4000000 bytes)"
    assert shown == f"Message(topic='T', body={body}, keys=['k'], wait_stored=False, delay_ms=0)"
    shown = repr(Message("T", b"small", properties={"note": "x" * 30_000}))
    assert (len(shown) < 1_100, shown[-19:]) == (True, "(30012 characters))")
