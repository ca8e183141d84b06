"""The message that a handler gets, and its parsing.

The user's properties of a RocketMQ message are the headers. Three of them belong to FastStream:
`content-type`, `correlation_id` and `reply_to`, the topic for the answer. A request of RocketMQ's own kind
names its client instead (spec semantics 3.10): the answer is the reply to it.
A batch is a tuple of messages: its body is the list of their bodies. It asks for no answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol, cast

from faststream._internal.basic_types import DecodedMessage
from faststream.message import StreamMessage, decode_message

from tandemmq.protocol import properties as names
from tandemmq.protocol.message import ReceivedMessage

CONTENT_TYPE: Final = "content-type"
CORRELATION: Final = "correlation_id"
REPLY_TO: Final = "reply_to"

Raw = ReceivedMessage | tuple[ReceivedMessage, ...]


class Acknowledger(Protocol):
    """The consumer of a message, which acknowledges it."""

    async def ack(self, messages: Iterable[ReceivedMessage]) -> None: ...
    async def nack(self, messages: Iterable[ReceivedMessage], delay_s: float | None) -> None: ...
    async def reject(self, messages: Iterable[ReceivedMessage], reason: str) -> None: ...


class RocketMQMessage(StreamMessage[Raw]):
    """A received message, or a batch of them, which is acknowledged as a whole.

    A reply, and a message of the test broker, have no `acknowledger`: only `committed` is set.
    """

    acknowledger: Acknowledger | None = None

    @property
    def raw_messages(self) -> tuple[ReceivedMessage, ...]:
        """The messages of the batch, or the one message."""
        return self.raw_message if isinstance(self.raw_message, tuple) else (self.raw_message,)

    @property
    def own_request(self) -> ReceivedMessage | None:
        """The message, if it is a request of RocketMQ's own kind and names no topic for the answer."""
        is_own = bool(self.reply_to) and REPLY_TO not in self.headers
        return self.raw_messages[0] if is_own else None

    async def ack(self) -> None:
        """Acknowledges the message: it is not delivered again."""
        if self.committed is None and self.acknowledger is not None:
            await self.acknowledger.ack(self.raw_messages)
        await super().ack()

    async def nack(self, delay_s: float | None = None) -> None:
        """Has the message delivered again after `delay_s`, or after 10 s at first and longer each time. In an
        ordered subscriber its queue waits for it.

        Raises:  the rejection of the broker; the message stays unacknowledged then.
        """
        if self.committed is None and self.acknowledger is not None:
            await self.acknowledger.nack(self.raw_messages, delay_s)
        await super().nack()

    async def reject(self, reason: str = "") -> None:
        """Moves the message to the dead letters of the group, with the reason in its property
        `dead_letter_reason`. Raises as `nack`.
        """
        if self.committed is None and self.acknowledger is not None:
            await self.acknowledger.reject(self.raw_messages, reason)
        await super().reject()


class MessageParser:
    """Parses received messages, and batches of them."""

    def __init__(self, acknowledger: Acknowledger | None = None) -> None:
        self._acknowledger = acknowledger

    async def parse_message(self, message: ReceivedMessage) -> RocketMQMessage:
        """Returns the message for a handler."""
        headers = headers_of(message)
        system = message.properties
        return self._acknowledged(
            RocketMQMessage(
                raw_message=message,
                body=bytes(message.body),
                headers=headers,
                reply_to=headers.get(REPLY_TO) or system.get(names.REPLY_TO_CLIENT, ""),
                content_type=headers.get(CONTENT_TYPE),
                correlation_id=headers.get(CORRELATION) or system.get(names.CORRELATION_ID),
                message_id=message.message_id,
            )
        )

    async def parse_batch(self, messages: tuple[ReceivedMessage, ...]) -> RocketMQMessage:
        """Returns the batch for a handler; its headers and ids are those of the first message."""
        first, headers = messages[0], [headers_of(message) for message in messages]
        return self._acknowledged(
            RocketMQMessage(
                raw_message=messages,
                body=[bytes(message.body) for message in messages],
                headers=headers[0],
                batch_headers=headers,
                content_type=headers[0].get(CONTENT_TYPE),
                correlation_id=headers[0].get(CORRELATION),
                message_id=first.message_id,
            )
        )

    async def decode_message(self, message: StreamMessage[Any]) -> DecodedMessage:
        """Returns the body as the content type says: JSON, text or bytes."""
        return decode_message(message)

    async def decode_batch(self, message: StreamMessage[Any]) -> list[DecodedMessage]:
        """Returns the bodies of a batch, each by its own content type."""
        raw = cast("tuple[ReceivedMessage, ...]", message.raw_message)
        return [decode_message(await self.parse_message(one)) for one in raw]

    def _acknowledged(self, message: RocketMQMessage) -> RocketMQMessage:
        message.acknowledger = self._acknowledger
        return message


def headers_of(message: ReceivedMessage) -> dict[str, str]:
    """Returns the properties that users set."""
    return {
        name: value
        for name, value in message.properties.items()
        if name not in names.SYSTEM_NAMES and not name.startswith(names.TRANSIENT_PREFIX)
    }
