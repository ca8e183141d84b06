"""Tests that vectorised properties equal the results of the one-at-a-time decoder."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemmq.protocol.properties import decode_properties
from tandemmq.spark.properties import build_map, pick_values, scan_properties

NAMES = ["TAGS", "KEYS", "UNIQ_KEY", "TAG", "UNIQ_KEYX", "a", "é", "a long property name"]

pair = st.tuples(st.sampled_from(NAMES), st.text(alphabet="ab\x01é ", max_size=6)).map(
    lambda p: f"{p[0]}\x01{p[1]}\x02".encode()
)
junk = st.binary(max_size=12).map(lambda raw: raw.replace(b"\xff", b""))
wire_form = st.lists(pair, max_size=6).map(b"".join)
open_form = wire_form.map(lambda raw: raw[:-1] if raw.endswith(b"\x02") else raw)
any_form = st.one_of(wire_form, open_form, junk, st.just(b""))


def _scan(blobs: list[bytes]):  # type: ignore[no-untyped-def]
    return scan_properties(pa.array(blobs, type=pa.binary()))


@given(st.lists(any_form, max_size=8))
def test_maps_and_values_equal_those_of_the_plain_decoder(blobs: list[bytes]) -> None:
    spans = _scan(blobs)
    # Undecodable bytes are replaced per value in one and per blob in the other, so the counts of U+FFFD may
    # differ.
    readable = [row for row, raw in enumerate(blobs) if _is_text(raw)]
    expected = [decode_properties(raw) for raw in blobs]
    found = [dict(pairs) for pairs in build_map(spans).to_pylist()]
    assert [found[row] for row in readable] == [expected[row] for row in readable]
    for name in ("TAGS", "KEYS", "UNIQ_KEY", "a"):
        picked = pick_values(spans, name.encode()).to_pylist()
        assert [picked[row] for row in readable] == [expected[row].get(name) for row in readable]


@given(st.lists(any_form, min_size=1, max_size=8))
def test_a_map_names_each_key_once(blobs: list[bytes]) -> None:
    for pairs in build_map(_scan(blobs)).to_pylist():
        keys = [key for key, _ in pairs]
        assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"a\x011\x02a\x012\x02", {"a": "2"}),
        (b"a\x011", {"a": "1"}),
        (b"a\x01\x02\x01b\x02c\x02d\x01x\x01y\x02", {"d": "x\x01y"}),
        (b"\x02\x02a\x011\x02", {"a": "1"}),
        (b"a\x011\x02b\x01x\x02a\x012\x02b\x01y\x02a\x013", {"b": "y", "a": "3"}),
        (b"no separators", {}),
        (b"a\x01\xc3\x02\xff\x01\xa9\x02", {"a": "\ufffd", "\ufffd": "\ufffd"}),
    ],
)
def test_odd_forms(raw: bytes, expected: dict[str, str]) -> None:
    neighbours = b"KEYS\x01k\x02"
    maps = build_map(_scan([neighbours, raw, neighbours])).to_pylist()
    assert [dict(pairs) for pairs in maps] == [{"KEYS": "k"}, expected, {"KEYS": "k"}]


def test_bytes_that_are_no_text_become_replacement_characters() -> None:
    assert pick_values(_scan([b"TAGS\x01\xff\x02", b""]), b"TAGS").to_pylist() == ["�", None]


def test_no_records() -> None:
    spans = _scan([])
    assert build_map(spans).to_pylist() == []
    assert pick_values(spans, b"TAGS").to_pylist() == []


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
