"""A log offset that rises unless the log is cut.

Owns:    the value and its followers. Followers are called synchronously on each raise, in the order of their
         registration; a follower must be short and must not raise. Only truncation lowers the value.
         Independent of files, replicas and messages.
"""

from __future__ import annotations

from collections.abc import Callable

Follower = Callable[[int], None]


class Watermark:
    """An offset that rises unless the log is cut; `name` appears in errors."""

    __slots__ = ("_followers", "cut_count", "name", "value")

    def __init__(self, name: str, value: int = 0) -> None:
        assert value >= 0, f"{name}: begins at {value}"
        self.name = name
        self.value = value
        self.cut_count = 0
        """The number of times the value was lowered."""
        self._followers: tuple[Follower, ...] = ()

    def raise_to(self, value: int) -> None:
        """Raises the mark and notifies followers; a value not above the mark changes nothing."""
        if value <= self.value:
            return
        self.value = value
        for follower in self._followers:
            follower(value)
        assert self.value >= value, f"{self.name}: a follower lowered it to {self.value}, below {value}"

    def follow(self, callback: Follower) -> Callable[[], None]:
        """Calls `callback(value)` on each raise; returns a function that removes the callback."""
        self._followers = (*self._followers, callback)

        def unfollow() -> None:
            self._followers = tuple(f for f in self._followers if f is not callback)

        return unfollow

    def truncate_to(self, value: int) -> None:
        """Lowers the mark."""
        assert 0 <= value <= self.value, f"{self.name}: truncation to {value}, it is at {self.value}"
        self.value = value
        self.cut_count += 1

    def close(self) -> None:
        """Removes all followers."""
        self._followers = ()
