"""A log offset that rises unless the log is cut, and the only way to wait for it.

Owns:    the value, its followers and its waiters. Followers are called synchronously on each raise, in the
         order of their registration; a follower must be short and must not raise. Only truncation lowers the
         value: it fails every waiter above the cut with `Truncated`. Independent of files, replicas and
         messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tandemmq.errors import StoreClosed, TandemError, Truncated

Follower = Callable[[int], None]


class Watermark:
    """An offset that rises unless the log is cut; `name` appears in errors."""

    __slots__ = ("_closed", "_followers", "_waiters", "cut_count", "name", "value")

    def __init__(self, name: str, value: int = 0) -> None:
        assert value >= 0, f"{name}: begins at {value}"
        self.name = name
        self.value = value
        self.cut_count = 0
        """The number of times the value was lowered."""
        self._followers: tuple[Follower, ...] = ()
        self._waiters: list[tuple[int, asyncio.Future[int]]] = []
        self._closed = False

    def raise_to(self, value: int) -> None:
        """Raises the mark and notifies followers and waiters; a value not above the mark changes nothing."""
        if value <= self.value:
            return
        self.value = value
        for follower in self._followers:
            follower(value)
        assert self.value >= value, f"{self.name}: a follower lowered it to {self.value}, below {value}"
        if self._waiters:
            self._release(value)

    def follow(self, callback: Follower) -> Callable[[], None]:
        """Calls `callback(value)` on each raise; returns a function that removes the callback."""
        self._followers = (*self._followers, callback)

        def unfollow() -> None:
            self._followers = tuple(f for f in self._followers if f is not callback)

        return unfollow

    async def wait_for(self, value: int) -> int:
        """Waits until the mark is at least `value`, and returns the mark.

        Raises:  Truncated when the log is cut below `value`; StoreClosed when the store ends first.
        """
        if self.value >= value:
            return self.value
        if self._closed:
            raise StoreClosed(f"{self.name}: the store is closed")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters.append((value, future))
        return await future

    def truncate_to(self, value: int) -> None:
        """Lowers the mark; waiters above it end with Truncated."""
        assert 0 <= value <= self.value, f"{self.name}: truncation to {value}, it is at {self.value}"
        self.value = value
        self.cut_count += 1
        self._fail(Truncated(f"{self.name}: the log was cut at {value}"), above=value)
        assert all(target <= value for target, _ in self._waiters), f"{self.name}: a waiter's target is cut"

    def close(self) -> None:
        """Ends all waiters with StoreClosed and removes all followers."""
        self._closed = True
        self._followers = ()
        self._fail(StoreClosed(f"{self.name}: the store is closed"), above=-1)
        assert not self._waiters, f"{self.name}: a waiter remains after the store was closed"

    def _release(self, value: int) -> None:
        ready = [future for target, future in self._waiters if target <= value]
        self._waiters = [waiter for waiter in self._waiters if waiter[0] > value]
        for future in ready:
            if not future.done():
                future.set_result(value)

    def _fail(self, error: TandemError, *, above: int) -> None:
        failed = [future for target, future in self._waiters if target > above]
        self._waiters = [waiter for waiter in self._waiters if waiter[0] <= above]
        for future in failed:
            if not future.done():
                future.set_exception(error)
