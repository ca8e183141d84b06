"""Properties: the written form, and the tolerance of reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.errors import LocalProtocolError, MessageIllegal
from tandemmq.protocol.properties import (
    append_property,
    check_properties_size,
    decode_properties,
    encode_properties,
    find_property,
    is_reserved,
    remove_property,
)


def test_pairs_are_written_in_their_order() -> None:
    assert encode_properties({"KEYS": "k1", "TAGS": "t"}) == b"KEYS\x01k1\x02TAGS\x01t\x02"
    assert encode_properties({}) == b""


def test_pair_without_value_is_not_written() -> None:
    assert encode_properties({"a": "", "b": "c"}) == b"b\x01c\x02"


@pytest.mark.parametrize("pairs", [{"": "v"}, {"a\x01": "v"}, {"a\x02b": "v"}, {"a": "x\x02y"}])
def test_separators_cannot_be_smuggled_in(pairs: dict[str, str]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_properties(pairs)


def test_value_may_hold_the_first_separator_as_in_java() -> None:
    raw = encode_properties({"a": "x\x01y"})
    assert decode_properties(raw) == {"a": "x\x01y"}
    assert find_property(raw, b"a") == b"x\x01y"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", {}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x02", {"a": "b"}),
        (b"a\x01b\x02\x02\x02c\x01d", {"a": "b", "c": "d"}),
        (b"\x01v\x02a\x01\x02ab\x02c\x01d\x02", {"c": "d"}),
        (b"a\x01b\x02\x01v\x02", {"a": "b"}),
        (b"\x01v\x02a\x01b\x02", {"a": "b"}),
        (b"a\x01b\x02c\x01\x02", {"a": "b"}),
        (b"a\x01first\x02a\x01second\x02", {"a": "second"}),
        (b"a\x01first\x02a\x01\x02", {"a": "first"}),
        (b"a\x01\xff\x02", {"a": "�"}),
        ("名\x01值\x02".encode(), {"名": "值"}),
    ],
)
def test_whatever_is_no_pair_is_ignored(raw: bytes, expected: dict[str, str]) -> None:
    assert decode_properties(raw) == expected
    for name, value in expected.items():
        found = find_property(raw, name.encode())
        assert found is not None
        assert found.decode("utf-8", "replace") == value


@given(st.text("\x01\x02ab", max_size=14).map(str.encode), st.booleans())
def test_pairs_are_told_at_once_as_they_are_one_by_one(raw: bytes, is_ended: bool) -> None:
    raw += b"\x02" if is_ended else b""
    expected: dict[str, str] = {}
    for piece in raw.decode().split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value:
            expected[name] = value
    assert list(decode_properties(raw).items()) == list(expected.items())


@pytest.mark.parametrize(
    "raw", [b"", b"XTAGS\x01v\x02", b"a\x01TAGS\x02", b"TAGS\x01", b"TAGS\x01\x02", b"a\x01TAGS\x01v\x02"]
)
def test_name_is_only_found_where_a_pair_begins(raw: bytes) -> None:
    assert find_property(raw, b"TAGS") is None
    assert "TAGS" not in decode_properties(raw)


def test_pair_is_appended_behind_an_open_ended_one() -> None:
    assert append_property(b"a\x01b", "c", "d") == b"a\x01b\x02c\x01d\x02"
    assert append_property(b"a\x01b\x02", "c", "d") == b"a\x01b\x02c\x01d\x02"
    assert append_property(b"", "c", "d") == b"c\x01d\x02"


def test_every_pair_of_a_name_is_removed() -> None:
    assert remove_property(b"a\x011\x02b\x012\x02a\x013\x02", b"a") == b"b\x012\x02"
    raw = b"xa\x011\x02"
    assert remove_property(raw, b"a") == raw


def test_more_than_a_length_field_can_say_is_refused() -> None:
    check_properties_size(bytes(32767))
    with pytest.raises(MessageIllegal, match="32768"):
        check_properties_size(bytes(32768))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("TAGS", True),
        ("UNIQ_KEY", True),
        ("__RMQ.TRANSIENT.x", True),
        ("__SHARDINGKEY", False),
        ("colour", False),
    ],
)
def test_system_names_are_reserved(name: str, expected: bool) -> None:
    assert is_reserved(name) is expected
