"""Progress of a delivery that becomes valid only once the delivered copies are safe: pure.

A copy that lies in the page cache, or that a slave has not got, may still be lost; were the progress ahead of
it, the message would be lost with it. So progress waits until the log is flushed, and acknowledged by the
slaves that are in sync, up to the end of what it speaks of. After a kill the rest is delivered again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

PROGRESS_COUNT_MAX = 65_536


def safe_end(*, flushed: int, appended: int, acknowledged: Iterable[int], gap_bytes_max: int) -> int:
    """The log offset below which nothing is lost by a power cut or by losing the master.

    A slave that is `gap_bytes_max` behind, or ahead of the log, does not count (spec replication 4.8).
    """
    near = [offset for offset in acknowledged if 0 <= appended - offset < gap_bytes_max]
    return min([flushed, *near])


class Progress(Generic[T]):
    """Values in the order of the log, each with the end of what it speaks of."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, T]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        """What is not valid yet, oldest first."""
        return (value for _, value in self._waiting)

    @property
    def is_full(self) -> bool:
        """No more deliveries until some of them are safe."""
        return len(self._waiting) >= PROGRESS_COUNT_MAX

    def add(self, log_end: int, value: T, *, replaces: bool = False) -> None:
        """`value` is valid when the log is safe up to `log_end`.

        `replaces`: it says all that an earlier value for the same place says.
        """
        assert not self._waiting or log_end >= self._waiting[-1][0], (log_end, self._waiting[-1][0])
        if replaces and self._waiting and self._waiting[-1][0] == log_end:
            self._waiting.pop()
        self._waiting.append((log_end, value))

    def settle(self, safe: int) -> list[T]:
        """The values that became valid, oldest first."""
        settled: list[T] = []
        while self._waiting and self._waiting[0][0] <= safe:
            settled.append(self._waiting.popleft()[1])
        return settled
