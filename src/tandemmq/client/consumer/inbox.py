"""What was pulled and is not finished: where it waits, what of it may be committed, and what of a locked
queue may be handed out.

The inbox has the messages of all queues. It is bounded by what the readers ask for: a count per queue, which
they keep themselves, and the bytes of all queues together, kept here. At a bound the pulling of a queue waits
until the application has finished messages.

`InFlight` is pure and knows one queue. The committed offset is the lowest unfinished message, or the next
offset to pull when nothing is unfinished: a crash repeats messages but never skips one (spec semantics 10.3).
Offsets the broker filtered out are covered by the next offset, so a queue without matching messages moves on
too.

An orderly consumer has an `OrderlyGate` before the inbox for each queue: one batch at a time, in offset
order.

Invariants: no message of a gate's queue is handed out while an earlier one is handed out and not finished,
            unless both are of one batch; nothing new is handed out without a valid lock.
Source:     spec semantics 10.3, 10.5.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from tandemmq.errors import TandemError
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.runtime.ports import Clock, TimerHandle


class MessageSource(Protocol):
    """The reader that pulled a message; it wants to know when the message is finished."""

    def finish(self, message: ReceivedMessage) -> None: ...

    def holds(self, message: ReceivedMessage) -> bool:
        """The message is not finished, and its queue is still read here."""


class Received(NamedTuple):
    """A message and where it came from."""

    source: MessageSource
    message: ReceivedMessage


class Inbox:
    """The inbox of one consumer: its readers fill it, the application empties it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._deliveries: deque[Received] = deque()
        self._errors: deque[TandemError] = deque(maxlen=16)
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._bytes_unfinished = 0
        self.is_closed = False

    def __len__(self) -> int:
        """Messages that were not handed out."""
        return len(self._deliveries)

    # The readers' side

    def put(self, deliveries: Iterable[Received], size_bytes: int) -> None:
        """Add messages; `size_bytes` counts until `free` gives it back."""
        self._deliveries.extend(deliveries)
        self._bytes_unfinished += size_bytes
        self._arrived.set()

    def put_back(self, deliveries: Iterable[Received]) -> None:
        """Have messages that were taken taken again, before all others. Their bytes count still."""
        self._deliveries.extendleft(reversed(list(deliveries)))
        self._arrived.set()

    def put_error(self, error: TandemError) -> None:
        """Something that only the application can mend; raised once, at its next request."""
        self._errors.append(error)
        self._arrived.set()

    def drop(self, source: MessageSource) -> None:
        """Forget the messages of a queue that were not handed out. The queue has been given up, or is read
        again from another offset.
        """
        self.take_back(source)

    def take_back(self, source: MessageSource) -> list[Received]:
        """Remove and return the messages of a queue that were not handed out. Their bytes still count."""
        taken = [delivery for delivery in self._deliveries if delivery.source is source]
        kept = [delivery for delivery in self._deliveries if delivery.source is not source]
        self._deliveries.clear()
        self._deliveries.extend(kept)
        return taken

    def free(self, size_bytes: int) -> None:
        """Messages of that size are finished or dropped: others may be pulled."""
        self._bytes_unfinished -= size_bytes
        assert self._bytes_unfinished >= 0
        self._room.set()

    @property
    def has_room(self) -> bool:
        return self._bytes_unfinished < self._bytes_max

    async def wait_for_room(self) -> None:
        """Returns when something was finished since the call; the caller looks again whether it fits."""
        self._room.clear()
        await self._room.wait()

    # The application's side

    def take(self) -> Received | None:
        """The next message, or None when there is none now; raises an error that was put."""
        if self._errors:
            raise self._errors.popleft()
        if self._deliveries and not self.is_closed:
            return self._deliveries.popleft()
        return None

    def take_some(self, count_max: int) -> list[Received]:
        """The next messages, as many as there are; raises as `take`."""
        taken: list[Received] = []
        while len(taken) < count_max and (delivery := self.take()) is not None:
            taken.append(delivery)
        return taken

    def take_together(self, count_max: int) -> list[Received]:
        """The next message, and those behind it that are of the same queue; raises as `take`."""
        taken = self.take_some(1)
        while taken and len(taken) < count_max and self._deliveries:
            if self._deliveries[0].source is not taken[0].source:
                break
            taken.append(self._deliveries.popleft())
        return taken

    async def wait(self) -> None:
        """Returns when there is something to take, or the inbox is closed."""
        while not (self._deliveries or self._errors or self.is_closed):
            self._arrived.clear()
            await self._arrived.wait()

    def close(self) -> None:
        """End all waiting; what was not handed out stays unfinished."""
        self.is_closed = True
        self._arrived.set()
        self._room.set()


class InFlight:
    """The unfinished messages of one owned queue, in offset order."""

    __slots__ = ("_sizes", "bytes", "next_offset")

    def __init__(self, start_offset: int) -> None:
        self._sizes: OrderedDict[int, tuple[int, object]] = OrderedDict()
        self.bytes = 0
        self.next_offset = start_offset

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, offset: int, size_bytes: int, message: object = None) -> None:
        """One more message was pulled; offsets come in rising order."""
        assert offset >= self.next_offset, f"offset {offset} was pulled twice, next is {self.next_offset}"
        self._sizes[offset] = size_bytes, message
        self.bytes += size_bytes
        self.next_offset = offset + 1

    def advance(self, next_offset: int) -> None:
        """The broker says that nothing for us lies below `next_offset`; never goes back."""
        if next_offset > self.next_offset:
            self.next_offset = next_offset

    def is_other(self, offset: int, message: object) -> bool:
        """Another message is unfinished here: we were moved, and the broker's log has something else now."""
        unfinished = self._sizes.get(offset)
        return unfinished is not None and unfinished[1] is not message

    def holds(self, offset: int, message: object) -> bool:
        """This very message is unfinished here."""
        unfinished = self._sizes.get(offset)
        return unfinished is not None and unfinished[1] is message

    def finish(self, offset: int) -> bool:
        """The application is done with the message; False when it was not (or no longer) unfinished."""
        unfinished = self._sizes.pop(offset, None)
        if unfinished is None:
            return False
        self.bytes -= unfinished[0]
        return True

    @property
    def committed_offset(self) -> int:
        """Where another consumer would have to go on: everything below is finished."""
        for offset in self._sizes:
            return offset
        return self.next_offset

    @property
    def span(self) -> int:
        """From the lowest unfinished offset to the next one to pull; large when one message is stuck."""
        return self.next_offset - self.committed_offset


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
        self, source: MessageSource, inbox: Inbox, clock: Clock, *, batch_count_max: int, needs_lock: bool
    ) -> None:
        """`needs_lock`: False where no other member can have the queue (broadcasting)."""
        self._source = source
        self._inbox = inbox
        self._clock = clock
        self._batch_count_max = batch_count_max
        self._needs_lock = needs_lock
        self._locked_at_s: float | None = None
        self._backlog: deque[Received] = deque()
        self._out: dict[int, Received] = {}
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

    def put(self, deliveries: list[Received], size_bytes: int) -> None:
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
