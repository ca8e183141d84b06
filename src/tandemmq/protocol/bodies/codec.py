"""How all bodies are read and written; the shapes are in the other files of this folder.

Writing is strict JSON without whitespace and without nulls: Go splits some texts at commas without
trimming, and pyrocketmq evaluates some as Python, where `null` is unknown (spec remoting 6). Reading tries
the strict parser first and FastJSON's dialect second; in both, absent keys and nulls take the default,
numbers may be quoted.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec

from tandemmq.errors import LocalProtocolError, RemoteProtocolError
from tandemmq.protocol import loose_json
from tandemmq.protocol.command import Buffer


class Body(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all body shapes. Fields stand in the order of their wire names, as Java writes them."""


T = TypeVar("T")

_ENCODER = msgspec.json.Encoder()
# Any: the decoder's type depends on the key, which a dict cannot express; `_decoder_of` restores it.
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def encode_body(value: Any, *, has_sets: bool = False) -> bytes:
    """Compact strict JSON without nulls; integer keys are quoted.

    With `has_sets` everything unordered is sorted, so that equal values give equal bytes; this costs three
    times as much.

    Raises:  LocalProtocolError when a text holds half a surrogate pair or a value has no JSON form.
    """
    try:
        if not has_sets:
            text = _ENCODER.encode(value)
            # A hit inside a text only costs time.
            if b":null" not in text:
                return text
        order: Literal["deterministic"] | None = "deterministic" if has_sets else None
        return _ENCODER.encode(_drop_nulls(msgspec.to_builtins(value, str_keys=True, order=order)))
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise LocalProtocolError(f"a {type(value).__name__} cannot be written as JSON: {error}") from error


def decode_body(data: Buffer | str, shape: type[T]) -> T:
    """The typed value of a JSON text, strict or loose.

    Raises:  RemoteProtocolError naming the shape and what is wrong.
    """
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    # `$ref` is valid strict JSON, so the strict parser would silently take the reference for an empty object.
    if b'"$ref"' not in bytes(raw):
        decoder = _DECODERS.get(shape)
        if decoder is None:
            decoder = _DECODERS[shape] = msgspec.json.Decoder(shape, strict=False)
        try:
            value: T = decoder.decode(raw)
            return value
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    return convert(loose_json.parse(raw), shape)


def decode_plain(data: Buffer) -> Any:
    """The untyped value of a JSON text, strict or loose; nulls stay."""
    return loose_json.parse(data)


def convert(value: Any, shape: type[T]) -> T:
    """A parsed value as its shape, nulls taken as absent.

    Raises:  RemoteProtocolError naming the shape and what is wrong.
    """
    try:
        return msgspec.convert(_drop_nulls(value), shape, strict=False, str_keys=True)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise RemoteProtocolError(f"a {getattr(shape, '__name__', shape)} cannot be read: {error}") from None


def _drop_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drop_nulls(item) for key, item in value.items() if item is not None}
    # Tuples too: msgspec keeps them where a shape has them.
    if isinstance(value, list | tuple):
        return [_drop_nulls(item) for item in value if item is not None]
    return value
