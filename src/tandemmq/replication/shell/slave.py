"""The slave's end of replication: stores the bytes that arrive, reports its end, and compares its end with
the master's log in a task with a time limit.

Owns:      the one connection and its timer. The rules are in `core/slave.py`; this module carries effects out
           in order. Connecting to the master, and the socket, is in `master_connection.py`.
Knows not: the consequences of a verdict (core/slave.py), how logs are compared
           (broker/replica/tail_check.py).
Source:    spec replication 4.5 to 4.7, 4.9.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tandemmq.errors import ReplicationError, RequestRejected, StoreError, TandemError
from tandemmq.replication.core.effects import (
    Align,
    CheckTail,
    Dial,
    Disconnect,
    Halt,
    HistoryDiffers,
    RejectedBytes,
    RequestHistory,
    Send,
    SlaveEffect,
    Store,
)
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.progress import SlaveState, StartRule
from tandemmq.replication.core.slave import NEVER_MS, SlaveSession
from tandemmq.replication.core.term_sessions import MasterHistory, TermSlaveSession
from tandemmq.replication.core.verifier import TailOutcome, TailVerdict
from tandemmq.replication.shell.master_connection import Dialler, MasterConnection
from tandemmq.runtime.ports import Address, Clock, Network, TimerHandle
from tandemmq.runtime.tasks import FaultGuard, OnFatal, TaskScope
from tandemmq.store.message_store import MessageStore
from tandemmq.telemetry import events
from tandemmq.units import Buffer, EpochMs

CheckTailCall = Callable[[int], Awaitable[TailVerdict]]
"""Compares this log below its end with the master's; never raises for anything that a peer can cause."""

RequestHistoryCall = Callable[[], Awaitable[MasterHistory | None]]
"""Returns the history of the followed master, or None if it does not support this. Raises TandemError."""

CHECK_TIMEOUT_S: Final = 30.0
"""The time limit of a comparison: longer than checksums of a few MiB take on a slow disk. After it the slave
tries again.
"""


def log_verdict(master: str | None, before: TailVerdict | None, verdict: TailVerdict) -> None:
    """Logs one line per change of outcome, not one per attempt."""
    if before is not None and before.outcome is verdict.outcome:
        return
    facts = {
        "master": master,
        "outcome": verdict.outcome.name,
        "log_offset": verdict.log_offset,
        "detail": verdict.detail,
    }
    is_good = verdict.outcome is TailOutcome.SAME
    log.log(logging.INFO if is_good else logging.WARNING, events.REPLICA_TAIL_CHECKED, extra=facts)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSlaveStatus:
    """The state of a slave. `halt` is the reason why an operator must act. Times are wall clock, 0 before the
    first read or write.

    `tail`: the result of the last comparison with the master's log, None if none was made. `start_rule`: the
    rule by which the copy of this connection began; `log_start`: the begin of the copy. `local_address`: the
    local address of the last connection to the master, ("", 0) before the first. `copied_at`: the arrival of
    the newest bytes of the log; 0 before the first.
    """

    state: SlaveState
    master_address: str | None
    local_address: Address
    log_end: int
    log_start: int
    reported: int
    start_rule: StartRule | None
    tail: TailVerdict | None
    halt: Halt | None
    last_read_at: EpochMs
    last_written_at: EpochMs
    copied_at: EpochMs
    bytes_per_second: int


class ReplicationSlave:
    """Keeps the log of `store` a copy of a master's log."""

    def __init__(
        self,
        store: MessageStore,
        options: ReplicationOptions,
        check_tail: CheckTailCall,
        *,
        network: Network,
        clock: Clock,
        on_fatal: OnFatal | None = None,
        session: TermSlaveSession | None = None,
        request_history: RequestHistoryCall | None = None,
    ) -> None:
        """`session`: the session of an AutoSwitch channel; without it the classic channel is used.
        `request_history`: for a session that asks its master for its history before it copies.
        """
        self._store = store
        self._clock = clock
        self._guard = FaultGuard(on_fatal)
        self._term = session
        self._request_history = request_history
        self._session: SlaveSession = session or SlaveSession(
            options=options, segment_bytes=store.options.commit_log_file_bytes
        )
        self._tasks = TaskScope(
            "replication.slave", None if on_fatal is None else lambda _name, error: on_fatal(error)
        )
        self._dialler = Dialler(self, options, network=network, tasks=self._tasks)
        self._check_tail = check_tail
        self._checking: asyncio.Task[None] | None = None
        self._connection: MasterConnection | None = None
        self._local_address: Address = ("", 0)
        self._timer: TimerHandle | None = None
        self._timer_due_ms = NEVER_MS
        self._is_started = False
        self._last_read_at = self._last_written_at = self._last_copied_at = EpochMs(0)
        self._assigned_address: str | None = None
        self.on_lost: Callable[[], None] | None = None
        """Called when a working connection has ended, or at the first failed attempt of an outage."""
        self.on_halted: Callable[[], None] | None = None
        """Called when an operator must act; `status` holds the reason."""
        self.on_history_differs: Callable[[], None] | None = None
        """Called when the master's log has a different history under equal terms."""
        self.on_following: Callable[[], None] | None = None
        """Called when the comparison has ended and the log is copied from now on."""

    def set_master(self, address: str | None) -> None:
        """Sets the address on which the master listens for slaves ("host:port"). A working connection is
        kept.
        """
        self._assigned_address = address
        if self._is_started:
            self._perform(self._session.on_assigned(address))

    async def start(self) -> None:
        """Starts dialling as soon as an address is known, and keeps retrying."""
        assert not self._is_started, "it is started once"
        self._is_started = True
        self.set_master(self._assigned_address)

    async def stop(self) -> None:
        """Stops; returns when the connection and every task have ended."""
        if self._is_started:
            self._session.on_stopped()
            # Not as an effect: after a fault in the middle of effects the session may not know of the
            # connection.
            self._disconnect("the slave stops")
        self._is_started = False
        self._cancel_timer()
        await self._tasks.close()
        assert self._timer is None, "nothing is looked at after the end"
        assert self._connection is None, "a connection ends with its slave"

    def status(self) -> ReplicationSlaveStatus:
        session = self._session
        return ReplicationSlaveStatus(
            state=session.state,
            master_address=session.address,
            local_address=self._local_address,
            log_end=self._store.appended.value,
            log_start=self._store.min_log_offset,
            reported=session.reported,
            start_rule=session.start_rule,
            tail=session.tail,
            halt=session.halt,
            last_read_at=self._last_read_at,
            last_written_at=self._last_written_at,
            copied_at=self._last_copied_at,
            bytes_per_second=session.rate.per_second(self._now_ms()),
        )

    def check_again(self) -> None:
        """Restarts an unchecked copy with a comparison, because the master can be asked now."""
        tail = self._session.tail
        if tail is None or tail.outcome is not TailOutcome.NOT_COMPARED or self._connection is None:
            return
        self._connection.close()
        self._guard.run(self._on_connection_lost, "the end of the log is compared first")

    # Callbacks of the connection and the dialler.

    def on_connected(self, connection: MasterConnection) -> None:
        self._guard.run(self._begin, connection)

    def on_data(self, data: Buffer, room: int) -> None:
        self._guard.run(self._receive, data, room)

    @property
    def frame_left(self) -> int:
        """The most bytes to read next."""
        return self._session.frame_left

    def call_soon(self, fn: Callable[[], None]) -> None:
        """Runs `fn` in the next turn of the loop."""
        self._clock.call_soon(fn)

    def on_broken(self, reason: str) -> None:
        self._guard.run(self._on_connection_lost, reason)

    def on_unreachable(self, reason: str, *, is_first: bool) -> None:
        """Handles a failed attempt to reach the master; the owner is notified of the first one of an
        outage.
        """
        if is_first:
            self._notify_lost()
        self._perform(self._session.on_failed(reason, self._now_ms()))

    def _begin(self, connection: MasterConnection) -> None:
        assert self._connection is None
        self._dialler.release_connection()
        self._connection = connection
        self._local_address = connection.local
        log_end = self._store.appended.value
        assert log_end <= self._store.max_log_offset, (log_end, self._store.max_log_offset)
        facts = {"master": self._session.address, "log_end": log_end}
        log.info(events.MASTER_CONNECTED, extra=facts)
        self._perform(self._session.on_connected(log_end))

    def _receive(self, data: Buffer, room: int) -> None:
        assert self._connection is not None
        self._last_read_at = self._clock.now_ms()
        self._perform(self._session.on_data(data, self._now_ms(), room))

    def _on_connection_lost(self, reason: str) -> None:
        self._connection = None
        self._cancel_check()
        log.warning(events.MASTER_LOST, extra={"master": self._session.address, "reason": reason})
        self._perform(self._session.on_failed(reason, self._now_ms()))
        self._notify_lost()

    # Effects, in list order.

    def _perform(self, effects: list[SlaveEffect]) -> None:
        for position, effect in enumerate(effects):
            match effect:
                case Store():
                    reason = self._store_run(effect)
                    if reason:
                        # The report that follows this store must not be sent; effects that end the connection
                        # still apply.
                        rest = [one for one in effects[position + 1 :] if not isinstance(one, Store | Send)]
                        self._perform(rest + self._session.on_failed(reason, self._now_ms()))
                        return
                case Send(data):
                    if self._connection is not None:
                        self._connection.write(data)
                        self._last_written_at = self._clock.now_ms()
                case Dial(address):
                    self._dialler.dial(address)
                case CheckTail(log_end):
                    assert self._checking is None, "one comparison at a time"
                    self._checking = self._tasks.start("check_tail", self._compare(log_end))
                case RequestHistory():
                    self._tasks.start("meet", self._fetch_history(self._connection))
                case HistoryDiffers():
                    self._report_difference(effect)
                case Align():
                    self._tasks.start("align", self._align(effect, self._connection))
                case Disconnect(reason):
                    self._disconnect(reason)
                case RejectedBytes():
                    facts = {
                        "log_offset": effect.log_offset,
                        "reason": effect.reason,
                        "is_final": effect.is_final,
                    }
                    log.error(events.REPLICA_DAMAGE_REFUSED, extra=facts)
                case Halt():
                    facts = {
                        "reason": effect.reason.value,
                        "log_offset": effect.log_offset,
                        "detail": effect.detail,
                        "master": self._session.address,
                    }
                    log.error(events.REPLICA_HALTED, extra=facts)
                    if self.on_halted is not None:
                        self.on_halted()
        if self._term is not None:
            self._store.terms.raise_confirm_offset(self._term.confirm_offset)
        self._arm()

    async def _fetch_history(self, connection: MasterConnection | None) -> None:
        """Asks the master for its history. The answer is dropped if `connection` has ended meanwhile."""
        session, ask = self._term, self._request_history
        assert connection is not None, "a history is requested over a connection"
        assert session is not None
        assert ask is not None
        try:
            history = await ask()
        except TandemError as error:
            if self._connection is connection:
                reason = f"the master did not send its history: {error}"
                self._perform(session.on_failed(reason, self._now_ms()))
            return
        if self._connection is connection:
            self._perform(session.on_history(history, self._now_ms()))

    def _report_difference(self, found: HistoryDiffers) -> None:
        facts = {
            "master": self._session.address,
            "log_offset": found.log_offset,
            "detail": found.detail,
            "is_healed": found.is_healed,
        }
        log.error(events.REPLICA_HISTORY_DIFFERS, extra=facts)
        if self.on_history_differs is not None:
            self.on_history_differs()

    async def _align(self, align: Align, connection: MasterConnection | None) -> None:
        """Truncates what the master does not have. The result is dropped if `connection` has ended
        meanwhile.
        """
        session, store = self._term, self._store
        assert connection is not None, "logs are aligned over a connection"
        assert session is not None
        reason = ""
        try:
            if align.point < store.max_log_offset:
                await store.terms.cut(align.point, align.epochs, f"{session.address} leads a newer term")
            elif self._connection is connection:
                await store.terms.save_epochs(align.epochs)
        except (StoreError, ReplicationError, RequestRejected, OSError) as error:
            if isinstance(error, StoreError) and error.fatal:
                raise
            reason = f"{type(error).__name__}: {error}"
        if self._connection is not connection:
            return
        if reason:
            self._perform(session.on_failed(reason, self._now_ms()))
            return
        self._perform(session.on_aligned(store.max_log_offset, store.terms.epochs, self._now_ms()))
        if self.on_following is not None:
            self.on_following()

    def _store_run(self, run: Store) -> str:
        """Appends a run to the store; returns the reason if the store refused it, else ""."""
        try:
            self._store.append_raw(run.log_offset, run.data, run.parsed)
        except (StoreError, ReplicationError, RequestRejected, OSError) as error:
            if isinstance(error, StoreError) and error.fatal:
                raise
            return f"{type(error).__name__}: {error}"
        end = run.log_offset + len(run.data)
        assert self._store.appended.value == end, (self._store.appended.value, end)
        assert self._store.max_log_offset == end, (self._store.max_log_offset, end)
        self._last_copied_at = self._last_read_at
        return ""

    async def _compare(self, log_end: int) -> None:
        """Compares this log below `log_end` with the master's; ends without a verdict if it is cancelled."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                verdict = await self._check_tail(log_end)
        except TimeoutError:
            detail = f"the ends of the logs were not compared within {CHECK_TIMEOUT_S:.0f} s"
            verdict = TailVerdict(outcome=TailOutcome.FAILED, log_offset=log_end, detail=detail)
        self._checking = None  # this task: it ends by itself
        self._on_verdict(verdict)

    def _cancel_check(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            self._checking = None

    def _on_verdict(self, verdict: TailVerdict) -> None:
        assert self._connection is not None, "a comparison ends with its connection"
        log_verdict(self._session.address, self._session.tail, verdict)
        self._perform(self._session.on_checked(verdict, self._now_ms()))
        if self._session.state is SlaveState.TRANSFERRING and self.on_following is not None:
            self.on_following()

    def _disconnect(self, reason: str) -> None:
        self._cancel_check()
        self._dialler.cancel()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            log.warning(events.MASTER_LOST, extra={"master": self._session.address, "reason": reason})
            self._notify_lost()

    def _notify_lost(self) -> None:
        # Without an address, the owner itself has removed it.
        if self.on_lost is not None and self._is_started and self._session.address is not None:
            self.on_lost()

    def _arm(self) -> None:
        due_ms = self._session.next_tick_ms()
        if due_ms >= self._timer_due_ms and self._timer is not None:
            return  # ringing early is harmless and re-arms
        self._cancel_timer()
        self._timer_due_ms = due_ms
        if due_ms < NEVER_MS and self._is_started:
            delay_s = max(due_ms - self._now_ms(), 0) / 1000
            self._timer = self._clock.call_later(delay_s, self._guard.run, self._tick)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        assert self._is_started, "a timer ends with its slave"
        self._timer, self._timer_due_ms = None, NEVER_MS
        self._perform(self._session.on_tick(self._now_ms()))

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
