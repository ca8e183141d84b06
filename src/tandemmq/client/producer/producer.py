"""Producer: sends messages and says where each was stored.

    async with Producer("orders", "127.0.0.1:9876") as producer:
        result = await producer.send(Message(topic="Orders", body=b"..."))

Thousands of sends may be under way at once; what is sent and not answered is bounded by count and by bytes,
and at either bound the next send waits (it never fails for that).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from tandemmq.api import broker_send
from tandemmq.client.instance import ClientInstance
from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.accumulator import Accumulator, OpenBatch, must_travel_alone
from tandemmq.client.producer.bulk import OnResult, Outcome, SendSummary, chunk_messages
from tandemmq.client.producer.queue_choice import queue_by_key
from tandemmq.client.producer.results import SendResult
from tandemmq.client.producer.sender import Sender
from tandemmq.client.producer.shipment import Shipment, encode_item, load_batch, load_single
from tandemmq.client.route_view import RouteView
from tandemmq.client.window import Window
from tandemmq.errors import ClientError, MessageIllegal, NoRoute, TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.java_hash import java_hash
from tandemmq.protocol.message import Message
from tandemmq.protocol.topic_names import check_group

MESSAGE_OVERHEAD_BYTES = 256
"""Counted per message besides its body: properties, header and our own objects."""


class Producer:
    """One producer of a group; used from one event loop."""

    def __init__(
        self,
        group: str,
        namesrv: str = "",
        *,
        options: ProducerOptions | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        """`instance`: share the connections of another client, which then is not closed by this producer."""
        check_group(group)
        self.group = group
        self.options = options or ProducerOptions()
        self._owns_instance = instance is None
        self._instance = instance or ClientInstance(namesrv, self.options.client)
        self._clock = self._instance.clock
        self._sender = Sender(self._instance, group, self.options)
        self._window = Window(
            count_max=self.options.in_flight_count_max, bytes_max=self.options.in_flight_bytes_max
        )
        self._accumulator: Accumulator | None = None
        if self.options.batch_linger_ms is not None:
            self._accumulator = Accumulator(self.options, self._clock, self._ship)
        self._idle: asyncio.Future[None] | None = None
        self._is_open = False

    async def start(self) -> Self:
        """Reach a name server. Raises BrokerUnreachable when none takes a connection."""
        if self._owns_instance:
            await self._instance.start()
        self._instance.add_producer(self.group)
        self._is_open = True
        return self

    async def close(self) -> None:
        """Wait for what is under way (at most the send timeout), then leave."""
        if not self._is_open:
            return
        try:
            async with asyncio.timeout(self.options.timeout_s):
                await self.flush()
        except TimeoutError:
            pass
        self._is_open = False
        self._sender.abandon(ClientError("the producer is closed"))
        await self._instance.leave(producer_group=self.group)
        if self._owns_instance:
            await self._instance.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Sending

    async def send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> SendResult:
        """Where the message was stored; waits first while too much is in flight.

        Without `queue` the queues of the topic take turns, and a failed attempt is repeated at another
        broker. A repetition, and a timeout, may leave more than one copy.

        Raises:  MessageIllegal (too large, bad names), NoRoute, BrokerUnreachable, RequestTimeout, or the
                 RequestRejected class of the broker's last answer.
        """
        room = len(message.body) + MESSAGE_OVERHEAD_BYTES
        if not self._window.try_take(room):
            await self._window.take(room)
        result: SendResult = await self._launch(message, queue, timeout_s, room)
        return result

    async def start_send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> asyncio.Future[SendResult]:
        """As `send`, but returns as soon as the message is on its way; the future gives the result."""
        room = len(message.body) + MESSAGE_OVERHEAD_BYTES
        if not self._window.try_take(room):
            await self._window.take(room)
        return self._launch(message, queue, timeout_s, room)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """One result per message. All go in one request to one queue, and all or none are stored.

        Raises:  MessageIllegal when the list is empty, mixes topics or wait policies, holds delayed
                 messages, or is larger than one message may be; else as `send`.
        """
        return await (await self.start_batch(messages, queue=queue, timeout_s=timeout_s))

    async def start_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> asyncio.Future[list[SendResult]]:
        """As `send_batch`, but returns as soon as the batch is on its way; the future gives the results."""
        room = sum(len(message.body) for message in messages) + MESSAGE_OVERHEAD_BYTES * len(messages)
        if not self._window.try_take(room):
            await self._window.take(room)
        try:
            shipment = self._load_batch(messages, queue, timeout_s)
        except BaseException:
            self._settle(room, 1)
            raise
        waiter: asyncio.Future[list[SendResult]] = asyncio.get_running_loop().create_future()
        shipment.batch_waiter = waiter
        shipment.on_settled = partial(self._settle, room, 1)
        self._sender.dispatch(shipment)
        return waiter

    async def send_many(
        self,
        messages: Iterable[Message],
        *,
        on_result: OnResult | None = None,
        stop_on_error: bool = True,
        batches_in_flight_max: int = 16,
    ) -> SendSummary:
        """Send all messages in batches, many at a time; `on_result(message, outcome)` is called for each.

        The fast way for hundreds of thousands of messages. Delayed and large messages travel alone. With
        `stop_on_error` the first failure ends it: what is under way is waited for, then the error is raised.
        """
        summary = SendSummary()
        pending: deque[tuple[list[Message], asyncio.Future[list[SendResult]]]] = deque()

        async def settle_oldest() -> None:
            chunk, future = pending.popleft()
            try:
                outcomes: Sequence[Outcome] = await future
            except TandemError as error:
                outcomes = [error] * len(chunk)
            for message, outcome in zip(chunk, outcomes, strict=True):
                summary.note(outcome)
                if on_result is not None:
                    on_result(message, outcome)

        for chunk in self.cut(messages):
            while len(pending) >= batches_in_flight_max:
                await settle_oldest()
            if stop_on_error and summary.first_error is not None:
                break
            pending.append((chunk, await self.start_chunk(chunk)))
        while pending:
            await settle_oldest()
        if stop_on_error and summary.first_error is not None:
            raise summary.first_error
        return summary

    def cut(self, messages: Iterable[Message]) -> Iterator[list[Message]]:
        """Messages as the lists in which `send_many` sends them."""
        options = self.options
        return chunk_messages(
            messages,
            count_max=options.batch_count_max,
            bytes_max=options.batch_bytes_max,
            travels_alone=partial(must_travel_alone, options=options),
        )

    async def start_chunk(self, chunk: list[Message]) -> asyncio.Future[list[SendResult]]:
        """One list of `cut` on its way; the future gives one result per message, or raises."""
        if len(chunk) > 1:
            return await self.start_batch(chunk)
        room = len(chunk[0].body) + MESSAGE_OVERHEAD_BYTES
        if not self._window.try_take(room):
            await self._window.take(room)
        shipment = self._load_one(chunk[0], None, None, room)
        waiter: asyncio.Future[list[SendResult]] = asyncio.get_running_loop().create_future()
        shipment.batch_waiter = waiter
        self._sender.dispatch(shipment)
        return waiter

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send without an answer: returns when the bytes are queued for the socket; the message may be
        lost.
        """
        shipment = self._new_shipment(message.topic, queue, None)
        load_single(shipment, message, self._next_key(), self.options)
        if queue is None:
            view = await self._publish_view(message.topic)
            shipment.queue = self._sender.choose(view)
        assert shipment.queue is not None
        address = await self._master_of(shipment.queue)
        header = shipment.header(self.group, self.options)
        await broker_send.send_oneway(self._instance.remoting, address, header, shipment.body)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that take messages of a topic now. Raises NoRoute."""
        return (await self._publish_view(topic)).publish_queues

    async def queue_for(self, topic: str, key: str) -> MessageQueue:
        """The queue for messages that must stay in order among themselves: equal keys give the same queue."""
        return queue_by_key(await self.queues(topic), java_hash(key))

    async def flush(self) -> None:
        """Returns when every send that was started has its result."""
        if self._accumulator is not None:
            self._accumulator.flush()
        while self._window.count:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    async def send_chunk(self, chunk: list[Message]) -> list[SendResult]:
        """One list of `cut`, sent; one result per message."""
        return await (await self.start_chunk(chunk))

    @property
    def in_flight(self) -> int:
        """Messages that are sent and have no result yet."""
        return self._window.count

    # Inside

    def _launch(
        self, message: Message, queue: MessageQueue | None, timeout_s: float | None, room: int
    ) -> asyncio.Future[SendResult]:
        """Start one message for which room has been taken."""
        waiter: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        try:
            if self._accumulator is not None and not must_travel_alone(message, self.options):
                deadline_s = self._clock.monotonic() + (timeout_s or self.options.timeout_s)
                self._check_open()
                self._accumulator.add(
                    message, queue, self._next_key(), waiter, room_bytes=room, deadline_s=deadline_s
                )
                return waiter
        except BaseException:
            self._settle(room, 1)
            raise
        shipment = self._load_one(message, queue, timeout_s, room)
        shipment.waiters.append(waiter)
        self._sender.dispatch(shipment)
        return waiter

    def _load_one(
        self, message: Message, queue: MessageQueue | None, timeout_s: float | None, room: int
    ) -> Shipment:
        """A message for which room has been taken; the room is given back when it is settled, or cannot be
        sent.
        """
        try:
            shipment = self._new_shipment(message.topic, queue, timeout_s)
            load_single(shipment, message, self._next_key(), self.options)
        except BaseException:
            self._settle(room, 1)
            raise
        shipment.on_settled = partial(self._settle, room, 1)
        return shipment

    def _ship(self, batch: OpenBatch) -> None:
        """Send what the accumulator has collected; a lone message needs no batch around it."""
        count = len(batch.items)
        key = batch.key
        shipment = Shipment(
            key.topic, queue=key.queue, deadline_s=batch.deadline_s, born_at_ms=self._clock.now_ms()
        )
        shipment.waiters = batch.waiters
        shipment.on_settled = partial(self._settle, batch.room_bytes, count)
        try:
            if count == 1:
                load_single(shipment, batch.first, batch.unique_keys[0], self.options)
            else:
                load_batch(
                    shipment,
                    batch.items,
                    batch.unique_keys,
                    wait_stored=key.wait_stored,
                    bytes_max=self.options.message_bytes_max,
                )
        except MessageIllegal as error:
            shipment.fail(error)
            return
        self._sender.dispatch(shipment)

    def _load_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None, timeout_s: float | None
    ) -> Shipment:
        if not messages:
            raise MessageIllegal("the batch holds no message")
        first = messages[0]
        topic, wait_stored = first.topic, first.wait_stored
        shipment = self._new_shipment(topic, queue, timeout_s)
        items, unique_keys = [], []
        for message in messages:
            if message.topic != topic or message.wait_stored is not wait_stored:
                raise MessageIllegal("all messages of a batch need the same topic and the same wait_stored")
            unique_key = self._next_key()
            unique_keys.append(unique_key)
            items.append(encode_item(message, unique_key, self.options))
        load_batch(
            shipment,
            items,
            unique_keys,
            wait_stored=wait_stored,
            bytes_max=self.options.message_bytes_max,
        )
        return shipment

    def _new_shipment(self, topic: str, queue: MessageQueue | None, timeout_s: float | None) -> Shipment:
        self._check_open()
        deadline_s = self._clock.monotonic() + (timeout_s or self.options.timeout_s)
        return Shipment(topic, queue=queue, deadline_s=deadline_s, born_at_ms=self._clock.now_ms())

    def _next_key(self) -> str:
        return self._instance.unique_keys.next(self._clock.now_ms())

    def _settle(self, room: int, count: int) -> None:
        """The result of `count` messages is known: others may have their room."""
        self._window.give_back(room, count)
        if self._idle is not None and not self._window.count:
            self._idle.set_result(None)
            self._idle = None

    async def _publish_view(self, topic: str) -> RouteView:
        self._check_open()
        return await self._instance.routes.publishable(
            topic,
            template_topic=self.options.default_topic,
            template_queue_count=self.options.default_topic_queue_count,
        )

    async def _master_of(self, queue: MessageQueue) -> str:
        view = await self._publish_view(queue.topic)
        address = view.master_address(queue.broker_name)
        if address is None:
            raise NoRoute(f"broker {queue.broker_name!r} has no master for topic {queue.topic!r}")
        return address

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClientError("the producer is not started, or closed")
        self._instance.check_alive()
