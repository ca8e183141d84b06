"""Handles and the lists of a pop's answer, in the form of spec semantics 14.2."""

from __future__ import annotations

import pytest

from tandemmq.errors import BadRequest, RemoteProtocolError
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.progress import BatchAck, decode_bits, encode_bits
from tandemmq.protocol.pop_receipts import (
    Handle,
    flag_of,
    join_items,
    offsets_item,
    order_items,
    parse_handle,
    pop_retry_v1,
    pop_retry_v2,
    real_topic,
    render_handle,
    split_items,
    start_item,
)

TEXT = "12 1700000000000 60000 3 0 broker-a 5 14"


def test_handle_has_eight_fields_in_the_order_of_the_spec() -> None:
    handle = parse_handle(TEXT)
    assert handle == Handle(12, 1_700_000_000_000, 60_000, 3, "0", "broker-a", 5, 14)
    assert render_handle(handle) == TEXT
    assert not handle.is_ordered
    assert parse_handle("1 2 3 999 0 b 0 1").is_ordered


@pytest.mark.parametrize(
    ("text", "handle"),
    [
        ("1 2 3 4 0 b 6", Handle(1, 2, 3, 4, "0", "b", 6, -1)),
        ("1 2 3 4 0 b 6 7 more text\n", Handle(1, 2, 3, 4, "0", "b", 6, 7)),
        ("-1 2 3 4   -6 -7", Handle(-1, 2, 3, 4, "", "", -6, -7)),
        ("1 2 3 4 \n é 6 " + "9" * 19, Handle(1, 2, 3, 4, "\n", "é", 6, 10**19 - 1)),
        ("001 2 3 4 0 b 6 -0", Handle(1, 2, 3, 4, "0", "b", 6, 0)),
    ],
)
def test_a_handle_may_be_short_or_have_more_text(text: str, handle: Handle) -> None:
    assert parse_handle(text) == handle


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "8 fields"),
        ("1 2 3", "8 fields"),
        ("1 2 3 4 0 b", "8 fields"),
        ("a 2 3 4 0 b 6 7", "whole numbers"),
        ("1 2 3 4 0 b 6 x", "whole numbers"),
        ("1 2 3 4 0 b 6 ", "whole numbers"),
        ("1 2 3 4 0 b 6\n", "whole numbers"),
        ("1 2 3 4 0 b 6 7\n", "whole numbers"),
        ("1 2 3 4 0 b 6 ٣", "whole numbers"),
        ("1 --2 3 4 0 b 6 7", "whole numbers"),
        ("1 - 3 4 0 b 6 7", "whole numbers"),
        ("1 +2 3 4 0 b 6 7", "whole numbers"),
        ("1 2 3 4 0 b " + "9" * 20, "whole numbers"),
    ],
)
def test_a_text_that_is_no_handle_is_named(text: str, fault: str) -> None:
    with pytest.raises(BadRequest, match=f"handle.*{fault}"):
        parse_handle(text)


def test_lists_of_an_answer() -> None:
    assert join_items([start_item("0", 2, 7), start_item("1", 0, 3)]) == "0 2 7;1 0 3"
    assert offsets_item("0", 2, [7, 8, 10]) == "0 2 7,8,10"


def test_counts_of_ordered_messages() -> None:
    assert order_items("0", 1, [5, 6], {5: 2, 6: 1}) == ["0 qo1%5 2", "0 qo1%6 1", "0 1 1"]
    assert order_items("0", 1, [5, 6], {5: 2}) == ["0 qo1%5 2", "0 1 0"]  # 6 is new
    assert order_items("0", 1, [5], {}) == ["0 1 0"]


def test_retry_topics_of_both_forms() -> None:
    assert pop_retry_v1("g", "t") == "%RETRY%g_t"
    assert pop_retry_v2("g", "t") == "%RETRY%g+t"
    assert [real_topic(flag, "g", "t") for flag in "012"] == ["t", "%RETRY%g_t", "%RETRY%g+t"]


def test_bit_sets_are_javas() -> None:
    assert encode_bits([0, 1, 2, 9]) == "BwI="  # new BitSet().toByteArray() is little endian
    assert decode_bits("BwI=", 8) == [0, 1, 2, 9]
    with pytest.raises(RemoteProtocolError):
        decode_bits("no base64!", 8)
    with pytest.raises(RemoteProtocolError):
        decode_bits(encode_bits([80]), 8)


def test_body_of_a_batch_ack_as_java_writes_it() -> None:
    body = (
        b'{"acks":[{"b":"Bw==","c":"g","it":60000,"pt":17,"q":1,"r":"1","rq":4,"so":9,"t":"T"}],'
        b'"brokerName":"b"}'
    )
    [entry] = decode_body(body, BatchAck).entries
    assert (entry.group, entry.topic, entry.retry_flag, entry.start_offset) == ("g", "T", "1", 9)
    assert (entry.queue_id, entry.revive_queue_id, entry.pop_time_ms, entry.invisible_ms) == (
        1,
        4,
        17,
        60_000,
    )


def test_lists_are_split_as_they_were_joined() -> None:
    text = join_items([start_item("0", 3, 17), offsets_item("1", 0, [4, 6])])
    assert split_items(text) == [("0", "3", "17"), ("1", "0", "4,6")]
    assert split_items(None) == split_items("") == []
    for bad in ("0 3", "0 3 x", "0 3 1 2", ";", "0  1"):
        with pytest.raises(RemoteProtocolError):
            split_items(bad)


def test_the_flag_names_the_topic_that_a_message_lies_in() -> None:
    for flag in ("0", "1", "2"):
        assert flag_of(real_topic(flag, "CG", "T"), "CG", "T") == flag
