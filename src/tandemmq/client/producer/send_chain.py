"""Middleware of a producer: async functions that surround its sends, the first one outermost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tandemmq.client.hooks import CallSend, SendMiddleware
from tandemmq.client.producer.outbox import Outbox
from tandemmq.client.producer.results import SendResult
from tandemmq.errors import ClientError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.message import Message


class SendChain:
    """The middleware of one producer, and the send at its end."""

    def __init__(self, middleware: Sequence[SendMiddleware], outbox: Outbox) -> None:
        self._middleware = tuple(middleware)
        self._outbox = outbox

    async def send(
        self, messages: Sequence[Message], queue: MessageQueue | None, timeout_s: float | None
    ) -> list[SendResult]:
        """Sends the messages in one request through the middleware; returns one result per message.

        Raises:  what the send or the middleware raises; ClientError for another number of results.
        """
        call: CallSend = partial(self._send, queue=queue, timeout_s=timeout_s)
        for one in reversed(self._middleware):
            call = _bind(one, call)
        results = await call(messages)
        if not isinstance(results, list) or len(results) != len(messages):
            raise ClientError(
                f"middleware must return the results of `call_next`, one per message, not {results!r:.64}"
            )
        return results

    async def _send(
        self, messages: Sequence[Message], *, queue: MessageQueue | None, timeout_s: float | None
    ) -> list[SendResult]:
        return await (await self._outbox.start_batch(messages, queue, timeout_s))


def _bind(middleware: SendMiddleware, call_next: CallSend) -> CallSend:
    return lambda messages: middleware(messages, call_next)
