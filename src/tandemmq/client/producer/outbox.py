"""Outbox: sends the messages of one producer, and knows when none of them is under way.

Each takes room in the window, becomes a shipment or part of an open batch, and goes to the sender; its room
is given back when its result is known. A message that cannot be packed gives its room back at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tandemmq.api import broker_send
from tandemmq.client.instance import ClientInstance
from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.accumulator import Accumulator
from tandemmq.client.producer.packer import Packer, must_travel_alone, room_of
from tandemmq.client.producer.results import SendResult
from tandemmq.client.producer.sender import Sender
from tandemmq.client.producer.shipment import Shipment
from tandemmq.client.route_view import RouteView
from tandemmq.client.window import Window
from tandemmq.errors import ClientError, NoRoute
from tandemmq.protocol import properties as names
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.message import Message

if TYPE_CHECKING:
    from tandemmq.client.tracing import SendObserver


class Outbox:
    """The outbox of one producer; only its loop's thread uses it."""

    def __init__(self, instance: ClientInstance, group: str, options: ProducerOptions) -> None:
        self._instance = instance
        self._group = group
        self._options = options
        self.is_open = False
        self._packer = Packer(instance, options)
        self._sender = Sender(instance, group, options, self._settle)
        self.window = Window(count_max=options.in_flight_count_max, bytes_max=options.in_flight_bytes_max)
        self._before_send = options.before_send
        self.observer: SendObserver | None = None
        """Told of each send that has begun; None costs nothing."""
        self._accumulator: Accumulator | None = None
        if options.batch_linger_ms is not None:
            self._accumulator = Accumulator(options, instance.clock, self._packer, self._sender.dispatch)

    def open(self) -> None:
        """Take messages from now on."""
        self.is_open = True

    def close(self) -> None:
        """Take no more; what still waits for a route or a connection fails."""
        self.is_open = False
        self.abandon(ClientError("the producer is closed"))

    def abandon(self, error: ClientError) -> None:
        """Fail the messages that wait for a route or a connection, because neither will come."""
        self._sender.abandon(error)

    def check_open(self) -> None:
        """Raises ClientError when nothing can be sent: not started, closed, or the client has died."""
        if not self.is_open:
            raise ClientError("the producer is not started, or closed")
        if self._instance.failure is not None:
            self._instance.check_alive()

    def start(
        self, message: Message, queue: MessageQueue | None, timeout_s: float | None, room: int
    ) -> asyncio.Future[SendResult]:
        """The future result of one message, which is on its way now or in a batch that soon will be.

        `room`: what the caller has taken of the window for it. The caller does so, because then a send waits
        only when there is no room, and costs nothing more when there is.
        """
        waiter: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        try:
            self.check_open()
            if queue is not None:
                _check_queue(queue)
            if self._before_send is not None:
                message = self._before_send(message)
            deadline_s = self._packer.deadline_s(timeout_s)
            if self._accumulator is not None and not must_travel_alone(message, self._options):
                self._accumulator.add(message, queue, waiter, deadline_s)
                if self.observer is not None:
                    self.observer.watch((message,), waiter)
                return waiter
            shipment = self._packer.pack_one(message, queue=queue, deadline_s=deadline_s)
        except BaseException:
            self.window.give_back(room)
            raise
        if self.observer is not None:
            self.observer.watch((message,), waiter)
        shipment.waiters = (waiter,)
        shipment.room_bytes, shipment.room_count = room, 1
        self._sender.dispatch(shipment)
        return waiter

    async def start_system(
        self, message: Message, system: Mapping[str, str], sys_flag: int, timeout_s: float | None
    ) -> asyncio.Future[SendResult]:
        """As `start`, with properties that only the system may set; never part of a batch. Waits for room."""
        room = room_of(message)
        await self.window.take(room)
        try:
            self.check_open()
            if self._before_send is not None:
                message = self._before_send(message)
            shipment = self._packer.pack_one(
                message,
                queue=None,
                deadline_s=self._packer.deadline_s(timeout_s),
                system=system,
                system_flag=sys_flag,
            )
        except BaseException:
            self.window.give_back(room)
            raise
        waiter: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        if self.observer is not None:
            self.observer.watch((message,), waiter, is_half=names.TRAN_MSG in system)
        shipment.waiters = (waiter,)
        shipment.room_bytes, shipment.room_count = room, 1
        self._sender.dispatch(shipment)
        return waiter

    async def start_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None, timeout_s: float | None
    ) -> asyncio.Future[list[SendResult]]:
        """The future results of messages that share a request; a lone one travels as a plain message. Waits
        for room.
        """
        room = sum(map(room_of, messages))
        await self.window.take(room)
        try:
            self.check_open()
            if queue is not None:
                _check_queue(queue)
            if self._before_send is not None:
                messages = [self._before_send(message) for message in messages]
            deadline_s = self._packer.deadline_s(timeout_s)
            if len(messages) == 1:
                shipment = self._packer.pack_one(messages[0], queue=queue, deadline_s=deadline_s)
            else:
                shipment = self._packer.pack_batch(messages, queue=queue, deadline_s=deadline_s)
        except BaseException:
            self.window.give_back(room)
            raise
        waiter: asyncio.Future[list[SendResult]] = asyncio.get_running_loop().create_future()
        if self.observer is not None:
            self.observer.watch(tuple(messages), waiter)
        shipment.list_waiter = waiter
        shipment.room_bytes, shipment.room_count = room, 1
        self._sender.dispatch(shipment)
        return waiter

    async def send_oneway(self, message: Message, queue: MessageQueue | None, view: RouteView) -> None:
        """Returns when the bytes are queued for the socket; takes no room, because nothing is waited for."""
        if queue is not None:
            _check_queue(queue)
        target = queue or self._sender.choose(view)
        address = view.master_address(target.broker_name)
        if address is None:
            raise NoRoute(f"broker {target.broker_name!r} has no master for topic {message.topic!r}")
        if self._before_send is not None:
            message = self._before_send(message)
        shipment = self._packer.pack_one(message, queue=target, deadline_s=self._packer.deadline_s(None))
        header = shipment.header(self._group, self._options)
        await broker_send.send_oneway(self._instance.remoting, address, header, shipment.body)

    async def flush(self) -> None:
        """Returns when every send that was started has its result."""
        if self._accumulator is not None:
            self._accumulator.flush()
        await self.window.wait_empty()

    def _settle(self, shipment: Shipment) -> None:
        self.window.give_back(shipment.room_bytes, shipment.room_count)


def _check_queue(queue: object) -> None:
    """Raises ClientError for a number, say, which names no broker."""
    if not isinstance(queue, MessageQueue):
        raise ClientError(
            f"queue must be a MessageQueue, not {queue!r:.64}: Producer.queues gives those of a topic"
        )
