"""A bounded queue between tasks, with a stated behaviour when it is full."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum
from typing import Generic, TypeVar, assert_never

M = TypeVar("M")


class WhenFull(Enum):
    """What `put` does at the capacity."""

    WAIT = "wait"
    REJECT = "reject"
    DROP_OLDEST = "drop oldest"


class MailboxClosed(Exception):
    """Nothing can be put any more, and all that was put has been taken."""


class Mailbox(Generic[M]):
    """First in, first out; any number of takers. `dropped` counts what REJECT and DROP_OLDEST let go."""

    def __init__(self, capacity: int, when_full: WhenFull) -> None:
        assert capacity > 0, capacity
        self.capacity = capacity
        self.dropped = 0
        self._when_full = when_full
        self._items: deque[M] = deque()
        self._is_closed = False
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._items)

    async def put(self, item: M) -> bool:
        """Whether the item is in; False only under REJECT. Raises MailboxClosed."""
        while self._when_full is WhenFull.WAIT and len(self._items) >= self.capacity and not self._is_closed:
            await self._wait()
        return self.put_now(item)

    def put_now(self, item: M) -> bool:
        """As `put` without waiting: under WAIT a full mailbox answers False, too. Raises MailboxClosed."""
        if self._is_closed:
            raise MailboxClosed
        if len(self._items) >= self.capacity:
            match self._when_full:
                case WhenFull.WAIT:
                    return False
                case WhenFull.REJECT:
                    self.dropped += 1
                    return False
                case WhenFull.DROP_OLDEST:
                    self.dropped += 1
                    self._items.popleft()
                case other:
                    assert_never(other)
        self._items.append(item)
        self._wake()
        return True

    async def take(self) -> M:
        """The oldest item, when there is one. Raises MailboxClosed when there will be none."""
        while not self._items:
            if self._is_closed:
                raise MailboxClosed
            await self._wait()
        item = self._items.popleft()
        self._wake()
        return item

    def take_all(self) -> list[M]:
        """Everything that is in now, oldest first."""
        items = list(self._items)
        self._items.clear()
        self._wake()
        return items

    def close(self) -> None:
        """Ends putting; what is in may still be taken."""
        self._is_closed = True
        self._wake()

    async def _wait(self) -> None:
        """Until anything changed. All waiters look again, in the order in which they came."""
        changed = self._changed
        await changed.wait()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
