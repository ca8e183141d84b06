"""Bodies of messages for display: JSON, text, Avro, Protobuf, and a hex dump of everything else.

Invariants: a body never raises, whatever its bytes and its flag say: a form that does not fit is replaced by
            text or hex, with the reason in `note`. Texts hold only printable characters, tabs and line ends,
            so that neither a terminal nor bidirectional overrides change the shown text.
At a bound: a text is cut after `TEXT_CHARS_MAX` characters, a dump after `HEX_BYTES_MAX` bytes (`is_cut`), a
            note after `NOTE_CHARS_MAX`. A body that inflates to more than `CONTENT_BYTES_MAX` is shown as
            stored.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec

from tandemmq.errors import ConfigError
from tandemmq.manage import avro, protobuf
from tandemmq.protocol import sys_flag as flags
from tandemmq.protocol.compression import decode_content
from tandemmq.protocol.schema_header import BodyUnreadable, skip_message_indexes, split_header

TEXT_CHARS_MAX: Final = 256 * 1024
HEX_BYTES_MAX: Final = 16 * 1024
NOTE_CHARS_MAX: Final = 500
JSON_BYTES_MAX: Final = 1 << 20
"""The size of JSON that is indented; more is shown as text."""
JSON_DEPTH_MAX: Final = 40
"""The depth of JSON that is indented: the indentation of deeper values would be most of the text."""
_HEX_LINE: Final = 16
_BRACKETS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_COMPRESSIONS: Final = {
    flags.COMPRESSION_LEGACY: "zlib",
    flags.COMPRESSION_ZLIB: "zlib",
    flags.COMPRESSION_LZ4: "lz4",
    flags.COMPRESSION_ZSTD: "zstd",
}


class BodyForm(StrEnum):
    """The forms in which a body can be shown; `AUTO` chooses the first that fits."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class BodySchema:
    """The schema of a body: Avro's as JSON text, or Protobuf's descriptors and the name of a message."""

    avro: str = ""
    descriptors: bytes = b""
    message: str = ""


NO_SCHEMA: Final = BodySchema()


@dataclass(frozen=True, slots=True)
class BodyView:
    """A body for display. `size` and `stored_size`: bytes after and before decompression."""

    form: BodyForm
    text: str
    size: int
    stored_size: int
    compression: str = ""
    is_cut: bool = False
    note: str = ""


def show_body(
    body: bytes, sys_flag: int, form: BodyForm = BodyForm.AUTO, schema: BodySchema = NO_SCHEMA
) -> BodyView:
    """Returns the stored body in the requested form, or in the best one that fits."""
    content, fault = decode_content(body, sys_flag)
    compression = name_compression(sys_flag)
    if fault:
        found, text, note = BodyForm.HEX, dump_hex(content), f"shown as stored: {fault}"
    else:
        found, text, note = _render(content, form, schema)
    text, is_cut = text[:TEXT_CHARS_MAX], len(text) > TEXT_CHARS_MAX
    is_cut |= found is BodyForm.HEX and len(content) > HEX_BYTES_MAX
    note = make_printable(note[:NOTE_CHARS_MAX])
    return BodyView(found, make_printable(text), len(content), len(body), compression, is_cut, note)


def name_compression(sys_flag: int) -> str:
    """Returns the compression of a body with this flag; empty if there is none."""
    kind = sys_flag & flags.COMPRESSION_MASK
    return _COMPRESSIONS.get(kind, f"kind {kind:#x}") if sys_flag & flags.COMPRESSED else ""


def _render(content: bytes, form: BodyForm, schema: BodySchema) -> tuple[BodyForm, str, str]:
    """Returns the form, the text and a note: of the first wanted form that fits, else of text, guessed fields
    of Protobuf, or hex.
    """
    note = _header_note(content)
    for wanted in [form] if form is not BodyForm.AUTO else _likely_forms(content, schema):
        try:
            text, remark = _read_as(wanted, content, schema)
        except (BodyUnreadable, ConfigError, UnicodeDecodeError) as error:
            note = f"not shown as {wanted}: {error}"
        else:
            return wanted, text, remark
    try:
        text = content.decode()
        if _is_text(text):
            return BodyForm.TEXT, text, note
    except UnicodeDecodeError:
        pass
    try:
        text = protobuf.read_wire_fields(content)
        return BodyForm.PROTOBUF, text, note or "guessed: the fields of Protobuf's wire format"
    except BodyUnreadable:
        return BodyForm.HEX, dump_hex(content), note


def _likely_forms(content: bytes, schema: BodySchema) -> list[BodyForm]:
    """Returns the forms at which the schema and the first bytes hint."""
    is_avro = bool(schema.avro) or content.startswith((avro.CONTAINER_MAGIC, avro.SINGLE_OBJECT_MAGIC))
    is_json = content.lstrip()[:1] in (b"{", b"[")
    hints = (BodyForm.AVRO, is_avro), (BodyForm.PROTOBUF, bool(schema.message)), (BodyForm.JSON, is_json)
    return [form for form, is_likely in hints if is_likely]


def _read_as(form: BodyForm, content: bytes, schema: BodySchema) -> tuple[str, str]:
    """Returns the text of the body in this form, and a note. Raises BodyUnreadable, UnicodeDecodeError, or
    ConfigError for a missing package.
    """
    match form:
        case BodyForm.JSON:
            return _indent_json(content), ""
        case BodyForm.AVRO:
            return _read_avro(content, schema)
        case BodyForm.PROTOBUF:
            return _read_protobuf(content, schema)
        case BodyForm.HEX:
            return dump_hex(content), ""
    return content.decode(), ""


def _is_text(text: str) -> bool:
    """Returns True if few characters of the text are control characters."""
    odd = sum(not one.isprintable() and not one.isspace() for one in text[:1_000])
    return odd * 10 <= min(len(text), 1_000)


def _indent_json(content: bytes) -> str:
    """Returns JSON with line ends and indentation, its numbers as they are. Raises BodyUnreadable."""
    if len(content) > JSON_BYTES_MAX:
        raise BodyUnreadable(f"{len(content)} bytes are too many to indent")
    try:
        plain = msgspec.json.format(content, indent=0)
        plain.decode()
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BodyUnreadable(str(error)) from None
    depth = deepest = 0
    for mark in _BRACKETS.finditer(plain):
        first = mark[0][:1]
        depth += first in b"[{"
        depth -= first in b"]}"
        deepest = max(deepest, depth)
    return (plain if deepest > JSON_DEPTH_MAX else msgspec.json.format(plain, indent=2)).decode()


def _read_avro(content: bytes, schema: BodySchema) -> tuple[str, str]:
    if content.startswith(avro.CONTAINER_MAGIC):
        values, fault = avro.read_container(content)
        return _as_json(values[0] if len(values) == 1 else values), fault
    if content.startswith(avro.SINGLE_OBJECT_MAGIC):
        prints, payload = content[2:10][::-1].hex(), content[avro.SINGLE_OBJECT_BYTES :]
        if not schema.avro:
            raise BodyUnreadable(f"the body needs the Avro schema with the fingerprint {prints}")
        return _as_json(avro.read_value(avro.parse_schema(schema.avro), payload)), f"fingerprint {prints}"
    if not schema.avro:
        raise BodyUnreadable(_header_note(content) or "give the Avro schema of the body")
    parsed = avro.parse_schema(schema.avro)
    try:
        return _as_json(avro.read_value(parsed, content)), ""
    except BodyUnreadable:
        if content[:1] != b"\0":
            raise
        number, payload = split_header(content)
        return _as_json(
            avro.read_value(parsed, payload)
        ), f"schema {number} of the registry, read by the one given"


def _read_protobuf(content: bytes, schema: BodySchema) -> tuple[str, str]:
    if not schema.message:
        return protobuf.read_wire_fields(content), "the fields of the wire format; descriptors give names"
    if content[:1] == b"\0":  # no Protobuf message begins with this byte: field 0 is invalid
        number, payload = split_header(content)
        value = protobuf.read_message(schema.descriptors, schema.message, skip_message_indexes(payload))
        return _as_json(value), f"schema {number} of the registry, read by the descriptors given"
    return _as_json(protobuf.read_message(schema.descriptors, schema.message, content)), ""


def _header_note(content: bytes) -> str:
    """Returns a hint at the schema of a body that begins as one of a schema registry does."""
    if len(content) > 5 and content[0] == 0 and 0 < (number := split_header(content)[0]) < 1 << 24:
        return f"begins with the header of a schema registry: schema {number}"
    return ""


def _as_json(value: Any) -> str:
    """Returns the value as indented JSON, its begin if it is longer than a text may be: a small body may name
    a long text of its schema thousands of times.
    """
    parts: list[str] = []
    size = 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False, default=str).iterencode(value):
        parts.append(part)
        size += len(part)
        if size > TEXT_CHARS_MAX:
            break
    return "".join(parts)


def dump_hex(data: bytes) -> str:
    """Returns the first `HEX_BYTES_MAX` bytes as lines of position, bytes and ASCII."""
    lines = []
    for at in range(0, min(len(data), HEX_BYTES_MAX), _HEX_LINE):
        part = data[at : at + _HEX_LINE]
        text = "".join(chr(one) if 32 <= one < 127 else "." for one in part)
        lines.append(f"{at:08x}  {part[:8].hex(' '):23}  {part[8:].hex(' '):23}  {text}")
    return "\n".join(lines)


def make_printable(text: str, *, keeps: str = "\t\n") -> str:
    """Returns the text with characters that are not printable written as escapes, except those in `keeps`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in keeps else repr(one)[1:-1] for one in text)
