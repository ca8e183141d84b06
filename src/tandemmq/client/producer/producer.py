"""Producer: sends messages and says where each was stored.

    async with Producer("orders", "127.0.0.1:9876") as producer:
        result = await producer.send(Message(topic="Orders", body=b"..."))

Thousands of sends may be under way at once; what is sent and not answered is bounded by count and by bytes,
and at either bound the next send waits (it never fails for that).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from tandemmq.api import broker_send, broker_transaction
from tandemmq.client.instance import ClientInstance
from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.accumulator import Accumulator
from tandemmq.client.producer.bulk import OnResult, Outcome, SendSummary, cut_messages
from tandemmq.client.producer.packer import Packer, must_travel_alone, room_of
from tandemmq.client.producer.queue_choice import queue_by_key
from tandemmq.client.producer.replies import send_reply
from tandemmq.client.producer.results import SendResult, broker_of_handle
from tandemmq.client.producer.sender import Sender
from tandemmq.client.producer.shipment import Shipment
from tandemmq.client.route_view import MASTER_ID, RouteView
from tandemmq.client.window import Window
from tandemmq.errors import ClientError, NoRoute, RequestTimeout, TandemError
from tandemmq.protocol import properties as names
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.java_hash import java_hash
from tandemmq.protocol.message import Message, ReceivedMessage
from tandemmq.protocol.topic_names import check_group


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
        self._packer = Packer(self._instance, self.options)
        self._sender = Sender(self._instance, group, self.options, self._settle)
        self._window = Window(
            count_max=self.options.in_flight_count_max, bytes_max=self.options.in_flight_bytes_max
        )
        self._accumulator: Accumulator | None = None
        if self.options.batch_linger_ms is not None:
            self._accumulator = Accumulator(
                self.options, self._instance.clock, self._packer, self._sender.dispatch
            )
        self._idle: asyncio.Future[None] | None = None
        self._introduced: set[str | None] = set()
        self._is_open = False

    async def start(self) -> Self:
        """Reach a name server. Raises BrokerUnreachable when none takes a connection."""
        if self._owns_instance:
            await self._instance.start()
        self._instance.add_producer(self.group)
        self._instance.on_failure.append(self._on_failure)
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
        broker; with it, at the same queue after a pause. A repetition, and a timeout, may leave more than one
        copy.

        Raises:  MessageIllegal (too large, bad names), NoRoute, BrokerUnreachable, RequestTimeout, or the
                 RequestRejected class of the broker's last answer.
        """
        room = room_of(message)
        if not self._window.try_take(room):
            await self._window.take(room)
        result: SendResult = await self._launch(message, queue, timeout_s, room)
        return result

    async def start_send(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_s: float | None = None
    ) -> asyncio.Future[SendResult]:
        """As `send`, but returns as soon as the message is on its way; the future gives the result."""
        room = room_of(message)
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
        """As `send_batch`, but returns as soon as the batch is on its way; the future gives the results.

        A list of one travels as a plain message, so it may be delayed or large.
        """
        room = sum(map(room_of, messages))
        if not self._window.try_take(room):
            await self._window.take(room)
        waiter: asyncio.Future[list[SendResult]] = asyncio.get_running_loop().create_future()
        try:
            self._check_open()
            deadline_s = self._packer.deadline_s(timeout_s)
            if len(messages) == 1:
                shipment = self._packer.pack_one(messages[0], queue=queue, deadline_s=deadline_s)
            else:
                shipment = self._packer.pack_batch(messages, queue=queue, deadline_s=deadline_s)
        except BaseException:
            self._give_back(room, 1)
            raise
        shipment.list_waiter = waiter
        shipment.room_bytes, shipment.room_count = room, 1
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
        """Send all messages in batches, many at a time; `on_result(message, outcome)` is called for each, in
        the order of sending.

        The fast way for hundreds of thousands of messages. Delayed and large messages travel alone. With
        `stop_on_error` the first failure ends it: what is under way is waited for, then the error is raised.
        """
        summary = SendSummary()
        pending: deque[tuple[list[Message], asyncio.Future[list[SendResult]]]] = deque()

        async def settle_oldest() -> None:
            chunk, future = pending.popleft()
            outcomes: Sequence[Outcome]
            try:
                outcomes = await future
            except TandemError as error:
                outcomes = [error] * len(chunk)
            summary.note(chunk, outcomes, on_result)

        for chunk in cut_messages(messages, self.options):
            while len(pending) >= batches_in_flight_max:
                await settle_oldest()
            if summary.must_stop(stop_on_error=stop_on_error):
                break
            pending.append((chunk, await self._start_checked(chunk)))
        while pending:
            await settle_oldest()
        return summary.result(stop_on_error=stop_on_error)

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Send without an answer: returns when the bytes are queued for the socket; the message may be
        lost.
        """
        view = await self._publish_view(message.topic)
        target = self._sender.choose(view) if queue is None else queue
        address = view.master_address(target.broker_name)
        if address is None:
            raise NoRoute(f"broker {target.broker_name!r} has no master for topic {message.topic!r}")
        shipment = self._packer.pack_one(message, queue=target, deadline_s=self._packer.deadline_s(None))
        header = shipment.header(self.group, self.options)
        await broker_send.send_oneway(self._instance.remoting, address, header, shipment.body)

    async def send_system(
        self,
        message: Message,
        system: Mapping[str, str],
        *,
        sys_flag: int = 0,
        timeout_s: float | None = None,
    ) -> SendResult:
        """As `send`, with properties that only the system may set; always a request of its own."""
        room = room_of(message)
        if not self._window.try_take(room):
            await self._window.take(room)
        waiter: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        try:
            self._check_open()
            shipment = self._packer.pack_one(
                message,
                queue=None,
                deadline_s=self._packer.deadline_s(timeout_s),
                system=system,
                system_flag=sys_flag,
            )
        except BaseException:
            self._give_back(room, 1)
            raise
        shipment.waiters = (waiter,)
        shipment.room_bytes, shipment.room_count = room, 1
        self._sender.dispatch(shipment)
        return await waiter

    async def request(self, message: Message, timeout_s: float = 3.0) -> ReceivedMessage:
        """The reply of whoever consumes the message (`Consumer.reply`, or RocketMQ's clients).

        Raises:  RequestTimeout when no reply came in time; what `send` raises when the request was not
                 stored.
        """
        await self._introduce(message.topic)
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
            await self.send_system(message, system, timeout_s=timeout_s)
            async with asyncio.timeout(max(0.0, ends_at - clock.monotonic())):
                return await reply
        except TimeoutError:
            raise RequestTimeout(
                f"the request to topic {message.topic!r} was stored, but no reply came within {timeout_s:g} s"
            ) from None
        finally:
            questions.forget_reply(correlation_id)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Answer a request that a consumer received; returns when the requester has taken the reply.

        Raises:  MessageIllegal when the message is no request; RequestRejected when nobody waits for it.
        """
        self._check_open()
        await send_reply(
            self._instance,
            self.group,
            request,
            body,
            properties=properties,
            timeout_s=self.options.timeout_s if timeout_s is None else timeout_s,
        )

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Take a timed message back before its time; the handle is that of its SendResult.

        The result is the unique key of the message.
        Raises:  ClientError for what is no handle, NoRoute; RequestRejected when it is too late, or recalls
                 are off (recallMessageEnable).
        """
        self._check_open()
        await self._publish_view(topic)
        name = broker_of_handle(recall_handle)
        address = self._instance.routes.broker_addresses().get(name, {}).get(MASTER_ID)
        if address is None:
            raise NoRoute(f"broker {name!r} of the recall handle has no master")
        return await broker_transaction.recall(
            self._instance.remoting, address, topic, recall_handle, timeout_s=self.options.timeout_s
        )

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

    @property
    def instance(self) -> ClientInstance:
        """The client that this producer is a member of."""
        return self._instance

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
            self._check_open()
            deadline_s = self._packer.deadline_s(timeout_s)
            if self._accumulator is not None and not must_travel_alone(message, self.options):
                self._accumulator.add(message, queue, waiter, deadline_s)
                return waiter
            shipment = self._packer.pack_one(message, queue=queue, deadline_s=deadline_s)
        except BaseException:
            self._give_back(room, 1)
            raise
        shipment.waiters = (waiter,)
        shipment.room_bytes, shipment.room_count = room, 1
        self._sender.dispatch(shipment)
        return waiter

    async def _start_checked(self, chunk: list[Message]) -> asyncio.Future[list[SendResult]]:
        """As `start_batch`; what is wrong with the messages comes by the future, too."""
        try:
            return await self.start_batch(chunk)
        except TandemError as error:
            failed: asyncio.Future[list[SendResult]] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    def _on_failure(self, error: BaseException) -> None:
        """What waits for a route or a connection would wait for ever."""
        self._sender.abandon(ClientError(f"the client has failed: {error!r}"))

    async def _introduce(self, topic: str) -> None:
        """Let the brokers of the topic know this client before one has a reply for it."""
        view = await self._publish_view(topic)
        brokers = {queue.broker_name for queue in view.publish_queues}
        addresses = {view.master_address(name) for name in brokers}
        if not addresses <= self._introduced:
            await self._instance.beat()
            self._introduced |= addresses

    def _settle(self, shipment: Shipment) -> None:
        self._give_back(shipment.room_bytes, shipment.room_count)

    def _give_back(self, room_bytes: int, room_count: int) -> None:
        """The result of some messages is known: others may have their room."""
        self._window.give_back(room_bytes, room_count)
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

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClientError("the producer is not started, or closed")
        if self._instance.failure is not None:
            self._instance.check_alive()
