"""The body of REGISTER_BROKER: plain JSON, or one zlib stream of pieces.

Source:  spec remoting 11.5; spec nameserver 3.1.
"""

from __future__ import annotations

import struct
import zlib

import msgspec
from msgspec import field

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.bodies.codec import (
    Body,
    DataVersion,
    decode_body,
    encode_body,
)
from tandemmq.protocol.bodies.tables import TopicConfig, TopicConfigTable
from tandemmq.protocol.codes import OUR_VERSION, VERSION_REGISTER_MAPPING, VERSION_WRAPPED_REGISTER_BODY
from tandemmq.protocol.loose_json import REQUEST_TEXT
from tandemmq.units import Buffer

INFLATED_BYTES_MAX = 64 * 1024 * 1024
"""The limit of an inflated body: 16 MiB of zlib could inflate a thousandfold; half a million topics need
less.
"""
INFLATION_MAX = 64
"""The highest accepted compression ratio. Topic lines shrink to between a tenth and a thirtieth. A body that
shrinks more is not a table, and reading it would cost its receiver far more than its sender.
"""
_INFLATED_BYTES_MIN = 64 * 1024

_ZLIB_LEVEL = 9
_ZLIB_FIRST_BYTE = 0x78
_INT32 = struct.Struct(">i")
_ATTRIBUTES = msgspec.json.Decoder(dict[str, str])


class RegisterBrokerBody(Body, frozen=True, kw_only=True):
    """A broker's topics. `filter_servers` None keeps the list of the name server, empty clears it."""

    filter_servers: tuple[str, ...] | None = field(name="filterServerList", default=None)
    topics: TopicConfigTable = field(name="topicConfigSerializeWrapper", default=TopicConfigTable())


def body_crc32(body: Buffer) -> int:
    """Returns the checksum of a registration, over the bytes as sent; 0 for an absent body."""
    return zlib.crc32(body) & 0x7FFFFFFF


def encode_register_broker_body(
    body: RegisterBrokerBody, *, is_compressed: bool = False, version: int = OUR_VERSION
) -> bytes:
    """Returns the body as `version` writes it; the compressed form loses each topic's `sys_flag` and
    `is_ordered`.
    """
    if not is_compressed:
        return encode_body(body)
    pieces = [_with_size(encode_body(body.topics.data_version))]
    pieces.append(_INT32.pack(len(body.topics.topics)))
    pieces += [_with_size(_encode_topic_line(config)) for config in body.topics.topics.values()]
    pieces.append(_with_size(encode_body(body.filter_servers or ())))
    if version >= VERSION_REGISTER_MAPPING:
        pieces.append(_INT32.pack(0))
    return zlib.compress(b"".join(pieces), _ZLIB_LEVEL)


def decode_register_broker_body(
    data: Buffer, *, is_compressed: bool = False, version: int = OUR_VERSION
) -> RegisterBrokerBody:
    """Returns the body from a broker of `version`; an absent one is an empty table that clears the filter
    servers.

    5.x brokers compress without declaring it: a first byte of 0x78 means compressed, whatever the header
    declares.

    Raises:  RemoteProtocolError.
    """
    if len(data) == 0:
        return RegisterBrokerBody(filter_servers=())
    if is_compressed or bytes(data[:1])[0] == _ZLIB_FIRST_BYTE:
        return _decode_compressed(_inflate(data))
    if version < VERSION_WRAPPED_REGISTER_BODY:
        return RegisterBrokerBody(filter_servers=(), topics=decode_body(data, TopicConfigTable, REQUEST_TEXT))
    return decode_body(data, RegisterBrokerBody)


def _encode_topic_line(config: TopicConfig) -> bytes:
    fields = (
        config.name,
        str(config.read_queue_count),
        str(config.write_queue_count),
        str(config.permission),
        config.filter_type,
        encode_body(config.attributes).decode(),
    )
    return " ".join(fields).encode()


def _parse_topic_line(line: str) -> TopicConfig:
    """Parses a topic line. 4.9 writes five fields; a sixth that is not a JSON map is ignored."""
    fields = line.split(" ", 5)
    if len(fields) < 5:
        raise RemoteProtocolError(f"a topic line needs five fields: {line[:100]!r}")
    try:
        read_count, write_count, permission = int(fields[1]), int(fields[2]), int(fields[3])
    except ValueError:
        raise RemoteProtocolError(f"a topic line has fields that are not numbers: {line[:100]!r}") from None
    attributes: dict[str, str] = {}
    if len(fields) == 6:
        try:
            # Strict JSON only: as many of these lines may come as fit a frame.
            attributes = _ATTRIBUTES.decode(fields[5])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
    return TopicConfig(
        attributes=attributes,
        permission=permission,
        read_queue_count=read_count,
        filter_type=fields[4],
        name=fields[0],
        write_queue_count=write_count,
    )


def _decode_compressed(data: bytes) -> RegisterBrokerBody:
    """Decodes the pieces in order; the mapping section of static topics at the end is skipped."""
    try:
        position = 0
        piece, position = _read_piece(data, position)
        version = decode_body(piece, DataVersion) if piece else DataVersion()
        (count,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        topics: dict[str, TopicConfig] = {}
        for _ in range(count):
            piece, position = _read_piece(data, position)
            config = _parse_topic_line(piece.decode())
            topics[config.name] = config
        piece, position = _read_piece(data, position)
        filter_servers = decode_body(piece, tuple[str, ...]) if piece else ()
    except (struct.error, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise RemoteProtocolError(f"a compressed registration cannot be read: {error}") from None
    return RegisterBrokerBody(
        filter_servers=filter_servers, topics=TopicConfigTable(data_version=version, topics=topics)
    )


def _read_piece(data: bytes, position: int) -> tuple[bytes, int]:
    (size,) = _INT32.unpack_from(data, position)
    start = position + _INT32.size
    if not 0 <= size <= len(data) - start:
        raise RemoteProtocolError(f"a piece of {size} bytes does not fit a registration of {len(data)}")
    return data[start : start + size], start + size


def _with_size(piece: bytes) -> bytes:
    return _INT32.pack(len(piece)) + piece


def _inflate(data: Buffer) -> bytes:
    try:
        stream = zlib.decompressobj()
        bytes_max = min(INFLATED_BYTES_MAX, _INFLATED_BYTES_MIN + INFLATION_MAX * len(data))
        inflated = stream.decompress(data, bytes_max)
    except zlib.error as error:
        raise RemoteProtocolError(f"a compressed registration cannot be inflated: {error}") from None
    if stream.unconsumed_tail or not stream.eof:
        raise RemoteProtocolError("a compressed registration is cut or inflates beyond the limit")
    return inflated
