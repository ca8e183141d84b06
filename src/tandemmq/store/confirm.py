"""Decides when a send may be answered. Pure: no files, sockets or clock; the caller passes the time.

Owns:       the acknowledgements of the replicas, the quorum over them, and the sends that wait for disk or
            replicas.
Invariants: acknowledgements are keyed by `ReplicaId`, so two connections of one replica count once. A replica
            acknowledges the range `[start, position)`, and nothing below `start`. A position beyond the end
            of the log means a diverged replica, which counts for nothing (spec replication 4.10).
Strategy:   sends wait first in, first out. Within a line, end offsets and deadlines never decrease, also when
            a time limit was lowered meanwhile. Releasing and expiring therefore inspect only the head, and no
            send needs a timer of its own.
Knows not:  files, sockets, the clock.
Source:     spec store 6, spec replication 5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import pairwise
from types import MappingProxyType

from tandemmq.store.outcomes import PutStatus
from tandemmq.units import ReplicaId

OnDone = Callable[[PutStatus], None]
Answers = list[tuple[OnDone, PutStatus, int]]
"""(on_done, status, count): `count` sends are answered together, those of a block; otherwise it is 1."""


def count_answered(answers: Answers) -> int:
    """Returns the number of sends that these answers are for."""
    total = 0
    for _, _, count in answers:
        total += count
    return total


class AckTable:
    """The range of the log that each replica acknowledged, by replica."""

    __slots__ = ("_on_report", "_positions", "_starts", "required")

    def __init__(self, on_report: Callable[[], None] | None = None) -> None:
        self._positions: dict[ReplicaId, int] = {}
        self._starts: dict[ReplicaId, int] = {}  # of replicas that did not begin at 0
        self._on_report = on_report
        self.required: frozenset[ReplicaId] | None = None
        """The replicas that must all hold a byte to confirm it; None: any replicas, by count."""

    def report(self, replica: ReplicaId, offset: int, *, start: int = 0) -> None:
        """Records that a replica holds `[start, offset)`; after a reconnect it may report less than before.

        `start`: the start of a file, so it never splits a send.
        """
        assert start >= 0, (replica, start)
        assert offset >= 0, (replica, offset)
        self._positions[replica] = offset
        if start:
            self._starts[replica] = start
        else:
            self._starts.pop(replica, None)
        if self._on_report is not None:
            self._on_report()

    def forget(self, replica: ReplicaId) -> None:
        """Removes a disconnected replica; it counts for nothing until it reports again."""
        self._positions.pop(replica, None)
        self._starts.pop(replica, None)

    def positions(self) -> Mapping[ReplicaId, int]:
        """Returns a live view from replica to acknowledged offset."""
        return MappingProxyType(self._positions)

    def acknowledged(self, count: int, *, log_end: int, since: int | None = None) -> int:
        """Returns the offset below which `count` replicas hold everything; 0 with fewer replicas.

        `since`: counts only replicas that began below this offset; None: all. With `required` set, all of
        those replicas must hold it and `count` is ignored.
        """
        if self.required is not None:
            return self._held_by_all(self.required, log_end, since)
        starts = self._starts
        if not starts or since is None:
            valid = [offset for offset in self._positions.values() if offset <= log_end]
        else:
            valid = [
                offset
                for replica, offset in self._positions.items()
                if offset <= log_end and starts.get(replica, 0) < since
            ]
        if not 0 < count <= len(valid):
            return 0
        valid.sort(reverse=True)
        assert valid[0] <= log_end, "no replica holds more than the log"
        return valid[count - 1]

    def _held_by_all(self, replicas: frozenset[ReplicaId], log_end: int, since: int | None) -> int:
        mark = log_end
        for replica in replicas:
            held = self._positions.get(replica, 0)
            is_late = since is not None and self._starts.get(replica, 0) >= since > 0
            mark = min(mark, 0 if is_late or held > log_end else held)
        return mark

    def in_sync_count(self, *, log_end: int, gap_bytes_max: int) -> int:
        """Returns how many replicas are less than `gap_bytes_max` behind the end (spec replication 4.8)."""
        assert gap_bytes_max > 0, gap_bytes_max
        return sum(0 <= log_end - offset < gap_bytes_max for offset in self._positions.values())


class WaitFor(Enum):
    """The conditions a send waits for after it was written."""

    NOTHING = "nothing"
    FLUSH = "flush"
    ACKS = "acks"
    ACKS_AND_FLUSH = "acks and flush"


def plan_wait(*, sync_flush: bool, ack_count: int) -> WaitFor:
    """Returns the wait of a send, by the flush mode and the needed acks (spec replication 5.1)."""
    assert ack_count >= 0, ack_count
    if ack_count > 0:
        return WaitFor.ACKS_AND_FLUSH if sync_flush else WaitFor.ACKS
    return WaitFor.FLUSH if sync_flush else WaitFor.NOTHING


class _Wait:
    """One waiting send, or the `count` sends of a block: the `end` of the last record, the deadlines and the
    callback.

    `since`: only replicas that began below this offset count. It equals `end`, except for a repeated send,
    which waits at the log's end for an earlier message.
    """

    __slots__ = ("ack_deadline", "count", "end", "flush_deadline", "on_done", "since")

    def __init__(
        self, end: int, since: int, on_done: OnDone, ack_deadline: float, flush_deadline: float, count: int
    ) -> None:
        self.count = count
        self.end = end
        self.since = since
        self.on_done = on_done
        self.ack_deadline = ack_deadline
        self.flush_deadline = flush_deadline


class WaitLines:
    """The waiting sends, in four lines: flush; flush then acks, before and after the flush; repeats that wait
    for acks.

    Replicas receive only flushed bytes when a send waits for both, so its ack deadline starts with the flush.
    Repeats have their own line, because a replica may hold the bytes after a message and not the message.
    They hold up no other send, and all of them are checked each time.
    """

    __slots__ = ("_acks", "_both", "_count", "_flush", "_repeats")

    def __init__(self) -> None:
        self._flush: deque[_Wait] = deque()
        self._both: deque[_Wait] = deque()
        self._acks: deque[_Wait] = deque()
        self._repeats: deque[_Wait] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    @property
    def ack_count(self) -> int:
        """The number of sends that wait for replicas; the others wait for the disk."""
        return sum([wait.count for wait in self._acks]) + len(self._repeats)

    def oldest_unacknowledged(self) -> int | None:
        """Returns the end of the oldest send that waits for replicas; None without one."""
        return min((line[0].end for line in (self._acks, self._both) if line), default=None)

    def add(
        self,
        wait_for: WaitFor,
        end: int,
        on_done: OnDone,
        *,
        ack_deadline: float,
        flush_deadline: float,
        since: int | None = None,
        count: int = 1,
    ) -> None:
        """Adds a send, or `count` sends with one answer; `end` is not below the previous one of its line.

        `since`: for a repeated send, an offset within its message.
        """
        assert since is None or 0 < since <= end, (since, end)
        wait = _Wait(end, end if since is None else since, on_done, ack_deadline, flush_deadline, count)
        self._count += count
        if wait_for is WaitFor.ACKS:
            self._await_acks(wait, ack_deadline)
            return
        line = self._flush if wait_for is WaitFor.FLUSH else self._both
        if line and line[-1].flush_deadline > flush_deadline:
            wait.flush_deadline = line[-1].flush_deadline  # the time limit was lowered since
        line.append(wait)

    def _await_acks(self, wait: _Wait, ack_deadline: float) -> None:
        line = self._acks if wait.since == wait.end else self._repeats
        assert not line or line[-1].end <= wait.end, (line[-1].end, wait.end)
        if line and line[-1].ack_deadline > ack_deadline:
            ack_deadline = line[-1].ack_deadline  # the time limit was lowered since
        wait.ack_deadline = ack_deadline
        line.append(wait)

    def demand_acks(self) -> None:
        """Makes sends that wait only for the disk wait for replicas as well."""
        if not self._flush:
            return
        wait_count = self._wait_count()
        waits = sorted((*self._both, *self._flush), key=lambda wait: wait.end)
        for before, wait in pairwise(waits):
            wait.flush_deadline = max(wait.flush_deadline, before.flush_deadline)
        self._both = deque(waits)
        self._flush.clear()
        assert _is_ordered(self._both)
        assert self._wait_count() == wait_count, "each wait continues"

    def release(self, *, flushed: int, acknowledged: Callable[[int], int], ack_deadline: float) -> Answers:
        """Returns the sends whose conditions are met, oldest first within each line.

        `acknowledged`: the offset held by the replicas that began below its argument; it rises with the
        argument. `ack_deadline`: for sends that start waiting for replicas now.
        """
        ok = PutStatus.PUT_OK
        answers: Answers = []
        assert _is_ordered(self._flush)
        assert _is_ordered(self._both)
        assert _is_ordered(self._acks)
        line = self._flush
        while line and line[0].end <= flushed:
            answers.append(_end(line.popleft(), ok))
        line = self._both
        while line and line[0].end <= flushed:
            self._await_acks(line.popleft(), ack_deadline)
        line = self._acks
        while line and line[0].end <= (mark := acknowledged(line[0].since)):
            while line and line[0].end <= mark:
                answers.append(_end(line.popleft(), ok))
        if self._repeats:
            left: deque[_Wait] = deque()
            for wait in self._repeats:
                if wait.end <= acknowledged(wait.since):
                    answers.append(_end(wait, ok))
                else:
                    left.append(wait)
            self._repeats = left
        self._count -= count_answered(answers)
        return answers

    def expire(self, now: float) -> Answers:
        """Returns the sends whose deadline has passed; their status says if disk or slave was late."""
        answers: Answers = []
        wait_count = self._wait_count()
        for line in (self._acks, self._repeats):
            assert not line or line[0].ack_deadline <= line[-1].ack_deadline
            while line and line[0].ack_deadline <= now:
                answers.append(_end(line.popleft(), PutStatus.FLUSH_SLAVE_TIMEOUT))
        for line in (self._flush, self._both):
            assert not line or line[0].flush_deadline <= line[-1].flush_deadline
            while line and line[0].flush_deadline <= now:
                answers.append(_end(line.popleft(), PutStatus.FLUSH_DISK_TIMEOUT))
        self._count -= count_answered(answers)
        assert len(answers) + self._wait_count() == wait_count, "each wait ends once or continues"
        return answers

    def _wait_count(self) -> int:
        """Returns the number of waits; a block has one."""
        return len(self._flush) + len(self._both) + len(self._acks) + len(self._repeats)

    def next_deadline(self) -> float | None:
        """Returns the earliest deadline; None without waiting sends."""
        if not self._count:
            return None
        heads = [line[0].ack_deadline for line in (self._acks, self._repeats) if line]
        heads += [line[0].flush_deadline for line in (self._flush, self._both) if line]
        return min(heads, default=None)

    def fail_all(self, status: PutStatus) -> Answers:
        """Ends every waiting send with one status, because the store can confirm nothing any more."""
        answers: Answers = []
        for line in (self._flush, self._both, self._acks, self._repeats):
            answers += (_end(wait, status) for wait in line)
            line.clear()
        assert count_answered(answers) == self._count, (len(answers), self._count)
        self._count = 0
        return answers


def _end(wait: _Wait, status: PutStatus) -> tuple[OnDone, PutStatus, int]:
    return wait.on_done, status, wait.count


def _is_ordered(line: deque[_Wait]) -> bool:
    """Returns True if the two ends of a line are in order."""
    return not line or line[0].end <= line[-1].end
