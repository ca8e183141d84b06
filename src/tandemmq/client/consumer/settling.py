"""The methods of a delivered message (`message.ack()`, `reply`, ...): they call its consumer.

In the consumer's event loop the result is to be awaited. In any other thread, such as that of a plain handler
or of a program that uses a blocking consumer, the call blocks until it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any, Final, Protocol

from tandemmq.api import broker_send
from tandemmq.client.instance import Client
from tandemmq.client.producer.request_reply import send_reply
from tandemmq.errors import ClientError
from tandemmq.protocol.message import ReceivedMessage


class SettlingConsumer(Protocol):
    """The operations of a consumer on one of its messages."""

    def ack(self, *messages: Any) -> Awaitable[None]: ...

    def retry_later(self, message: Any, *, delay_s: float | None = ...) -> Awaitable[None]: ...

    def dead_letter(self, message: Any, *, reason: str) -> Awaitable[None]: ...

    def reply(
        self, request: Any, body: bytes, *, properties: Mapping[str, str] | None = ...
    ) -> Awaitable[None]: ...


class ReplyingConsumer(Client):
    """A consumer, as far as it answers the messages that request a reply."""

    group: str
    """The group's name as brokers know it."""

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_s: float = broker_send.SEND_TIMEOUT_S,
    ) -> None:
        """Answers a message that was sent by `Producer.request`; returns once the requester has received the
        reply.

        Raises:  MessageIllegal when the message is not a request; RequestRejected when the requester no
                 longer waits.
        """
        await send_reply(
            self._instance, self.group, request, body, properties=properties, timeout_s=timeout_s
        )


class _Done:
    """The awaitable of an operation that has ended."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


DONE: Final = _Done()


class Settler:
    """The settler of the messages of one consumer, which all of them share."""

    def __init__(self) -> None:
        self._consumer: SettlingConsumer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self, consumer: SettlingConsumer) -> None:
        """Makes the consumer, which has started in this event loop, the one to call."""
        self._consumer, self._loop = consumer, asyncio.get_running_loop()

    def ack(self, message: Any) -> Awaitable[None]:
        """Acknowledges the message."""
        return self._call(lambda consumer: consumer.ack(message))

    def retry_later(self, message: Any, delay_s: float | None) -> Awaitable[None]:
        """Sends the message back."""
        return self._call(lambda consumer: consumer.retry_later(message, delay_s=delay_s))

    def dead_letter(self, message: Any, reason: str) -> Awaitable[None]:
        """Makes the message a dead letter."""
        return self._call(lambda consumer: consumer.dead_letter(message, reason=reason))

    def reply(self, message: Any, body: bytes, properties: Mapping[str, str] | None) -> Awaitable[None]:
        """Answers the message."""
        return self._call(lambda consumer: consumer.reply(message, body, properties=properties))

    def _call(self, operation: Callable[[SettlingConsumer], Awaitable[None]]) -> Awaitable[None]:
        consumer, loop = self._consumer, self._loop
        assert consumer is not None
        assert loop is not None
        if _running_loop() is loop:
            return operation(consumer)

        async def operate() -> None:
            await operation(consumer)

        work = operate()
        try:
            future = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:
            work.close()
            raise ClientError("the consumer is closed, and its event loop has ended") from None
        future.result()
        return DONE


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
