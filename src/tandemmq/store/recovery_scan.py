"""Recovery's walk over the log: where its intact records end; dispatches them on the way.

Invariants: records are dispatched in the order of the log, none behind the first that is not sound.
Strategy:   a file is read in blocks, whose records are judged and dispatched at once in numpy, about two
            microseconds each; what a block cannot tell (its end, damage, a record longer than a block) is
            looked at one by one in the mapped file. Blocks are read, not mapped, so that a restart leaves no
            gibibytes in this process.
Knows not:  which case of recovery it serves, what becomes of the bytes behind the end.
Source:     spec store 3.3, 12.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tandemmq.protocol.record import RecordCheck, RecordOutcome, check_record, decode_record
from tandemmq.runtime.ports import Clock
from tandemmq.store.commit_log import CommitLog
from tandemmq.store.consume_queues import ConsumeQueues
from tandemmq.store.dispatcher import Dispatcher
from tandemmq.store.record_block import RecordBlock, read_block
from tandemmq.store.record_maker import BLANK_BYTES, SECTOR_BYTES, ZERO_SECTOR
from tandemmq.store.segment import Segment
from tandemmq.store.table_flusher import next_turn
from tandemmq.units import MIB, align_up

BLOCK_BYTES = 8 * MIB
"""Twice the longest message of the default settings; a block and its columns take three times as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distrust:
    """After a crash. Entries of records stored until `safe_ms` are on disk and right; what was stored from
    `unsure_ms` on may never have been synced.
    """

    safe_ms: int
    unsure_ms: int


class RecoveryScan:
    """One walk. `distrust` None: the last run ended cleanly."""

    def __init__(
        self,
        *,
        log: CommitLog,
        queues: ConsumeQueues,
        dispatcher: Dispatcher,
        clock: Clock,
        check_crc: bool,
        distrust: Distrust | None,
    ) -> None:
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._clock = clock
        self._check_crc = check_crc
        self._distrust = distrust
        self._is_safe = distrust is not None
        self.stored_at_ms = 0  # of the last record
        self.last_log_offset = -1
        self.unsure_from = -1  # the first record that no successful fsync may have covered

    async def run(self, position: int) -> int:
        """Walk from the start of a file on; where the intact records end. Raises OSError."""
        while (segment := self._log.log.find(position)) is not None:
            position, is_filled = await self._scan_segment(segment)
            if not is_filled:
                break
        if self._is_safe:
            self._leave_safety(position)
        return position

    async def _scan_segment(self, segment: Segment) -> tuple[int, bool]:
        """Where the intact records of one file end, and whether a BLANK leads on to the next file."""
        at = 0
        while True:
            raw = segment.file.pread(at, min(BLOCK_BYTES, segment.size - at))
            block = read_block(memoryview(raw), log_offset=segment.base + at, check_crc=self._check_crc)
            is_file_end = at + len(raw) == segment.size
            block = block.head(
                self._sound_count(block, raw, phase=at % SECTOR_BYTES, is_file_end=is_file_end)
            )
            if len(block):
                self._take(block)
                at += block.end
            else:
                checked = self._take_one(segment, at)
                if checked.outcome is RecordOutcome.BLANK and checked.size == segment.size - at:
                    return segment.end, True
                if checked.outcome is not RecordOutcome.OK:
                    return segment.base + at, False
                at += checked.size
            await next_turn(self._clock)

    def _sound_count(self, block: RecordBlock, raw: bytes, *, phase: int, is_file_end: bool) -> int:
        """How many records from the first on are whole in every sector, as far as the block can tell.

        `phase`: how far behind the start of a sector the block begins; sectors lie where the file has them.
        """
        view = memoryview(raw)
        count = len(block)
        if self._distrust is not None:
            columns = block.columns
            is_unsure = columns.stored_at_ms >= self._distrust.unsure_ms
            for row in np.flatnonzero(is_unsure & (columns.properties_size >= SECTOR_BYTES)).tolist():
                if _has_hole(view, int(columns.position[row]), int(columns.size[row]), phase):
                    count = row
                    break
        if count:
            at, size = int(block.columns.position[count - 1]), int(block.columns.size[count - 1])
            is_cut_off = not is_file_end and at + size + BLANK_BYTES > len(raw)
            if is_cut_off or _is_torn(view, at, size):
                return count - 1
        return count

    def _take(self, block: RecordBlock) -> None:
        """Dispatch all records of a block."""
        columns = block.columns
        begin = 0
        if self._distrust is not None:
            is_unsafe = columns.stored_at_ms > self._distrust.safe_ms
            if self._is_safe and is_unsafe.any():
                begin = int(is_unsafe.argmax())
                self._dispatcher.put_block(block, 0, begin)
                self._leave_safety(int(columns.log_offset[begin]))
            is_unsure = columns.stored_at_ms >= self._distrust.unsure_ms
            if self.unsure_from < 0 and is_unsure.any():
                self.unsure_from = int(columns.log_offset[is_unsure.argmax()])
        self._dispatcher.put_block(block, begin, len(block))
        self.stored_at_ms = int(columns.stored_at_ms[-1])
        self.last_log_offset = int(columns.log_offset[-1])

    def _take_one(self, segment: Segment, at: int) -> RecordCheck:
        """What lies at `at` of the file; dispatched if it is a sound record."""
        view = segment.view()
        position = segment.base + at
        checked = check_record(view, at, log_offset=position, check_crc=self._check_crc)
        if checked.outcome is not RecordOutcome.OK:
            return checked
        distrust = self._distrust
        is_unsure = distrust is not None and checked.stored_at_ms >= distrust.unsure_ms
        if _is_torn(view, at, checked.size) or (is_unsure and _has_hole(view, at, checked.size, 0)):
            return RecordCheck(RecordOutcome.BAD_CRC)
        if self._is_safe and distrust is not None and checked.stored_at_ms > distrust.safe_ms:
            self._leave_safety(position)
        if self.unsure_from < 0 and is_unsure:
            self.unsure_from = position
        self._dispatcher.put_one(checked, view, at)
        self.stored_at_ms = checked.stored_at_ms
        self.last_log_offset = position
        return checked

    def _leave_safety(self, position: int) -> None:
        """The checkpoint does not vouch for entries of records from here on: they are made again."""
        self._is_safe = False
        self._queues.distrust(position)


def _is_torn(view: memoryview, at: int, size: int) -> bool:
    """True for a last record whose topic or properties end in zeros: the checksum covers the body only.

    Asked of the last record alone, because a message in the middle may well have such properties, and ending
    the log there would lose what follows.
    """
    end = at + size
    if view[end - 1] or any(view[end : end + BLANK_BYTES]):
        return False
    record = decode_record(view, at, check_crc=False)
    return record.raw_properties.endswith(b"\0") or "\0" in record.topic


def _has_hole(view: memoryview, at: int, size: int, phase: int) -> bool:
    """True for a record of whose properties a whole sector is zeros: a power cut took it.

    The store takes no record whose properties look like that. `phase`: how far behind the start of a sector
    the view begins.
    """
    end = at + size
    for sector in range(align_up(at + phase, SECTOR_BYTES) - phase, end - SECTOR_BYTES + 1, SECTOR_BYTES):
        if view[sector : sector + SECTOR_BYTES] == ZERO_SECTOR:
            properties = decode_record(view, at, check_crc=False).raw_properties
            return ZERO_SECTOR in properties
    return False
