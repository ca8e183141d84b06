"""What a reply waits for: pure.

Owns: the acknowledgements of the replicas, the quorum over them, and the sends that wait for disk or
      replicas.
Invariants: positions are kept by ReplicaId, so two sockets of one replica count once; a position beyond the
            log's end is a diverged replica and counts as nothing (spec replication 4.10).
Strategy:   everything waits first in, first out. A line is ordered by end offset and by deadline alike,
            because both only grow; so a release and an expiry look at heads only, and no wait has a timer.
Knows not:  files, sockets, the clock: times come in as arguments.
Source:     spec store 6, replication 5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType

from tandemmq.store.outcomes import PutStatus
from tandemmq.units import ReplicaId

OnDone = Callable[[PutStatus], None]
Answers = list[tuple[OnDone, PutStatus]]


LATE_STARTS_MAX = 64
"""More than a group has replicas, so with as many nothing is confirmed."""


class AckTable:
    """The last offset that each replica acknowledged, by its name."""

    __slots__ = ("_late_starts", "_on_report", "_positions")

    def __init__(self, on_report: Callable[[], None] | None = None) -> None:
        self._positions: dict[ReplicaId, int] = {}
        self._late_starts: list[int] = []
        self._on_report = on_report

    def report(self, replica: ReplicaId, offset: int) -> None:
        """A replica holds everything below `offset`; a reconnected one may report less than before."""
        self._positions[replica] = offset
        if self._on_report is not None:
            self._on_report()

    def note_late_start(self, offset: int) -> None:
        """An empty replica copies from `offset` on: its acknowledgements say nothing of what is before."""
        self._late_starts.append(offset)
        del self._late_starts[:-LATE_STARTS_MAX]

    def forget(self, replica: ReplicaId) -> None:
        """The replica is gone; it counts for nothing until it reports again."""
        self._positions.pop(replica, None)

    def positions(self) -> Mapping[ReplicaId, int]:
        """Replica to acknowledged offset; a live view."""
        return MappingProxyType(self._positions)

    def acknowledged(self, count: int, *, log_end: int, oldest: int | None = None) -> int:
        """The offset below which at least `count` replicas hold everything from `oldest` on; 0 when there are
        not so many.

        `oldest`: the end of the oldest send that waits; None for none. While it lies before a late start, one
        acknowledgement more is asked for each such start: which replica began there may be in doubt, and it
        may have come back on another connection.
        """
        if self._late_starts:
            self._late_starts = [
                start for start in self._late_starts if oldest is not None and oldest <= start
            ]
        if count > 0:
            count += len(self._late_starts)
        valid = sorted((offset for offset in self._positions.values() if offset <= log_end), reverse=True)
        return valid[count - 1] if 0 < count <= len(valid) else 0

    @property
    def has_late_starts(self) -> bool:
        """Sends waited for replicas that lack them, when last looked."""
        return bool(self._late_starts)

    def in_sync_count(self, *, log_end: int, gap_bytes_max: int) -> int:
        """How many replicas are less than `gap_bytes_max` behind the end (spec replication 4.8)."""
        return sum(0 <= log_end - offset < gap_bytes_max for offset in self._positions.values())


class WaitFor(Enum):
    """What a send waits for after it was written."""

    NOTHING = "nothing"
    FLUSH = "flush"
    ACKS = "acks"
    ACKS_AND_FLUSH = "acks and flush"


def plan_wait(*, waits: bool, sync_flush: bool, ack_count: int) -> WaitFor:
    """What a send waits for, by its own wish, the flush mode and the needed acks (spec replication 5.1)."""
    if not waits:
        return WaitFor.NOTHING
    if ack_count > 0:
        return WaitFor.ACKS_AND_FLUSH if sync_flush else WaitFor.ACKS
    return WaitFor.FLUSH if sync_flush else WaitFor.NOTHING


class _Wait:
    """One send: `end` of its last record, when it stops waiting, whom to tell."""

    __slots__ = ("ack_deadline", "end", "flush_deadline", "on_done")

    def __init__(self, end: int, on_done: OnDone, ack_deadline: float, flush_deadline: float) -> None:
        self.end = end
        self.on_done = on_done
        self.ack_deadline = ack_deadline
        self.flush_deadline = flush_deadline


class WaitLines:
    """The sends that wait, in four lines: flush; acks; acks then flush, before and after the acks came.

    A send that waits for both leaves the third line by its acks and stands in the fourth until it is flushed.
    Late acks answer FLUSH_SLAVE_TIMEOUT whatever the flush does, so that line never waits for the disk.
    """

    __slots__ = ("_acked", "_acks", "_both", "_flush")

    def __init__(self) -> None:
        self._flush: deque[_Wait] = deque()
        self._acks: deque[_Wait] = deque()
        self._both: deque[_Wait] = deque()
        self._acked: deque[_Wait] = deque()

    def __len__(self) -> int:
        return len(self._flush) + len(self._acks) + len(self._both) + len(self._acked)

    @property
    def ack_count(self) -> int:
        """How many of them wait for replicas; the others wait for the disk."""
        return len(self._acks) + len(self._both)

    def oldest_unacknowledged(self) -> int | None:
        """The end of the oldest send that waits for replicas; None when none does."""
        return min((line[0].end for line in (self._acks, self._both) if line), default=None)

    def add(
        self, wait_for: WaitFor, end: int, on_done: OnDone, *, ack_deadline: float, flush_deadline: float
    ) -> None:
        """Line up a send; `end` and the deadlines are not below those of the one before in its line."""
        wait = _Wait(end, on_done, ack_deadline, flush_deadline)
        if wait_for is WaitFor.FLUSH:
            self._flush.append(wait)
        elif wait_for is WaitFor.ACKS:
            self._acks.append(wait)
        else:
            assert wait_for is WaitFor.ACKS_AND_FLUSH
            self._both.append(wait)

    def release(self, *, flushed: int, acknowledged: int) -> Answers:
        """The sends whose wishes are met, oldest first within each line."""
        ok = PutStatus.PUT_OK
        answers: Answers = []
        line = self._both
        while line and line[0].end <= acknowledged:
            self._acked.append(line.popleft())
        for line, mark in ((self._flush, flushed), (self._acks, acknowledged), (self._acked, flushed)):
            while line and line[0].end <= mark:
                answers.append((line.popleft().on_done, ok))
        return answers

    def expire(self, now: float) -> Answers:
        """The sends whose time is up; the replicas' failure wins over the disk's (spec replication 5.4)."""
        answers: Answers = []
        for line in (self._acks, self._both):
            while line and line[0].ack_deadline <= now:
                answers.append((line.popleft().on_done, PutStatus.FLUSH_SLAVE_TIMEOUT))
        for line in (self._flush, self._acked):
            while line and line[0].flush_deadline <= now:
                answers.append((line.popleft().on_done, PutStatus.FLUSH_DISK_TIMEOUT))
        return answers

    def next_deadline(self) -> float | None:
        """When the next send's time is up; None when nobody waits."""
        heads = [line[0].ack_deadline for line in (self._acks, self._both) if line]
        heads += [line[0].flush_deadline for line in (self._flush, self._acked) if line]
        return min(heads, default=None)

    def fail_all(self, status: PutStatus) -> Answers:
        """Every send that waits, with one status: the store can confirm nothing any more."""
        answers: Answers = []
        for line in (self._flush, self._acks, self._both, self._acked):
            answers += ((wait.on_done, status) for wait in line)
            line.clear()
        return answers
