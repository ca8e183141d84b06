"""Checks whether the clients' view of a queue is linearizable: one list, which each operation changes or
reads at one moment between its call and its answer. Pure.

Invariants: the answer is exact: tests compare it with a search over all orders.
Strategy:   an append's answer contains its offset. Thus the order of the appends is known, and so is the
            position of a read that saw the end of the queue. The order is consistent with time unless a later
            operation was answered before an earlier one was called; one pass with the latest call so far
            detects that. An unanswered operation may have happened once, or never.
Knows not:  the identity of clients, losses, several queues: each queue is a history of its own.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Append(NamedTuple):
    """One send. If it was not answered, `offset` is None and `end_s` is inf."""

    value: int
    begin_s: float
    end_s: float = math.inf
    offset: int | None = None


class Read(NamedTuple):
    """The values from `offset` on; `is_end`: it also saw that the queue ends after them."""

    offset: int
    values: tuple[int, ...]
    begin_s: float
    end_s: float
    is_end: bool = False


def contradiction(appends: Sequence[Append], reads: Sequence[Read]) -> str:
    """Returns "" if the history is linearizable, else a contradiction: an offset with two values, a value
    that was never sent, or an operation that was answered before the call of one that it follows.
    """
    placed = _appends_by_offset(appends, reads)
    if isinstance(placed, str):
        return placed
    at_length: defaultdict[int, list[Read]] = defaultdict(list)
    for read in reads:
        at_length[read.offset + len(read.values)].append(read)
    latest: Append | Read | None = None  # the latest call among all operations before this one
    for length in range(len(placed) + 1):
        here = at_length[length]
        for read in here:
            if latest is not None and read.end_s < latest.begin_s:
                return f"{read} was answered before {latest} was called, which it follows"
        latest = _later(latest, (read for read in here if read.is_end))
        if length < len(placed):
            append = placed[length]
            if latest is not None and append.end_s < latest.begin_s:
                return f"{append} was answered before {latest} was called, which it follows"
            latest = _later(latest, (append,))
    return ""


def _later(latest: Append | Read | None, others: Iterable[Append | Read]) -> Append | Read | None:
    for one in others:
        if latest is None or one.begin_s > latest.begin_s:
            latest = one
    return latest


def _appends_by_offset(appends: Sequence[Append], reads: Sequence[Read]) -> list[Append] | str:
    """Returns the append at each offset, up to the last one in any answer; or the reason why there is
    none.
    """
    values: dict[int, int] = {}
    owners: dict[int, Append] = {}
    length = 0
    for append in appends:
        if append.offset is None:
            continue
        other = owners.setdefault(append.offset, append)
        if other is not append:
            return f"{other} and {append} have one place"
        values[append.offset] = append.value
        length = max(length, append.offset + 1)
    for read in reads:
        for offset, value in enumerate(read.values, read.offset):
            if values.setdefault(offset, value) != value:
                return f"{read} saw {value} at {offset}, where {values[offset]} is"
        length = max(length, read.offset + len(read.values))
    # Of equal values the one that was called first is placed first: no other choice fits better.
    unanswered: defaultdict[int, deque[Append]] = defaultdict(deque)
    for append in sorted((one for one in appends if one.offset is None), key=lambda one: one.begin_s):
        unanswered[append.value].append(append)
    for offset in sorted(values.keys() - owners.keys()):
        if not unanswered[values[offset]]:
            return f"{values[offset]} at {offset} was never sent"
        owners[offset] = unanswered[values[offset]].popleft()
    spare = deque(sorted((one for rest in unanswered.values() for one in rest), key=lambda one: one.begin_s))
    for offset in range(length):
        if offset not in owners:
            if not spare:
                return f"nothing was sent that could be at {offset}"
            owners[offset] = spare.popleft()
    return [owners[offset] for offset in range(length)]
