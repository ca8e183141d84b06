"""Pulled and unacknowledged messages: the inbox (`Inbox`), the offsets to commit (`InFlight`), and the
delivery of locked queues (`OrderlyGate`).

The inbox holds the messages of all queues. Two limits bound it: a count per queue, which each reader checks,
and the bytes of all queues together, counted here. At a limit the pulling of a queue pauses until the
application acknowledges messages.

`InFlight` is pure and covers one queue. The committed offset is the lowest unacknowledged message, or the
next offset to pull if there is none: a crash repeats messages but never skips one (spec semantics 10.3). The
next offset also covers messages that the broker filtered out, so a queue without matching messages advances
too.

For an orderly consumer, each queue has an `OrderlyGate` before the inbox: one batch at a time, in offset
order.

Invariants: no message of a gate's queue is delivered while an earlier one is delivered and unacknowledged,
            unless both belong to one batch; nothing new is delivered without a valid lock.
Source:     spec semantics 10.3, 10.5.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple, Protocol

from tandemmq.errors import TandemError
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.runtime.ports import Clock, TimerHandle


class MessageSource(Protocol):
    """The reader that pulled a message; it is notified when the message is acknowledged."""

    def finish(self, message: ReceivedMessage) -> None: ...

    def holds(self, message: ReceivedMessage) -> bool:
        """Returns True if the message is unacknowledged and its queue is still read here."""


class Received(NamedTuple):
    """A message and its reader."""

    source: MessageSource
    message: ReceivedMessage


class Inbox:
    """The inbox of one consumer: the readers fill it, the application empties it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._deliveries: deque[Received] = deque()
        self._errors: deque[TandemError] = deque(maxlen=16)
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._bytes_unfinished = 0
        self.is_closed = False

    def __len__(self) -> int:
        """Returns the number of undelivered messages."""
        return len(self._deliveries)

    # Called by the readers

    def put(self, deliveries: Iterable[Received], size_bytes: int) -> None:
        """Adds messages; `size_bytes` counts until `free` releases it."""
        self._deliveries.extend(deliveries)
        self._bytes_unfinished += size_bytes
        self._arrived.set()

    def put_back(self, deliveries: Iterable[Received]) -> None:
        """Returns delivered messages to the front of the inbox. Their bytes are still counted."""
        self._deliveries.extendleft(reversed(list(deliveries)))
        self._arrived.set()

    def put_error(self, error: TandemError) -> None:
        """Adds an error that only the application can handle; its next request raises it once."""
        self._errors.append(error)
        self._arrived.set()

    def requeue(self, source: MessageSource) -> list[Received]:
        """Removes and returns the undelivered messages of a queue that was released, pauses, or is read again
        from another offset. Their bytes are still counted.
        """
        taken = [delivery for delivery in self._deliveries if delivery.source is source]
        kept = [delivery for delivery in self._deliveries if delivery.source is not source]
        self._deliveries.clear()
        self._deliveries.extend(kept)
        return taken

    def free(self, size_bytes: int) -> None:
        """Releases the bytes of acknowledged or dropped messages, so that others may be pulled."""
        self._bytes_unfinished -= size_bytes
        assert self._bytes_unfinished >= 0
        self._room.set()

    @property
    def has_room(self) -> bool:
        return self._bytes_unfinished < self._bytes_max

    async def wait_for_room(self) -> None:
        """Waits until bytes were released after this call; the caller checks again if its messages fit."""
        self._room.clear()
        await self._room.wait()

    # Called by the application

    def take(self) -> Received | None:
        """Returns the next message, or None when there is none now; raises an error that was added."""
        if self._errors:
            raise self._errors.popleft()
        if self._deliveries and not self.is_closed:
            return self._deliveries.popleft()
        return None

    def take_some(self, count_max: int) -> list[Received]:
        """Returns up to `count_max` available messages; raises as `take`."""
        taken: list[Received] = []
        while len(taken) < count_max and (delivery := self.take()) is not None:
            taken.append(delivery)
        return taken

    def take_together(self, count_max: int) -> list[Received]:
        """Returns the next message and the following ones of the same queue; raises as `take`."""
        taken = self.take_some(1)
        while taken and len(taken) < count_max and self._deliveries:
            if self._deliveries[0].source is not taken[0].source:
                break
            taken.append(self._deliveries.popleft())
        return taken

    async def wait(self) -> None:
        """Waits until a message or an error is available, or the inbox is closed."""
        while not (self._deliveries or self._errors or self.is_closed):
            self._arrived.clear()
            await self._arrived.wait()

    def close(self) -> None:
        """Ends all waiting; undelivered messages stay unacknowledged."""
        self.is_closed = True
        self._arrived.set()
        self._room.set()


class InFlight:
    """The unacknowledged messages of one assigned queue, in offset order."""

    __slots__ = ("_sizes", "bytes", "next_offset")

    def __init__(self, start_offset: int) -> None:
        self._sizes: OrderedDict[int, tuple[int, object]] = OrderedDict()
        self.bytes = 0
        self.next_offset = start_offset

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, offset: int, size_bytes: int, message: object = None) -> None:
        """Adds a pulled message; offsets must increase."""
        assert offset >= self.next_offset, f"offset {offset} was pulled twice, next is {self.next_offset}"
        self._sizes[offset] = size_bytes, message
        self.bytes += size_bytes
        self.next_offset = offset + 1

    def advance(self, next_offset: int) -> None:
        """Advances the next offset, because the broker has no matching message below it; never moves back."""
        if next_offset > self.next_offset:
            self.next_offset = next_offset

    def is_other(self, offset: int, message: object) -> bool:
        """Returns True if the unacknowledged message at this offset is another one: the reader was moved, and
        the broker's log has changed there.
        """
        unfinished = self._sizes.get(offset)
        return unfinished is not None and unfinished[1] is not message

    def holds(self, offset: int, message: object) -> bool:
        """Returns True if exactly this message is unacknowledged."""
        unfinished = self._sizes.get(offset)
        return unfinished is not None and unfinished[1] is message

    def finish(self, offset: int) -> bool:
        """Acknowledges the message; returns False if it was not unacknowledged."""
        unfinished = self._sizes.pop(offset, None)
        if unfinished is None:
            return False
        self.bytes -= unfinished[0]
        return True

    @property
    def committed_offset(self) -> int:
        """The offset at which another consumer would have to continue: every message below it is
        acknowledged.
        """
        for offset in self._sizes:
            return offset
        return self.next_offset

    @property
    def span(self) -> int:
        """The distance from the lowest unacknowledged offset to the next one to pull; large when one message
        is stuck.
        """
        return self.next_offset - self.committed_offset


LOCK_VALID_S: Final = 30.0
"""The time in seconds after which an unconfirmed lock may belong to another member: half the time for which a
broker keeps it.
"""


@dataclass(slots=True, eq=False)
class OrderlyGate:
    """Controls delivery between the reader of one queue and the inbox."""

    source: MessageSource
    inbox: Inbox
    clock: Clock
    _: KW_ONLY
    batch_count_max: int
    needs_lock: bool
    """False where no other member can have the queue (broadcasting)."""
    _locked_at_s: float | None = None
    _backlog: deque[Received] = field(default_factory=deque)
    _out: dict[int, Received] = field(default_factory=dict)
    _pause: TimerHandle | None = None

    @property
    def is_locked(self) -> bool:
        """True if the lock was confirmed within `LOCK_VALID_S`, or no lock is needed."""
        if not self.needs_lock:
            return True
        return self._locked_at_s is not None and self.clock.monotonic() - self._locked_at_s < LOCK_VALID_S

    @property
    def is_lock_lost(self) -> bool:
        """True if the lock is known to be lost."""
        return self.needs_lock and self._locked_at_s is None

    @property
    def is_idle(self) -> bool:
        """True if the application has no unacknowledged message of this queue."""
        return not self._out

    def on_locked(self) -> None:
        """Records that the broker has confirmed the lock now, and resumes delivery."""
        self._locked_at_s = self.clock.monotonic()
        self._feed()

    def on_lock_lost(self) -> None:
        """Records that another member has the lock, or that the queue will be released: delivery stops."""
        self._locked_at_s = None

    def put(self, deliveries: list[Received], size_bytes: int) -> None:
        """Adds messages after all earlier ones."""
        self.inbox.put((), size_bytes)
        self._backlog.extend(deliveries)
        self._feed()

    def finish(self, queue_offset: int) -> bool:
        """Acknowledges a message; returns False if the application does not have it."""
        if self._out.pop(queue_offset, None) is None:
            return False
        self._feed()
        return True

    def put_back(self, queue_offset: int, delay_s: float) -> int | None:
        """Puts this message, and those delivered after it, back for delivery after the delay.

        Returns the number of times this message was put back; None if the application does not have it.
        """
        delivery = self._out.get(queue_offset)
        if delivery is None:
            return None
        self.requeue()
        message = delivery.message
        message.note_retry()
        self._return([offset for offset in self._out if offset >= queue_offset])
        self._end_pause()
        self._pause = self.clock.call_later(delay_s, self._end_delay)
        return message.retry_count

    def requeue(self) -> None:
        """Moves the messages in the inbox back to the backlog; delivered ones stay with the application."""
        taken = {delivery.message.queue_offset for delivery in self.inbox.requeue(self.source)}
        self._return([offset for offset in self._out if offset in taken])

    def forget(self) -> None:
        """Drops all messages, because the reader moves to another offset or ends."""
        self._backlog.clear()
        self._out.clear()
        self._end_pause()

    def _return(self, offsets: list[int]) -> None:
        for offset in sorted(offsets, reverse=True):
            self._backlog.appendleft(self._out.pop(offset))

    def _feed(self) -> None:
        if self._out or self._pause is not None or not self._backlog or not self.is_locked:
            return
        batch = [self._backlog.popleft() for _ in range(min(self.batch_count_max, len(self._backlog)))]
        self._out = {delivery.message.queue_offset: delivery for delivery in batch}
        self.inbox.put(batch, 0)

    def _end_delay(self) -> None:
        self._pause = None
        self._feed()

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
