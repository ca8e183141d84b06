"""Bodies of messages for display, hostile ones included."""

from __future__ import annotations

import io
import json
import zlib

import fastavro
import pytest
from google.protobuf import descriptor_pb2

from tandemmq.manage.bodies import (
    HEX_BYTES_MAX,
    JSON_BYTES_MAX,
    JSON_DEPTH_MAX,
    TEXT_CHARS_MAX,
    BodyForm,
    BodySchema,
    dump_hex,
    make_printable,
    show_body,
)
from tandemmq.protocol.sys_flag import COMPRESSED, COMPRESSION_ZSTD

ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "lines", "type": {"type": "array", "items": "double"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "raw", "type": {"type": "map", "values": "bytes"}},
    ],
}
VALUE = {
    "id": -7,
    "note": "größer",
    "lines": [1.5, 2.0],
    "at": 0,
    "price": b"\x04\xd2",
    "raw": {"k": b"\xff"},
}
SHOWN = {
    "id": -7,
    "note": "größer",
    "lines": [1.5, 2.0],
    "at": "1970-01-01T00:00:00+00:00",
    "price": "12.34",
    "raw": {"k": "ff"},
}


def plain_schema() -> dict[str, object]:
    """Returns the schema without logical types, so that the writer takes the values as they are."""
    return json.loads(json.dumps(ORDER).replace('"logicalType"', '"was"'))


def avro_bytes() -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, plain_schema(), VALUE)
    return stream.getvalue()


def test_json_is_indented_with_its_numbers_as_they_are() -> None:
    view = show_body(b'{"a":[1e400,12345678901234567890]}', 0)
    assert view.form is BodyForm.JSON
    assert view.text == '{\n  "a": [\n    1e400,\n    12345678901234567890\n  ]\n}'


def test_deep_json_does_not_grow_by_its_indentation() -> None:
    deep = b"[" * (JSON_DEPTH_MAX + 1) + b'"]["' + b"]" * (JSON_DEPTH_MAX + 1)
    view = show_body(deep, 0)
    assert view.form is BodyForm.JSON
    assert "\n" not in view.text
    assert show_body(b"[" * 100_000, 0).form is BodyForm.TEXT


def test_long_json_is_shown_as_text() -> None:
    view = show_body(zlib.compress(b"[" + b"1," * JSON_BYTES_MAX + b"1]"), COMPRESSED)
    assert (view.form, view.is_cut) == (BodyForm.TEXT, True)
    assert "too many to indent" in view.note


def test_a_small_container_does_not_grow_without_bound() -> None:
    schema = {"type": "enum", "name": "E", "symbols": ["s" * (1 << 20)]}
    stream = io.BytesIO()
    fastavro.writer(stream, schema, schema["symbols"] * 10_000)
    view = show_body(stream.getvalue(), 0)
    assert (view.form, view.is_cut, len(view.text)) == (BodyForm.AVRO, True, TEXT_CHARS_MAX)


def test_text_cannot_change_the_page_or_the_terminal() -> None:
    view = show_body(
        "a\tb\n\x1b[31m\u202egnp.exe, a long enough text for a control character or two".encode(), 0
    )
    assert view.form is BodyForm.TEXT
    assert view.text.startswith("a\tb\n\\x1b[31m\\u202egnp.exe")
    assert make_printable("x\ny", keeps="") == "x\\ny"


def test_bytes_become_hex() -> None:
    view = show_body(bytes([0xFF, 0xFE]) + b"AB", 0)
    assert (view.form, view.text) == (BodyForm.HEX, dump_hex(b"\xff\xfeAB"))
    assert view.text.endswith("..AB")
    big = show_body(b"\xff" * (HEX_BYTES_MAX + 1), 0)
    assert big.is_cut
    assert big.text.count("\n") == HEX_BYTES_MAX // 16 - 1
    assert show_body(b"text", 0, BodyForm.HEX).form is BodyForm.HEX
    assert show_body(b"", 0).text == ""


def test_compressed_bodies_are_inflated_or_shown_as_stored() -> None:
    view = show_body(zlib.compress(b"x" * 5000), COMPRESSED)
    assert (view.text, view.size, view.compression) == ("x" * 5000, 5000, "zlib")
    assert view.stored_size < 100
    bad = show_body(b"no zlib", COMPRESSED | COMPRESSION_ZSTD)
    assert bad.form is BodyForm.HEX
    assert bad.note.startswith("shown as stored: ")
    long = show_body(zlib.compress(b"x" * (TEXT_CHARS_MAX + 1)), COMPRESSED)
    assert long.is_cut
    assert len(long.text) == TEXT_CHARS_MAX


def test_avro_is_read_by_the_schema_given() -> None:
    schema = BodySchema(avro=json.dumps(ORDER))
    for body in (avro_bytes(), b"\0\0\0\0\x07" + avro_bytes(), b"\xc3\x01" + bytes(8) + avro_bytes()):
        view = show_body(body, 0, BodyForm.AUTO, schema)
        assert (view.form, json.loads(view.text)) == (BodyForm.AVRO, SHOWN)
    assert "schema 7" in show_body(b"\0\0\0\0\x07" + avro_bytes(), 0, BodyForm.AVRO, schema).note
    assert "fingerprint" in show_body(b"\xc3\x01" + bytes(8) + avro_bytes(), 0).note


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_container_brings_its_schema(codec: str) -> None:
    stream = io.BytesIO()
    fastavro.writer(stream, plain_schema(), [VALUE, VALUE], codec=codec)
    view = show_body(stream.getvalue(), 0)
    assert view.form is BodyForm.AVRO
    assert [one["id"] for one in json.loads(view.text)] == [-7, -7]
    torn = show_body(stream.getvalue()[:-20], 0)
    assert torn.note


def container(schema: object, block: bytes, count: bytes) -> bytes:
    head = io.BytesIO()
    fastavro.writer(head, {"type": "record", "name": "R", "fields": []}, [])
    text = json.dumps(schema).encode()
    sync = bytes(16)
    facts = b"\x02" + b"\x16avro.schema" + varint(len(text)) + text + b"\0"
    return b"Obj\x01" + facts + sync + count + varint(len(block)) + block + sync


def varint(number: int) -> bytes:
    number <<= 1
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


@pytest.mark.parametrize(
    ("schema", "block"),
    [
        ({"type": "array", "items": "null"}, b"\xfe" + b"\xff" * 8 + b"\x01"),
        (
            {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]},
            b"\x02" * 100_000,
        ),
        ({"type": "record", "name": "N", "fields": [{"name": "n", "type": "N"}]}, b""),
        ("bytes", b"\xfe" + b"\xff" * 8 + b"\x01"),
        ("nothing", b""),
        ({"type": "fixed", "name": "F", "size": 10**12}, b""),
    ],
)
def test_an_embedded_schema_cannot_stop_the_reader(schema: object, block: bytes) -> None:
    view = show_body(container(schema, block, b"\x02"), 0)
    assert view.note
    assert "Error" not in view.note  # the reader's bounds refuse it before it fails


def descriptors() -> bytes:
    file = descriptor_pb2.FileDescriptorSet()
    one = file.file.add(name="order.proto", package="shop", syntax="proto3")
    message = one.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=3, label=1)
    message.field.add(name="user_name", number=2, type=9, label=1)
    return file.SerializeToString()


def test_protobuf_is_read_by_descriptors_or_by_its_wire_format() -> None:
    body = b"\x08\x96\x01\x12\x03Ann"
    schema = BodySchema(descriptors=descriptors(), message="shop.Order")
    for payload in (body, b"\0\0\0\0\x05\0" + body):
        view = show_body(payload, 0, BodyForm.AUTO, schema)
        assert (view.form, json.loads(view.text)) == (BodyForm.PROTOBUF, {"id": "150", "user_name": "Ann"})
    plain = show_body(body + b"\x1a\x02\x08\x01\x25\x00\x00\x80\x3f", 0, BodyForm.PROTOBUF)
    assert plain.text == '1: 150\n2: "Ann"\n3 {\n  1: 1\n}\n4: 1065353216 (1.0)'
    missing = show_body(body, 0, BodyForm.PROTOBUF, BodySchema(descriptors=b"x", message="shop.Order"))
    assert "shop.Order" in missing.note


def test_hostile_protobuf_is_shown_otherwise() -> None:
    assert show_body(b"\x0a\xff\xff\xff\xff\x0f\xff", 0, BodyForm.PROTOBUF).form is BodyForm.HEX
    many = show_body(b"\x08\x01\xf8\x01\x01" * 9_000, 0, BodyForm.PROTOBUF)
    assert "more than" in many.note
