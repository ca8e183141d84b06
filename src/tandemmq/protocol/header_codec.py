"""Compiles a typed header into its decoders and encoders, once per class.

Everything in a header travels as text (spec remoting 0): `3` is `"3"`, true is `"true"`. A class is
compiled at its first use into

- a msgspec decoder that goes from the JSON text of extFields straight to the typed header. It runs in C and
  accepts what most clients send, also numbers and booleans as JSON literals;
- a tolerant decoder from the map of texts, for whatever the fast one refuses;
- two encoders, to JSON text and to the map of texts, built as straight-line functions.

A field that is missing or cannot be read is a BadRequest that names its wire spelling: the frame was fine,
so the connection lives on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii as quote
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

import msgspec

from tandemmq.errors import BadRequest

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Header(msgspec.Struct, frozen=True, gc=False):
    """Base of every typed header: fields of `str`, `bool`, `Int32`, `Int64`, or one of them with None.

    Python names are ours; the wire spelling is `msgspec.field(name=...)`. None is never written.
    """


H = TypeVar("H", bound=Header)


class HeaderCodec(Generic[H]):
    """What was compiled for one header class; get it from `codec_of`."""

    __slots__ = ("_fields", "_json_decoder", "_type", "encode_json", "encode_map")

    def __init__(self, header_type: type[H]) -> None:
        self._type = header_type
        self._json_decoder = msgspec.json.Decoder(header_type, strict=False)
        self._fields = [_Field(info) for info in msgspec.structs.fields(header_type)]
        self.encode_json: Callable[[H], str] = _compile_json(self._fields)
        self.encode_map: Callable[[H], dict[str, str]] = _compile_map(self._fields)

    def decode_json(self, ext: bytes | msgspec.Raw) -> H | None:
        """The header from the JSON text of extFields; None when only `decode_map` can tell what is wrong."""
        try:
            return self._json_decoder.decode(ext)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def decode_map(self, fields: Mapping[str, str]) -> H:
        """The header from a map of texts.

        Raises:  BadRequest naming the wire spelling of the field that is missing or ill-typed.
        """
        values: dict[str, str | int | bool] = {}
        for field in self._fields:
            text = fields.get(field.wire_name)
            if text is not None:
                values[field.name] = field.read(text)
            elif field.is_required:
                raise BadRequest(f"the field {field.wire_name} is missing in {self._type.__name__}")
        return self._type(**values)


class _Field:
    """One field of a header class: its two names, its kind and its bounds."""

    __slots__ = ("is_optional", "is_required", "kind", "maximum", "minimum", "name", "wire_name")

    def __init__(self, info: msgspec.structs.FieldInfo) -> None:
        self.name = info.name
        self.wire_name = info.encode_name
        self.is_required = info.required
        self.kind, self.minimum, self.maximum, self.is_optional = _analyse(info.type)

    def read(self, text: str) -> str | int | bool:
        if self.kind is str:
            return text
        if self.kind is bool:
            return text.strip().lower() == "true"
        try:
            number = int(text)
        except ValueError:
            raise BadRequest(f"the field {self.wire_name} must be an integer, not {text[:64]!r}") from None
        if not self.minimum <= number <= self.maximum:
            raise BadRequest(
                f"the field {self.wire_name} must be within {self.minimum}..{self.maximum}, not {text[:64]}"
            )
        return number


def codec_of(header_type: type[H]) -> HeaderCodec[H]:
    """The compiled codec of a header class, made at its first use."""
    codec = _CODECS.get(header_type)
    if codec is None:
        codec = _CODECS[header_type] = HeaderCodec(header_type)
    return codec


# Any: the value type depends on the key, which a dict cannot express; `codec_of` restores it.
_CODECS: dict[type[Header], HeaderCodec[Any]] = {}


def _analyse(hint: Any) -> tuple[type, int, int, bool]:
    """Kind, bounds and optionality of a field's annotation; anything else is our own mistake."""
    args = get_args(hint)
    is_union = get_origin(hint) is Union or type(hint).__name__ == "UnionType"
    is_optional = is_union and type(None) in args
    if is_optional:
        (hint,) = (arg for arg in args if arg is not type(None))
    kind, minimum, maximum = hint, -(2**63), 2**63 - 1
    if get_origin(hint) is Annotated:
        kind, meta = get_args(hint)
        minimum, maximum = meta.ge, meta.le
    assert kind in (str, int, bool), f"a header cannot hold {hint}"
    return kind, minimum, maximum, is_optional


# The encoders are made as source text, like dataclasses do: a loop over fields costs three times as much,
# and a send response is on the path of every message.


def _compile_json(fields: list[_Field]) -> Callable[[Any], str]:
    """`{"a":"x","d":"4"}` from a header; text is escaped to ASCII, so any string survives."""
    lines = ["def encode_json(header):"]
    required = [field for field in fields if not field.is_optional]
    template = ",".join(f"{quote(field.wire_name)}:{_placeholder(field)}" for field in required)
    lines.append("    text = f'''" + template + "'''" if required else "    text = ''")
    for field in fields:
        if field.is_optional:
            lines.append(f"    value = header.{field.name}")
            lines.append("    if value is not None:")
            pair = f",{quote(field.wire_name)}:{_placeholder(field, 'value')}"
            lines.append("        text += f'''" + pair + "'''")
    lines.append("    return '{' + text + '}'" if required else "    return '{' + text[1:] + '}'")
    return _define(lines, "encode_json")


def _compile_map(fields: list[_Field]) -> Callable[[Any], dict[str, str]]:
    lines = ["def encode_map(header):", "    fields = {}"]
    for field in fields:
        lines.append(f"    value = header.{field.name}")
        indent = "    "
        if field.is_optional:
            lines.append("    if value is not None:")
            indent = "        "
        text = {str: "value", bool: "'true' if value else 'false'", int: "str(int(value))"}[field.kind]
        lines.append(f"{indent}fields[{field.wire_name!r}] = {text}")
    lines.append("    return fields")
    return _define(lines, "encode_map")


def _placeholder(field: _Field, value: str | None = None) -> str:
    value = value or f"header.{field.name}"
    if field.kind is str:
        return "{quote(" + value + ")}"
    if field.kind is bool:
        return '"{("true" if ' + value + ' else "false")}"'
    # :d also turns an IntEnum into its number and refuses anything that is not an integer.
    return '"{' + value + ':d}"'


def _define(lines: list[str], name: str) -> Callable[[Any], Any]:
    scope: dict[str, Any] = {"quote": quote}
    exec("\n".join(lines), scope)
    function: Callable[[Any], Any] = scope[name]
    return function
