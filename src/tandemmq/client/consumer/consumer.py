"""Consumer: shares the queues of its topics with its group and delivers messages, each at least once.

    async with Consumer("billing", "127.0.0.1:9876") as consumer:
        consumer.subscribe("Orders", "paid || refunded")
        async for message in consumer:
            handle(message.body)

Acknowledgement: with `auto_ack` (the default) a message is acknowledged when the application asks for the
next one, and the messages of a `poll` at the next `poll`. If an exception leaves the loop, the last message
stays unacknowledged. Without `auto_ack` the application calls `ack`, in any order. Offsets are committed up
to the lowest unacknowledged message: every 5 s, when queues are reassigned, and at close. After a crash or a
reassignment messages may be delivered again.

With `orderly` the next message of a queue is delivered when the previous one is acknowledged, and no other
member reads the queue meanwhile. `suspend` puts a failed message back, and its queue waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from numbers import Integral
from typing import Self

from tandemmq.client.call_values import to_count, to_number, to_timeout
from tandemmq.client.consumer.inbox import Received
from tandemmq.client.consumer.membership import GroupConsumer, Membership, queue_of
from tandemmq.client.consumer.offsets import find_offset
from tandemmq.client.consumer.subscription import ALL, make_subscription
from tandemmq.client.consumer.typed_bodies import decode_value
from tandemmq.client.instance import ClientInstance
from tandemmq.client.options import DELAY_S_MAX, ConsumerOptions, ServerNames, StartFrom
from tandemmq.client.serializers import Serializer
from tandemmq.errors import ClientError, OffsetOutOfRange, TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import MessageModel
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.protocol.topic_names import retry_topic
from tandemmq.runtime.ports import Disk
from tandemmq.units import INT32_MAX, INT64_MAX

YIELD_EVERY = 256
"""The number of messages that an iteration delivers before it yields to the loop: heartbeats and pulls must
not starve.
"""


DECODE_AGAIN_S = 5.0
"""The time before a message with an invalid body is tried again that could not become a dead letter."""


class Consumer(GroupConsumer):
    """One member of a consumer group. Use it from one event loop only."""

    def __init__(
        self,
        group: str,
        namesrv: ServerNames = "",
        *,
        options: ConsumerOptions | None = None,
        instance: ClientInstance | None = None,
        disk: Disk | None = None,
    ) -> None:
        """Creates the consumer. With `instance` it shares that instance's connections, and `close` leaves the
        instance open.
        """
        self.options = options or ConsumerOptions()
        super().__init__(Membership(group, namesrv, self.options, instance=instance, disk=disk))
        self._inbox = self._member.inbox
        self._handed_out: list[Received] = []
        self._since_yield = 0

    # Starting and closing

    async def start(self) -> Self:
        """Joins the group and begins to read its queues, as far as they can be reached now.

        Raises:  BrokerUnreachable when no name server accepts a connection; RequestRejected when a broker
                 does not support a SQL92 subscription; ConfigError when the file of offsets of a broadcasting
                 consumer cannot be used. The consumer is closed again then.
        """
        self._member.settler.open(self)
        await self._member.start()
        return self

    async def close(self) -> None:
        """Stops reading, commits, and leaves the group. Delivered but unacknowledged messages are delivered
        again.
        """
        await self._member.close()

    # Reading

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Waits for the next message; the iteration ends when the consumer is closed."""
        self._finish_handed_out()
        self._since_yield += 1
        if self._since_yield >= YIELD_EVERY:
            self._since_yield = 0
            await self._instance.clock.sleep(0)
        while True:
            self._member.check_reading()
            delivery = self._inbox.take()
            if delivery is not None:
                serializer = self.options.serializer
                if serializer is None or await self._is_decoded(delivery, serializer):
                    break
                continue
            if self._inbox.is_closed:
                raise StopAsyncIteration
            self._since_yield = 0
            await self._inbox.wait()
        if self.options.auto_ack:
            self._handed_out.append(delivery)
        return delivery.message

    async def poll(self, count_max: int = 256, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """Returns up to `count_max` messages. Waits at most `timeout_s` for the first one, then returns the
        available ones.

        Returns an empty list when no message came in time, or the consumer is closed.

        Raises:  ClientError when nothing was ever subscribed or assigned, or the client has failed.
        """
        count_max = to_count("count_max", count_max, 0, INT32_MAX)
        timeout_s = to_timeout(timeout_s)
        self._finish_handed_out()
        # Yields also when messages are available: a caller that only polls must not starve the pulls.
        await self._instance.clock.sleep(0)
        self._member.check_reading()
        if not len(self._inbox) and timeout_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._inbox.wait()
        deliveries = await self._take(count_max)
        if self.options.auto_ack:
            self._handed_out = deliveries
        return [delivery.message for delivery in deliveries]

    async def fetch(self, count_max: int) -> list[ReceivedMessage]:
        """Waits for at least one message and returns it with the other available ones; only `ack`
        acknowledges them.

        Returns an empty list when the consumer is closed.
        """
        count_max = to_count("count_max", count_max, 1, INT32_MAX)
        self._finish_handed_out()
        self._member.check_reading()
        await self._inbox.wait()
        return [delivery.message for delivery in await self._take(count_max)]

    async def commit(self) -> bool:
        """Commits the acknowledged messages now. Returns False when a broker could not store the commit; the
        next commit writes it.
        """
        return await self._assignment.commit()

    async def suspend(self, message: ReceivedMessage, *, delay_s: float = 1.0) -> None:
        """Puts a message of an orderly consumer back: its queue pauses for the delay and then resumes with
        this message. Later messages of the queue that were delivered are put back too.

        `message.retry_count` counts the attempts. After `orderly_retry_count_max` attempts the message goes
        to the group's dead letters and its queue continues; if that fails, the message is put back. A message
        whose queue has moved to another member is ignored.

        Raises:  ClientError when the consumer is not orderly.
        """
        if not self.options.orderly:
            raise ClientError("only an orderly consumer can suspend a queue; other consumers use retry_later")
        delay_s = to_number("delay_s", delay_s, 0, DELAY_S_MAX)
        self._handed_out = [one for one in self._handed_out if not is_behind(one.message, message)]
        await self._member.suspend(message, delay_s=delay_s)

    def assign(self, *queues: MessageQueue, tags: str = ALL) -> None:
        """Reads exactly these queues instead of a share of the subscribed topics; a further call replaces the
        queues.

        Use a separate group for such consumers: members that subscribe would leave queues to this one.

        Raises:  ClientError when topics are subscribed.
        """
        others = {one.topic for one in self._assignment.subscriptions} - {retry_topic(self.group)}
        if others and not self._assignment.is_fixed:
            raise ClientError("this consumer has subscriptions: it cannot also be assigned queues")
        self._member.has_subscribed = True
        now_ms = self._instance.clock.now_ms()
        wrapped = [self._namespace.wrap_queue(queue) for queue in queues]
        topics = sorted({queue.topic for queue in wrapped})
        self._assignment.assign(wrapped, [make_subscription(topic, tags, None, now_ms) for topic in topics])
        self._instance.beat_soon()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Returns the queues of a topic that can be read now; none when the topic is unknown.

        Raises:  BrokerUnreachable, RequestTimeout when no name server answers.
        """
        routes, namespace = self._instance.routes, self._namespace
        wrapped = namespace.wrap(topic)
        view = routes.get(wrapped) or await routes.refresh(wrapped)
        return () if view is None else tuple(map(namespace.unwrap_queue, view.subscribe_queues))

    async def seek(self, queue: MessageQueue, to: int | StartFrom, *, time_ms: int | None = None) -> int:
        """Moves a queue to an offset, to its first or its last message, or to a time; returns the offset.

        Delivered messages of the queue are no longer tracked; the next commit writes the new offset.

        Raises:  ClientError when the queue is not read here now; OffsetOutOfRange; the error of a query to
                 the broker.
        """
        if isinstance(to, bool) or not isinstance(to, int | Integral | StartFrom):
            raise ClientError(f"seek to {to!r}: must be an offset or a StartFrom")
        queue = self._namespace.wrap_queue(queue)
        self._assignment.require(queue)
        if isinstance(to, StartFrom):
            if to is StartFrom.TIMESTAMP and time_ms is None:
                raise ClientError("seek to a TIMESTAMP needs time_ms")
            if time_ms is not None:
                time_ms = to_count("time_ms", time_ms, 0, INT64_MAX)
            offset = await find_offset(queue, to, time_ms, self._instance)
        else:
            offset = int(to)
            low = await find_offset(queue, StartFrom.FIRST, None, self._instance)
            high = await find_offset(queue, StartFrom.LAST, None, self._instance)
            if not low <= offset <= high:
                raise OffsetOutOfRange(f"offset {offset} is outside {low}..{high}, the offsets of {queue}")
        await self._assignment.move(queue, offset)
        return offset

    # Inside

    async def _take(self, count_max: int) -> list[Received]:
        self._member.check_alive()
        taken = self._inbox.take_some(count_max)
        serializer = self.options.serializer
        if serializer is None:
            return taken
        decoded: list[Received] = []
        for number, delivery in enumerate(taken):
            try:
                if await self._is_decoded(delivery, serializer):
                    decoded.append(delivery)
            except BaseException:  # a cancelled call loses no message
                self._put_back(*decoded, *taken[number + 1 :])
                raise
        return decoded

    async def _is_decoded(self, delivery: Received, serializer: Serializer) -> bool:
        """Returns True if the body of the message is valid. Otherwise the message becomes a dead letter; if
        that fails, it is decoded again a little later, and after a cancelled call at once.
        """
        message = delivery.message
        reason = decode_value(message, serializer)
        if reason is None:
            return True
        if self.options.model is not MessageModel.CLUSTERING:
            delivery.source.finish(message)
            return False
        try:
            await self.dead_letter(message, reason=reason)
        except TandemError:
            self._instance.clock.call_later(DECODE_AGAIN_S, self._put_back, delivery)
        except BaseException:
            self._put_back(delivery)
            raise
        return False

    def _put_back(self, *deliveries: Received) -> None:
        self._inbox.put_back([one for one in deliveries if one.source.holds(one.message)])

    def _finish_handed_out(self) -> None:
        if self._handed_out:
            for delivery in self._handed_out:
                delivery.source.finish(delivery.message)
            self._handed_out = []


def is_behind(message: ReceivedMessage, first: ReceivedMessage) -> bool:
    """Returns True if `message` is `first` or comes after it in the same queue."""
    return queue_of(message) == queue_of(first) and message.queue_offset >= first.queue_offset
