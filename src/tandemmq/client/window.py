"""How much may be in flight: a bound by count and by bytes; at the bound callers wait in turn.

One item larger than the whole byte bound is let through alone, so that a bound set too small slows a
producer down but never blocks it for ever.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Window:
    """Room for items in flight. Taken before a send starts, given back when its result is known."""

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
        """Take room for one item now, or say no: the window is full or others wait already."""
        if self._waiters or not self._fits(size_bytes):
            return False
        self.count += 1
        self.bytes += size_bytes
        return True

    async def take(self, size_bytes: int) -> None:
        """Take room for one item; waits in turn while there is none."""
        if self.try_take(size_bytes):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((size_bytes, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.give_back(size_bytes)
            raise

    def give_back(self, size_bytes: int, count: int = 1) -> None:
        """Return the room of `count` items, `size_bytes` together, and wake those who now fit."""
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
        """Returns when nothing is in flight; several may wait."""
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
