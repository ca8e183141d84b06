"""Outbox: sends the messages of one producer, and tracks the sends in flight.

Each message acquires room in the window, becomes a shipment or part of an open batch, and goes to the sender.
Its room is released when its result is known, or at once if it cannot be packed.

The window bounds the sends in flight by count and by bytes; at a bound callers wait in turn. One item larger
than the whole byte bound is sent alone, so that a bound set too small slows a producer down but never blocks
it for ever.

The accumulator collects sends of the same topic, queue and wait policy into one batch request. Each caller
keeps its own future, so batching only adds a delay. A batch is sent when it is full, when its linger time is
over, or with a linger of 0 at the end of the loop's turn: sends of many tasks in one turn share a request,
and a lone send is not delayed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tandemmq.api import broker_send
from tandemmq.client.instance import ClientInstance
from tandemmq.client.namespace import Namespace
from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.packer import Packer, Shipment, Waiter, must_travel_alone, room_of
from tandemmq.client.producer.results import SendResult
from tandemmq.client.producer.sender import Sender
from tandemmq.client.route_cache import RouteView
from tandemmq.client.serializers import with_body
from tandemmq.errors import BrokerUnreachable, ClientError, MessageIllegal, NoRoute
from tandemmq.protocol import properties as names
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.message import Message
from tandemmq.runtime.ports import Clock


class BatchKey(NamedTuple):
    """The common attributes of a batch's messages. A queue of None: any queue, the same one for the whole
    batch.
    """

    topic: str
    queue: MessageQueue | None
    wait_stored: bool


@dataclass(slots=True, eq=False)
class OpenBatch:
    """Messages that wait to be sent together."""

    key: BatchKey
    first: Message
    deadline_s: float
    items: list[bytes] = field(default_factory=list)
    unique_keys: list[str] = field(default_factory=list)
    waiters: list[Waiter] = field(default_factory=list)
    bytes: int = 0
    room_bytes: int = 0


class Accumulator:
    """The open batches of one producer, at most one per key."""

    def __init__(
        self, options: ProducerOptions, clock: Clock, packer: Packer, dispatch: Callable[[Shipment], None]
    ) -> None:
        self._bytes_max = min(options.batch_bytes_max, options.message_bytes_max)
        self._count_max = options.batch_count_max
        self._linger_s = (options.batch_linger_ms or 0.0) / 1000.0
        self._clock = clock
        self._packer = packer
        self._dispatch = dispatch
        self._open: dict[BatchKey, OpenBatch] = {}

    def add(self, message: Message, queue: MessageQueue | None, waiter: Waiter, deadline_s: float) -> None:
        """Adds a message to its batch, which is sent at once if it is full then.

        The deadline of a batch is that of its first message. Raises MessageIllegal; the batch is unchanged
        then.
        """
        item, unique_key = self._packer.pack_item(message)
        key = BatchKey(message.topic, queue, message.wait_stored)
        batch = self._open.get(key)
        if batch is not None and batch.bytes + len(item) > self._bytes_max:
            self._close(batch)
            batch = None
        if batch is None:
            batch = self._open[key] = OpenBatch(key, message, deadline_s)
            if self._linger_s:
                self._clock.call_later(self._linger_s, self._close, batch)
            else:
                self._clock.call_soon(self._close, batch)
        batch.items.append(item)
        batch.unique_keys.append(unique_key)
        batch.waiters.append(waiter)
        batch.bytes += len(item)
        batch.room_bytes += room_of(message)
        if len(batch.items) >= self._count_max:
            self._close(batch)

    def flush(self) -> None:
        """Sends every open batch now."""
        for batch in list(self._open.values()):
            self._close(batch)

    def _close(self, batch: OpenBatch) -> None:
        """Sends the batch, once: the timer does nothing for a batch that was already sent because it was
        full.
        """
        key = batch.key
        if self._open.get(key) is not batch:
            return
        del self._open[key]
        if len(batch.items) == 1:
            # A lone message needs no batch around it.
            shipment = self._packer.pack_one(
                batch.first, queue=key.queue, deadline_s=batch.deadline_s, unique_key=batch.unique_keys[0]
            )
        else:
            shipment = self._packer.join(
                key.topic,
                batch.items,
                batch.unique_keys,
                wait_stored=key.wait_stored,
                queue=key.queue,
                deadline_s=batch.deadline_s,
            )
        shipment.waiters = batch.waiters
        shipment.room_bytes = batch.room_bytes
        shipment.room_count = len(batch.items)
        self._dispatch(shipment)


class Window:
    """The room for items in flight: acquired before a send starts, released when its result is known."""

    __slots__ = ("_bytes_max", "_count_max", "_emptied", "_waiters", "bytes", "count")

    def __init__(self, *, count_max: int, bytes_max: int) -> None:
        assert count_max > 0
        assert bytes_max > 0
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._emptied: asyncio.Future[None] | None = None
        self.count = 0
        self.bytes = 0

    def try_take(self, size_bytes: int) -> bool:
        """Acquires room for one item now; returns False when the window is full or other callers wait
        already.
        """
        if self._waiters or not self._fits(size_bytes):
            return False
        self.count += 1
        self.bytes += size_bytes
        return True

    async def take(self, size_bytes: int) -> None:
        """Acquires room for one item; waits in turn while there is none."""
        if self.try_take(size_bytes):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size_bytes, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release(size_bytes)
            raise

    def release(self, size_bytes: int, count: int = 1) -> None:
        """Releases the room of `count` items, `size_bytes` together, and wakes the callers whose items fit
        now.
        """
        self.count -= count
        self.bytes -= size_bytes
        assert self.count >= 0
        assert self.bytes >= 0
        if self._waiters:
            self._wake()
        if self._emptied is not None and not self.count:
            self._emptied.set_result(None)
            self._emptied = None

    async def wait_empty(self) -> None:
        """Waits until nothing is in flight; several callers may wait."""
        while self.count:
            if self._emptied is None:
                self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._emptied)

    def _wake(self) -> None:
        while self._waiters:
            size_bytes, waiter = self._waiters[0]
            if not waiter.done():
                if not self._fits(size_bytes):
                    return
                self.count += 1
                self.bytes += size_bytes
                waiter.set_result(None)
            self._waiters.popleft()

    def _fits(self, size_bytes: int) -> bool:
        if self.count >= self._count_max:
            return False
        return self.bytes + size_bytes <= self._bytes_max or self.count == 0


def _make_prepare(options: ProducerOptions) -> Callable[[Message], Message] | None:
    """Returns the function that makes a message of the application the one to send; None if nothing changes
    it. The function raises MessageIllegal for an object that is not a message.
    """
    serializer, before_send = options.serializer, options.before_send
    if serializer is None and before_send is None:
        return None

    def prepare(message: Message) -> Message:
        if not isinstance(message, Message):
            raise MessageIllegal(f"expected a Message, got {message!r:.64}")
        if serializer is not None:
            message = with_body(message, serializer)
        found: object = message if before_send is None else before_send(message)
        if not isinstance(found, Message):
            raise MessageIllegal(f"before_send returned {found!r:.64}: it must return the message to send")
        return found

    return prepare


OnBegun = Callable[[Sequence[Message], asyncio.Future[Any], bool], None]
"""Called with the messages of a send, the future of its outcome, and True for a half message."""


class Outbox:
    """The outbox of one producer. Only the loop's thread uses it."""

    def __init__(
        self, instance: ClientInstance, group: str, options: ProducerOptions, namespace: Namespace
    ) -> None:
        self.instance = instance
        self.group = group
        self.options = options
        self.is_open = False
        self._packer = Packer(instance, options, namespace)
        self.sender = Sender(instance, group, options, self._settle)
        self.window = Window(count_max=options.in_flight_count_max, bytes_max=options.in_flight_bytes_max)
        self.prepare = _make_prepare(options)
        """Makes each message the one to send, before its room is acquired; None costs nothing."""
        self.on_begun: OnBegun | None = None
        """Called for each send that has begun; None costs nothing."""
        self._accumulator: Accumulator | None = None
        if options.batch_linger_ms is not None:
            self._accumulator = Accumulator(options, instance.clock, self._packer, self.sender.dispatch)

    def open(self) -> None:
        """Accepts messages from now on."""
        self.is_open = True

    def close(self) -> None:
        """Accepts no more messages; sends that still wait for a route or a connection fail."""
        self.is_open = False
        self.sender.abandon(ClientError("the producer is closed"))

    def check_open(self) -> None:
        """Raises ClientError when nothing can be sent: not started, closed, another event loop, or the client
        has died.
        """
        if not self.is_open:
            raise ClientError("the producer is not started, or it is closed")
        self.instance.check_alive()

    def start(
        self,
        message: Message,
        queue: MessageQueue | None,
        timeout_s: float | None,
        room: int,
        *,
        system: Mapping[str, str] = {},
        sys_flag: int = 0,
    ) -> asyncio.Future[SendResult]:
        """Starts the send of one prepared message, at once or in a batch; returns the future of its result.

        `room` is the room in the window that the caller has acquired for the message. The caller acquires it
        so that a send awaits only when there is no room. A message with `system` properties is never part of
        a batch.
        """
        waiter: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        try:
            self.check_open()
            if queue is not None:
                _check_queue(queue)
            deadline_s = self._packer.deadline_s(timeout_s)
            if self._accumulator is not None and not (system or must_travel_alone(message, self.options)):
                self._accumulator.add(message, queue, waiter, deadline_s)
                if self.on_begun is not None:
                    self.on_begun((message,), waiter, False)
                return waiter
            shipment = self._packer.pack_one(
                message, queue=queue, deadline_s=deadline_s, system=system, system_flag=sys_flag
            )
        except BaseException:
            self.window.release(room)
            raise
        if self.on_begun is not None:
            self.on_begun((message,), waiter, names.TRAN_MSG in system)
        shipment.waiters = (waiter,)
        shipment.room_bytes, shipment.room_count = room, 1
        self.sender.dispatch(shipment)
        return waiter

    async def start_system(
        self, message: Message, system: Mapping[str, str], sys_flag: int, timeout_s: float | None
    ) -> asyncio.Future[SendResult]:
        """Starts a send as `start`, with properties that only the system may set. Waits for room."""
        if self.prepare is not None:
            message = self.prepare(message)
        room = room_of(message)
        await self.window.take(room)
        return self.start(message, None, timeout_s, room, system=system, sys_flag=sys_flag)

    async def start_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None, timeout_s: float | None
    ) -> asyncio.Future[list[SendResult]]:
        """Starts the send of messages that share a request; returns the future of their results. A single
        message is sent as a plain one. Waits for room.
        """
        if self.prepare is not None:
            messages = [self.prepare(message) for message in messages]
        room = sum(map(room_of, messages))
        await self.window.take(room)
        try:
            self.check_open()
            if queue is not None:
                _check_queue(queue)
            deadline_s = self._packer.deadline_s(timeout_s)
            if len(messages) == 1:
                shipment = self._packer.pack_one(messages[0], queue=queue, deadline_s=deadline_s)
            else:
                shipment = self._packer.pack_batch(messages, queue=queue, deadline_s=deadline_s)
        except BaseException:
            self.window.release(room)
            raise
        waiter: asyncio.Future[list[SendResult]] = asyncio.get_running_loop().create_future()
        if self.on_begun is not None:
            self.on_begun(tuple(messages), waiter, False)
        shipment.list_waiter = waiter
        shipment.room_bytes, shipment.room_count = room, 1
        self.sender.dispatch(shipment)
        return waiter

    async def send_oneway(self, message: Message, queue: MessageQueue | None, view: RouteView) -> None:
        """Sends without an answer; returns once the bytes are queued for the socket. It acquires no room,
        because no result is awaited.
        """
        if queue is not None:
            _check_queue(queue)
        target = queue or self.sender.choose(view)
        address = view.master_address(target.broker_name)
        routes = self.instance.routes
        if address is None:
            routes.refresh_soon(view.topic)
            raise NoRoute(f"broker {target.broker_name!r} has no master for topic {message.topic!r}")
        if self.prepare is not None:
            message = self.prepare(message)
        shipment = self._packer.pack_one(message, queue=queue, deadline_s=self._packer.deadline_s(None))
        shipment.queue = target
        if shipment.version_min:
            await self.instance.learn_version(address)
            if (fault := self.sender.version_fault(shipment, address)) is not None:
                raise fault
        header = shipment.header(self.group, self.options)
        try:
            await broker_send.send_oneway(self.instance.remoting, address, header, shipment.body)
        except BrokerUnreachable:
            routes.refresh_soon(view.topic)
            raise

    async def flush(self) -> None:
        """Waits until every started send has its result."""
        if self._accumulator is not None:
            self._accumulator.flush()
        await self.window.wait_empty()

    def _settle(self, shipment: Shipment) -> None:
        self.window.release(shipment.room_bytes, shipment.room_count)


def _check_queue(queue: object) -> None:
    """Raises ClientError for a value that is not a queue, such as a number, which names no broker."""
    if not isinstance(queue, MessageQueue):
        raise ClientError(
            f"queue must be a MessageQueue, not {queue!r:.64}: Producer.queues returns those of a topic"
        )
