"""What a reply waits for: pure.

Owns: the acknowledgements of the replicas, the quorum over them, and the sends that wait for disk or
      replicas.
Invariants: positions are kept by ReplicaId, so two sockets of one replica count once; an acknowledgement
            counts for a range, from where the replica began to its position, and not for what is before; a
            position beyond the log's end is a diverged replica and counts as nothing (spec replication
            4.10).
Strategy:   sends wait first in, first out. A line is ordered by end offset and by deadline alike: ends only
            grow, and a send is given up no earlier than the one before it, also when a time limit was
            lowered meanwhile. So a release and an expiry look at heads only, and no wait has a timer.
Knows not:  files, sockets, the clock: times come in as arguments.
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
Answers = list[tuple[OnDone, PutStatus]]


class AckTable:
    """The range of the log that each replica acknowledged, by its name."""

    __slots__ = ("_on_report", "_positions", "_starts", "required")

    def __init__(self, on_report: Callable[[], None] | None = None) -> None:
        self._positions: dict[ReplicaId, int] = {}
        self._starts: dict[ReplicaId, int] = {}  # of those that did not begin at 0
        self._on_report = on_report
        self.required: frozenset[ReplicaId] | None = None
        """Of whom each must hold what is confirmed; None: any so many."""

    def report(self, replica: ReplicaId, offset: int, *, start: int = 0) -> None:
        """A replica holds everything from `start` to `offset`; a reconnected one may report less than
        before.

        `start`: where a file begins, so it never parts a send.
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
        """The replica is gone; it counts for nothing until it reports again."""
        self._positions.pop(replica, None)
        self._starts.pop(replica, None)

    def positions(self) -> Mapping[ReplicaId, int]:
        """Replica to acknowledged offset; a live view."""
        return MappingProxyType(self._positions)

    def acknowledged(self, count: int, *, log_end: int, since: int | None = None) -> int:
        """The offset below which `count` replicas hold everything; 0 when there are not so many.

        `since`: only replicas that began below this offset are counted; None for all.
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
        assert valid[0] <= log_end, "nobody holds more than there is"
        return valid[count - 1]

    def _held_by_all(self, replicas: frozenset[ReplicaId], log_end: int, since: int | None) -> int:
        mark = log_end
        for replica in replicas:
            held = self._positions.get(replica, 0)
            is_late = since is not None and self._starts.get(replica, 0) >= since > 0
            mark = min(mark, 0 if is_late or held > log_end else held)
        return mark

    def in_sync_count(self, *, log_end: int, gap_bytes_max: int) -> int:
        """How many replicas are less than `gap_bytes_max` behind the end (spec replication 4.8)."""
        assert gap_bytes_max > 0, gap_bytes_max
        return sum(0 <= log_end - offset < gap_bytes_max for offset in self._positions.values())


class WaitFor(Enum):
    """What a send waits for after it was written."""

    NOTHING = "nothing"
    FLUSH = "flush"
    ACKS = "acks"
    ACKS_AND_FLUSH = "acks and flush"


def plan_wait(*, waits: bool, sync_flush: bool, ack_count: int) -> WaitFor:
    """What a send waits for, by its own wish, the flush mode and the needed acks (spec replication 5.1)."""
    assert ack_count >= 0, ack_count
    if not waits:
        return WaitFor.NOTHING
    if ack_count > 0:
        return WaitFor.ACKS_AND_FLUSH if sync_flush else WaitFor.ACKS
    return WaitFor.FLUSH if sync_flush else WaitFor.NOTHING


class _Wait:
    """One send: `end` of its last record, when it stops waiting, whom to tell.

    `since`: a replica holds what is waited for only if it began below this offset. That is `end`, or less for
    a repeat, which waits at the log's end for a message that lies before it.
    """

    __slots__ = ("ack_deadline", "end", "flush_deadline", "on_done", "since")

    def __init__(
        self, end: int, since: int, on_done: OnDone, ack_deadline: float, flush_deadline: float
    ) -> None:
        self.end = end
        self.since = since
        self.on_done = on_done
        self.ack_deadline = ack_deadline
        self.flush_deadline = flush_deadline


class WaitLines:
    """The sends that wait, in four lines: flush; flush then acks, before and after the flush; repeats that
    wait for acks.

    Where a send waits for both, replicas are sent only what is flushed: acks come last, and their time begins
    with the flush. Repeats have a line of their own, because a replica may hold what comes behind a message
    and not the message: they keep nobody else waiting, and all of them are looked at each time.
    """

    __slots__ = ("_acks", "_both", "_flush", "_repeats")

    def __init__(self) -> None:
        self._flush: deque[_Wait] = deque()
        self._both: deque[_Wait] = deque()
        self._acks: deque[_Wait] = deque()
        self._repeats: deque[_Wait] = deque()

    def __len__(self) -> int:
        return len(self._flush) + len(self._both) + len(self._acks) + len(self._repeats)

    def __bool__(self) -> bool:
        return bool(self._acks or self._flush or self._both or self._repeats)

    @property
    def ack_count(self) -> int:
        """How many of them wait for replicas; the others wait for the disk."""
        return len(self._acks) + len(self._repeats)

    def oldest_unacknowledged(self) -> int | None:
        """The end of the oldest send that waits for replicas; None when none does."""
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
    ) -> None:
        """Line up a send; `end` is not below that of the one before in its line.

        `since`: for a repeat, an offset within the message that it waits for.
        """
        assert since is None or 0 < since <= end, (since, end)
        wait = _Wait(end, end if since is None else since, on_done, ack_deadline, flush_deadline)
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
        """Who waits for the disk only waits for replicas, too, from now on."""
        if not self._flush:
            return
        count = len(self)
        waits = sorted((*self._both, *self._flush), key=lambda wait: wait.end)
        for before, wait in pairwise(waits):
            wait.flush_deadline = max(wait.flush_deadline, before.flush_deadline)
        self._both = deque(waits)
        self._flush.clear()
        assert _is_ordered(self._both)
        assert len(self) == count, "nobody stops waiting for that"

    def release(self, *, flushed: int, acknowledged: Callable[[int], int], ack_deadline: float) -> Answers:
        """The sends whose wishes are met, oldest first within each line.

        `acknowledged`: the mark of the replicas that began below an offset; it rises with the offset.
        `ack_deadline`: of those that begin to wait for replicas now.
        """
        ok = PutStatus.PUT_OK
        answers: Answers = []
        assert _is_ordered(self._flush)
        assert _is_ordered(self._both)
        assert _is_ordered(self._acks)
        line = self._flush
        while line and line[0].end <= flushed:
            answers.append((line.popleft().on_done, ok))
        line = self._both
        while line and line[0].end <= flushed:
            self._await_acks(line.popleft(), ack_deadline)
        line = self._acks
        while line and line[0].end <= (mark := acknowledged(line[0].since)):
            while line and line[0].end <= mark:
                answers.append((line.popleft().on_done, ok))
        if self._repeats:
            left: deque[_Wait] = deque()
            for wait in self._repeats:
                if wait.end <= acknowledged(wait.since):
                    answers.append((wait.on_done, ok))
                else:
                    left.append(wait)
            self._repeats = left
        return answers

    def expire(self, now: float) -> Answers:
        """The sends whose time is up, with who was late."""
        answers: Answers = []
        count = len(self)
        for line in (self._acks, self._repeats):
            assert not line or line[0].ack_deadline <= line[-1].ack_deadline
            while line and line[0].ack_deadline <= now:
                answers.append((line.popleft().on_done, PutStatus.FLUSH_SLAVE_TIMEOUT))
        for line in (self._flush, self._both):
            assert not line or line[0].flush_deadline <= line[-1].flush_deadline
            while line and line[0].flush_deadline <= now:
                answers.append((line.popleft().on_done, PutStatus.FLUSH_DISK_TIMEOUT))
        assert len(answers) + len(self) == count, "each send is told once or goes on waiting"
        return answers

    def next_deadline(self) -> float | None:
        """When the next send's time is up; None when nobody waits."""
        heads = [line[0].ack_deadline for line in (self._acks, self._repeats) if line]
        heads += [line[0].flush_deadline for line in (self._flush, self._both) if line]
        return min(heads, default=None)

    def fail_all(self, status: PutStatus) -> Answers:
        """Every send that waits, with one status: the store can confirm nothing any more."""
        answers: Answers = []
        count = len(self)
        for line in (self._flush, self._both, self._acks, self._repeats):
            answers += ((wait.on_done, status) for wait in line)
            line.clear()
        assert len(answers) == count, (len(answers), count)
        return answers


def _is_ordered(line: deque[_Wait]) -> bool:
    """Whether the heads of a line are the first to be met, as far as its two ends tell."""
    return not line or line[0].end <= line[-1].end
