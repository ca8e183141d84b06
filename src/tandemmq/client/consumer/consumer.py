"""Consumer: shares the queues of its topics with its group and hands out messages, each at least once.

    async with Consumer("billing", "127.0.0.1:9876") as consumer:
        consumer.subscribe("Orders", "paid || refunded")
        async for message in consumer:
            handle(message.body)

When is a message finished? With `auto_ack` (the default) a message is finished when the application asks for
the next one, and what a `poll` returned is finished at the next `poll`; leaving the loop by an exception
leaves the last message unfinished. Without `auto_ack` it is finished by `ack`, in any order. Offsets are
committed up to the lowest unfinished message: every 5 s, when queues change hands, and at close. After a
crash, and when queues change hands, messages may come again.

With `orderly` the next message of a queue comes when the one before is finished, and no other member works on
the queue meanwhile; what fails is put back with `suspend`, and its queue waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Self

from tandemmq.api import broker_send
from tandemmq.client.consumer.inbox import Received
from tandemmq.client.consumer.membership import Membership, queue_of
from tandemmq.client.consumer.subscription import ALL
from tandemmq.client.instance import Client, ClientInstance
from tandemmq.client.options import ConsumerOptions, ServerNames, StartFrom
from tandemmq.client.producer.results import send_reply
from tandemmq.errors import ClientError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.runtime.ports import Disk

YIELD_EVERY = 256
"""Messages that an iteration hands out before it lets the loop turn: heartbeats and pulls must go on."""


class Consumer(Client):
    """One member of a consumer group; used from one event loop."""

    def __init__(
        self,
        group: str,
        namesrv: ServerNames = "",
        *,
        options: ConsumerOptions | None = None,
        instance: ClientInstance | None = None,
        disk: Disk | None = None,
    ) -> None:
        """`instance`: share the connections of another client, which then is not closed by this consumer."""
        self.options = options or ConsumerOptions()
        self._member = Membership(group, namesrv, self.options, instance=instance, disk=disk)
        self.group = self._member.group
        """As brokers know it."""
        self._instance = self._member.instance
        self._inbox = self._member.inbox
        self._assignment = self._member.assignment
        self._handed_out: list[Received] = []
        self._since_yield = 0

    # Life

    def subscribe(self, topic: str, tags: str = ALL, *, sql: str | None = None) -> None:
        """Take part in a topic: all messages, those with one of the tags in `TagA || TagB`, or those that a
        SQL92 expression over their properties takes (`sql="price > 100 AND region = 'EU'"`).

        May be called before the start, later to add a topic, and again to change its tags. A topic that does
        not exist yet is taken up when it appears.

        Raises:  BadRequest for a name that no broker would take, an expression without a tag or one that is
                 no SQL92, or both kinds.
        """
        self._member.subscribe(topic, tags, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        """Stop taking part in a topic; its queues go to the other members."""
        self._member.unsubscribe(topic)

    async def start(self) -> Self:
        """Join the group and take over its queues as far as they can be reached now.

        Raises:  BrokerUnreachable when no name server takes a connection; RequestRejected when a broker
                 does not serve a SQL92 subscription; ConfigError when the file of offsets of a broadcasting
                 consumer cannot be used. Then the consumer is closed again.
        """
        await self._member.start()
        return self

    async def close(self) -> None:
        """Stop reading, commit, leave the group. What was handed out and is not finished comes again."""
        await self._member.close()

    # Reading

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message, whenever it comes; ends when the consumer is closed."""
        self._finish_handed_out()
        self._since_yield += 1
        if self._since_yield >= YIELD_EVERY:
            self._since_yield = 0
            await self._instance.clock.sleep(0)
        while True:
            self._member.check_reading()
            delivery = self._inbox.take()
            if delivery is not None:
                break
            if self._inbox.is_closed:
                raise StopAsyncIteration
            self._since_yield = 0
            await self._inbox.wait()
        if self.options.auto_ack:
            self._handed_out.append(delivery)
        return delivery.message

    async def poll(self, count_max: int = 256, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """Up to `count_max` messages; waits for the first one at most `timeout_s`, then gives what is there.

        Empty when none came in time, or the consumer is closed.

        Raises:  ClientError when nothing was ever subscribed or assigned, or the client has failed.
        """
        self._finish_handed_out()
        # Also when messages are there: a caller that only polls must let the pulls go on.
        await self._instance.clock.sleep(0)
        self._member.check_reading()
        if not len(self._inbox) and timeout_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._inbox.wait()
        deliveries = self._take(count_max)
        if self.options.auto_ack:
            self._handed_out = deliveries
        return [delivery.message for delivery in deliveries]

    async def fetch(self, count_max: int) -> list[ReceivedMessage]:
        """At least one message, whenever it comes, and what else is there; only `ack` finishes them.

        Empty when the consumer is closed.
        """
        self._finish_handed_out()
        self._member.check_reading()
        await self._inbox.wait()
        return [delivery.message for delivery in self._take(count_max)]

    def ack(self, *messages: ReceivedMessage) -> None:
        """These messages are finished and will not come again once the next commit is done.

        A message whose queue has gone to another member is passed over: that member gets it again.
        """
        self.ack_all(messages)

    def ack_all(self, messages: Iterable[ReceivedMessage]) -> None:
        """As `ack`."""
        for message in messages:
            self._member.finish(message)

    async def commit(self) -> bool:
        """Commit now what is finished; False when a broker could not take it (the next commit makes up for
        it).
        """
        return await self._assignment.commit()

    async def retry_later(self, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Hand a message back: the broker delivers it again after a delay, and the message here is finished.

        `delay_level` 0 lets the broker choose: 10 s at first, longer each time; after the group's limit (16)
        the message goes to the dead letters of the group. A negative level sends it there at once.

        When the broker has something else at the message's place in its log by now, the message itself is
        sent to the group's retry topic.

        Raises:  the error of the call; the message is then not finished.
        """
        await self._member.retry_later(message, delay_level=delay_level)

    async def suspend(self, message: ReceivedMessage, *, delay_s: float = 1.0) -> None:
        """Put a message of an orderly consumer back: its queue rests for the delay and then begins with it
        again. What was handed out behind it of the same queue is put back too.

        `message.retry_count` counts. After `orderly_retry_count_max` times the message goes to the dead
        letters of the group instead and its queue goes on; when it cannot be sent there it is put back. A
        message whose queue has gone to another member is passed over.

        Raises:  ClientError when the consumer is not orderly.
        """
        if not self.options.orderly:
            raise ClientError("only an orderly consumer suspends; others hand a message back by retry_later")
        self._handed_out = [one for one in self._handed_out if not is_behind(one.message, message)]
        await self._member.suspend(message, delay_s=delay_s)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_s: float = broker_send.SEND_TIMEOUT_S,
    ) -> None:
        """Answer a message that was sent by `Producer.request`; returns when the requester has the reply.

        Raises:  MessageIllegal when the message is not a request; RequestRejected when nobody waits for it.
        """
        await send_reply(
            self._instance, self.group, request, body, properties=properties, timeout_s=timeout_s
        )

    def assign(self, *queues: MessageQueue, tags: str = ALL) -> None:
        """Read exactly these queues instead of a share of subscribed topics; called again, read others.

        Give such consumers a group of their own: members that subscribe would leave queues to this one.

        Raises:  ClientError when topics are subscribed.
        """
        self._member.assign(queues, tags)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that can be read now; none when nobody knows the topic.

        Raises:  BrokerUnreachable, RequestTimeout when no name server answers.
        """
        routes, namespace = self._instance.routes, self._instance.namespace
        wrapped = namespace.wrap(topic)
        view = routes.get(wrapped) or await routes.refresh(wrapped)
        return () if view is None else tuple(map(namespace.unwrap_queue, view.subscribe_queues))

    async def seek(self, queue: MessageQueue, to: int | StartFrom, *, time_ms: int | None = None) -> int:
        """Go on in a queue from an offset, from its first or its last message, or from a time; the offset.

        What was handed out of the queue is no longer tracked; the next commit writes the new offset.

        Raises:  ClientError when the queue is not read here now; OffsetOutOfRange; the error of a question
                 to the broker.
        """
        return await self._member.seek(queue, to, time_ms)

    def pause(self, *queues: MessageQueue) -> None:
        """Read no more of these queues, or without any of all; what has arrived before still comes."""
        self._member.pause(queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Read these queues, or without any all of them, again."""
        self._member.resume(queues)

    @property
    def instance(self) -> ClientInstance:
        """The client that this consumer is a member of."""
        return self._instance

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that this consumer reads now, sorted."""
        return self._member.assigned

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """Per queue the offset that a commit would write now."""
        return self._member.positions

    # Inside

    def _take(self, count_max: int) -> list[Received]:
        self._member.check_alive()
        return self._inbox.take_some(count_max)

    def _finish_handed_out(self) -> None:
        if self._handed_out:
            for delivery in self._handed_out:
                delivery.source.finish(delivery.message)
            self._handed_out = []


def is_behind(message: ReceivedMessage, first: ReceivedMessage) -> bool:
    """Whether `message` is `first` or lies behind it in the same queue."""
    return queue_of(message) == queue_of(first) and message.queue_offset >= first.queue_offset
