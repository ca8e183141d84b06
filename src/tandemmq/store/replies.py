"""Answers the sends: at once after the write, or when disk and replicas hold what the options require.

Owns:       the waiting sends (`confirm.WaitLines`), the acknowledgements and the one timer for all deadlines.
Invariants: each send is answered exactly once; a callback that raises does not cost the others their answer.
Knows not:  records, files, sockets.
"""

from __future__ import annotations

import logging

from tandemmq.errors import Busy
from tandemmq.runtime.ports import TimerHandle
from tandemmq.store.confirm import (
    AckTable,
    Answers,
    OnDone,
    WaitFor,
    WaitLines,
    count_answered,
    plan_wait,
)
from tandemmq.store.core import StoreCore
from tandemmq.store.options import BrokerRole, FlushMode
from tandemmq.store.outcomes import PutStatus
from tandemmq.telemetry import events
from tandemmq.units import ReplicaId

log = logging.getLogger(__name__)

Sends = list[tuple[int, OnDone, int]]
"""(end_offset, on_done, wait_count) of sends that were written together.

`wait_count`: 0 for a send that does not wait, 1 for one that waits; for a block, which waits as a whole, the
number of its sends.
"""


def count_sends(sends: Sends) -> int:
    """Returns the number of sends, those that do not wait included."""
    count = 0
    for _, _, wait_count in sends:
        count += wait_count or 1
    return count


_TOO_MANY = "too many sends wait"


class Replies:
    """The waiting sends of one store, and their answers."""

    def __init__(self, core: StoreCore) -> None:
        self._options = core.options
        self._clock = core.clock
        self._admission = core.admission
        self._recorder = core.recorder
        self._appended = core.appended
        self._flushed = core.flushed
        self.lines = WaitLines()
        self._timer: TimerHandle | None = None
        self._timer_at = 0.0
        self._failed: PutStatus | None = None
        self.acks = AckTable(self._release)
        core.flushed.follow(self._on_flushed)
        self.set_role(core.options.role)

    def set_role(self, role: BrokerRole) -> None:
        """Sets the number of acks that sends require from the next write on, by role (spec
        replication 5.2).
        """
        options = self._options
        self._role = role
        required = self.acks.required
        self._ack_count = options.slave_ack_count(role) if required is None else len(required)
        self._requires_slave = required is None and bool(self._ack_count) and options.in_sync_replicas == 1
        sync_flush = options.flush_mode is FlushMode.SYNC_FLUSH
        self._wait_for = plan_wait(sync_flush=sync_flush, ack_count=self._ack_count)
        self._recorder.ack_wait.forget()

    @property
    def awaits_acks(self) -> bool:
        """True if new sends wait for replicas."""
        return self._ack_count > 0

    def require(self, replicas: frozenset[ReplicaId] | None) -> None:
        """Requires each of these replicas from the next write on; None: as many as the role needs.

        Sends that already wait for the disk then wait for these replicas, too.
        """
        if replicas != self.acks.required:
            self.acks.required = replicas
            self.set_role(self._role)
            if self._ack_count:
                self.lines.demand_acks()
            self._release()

    def end_role(self) -> None:
        """Ends all waiting sends as stored but unconfirmed, because the log may continue differently."""
        answers = self.lines.fail_all(PutStatus.FLUSH_SLAVE_TIMEOUT)
        assert not self.lines, "a send would wait for another role"
        self._count(answers)
        self._after_change()
        self.notify(answers)

    def written(self, sends: Sends) -> None:
        """Handles sends that are in the log: answers those that need not wait, queues the others."""
        ok = PutStatus.PUT_OK
        if self._failed is not None:
            self.end_all(sends, self._failed)
            return
        if self._wait_for is WaitFor.NOTHING:
            self.end_all(sends, ok)
            return
        assert sends[0][0] <= sends[-1][0], "sends come in the order of the log"
        now = self._clock.monotonic()
        self._watch(sends[-1][0], now)
        ack_deadline, flush_deadline = self._deadlines(now)
        add = self.lines.add
        has_slave = self._has_slave()
        at_once: Answers = []
        for end, on_done, wait_count in sends:
            if not wait_count:
                at_once.append((on_done, ok, 1))
            elif has_slave:
                add(
                    self._wait_for,
                    end,
                    on_done,
                    ack_deadline=ack_deadline,
                    flush_deadline=flush_deadline,
                    count=wait_count,
                )
            else:
                at_once.append((on_done, PutStatus.SLAVE_NOT_AVAILABLE, wait_count))
        if self.lines:
            self._after_change()  # no replica can hold the bytes written just now
        self._count(at_once)
        self.notify(at_once)

    def confirm(self, log_offset: int, end: int, on_done: OnDone) -> None:
        """Queues a repeated send until everything below `end` is as safe as a send that waits.

        The replicas that count must also hold the message at `log_offset`.
        """
        assert 0 <= log_offset <= end, (log_offset, end)
        if self._failed is not None or self._wait_for is WaitFor.NOTHING or not self._has_slave():
            self.written([(end, on_done, 1)])
            return
        ack_deadline, flush_deadline = self._deadlines(self._clock.monotonic())
        self.lines.add(
            self._wait_for,
            end,
            on_done,
            ack_deadline=ack_deadline,
            flush_deadline=flush_deadline,
            since=log_offset + 1,
        )
        self._release()

    def _deadlines(self, now: float) -> tuple[float, float]:
        """Returns the deadlines for replicas and for the disk of a wait that starts now."""
        options = self._options
        return now + options.slave_timeout_ms / 1000, now + options.sync_flush_timeout_ms / 1000

    def end_all(self, sends: Sends, status: PutStatus) -> None:
        """Answers all sends with one status."""
        self._recorder.outcomes[status] += count_sends(sends)
        self.notify([(on_done, status, 1) for _, on_done, _ in sends])

    def fail(self, status: PutStatus) -> None:
        """Ends every waiting and every later send with `status`, because nothing can be confirmed
        any more.
        """
        self._failed = status
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        answers = self.lines.fail_all(status)
        assert not self.lines, "a send would never be answered"
        self._recorder.outcomes[status] += count_answered(answers)
        self.notify(answers)

    def notify(self, answers: Answers) -> None:
        """Calls the callbacks in order; an error of one does not cost others their answer.

        A failed assertion is raised at the end; other errors belong to the callback, as in its handlers.
        """
        failed: AssertionError | None = None
        for on_done, status, _ in answers:
            try:
                on_done(status)
            except AssertionError as error:
                failed = failed or error
            except Exception as error:  # whatever the error is, the store is intact
                log.error(events.REPLY_FAILED, exc_info=error)
        if failed is not None:
            raise failed

    def _has_slave(self) -> bool:
        """Returns True if a send may wait for replicas at all."""
        if not self._requires_slave:
            return True
        gap = self._options.replica_gap_bytes_max
        return self.acks.in_sync_count(log_end=self._appended.value, gap_bytes_max=gap) > 0

    def _on_flushed(self, _flushed: int) -> None:
        self._release()

    def _watch(self, end: int, now: float) -> None:
        """Measures the waiting time of this batch."""
        if self._wait_for is not WaitFor.ACKS:
            self._recorder.flush_wait.begin(end, now)
        if self._wait_for is not WaitFor.FLUSH:
            self._recorder.ack_wait.begin(end, now)

    def _release(self) -> None:
        recorder = self._recorder
        if not self.lines and not recorder.ack_wait and not recorder.flush_wait:
            return
        flushed = self._flushed.value
        assert flushed <= self._appended.value, (flushed, self._appended.value)
        now = self._clock.monotonic()
        recorder.flush_wait.reach(flushed, now)
        recorder.ack_wait.reach(self._acknowledged(self.lines.oldest_unacknowledged()), now)
        answers = self.lines.release(
            flushed=flushed,
            acknowledged=self._acknowledged,
            ack_deadline=self._deadlines(now)[0],
        )
        if not answers and not self.lines:
            return  # only sends that had timed out were reached
        recorder.outcomes[PutStatus.PUT_OK] += count_answered(answers)
        self._after_change()
        self.notify(answers)

    def _acknowledged(self, since: int | None) -> int:
        return self.acks.acknowledged(self._ack_count, log_end=self._appended.value, since=since)

    def _count(self, answers: Answers) -> None:
        for _, status, count in answers:
            self._recorder.outcomes[status] += count

    def _expire(self) -> None:
        self._timer = None
        assert self._failed is None, "nothing waits in a store that has failed"
        answers = self.lines.expire(self._clock.monotonic())
        self._count(answers)
        self._after_change()
        self.notify(answers)
        self._release()  # a replica that began late may hold what is now the oldest send

    def _after_change(self) -> None:
        """Keeps the bound on waiting sends, and the timer at the earliest deadline."""
        if len(self.lines) >= self._options.waiting_sends_max:
            self._admission.block(_TOO_MANY, f"[OVERLOAD]{_TOO_MANY}, try another broker", Busy)
        else:
            self._admission.unblock(_TOO_MANY)
        deadline = self.lines.next_deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._clock.call_later(deadline - self._clock.monotonic(), self._expire)
