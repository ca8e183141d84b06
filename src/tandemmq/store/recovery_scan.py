"""Scans the log for recovery: finds its end and its damaged ranges, and dispatches records on the way.

Invariants: valid records are dispatched in log order. Bytes that were once on disk are never mistaken for a
            tail torn by a crash: they become a damaged range, and the scan continues after them.
Strategy:   a file is read in blocks, whose records are checked and dispatched at once in numpy, about two
            microseconds each. Whatever a block cannot decide (its end, damage, a record longer than a block)
            is checked singly in the mapped file. Blocks are read, not mapped, so that a restart leaves no
            gibibytes mapped in this process. After invalid bytes the scan searches for the next record whose
            stored offset matches its position.
Knows not:  the case of recovery, the fate of the bytes after the end.
Source:     spec store 3.3, 12.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from tandemmq.protocol.record import RecordCheck, RecordOutcome, check_record, decode_record
from tandemmq.store.consume_queues import OffsetVerifier
from tandemmq.store.core import StoreCore
from tandemmq.store.damage import (
    BLANK_STORED_AT_MS,
    DamagedRange,
    ValidRecord,
    data_end,
    next_valid,
    report_damage,
)
from tandemmq.store.dispatcher import Dispatcher
from tandemmq.store.record_block import RecordBlock, read_block
from tandemmq.store.record_maker import BLANK_BYTES, SECTOR_BYTES, ZERO_SECTOR
from tandemmq.store.segmented_log import Segment
from tandemmq.store.table_flusher import next_turn
from tandemmq.units import MIB, align_up

log = logging.getLogger(__name__)

BLOCK_BYTES = 8 * MIB
"""The block size: twice the longest message of the default settings; a block with its columns takes three
times as much.
"""

TAIL_HOLE_BYTES = 3
"""The most leading zero bytes in the four bytes of a size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustLimits:
    """The limits of trust after a crash.

    Entries of records stored until `safe_ms` are on disk and right. Records stored from `unverified_ms` on
    may never have been synced. `same_boot`: only the process died, so every byte it wrote exists, in the
    order of writing.
    """

    safe_ms: int
    unverified_ms: int
    same_boot: bool = False


class RecoveryScan:
    """One scan.

    `distrust` None: the last run ended cleanly. `durable_end`: whole records up to there were on disk; None:
    unknown.
    """

    def __init__(
        self, core: StoreCore, dispatcher: Dispatcher, distrust: TrustLimits | None, durable_end: int | None
    ) -> None:
        self._core = core
        self._log = core.log
        self._queues = core.queues
        self._dispatcher = dispatcher
        self._check_crc = core.options.check_crc_on_recover
        self._distrust = distrust
        self._durable_end = durable_end
        self._is_trusted = distrust is not None
        self._damage_end = self._damage_begin = -1  # of the last damaged range
        self.stored_at_ms = 0  # of the last record
        self.last_log_offset = -1
        self.unverified_from = -1  # the first record that no successful fsync may have covered

    async def run(self, position: int) -> int:
        """Scans from the start of a file on; returns the end of the log.

        Raises:  OSError; Corrupt when too much is damaged.
        """
        assert position % self._log.segment_bytes == 0, position
        damaged = self._log.damaged
        self._queues.verifier = OffsetVerifier(
            self._log.begin, lambda begin, end: damaged.find(begin, end) is not None
        )
        end = await self._walk(position)
        assert self._damage_end <= end, "a log does not end in damage"
        self._queues.settle_unverified()
        if self._is_trusted:
            self._end_trusted_part(end)
        return end

    async def _walk(self, position: int) -> int:
        while (segment := self._log.log.find(position)) is not None:
            begin = position
            position, is_filled = await self._scan_segment(segment, position - segment.base)
            assert begin <= position <= segment.end, (segment, begin, position)
            if is_filled:
                continue
            end = self._damage_from(segment, position)
            if end is None:
                break
            assert end > position, (position, end)
            self._record_damage(segment, position, end)
            position = end
        return position

    def _damage_from(self, segment: Segment, position: int) -> int | None:
        """Returns the end of the damage at `position`; None if the log ends here, perhaps in a torn tail."""
        durable_end = None
        if self._durable_end is not None:
            durable_end = min(self._durable_end, self._log.end)
            if position < durable_end:
                behind = self.next_valid_after(position)
                return durable_end if behind is None else min(behind.log_offset, durable_end)
        distrust = self._distrust
        if distrust is None:
            # Nothing is torn after a clean stop. The end of our own log is known, so this is garbage after
            # it; in a log of another broker only a following record proves damage.
            behind = self.next_valid_after(position) if durable_end is None else None
        elif distrust.same_boot and not self._is_zero(segment, position):
            behind = self.next_valid_after(position)
        else:
            behind = self.next_valid_after(position) if durable_end is None else None
            if behind is not None and not self._was_synced(behind, distrust.unverified_ms):
                behind = None
        return None if behind is None else behind.log_offset

    def _was_synced(self, valid: ValidRecord, unverified_ms: int) -> bool:
        """Returns True if an fsync covered the record, and therefore everything before it.

        A BLANK has no store time; the next record after it has one, in whatever file.
        """
        dated: ValidRecord | None = valid
        while dated is not None and dated.stored_at_ms == BLANK_STORED_AT_MS:
            dated = self.next_valid_after(dated.log_offset)
        return dated is not None and 0 <= dated.stored_at_ms < unverified_ms

    @staticmethod
    def _is_zero(segment: Segment, position: int) -> bool:
        """Returns True if the bytes were never written or were cut; an interrupted cut leaves other bytes
        behind.
        """
        return not any(segment.file.pread(position - segment.base, BLANK_BYTES))

    def next_valid_after(self, position: int) -> ValidRecord | None:
        """Returns the next valid record (or BLANK) after the invalid bytes at `position`, in any file.

        Records older than the last valid record are skipped: RocketMQ does not zero the bytes after an end.
        """
        segment = self._log.log.find(position)
        begin = 0 if segment is None else position - segment.base
        while segment is not None:
            view = segment.view()
            if data_end(view, max(0, begin)) > max(0, begin):
                valid, _ = next_valid(view, begin, base=segment.base, newest_ms=self.stored_at_ms)
                if valid is not None:
                    assert valid.log_offset > position, (valid, position)
                    return valid
            segment = self._log.log.find(segment.end)
            begin = -1  # in the next file a record may begin at the first byte
        return None

    def _record_damage(self, segment: Segment, begin: int, end: int) -> None:
        """Records a damaged range of bytes that were once valid and on disk."""
        assert self.last_log_offset < begin < end <= self._log.end, (self.last_log_offset, begin, end)
        checked = self._check(segment, begin - segment.base)
        damaged = DamagedRange(begin, end, checked.outcome.value)
        self._log.damaged.add(damaged, segment.path)
        assert self._damage_begin <= self._damage_end <= begin, (self._damage_begin, self._damage_end, begin)
        if self._damage_end != begin:
            self._damage_begin = begin
        self._damage_end = end
        report_damage(damaged, segment, found_by="recovery")

    async def _scan_segment(self, segment: Segment, at: int) -> tuple[int, bool]:
        """Scans one file from `at`; returns the end of its valid records, and True if the next file continues
        them.
        """
        while at < segment.size:
            raw = segment.file.pread(at, min(BLOCK_BYTES, segment.size - at))
            block = read_block(memoryview(raw), log_offset=segment.base + at, check_crc=self._check_crc)
            is_file_end = at + len(raw) == segment.size
            block = block.head(
                self._intact_count(block, raw, phase=at % SECTOR_BYTES, is_file_end=is_file_end)
            )
            if len(block):
                self._dispatch_block(block)
                at += block.end
            else:
                checked = self._dispatch_one(segment, at)
                if checked.outcome is RecordOutcome.BLANK and checked.size == segment.size - at:
                    return segment.end, True
                if checked.outcome is not RecordOutcome.OK:
                    return segment.base + at, False
                at += checked.size
            assert at <= segment.size, "a record is in one file"
            await next_turn(self._core.clock)
        return segment.end, True

    def _intact_count(self, block: RecordBlock, raw: bytes, *, phase: int, is_file_end: bool) -> int:
        """Returns how many leading records are intact in every sector, as far as the block shows.

        `phase`: the distance of the block's start from the start of its sector; sectors are aligned to the
        file.
        """
        assert 0 <= phase < SECTOR_BYTES, phase
        view = memoryview(raw)
        count = len(block)
        if self._distrust is not None:
            columns = block.columns
            is_unverified = columns.stored_at_ms >= self._distrust.unverified_ms
            may_have_hole = columns.properties_size >= SECTOR_BYTES - TAIL_HOLE_BYTES
            for row in np.flatnonzero(is_unverified & may_have_hole).tolist():
                if _has_hole(view, int(columns.position[row]), int(columns.size[row]), phase):
                    count = row
                    break
        if count:
            at, size = int(block.columns.position[count - 1]), int(block.columns.size[count - 1])
            assert at + size <= len(raw), (at, size, len(raw))
            is_cut_off = not is_file_end and at + size + BLANK_BYTES > len(raw)
            if is_cut_off or _is_torn(view, at, size):
                return count - 1
        return count

    def _dispatch_block(self, block: RecordBlock) -> None:
        """Dispatches all records of a block."""
        columns = block.columns
        begin = 0
        assert self.last_log_offset < int(columns.log_offset[0]), "records are taken in the order of the log"
        if self._distrust is not None:
            is_unsafe = columns.stored_at_ms > self._distrust.safe_ms
            if self._is_trusted and is_unsafe.any():
                begin = int(is_unsafe.argmax())
                self._dispatcher.put_block(block, 0, begin)
                self._end_trusted_part(int(columns.log_offset[begin]))
            is_unverified = columns.stored_at_ms >= self._distrust.unverified_ms
            if self.unverified_from < 0 and is_unverified.any():
                self.unverified_from = int(columns.log_offset[is_unverified.argmax()])
        self._dispatcher.put_block(block, begin, len(block))
        self.stored_at_ms = int(columns.stored_at_ms[-1])
        self.last_log_offset = int(columns.log_offset[-1])
        assert self.unverified_from <= self.last_log_offset, (self.unverified_from, self.last_log_offset)

    def _check(self, segment: Segment, at: int) -> RecordCheck:
        """Checks the record at `at` of the file; a torn record counts as invalid."""
        view = segment.view()
        checked = check_record(view, at, log_offset=segment.base + at, check_crc=self._check_crc)
        if checked.outcome is not RecordOutcome.OK:
            return checked
        has_hole = self._is_unverified(checked) and _has_hole(view, at, checked.size, 0)
        if has_hole or _is_torn(view, at, checked.size):
            return RecordCheck(RecordOutcome.BAD_CRC)
        return checked

    def _is_unverified(self, checked: RecordCheck) -> bool:
        return self._distrust is not None and checked.stored_at_ms >= self._distrust.unverified_ms

    def _dispatch_one(self, segment: Segment, at: int) -> RecordCheck:
        """Checks the record at `at` of the file and dispatches a valid one."""
        checked = self._check(segment, at)
        if checked.outcome is not RecordOutcome.OK:
            return checked
        view = segment.view()
        self._dispatch_block(read_block(view, at, log_offset=segment.base, check_crc=False, count_max=1))
        return checked

    def _end_trusted_part(self, position: int) -> None:
        """Drops queue entries of records from here on, which the checkpoint does not cover; they are created
        again.

        That includes damaged records directly before, whose store times are unknown.
        """
        assert self._is_trusted, "entries are distrusted once"
        assert self._damage_end <= position, (self._damage_end, position)
        self._is_trusted = False
        self._queues.distrust(self._damage_begin if position == self._damage_end else position)


def _is_torn(view: memoryview, at: int, size: int) -> bool:
    """Returns True if the topic or properties of a last record end in zeros: the checksum covers only the
    body.

    Only the last record is tested, because a message in the middle may have such properties, and ending the
    log there would lose the following ones.
    """
    end = at + size
    if view[end - 1] or any(view[end : end + BLANK_BYTES]):
        return False
    record = decode_record(view, at, check_crc=False)
    return record.raw_properties.endswith(b"\0") or "\0" in record.topic


def _has_hole(view: memoryview, at: int, size: int, phase: int) -> bool:
    """Returns True if a whole sector of the record's properties is zero, as after a power cut.

    The store accepts no record with such properties. `phase`: the distance of the view's start from the start
    of its sector. A record may end up to `TAIL_HOLE_BYTES` before its sector, because the next record begins
    with the zeros of a small size: then nearly a sector of zeros ends the properties.
    """
    end = at + size
    assert 0 <= at < end <= len(view), (at, size, len(view))
    beyond = -(end + phase) % SECTOR_BYTES
    if 0 < beyond <= TAIL_HOLE_BYTES and view[end - 1] == 0:
        properties = decode_record(view, at, check_crc=False).raw_properties
        if properties.endswith(bytes(SECTOR_BYTES - beyond)):
            return True
    for sector in range(align_up(at + phase, SECTOR_BYTES) - phase, end - SECTOR_BYTES + 1, SECTOR_BYTES):
        if view[sector : sector + SECTOR_BYTES] == ZERO_SECTOR:
            properties = decode_record(view, at, check_crc=False).raw_properties
            return ZERO_SECTOR in properties
    return False
