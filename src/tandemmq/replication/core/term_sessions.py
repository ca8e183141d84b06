"""Both ends of one AutoSwitch connection, derived from the classic ones. Pure.

The slave asks the master's remoting port for its history and sends its id; the master answers with the terms
of its log. The slave has the common bytes compared, truncates what the master does not have, and reports its
end. From then on it works as in the classic mode, except for the heads of the frames. A connection belongs to
one term: its list never changes.
Invariants: a slave never truncates below confirmOffset, nor for a master whose log does not know the term
            that this master is said to lead; a byte of a term is stored only after its entry is on disk.
            - Nothing is truncated, reported or stored before the bytes below the consistent point were
              compared. A RocketMQ master does not support the comparison, so there the terms alone decide.
Source:     spec controller 4.1, 4.5, 4.7, 10.6, 10.9, 10.16; decision 023.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tandemmq.errors import RemoteProtocolError
from tandemmq.replication.core.effects import (
    Align,
    CheckTail,
    HaltReason,
    HistoryDiffers,
    MasterEffect,
    RequestHistory,
    Send,
    SlaveEffect,
)
from tandemmq.replication.core.epochs import (
    NO_FILE,
    EpochList,
    EpochsAnswer,
    GroupProof,
    Handshake,
    MasterFrameDecoder,
    SlaveFrameDecoder,
    TermHead,
    conflicting_term,
    consistent_point,
    encode_answer,
    encode_group,
    encode_handshake,
    encode_term_head,
    encode_term_report,
)
from tandemmq.replication.core.frames import TransferDecoder, TransferHead
from tandemmq.replication.core.master import MasterSession
from tandemmq.replication.core.options import FirstTransfer, ReplicationOptions
from tandemmq.replication.core.progress import (
    LogRange,
    MasterState,
    SlaveCause,
    SlaveState,
    StartRule,
    plan_start,
)
from tandemmq.replication.core.slave import NEVER_MS, SlaveSession
from tandemmq.replication.core.verifier import TailOutcome, TailVerdict

ANSWER_MS_MAX: Final = 5_000
"""Fixed in RocketMQ."""


@dataclass(frozen=True, slots=True)
class MasterHistory:
    """The answer of a TandemMQ master to TANDEM_HISTORY. `group_id`: the group that both belong to, None
    while the slave does not know its own. `terms`: the terms of the master's log, with their ids.
    """

    group_id: str | None
    terms: EpochList


class TermMasterSession(MasterSession):
    """The master's session with one slave in one term. `slave`: the identity that it sent, None before its
    handshake. `group_id`: the master's own group, if known.
    """

    __slots__ = ("_confirm_offset", "_epochs", "_group_id", "_sent_confirm_offset", "_slave_frames", "slave")

    def __init__(
        self,
        *,
        options: ReplicationOptions,
        segment_bytes: int,
        now_ms: int,
        epochs: EpochList,
        confirm_offset: Callable[[], int],
        group_id: str | None = None,
    ) -> None:
        super().__init__(options=options, segment_bytes=segment_bytes, now_ms=now_ms)
        self._group_id = group_id
        self._epochs = epochs
        self._confirm_offset = confirm_offset
        self._slave_frames = SlaveFrameDecoder()
        self._sent_confirm_offset = 0
        self.slave: Handshake | None = None

    def on_data(self, data: bytes, log: LogRange, now_ms: int) -> list[MasterEffect]:
        self._read_at_ms = now_ms
        try:
            frames = self._slave_frames.feed(data)
        except RemoteProtocolError as error:
            return self._end(str(error))
        effects: list[MasterEffect] = []
        for frame in frames:
            if isinstance(frame, GroupProof):
                if self._group_id not in (None, frame.group_id):
                    reason = f"the slave belongs to the group {frame.group_id}, we to {self._group_id}"
                    return [*effects, *self._end(reason)]
                continue
            if isinstance(frame, Handshake):
                if self.start is not None or self.slave not in (None, frame):
                    return [*effects, *self._end("the slave sent a handshake during a transfer")]
                assert self._epochs, "a master has a term"
                self.slave = frame
                effects.append(Send(encode_answer(EpochsAnswer(log.end, self._epochs))))
                continue
            if self.slave is None:
                return [*effects, *self._end("the slave sent a report before its handshake")]
            if self.start is None:
                effects += self._answer_first(frame.log_offset, self.slave, log)
            if self.state is MasterState.TRANSFERRING:
                effects += self._acknowledge(frame.log_offset)
            if self.is_closed:
                break
        return effects

    @property
    def has_unsent_confirm_offset(self) -> bool:
        """True if confirmOffset has advanced since the last frame to the slave."""
        return self.state is MasterState.TRANSFERRING and self._confirm_offset() > self._sent_confirm_offset

    def sendable_bytes(self, log: LogRange, now_ms: int, *, bytes_max: int) -> int:
        size = super().sendable_bytes(log, now_ms, bytes_max=bytes_max)
        entry = self._epochs.find(self.next_offset) if size else None
        if entry is None:
            return 0
        rest = self._epochs.end_of(entry, log.end) - self.next_offset
        assert rest > 0, "the byte to send is of the term that was found for it"
        return min(size, rest)

    def _answer_first(self, reported: int, slave: Handshake, log: LogRange) -> list[MasterEffect]:
        """Handles the first report. A slave that is ahead has not aligned its log to this master's."""
        first = FirstTransfer.LAST_FILE if slave.from_last_file else FirstTransfer.FIRST_FILE
        start = plan_start(reported, log, segment_bytes=self._segment_bytes, first_transfer=first)
        if start.rule is StartRule.SLAVE_AHEAD:
            return self._end(f"the slave holds {reported} bytes, this master {log.end}")
        if self._epochs.find(start.log_offset) is None:
            return self._end(f"no term is known of the byte at {start.log_offset}")
        return self._begin(start)

    def _head(self, log_offset: int, size_bytes: int) -> bytes:
        entry = self._epochs.find(log_offset)
        assert entry is not None, log_offset
        before, self._sent_confirm_offset = self._sent_confirm_offset, self._confirm_offset()
        assert before <= self._sent_confirm_offset, (before, self._sent_confirm_offset)
        return encode_term_head(TermHead(log_offset, size_bytes, entry, self._sent_confirm_offset))


class _TermFrameDecoder(TransferDecoder):
    """Converts the heads of the AutoSwitch channel to classic ones, after checking that their term is
    known.
    """

    __slots__ = ("_epochs", "_frames", "confirm_offset")

    def __init__(self, epochs: EpochList) -> None:
        super().__init__()
        self._epochs = epochs
        self._frames = MasterFrameDecoder()
        self.confirm_offset = 0

    @property
    def buffered_bytes(self) -> int:
        return self._frames.buffered_bytes

    @property
    def body_left(self) -> int:
        return self._frames.body_left

    def feed(self, data: bytes | bytearray | memoryview) -> list[TransferHead | memoryview]:
        events: list[TransferHead | memoryview] = []
        for event in self._frames.feed(data):
            if isinstance(event, memoryview):
                events.append(event)
            elif isinstance(event, TermHead):
                if event.log_offset == NO_FILE:
                    continue
                if event.size_bytes and event.entry not in self._epochs.entries:
                    # A master that began a new term continues to send: its list must first be on disk here.
                    raise RemoteProtocolError(f"the master sends bytes of the unknown term {event.entry}")
                self.confirm_offset = max(self.confirm_offset, event.confirm_offset)
                events.append(TransferHead(event.log_offset, event.size_bytes))
        return events


class TermSlaveSession(SlaveSession):
    """The slave's session with the master of one term."""

    __slots__ = (
        "_answer",
        "_answer_decoder",
        "_answer_due_ms",
        "_handshake",
        "_history",
        "_log_end",
        "_master_epoch",
        "_point",
        "confirm_offset",
        "epochs",
        "master_end",
    )

    def __init__(
        self,
        *,
        options: ReplicationOptions,
        segment_bytes: int,
        handshake: Handshake,
        master_epoch: int,
        epochs: EpochList,
        confirm_offset: int,
    ) -> None:
        self.epochs = epochs
        """The terms of this slave's log."""
        self.confirm_offset = confirm_offset
        super().__init__(options=options, segment_bytes=segment_bytes)
        self._handshake = handshake
        self._master_epoch = master_epoch
        self._history: MasterHistory | None = None
        self._answer = EpochsAnswer(0, EpochList())
        self._point = 0
        self._answer_decoder = MasterFrameDecoder()
        self._answer_due_ms = NEVER_MS
        self._log_end = 0
        self.master_end = 0
        """The end of the master's log when it answered the handshake."""

    def on_connected(self, log_end: int) -> list[SlaveEffect]:
        assert log_end >= 0, log_end
        assert self._dialled is not None, "a connection follows a dial"
        self._log_end = log_end
        self._answer_decoder = MasterFrameDecoder()
        self._answer_due_ms = NEVER_MS
        self.start_rule = None
        self._move(SlaveCause.CONNECTED)
        return [RequestHistory()]

    def on_history(self, history: MasterHistory | None, now_ms: int) -> list[SlaveEffect]:
        """Handles the answer to `RequestHistory`; None from a master that does not support it."""
        assert self.state is SlaveState.CHECKING
        assert self._answer_due_ms == NEVER_MS, "nothing was sent to the master yet"
        self._history = history
        self._answer_due_ms = now_ms + ANSWER_MS_MAX
        hello = encode_handshake(self._handshake)
        if history is not None and history.group_id is not None:
            hello = encode_group(history.group_id) + hello
        return [Send(hello)]

    def on_data(self, data: bytes | bytearray | memoryview, now_ms: int, room: int = 0) -> list[SlaveEffect]:
        if self.state is not SlaveState.CHECKING:
            effects = super().on_data(data, now_ms, room)
            assert isinstance(self._decoder, _TermFrameDecoder)
            self.confirm_offset = max(
                self.confirm_offset, min(self._decoder.confirm_offset, self._verifier.log_offset)
            )
            return effects
        try:
            events = self._answer_decoder.feed(memoryview(data)[room:])
        except RemoteProtocolError as error:
            return self._fail(str(error), now_ms)
        answers = [event for event in events if isinstance(event, EpochsAnswer)]
        if not answers or self._answer_due_ms == NEVER_MS:
            return []
        self._answer_due_ms = NEVER_MS
        return self._align(answers[0], now_ms)

    def on_aligned(self, log_end: int, epochs: EpochList, now_ms: int) -> list[SlaveEffect]:
        """Handles the completion of `Align`: its result is on disk. Nothing was reported before it."""
        assert self.state is SlaveState.CHECKING
        assert log_end <= self._log_end, "nothing was stored meanwhile"
        assert log_end >= min(self._log_end, self.confirm_offset), (log_end, self.confirm_offset)
        assert self._answer_due_ms == NEVER_MS, "the answer has come"
        self.epochs = epochs
        self._begin_copy(log_end)
        self.reported = log_end
        self._move(SlaveCause.CHECKED)
        return self._report_first(now_ms)

    def on_tick(self, now_ms: int) -> list[SlaveEffect]:
        if self.state is SlaveState.CHECKING and now_ms >= self._answer_due_ms:
            return self._fail("the master does not answer the handshake", now_ms)
        return super().on_tick(now_ms)

    def next_tick_ms(self) -> int:
        return self._answer_due_ms if self.state is SlaveState.CHECKING else super().next_tick_ms()

    def on_checked(self, verdict: TailVerdict, now_ms: int) -> list[SlaveEffect]:
        """Handles the comparison below the consistent point, which `CheckTail` requested."""
        assert self.state is SlaveState.CHECKING
        assert self._answer_due_ms == NEVER_MS, "the answer has come"
        self.tail = verdict
        if verdict.outcome is TailOutcome.FAILED:
            return self._fail(verdict.detail, now_ms)
        if verdict.outcome is not TailOutcome.DIFFERENT:
            return self._align_at(self._point)
        assert verdict.log_offset < self._point, (verdict, self._point)
        return self._on_divergence(verdict.log_offset, verdict.detail, now_ms)

    def _align(self, answer: EpochsAnswer, now_ms: int) -> list[SlaveEffect]:
        end, self.master_end = self._log_end, answer.log_end
        if self._history is not None:
            answer = answer._replace(epochs=answer.epochs.with_ids(self._history.terms.ids))
        self._answer = answer
        point = consistent_point(self.epochs, end, answer.epochs, answer.log_end)
        conflict = conflicting_term(self.epochs, answer.epochs)
        if conflict is not None and conflict.start < end and point is not None:
            detail = f"term {conflict.epoch} from {conflict.start} on differs from the master's"
            return self._on_divergence(min(conflict.start, point), detail, now_ms)
        if point is None:
            detail = f"no term of this log ({end} bytes) is one of the master's ({answer.log_end} bytes)"
            return self._halt(HaltReason.DIVERGED, end, detail)
        refusal = self._check_cut(point, now_ms)
        if refusal:
            return refusal
        assert 0 <= point <= end, (point, end)
        self._point = point
        return [CheckTail(point)] if point else self._align_at(point)

    def _check_cut(self, point: int, now_ms: int) -> list[SlaveEffect]:
        """Returns no effects if this log may be truncated at `point`, or ends there; otherwise the failure or
        halt.
        """
        if point < self._log_end and self._answer.epochs.last_epoch < self._master_epoch:
            detail = f"its log knows no term {self._master_epoch}: nothing is cut for it"
            return self._fail(detail, now_ms)
        if point < self._log_end and point < self.confirm_offset:
            detail = f"the master's log parts from this one at {point}, confirmed is {self.confirm_offset}"
            return self._halt(HaltReason.DIVERGED, point, detail)
        return []

    def _on_divergence(self, point: int, detail: str, now_ms: int) -> list[SlaveEffect]:
        """Handles a master with a different history from `point` on under equal terms, which correct
        controllers and disks never cause. The slave's log is repaired if it has confirmed nothing beyond
        `point`.
        """
        refusal = self._check_cut(point, now_ms)
        differs = HistoryDiffers(point, detail, is_healed=not refusal)
        return [differs, *(refusal or self._align_at(point))]

    def _align_at(self, point: int) -> list[SlaveEffect]:
        epochs = self.epochs.cut_suffix(point).follow(self._answer.epochs)
        master_entries = set(self._answer.epochs.entries)
        assert all(entry in master_entries for entry in epochs.entries if entry.start >= point), (
            point,
            epochs,
        )
        return [Align(point, epochs)]

    def _report_first(self, now_ms: int) -> list[SlaveEffect]:
        super()._report_first(now_ms)
        return [Send(self._report())]

    def _new_decoder(self) -> TransferDecoder:
        return _TermFrameDecoder(self.epochs)

    def _report(self) -> bytes:
        return encode_term_report(self.reported)
