"""Protobuf for display: the JSON of a message whose descriptors the operator gives, or the fields of its wire
format, whose meaning is guessed.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from tandemmq.errors import ConfigError, install_hint
from tandemmq.protocol.schema_header import BodyUnreadable

FIELDS_MAX: Final = 10_000
DEPTH_MAX: Final = 32
_VARINT_BYTES_MAX: Final = 10


def read_message(descriptors: bytes, name: str, payload: bytes) -> Any:
    """Returns the message in values of JSON, its fields named as in the descriptors.

    `descriptors`: a FileDescriptorSet, as `protoc --include_imports -o` writes it.
    Raises:  BodyUnreadable for unusable descriptors or a body that is not this message; ConfigError if
             Protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
    except ImportError:
        raise ConfigError(f"Protobuf is not installed: {install_hint('console')}") from None
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except Exception as error:  # noqa: BLE001  (the errors differ by Protobuf's version)
        raise BodyUnreadable(f"the message {name[:200]!r} is not in these descriptors: {error}") from None
    try:
        found = kind.FromString(payload)
        return json_format.MessageToDict(found, preserving_proto_field_name=True, descriptor_pool=pool)
    except Exception as error:  # noqa: BLE001  (as above)
        raise BodyUnreadable(f"no Protobuf of {name}: {error}") from None


def read_wire_fields(payload: bytes) -> str:
    """Returns the fields, one a line, nested messages indented. Raises BodyUnreadable if the bytes are not
    Protobuf, or hold more than `FIELDS_MAX` fields.
    """
    lines = _read_fields(payload, 0, [FIELDS_MAX])
    if not lines:
        raise BodyUnreadable("these bytes are not the fields of a Protobuf message")
    return "\n".join(lines)


def _read_fields(data: bytes, depth: int, left: list[int]) -> list[str] | None:
    """Returns the lines of the fields; None if the bytes are not fields."""
    lines: list[str] = []
    at = 0
    pad = "  " * depth
    while at < len(data):
        left[0] -= 1
        if left[0] < 0:
            raise BodyUnreadable(f"more than {FIELDS_MAX} Protobuf fields")
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if tag < 0 or not 0 < number < 1 << 29:
            return None
        if kind == 0:
            value, at = _varint(data, at)
            if value < 0:
                return None
            lines.append(f"{pad}{number}: {value}")
        elif kind in (1, 5):
            size, form = (8, "d") if kind == 1 else (4, "f")
            raw = data[at : at + size]
            if len(raw) < size:
                return None
            at += size
            lines.append(
                f"{pad}{number}: {int.from_bytes(raw, 'little')} ({struct.unpack('<' + form, raw)[0]!r})"
            )
        elif kind == 2:
            size, at = _varint(data, at)
            if not 0 <= size <= len(data) - at:
                return None
            lines += _show_bytes(number, data[at : at + size], depth, left)
            at += size
        else:
            return None  # groups are obsolete
    return lines


def _show_bytes(number: int, raw: bytes, depth: int, left: list[int]) -> list[str]:
    """Returns a text, a nested message or bytes, whichever the bytes look like."""
    pad = "  " * depth
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable():
        return [f'{pad}{number}: "{text}"']
    inner = _read_fields(raw, depth + 1, left) if depth < DEPTH_MAX else None
    if inner:
        return [f"{pad}{number} {{", *inner, f"{pad}}}"]
    return [f"{pad}{number}: {text!r}" if "\0" not in text else f"{pad}{number}: 0x{raw.hex()}"]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number and the position behind it; -1 if none ends in time."""
    value = 0
    for index, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + index + 1
    return -1, at
