"""The body of a batch send: several messages of one topic.

Per message: i32 size, i32 0, i32 0, i32 flag, i32 body size, body, i16 properties size, properties; no count.
             The broker splits it and stores every message as a separate record.
Source:      spec remoting 12.6, spec store 4.1, spec semantics 3.7.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct
from typing import Final

from tandemmq.errors import LocalProtocolError, MessageIllegal
from tandemmq.protocol.properties import PROPERTIES_BYTES_MAX
from tandemmq.units import Buffer

BATCH_COUNT_MAX: Final = 65536
"""Our own bound: 4 MiB of the smallest messages are fewer than 200,000, and no client comes near this."""

_HEAD: Final = Struct(">iiiii")
_HEAD_BYTES: Final = _HEAD.size
_ITEM_BYTES_MIN: Final = _HEAD_BYTES + 2
_EQUAL_COUNT_MIN: Final = 4
"""The number of messages from which checking for equal sizes pays (approximate)."""


def encode_batch_item(flag: int, body: Buffer, properties: bytes) -> bytes:
    """Encodes one message for a batch body.

    Raises:  LocalProtocolError if the properties exceed their length field.
    """
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(f"properties of {len(properties)} bytes: at most {PROPERTIES_BYTES_MAX}")
    size = _ITEM_BYTES_MIN + len(body) + len(properties)
    head = _HEAD.pack(size, 0, 0, flag, len(body))
    return b"".join((head, body, len(properties).to_bytes(2, "big"), properties))


def encode_batch(items: Iterable[tuple[int, Buffer, bytes]]) -> bytes:
    """Encodes the batch body of (flag, body, properties in wire form) triples."""
    return b"".join([encode_batch_item(flag, body, properties) for flag, body, properties in items])


def split_columns(batch: Buffer) -> tuple[list[int], list[memoryview], list[bytes]]:
    """Returns the flags, bodies and properties of the messages of a batch body, in order; at least one of
    each.

    Raises:  MessageIllegal if the body is empty, truncated, inconsistent or holds too many messages: then
             none of it may be stored.
    """
    raw = batch if type(batch) is bytes else bytes(batch)
    view = memoryview(raw)
    total = len(raw)
    if total >= _ITEM_BYTES_MIN:
        size, _, _, _, body_size = _HEAD.unpack_from(raw)
        if size * _EQUAL_COUNT_MIN <= total <= size * BATCH_COUNT_MAX and total % size == 0:
            columns = _split_equal(raw, view, size, body_size)
            if columns is not None:
                return columns
    flags: list[int] = []
    bodies: list[memoryview] = []
    properties: list[bytes] = []
    unpack_head = _HEAD.unpack_from
    position = 0
    while position < total:
        if total - position < _ITEM_BYTES_MIN or len(flags) == BATCH_COUNT_MAX:
            raise _illegal(position, len(flags))
        size, _, _, flag, body_size = unpack_head(raw, position)
        body_at = position + _HEAD_BYTES
        properties_at = body_at + body_size + 2
        end = position + size
        if body_size < 0 or properties_at > end or end > total:
            raise _illegal(position, len(flags))
        properties_size = raw[properties_at - 2] << 8 | raw[properties_at - 1]
        if properties_at + properties_size != end or properties_size > PROPERTIES_BYTES_MAX:
            raise _illegal(position, len(flags))
        flags.append(flag)
        bodies.append(view[body_at : properties_at - 2])
        properties.append(raw[properties_at:end])
        position = end
    if not flags:
        raise MessageIllegal("the batch holds no message")
    return flags, bodies, properties


def _split_equal(
    raw: bytes, view: memoryview, size: int, body_size: int
) -> tuple[list[int], list[memoryview], list[bytes]] | None:
    """Like `split_columns`, for messages that all have these sizes; None if they do not."""
    properties_size = size - _ITEM_BYTES_MIN - body_size
    if body_size < 0 or not 0 <= properties_size <= PROPERTIES_BYTES_MAX:
        return None
    items = _equal_item(body_size, properties_size).iter_unpack(raw)
    sizes, flags, body_sizes, properties_sizes, properties = zip(*items, strict=True)
    count = len(sizes)
    if (
        sizes.count(size) != count
        or body_sizes.count(body_size) != count
        or properties_sizes.count(properties_size) != count
    ):
        return None
    bodies = [view[begin : begin + body_size] for begin in range(_HEAD_BYTES, len(raw), size)]
    return list(flags), bodies, list(properties)


@lru_cache(maxsize=256)
def _equal_item(body_size: int, properties_size: int) -> Struct:
    """Returns the struct of one message: size, flag, body size, properties size, properties."""
    return Struct(f">i8xii{body_size}xH{properties_size}s")


def _illegal(position: int, index: int) -> MessageIllegal:
    if index == BATCH_COUNT_MAX:
        return MessageIllegal(f"the batch holds more than {BATCH_COUNT_MAX} messages")
    return MessageIllegal(
        f"message {index} of the batch, at byte {position}: its lengths contradict each other"
    )
