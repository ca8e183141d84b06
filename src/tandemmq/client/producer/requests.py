"""Requests: messages that ask their consumer for a reply (spec semantics 3.10)."""

from __future__ import annotations

import asyncio

from tandemmq.client.instance import ClientInstance
from tandemmq.client.producer.outbox import Outbox
from tandemmq.client.route_view import RouteView
from tandemmq.errors import RequestTimeout
from tandemmq.protocol import properties as names
from tandemmq.protocol.message import Message, ReceivedMessage


class Requests:
    """The requests of one producer that wait for a reply."""

    def __init__(self, instance: ClientInstance, outbox: Outbox) -> None:
        self._instance = instance
        self._outbox = outbox
        self._introduced: set[str | None] = set()

    async def ask(self, message: Message, view: RouteView, timeout_s: float) -> ReceivedMessage:
        """The reply to the message.

        Raises:  RequestTimeout when the request was stored and no reply came in time; Busy when too many wait
                 for theirs; what sending raises.
        """
        await self._introduce(view)
        correlation_id = self._instance.chance.token_bytes(16).hex()
        clock, questions = self._instance.clock, self._instance.questions
        ends_at = clock.monotonic() + timeout_s
        system = {
            names.CORRELATION_ID: correlation_id,
            names.REPLY_TO_CLIENT: self._instance.client_id,
            names.TTL: str(int(timeout_s * 1000)),
        }
        reply = questions.expect_reply(correlation_id)
        try:
            await (await self._outbox.start_system(message, system, 0, timeout_s))
            async with asyncio.timeout(max(0.0, ends_at - clock.monotonic())):
                return await reply
        except TimeoutError:
            raise RequestTimeout(
                f"the request to topic {message.topic!r} was stored, but no reply came within {timeout_s:g} s"
            ) from None
        finally:
            questions.forget_reply(correlation_id)

    async def _introduce(self, view: RouteView) -> None:
        """Let the brokers of the topic know this client before one has a reply for it."""
        brokers = {queue.broker_name for queue in view.publish_queues}
        addresses = {view.master_address(name) for name in brokers}
        if not addresses <= self._introduced:
            await self._instance.beat()
            self._introduced |= addresses
