"""The master's side of one slave connection. Pure.

Owns:       what the slave requested, what was sent and acknowledged, when to send a heartbeat or drop the
            slave.
Invariants: next_offset only rises, and every byte below it was returned once, in order, from the start point
            on; a frame never crosses a segment; an acknowledgement never exceeds the bytes sent.
Knows not:  sockets, files, other slaves. Times are monotonic milliseconds.
Source:     spec replication 4.2 to 4.8, 4.10; spec decisions 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tandemmq.errors import RemoteProtocolError
from tandemmq.replication.core.effects import (
    Acknowledged,
    Disconnect,
    FellBehind,
    MasterEffect,
    Send,
    TransferStarted,
)
from tandemmq.replication.core.frames import HEAD_BYTES, TANDEM_BODY_BYTES_MAX, ReportDecoder, encode_head
from tandemmq.replication.core.options import FirstTransfer, ReplicationOptions
from tandemmq.replication.core.progress import (
    MASTER_TRANSITIONS,
    SECOND_MS,
    LogRange,
    MasterCause,
    MasterState,
    RateMeter,
    StartRule,
    TransferStart,
    next_state,
    plan_start,
)
from tandemmq.units import align_down

DETECTION_MS = 1_000
"""The time within which a TandemMQ slave repeats its first report. A RocketMQ slave repeats a report only
after its heartbeat interval, and to a RocketMQ master the repetition means nothing. Two TandemMQ brokers thus
recognise each other (spec decisions 4).
"""


class MasterSession:
    """The session of one slave, for the duration of its connection."""

    __slots__ = (
        "_decoder",
        "_first_report",
        "_first_report_at_ms",
        "_known_ahead",
        "_options",
        "_read_at_ms",
        "_segment_bytes",
        "_wrote_at_ms",
        "acknowledged",
        "is_tandem",
        "next_offset",
        "rate",
        "start",
        "state",
    )

    def __init__(
        self,
        *,
        options: ReplicationOptions,
        segment_bytes: int,
        now_ms: int,
        known_ahead: Callable[[], Mapping[int, int]] = lambda: MappingProxyType({}),
    ) -> None:
        """`known_ahead`: returns the mapping that `plan_start` needs, as it is when the first report is
        answered.
        """
        assert segment_bytes > 0, segment_bytes
        self._options = options
        self._known_ahead = known_ahead
        self._segment_bytes = segment_bytes
        self._decoder = ReportDecoder()
        self._read_at_ms = self._wrote_at_ms = now_ms
        self._first_report: int | None = None
        self._first_report_at_ms = now_ms  # when the first report arrived
        self.state = MasterState.SUBSCRIBING
        self.is_tandem = False
        """True once the slave has shown that it is a TandemMQ slave."""
        self.start: TransferStart | None = None
        """The answer to the first report."""
        self.next_offset = 0
        self.acknowledged = 0
        self.rate = RateMeter()

    @property
    def is_closed(self) -> bool:
        return self.state is MasterState.CLOSED

    def on_data(self, data: bytes, log: LogRange, now_ms: int) -> list[MasterEffect]:
        """Handles bytes from the slave. Of the acknowledgements that arrive together, the last one counts."""
        self._read_at_ms = now_ms
        try:
            reports = self._decoder.feed(data)
        except RemoteProtocolError as error:
            return self._end(str(error))
        if not reports:
            return []
        self._detect_tandem(reports, now_ms)
        effects: list[MasterEffect] = []
        if self.start is None:
            if self._awaits_detection(log, now_ms):
                return []
            effects += self._subscribe(log)
        if self.state is MasterState.AHEAD and self.is_tandem:
            # A head before the slave's own end shows a TandemMQ slave that it is ahead; it will not
            # reconnect.
            assert self.start is not None
            effects.append(Send(self._head(self.start.master_end, 0)))
            effects += self._end("the slave holds more than this master")
        elif self.state is MasterState.TRANSFERRING:
            effects += self._acknowledge(reports[-1])
        return effects

    def on_tick(self, log: LogRange, now_ms: int, *, can_write: bool) -> list[MasterEffect]:
        """Handles the passage of time. `can_write` is False while earlier frames wait for the socket."""
        assert now_ms >= self._read_at_ms, (now_ms, self._read_at_ms)
        if self.state is MasterState.CLOSED:
            return []
        if now_ms - self._read_at_ms > self._options.silence_ms_max:
            return self._end("the slave sent nothing for too long")
        if self.state is MasterState.SUBSCRIBING:
            if self._first_report is None or self._awaits_detection(log, now_ms):
                return []
            return [*self._subscribe(log), *self._acknowledge(self._first_report)]
        effects: list[MasterEffect] = []
        if self.state is MasterState.TRANSFERRING and self.next_offset < log.start:
            # Heartbeats alone would look to the slave as if it had everything; a new connection shows it.
            reason = f"the log no longer has the slave's next byte, {self.next_offset}"
            return [FellBehind(self.next_offset, log.start), *self._end(reason)]
        if can_write and now_ms - self._wrote_at_ms > self._options.heartbeat_interval_ms:
            effects.append(self.heartbeat(now_ms))
        return effects

    def heartbeat(self, now_ms: int) -> Send:
        """Returns a head without a body."""
        assert self.start is not None, "nothing is sent before the first report"
        assert now_ms >= self._wrote_at_ms, (now_ms, self._wrote_at_ms)
        self._wrote_at_ms = now_ms
        return Send(self._head(self.next_offset, 0))

    def on_closed(self) -> None:
        """Handles the end of the connection, whichever side closed it."""
        self.state = next_state(MASTER_TRANSITIONS, self.state, MasterCause.ENDED)

    def next_tick_ms(self, now_ms: int) -> int:
        """Returns the earliest time at which `on_tick` has work to do."""
        silent_ms = self._read_at_ms + self._options.silence_ms_max + 1
        if self.state is MasterState.SUBSCRIBING:
            return silent_ms if self._first_report is None else self._first_report_at_ms + DETECTION_MS + 1
        due_ms = min(silent_ms, self._wrote_at_ms + self._options.heartbeat_interval_ms + 1)
        if self._options.flow_control and self._allowance(now_ms) <= HEAD_BYTES:
            due_ms = min(due_ms, now_ms - now_ms % SECOND_MS + SECOND_MS)
        return due_ms

    def sendable_bytes(self, log: LogRange, now_ms: int, *, bytes_max: int) -> int:
        """Returns the number of bytes from `next_offset` on that may be sent now: at most `bytes_max`, within
        one segment; 0 if none.
        """
        if self.state is not MasterState.TRANSFERRING or self.next_offset < log.start:
            return 0
        size_bytes = min(log.end - self.next_offset, bytes_max)
        if size_bytes <= 0:
            return 0
        size_bytes = min(size_bytes, self._segment_bytes - self.next_offset % self._segment_bytes)
        if self._options.flow_control:
            whole, part = divmod(self._allowance(now_ms), self._frame_bytes + HEAD_BYTES)
            size_bytes = min(size_bytes, whole * self._frame_bytes + max(part - HEAD_BYTES, 0))
        assert 0 <= size_bytes <= bytes_max, (size_bytes, bytes_max)
        return size_bytes

    def frames(self, view: memoryview, now_ms: int) -> list[bytes | memoryview]:
        """Returns the heads and bodies that carry `view`: the log's bytes from `next_offset` on, within one
        segment.
        """
        assert self.state is MasterState.TRANSFERRING, self.state
        pieces: list[bytes | memoryview] = []
        batch = self._frame_bytes
        size = len(view)
        assert size <= self._segment_bytes - self.next_offset % self._segment_bytes
        for position in range(0, size, batch):
            body = view[position : position + batch]
            pieces.append(self._head(self.next_offset + position, len(body)))
            pieces.append(body)
        self.next_offset += size
        self._wrote_at_ms = now_ms
        self.rate.add(size + len(pieces) // 2 * HEAD_BYTES, now_ms)
        return pieces

    @property
    def _frame_bytes(self) -> int:
        """The longest body of a frame."""
        batch = self._options.transfer_bytes_max
        return max(batch, TANDEM_BODY_BYTES_MAX) if self.is_tandem else batch

    def _head(self, log_offset: int, size_bytes: int) -> bytes:
        """Encodes the head of a frame; 0 bytes make a heartbeat."""
        return encode_head(log_offset, size_bytes)

    def _subscribe(self, log: LogRange) -> list[MasterEffect]:
        assert self._first_report is not None
        start = plan_start(
            self._first_report,
            log,
            segment_bytes=self._segment_bytes,
            first_transfer=self._options.first_transfer,
            is_tandem=self.is_tandem,
            known_ahead=self._known_ahead(),
        )
        return self._begin(start)

    def _begin(self, start: TransferStart) -> list[MasterEffect]:
        """Begins the transfer, or none if the slave cannot be served."""
        assert self.start is None, "a transfer begins once"
        assert self.next_offset == 0, "nothing was sent before"
        self.start = start
        self.next_offset = start.log_offset
        self.state = next_state(MASTER_TRANSITIONS, self.state, _CAUSES[start.rule])
        return [TransferStarted(start)]

    def _detect_tandem(self, reports: tuple[int, ...], now_ms: int) -> None:
        assert reports, "there is a report"
        if self._first_report is None:
            self._first_report, self._first_report_at_ms = reports[0], now_ms
            reports = reports[1:]
        is_early = now_ms - self._first_report_at_ms <= DETECTION_MS
        if reports and is_early and reports[0] == self._first_report:
            self.is_tandem = True

    def _awaits_detection(self, log: LogRange, now_ms: int) -> bool:
        """Returns True while the start depends on whether the slave is from TandemMQ or RocketMQ. A RocketMQ
        slave waits meanwhile.
        """
        return (
            self._first_report == 0
            and not self.is_tandem
            and self._options.first_transfer is FirstTransfer.NEGOTIATED
            and align_down(log.end, self._segment_bytes) > log.start
            and now_ms - self._first_report_at_ms <= DETECTION_MS
        )

    def _acknowledge(self, reported: int) -> list[MasterEffect]:
        assert self.start is not None
        assert self.state is MasterState.TRANSFERRING, self.state
        if reported > max(self.next_offset, self.start.reported):
            return self._end(f"the slave acknowledges {reported}, sent were {self.next_offset} bytes")
        self.acknowledged = reported
        return [Acknowledged(reported)]

    def _allowance(self, now_ms: int) -> int:
        """Returns the bytes, heads included, that may still be sent in this second."""
        return max(self._options.sent_bytes_per_second_max - self.rate.this_second(now_ms), 0)

    def _end(self, reason: str) -> list[MasterEffect]:
        assert reason, "a closed connection has a reason"
        self.state = next_state(MASTER_TRANSITIONS, self.state, MasterCause.ENDED)
        return [Disconnect(reason)]


_CAUSES = {
    StartRule.RESUMED: MasterCause.STARTED,
    StartRule.LAST_FILE: MasterCause.STARTED,
    StartRule.FIRST_FILE: MasterCause.STARTED,
    StartRule.SLAVE_AHEAD: MasterCause.FOUND_AHEAD,
    StartRule.SLAVE_TOO_OLD: MasterCause.FOUND_TOO_OLD,
}
assert _CAUSES.keys() == set(StartRule), _CAUSES
assert MASTER_TRANSITIONS[MasterState.SUBSCRIBING].keys() >= set(_CAUSES.values()), _CAUSES
