"""The header of schema registries in front of a body: a byte 0 and the id of the writer's schema in four
bytes; for Protobuf also the message indexes, which select the message type in its file.
"""

from __future__ import annotations

from typing import Final

HEADER_BYTES: Final = 5


class BodyUnreadable(ValueError):
    """A body that does not match the schema; the text is the reason."""


def split_header(body: bytes) -> tuple[int, bytes]:
    """Returns the schema id from the header of a schema registry, and the bytes behind the header."""
    if len(body) < HEADER_BYTES or body[0] != 0:
        raise BodyUnreadable(
            "no header of a schema registry: expected a byte 0 and the schema's id in four bytes"
        )
    return int.from_bytes(body[1:HEADER_BYTES], "big"), body[HEADER_BYTES:]


def skip_message_indexes(payload: bytes) -> bytes:
    """Returns the bytes behind the message indexes."""
    count, at = _read_varint(payload, 0)
    for _ in range(count):
        _, at = _read_varint(payload, at)
    return payload[at:]


def _read_varint(payload: bytes, at: int) -> tuple[int, int]:
    """Returns a non-negative zigzag number, and the position of its end."""
    value = shift = 0
    while at < len(payload) and shift < 35:
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value >> 1, at
    raise BodyUnreadable("no header of a schema registry: the message indexes are incomplete")
