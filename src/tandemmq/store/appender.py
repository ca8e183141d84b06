"""The single writer of a master: stages the appends of one turn of the loop, writes them at once, and sheds
load while writes to the page cache take too long.

Owns:       the tail of the log, the assigned queue offsets, the store time.
Invariants: staged records are in memory only until they are written. A failed write undoes the whole stage,
            so an append is stored whole or not at all. STORETIMESTAMP never falls. Nothing is written while
            bytes of a failed write may remain after the end of the log.
Strategy:   `append` encodes at once with the final offsets, so the write is one call with the staged buffers.
            `_limit` combines the end of the file and the bound of the stage, so that a record needs one
            comparison. The `LogTail` decides the destination of the bytes: the files, or the transient pool.
            `FailedWrites` and `WriteSpeed` handle failed and slow writes. Per message: no task, no future, no
            lock, no log line. One slow write makes the store refuse the next arrivals; after a pause one
            turn's sends try the disk again, and a fast write ends the refusal.
Knows not:  the waits of sends, the tables built from entries.
Source:     spec store 3.2, 4, 4.1; spec store 11.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from tandemmq.errors import Busy, MessageIllegal, RequestRejected, ServiceNotAvailable
from tandemmq.protocol.record import NewBatch, NewRecord, encode_blank
from tandemmq.protocol.sys_flag import TRANSACTION_PREPARED
from tandemmq.store.admission import Admission, overload
from tandemmq.store.confirm import OnDone
from tandemmq.store.consume_queue import ConsumeQueue
from tandemmq.store.core import StoreCore
from tandemmq.store.failed_writes import FailedWrites
from tandemmq.store.outcomes import Appended, PutStatus
from tandemmq.store.record_block import PlacedBatch, Unit, count_records
from tandemmq.store.record_maker import BLANK_BYTES, RecordMaker
from tandemmq.store.replies import Sends
from tandemmq.store.segmented_log import Segment
from tandemmq.telemetry import events
from tandemmq.units import Buffer

log = logging.getLogger(__name__)

BUSY_PAUSE_S = 0.1
"""The time in seconds for which sends are refused after a slow write. The sends of the next turn then try the
disk again.
"""
_PAGE_CACHE_BUSY = "page cache busy"


class LogTail(Protocol):
    """The destination of appended bytes. `end` is the next position; only the owner of the tail moves it."""

    end: int

    def room_end(self, position: int) -> int:
        """Returns the end of the file that contains `position`; `position` itself if there is no such file
        yet.
        """

    def open_at(self, offset: int) -> Segment:
        """Returns the file for byte `offset`, ready for writes. Raises OSError, or RequestRejected at a
        bound.
        """

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Writes bytes at `offset` of a ready file. Raises OSError."""


class PlacedBlock(NamedTuple):
    """The positions of the records of a block."""

    log_offsets: Sequence[int]
    queue_offsets: Sequence[int]
    sizes: Sequence[int]


class Appender:
    """Stages appends and writes them; `on_written(units, sends, end)` follows each successful write."""

    def __init__(
        self,
        core: StoreCore,
        *,
        failed: FailedWrites,
        on_written: Callable[[list[Unit], Sends, int], None],
        on_refused: Callable[[Sends, PutStatus], None],
    ) -> None:
        options = self._options = core.options
        self._tail: LogTail = core.log
        self._queues = core.queues
        self._table = core.queues.table
        self._clock = core.clock
        self._admission = core.admission
        self._recorder = core.recorder
        self._on_written = on_written
        self._on_refused = on_refused
        self._failed = failed
        self._speed = WriteSpeed(options.page_cache_busy_ms / 1000, core.admission)
        self._maker = RecordMaker(options)
        self.stored_at_ms = 0  # of the newest record
        self.written_at_ms = 0  # of the newest written record, staged ones excluded
        self._is_scheduled = False
        self._forget_stage()

    def _forget_stage(self) -> None:
        """Begins a new stage at the end of the log."""
        self._groups: list[tuple[int, list[Buffer]]] = []  # one write each: (log_offset, buffers)
        self._units: list[Unit] = []
        self._sends: Sends = []
        self._stage_begin = self._position = self._tail.end
        self._segment_end = self._tail.room_end(self._position)
        self._buffers: list[Buffer] = []
        self._open_group()

    def _open_group(self) -> None:
        # Without a file the two ends are equal, and the first append begins the next file.
        assert self._stage_begin <= self._position <= self._segment_end
        self._buffers = []
        self._groups.append((self._position, self._buffers))
        self._limit = min(self._segment_end - BLANK_BYTES, self._stage_begin + self._options.staged_bytes_max)

    @property
    def store_host(self) -> bytes:
        return self._maker.store_host

    @store_host.setter
    def store_host(self, value: bytes) -> None:
        self._maker.store_host = value

    def restart(self, tail: LogTail, stored_at_ms: int) -> None:
        """Continues at the end of `tail`, whose newest record was stored at `stored_at_ms`.

        Called when the store opens, or when a slave became master.
        """
        assert not self._units
        assert not self._sends
        self._tail = tail
        self.stored_at_ms = max(self.stored_at_ms, stored_at_ms)
        self.written_at_ms = self.stored_at_ms
        self._forget_stage()

    def append(self, records: Sequence[NewRecord], on_done: OnDone) -> Appended:
        """Stages records and returns their positions; they are written at the end of this turn of the loop.

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
        is_queued = not record.sys_flag & TRANSACTION_PREPARED
        queue_offset = queue.next_offset if is_queued else 0
        log_offset = self._position
        data = self._maker.encode(record, queue_offset, log_offset, now)
        size = len(data)
        if log_offset + size > self._limit:
            self._make_room((record,), size)
            log_offset = self._position
            data = self._maker.encode(record, queue_offset, log_offset, now)
        elif size > self._options.message_bytes_max:
            self._maker.check_size((record,), size)
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

    def _append_many(self, records: Sequence[NewRecord], on_done: OnDone) -> Appended:
        """Appends a batch: one file, one store time, consecutive offsets, all or nothing (spec store 4.1)."""
        assert records, "an append needs a record"
        now = self._next_time()
        first_offset, units, encoded, end = self._encode_many(records, now)
        total = end - self._position
        try:
            if end > self._limit:
                self._make_room(records, total)
            elif total > self._options.message_bytes_max:
                self._maker.check_size(records, total)
        except RequestRejected:
            _undo_offsets(units)
            raise
        if units[0][1] != self._position:
            _undo_offsets(units)
            first_offset, units, encoded, end = self._encode_many(records, now)
        assert end - self._position == total, "records are as long wherever they lie"
        assert end <= self._segment_end - BLANK_BYTES, "a record leaves room for the filler behind it"
        self.stored_at_ms = now
        self._buffers += encoded
        self._units += units
        self._position = end
        self._sends.append((end, on_done, records[0].wait_stored))
        self._schedule()
        return Appended(first_offset, [unit[1] for unit in units], end, now)

    def append_batch(self, batch: NewBatch, on_done: OnDone) -> Appended:
        """Stages a batch, as `append` does; for non-transactional messages of one queue."""
        if self._admission.refusal is not None:
            self._refuse()
        assert len(batch), "a batch has a message"
        assert not batch.sys_flag & TRANSACTION_PREPARED
        queue = self._queues.get_or_create((batch.topic, batch.queue_ids[0]))
        assert not queue.is_schedule
        sizes = self._maker.plan_batch(batch)
        total = sum(sizes)
        if self._position + total > self._limit:
            self._make_room(batch.records(), total)
        elif total > self._options.message_bytes_max:
            self._maker.check_size(batch.records(), total)
        first_offset = queue.next_offset
        next_offset = first_offset + len(batch)
        log_offsets = self._stage(batch, sizes, range(first_offset, next_offset), queue, (), on_done)
        queue.next_offset = next_offset
        return Appended(first_offset, log_offsets, self._position, self.stored_at_ms)

    def append_block(self, block: NewBatch, on_done: OnDone) -> PlacedBlock | None:
        """Stages single messages of any queues of one topic, with the result of an `append` of each.

        Returns None, and stages nothing, if they must be appended one by one: one may be refused, or does not
        fit into the file.
        """
        assert len(block), "a block has a message"
        assert block.wait_stored, "the sends of a block wait"
        assert not block.sys_flag & TRANSACTION_PREPARED
        if self._admission.refusal is not None:
            return None
        try:
            sizes = self._maker.plan_batch(block)
        except MessageIllegal:
            return None
        if self._position + sum(sizes) > self._limit or max(sizes) > self._options.message_bytes_max:
            return None
        by_id = {
            queue_id: self._queues.get_or_create((block.topic, queue_id)) for queue_id in set(block.queue_ids)
        }
        next_offsets = {queue_id: queue.next_offset for queue_id, queue in by_id.items()}
        queue_offsets: list[int] = []
        for queue_id in block.queue_ids:
            queue_offset = next_offsets[queue_id]
            queue_offsets.append(queue_offset)
            next_offsets[queue_id] = queue_offset + 1
        queues = list(map(by_id.__getitem__, block.queue_ids))
        log_offsets = self._stage(block, sizes, queue_offsets, None, queues, on_done)
        for queue_id, queue in by_id.items():
            queue.next_offset = next_offsets[queue_id]
        return PlacedBlock(log_offsets, queue_offsets, sizes)

    def _stage(
        self,
        batch: NewBatch,
        sizes: list[int],
        queue_offsets: Sequence[int],
        queue: ConsumeQueue | None,
        queues: Sequence[ConsumeQueue],
        on_done: OnDone,
    ) -> list[int]:
        """Stages the planned records of a batch, for which there is room; returns their log offsets."""
        now, begin = self._next_time(), self._position
        log_offsets = list(accumulate(sizes[:-1], initial=begin))
        data = self._maker.encode_batch(batch, sizes, log_offsets, queue_offsets, now)
        total = sum(sizes)
        assert len(data) == total, (len(data), total)
        assert begin + total <= self._segment_end - BLANK_BYTES, (
            "a batch leaves room for the filler behind it"
        )
        self._buffers.append(data)
        placed = PlacedBatch(
            batch.topic,
            batch.sys_flag,
            log_offsets,
            sizes,
            batch.tag_hashes,
            [now] * len(sizes),
            batch.unique_keys,
            batch.keys,
            queues,
        )
        self.stored_at_ms = now
        self._units.append((queue, begin, total, placed, now))
        self._position = end = begin + total
        # The messages of a block, which has queues, are sends of their own; a batch is one send.
        wait_count = len(queues) if queues else int(batch.wait_stored)
        self._sends.append((end, on_done, wait_count))
        self._schedule()
        return log_offsets

    def _next_time(self) -> int:
        """Returns the store time of a new record: not before the previous one."""
        return max(self._clock.now_ms(), self.stored_at_ms)

    def _encode_many(
        self, records: Sequence[NewRecord], now: int
    ) -> tuple[int, list[Unit], list[Buffer], int]:
        """Encodes records at the end of the stage and assigns their queue offsets.

        Returns the first queue offset, the units, their bytes, and their end. Raises MessageIllegal: then no
        offset is assigned.
        """
        encode, position = self._maker.encode, self._position
        units: list[Unit] = []
        encoded: list[Buffer] = []
        topic, queue_id = records[0].topic, records[0].queue_id
        queue = self._queues.get_or_create((topic, queue_id))
        first_offset = 0 if records[0].sys_flag & TRANSACTION_PREPARED else queue.next_offset
        try:
            for record in records:
                if record.queue_id != queue_id or record.topic != topic:
                    topic, queue_id = record.topic, record.queue_id
                    queue = self._queues.get_or_create((topic, queue_id))
                if record.sys_flag & TRANSACTION_PREPARED:
                    data = encode(record, 0, position, now)
                    units.append((None, position, len(data), record, now))
                else:
                    data = encode(record, queue.next_offset, position, now)
                    queue.next_offset += 1
                    units.append((queue, position, len(data), record, now))
                encoded.append(data)
                position += len(data)
        except MessageIllegal:
            _undo_offsets(units)
            raise
        return first_offset, units, encoded, position

    def _make_room(self, records: Sequence[NewRecord], total: int) -> None:
        """Begins the next file if the staged one cannot hold `total` bytes and a BLANK after them."""
        self._maker.check_size(records, total)
        if self._position + total > self._stage_begin + self._options.staged_bytes_max and self._units:
            raise overload("too many bytes arrived at once, try another broker")
        # Runs twice if the pool has no buffer yet for a file that is nearly full.
        while self._position + total > self._segment_end - BLANK_BYTES:
            self._begin_file()

    def _begin_file(self) -> None:
        """Continues at the end of the staged file, usually in the next file."""
        begin = self._segment_end
        try:
            segment = self._tail.open_at(begin)
        except FileExistsError:
            raise overload("the next log file is being created; try again") from None
        except OSError as error:
            self._failed.refuse(error)
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

    def write_staged(self) -> None:
        """Writes everything staged; runs once per turn of the loop, and when the store closes."""
        self._is_scheduled = False
        if not self._sends:
            return  # also on a slave, whose log grows through `ReplicaLog`
        groups, units, sends, end = self._groups, self._units, self._sends, self._position
        if self._admission.has_failed:
            _undo_offsets(units)
            self._forget_stage()
            self._on_refused(sends, PutStatus.UNKNOWN_ERROR)
            return
        # Only this class moves the end, and acknowledged bytes are below it.
        assert self._stage_begin == self._tail.end < end, (self._stage_begin, self._tail.end, end)
        assert units, "each send has a record"
        begun_at = self._clock.monotonic()
        try:
            for offset, buffers in groups:
                if buffers:
                    self._tail.write(offset, buffers)
        except OSError as error:
            self._undo_write(groups, units, sends, error)
            return
        ended_at = self._clock.monotonic()
        took_s = ended_at - begun_at
        self._recorder.append_batch_s.observe(took_s)
        speed = self._speed
        if took_s > speed.slow_s or speed.is_watching:
            speed.record(took_s, ended_at)
        assert self.written_at_ms <= self.stored_at_ms, "times of storing never fall"
        self.written_at_ms = self.stored_at_ms
        self._tail.end = self._stage_begin = end
        self._units = []
        self._sends = []
        self._groups = []
        self._open_group()
        self._on_written(units, sends, end)

    def _undo_write(
        self, groups: list[tuple[int, list[Buffer]]], units: list[Unit], sends: Sends, error: OSError
    ) -> None:
        """Undoes a failed write; no reader has seen its records."""
        assert groups[0][0] == self._tail.end, "what is stored is never taken back"
        _undo_offsets(units)
        self._forget_stage()
        ranges = [(offset, sum(map(len, buffers))) for offset, buffers in groups]
        self._failed.undo(ranges, sends, error)

    def _refuse(self) -> None:
        """Raises the error of the current refusal, unless the pause after a failed or slow write is over."""
        now = self._clock.monotonic()
        self._speed.retry(now)
        self._failed.retry(now)
        refusal = self._admission.refusal
        if refusal is not None:
            raise refusal()


def _undo_offsets(units: Sequence[Unit]) -> None:
    for unit in units:
        queue, record = unit[0], unit[3]
        if queue is not None:
            _undo_offset(queue, count_records((unit,)))
        elif isinstance(record, PlacedBatch):
            for queue in record.queues:
                _undo_offset(queue, 1)


def _undo_offset(queue: ConsumeQueue, count: int) -> None:
    queue.next_offset -= count
    assert queue.next_offset >= queue.max_offset, f"{queue} takes back what is dispatched"


class WriteSpeed:
    """Refuses sends while page cache writes are slow. While `is_watching`, `record` needs all writes."""

    __slots__ = ("_admission", "_busy_until", "is_watching", "slow_s")

    def __init__(self, slow_s: float, admission: Admission) -> None:
        assert slow_s > 0, slow_s
        self.slow_s = slow_s
        self.is_watching = False
        self._admission = admission
        self._busy_until = 0.0

    def record(self, took_s: float, now: float) -> None:
        """Records the duration of a slow write, or of any write while `is_watching`."""
        assert took_s > self.slow_s or self.is_watching, (took_s, self.slow_s)
        if took_s > self.slow_s:
            if not self.is_watching:
                log.warning(events.PAGE_CACHE_BUSY, extra={"write_ms": round(took_s * 1000)})
            self.is_watching = True
            self._busy_until = now + BUSY_PAUSE_S
            remark = f"[PC_SYNCHRONIZED]the page cache is busy, a write took {took_s * 1000:.0f} ms"
            self._admission.block(_PAGE_CACHE_BUSY, remark, Busy)
        elif not self._admission.is_blocked(_PAGE_CACHE_BUSY):
            self.is_watching = False
            log.warning(events.PAGE_CACHE_RECOVERED, extra={"write_ms": round(took_s * 1000)})

    def retry(self, now: float) -> None:
        """Accepts sends again if the pause after a slow write is over."""
        if self.is_watching and now >= self._busy_until:
            self._admission.unblock(_PAGE_CACHE_BUSY)
