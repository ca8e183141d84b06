"""PushConsumer: calls a handler for each message of its topics, and handles failures itself.

    consumer = PushConsumer("billing", "127.0.0.1:9876")

    @consumer.subscriber("Orders", "paid || refunded")
    async def handle(message):
        await store(message.body)

    asyncio.run(consumer.run())

A message is acknowledged when its handler returns. If the handler raises, or returns `ConsumeResult.RETRY`,
the message is delivered again: after 10 s, then 30 s, and so on up to 2 h; after 16 times it becomes a dead
letter of the group. With `orderly` a queue is handled one message after the other, and a failed message is
tried again before its queue continues. Offsets are committed up to the lowest unacknowledged message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self, TypeVar, Unpack

from tandemmq.client.consumer.handlers import HandlerSet
from tandemmq.client.consumer.membership import GroupConsumer, Membership
from tandemmq.client.consumer.subscription import ALL, Tags
from tandemmq.client.consumer.workers import AnyHandler
from tandemmq.client.instance import ClientInstance
from tandemmq.client.options import HandlerChanges, PushOptions, ServerNames
from tandemmq.client.stop_signals import on_stop_signal
from tandemmq.errors import ClientError
from tandemmq.runtime.ports import Disk

H = TypeVar("H", bound=AnyHandler)


class PushConsumer(GroupConsumer):
    """One member of a consumer group. Use it from one event loop only."""

    def __init__(
        self,
        group: str,
        namesrv: ServerNames = "",
        handler: AnyHandler | None = None,
        *,
        options: PushOptions | None = None,
        instance: ClientInstance | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Creates the consumer. An async `handler(message)` runs in the event loop, a plain one in threads;
        it gets the messages of all topics without a handler of their own (`subscriber`). With `instance` it
        shares that instance's connections, and `close` leaves the instance open.
        """
        self.options = options or PushOptions()
        self._handlers = HandlerSet(self.options, handler)
        super().__init__(
            Membership(
                group,
                namesrv,
                self.options,
                instance=instance,
                disk=disk,
                inbox=self._handlers.inbox,
                listener=self._handlers,
            )
        )
        if self.options.metrics is not None:
            self.options.metrics.add_consumer(self)
        self._is_started = False
        self._closed = asyncio.Event()

    def subscribe(self, topic: str, tags: Tags = ALL, *, sql: str | None = None) -> None:
        """Subscribes as `Consumer.subscribe`. Raises ClientError if the topic has no handler."""
        if not self._handlers.has_handler(topic):
            raise ClientError(
                f"topic {topic!r} has no handler: add one with `subscriber`, or pass one for all topics to"
                " PushConsumer"
            )
        super().subscribe(topic, tags, sql=sql)

    def subscriber(
        self, topic: str, tags: Tags = ALL, *, sql: str | None = None, **changes: Unpack[HandlerChanges]
    ) -> Callable[[H], H]:
        """Returns a decorator that subscribes to a topic and makes the function the topic's handler; may be
        used before and after the start. `changes` are options that differ from those of the consumer.

        Raises:  as `Consumer.subscribe`; ClientError if the topic has a handler; ConfigError.
        """

        def add(handler: H) -> H:
            self.add_handler(topic, handler, **changes)
            self.subscribe(topic, tags, sql=sql)
            return handler

        return add

    def add_handler(self, topic: str, handler: AnyHandler, **changes: Unpack[HandlerChanges]) -> None:
        """Adds the handler of a topic as `subscriber`, without a subscription."""
        self._handlers.add(topic, handler, **changes)

    async def start(self) -> Self:
        """Joins the group and begins to handle messages. Raises as `Consumer.start`."""
        self._member.settler.open(self)
        await self._member.start()
        self._is_started = True
        self._handlers.start(self._member)
        return self

    async def run(self) -> None:
        """Handles messages until the process gets SIGTERM or SIGINT, or another task closes the consumer;
        then closes it. Starts it before if that has not been done.

        A second signal has its usual effect, so it ends the program at once. Outside of the main thread
        signals are not handled.

        Raises:  as `start`; ClientError when a background task of the client has died.
        """
        loop = asyncio.get_running_loop()
        with on_stop_signal(lambda: loop.call_soon_threadsafe(self.stop_soon)):
            if not self._is_started:
                await self.start()
            try:
                await self.wait_stopped()
            finally:
                await self.close()

    def stop_soon(self) -> None:
        """Makes `run` close the consumer and return; does nothing else."""
        self._member.ended.set()

    async def wait_stopped(self) -> None:
        """Waits until `stop_soon` or `close` is called. Raises as `wait_closed`."""
        await self._member.ended.wait()
        self._member.check_alive()

    async def close(self) -> None:
        """Stops starting handlers, waits for running ones (at most `drain_s`), commits, and leaves the group.
        Unacknowledged messages are delivered again.

        Raises:  ClientError when a handler calls it, or in another event loop.
        """
        self._member.instance.check_loop()
        try:
            await self._handlers.drain(self.options.drain_s)
        except asyncio.CancelledError:
            await self._leave()
            raise
        await self._leave()

    @property
    def unfinished_count(self) -> int:
        """The number of received messages that are not acknowledged yet."""
        return sum(len(reader.in_flight) for reader in list(self._assignment.readers.values()))

    async def _leave(self) -> None:
        try:
            await self._handlers.close_trace()
        finally:
            try:
                await self._member.close()
            finally:
                self._handlers.close()
                self._closed.set()

    async def wait_closed(self) -> None:
        """Waits until another task has closed the consumer.

        Raises:  ClientError when a background task of the client has died.
        """
        await self.wait_stopped()
        await self._closed.wait()
