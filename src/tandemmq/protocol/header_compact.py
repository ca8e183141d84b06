"""The ROCKETMQ (binary) form of a frame header (spec remoting 3).

Every length is checked against the remaining bytes before it is used. An empty value counts as absent, as in
Java; of duplicate keys the last value wins.
"""

from __future__ import annotations

import struct

from tandemmq.errors import LocalProtocolError, RemoteProtocolError
from tandemmq.protocol.codes import SERIALIZE_ROCKETMQ, LanguageCode
from tandemmq.protocol.command import Command

_FIXED = struct.Struct(">hbhiii")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_LANGUAGE_MAX = max(LanguageCode)


def decode_header_compact(header: bytes, body: bytes) -> Command:
    """Returns the command of one frame with a binary header.

    Raises:  RemoteProtocolError when a length points outside the header or a text is not UTF-8.
    """
    try:
        code, language, version, opaque, flag, remark_size = _FIXED.unpack_from(header)
        position = _FIXED.size
        remark, position = _read_text(header, position, remark_size)
        (fields_size,) = _INT32.unpack_from(header, position)
        position += 4
        fields = _read_fields(header, position, fields_size)
    except struct.error:
        raise RemoteProtocolError(f"a binary header of {len(header)} bytes ends too early") from None
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"a text in a binary header is not UTF-8: {error}") from None
    return Command(
        code,
        opaque,
        flag,
        language if 0 <= language <= _LANGUAGE_MAX else int(LanguageCode.OTHER),
        version,
        remark or None,
        SERIALIZE_ROCKETMQ,
        body,
        None,
        fields,
    )


def encode_header_compact(command: Command) -> bytes:
    """Returns the binary header.

    A code above 16 bits (the POP family) is truncated to its low half, as in Java: such calls work only over
    JSON.

    Raises:  LocalProtocolError when a text is too long for its length field.
    """
    pieces: list[bytes] = []
    try:
        for name, value in command.fields.items():
            if value:
                name_bytes, value_bytes = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
                pieces += _INT16.pack(len(name_bytes)), name_bytes, _INT32.pack(len(value_bytes)), value_bytes
        fields = b"".join(pieces)
        remark = (command.remark or "").encode("utf-8", "replace")
        code = (command.code + 0x8000 & 0xFFFF) - 0x8000
        return b"".join(
            (
                _FIXED.pack(
                    code, command.language, command.version, command.opaque, command.flag, len(remark)
                ),
                remark,
                _INT32.pack(len(fields)),
                fields,
            )
        )
    except (struct.error, AttributeError, TypeError) as error:
        raise LocalProtocolError(f"a command with code {command.code} cannot be encoded: {error}") from error


def _read_fields(header: bytes, position: int, size: int) -> dict[str, str]:
    end = position + size
    if not 0 <= size <= len(header) - position:
        raise RemoteProtocolError(f"a binary header announces {size} bytes of fields beyond its end")
    fields: dict[str, str] = {}
    while position < end:
        (name_size,) = _INT16.unpack_from(header, position)
        name, position = _read_text(header, position + 2, name_size)
        (value_size,) = _INT32.unpack_from(header, position)
        value, position = _read_text(header, position + 4, value_size)
        if position > end:
            raise RemoteProtocolError("a field of a binary header crosses the end of the fields")
        if value:
            fields[name] = value
    return fields


def _read_text(header: bytes, position: int, size: int) -> tuple[str, int]:
    end = position + size
    if size < 0 or end > len(header):
        raise RemoteProtocolError(f"a binary header announces a text of {size} bytes beyond its end")
    return header[position:end].decode(), end
