"""Templates of printed messages."""

from __future__ import annotations

import json

import pytest
import typer

from tandemmq.client import ReceivedMessage
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import Record
from tandemmq.shell.line_format import FIELDS, parse_template

PROPERTIES = {"KEYS": "k1 k2", "TAGS": "paid", "UNIQ_KEY": "ID", "origin": "web"}
HOST = encode_host("127.0.0.1", 10911)
MESSAGE = ReceivedMessage(
    Record(
        topic="Orders",
        queue_id=2,
        queue_offset=7,
        log_offset=0,
        size=0,
        body=b"\xffx",
        body_crc=0,
        flag=0,
        sys_flag=0,
        born_at_ms=0,
        born_host=HOST,
        stored_at_ms=1_500,
        store_host=HOST,
        retry_count=1,
        prepared_offset=0,
        raw_properties=encode_properties(PROPERTIES),
    ),
    broker_name="broker-a",
)


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("", b""),
        ("{body}", b"\xffx"),
        ("{broker}/{queue}@{offset} {id}", b"broker-a/2@7 ID"),
        (r"{keys}\t{tags}\n{stored_at}", b"k1 k2\tpaid\n1970-01-01T00:00:01.500+00:00"),
        ("{{{topic}}} {size} {retries}", b"{Orders} 2 1"),
        ("{property.origin}{property.none}", b"web"),
    ],
)
def test_fields_are_replaced(template: str, line: bytes) -> None:
    assert parse_template(template, "--format").render(MESSAGE) == line


def test_every_field_has_a_text() -> None:
    line = parse_template(" ".join(f"{{{name}}}" for name in FIELDS), "--format").render(MESSAGE)
    assert line.count(b"1970-01-01") == 2
    assert json.loads(parse_template("{properties}", "--format").render(MESSAGE)) == PROPERTIES


@pytest.mark.parametrize(
    ("template", "reason"),
    [("{nix}", "allowed are body, topic"), ("{", "write {{"), ("a}", "write }}"), ("{property.}", "allowed")],
)
def test_mistakes_name_what_is_allowed(template: str, reason: str) -> None:
    with pytest.raises(typer.BadParameter, match=reason):
        parse_template(template, "--format")
