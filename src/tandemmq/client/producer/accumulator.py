"""Collects sends of the same topic, queue and wait policy into one batch request; pure but for its timer.

Each caller keeps its own future, so batching changes nothing but the delay. A batch leaves when it is full,
when its linger time is over, or with a linger of 0 at the end of the loop's turn: what many tasks send in
one turn travels together, and a lone send is not delayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tandemmq.client.options import ProducerOptions
from tandemmq.client.producer.shipment import Waiter, encode_item
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.message import Message
from tandemmq.protocol.topic_names import is_retry_topic
from tandemmq.runtime.ports import Clock


def must_travel_alone(message: Message, options: ProducerOptions) -> bool:
    """True for what cannot or should not be in a batch: delayed, for a retry topic, worth compressing,
    large.
    """
    size = len(message.body)
    threshold = options.compress_from_bytes
    return bool(
        message.delay_level
        or (threshold and size >= threshold)
        or size >= options.batch_bytes_max
        or is_retry_topic(message.topic)
    )


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

    def __init__(self, options: ProducerOptions, clock: Clock, ship: Callable[[OpenBatch], None]) -> None:
        self._options = options
        self._clock = clock
        self._ship = ship
        self._open: dict[BatchKey, OpenBatch] = {}
        self._linger_s = (options.batch_linger_ms or 0.0) / 1000.0

    def add(
        self,
        message: Message,
        queue: MessageQueue | None,
        unique_key: str,
        waiter: Waiter,
        *,
        room_bytes: int,
        deadline_s: float,
    ) -> None:
        """Put a message into its batch, which leaves now if that fills it.

        Raises:  MessageIllegal when no broker would store it; the batch is unchanged then.
        """
        item = encode_item(message, unique_key, self._options)
        key = BatchKey(message.topic, queue, message.wait_stored)
        batch = self._open.get(key)
        if batch is not None and batch.bytes + len(item) > self._options.batch_bytes_max:
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
        batch.room_bytes += room_bytes
        if len(batch.items) >= self._options.batch_count_max:
            self._close(batch)

    def flush(self) -> None:
        """Every open batch leaves now."""
        for batch in list(self._open.values()):
            self._close(batch)

    def _close(self, batch: OpenBatch) -> None:
        """Ship it, once: the timer of a batch that left because it was full finds it gone."""
        if self._open.get(batch.key) is batch:
            del self._open[batch.key]
            self._ship(batch)
