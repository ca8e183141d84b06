"""Serializers: typed bodies, as JSON or MessagePack.

    ORDERS = Json(Order)
    producer = Producer("shop", name_server, options=ProducerOptions(serializer=ORDERS))
    await producer.send(Message(topic="Orders", value=order))

`Order` is a class that msgspec knows (a `msgspec.Struct`, a dataclass, a TypedDict, `dict[str, int]`) or, for
JSON, a model of pydantic, which then decodes and validates it.
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar, cast

import msgspec

from tandemmq.errors import MessageIllegal
from tandemmq.protocol.message import Message

T = TypeVar("T")


class Serializer(Protocol):
    """The encoder and decoder of bodies; any object with these methods is one. An exception of `decode`
    refuses a body.
    """

    def encode(self, value: Any) -> bytes: ...

    def decode(self, body: bytes) -> Any: ...


class Json(Generic[T]):
    """Bodies in JSON, of one type."""

    def __init__(self, kind: type[T]) -> None:
        """Creates the serializer. Raises TypeError for a type that cannot be decoded."""
        self._model: Any = kind if hasattr(kind, "model_validate_json") else None
        self._decoder = None if self._model is not None else msgspec.json.Decoder(kind)

    def encode(self, value: T) -> bytes:
        """Returns the body for a value."""
        if self._model is None:
            return msgspec.json.encode(value)
        return cast(bytes, cast(Any, value).model_dump_json().encode())

    def decode(self, body: bytes) -> T:
        """Returns the value of a body. Raises ValueError, naming the fault, for an invalid one."""
        if self._decoder is None:
            return cast(T, self._model.model_validate_json(body))
        return self._decoder.decode(body)


class MsgPack(Generic[T]):
    """Bodies in MessagePack, of one type."""

    def __init__(self, kind: type[T]) -> None:
        """Creates the serializer. Raises TypeError for a type that cannot be decoded."""
        self._decoder = msgspec.msgpack.Decoder(kind)

    def encode(self, value: T) -> bytes:
        """Returns the body for a value."""
        return msgspec.msgpack.encode(value)

    def decode(self, body: bytes) -> T:
        """Returns the value of a body. Raises ValueError, naming the fault, for an invalid one."""
        return self._decoder.decode(body)


def with_body(message: Message, serializer: Serializer) -> Message:
    """Returns the message with its value as its body; a message that has a body or no value is returned as it
    is. Raises MessageIllegal for a value that cannot be encoded.
    """
    if message.value is None or message.body:
        return message
    try:
        body = serializer.encode(message.value)
    except Exception as error:
        raise MessageIllegal(f"the value cannot be encoded: {type(error).__name__}: {error}") from error
    return msgspec.structs.replace(message, body=body)
