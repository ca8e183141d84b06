"""Finds damage in the files of a store before the bytes are needed.

The `Scrubber` re-reads the log in rounds. It also compares queue entries with the log and repairs them.
`EntryRepair` has a part of the log re-read at once for a wrong entry that a reader met.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final, NamedTuple, TypeVar

from tandemmq.errors import Corrupt, RequestRejected, StoreError
from tandemmq.protocol.record import RecordOutcome, check_record
from tandemmq.protocol.record_layout import PREFIX
from tandemmq.runtime.ports import Advice, File
from tandemmq.store.consume_queue import ConsumeQueue
from tandemmq.store.consume_queues import QueueKey
from tandemmq.store.core import StoreCore
from tandemmq.store.damage import DamagedRange, next_valid, report_damage
from tandemmq.store.dispatcher import Dispatcher
from tandemmq.store.reader import names_record
from tandemmq.store.record_block import RecordBlock, read_block
from tandemmq.store.segmented_log import Segment, pinned
from tandemmq.telemetry import events
from tandemmq.units import MIB, align_down

log = logging.getLogger(__name__)

BLOCK_BYTES: Final = MIB
FIRST_DELAY_S: Final = 60.0
"""The delay of the first round: a start has just read the last file, and has other work."""
LOST_ENTRIES_MAX = 1024
"""The number of lost queue entries after which no more are searched for."""

_T = TypeVar("_T")


class _BlockScan(NamedTuple):
    """The result of one read: valid records reach up to byte `end` of the file.

    `reason`: the defect at `end`; empty without one.
    """

    end: int
    read_bytes: int
    reason: str = ""
    block: RecordBlock | None = None


class _ScanStep(NamedTuple):
    """The position of the next read, and the number of bytes this one read."""

    position: int
    read_bytes: int


@dataclass(eq=False)
class Scrubber:
    """The rounds of one store.

    `on_damaged` is called when a range was added to those of the log; `repair_entries` repairs the queue
    entries of valid records.

    Invariants: only flushed and dispatched bytes are read: whole records, which never change. Bytes are
                damaged only if a second read finds no record either, in a file that still belongs to the log.
                After a cut, records begin elsewhere, so the file is read again from its start. Sends continue
                meanwhile.
    Strategy:   one block at a time, off the loop, then a rest that keeps to the speed; oldest first. Bytes
                are read, not mapped, so an unreadable sector is an error and not a signal. Whatever a block
                cannot decide (a longer record, the end of a file, damage) is checked in the map after it was
                read. A part found to differ from another copy's log is read at once and without rests.
    At a bound: with `DAMAGED_RANGES_MAX` ranges known the round ends.
    """

    core: StoreCore
    _: KW_ONLY
    on_damaged: Callable[[], None]
    repair_entries: Callable[[RecordBlock], None]

    def __post_init__(self) -> None:
        self._rounds = self.core.rounds("scrub")
        self._position = 0  # where the next read begins
        self._cut_count = 0  # cuts of the log when `_position` was a record boundary

    def start(self) -> None:
        """Starts the rounds, unless the options disable them."""
        if self.core.options.scrub_bytes_per_second:
            self._schedule(FIRST_DELAY_S)

    async def stop(self) -> None:
        """Stops reading, and waits until no read runs."""
        await self._rounds.stop()

    def _schedule(self, seconds: float) -> None:
        self._rounds.after(seconds, lambda: self._rounds.start(self._run_once))

    async def _run_once(self) -> None:
        """Runs one read and schedules the next, after a longer rest at the end of a round."""
        if self._cut_count != self.core.flushed.cut_count:
            self._position = align_down(self._position, self.core.log.segment_bytes)
            self._cut_count = self.core.flushed.cut_count
        step = await self._scan_block(self._position)
        is_cut = self._cut_count != self.core.flushed.cut_count
        assert step is None or is_cut or step.position >= self._position, (step, self._position)
        assert step is None or step.read_bytes >= 0, step
        self._position = 0 if step is None else step.position
        options = self.core.options
        rest_s = 0.0 if step is None else step.read_bytes / options.scrub_bytes_per_second
        self._schedule(options.scrub_interval_ms / 1000 if step is None else rest_s)

    async def scan_range(self, log_offset: int, end: int) -> None:
        """Reads now, at full speed, from the record that contains `log_offset` up to `end`."""
        segment = self.core.log.log.find(log_offset)
        if segment is None:
            return
        position, cut_count = segment.base, self.core.flushed.cut_count
        at = max(0, log_offset - 2 * self.core.options.record_bytes_max - segment.base)
        try:
            found_at = await self._off_loop(segment, _find_valid, at, log_offset - segment.base)
        except OSError as error:
            self._report_failure(segment, log_offset, str(error))
        else:
            if at and found_at is not None and self.core.flushed.cut_count == cut_count:
                position += found_at
        while (
            position < end
            and not self._rounds.is_stopped
            and (step := await self._scan_block(position)) is not None
        ):
            position = step.position

    async def _scan_block(self, position: int) -> _ScanStep | None:
        """Reads the block at `position` or the next valid one; returns None at the end of the
        readable part.
        """
        position = max(position, self.core.log.begin)  # retention may have deleted the position
        while (known := self.core.log.damaged.find(position, position + 1)) is not None:
            position = known.end
        segment = self.core.log.log.find(position)
        if segment is None or position >= segment.base + self._limit(segment):
            return None
        at, limit = position - segment.base, self._limit(segment)
        cut_count = self.core.flushed.cut_count
        try:
            scan = await self._off_loop(segment, _scan_file, at, limit)
            assert at <= scan.end <= segment.size, (segment, at, scan.end)
            self.core.recorder.scrubbed_bytes += scan.read_bytes
            if self.core.flushed.cut_count != cut_count:
                return _ScanStep(segment.base, scan.read_bytes)
            position = segment.base + scan.end
            if scan.block is not None and not self._is_removed(segment):
                self.repair_entries(scan.block)
            if not scan.reason:
                return _ScanStep(position, scan.read_bytes) if scan.end <= limit else None
            next_position = await self._classify(segment, scan.end, scan.reason)
        except OSError as error:
            self._report_failure(segment, position, str(error))
            return _ScanStep(segment.end, BLOCK_BYTES)
        return None if next_position is None else _ScanStep(next_position, scan.read_bytes)

    async def _classify(self, segment: Segment, at: int, reason: str) -> int | None:
        """Judges invalid bytes at `at` of a file; returns the next read position, None to end the round.

        Raises:  OSError.
        """
        begin = segment.base + at
        if self._is_removed(segment) or self.core.log.damaged.find(begin, begin + 1) is not None:
            return begin  # the next read begins after it
        if not _valid_end(segment.view(), at, segment.base)[1]:
            return begin  # it was healed meanwhile, or memory had an error
        limit, cut_count = self._limit(segment), self.core.flushed.cut_count
        found_at = await self._off_loop(segment, _find_valid, at, limit)
        if self.core.flushed.cut_count != cut_count:
            return segment.base
        if self._is_removed(segment):
            return begin
        if found_at is None and limit < segment.size and self.core.flushed.value < self.core.dispatched.value:
            return None  # it is unknown if a record ends at `limit`: next time
        end = segment.base + (limit if found_at is None else found_at)
        assert begin < end, "valid bytes follow the invalid ones"
        assert end <= min(segment.end, self.core.log.end), (segment, end, self.core.log.end)
        following = self.core.log.damaged.find(begin, end)
        damaged = DamagedRange(begin, end if following is None else following.begin, reason)
        try:
            self.core.log.damaged.add(damaged, segment.path)
        except Corrupt as error:
            self._report_failure(segment, begin, str(error))
            return None
        report_damage(damaged, segment, found_by="scrub")
        self.on_damaged()
        return damaged.end

    async def _off_loop(self, segment: Segment, scan: Callable[..., _T], *facts: int) -> _T:
        """Runs `scan(file, view, base, *facts)`, which blocks, off the loop; the file stays open
        meanwhile.
        """
        with pinned((segment,)) as (file,):
            return await self.core.disk.offload(scan, file, segment.view(), segment.base, *facts)

    def _limit(self, segment: Segment) -> int:
        """Returns the end of the readable part of the file; only a cut of the log lowers it."""
        return min(segment.size, min(self.core.flushed.value, self.core.dispatched.value) - segment.base)

    def _is_removed(self, segment: Segment) -> bool:
        return self.core.log.log.find(segment.base) is not segment

    def _report_failure(self, segment: Segment, log_offset: int, reason: str) -> None:
        extra = {"path": str(segment.path), "log_offset": log_offset, "reason": reason}
        log.error(events.LOG_SCRUB_FAILED, extra=extra)


def _scan_file(file: File, view: memoryview, base: int, at: int, limit: int) -> _BlockScan:
    """Reads valid records from byte `at` of a file on, up to one block. Raises OSError."""
    assert at < limit <= len(view), (base, at, limit)
    raw = memoryview(file.pread(at, min(BLOCK_BYTES, limit - at)))
    block = read_block(raw, log_offset=base + at, check_crc=True)
    if len(block):
        block.tag_hash  # noqa: B018  # it costs the most, and is kept: not on the loop
        return _BlockScan(at + block.end, len(raw), block=block)
    size = PREFIX.unpack_from(raw)[0] if len(raw) >= PREFIX.size else 0
    is_long = len(raw) < size <= len(view) - at
    if is_long:
        _read(file, at + len(raw), at + size)
    end, reason = _valid_end(view, at, base)
    if is_long:
        file.advise(Advice.IDLE)
    return _BlockScan(end, max(len(raw), size if is_long else 0), reason)


def _valid_end(view: memoryview, at: int, base: int) -> tuple[int, str]:
    """Returns the end of the record or BLANK at byte `at` of a whole file; or `at`, and the defect."""
    assert 0 <= at < len(view), (base, at, len(view))
    found = check_record(view, at, log_offset=base + at)
    if found.outcome is RecordOutcome.OK:
        return at + found.size, ""
    if found.outcome is RecordOutcome.BLANK and found.size == len(view) - at:
        return len(view), ""
    return at, found.outcome.value


def _find_valid(file: File, view: memoryview, base: int, at: int, limit: int) -> int | None:
    """Returns the position of the next valid bytes after the invalid ones at `at`; None: not below `limit`.

    No bytes there are left over from an earlier end of the log. Raises OSError.
    """
    assert 0 <= at <= limit <= len(view), (base, at, limit)
    _read(file, at, limit)
    valid, _ = next_valid(view[:limit], at, base=base)
    assert valid is None or at < valid.log_offset - base < limit, (base, at, limit, valid)
    file.advise(Advice.IDLE)
    return None if valid is None else valid.log_offset - base


def _read(file: File, begin: int, end: int) -> None:
    """Reads a range, so that unreadable bytes raise an error here and not a signal in the mapped file."""
    for at in range(begin, end, BLOCK_BYTES):
        file.pread(at, min(BLOCK_BYTES, end - at))


class EntryRepair:
    """The searches for the records of wrong queue entries, one at a time.

    `rescan(begin, end)` re-reads a part of the log, which repairs the entries of the records in it.
    """

    def __init__(
        self, core: StoreCore, dispatcher: Dispatcher, rescan: Callable[[int, int], Awaitable[None]]
    ) -> None:
        self._core = core
        self._dispatcher = dispatcher
        self._rescan = rescan
        self._is_running = False
        self._lost: set[tuple[QueueKey, int]] = set()

    def start(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Starts a search for the record of a wrong queue entry, in the part of the log where it must be.

        Returns True if readers should wait before the entry, False if an earlier search failed.
        """
        assert queue.min_offset <= queue_offset < queue.max_offset, (queue, queue_offset)
        if (queue.key, queue_offset) in self._lost or len(self._lost) >= LOST_ENTRIES_MAX:
            return False
        if not self._is_running:
            self._is_running = True
            self._core.tasks.start("repair_entry", self._repair(queue, queue_offset))
        return True

    async def _repair(self, queue: ConsumeQueue, queue_offset: int) -> None:
        begin, end = self._core.log.begin, self._core.dispatched.value  # a filler names offset 0
        before, after = queue.entry(queue_offset - 1), queue.entry(queue_offset + 1)
        if before is not None and begin <= before[0] < end:
            begin = before[0]
        if after is not None and begin < after[0] < end:
            end = after[0]
        try:
            await self._rescan(begin, end)
            if not names_record(self._core.log, queue, queue_offset):
                self._lost.add((queue.key, queue_offset))
                extra = {"topic": queue.key[0], "queue_id": queue.key[1], "queue_offset": queue_offset}
                log.error(events.QUEUE_ENTRY_LOST, extra=extra)
        except (StoreError, RequestRejected) as error:
            if isinstance(error, StoreError) and error.fatal:
                raise
        finally:
            self._is_running = False
        self._dispatcher.notify({queue: None})
