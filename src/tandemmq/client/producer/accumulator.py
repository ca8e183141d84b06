"""Collects sends of the same topic, queue and wait policy into one batch request.

Each caller keeps its own future, so batching changes nothing but the delay. A batch leaves when it is full,
when its linger time is over, or with a linger of 0 at the end of the loop's turn: what many tasks send in
one turn travels together, and a lone send is not delayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.packer import Packer, room_of
from tandemmq.client.producer.shipment import Shipment, Waiter
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.message import Message
from tandemmq.runtime.ports import Clock


class BatchKey(NamedTuple):
    """What messages of one batch have in common. A queue of None: any queue, the same for all of the
    batch.
    """

    topic: str
    queue: MessageQueue | None
    wait_stored: bool


class OpenBatch:
    """Messages that wait to leave together."""

    __slots__ = ("bytes", "deadline_s", "first", "items", "key", "room_bytes", "unique_keys", "waiters")

    def __init__(self, key: BatchKey, first: Message, deadline_s: float) -> None:
        self.key = key
        self.first = first
        self.deadline_s = deadline_s
        self.items: list[bytes] = []
        self.unique_keys: list[str] = []
        self.waiters: list[Waiter] = []
        self.bytes = 0
        self.room_bytes = 0


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
        """Put a message into its batch, which leaves now if that fills it.

        The deadline of a batch is that of its first message. Raises MessageIllegal, the batch being
        unchanged.
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
        """Every open batch leaves now."""
        for batch in list(self._open.values()):
            self._close(batch)

    def _close(self, batch: OpenBatch) -> None:
        """Let it leave, once: the timer of a batch that left because it was full finds it gone."""
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
