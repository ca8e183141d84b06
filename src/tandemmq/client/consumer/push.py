"""PushConsumer: calls a handler for each message of its topics, and handles failures itself.

    async def handle(message):
        await store(message.body)

    async with PushConsumer("billing", "127.0.0.1:9876", handle) as consumer:
        consumer.subscribe("Orders", "paid || refunded")
        await consumer.wait_closed()

A message is acknowledged when its handler returns. If the handler raises, or returns `ConsumeResult.RETRY`,
the message is delivered again: after 10 s, then 30 s, and so on up to 2 h; after 16 times it becomes a dead
letter of the group. With `orderly` a queue is handled one message after the other, and a failed message is
tried again before its queue continues. Offsets are committed up to the lowest unacknowledged message.
"""

from __future__ import annotations

import asyncio
from typing import Self

from tandemmq.client.consumer.membership import GroupConsumer, Membership
from tandemmq.client.consumer.workers import Handler, Workers
from tandemmq.client.instance import ClientInstance
from tandemmq.client.options import PushOptions, ServerNames
from tandemmq.errors import ClientError
from tandemmq.runtime.ports import Disk


class PushConsumer(GroupConsumer):
    """One member of a consumer group. Use it from one event loop only."""

    def __init__(
        self,
        group: str,
        namesrv: ServerNames,
        handler: Handler,
        *,
        options: PushOptions | None = None,
        instance: ClientInstance | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Creates the consumer. An async `handler(message)` runs in the event loop, a plain one in threads.
        With `instance` it shares that instance's connections, and `close` leaves the instance open.
        """
        if not callable(handler):
            raise ClientError(f"the handler must be a function of one message, not {handler!r:.64}")
        self.options = options or PushOptions()
        self._workers = Workers(handler, self.options)
        super().__init__(
            Membership(group, namesrv, self.options, instance=instance, disk=disk, listener=self._workers)
        )
        self._closed = asyncio.Event()

    async def start(self) -> Self:
        """Joins the group and begins to handle messages. Raises as `Consumer.start`."""
        await self._member.start()
        self._workers.start(self._member)
        return self

    async def close(self) -> None:
        """Stops starting handlers, waits for running ones (at most `drain_s`), commits, and leaves the group.
        Unacknowledged messages are delivered again.

        Raises:  ClientError when a handler calls it.
        """
        try:
            await self._workers.drain(self.options.drain_s)
        except asyncio.CancelledError:
            await self._leave()
            raise
        await self._leave()

    async def _leave(self) -> None:
        try:
            await self._workers.close_trace()
        finally:
            try:
                await self._member.close()
            finally:
                self._workers.close()
                self._closed.set()

    async def wait_closed(self) -> None:
        """Waits until another task has closed the consumer.

        Raises:  ClientError when a background task of the client has died.
        """
        await self._member.ended.wait()
        self._member.check_alive()
        await self._closed.wait()
