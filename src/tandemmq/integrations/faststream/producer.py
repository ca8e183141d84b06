"""The producer of the broker: bodies become messages, and messages are sent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import BatchCodecProto, CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import IncorrectState

from tandemmq.client.producer.producer import Producer
from tandemmq.client.producer.results import SendResult
from tandemmq.errors import MessageIllegal, TandemError
from tandemmq.integrations.faststream.message import CONTENT_TYPE, CORRELATION, REPLY_TO, MessageParser
from tandemmq.integrations.faststream.response import RocketMQPublishCommand
from tandemmq.protocol import properties as names
from tandemmq.protocol.message import Message, ReceivedMessage

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.types import CustomCallable

log = logging.getLogger(__name__)

JSON = "application/json"
REQUEST_S = 3.0
"""The time for which a request waits for its reply if none is named."""


class RocketMQProducer(ProducerProto[RocketMQPublishCommand]):
    """Sends what applications publish."""

    is_in_memory = False
    """True in place of a cluster: subscribers get their messages from the producer."""

    def __init__(self, parser: CustomCallable | None = None, decoder: CustomCallable | None = None) -> None:
        default = MessageParser()
        self._parser = ParserComposition(parser, default.parse_message)
        self._decoder = ParserComposition(decoder, default.decode_message)
        self.codec: CodecProto = DefaultCodec()
        self._serializer: SerializerProto | None = None
        self._producer: Producer | None = None

    def connect(
        self, producer: Producer | None, serializer: SerializerProto | None, codec: CodecProto | None
    ) -> None:
        """Sends with this producer from now on; None: no longer."""
        self._producer = producer
        self._serializer = serializer
        self.codec = codec or DefaultCodec()

    async def publish(self, cmd: RocketMQPublishCommand) -> SendResult | None:
        """Sends a message, or the reply to a request; returns its position once it is stored, or None.

        Raises:  the errors of `Producer.send`. A reply that cannot reach its requester is only logged:
                 handling the request again would not bring it there.
        """
        (message,) = await self.encode(cmd)
        if cmd.request is None:
            return await self._connected.send(message, queue=await self._queue(cmd), timeout_s=cmd.timeout_s)
        try:
            await self._connected.reply(cmd.request, message.body, properties=message.properties)
        except MessageIllegal:
            raise
        except TandemError as error:
            log.warning("the reply to request %s reached no client: %s", cmd.request.message_id, error)
        return None

    async def publish_batch(self, cmd: RocketMQPublishCommand) -> list[SendResult]:
        """Sends several messages in one request; all or none are stored. Raises as `Producer.send_batch`."""
        messages = await self.encode(cmd)
        return await self._connected.send_batch(
            messages, queue=await self._queue(cmd), timeout_s=cmd.timeout_s
        )

    async def request(self, cmd: RocketMQPublishCommand) -> ReceivedMessage:
        """Sends a request and returns its reply. Raises as `Producer.request`."""
        (message,) = await self.encode(cmd)
        return await self._connected.request(message, REQUEST_S if cmd.timeout_s is None else cmd.timeout_s)

    async def encode(self, cmd: RocketMQPublishCommand) -> list[Message]:
        """Returns the messages of a command.

        Raises:  MessageIllegal for an empty body of bytes, which RocketMQ does not store.
        """
        bodies = list(cmd.batch_bodies) or [None]
        if isinstance(self.codec, BatchCodecProto) and len(bodies) > 1:
            encoded = await self.codec.encode_batch(bodies, self._serializer)
        else:
            encoded = [await self.codec.encode(body, self._serializer) for body in bodies]
        return [
            _message(cmd, *(payload if payload[0] else _of_nothing(body)))
            for body, payload in zip(bodies, encoded, strict=True)
        ]

    async def _queue(self, cmd: RocketMQPublishCommand) -> Any:
        key = cmd.fields.get("ordering_key")
        return None if key is None else await self._connected.queue_for(cmd.destination, key)

    @property
    def _connected(self) -> Producer:
        if self._producer is None:
            raise IncorrectState("the broker is not connected: call `await broker.connect()` first")
        return self._producer


def _of_nothing(body: object) -> tuple[bytes, str | None]:
    """Returns None and an empty text as JSON; RocketMQ stores no empty body."""
    if body is None:
        return b"null", JSON
    return (b'""', JSON) if body == "" else (b"", None)


def _message(cmd: RocketMQPublishCommand, body: bytes, content_type: str | None) -> Message:
    fields = cmd.fields
    properties = {name: str(value) for name, value in cmd.headers.items()}
    for name, value in (
        (CONTENT_TYPE, content_type),
        (CORRELATION, cmd.correlation_id),
        (REPLY_TO, cmd.reply_to),
        (names.SHARDING_KEY, fields.get("ordering_key")),
    ):
        if value:
            properties.setdefault(name, value)
    delay_s = fields.get("delay_s")
    return Message(
        cmd.destination,
        body,
        tags=fields.get("tag", ""),
        keys=fields.get("key", ()),
        properties=properties,
        delay_ms=None if delay_s is None else round(delay_s * 1000),
        priority=fields.get("priority"),
    )
