"""Messages that were pulled and wait to be handed out, and the room for pulling more.

Bounded by what the readers ask for: a count per queue, which they keep themselves, and the bytes of all
queues together, kept here. At a bound the pulling of a queue waits until the application has finished
messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from tandemmq.errors import TandemError
from tandemmq.protocol.message import ReceivedMessage


class Source(Protocol):
    """The reader that pulled a message; it wants to know when the message is finished."""

    def finish(self, message: ReceivedMessage) -> None: ...

    def holds(self, message: ReceivedMessage) -> bool:
        """The message is not finished, and its queue is still read here."""


class Delivery(NamedTuple):
    """A message and where it came from."""

    source: Source
    message: ReceivedMessage


class Inbox:
    """The inbox of one consumer: its readers fill it, the application empties it."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._deliveries: deque[Delivery] = deque()
        self._errors: deque[TandemError] = deque(maxlen=16)
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._bytes_unfinished = 0
        self.is_closed = False

    def __len__(self) -> int:
        """Messages that were not handed out."""
        return len(self._deliveries)

    # The readers' side

    def put(self, deliveries: Iterable[Delivery], size_bytes: int) -> None:
        """Add messages; `size_bytes` counts until `free` gives it back."""
        self._deliveries.extend(deliveries)
        self._bytes_unfinished += size_bytes
        self._arrived.set()

    def put_back(self, deliveries: Iterable[Delivery]) -> None:
        """Have messages that were taken taken again, before all others. Their bytes count still."""
        self._deliveries.extendleft(reversed(list(deliveries)))
        self._arrived.set()

    def put_error(self, error: TandemError) -> None:
        """Something that only the application can mend; raised once, at its next request."""
        self._errors.append(error)
        self._arrived.set()

    def drop(self, source: Source) -> None:
        """Forget the messages of a queue that were not handed out. The queue has been given up, or is read
        again from another offset.
        """
        self.take_back(source)

    def take_back(self, source: Source) -> list[Delivery]:
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

    def take(self) -> Delivery | None:
        """The next message, or None when there is none now; raises an error that was put."""
        if self._errors:
            raise self._errors.popleft()
        if self._deliveries and not self.is_closed:
            return self._deliveries.popleft()
        return None

    def take_some(self, count_max: int) -> list[Delivery]:
        """The next messages, as many as there are; raises as `take`."""
        taken: list[Delivery] = []
        while len(taken) < count_max and (delivery := self.take()) is not None:
            taken.append(delivery)
        return taken

    def take_together(self, count_max: int) -> list[Delivery]:
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
