"""The slave's side of the channel. Pure.

Owns:       when to dial, how a frame is validated, which bytes are stored, what is reported, when to give up
            for good.
Invariants: a byte is stored once, at exactly the log's end, after it was verified; a report follows the
            stores that it acknowledges; the slave retries for ever, except after a halt, which only an
            operator should clear.
Knows not:  sockets, files. Times are monotonic milliseconds. The shell carries out effects in order; if a
            store fails, the shell drops the remaining stores and reports and calls `on_failed`.
Source:     spec replication 4.2, 4.5 to 4.7, 4.10; spec decisions 2, 4, 9.
"""

from __future__ import annotations

from tandemmq.errors import RemoteProtocolError
from tandemmq.replication.core.effects import (
    CheckTail,
    Dial,
    Disconnect,
    Halt,
    HaltReason,
    RejectedBytes,
    Send,
    SlaveEffect,
    Store,
)
from tandemmq.replication.core.frames import (
    HEAD_BYTES,
    TANDEM_BODY_BYTES_MAX,
    TransferDecoder,
    TransferHead,
    encode_report,
)
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.progress import (
    SLAVE_TRANSITIONS,
    RateMeter,
    SlaveCause,
    SlaveState,
    StartRule,
    next_state,
)
from tandemmq.replication.core.verifier import BadRecord, RecordVerifier, TailOutcome, TailVerdict

NEVER_MS = 2**62

_CONNECTED = (SlaveState.DIALING, SlaveState.CHECKING, SlaveState.TRANSFERRING)
"""The states in which a connection exists or may exist."""

_REFUSALS = {
    TailOutcome.DIFFERENT: HaltReason.DIVERGED,
    TailOutcome.SLAVE_AHEAD: HaltReason.SLAVE_AHEAD,
    TailOutcome.TOO_OLD: HaltReason.TOO_OLD,
}


class SlaveSession:
    """The session of one copy of a master's log, over all its connections."""

    __slots__ = (
        "_copied_at_ms",
        "_decoder",
        "_dialled",
        "_has_frames",
        "_is_empty",
        "_options",
        "_read_at_ms",
        "_received_end",
        "_resume_at_ms",
        "_segment_bytes",
        "_verifier",
        "_wrote_at_ms",
        "address",
        "damage_offset",
        "halt",
        "rate",
        "reported",
        "start_rule",
        "state",
        "tail",
    )

    def __init__(self, *, options: ReplicationOptions, segment_bytes: int) -> None:
        assert segment_bytes > 0, segment_bytes
        self._options = options
        self._segment_bytes = segment_bytes
        self._read_at_ms = self._wrote_at_ms = 0
        self._copied_at_ms = 0  # of the last log bytes; `_read_at_ms` also counts heartbeats
        self._dialled: str | None = None
        self._resume_at_ms = NEVER_MS
        self.state = SlaveState.UNASSIGNED
        self.address: str | None = None
        """The address on which the master listens for slaves. A change takes effect at the next attempt."""
        self.reported = 0
        """The last report sent on this connection."""
        self.halt: Halt | None = None
        self.damage_offset: int | None = None
        """The offset of the damaged record on the previous connection. Damage at the same offset again is
        final.
        """
        self.tail: TailVerdict | None = None
        """The result of the last comparison of this log's end with the master's log."""
        self.start_rule: StartRule | None = None
        """The rule by which the copy of this connection began. None before it began, and for an empty slave
        whose master did not report where its log begins.
        """
        self.rate = RateMeter()
        self._begin_copy(0)

    def on_assigned(self, address: str | None) -> list[SlaveEffect]:
        """Handles a master address that became known, changed, or was removed (None).

        A working connection is kept when the address changes (spec replication 4.6). `on_tick` distinguishes
        a working connection from one that is kept alive only by heartbeats.
        """
        assert self.address is not None or self.state in (SlaveState.UNASSIGNED, SlaveState.STOPPED)
        if address == self.address or self.state is SlaveState.STOPPED:
            return []
        self.address = address
        if address is None:
            return self._disconnect(SlaveCause.CLEARED, "the master's address was removed")
        if self.state in _CONNECTED:
            return []
        self._move(SlaveCause.ASSIGNED)
        return self._dial()

    def on_connected(self, log_end: int) -> list[SlaveEffect]:
        """Handles a connection that was established; `log_end` is the end of this slave's log."""
        assert log_end >= 0, log_end
        assert self._dialled is not None, "a connection follows a dial"
        self._begin_copy(log_end)
        self.reported = log_end
        self.start_rule = None
        self._move(SlaveCause.CONNECTED)
        return [CheckTail(log_end)]

    def on_checked(self, verdict: TailVerdict, now_ms: int) -> list[SlaveEffect]:
        """Handles the result of the comparison that `CheckTail` requested; nothing was reported before it."""
        assert self.state is SlaveState.CHECKING
        self.tail = verdict
        if self._has_stale_address():  # the compared log may not be the one to be copied
            return self._fail(f"connected to {self._dialled}, the master is at {self.address} now", now_ms)
        refusal = _REFUSALS.get(verdict.outcome)
        if refusal is not None:
            return self._halt(refusal, verdict.log_offset, verdict.detail)
        if verdict.outcome is TailOutcome.FAILED:
            return self._fail(verdict.detail, now_ms)
        self._move(SlaveCause.CHECKED)
        return self._report_first(now_ms)

    @property
    def frame_left(self) -> int:
        """The most bytes to read next, so that no head follows a body within one read; the body then needs no
        copy.
        """
        return self._decoder.body_left or HEAD_BYTES + TANDEM_BODY_BYTES_MAX

    def on_data(self, data: bytes | bytearray | memoryview, now_ms: int, room: int = 0) -> list[SlaveEffect]:
        """Handles bytes from the master. Returns stores, then at most one report for all of them.

        `room`: the first `room` bytes of `data` carry no data and may be overwritten.
        """
        assert 0 <= room <= len(data), (room, len(data))
        if self.state is not SlaveState.TRANSFERRING:
            return []
        self._read_at_ms = now_ms
        pieces: list[memoryview] = []
        refusal: Halt | str | None = None
        try:
            events = self._decoder.feed(memoryview(data)[room:] if room else data)
            for event in events:
                if not isinstance(event, TransferHead):
                    pieces.append(event)
                    self._received_end += len(event)
                    continue
                refusal = self._check_head(event)
                if refusal is not None:
                    break
        except RemoteProtocolError as error:
            return self._fail(str(error), now_ms)
        is_one = len(pieces) == 1 and events[-1] is pieces[0] and not self._decoder.buffered_bytes
        around = memoryview(data) if room and is_one else None
        effects, bad = self._store_whole_records(pieces, around, now_ms)
        if bad is not None:  # it precedes the refused head, if one was refused
            return effects + self._reject_record(bad, now_ms)
        if isinstance(refusal, Halt):
            return effects + self._halt(refusal.reason, refusal.log_offset, refusal.detail)
        return effects if refusal is None else effects + self._fail(refusal, now_ms)

    def on_tick(self, now_ms: int) -> list[SlaveEffect]:
        """Handles the passage of time: heartbeats, a silent master, or the end of a pause."""
        if self.state is SlaveState.PAUSED and now_ms >= self._resume_at_ms:
            self._move(SlaveCause.RESUMED)
            return self._dial()
        if self.state is not SlaveState.TRANSFERRING:
            return []
        if now_ms - self._read_at_ms > self._options.silence_ms_max:
            self._move(SlaveCause.SILENT)
            return [Disconnect("the master sent nothing for too long"), *self._dial()]
        if self._has_stale_address() and now_ms - self._copied_at_ms > self._options.silence_ms_max:
            self._move(SlaveCause.SILENT)
            reason = f"only heartbeats come from {self._dialled}, the master is at {self.address} now"
            return [Disconnect(reason), *self._dial()]
        if now_ms - self._wrote_at_ms > self._options.heartbeat_interval_ms:
            self._wrote_at_ms = now_ms
            return [Send(self._report())]
        return []

    def on_failed(self, reason: str, now_ms: int) -> list[SlaveEffect]:
        """Handles a failed connection attempt, a broken connection, or a store error: retries after a pause.

        The returned `Disconnect` closes any remaining part of the connection.
        """
        if self.state not in _CONNECTED:
            return []
        return self._fail(reason, now_ms)

    def on_stopped(self) -> list[SlaveEffect]:
        return self._disconnect(SlaveCause.STOPPED, "the slave stops")

    def next_tick_ms(self) -> int:
        """Returns the earliest time at which `on_tick` has work to do; NEVER_MS if only events can change
        anything.
        """
        if self.state is SlaveState.PAUSED:
            assert self._resume_at_ms < NEVER_MS, "a pause ends"
            return self._resume_at_ms
        if self.state is not SlaveState.TRANSFERRING:
            return NEVER_MS
        silent_since_ms = self._copied_at_ms if self._has_stale_address() else self._read_at_ms
        return 1 + min(
            silent_since_ms + self._options.silence_ms_max,
            self._wrote_at_ms + self._options.heartbeat_interval_ms,
        )

    def _has_stale_address(self) -> bool:
        """Returns True if the connection is to an address that is no longer the master's. An empty slave may
        run there now whose log begins beyond this one's end; it could then send only heartbeats for ever.
        """
        return self._dialled != self.address

    def _report_first(self, now_ms: int) -> list[SlaveEffect]:
        assert self.reported == self._received_end == self._verifier.log_offset, (self.reported, now_ms)
        self._read_at_ms = self._wrote_at_ms = self._copied_at_ms = now_ms
        if not self._is_empty:
            self.start_rule = StartRule.RESUMED
        # Twice: see DETECTION_MS in master.py.
        return [Send(encode_report(self.reported) * 2)]

    def _begin_copy(self, log_end: int) -> None:
        self._decoder = self._new_decoder()
        self._received_end = log_end
        self._is_empty = log_end == 0
        self._has_frames = False
        self._verifier = self._new_verifier(log_end)

    def _new_decoder(self) -> TransferDecoder:
        return TransferDecoder()

    def _report(self) -> bytes:
        return encode_report(self.reported)

    def _new_verifier(self, log_offset: int) -> RecordVerifier:
        return RecordVerifier(
            log_offset, segment_bytes=self._segment_bytes, record_bytes_max=self._options.record_bytes_max
        )

    def _check_head(self, head: TransferHead) -> Halt | str | None:
        """Returns None if the frame may follow the bytes received so far. Otherwise returns a `Halt`, or the
        reason for reconnecting. The head is checked before its body (spec replication 4.5).
        """
        is_first, self._has_frames = not self._has_frames, True
        offset, size = head
        if offset % self._segment_bytes + size > self._segment_bytes:
            detail = f"{size} bytes from {offset} on cross the end of a file of {self._segment_bytes} bytes"
            return Halt(reason=HaltReason.FILE_SIZES_DIFFER, log_offset=offset, detail=detail)
        if self._is_empty:
            if offset % self._segment_bytes:
                detail = f"an empty slave is sent bytes from {offset} on, inside a file"
                return Halt(reason=HaltReason.FILE_SIZES_DIFFER, log_offset=offset, detail=detail)
            assert self.reported == 0, self.reported
            assert self._verifier.held_bytes == 0, "a copy begins once"
            self._received_end = offset
            self._verifier = self._new_verifier(offset)
            self._is_empty = size == 0
            self.start_rule = self._rule_of(offset)
            return None
        if offset == self._received_end:
            return None
        if is_first and size == 0 and offset < self._received_end:
            detail = f"the master's log ends at {offset}, ours at {self._received_end}"
            if self._has_stale_address():
                return f"{detail}; the master is at {self.address} now"
            return Halt(reason=HaltReason.SLAVE_AHEAD, log_offset=offset, detail=detail)
        return f"a frame begins at {offset}, expected was {self._received_end}"

    def _rule_of(self, log_offset: int) -> StartRule | None:
        """Returns the rule by which an empty slave receives bytes from `log_offset` on, or None if it cannot
        be determined.
        """
        master_start = 0 if self.tail is None else self.tail.master_start
        if log_offset == 0 or log_offset == master_start:
            return StartRule.FIRST_FILE
        return None if master_start is None else StartRule.LAST_FILE

    def _store_whole_records(
        self, pieces: list[memoryview], around: memoryview | None, now_ms: int
    ) -> tuple[list[SlaveEffect], BadRecord | None]:
        """Returns stores for all whole records and the report that follows them; also the first invalid
        record, if any.
        """
        if not pieces:
            return [], None
        begin = self._verifier.log_offset
        runs, bad = self._verifier.feed(pieces, around)
        # Each byte that came is stored or held.
        end = self._verifier.log_offset
        assert end + self._verifier.held_bytes == self._received_end, (end, self._received_end)
        assert begin + sum(len(run.data) for run in runs) == end, (begin, end)
        self._copied_at_ms = now_ms
        self.rate.add(sum(map(len, pieces)), now_ms)
        effects: list[SlaveEffect] = [Store(*run) for run in runs]
        if runs:
            assert runs[0].log_offset == begin, (runs[0].log_offset, begin)
            assert self.reported < end, (self.reported, end)
            self.reported = end
            self._wrote_at_ms = now_ms
            effects.append(Send(self._report()))
        return effects, bad

    def _reject_record(self, bad: BadRecord, now_ms: int) -> list[SlaveEffect]:
        assert bad.log_offset == self._verifier.log_offset, (bad, self._verifier.log_offset)
        is_final = bad.log_offset == self.damage_offset
        self.damage_offset = bad.log_offset
        damage = RejectedBytes(log_offset=bad.log_offset, reason=bad.reason, is_final=is_final)
        if is_final:
            return [damage, *self._halt(HaltReason.DAMAGED, bad.log_offset, bad.reason)]
        # Nothing of it was stored, so damage in transit is repaired by asking again.
        return [damage, *self._fail(f"damaged record at {bad.log_offset}: {bad.reason}", now_ms)]

    def _fail(self, reason: str, now_ms: int) -> list[SlaveEffect]:
        self._resume_at_ms = now_ms + self._options.reconnect_delay_ms
        return self._disconnect(SlaveCause.FAILED, reason)

    def _disconnect(self, cause: SlaveCause, reason: str) -> list[SlaveEffect]:
        has_connection = self.state in _CONNECTED
        self._move(cause)
        assert self.state not in _CONNECTED, (cause, self.state)
        return [Disconnect(reason)] if has_connection else []

    def _halt(self, reason: HaltReason, log_offset: int, detail: str) -> list[SlaveEffect]:
        assert self.halt is None, "nothing is copied after a halt"
        self._move(SlaveCause.REFUSED)
        assert self.state is SlaveState.HALTED, self.state
        halt = Halt(reason=reason, log_offset=log_offset, detail=detail)
        self.halt = halt
        return [halt, Disconnect(detail)]

    def _dial(self) -> list[SlaveEffect]:
        assert self.address is not None
        assert self.state is SlaveState.DIALING, self.state
        self.halt = None
        self._dialled = self.address
        return [Dial(self.address)]

    def _move(self, cause: SlaveCause) -> None:
        self.state = next_state(SLAVE_TRANSITIONS, self.state, cause)
