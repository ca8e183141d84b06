"""When the messages of a delay level are due: pure.

Two clocks decide, and either is enough: by the wall clock a message is due its level's delay after it was
stored; by the steady clock it is due when this process has known it for that long. So a wall clock that is
set back neither holds messages for ever nor releases them early, and none is delivered before its delay has
passed on one of the two.
Source:  spec store 15, spec semantics 18.1. RocketMQ releases a message that is due later than its level
allows at once; here it waits for its delay, counted from when it was found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

ARRIVAL_COUNT_MAX = 4_096
ARRIVAL_GAP_MS_MIN = 100


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message at the head of a level's queue."""

    queue_offset: int
    stored_at_ms: int


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """The first `due_count` messages may go; the one behind them in `wait_ms` (None: there is none)."""

    due_count: int
    wait_ms: int | None


class Arrivals:
    """Since when the messages of a queue are known, by the steady clock: never too early, a little too late.

    Bound: ARRIVAL_COUNT_MAX notes for one delay, because notes nearer to each other than a fraction of the
    delay are left out; what they would say is then said by the next one.
    """

    __slots__ = ("_gap_ms", "_notes")

    def __init__(self, delay_ms: int) -> None:
        self._notes: deque[tuple[int, int]] = deque()  # (queue offset behind what is known, since when)
        self._gap_ms = max(ARRIVAL_GAP_MS_MIN, -(-delay_ms // ARRIVAL_COUNT_MAX))

    def __len__(self) -> int:
        return len(self._notes)

    def note(self, queue_end: int, steady_ms: int) -> None:
        """All messages below `queue_end` are known now."""
        notes = self._notes
        if notes and (queue_end <= notes[-1][0] or steady_ms - notes[-1][1] < self._gap_ms):
            return
        if len(notes) > ARRIVAL_COUNT_MAX:  # the head is long due: what holds it back is no clock
            return
        notes.append((queue_end, steady_ms))

    def known_since(self, queue_offset: int) -> int | None:
        """Since when a message is known at least; None when no note covers it. Offsets must not fall."""
        notes = self._notes
        while notes and notes[0][0] <= queue_offset:
            notes.popleft()
        return notes[0][1] if notes else None


def plan_level(
    waiting: Sequence[Waiting], arrivals: Arrivals, *, delay_ms: int, now_ms: int, steady_ms: int
) -> LevelPlan:
    """How many messages from the head on are due. Order within a level is kept: the first that is not due
    holds back those behind it.

    Units:   now_ms by the wall clock, steady_ms by the steady one.
    """
    for count, message in enumerate(waiting):
        wait_ms = message.stored_at_ms + delay_ms - now_ms
        if wait_ms > 0:
            since_ms = arrivals.known_since(message.queue_offset)
            if since_ms is not None:
                wait_ms = min(wait_ms, since_ms + delay_ms - steady_ms)
        if wait_ms > 0:
            return LevelPlan(count, wait_ms)
    return LevelPlan(len(waiting), None)
