"""The JSON form of a frame header (spec remoting 2).

Headers of the Java, Go and Node clients and of pyrocketmq are decoded by a fast path in C. A tolerant path
decodes all others: numbers as text, nulls, literals in place of text. Encoding writes strict JSON.
`extFields` is always present, because some Java response decoders read it without a null check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tandemmq.errors import LocalProtocolError, RemoteProtocolError
from tandemmq.protocol.codes import SERIALIZE_JSON, LanguageCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.header_codec import Int32, codec_of
from tandemmq.protocol.loose_json import HEADER_TEXT, parse, render_value, text_map

_NAMES = {int(language): language.name for language in LanguageCode}
# By name and by ordinal: pyrocketmq sends the number.
_ORDINALS: dict[str | int | None, int] = {
    **{language.name: int(language) for language in LanguageCode},
    **{int(language): int(language) for language in LanguageCode},
}
_OTHER = int(LanguageCode.OTHER)
_INT32 = range(-(2**31), 2**31)
_BRACE = ord("{")
_NO_FIELDS = msgspec.Raw(b"")


class WireHeader(msgspec.Struct, gc=False):
    """The header as received; unknown keys, such as `serializeTypeCurrentRPC`, are skipped."""

    code: Int32
    opaque: Int32 = 0
    flag: Int32 = 0
    language: str | int | None = None
    version: Int32 = 0
    remark: str | None = None
    fields: msgspec.Raw = msgspec.field(default=_NO_FIELDS, name="extFields")


_DECODER = msgspec.json.Decoder(WireHeader, strict=False)


def decode_header_json(header: bytes, body: bytes) -> Command:
    """Returns the command of one frame with a JSON header.

    Raises:  RemoteProtocolError when the header is not a JSON object with an int32 `code`.
    """
    try:
        if not header.isascii():
            # msgspec skips extFields without checking their bytes; they are decoded later.
            header.decode()
        wire = _DECODER.decode(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_tolerant(header, body)
    fields_json = bytes(wire.fields)
    if fields_json and fields_json[0] != _BRACE:
        return _decode_tolerant(header, body)
    return Command(
        wire.code,
        wire.opaque,
        wire.flag,
        _ORDINALS.get(wire.language, _OTHER),
        wire.version,
        wire.remark,
        SERIALIZE_JSON,
        body,
        None,
        None,
        fields_json,
    )


class _OutHeader(msgspec.Struct, gc=False):
    """The header as we write it, keys in Java's order."""

    code: int
    fields: msgspec.Struct | Mapping[str, str] = msgspec.field(name="extFields")
    flag: int
    language: str
    opaque: int
    remark: str | msgspec.UnsetType
    serialize_type: str = msgspec.field(name="serializeTypeCurrentRPC")
    version: int


_ENCODE = msgspec.json.Encoder().encode


def encode_header_json(command: Command) -> bytes:
    """Returns the header text.

    Raises:  LocalProtocolError for a text with half a surrogate pair, or a field that is not a text.
    """
    header, remark = command.header, command.remark
    try:
        return _ENCODE(
            _OutHeader(
                command.code,
                command.fields
                if header is None or command.extra_fields
                else codec_of(type(header)).to_wire(header),
                command.flag,
                _NAMES.get(command.language, "OTHER"),
                command.opaque,
                msgspec.UNSET if remark is None else remark,
                "JSON",
                command.version,
            )
        )
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise LocalProtocolError(f"a command with code {command.code} cannot be encoded: {error}") from error


def _decode_tolerant(header: bytes, body: bytes) -> Command:
    """Decodes what only fastjson accepts: loose JSON, numbers as text, nulls, any literal as remark."""
    value = parse(header, HEADER_TEXT)
    if not isinstance(value, dict):
        raise RemoteProtocolError("the header is not a JSON object")
    fields = value.get("extFields")
    if fields is not None and not isinstance(fields, dict):
        raise RemoteProtocolError("extFields is not a JSON object")
    if value.get("code") is None:
        raise RemoteProtocolError("the header has no code")
    remark = value.get("remark")
    language = value.get("language")
    return Command(
        code=_read_int32(value, "code"),
        opaque=_read_int32(value, "opaque"),
        flag=_read_int32(value, "flag"),
        language=_ORDINALS.get(language, _OTHER) if isinstance(language, str | int) else _OTHER,
        version=_read_int32(value, "version"),
        remark=remark if remark is None or isinstance(remark, str) else render_value(remark),
        serialize_type=SERIALIZE_JSON,
        body=body,
        extra_fields=text_map(fields or {}),
    )


def _read_int32(value: Mapping[str, Any], key: str) -> int:
    """Returns an integer that was sent as number or text; 0 if absent or null."""
    raw = value.get(key)
    if raw is None:
        return 0
    if isinstance(raw, bool):
        raise RemoteProtocolError(f"the header's {key} is not an integer")
    try:
        number = int(raw)
    except (TypeError, ValueError, OverflowError):
        raise RemoteProtocolError(f"the header's {key} is not an integer") from None
    if number not in _INT32:
        raise RemoteProtocolError(f"the header's {key} does not fit 32 bits")
    return number
