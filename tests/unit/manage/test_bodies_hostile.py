"""Random bodies, Avro schemas and traces: none of them raises anything but the error of this package."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tandemmq.manage import avro
from tandemmq.manage.bodies import NOTE_CHARS_MAX, BodyForm, BodySchema, show_body
from tandemmq.manage.traces import parse_trace
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.record import Record
from tandemmq.protocol.schema_header import BodyUnreadable

HOST = encode_host("10.0.0.9", 4000)
EMPTY = Record("t", 0, 0, 0, 0, b"", 0, 0, 0, 0, HOST, 0, HOST, 0, 0, b"")
KEYS = ("type", "name", "namespace", "fields", "symbols", "size", "items", "values", "scale", "logicalType")
WORDS = (
    *("null", "boolean", "int", "long", "float", "double", "bytes", "string", "record", "enum", "fixed"),
    *("array", "map", "decimal", "date", "timestamp-millis", "local-timestamp-nanos", "R", "\ud800"),
)
SCALARS = st.one_of(st.sampled_from(WORDS), st.none(), st.booleans(), st.integers(), st.floats(), st.text())
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(KEYS), inner),
        st.builds(lambda kind: {"type": kind}, st.sampled_from(WORDS)),
        st.builds(lambda kind: {"type": "array", "items": kind}, inner),
        st.builds(lambda kind: {"type": "map", "values": kind}, inner),
        st.builds(lambda size: {"type": "fixed", "name": "F", "size": size}, SCALARS),
        st.builds(lambda symbols: {"type": "enum", "name": "E", "symbols": symbols}, inner),
        st.builds(
            lambda kind, logical, scale: {"type": kind, "logicalType": logical, "scale": scale},
            st.sampled_from(("int", "long", "bytes")),
            st.sampled_from(WORDS),
            SCALARS,
        ),
        st.builds(
            lambda name, kinds: {
                "type": "record",
                "name": "R",
                "fields": [{"name": name, "type": kind} for kind in kinds],
            },
            SCALARS,
            st.lists(inner, max_size=3),
        ),
    ),
    max_leaves=12,
)
BODIES = st.one_of(
    st.binary(max_size=200),
    st.binary(max_size=200).map(lambda rest: avro.SINGLE_OBJECT_MAGIC + rest),
    st.binary(max_size=200).map(lambda rest: avro.CONTAINER_MAGIC + rest),
)


def container(schema: str, block: bytes) -> bytes:
    """Returns an object container file with one block of one value."""

    def sized(data: bytes) -> bytes:
        count, found = len(data) << 1, bytearray()
        while count >= 0x80:
            found.append(count & 0x7F | 0x80)
            count >>= 7
        return bytes([*found, count]) + data

    head = b"\x02" + sized(b"avro.schema") + sized(schema.encode("utf-8", "replace")) + b"\0"
    return avro.CONTAINER_MAGIC + head + bytes(16) + b"\x02" + sized(block) + bytes(16)


@given(schema=SCHEMAS, body=BODIES)
@example(schema={"type": "fixed", "name": "F", "size": float("inf")}, body=b"")
@example(schema={"type": "record", "name": "R", "fields": [{"type": "int"}]}, body=b"\2")
@example(schema={"type": "bytes", "logicalType": "decimal", "scale": []}, body=b"\x02\x01")
@example(schema={"type": "enum", "name": "E", "symbols": [["deep"]]}, body=b"\0")
def test_any_schema_and_any_body_are_shown(schema: Any, body: bytes) -> None:
    text = json.dumps(schema)
    for form in (BodyForm.AUTO, BodyForm.AVRO):
        for content, given_schema in ((body, text), (container(text, body), "")):
            view = show_body(content, 0, form, BodySchema(avro=given_schema))
            (view.text + view.note).encode()
            assert len(view.note) <= NOTE_CHARS_MAX


@given(body=BODIES, flag=st.integers(0, 0x1FFF), form=st.sampled_from(BodyForm))
def test_any_body_and_flag_are_shown_in_any_form(body: bytes, flag: int, form: BodyForm) -> None:
    view = show_body(body, flag, form)
    (view.text + view.note).encode()


@given(text=st.one_of(st.text(), st.binary()))
@example(text="[" * 100_000)
@example(text='{"type":' * 5_000 + '"int"' + "}" * 5_000)
@example(text="9" * 10_000)
def test_any_text_is_a_schema_or_unreadable(text: str | bytes) -> None:
    try:
        avro.parse_schema(text)
    except BodyUnreadable:
        pass


def test_a_name_that_is_no_text_is_refused() -> None:
    for schema in ({"type": "record", "name": ["R"], "fields": []}, {"type": "record", "name": "R"}):
        with pytest.raises(BodyUnreadable, match=r"name|fields"):
            avro.parse_schema(json.dumps(schema))


@given(
    kind=st.sampled_from(("Pub", "SubBefore", "SubAfter", "EndTransaction", "Recall")),
    fields=st.lists(st.one_of(st.just("K"), st.text(), st.from_regex(r"\A[0-9]{1,30}\Z")), max_size=16),
)
@example(kind="Pub", fields=["9" * 5_000, "", "g", "t", "K", "", "", "b", "", "9" * 19, "0", "", "true"])
def test_any_trace_is_parsed(kind: str, fields: list[str]) -> None:
    body = ("\x01".join([kind, *fields]) + "\x02").encode("utf-8", "replace")
    trace = parse_trace("K", [replace(EMPTY, body=body)])
    numbers = [one.sent_at_ms for one in trace.sends] + [one.took_ms for one in trace.handlings]
    assert all(number < 1 << 63 for number in numbers)
