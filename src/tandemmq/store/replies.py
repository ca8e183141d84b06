"""Answers the sends: at once after the write, or when disk and replicas have what the options ask for.

Owns: the waiting sends (`confirm.WaitLines`), the acknowledgements and the one timer for all deadlines.
Invariants: each send is told exactly once; a callback that raises does not cost the others their answer.
Knows not:  records, files, sockets.
"""

from __future__ import annotations

from tandemmq.errors import Busy
from tandemmq.runtime.ports import Clock, TimerHandle
from tandemmq.store.admission import Admission
from tandemmq.store.confirm import AckTable, Answers, OnDone, WaitFor, WaitLines, plan_wait
from tandemmq.store.options import BrokerRole, FlushMode, StoreOptions
from tandemmq.store.outcomes import PutStatus
from tandemmq.store.watermarks import Watermark

Sends = list[tuple[int, OnDone, bool]]
"""(end_offset, on_done, wait_stored) of sends that were written together."""

_TOO_MANY = "too many sends wait"


class Replies:
    """Who is told what, and when."""

    def __init__(
        self,
        options: StoreOptions,
        *,
        clock: Clock,
        admission: Admission,
        appended: Watermark,
        flushed: Watermark,
    ) -> None:
        self._options = options
        self._clock = clock
        self._admission = admission
        self._appended = appended
        self._flushed = flushed
        self._lines = WaitLines()
        self._timer: TimerHandle | None = None
        self._timer_at = 0.0
        self._failed: PutStatus | None = None
        self.acks = AckTable(self._release)
        flushed.follow(self._on_flushed)
        self.set_role(options.role)

    def set_role(self, role: BrokerRole) -> None:
        """From the next write on, wait for as many acks as this role needs (spec replication 5.2)."""
        options = self._options
        self._asks_slave = False
        self._ack_count = 0
        if role is BrokerRole.SYNC_MASTER:
            self._ack_count = max(0, options.in_sync_replicas - 1)
            if options.sync_master_compat4 and options.in_sync_replicas == 1:
                self._ack_count = 1
                self._asks_slave = True
        sync_flush = options.flush_mode is FlushMode.SYNC_FLUSH
        self._wait_for = plan_wait(waits=True, sync_flush=sync_flush, ack_count=self._ack_count)

    def written(self, sends: Sends) -> None:
        """These sends are in the log; tell those that need not wait, line up the others."""
        ok = PutStatus.PUT_OK
        if self._failed is not None:
            self.tell([(on_done, self._failed) for _, on_done, _ in sends])
            return
        if self._wait_for is WaitFor.NOTHING:
            self.tell([(on_done, ok) for _, on_done, _ in sends])
            return
        now = self._clock.monotonic()
        ack_deadline = now + self._options.slave_timeout_ms / 1000
        flush_deadline = now + self._options.sync_flush_timeout_ms / 1000
        add = self._lines.add
        has_slave = not self._asks_slave or self._is_slave_near()
        at_once: Answers = []
        for end, on_done, waits in sends:
            if not waits:
                at_once.append((on_done, ok))
            elif has_slave:
                add(self._wait_for, end, on_done, ack_deadline=ack_deadline, flush_deadline=flush_deadline)
            else:
                at_once.append((on_done, PutStatus.SLAVE_NOT_AVAILABLE))
        self._release()
        self.tell(at_once)

    def fail(self, status: PutStatus) -> None:
        """Nothing can be confirmed any more: every waiting and every later send ends with `status`."""
        self._failed = status
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.tell(self._lines.fail_all(status))

    def tell(self, answers: Answers) -> None:
        """Call them in order; if one raises, the rest is called in the next turn of the loop."""
        position = 0
        try:
            for on_done, status in answers:
                position += 1
                on_done(status)
        except BaseException:
            if position < len(answers):
                self._clock.call_soon(self.tell, answers[position:])
            raise

    def _is_slave_near(self) -> bool:
        gap = self._options.replica_gap_bytes_max
        return self.acks.in_sync_count(log_end=self._appended.value, gap_bytes_max=gap) > 0

    def _on_flushed(self, _flushed: int) -> None:
        self._release()

    def _release(self) -> None:
        if not self._lines:
            return
        acknowledged = self.acks.acknowledged(self._ack_count, log_end=self._appended.value)
        answers = self._lines.release(flushed=self._flushed.value, acknowledged=acknowledged)
        self._after_change()
        self.tell(answers)

    def _expire(self) -> None:
        self._timer = None
        answers = self._lines.expire(self._clock.monotonic())
        self._after_change()
        self.tell(answers)

    def _after_change(self) -> None:
        """Keep the bound on waiting sends, and the timer at the earliest deadline."""
        if len(self._lines) >= self._options.waiting_sends_max:
            self._admission.block(_TOO_MANY, f"[OVERLOAD]{_TOO_MANY}, try another broker", Busy)
        else:
            self._admission.unblock(_TOO_MANY)
        deadline = self._lines.next_deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._clock.call_later(deadline - self._clock.monotonic(), self._expire)
