"""What of one locked queue the application may have: one batch at a time, in offset order.

Invariants: no message of the queue is handed out while an earlier one is handed out and not finished, unless
            both are of one batch; nothing new is handed out without a valid lock.
Source:     spec semantics 10.5.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from tandemmq.client.consumer.inbox import Delivery, Inbox, Source
from tandemmq.runtime.ports import Clock, TimerHandle

LOCK_VALID_S: Final = 30.0
"""A lock that was not confirmed for so long may be another's: half the time for which a broker keeps it."""


class OrderlyGate:
    """Between the reader of one queue and the inbox."""

    __slots__ = (
        "_backlog",
        "_batch_count_max",
        "_clock",
        "_inbox",
        "_locked_at_s",
        "_needs_lock",
        "_out",
        "_pause",
        "_source",
    )

    def __init__(
        self, source: Source, inbox: Inbox, clock: Clock, *, batch_count_max: int, needs_lock: bool
    ) -> None:
        """`needs_lock`: False where no other member can have the queue (broadcasting)."""
        self._source = source
        self._inbox = inbox
        self._clock = clock
        self._batch_count_max = batch_count_max
        self._needs_lock = needs_lock
        self._locked_at_s: float | None = None
        self._backlog: deque[Delivery] = deque()
        self._out: dict[int, Delivery] = {}
        self._pause: TimerHandle | None = None

    @property
    def is_locked(self) -> bool:
        """The lock was confirmed lately enough."""
        if not self._needs_lock:
            return True
        return self._locked_at_s is not None and self._clock.monotonic() - self._locked_at_s < LOCK_VALID_S

    @property
    def is_resting(self) -> bool:
        """The loss of the lock is known."""
        return self._needs_lock and self._locked_at_s is None

    @property
    def is_idle(self) -> bool:
        """The application has nothing of this queue."""
        return not self._out

    def note_locked(self) -> None:
        """The broker has confirmed the lock now."""
        self._locked_at_s = self._clock.monotonic()
        self._feed()

    def note_lost(self) -> None:
        """The lock is another's, or the queue is to be given up: nothing more is handed out."""
        self._locked_at_s = None

    def put(self, deliveries: list[Delivery], size_bytes: int) -> None:
        """Messages behind all that were put before."""
        self._inbox.put((), size_bytes)
        self._backlog.extend(deliveries)
        self._feed()

    def finish(self, queue_offset: int) -> bool:
        """The application is done with a message; False for one that it does not have."""
        if self._out.pop(queue_offset, None) is None:
            return False
        self._feed()
        return True

    def put_back(self, queue_offset: int, delay_s: float) -> int | None:
        """Have this message, and what was handed out behind it, handed out again after the delay.

        How often this one was put back; None when the application does not have it.
        """
        delivery = self._out.get(queue_offset)
        if delivery is None:
            return None
        self.take_back()
        message = delivery.message
        message.note_retry()
        self._return([offset for offset in self._out if offset >= queue_offset])
        self._end_pause()
        self._pause = self._clock.call_later(delay_s, self._go_on)
        return message.retry_count

    def take_back(self) -> None:
        """What is in the inbox waits here again; what the application has stays with it."""
        taken = {delivery.message.queue_offset for delivery in self._inbox.take_back(self._source)}
        self._return([offset for offset in self._out if offset in taken])

    def forget(self) -> None:
        """The reader begins elsewhere, or ends."""
        self._backlog.clear()
        self._out.clear()
        self._end_pause()

    def _return(self, offsets: list[int]) -> None:
        for offset in sorted(offsets, reverse=True):
            self._backlog.appendleft(self._out.pop(offset))

    def _feed(self) -> None:
        if self._out or self._pause is not None or not self._backlog or not self.is_locked:
            return
        batch = [self._backlog.popleft() for _ in range(min(self._batch_count_max, len(self._backlog)))]
        self._out = {delivery.message.queue_offset: delivery for delivery in batch}
        self._inbox.put(batch, 0)

    def _go_on(self) -> None:
        self._pause = None
        self._feed()

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
