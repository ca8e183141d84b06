"""Whether a slave's log ends in bytes that its master has too: the verdict, and how to find a difference.

A master that lost its tail and grew past a slave's end would otherwise be followed from the middle of
another history: offsets alone cannot tell (spec replication 4.10). Two of ours compare checksums of the last
bytes before the slave follows.
Knows not: sockets, files; checksums come from the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

ChecksumOf = Callable[[int, int], Awaitable[int]]
"""(log_offset, size_bytes) -> CRC-32 of those bytes of one log, which must hold them all."""


class TailOutcome(Enum):
    """What a slave knows about its end before it follows."""

    SAME = "the last bytes are the master's"
    NOT_COMPARED = "not compared"
    DIFFERENT = "the master has other bytes at the same place"
    SLAVE_AHEAD = "the slave holds more than its master"
    TOO_OLD = "the master no longer keeps the slave's next byte"
    FAILED = "the master could not be asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class TailVerdict:
    """`log_offset`: the first difference, the master's end or its start, as the outcome says; else the own
    end. `master_start`: where the master's log begins, None when it was not told. `life`: which start of the
    master was asked, "" when it could not tell.
    """

    outcome: TailOutcome
    log_offset: int
    detail: str = ""
    master_start: int | None = None
    life: str = ""


async def find_difference(ours: ChecksumOf, theirs: ChecksumOf, start: int, end: int) -> int | None:
    """The first byte of [start, end) in which two logs differ; None if there is none.

    Strategy:  halves, so about log2 of the size in requests, and twice the size in bytes.
    """
    assert start <= end
    if start == end or await ours(start, end - start) == await theirs(start, end - start):
        return None
    while end - start > 1:
        middle = (start + end) // 2
        if await ours(start, middle - start) == await theirs(start, middle - start):
            start = middle
        else:
            end = middle
    return start
