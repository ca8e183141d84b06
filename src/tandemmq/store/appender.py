"""The single writer of a master: stages what one turn of the loop brings, writes it once.

Owns: the tail of the log, the queue offsets that are promised, the time of storing.
Invariants: between two writes everything staged is memory only; a write that fails takes all of it back, so
            an append is stored whole or not at all; STORETIMESTAMP never falls; nothing is written while
            bytes of a failed write may still lie behind the end.
Strategy:   `append` encodes at once with the final offsets, so the write is one call with the staged buffers;
            the limit that a record must end below folds the file's end and the bound of the stage into one
            comparison. Where the bytes go is the `LogTail`'s matter: the files, or the transient pool. A
            write that takes too long makes the store refuse what arrives next, until one is quick again.
            Per message: no task, no future, no lock, no log line.
Knows not:  what sends wait for, what is made of the entries.
Source:     spec store 3.2, 4, 4.1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from tandemmq.errors import Busy, LocalProtocolError, MessageIllegal, ServiceNotAvailable
from tandemmq.protocol.record import NewRecord, RecordCheck, encode_blank, encode_record, record_size
from tandemmq.runtime.ports import Buffer, Clock
from tandemmq.store.admission import Admission, overload
from tandemmq.store.commit_log import CommitLog
from tandemmq.store.confirm import OnDone
from tandemmq.store.consume_queue import ConsumeQueue
from tandemmq.store.consume_queues import ConsumeQueues
from tandemmq.store.options import StoreOptions
from tandemmq.store.outcomes import Appended, PutStatus
from tandemmq.store.recorder import StoreRecorder
from tandemmq.store.replies import Sends
from tandemmq.store.segment import Segment
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

BLANK_BYTES = 8
SECTOR_BYTES = 512
ZERO_SECTOR = bytes(SECTOR_BYTES)
RETRY_AFTER_S = 1.0
"""After a failed write the disk is left alone this long; producers go to another broker."""
BUSY_PAUSE_S = 0.1
"""After a slow write sends are refused this long; then one turn's sends try the disk again."""
_WRITE_FAILED = "write failed"
_PAGE_CACHE_BUSY = "page cache busy"
_UNQUEUED = 0x4  # set in prepared and rolled back transactions, which get no queue entry (spec store 5)

Unit: TypeAlias = "tuple[ConsumeQueue | None, int, int, NewRecord | RecordCheck, int]"
"""(queue, log_offset, size, record, stored_at_ms): what the dispatcher makes table entries of."""


class LogTail(Protocol):
    """Where the bytes of appends go. `end` is where the next one goes, and may be moved by nobody else."""

    end: int

    def room_end(self, position: int) -> int:
        """The end of the file that takes bytes at `position`; `position` itself when none does yet."""

    def open_at(self, offset: int) -> Segment:
        """The file for byte `offset`, ready to take bytes. Raises OSError, or RequestRejected at a bound."""

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Put bytes at `offset` of a file that is ready. Raises OSError."""


class Appender:
    """Stages appends and writes them; `on_written(units, sends, end)` follows each successful write."""

    def __init__(
        self,
        options: StoreOptions,
        *,
        log: CommitLog,
        queues: ConsumeQueues,
        clock: Clock,
        admission: Admission,
        recorder: StoreRecorder,
        on_written: Callable[[list[Unit], Sends, int], None],
        on_refused: Callable[[Sends, PutStatus], None],
        stored_at_ms: int,
    ) -> None:
        self._options = options
        self._log = log
        self._tail: LogTail = log
        self._queues = queues
        self._table = queues.table
        self._clock = clock
        self._admission = admission
        self._recorder = recorder
        self._on_written = on_written
        self._on_refused = on_refused
        self.store_host = options.store_host
        self.stored_at_ms = stored_at_ms  # of the newest record
        self.written_at_ms = stored_at_ms  # of the newest record that is not only staged
        self._dirty: list[tuple[int, int]] = []  # (offset, size) of failed writes that are not zeroed
        self._retry_at = 0.0
        self._busy_until = 0.0
        self._slow_s = options.page_cache_busy_ms / 1000
        self._is_scheduled = False
        self._is_halted = False
        self._forget_stage()

    def _forget_stage(self) -> None:
        """Begin a new stage at the end of the log."""
        self._groups: list[tuple[int, list[Buffer]]] = []  # one write each: (log_offset, buffers)
        self._units: list[Unit] = []
        self._sends: Sends = []
        self._stage_begin = self._position = self._tail.end
        self._segment_end = self._tail.room_end(self._position)
        self._buffers: list[Buffer] = []
        self._open_group()

    def _open_group(self) -> None:
        self._buffers = []
        self._groups.append((self._position, self._buffers))
        self._limit = min(self._segment_end - BLANK_BYTES, self._stage_begin + self._options.staged_bytes_max)

    def restart(self, tail: LogTail) -> None:
        """Go on at the end of `tail`: the store opens, or a slave became master."""
        assert not self._units
        self._tail = tail
        self._forget_stage()

    def append(self, records: Sequence[NewRecord], on_done: OnDone) -> Appended:
        """Where the records will be; they are written at the end of this turn of the loop.

        Raises:  MessageIllegal, ServiceNotAvailable, Busy; then nothing was staged.
        """
        if self._admission.refusal is not None:
            self._refuse()
        if len(records) != 1:
            return self._append_many(records, on_done)
        record = records[0]
        key = (record.topic, record.queue_id)
        queue = self._table.get(key)
        if queue is None:
            queue = self._queues.get_or_create(key)
        now: int = self._clock.now_ms()
        if now < self.stored_at_ms:
            now = self.stored_at_ms
        is_queued = not record.sys_flag & _UNQUEUED
        queue_offset = queue.next_offset if is_queued else 0
        log_offset = self._position
        data = self._encode(record, queue_offset, log_offset, now)
        size = len(data)
        if log_offset + size > self._limit:
            self._make_room((record,), size)
            log_offset = self._position
            data = self._encode(record, queue_offset, log_offset, now)
        elif size > self._options.message_bytes_max:
            self._check_size((record,), size)
        self.stored_at_ms = now
        self._buffers.append(data)
        if is_queued:
            queue.next_offset = queue_offset + 1
            self._units.append((queue, log_offset, size, record, now))
        else:
            self._units.append((None, log_offset, size, record, now))
        self._position = end = log_offset + size
        self._sends.append((end, on_done, record.wait_stored))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._clock.call_soon(self.write_staged)
        return Appended(queue_offset, (log_offset,), end, now)

    def _encode(self, record: NewRecord, queue_offset: int, log_offset: int, stored_at_ms: int) -> bytes:
        properties = record.properties
        if properties.endswith(b"\0") or (len(properties) >= SECTOR_BYTES and ZERO_SECTOR in properties):
            # No checksum covers them; recovery takes such properties for what a power cut left.
            raise MessageIllegal(f"the properties end in a zero byte, or hold {SECTOR_BYTES} in a row")
        try:
            return encode_record(
                record,
                queue_offset=queue_offset,
                log_offset=log_offset,
                stored_at_ms=stored_at_ms,
                store_host=self.store_host,
            )
        except LocalProtocolError as error:
            raise MessageIllegal(str(error)) from None

    def _append_many(self, records: Sequence[NewRecord], on_done: OnDone) -> Appended:
        """A batch: one file, one store time, consecutive offsets, all or nothing (spec store 4.1)."""
        assert records, "an append needs a record"
        try:
            total = sum(record_size(record, len(self.store_host)) for record in records)
        except LocalProtocolError as error:
            raise MessageIllegal(str(error)) from None
        self._check_size(records, total)
        if self._position + total > self._limit:
            self._make_room(records, total)
        now = max(self._clock.now_ms(), self.stored_at_ms)
        position = self._position
        first_offset = 0
        encoded: list[Buffer] = []
        units: list[Unit] = []
        log_offsets: list[int] = []
        try:
            for record in records:
                queue = self._queues.get_or_create((record.topic, record.queue_id))
                is_queued = not record.sys_flag & _UNQUEUED
                queue_offset = queue.next_offset if is_queued else 0
                data = self._encode(record, queue_offset, position, now)
                if not units:
                    first_offset = queue_offset
                queue.next_offset += is_queued
                encoded.append(data)
                units.append((queue if is_queued else None, position, len(data), record, now))
                log_offsets.append(position)
                position += len(data)
        except MessageIllegal:
            _take_back_offsets(units)
            raise
        assert position == self._position + total, (position, self._position, total)
        self.stored_at_ms = now
        self._buffers += encoded
        self._units += units
        self._position = position
        self._sends.append((position, on_done, records[0].wait_stored))
        self._schedule()
        return Appended(first_offset, log_offsets, position, now)

    def _check_size(self, records: Sequence[NewRecord], total: int) -> None:
        body_max = self._options.message_bytes_max
        for record in records:
            if len(record.body) > body_max:
                raise MessageIllegal(f"the message body has {len(record.body)} bytes, at most {body_max}")
        if len(records) == 1 and total > self._options.record_bytes_max:
            raise MessageIllegal(f"the message takes {total} bytes, at most {self._options.record_bytes_max}")
        if total > self._log.segment_bytes - BLANK_BYTES:
            raise MessageIllegal(f"{total} bytes never fit into a file of {self._log.segment_bytes} bytes")

    def _make_room(self, records: Sequence[NewRecord], total: int) -> None:
        """Begin the next file when the staged one cannot take `total` bytes and a BLANK behind them."""
        self._check_size(records, total)
        if self._position + total > self._stage_begin + self._options.staged_bytes_max and self._units:
            raise overload("too many bytes arrived at once, try another broker")
        # Twice when the pool has no buffer yet for a file that is nearly full.
        while self._position + total > self._segment_end - BLANK_BYTES:
            self._begin_file()

    def _begin_file(self) -> None:
        """Go on at the end of the staged file's room: in the next file, as a rule."""
        begin = self._segment_end
        try:
            segment = self._tail.open_at(begin)
        except FileExistsError:
            raise overload("the next file is being made, try again") from None
        except OSError as error:
            self._block(error)
            raise ServiceNotAvailable(f"no room for the next file: {error.strerror}") from None
        remaining = begin - self._position
        if remaining:
            self._buffers.append(encode_blank(remaining))
        assert segment.base <= begin < segment.end, (segment, begin)
        self._position = begin
        self._segment_end = segment.end
        self._open_group()
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._clock.call_soon(self.write_staged)

    def halt(self) -> None:
        """Write nothing any more: the store has failed."""
        self._is_halted = True

    def write_staged(self) -> None:
        """Write everything staged; runs once per turn of the loop, and at the end of the store's life."""
        self._is_scheduled = False
        if not self._sends:
            return  # also on a slave, whose log grows without us
        groups, units, sends, end = self._groups, self._units, self._sends, self._position
        if self._is_halted:
            _take_back_offsets(units)
            self._forget_stage()
            self._on_refused(sends, PutStatus.UNKNOWN_ERROR)
            return
        begun_at = self._clock.monotonic()
        try:
            for offset, buffers in groups:
                if buffers:
                    self._tail.write(offset, buffers)
        except OSError as error:
            self._take_back(groups, units, sends, error)
            return
        took_s = self._clock.monotonic() - begun_at
        self._recorder.append_batch_s.observe(took_s)
        if took_s > self._slow_s or self._busy_until:
            self._watch_speed(took_s)
        self.written_at_ms = self.stored_at_ms
        self._tail.end = self._stage_begin = end
        self._units = []
        self._sends = []
        self._groups = []
        self._open_group()
        self._on_written(units, sends, end)

    def _watch_speed(self, took_s: float) -> None:
        """Shed load while the page cache holds writes up; `_refuse` lets sends try it again.

        Source:  spec store 11.
        """
        if took_s > self._slow_s:
            if not self._busy_until:
                log.warning(events.PAGE_CACHE_BECAME_BUSY, extra={"write_ms": round(took_s * 1000)})
            self._busy_until = self._clock.monotonic() + BUSY_PAUSE_S
            remark = f"[PC_SYNCHRONIZED]the page cache is busy, a write took {took_s * 1000:.0f} ms"
            self._admission.block(_PAGE_CACHE_BUSY, remark, Busy)
        elif not self._admission.is_blocked(_PAGE_CACHE_BUSY):
            self._busy_until = 0.0
            log.warning(events.PAGE_CACHE_BECAME_QUICK, extra={"write_ms": round(took_s * 1000)})

    def _take_back(
        self, groups: list[tuple[int, list[Buffer]]], units: list[Unit], sends: Sends, error: OSError
    ) -> None:
        """Undo a failed write: nothing of it was promised to anyone but its senders."""
        _take_back_offsets(units)
        self._dirty += [(offset, sum(map(len, buffers))) for offset, buffers in groups]
        self._forget_stage()
        self._block(error)
        log.error(
            events.LOG_WRITE_FAILED,
            extra={"log_offset": self._log.end, "send_count": len(sends), "error": str(error)},
        )
        is_clean = self._zero_dirty()
        self._on_refused(sends, PutStatus.SERVICE_NOT_AVAILABLE if is_clean else PutStatus.UNKNOWN_ERROR)

    def _zero_dirty(self) -> bool:
        """Remove what failed writes may have left behind the end, which recovery would take for records."""
        try:
            while self._dirty:
                self._log.zero(*self._dirty[-1])
                self._dirty.pop()
        except OSError:
            return False
        return True

    def _block(self, error: OSError) -> None:
        self._retry_at = self._clock.monotonic() + RETRY_AFTER_S
        self._admission.block(_WRITE_FAILED, f"the disk takes no writes: {error.strerror or error}")

    def _refuse(self) -> None:
        """Raise the standing refusal, or lift it when the disk may be tried again."""
        now = self._clock.monotonic()
        if now >= self._busy_until:
            self._admission.unblock(_PAGE_CACHE_BUSY)
        is_due = now >= self._retry_at
        if self._admission.is_blocked(_WRITE_FAILED) and is_due and not self._is_halted:
            self._retry_at += RETRY_AFTER_S
            if self._zero_dirty():
                self._admission.unblock(_WRITE_FAILED)
                log.warning(events.LOG_WRITE_RESUMED, extra={"log_offset": self._log.end})
        refusal = self._admission.refusal
        if refusal is not None:
            raise refusal()


def _take_back_offsets(units: Sequence[Unit]) -> None:
    for queue, *_ in units:
        if queue is not None:
            queue.next_offset -= 1
