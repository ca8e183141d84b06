"""Messages of clients: each check has its code, and each field its property."""

from __future__ import annotations

import gzip
import zlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from send_rig import CALLER, message, request

from tandemmq.protocol.properties import decode_properties
from tandemmq.proxy.callers import topic_name
from tandemmq.proxy.incoming import IncomingMessage, read_messages
from tandemmq.proxy.kinds import MessageKind
from tandemmq.proxy.options import ProxyOptions
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.proxy.statuses import Code, RpcRefused

NOW_MS = 1_700_000_000_000
DAY_S = 86_400
GZIP = enum_number("Encoding", "GZIP")
OPTIONS = ProxyOptions()


def read(*messages: dict[str, Any], options: ProxyOptions = OPTIONS) -> list[IncomingMessage]:
    return read_messages(request(*messages), caller=CALLER, options=options, now_ms=NOW_MS)[1]


def properties_of(*messages: dict[str, Any], options: ProxyOptions = OPTIONS) -> dict[str, str]:
    return decode_properties(read(*messages, options=options)[0].properties)


def at(offset_s: int) -> dict[str, int]:
    return {"seconds": NOW_MS // 1000 + offset_s}


ROWS: list[tuple[str, tuple[dict[str, Any], ...], Code]] = [
    ("no message", (), Code.MESSAGE_CORRUPTED),
    ("two topics", (message(), message(topic="U")), Code.MESSAGE_CORRUPTED),
    ("blank topic", (message(topic=" "),), Code.ILLEGAL_TOPIC),
    ("topic with a space", (message(topic="a b"),), Code.ILLEGAL_TOPIC),
    ("topic of 128 characters", (message(topic="t" * 128),), Code.ILLEGAL_TOPIC),
    ("topic of a million characters", (message(topic="t" * 1_000_000),), Code.ILLEGAL_TOPIC),
    ("topic of the brokers", (message(topic="RMQ_SYS_TRANS_HALF_TOPIC"),), Code.ILLEGAL_TOPIC),
    ("topic with the prefix of the brokers", (message(topic="rmq_sys_x"),), Code.ILLEGAL_TOPIC),
    ("empty body", (message(body=b""),), Code.MESSAGE_BODY_EMPTY),
    ("body beyond 4 MiB", (message(body=bytes(4 * 1024 * 1024 + 1)),), Code.MESSAGE_BODY_TOO_LARGE),
    (
        "compressed body beyond 4 MiB",
        (message(body=gzip.compress(bytes(4 * 1024 * 1024 + 1), mtime=0), body_encoding=GZIP),),
        Code.MESSAGE_BODY_TOO_LARGE,
    ),
    (
        "compressed bodies beyond 4 MiB together",
        tuple(message(body=gzip.compress(bytes(1024 * 1024), mtime=0), body_encoding=GZIP) for _ in range(5)),
        Code.MESSAGE_BODY_TOO_LARGE,
    ),
    (
        "bodies and properties beyond 4 MiB together",
        tuple(message(body=bytes(4_000), user={"a": "b" * 16_000}) for _ in range(220)),
        Code.MESSAGE_BODY_TOO_LARGE,
    ),
    (
        "body that is not gzip",
        (message(body=b"plain", body_encoding=GZIP),),
        Code.MESSAGE_CORRUPTED,
    ),
    (
        "gzip body cut short",
        (message(body=gzip.compress(b"hello", mtime=0)[:-6], body_encoding=GZIP),),
        Code.MESSAGE_CORRUPTED,
    ),
    (
        "bytes after the gzip body",
        (message(body=gzip.compress(b"hello", mtime=0) + b"x", body_encoding=GZIP),),
        Code.MESSAGE_CORRUPTED,
    ),
    (
        "gzip of an empty body",
        (message(body=gzip.compress(b"", mtime=0), body_encoding=GZIP),),
        Code.MESSAGE_BODY_EMPTY,
    ),
    (
        "129 properties",
        (message(user={f"k{i}": "v" for i in range(129)}),),
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    (
        "properties of 16385 bytes, tag and keys included",
        (message(user={"a": "b" * 16_380}, tag="tt", keys=["kk"]),),
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    ("property without a name", (message(user={"": "x"}),), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("reserved property", (message(user={"UNIQ_KEY": "x"}),), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    (
        "reserved property of priorities",
        (message(user={"_SYS_MSG_PRIORITY_": "1"}),),
        Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    ),
    (
        "reserved property with a prefix",
        (message(user={"__RMQ.TRANSIENT.X": "x"}),),
        Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
    ),
    ("control character in a name", (message(user={"a\x01": "x"}),), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("control character in a value", (message(user={"a": "\x9f"}),), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
    ("blank tag", (message(tag="  "),), Code.ILLEGAL_MESSAGE_TAG),
    ("tag with a bar", (message(tag="a|b"),), Code.ILLEGAL_MESSAGE_TAG),
    ("tag with a control character", (message(tag="a\x7f"),), Code.ILLEGAL_MESSAGE_TAG),
    ("blank key", (message(keys=["a", " "]),), Code.ILLEGAL_MESSAGE_KEY),
    ("key with a control character", (message(keys=["a\n"]),), Code.ILLEGAL_MESSAGE_KEY),
    ("no message id", (message(message_id=""),), Code.ILLEGAL_MESSAGE_ID),
    ("blank message id", (message(message_id="  "),), Code.ILLEGAL_MESSAGE_ID),
    ("message id with a separator", (message(message_id="a\x02b"),), Code.ILLEGAL_MESSAGE_ID),
    ("message id of 16385 bytes", (message(message_id="a" * 16_385),), Code.ILLEGAL_MESSAGE_ID),
    ("blank group", (message(message_group=" "),), Code.ILLEGAL_MESSAGE_GROUP),
    ("group of 64 bytes", (message(message_group="g" * 64),), Code.ILLEGAL_MESSAGE_GROUP),
    ("group of 22 characters and 66 bytes", (message(message_group="组" * 22),), Code.ILLEGAL_MESSAGE_GROUP),
    ("group with a control character", (message(message_group="g\x00"),), Code.ILLEGAL_MESSAGE_GROUP),
    (
        "delivery after more than a day",
        (message(delivery_timestamp=at(DAY_S + 1)),),
        Code.ILLEGAL_DELIVERY_TIME,
    ),
    (
        "recovery after more than an hour",
        (message(kind="TRANSACTION", orphaned_transaction_recovery_duration={"seconds": 3_601}),),
        Code.BAD_REQUEST,
    ),
    (
        "recovery before the send",
        (message(kind="TRANSACTION", orphaned_transaction_recovery_duration={"seconds": -1}),),
        Code.BAD_REQUEST,
    ),
    (
        "transaction with a delivery time",
        (message(kind="TRANSACTION", delivery_timestamp=at(5)),),
        Code.BAD_REQUEST,
    ),
    ("lite topic", (message(lite_topic="x"),), Code.UNSUPPORTED),
    ("negative priority", (message(priority=-1),), Code.BAD_REQUEST),
    ("trace context with a separator", (message(trace_context="a\x01b"),), Code.BAD_REQUEST),
    ("born host with a separator", (message(born_host="a\x02"),), Code.BAD_REQUEST),
    ("1025 messages", tuple(message() for _ in range(1025)), Code.BAD_REQUEST),
    (
        "properties beyond a record's, the message id and the trace context included",
        (message(message_id="i" * 16_000, trace_context="c" * 16_000, user={"a": "b" * 1_000}),),
        Code.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    ("a good message, then a bad one", (message(), message(tag="a|b")), Code.ILLEGAL_MESSAGE_TAG),
]


@pytest.mark.parametrize(("messages", "code"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_bad_message_gets_its_code(messages: tuple[dict[str, Any], ...], code: Code):
    with pytest.raises(RpcRefused) as refused:
        read(*messages)
    assert refused.value.code is code
    assert str(refused.value)
    assert len(str(refused.value)) < 400


def test_values_at_the_limits_are_accepted():
    [one] = read(
        message(
            body=bytes(4 * 1024 * 1024),
            user={"a": "b" * 16_379},
            tag="tt",
            keys=["kk"],
            message_group="g" * 63,
        )
    )
    assert one.kind is MessageKind.FIFO
    assert read(message(delivery_timestamp=at(DAY_S)))[0].kind is MessageKind.DELAY
    assert len(read(*(message() for _ in range(1024)))) == 1024


def test_fields_become_properties():
    found = properties_of(
        message(
            user={"colour": "red", "size": "9"},
            tag="t",
            keys=["k1", "", "k2"],
            message_group="g",
            trace_context="00-ab-cd-01",
            born_timestamp={"seconds": 1_600_000_000, "nanos": 5_999_999},
            born_host="producer-1",
            delivery_attempt=2,
            priority=3,
        )
    )
    assert found == {
        "colour": "red",
        "size": "9",
        "TAGS": "t",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "01AB",
        "PGROUP": "T",
        "__SHARDINGKEY": "g",
        "TRACE_CONTEXT": "00-ab-cd-01",
        "__BORNHOST": "producer-1",
        "BORN_TIMESTAMP": "1600000000005",
        "RECONSUME_TIME": "2",
        "_SYS_MSG_PRIORITY_": "3",
    }


def test_sender_that_gives_no_host_and_time_gets_its_peer_and_now():
    [one] = read(message())
    found = decode_properties(one.properties)
    assert (found["__BORNHOST"], found["BORN_TIMESTAMP"]) == ("192.0.2.7", str(NOW_MS))
    assert one.born_at_ms == NOW_MS
    assert "TAGS" not in found
    assert "RECONSUME_TIME" not in found


def test_negative_number_of_attempts_is_none():
    assert read(message(delivery_attempt=-3))[0].retry_count == 0


@pytest.mark.parametrize("seconds", [-(2**63), -1, 2**63 - 1])
def test_born_times_of_no_calendar_are_clamped(seconds: int):
    assert 0 <= read(message(born_timestamp={"seconds": seconds}))[0].born_at_ms < 2**48


def test_transaction_is_a_half_message_with_its_recovery_time():
    [one] = read(
        message(
            kind="TRANSACTION",
            message_group="g",
            orphaned_transaction_recovery_duration={"seconds": 30, "nanos": 1},
        )
    )
    found = decode_properties(one.properties)
    assert (one.kind, one.sys_flag) == (MessageKind.TRANSACTION, 0x4)
    assert (found["TRAN_MSG"], found["CHECK_IMMUNITY_TIME_IN_SECONDS"]) == ("true", "30")
    assert found["__SHARDINGKEY"] == "g"


def test_recovery_time_of_other_messages_is_ignored():
    found = properties_of(message(orphaned_transaction_recovery_duration={"seconds": 99_999}))
    assert "CHECK_IMMUNITY_TIME_IN_SECONDS" not in found


@pytest.mark.parametrize(("offset_s", "text"), [(10, "1700000010000"), (-10, "1699999990000")])
def test_delivery_time_may_be_in_the_past(offset_s: int, text: str):
    assert properties_of(message(delivery_timestamp=at(offset_s)))["TIMER_DELIVER_MS"] == text


def test_delivery_time_before_1970_is_0():
    assert properties_of(message(delivery_timestamp={"seconds": -(2**60)}))["TIMER_DELIVER_MS"] == "0"


@pytest.mark.parametrize(
    ("offset_s", "level"),
    [(1, "1"), (2, "2"), (5, "2"), (6, "3"), (7200, "18"), (86_000, "18"), (0, "1"), (-5, "1")],
)
def test_delivery_time_is_also_a_level_for_brokers_without_timers(offset_s: int, level: str):
    found = properties_of(
        message(delivery_timestamp=at(offset_s)), options=ProxyOptions(uses_delay_levels=True)
    )
    assert found.get("DELAY") == level


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_compressed_body_is_stored_plain(pack: Any):
    [one] = read(message(body=pack(b"hello" * 100), body_encoding=GZIP))
    assert (one.body, one.sys_flag) == (b"hello" * 100, 0)


def test_limits_of_0_switch_checks_off():
    options = ProxyOptions(
        body_bytes_max=0,
        refuses_empty_bodies=False,
        message_group_bytes_max=0,
        delay_ms_max=0,
        recovery_s_max=0,
    )
    assert read(message(body=b""), options=options)[0].body == b""
    assert len(read(message(body=bytes(5_000_000)), options=options)[0].body) == 5_000_000
    assert (
        read(message(body=gzip.compress(b"x", mtime=0), body_encoding=GZIP), options=options)[0].body == b"x"
    )
    assert read(message(message_group="g" * 200), options=options)[0].group == "g" * 200
    assert read(message(delivery_timestamp=at(10 * DAY_S)), options=options)[0].kind is MessageKind.DELAY
    span = {"seconds": 99_999}
    one = message(kind="TRANSACTION", orphaned_transaction_recovery_duration=span)
    assert read(one, options=options)[0].kind is MessageKind.TRANSACTION


def test_inflation_is_bounded_also_without_a_limit_of_bodies():
    bomb = message(body=gzip.compress(bytes(65 * 1024 * 1024), mtime=0), body_encoding=GZIP)
    with pytest.raises(RpcRefused) as refused:
        read(bomb, options=ProxyOptions(body_bytes_max=0))
    assert refused.value.code is Code.MESSAGE_BODY_TOO_LARGE


@pytest.mark.parametrize("topic", ["T", "%RETRY%g", "%DLQ%g", "ns%T", "a|b-_9"])
def test_topics_of_clients_are_accepted(topic: str):
    assert topic_name(message_class("Resource")(name=topic)) == topic


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TIMES = st.fixed_dictionaries(
    {"seconds": st.integers(-(2**63), 2**63 - 1), "nanos": st.integers(-(2**31), 2**31 - 1)}
)
INT32 = st.integers(-(2**31), 2**31 - 1)
ANY_MESSAGE = st.fixed_dictionaries(
    {"topic": st.just({"name": "T"}), "body": st.binary(max_size=20)},
    optional={
        "user_properties": st.dictionaries(TEXTS, TEXTS, max_size=3),
        "system_properties": st.fixed_dictionaries(
            {"message_id": TEXTS},
            optional={
                "tag": TEXTS,
                "keys": st.lists(TEXTS, max_size=3),
                "message_group": TEXTS,
                "trace_context": TEXTS,
                "born_host": TEXTS,
                "lite_topic": TEXTS,
                "born_timestamp": TIMES,
                "delivery_timestamp": TIMES,
                "orphaned_transaction_recovery_duration": TIMES,
                "message_type": INT32,
                "body_encoding": INT32,
                "priority": INT32,
                "delivery_attempt": INT32,
                "queue_id": INT32,
            },
        ),
    },
)


@given(st.lists(ANY_MESSAGE, max_size=3))
def test_any_request_is_read_or_refused(messages: list[dict[str, Any]]):
    with suppress(RpcRefused):
        found = read(*messages)
        assert len(found) == len(messages)
        for one in found:
            properties = decode_properties(one.properties)
            assert properties["UNIQ_KEY"] == one.message_id
            assert "\x02" not in one.message_id
            assert 0 <= one.born_at_ms < 2**48
