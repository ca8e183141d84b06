"""SQL92 filters: which expressions compile, and which messages match (spec semantics 9.2)."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemmq.protocol.hashes import tag_hash
from tandemmq.protocol.properties import (
    decode_properties,
    encode_properties,
    find_properties,
    find_property,
    property_mark,
)
from tandemmq.protocol.record import NewRecord, RecordOutcome, encode_record
from tandemmq.protocol.record_check import RecordCheck, find_record_properties, parse_record
from tandemmq.protocol.sql92 import SqlError, compile_filter


def matches(expression: str, **properties: str) -> bool:
    return compile_filter(expression).matches(properties.get)


@pytest.mark.parametrize(
    ("expression", "properties", "expected"),
    [
        ("a > 5", {"a": "6"}, True),
        ("a > 5", {"a": "5"}, False),
        ("a > 5", {}, False),
        ("a > 5", {"a": "six"}, False),
        ("NOT (a > 5)", {"a": "six"}, False),  # an evaluation error never matches, negated or not
        ("a > 5 OR b = 'x'", {"a": "six", "b": "x"}, False),  # nor is it with OR
        ("b = 'x' OR a > 5", {"a": "six", "b": "x"}, True),  # unless it is not reached
        ("a > 5", {"a": "3000000000"}, False),  # not an Integer of Java
        ("a > 5.0", {"a": "3000000000"}, True),
        ("a < 5000000000", {"a": "3000000000"}, True),
        ("a > b", {"a": "10", "b": "9"}, True),  # two properties are compared as doubles
        ("a = b", {"a": "10", "b": "10.0"}, False),  # but not with =
        ("a = b", {}, True),  # two absent properties are the same object
        ("a = 5", {"a": "5"}, True),
        ("a = 5", {"a": "5.0"}, False),
        ("a = 5.0", {"a": "5"}, True),
        ("a = -5", {"a": "-5"}, True),
        ("a = TRUE", {"a": "True"}, True),
        ("TRUE = a", {"a": "true"}, False),
        ("5 = TRUE", {}, False),
        ("a <> 'x'", {"a": "y"}, True),
        ("a <> 'x'", {}, False),
        ("NOT a = 'x'", {"a": "y"}, False),  # (NOT a) = 'x'
        ("NOT (a = 'x')", {"a": "y"}, True),
        ("a IS NULL", {}, True),
        ("a IS NOT NULL", {"a": "x"}, True),
        ("a", {"a": "true"}, False),  # a property is a string, never a condition
        ("a BETWEEN 1 AND 3", {"a": "3"}, True),
        ("a NOT BETWEEN 1 AND 3", {"a": "4"}, True),
        ("a NOT BETWEEN 1 AND 3", {}, False),
        ("a IN ('x', 'it''s')", {"a": "it's"}, True),
        ("a NOT IN ('x')", {"a": "y"}, True),
        ("a NOT IN ('x')", {}, False),
        ("a CONTAINS 'b'", {"a": "abc"}, True),
        ("a NOT CONTAINS 'z'", {"a": "abc"}, True),
        ("a NOT CONTAINS 'z'", {}, False),
        ("a NOT CONTAINS ''", {"a": "abc"}, False),
        ("a STARTSWITH 'ab' AND a ENDSWITH 'bc'", {"a": "abc"}, True),
        ("TAGS = 'TagA' and price>=1e2", {"TAGS": "TagA", "price": "100"}, True),
        ("b IS NULL AND a = 1", {"a": "1"}, True),
        ("b = 1 OR a = 1", {"a": "1"}, True),
        ("a = 3 OR a <> 3", {"a": "\u0663"}, False),  # a digit, but not an ASCII one
        ("a = 3 OR a <> 3", {"a": "\u00b2"}, False),
        ("b = 1 AND a = 1", {"a": "1"}, False),
        ("a = 1 /* why */ -- and so on\n AND b = 2", {"a": "1", "b": "2"}, True),
        ("$a_1 = 'x'", {"$a_1": "x"}, True),
        ("android = 1", {"android": "1"}, True),  # a keyword is a whole word
        ("a = 1 what ( follows", {"a": "1"}, True),  # is ignored, as in RocketMQ
        ("true", {}, True),
        ("NULL", {}, False),
    ],
)
def test_message_matches_as_in_rocketmq(expression: str, properties: dict[str, str], expected: bool) -> None:
    assert matches(expression, **properties) is expected


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "empty"),
        ("a = ", "ends too early"),
        ("= a", "not expected here"),
        ("a = 'x", "is not a word or sign"),
        ("5", "condition"),
        ("a AND 5", "condition"),
        ("a > 'x'", "only numbers"),
        ("a > TRUE", "only numbers"),
        ("a > 1 > 2", "only numbers"),
        ("a = NULL", "IS NULL"),
        ("TRUE = 5", "TRUE and FALSE"),
        ("a BETWEEN 3 AND 1", "wrong way round"),
        ("a BETWEEN NULL AND 1", "NULL"),
        ("5 IN ('x')", "property before"),
        ("a IN (5)", "not expected here"),
        ("a = 0.0", "is zero or too large"),
        ("a = 99999999999999999999", "64 bits"),
        ("(" * 200 + "a = 1" + ")" * 200, "100 levels"),
        ("NOT " * 200 + "a", "100 levels"),
        ("a = 1" + " OR a = 1" * 900, "at most 1000"),
        ("a = '" + "x" * 20_000 + "'", "at most 16384"),
    ],
)
def test_expression_that_cannot_be_used_says_why(expression: str, reason: str) -> None:
    with pytest.raises(SqlError, match=reason):
        compile_filter(expression)


@settings(deadline=None)
@given(
    st.binary(max_size=20),
    st.lists(st.tuples(st.text("ab\x01", max_size=3), st.text("ab\x01é", max_size=3)), max_size=5),
    st.sampled_from((0, 0x10, 0x20, 0x30)),
    st.integers(0, 130),
    st.data(),
)
def test_properties_are_found_where_the_whole_record_is_read(
    body: bytes, pairs: list[tuple[str, str]], hosts: int, topic_size: int, data: st.DataObject
) -> None:
    """Also in records with a damaged byte, as long as both functions accept them as a record."""
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs).encode()
    new = NewRecord(
        topic="T" * (topic_size + 1),
        queue_id=0,
        body=body,
        properties=text,
        born_at_ms=1,
        born_host=bytes(20 if hosts & 0x10 else 8),
        sys_flag=hosts,
    )
    store_host = bytes(20 if hosts & 0x20 else 8)
    raw = bytearray(encode_record(new, queue_offset=3, log_offset=100, stored_at_ms=2, store_host=store_host))
    if data.draw(st.booleans()):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    parsed = parse_record(raw, 0)
    found = find_record_properties(raw)
    if not isinstance(parsed, RecordCheck):
        assert found == parsed[3]
        pairs_found = decode_properties(parsed[3])
        for name in {"a", "b", "ab", *pairs_found}:
            value = find_property(parsed[3], name.encode())
            told = None if value is None else str(value, "utf-8", "replace")
            assert told == pairs_found.get(name)
            # Finding several at once gives the same as one by one.
            names = (name, "b", "a")
            values = tuple(find_property(parsed[3], each.encode()) for each in names)
            assert find_properties(parsed[3], tuple(map(property_mark, names))) == values
    for end in range(0, len(raw), 7):
        assert find_record_properties(raw[:end]) is None


def test_a_record_with_any_bit_turned_over_has_the_properties_that_all_readers_find() -> None:
    new = NewRecord(
        topic="T", queue_id=0, body=b"xy", properties=b"a\x01x\x02", born_at_ms=1, born_host=bytes(8)
    )
    raw = encode_record(new, queue_offset=3, log_offset=100, stored_at_ms=2, store_host=bytes(8))
    for bit in range(8 * len(raw)):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        parsed = parse_record(damaged, 0)
        found = find_record_properties(damaged)
        if not isinstance(parsed, RecordCheck):
            assert found == parsed[3], bit
        elif parsed.outcome is not RecordOutcome.BAD_TOPIC:  # the topic is not checked here
            assert found is None, bit


def test_a_pair_without_a_value_does_not_hide_one_before_it() -> None:
    assert find_properties(b"a\x01x\x02a\x01\x02b\x01", (b"\x02a\x01", b"\x02b\x01")) == (b"x", None)
    assert compile_filter("a = 'x'").matches_properties(b"a\x01x\x02a\x01\x02")


def test_the_last_value_of_a_property_counts_in_each_of_many_messages() -> None:
    texts = [
        b"a\x01x\x02a\x01x\x02a\x01y\x02",
        b"a\x01y\x02a\x01x",
        b"a\x01y\x02a\x01\x02",
        b"ba\x01y\x02",
        b"",
    ]
    ends = list(accumulate(map(len, texts)))
    begins = [end - len(text) for end, text in zip(ends, texts, strict=True)]
    filter_ = compile_filter("a = 'y'")
    assert filter_.select(memoryview(b"".join(texts)), begins, ends) == [True, False, True, False, False]
    assert list(map(filter_.matches_properties, texts)) == [True, False, True, False, False]


def test_filter_reads_the_properties_of_a_stored_record() -> None:
    new = NewRecord(
        topic="T",
        queue_id=0,
        body=b"a > 5",
        properties=encode_properties({"a": "7", "TAGS": "t"}),
        born_at_ms=1,
        born_host=bytes(8),
    )
    raw = encode_record(new, queue_offset=3, log_offset=100, stored_at_ms=2, store_host=bytes(8))
    assert compile_filter("a > 5 AND TAGS = 't'").matches_record(memoryview(raw))
    assert not compile_filter("a > 7").matches_record(raw)
    assert not compile_filter("TRUE").matches_record(raw[:50])


@given(
    st.sampled_from(
        ("a > 5 OR b = 'x'", "a = b", "NOT (a > b)", "a IS NULL AND b IS NOT NULL", "TRUE", "a IN ('1', 'x')")
    ),
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.sampled_from(("1", "6", "x", "six", "y" * 80))),
        max_size=12,
    ),
)
def test_what_is_known_of_some_values_is_what_would_be_found_again(
    expression: str, messages: list[dict[str, str]]
) -> None:
    kept = compile_filter(expression)
    for properties in messages:
        new = NewRecord(
            topic="T",
            queue_id=0,
            body=b"",
            properties=encode_properties(properties),
            born_at_ms=1,
            born_host=bytes(8),
        )
        raw = encode_record(new, queue_offset=3, log_offset=100, stored_at_ms=2, store_host=bytes(8))
        assert kept.matches_record(raw) is matches(expression, **properties)
    assert len(kept._known) <= len(messages)


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("TAGS = 'x'", {"x"}),
        ("'x' = TAGS", {"x"}),
        ("TAGS IN ('x', 'y')", {"x", "y"}),
        ("(TAGS = 'x' OR TAGS = 'y') AND a > 5", {"x", "y"}),
        ("TAGS IN ('x', 'y') AND TAGS = 'y'", {"y"}),
        ("TAGS = 'x' AND TAGS = 'y'", set()),
        ("TAGS = 'x' OR a > 5", None),
        ("TAGS <> 'x'", None),
        ("NOT (TAGS = 'x')", None),
        ("TAGS NOT IN ('x')", None),
        ("TAGS IS NULL", None),
        ("TAGS = 5", None),
        ("TAGS = a", None),
        ("a = 'x'", None),
        ("(TAGS = 'x') = FALSE", None),
        ("TAGS STARTSWITH 'x'", None),
        ("TAGS", None),
        ("TRUE", None),
    ],
)
def test_tags_are_told_only_where_a_match_needs_one_of_them(expression: str, tags: set[str] | None) -> None:
    told = compile_filter(expression).tag_hashes
    assert told == (None if tags is None else set(map(tag_hash, tags)))


@pytest.mark.parametrize(
    ("expression", "taken", "left"),
    [
        ("b = 'x' AND a > 5", {"a": "6", "b": "x"}, {"a": "6", "b": "xy"}),
        ("b = 'x' OR b = 'y'", {"b": "y"}, {"bb": "x", "b": "z"}),
        ("b = 'x' OR a > 5", {"a": "6"}, {"a": "5"}),
        ("b IN ('1', '2', '3', '4', '5')", {"b": "5"}, {"b": "6"}),
        ("b = 'é' AND a = 'x'", {"a": "x", "b": "é"}, {"a": "x", "b": "e"}),
    ],
)
def test_properties_in_their_wire_form_are_judged_as_others(
    expression: str, taken: dict[str, str], left: dict[str, str]
) -> None:
    compiled = compile_filter(expression)
    assert compiled.matches_properties(encode_properties(taken))
    assert not compiled.matches_properties(encode_properties(left))


def test_a_text_that_broken_bytes_read_as_is_found_in_them() -> None:
    compiled = compile_filter("b = 'x\ufffd'")
    assert compiled.matches_properties(b"b\x01x\xff\x02")
    assert compiled.matches_properties(encode_properties({"b": "x\ufffd"}))
