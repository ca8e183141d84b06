"""Compiles a typed header into its decoders and encoders, once per class.

Every value in a header travels as text (spec remoting 2): `3` is `"3"`, true is `"true"`. A class is compiled
at its first use into

- a msgspec decoder from the JSON text of extFields straight to the typed header. It runs in C and accepts
  what most clients send, including numbers and booleans as JSON literals;
- a tolerant decoder from the map of texts, for everything the fast one refuses;
- an encoder to a twin struct that holds only texts, which msgspec then writes as JSON.

A missing or unreadable field is a BadRequest that names its wire spelling. The frame itself was valid, so the
connection stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

import msgspec

from tandemmq.errors import BadRequest

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Header(msgspec.Struct, frozen=True, gc=False):
    """The base of every typed header: fields of `str`, `bool`, `Int32`, `Int64`, or one of them with None.

    Python names are ours; the wire spelling is `msgspec.field(name=...)`. None is never written.
    """


H = TypeVar("H", bound=Header)


class HeaderCodec(Generic[H]):
    """The compiled codec of one header class; obtain it from `codec_of`."""

    __slots__ = ("_fields", "_json_decoder", "_type", "to_wire")

    def __init__(self, header_type: type[H]) -> None:
        self._type = header_type
        self._json_decoder = msgspec.json.Decoder(header_type, strict=False)
        self._fields = [_Field(info) for info in msgspec.structs.fields(header_type)]
        self.to_wire: Callable[[H], msgspec.Struct] = _compile_wire(header_type, self._fields)

    def decode_json(self, ext: bytes | msgspec.Raw) -> H | None:
        """Returns the header from the JSON text of extFields; None if only `decode_map` can find the
        fault.
        """
        try:
            return self._json_decoder.decode(ext)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def decode_map(self, fields: Mapping[str, str]) -> H:
        """Returns the header from a map of texts.

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

    def encode_map(self, header: H) -> dict[str, str]:
        """Returns the header as a map of texts by wire name."""
        fields: dict[str, str] = msgspec.to_builtins(self.to_wire(header))
        return fields


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
    """Returns the codec of a header class, compiled at its first use."""
    codec = _CODECS.get(header_type)
    if codec is None:
        codec = _CODECS[header_type] = HeaderCodec(header_type)
    return codec


# Any: the value type depends on the key, which a dict cannot express; `codec_of` restores it.
_CODECS: dict[type[Header], HeaderCodec[Any]] = {}


def _analyse(hint: Any) -> tuple[type, int, int, bool]:
    """Returns kind, bounds and optionality of a field's annotation; any other annotation is a bug."""
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


def _compile_wire(header_type: type[Header], fields: list[_Field]) -> Callable[[Any], msgspec.Struct]:
    """Compiles a function from a header to its twin of texts, whose None are left out when it is written.

    Strategy: msgspec writes a struct of texts in C, escapes included, in a fifth of the time that Python
              needs. The function is generated as source text, as dataclasses do, because a loop over the
              fields costs more than the writing, and every message has a send response.
    """
    # Positional arguments without a default come first.
    ordered = sorted(fields, key=lambda field: field.is_optional)
    twin = msgspec.defstruct(
        header_type.__name__,
        [(field.name, str | None, None) if field.is_optional else (field.name, str) for field in ordered],
        rename={field.name: field.wire_name for field in ordered},
        omit_defaults=True,
        frozen=True,
        gc=False,
    )
    arguments = ", ".join(_text_of(field) for field in ordered)
    scope: dict[str, Any] = {"twin": twin}
    exec(f"def to_wire(header):\n    return twin({arguments})", scope)
    to_wire: Callable[[Any], msgspec.Struct] = scope["to_wire"]
    return to_wire


def _text_of(field: _Field) -> str:
    """Returns the expression for one field's text."""
    value = f"header.{field.name}"
    if field.kind is str:
        return value
    text = f"('true' if {value} else 'false')" if field.kind is bool else f"str({value})"
    return f"(None if {value} is None else {text})" if field.is_optional else text
