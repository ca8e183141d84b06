"""Finds and repairs damage in the files of a store.

The `Scrubber` re-reads the log in rounds, so that damage is found before the bytes are needed. It also
compares queue entries with the log and repairs them. The `Healer` restores damaged ranges of the log from the
bytes of another copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from tandemmq.errors import Corrupt, DiskFull, StoreError
from tandemmq.protocol.record import RecordCheck, RecordOutcome, check_record
from tandemmq.protocol.record_layout import PREFIX
from tandemmq.runtime.ports import Advice, Clock, Disk, File, TimerHandle
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store.commit_log import CommitLog
from tandemmq.store.damage import DamagedRange, copy_aside, next_valid, read_range
from tandemmq.store.dispatcher import Dispatcher
from tandemmq.store.flusher import sync_segments
from tandemmq.store.options import StoreOptions
from tandemmq.store.record_block import RecordBlock, read_block
from tandemmq.store.recorder import StoreRecorder
from tandemmq.store.segmented_log import Segment
from tandemmq.store.watermarks import Watermark
from tandemmq.telemetry import events
from tandemmq.units import KIB, MIB, align_down

log = logging.getLogger(__name__)

BLOCK_BYTES: Final = MIB
FIRST_DELAY_S: Final = 60.0
"""The delay of the first round: a start has just read the last file, and has other work."""
HEAL_BYTES_MAX = 256 * MIB
AROUND_BYTES = 4 * KIB
"""The bytes on either side of a range that must be the same in both logs."""

_T = TypeVar("_T")

Fetch = Callable[[int, int], Awaitable[bytes]]
"""(log_offset, size): returns the other copy's bytes, all of them. Raises a TandemError when it
lacks some.
"""


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

    def __init__(
        self,
        options: StoreOptions,
        *,
        log: CommitLog,
        disk: Disk,
        clock: Clock,
        tasks: TaskScope,
        recorder: StoreRecorder,
        flushed: Watermark,
        dispatched: Watermark,
        on_damaged: Callable[[], None],
        repair_entries: Callable[[RecordBlock], None],
    ) -> None:
        self._bytes_per_second = options.scrub_bytes_per_second
        self._record_pair_bytes = 2 * options.record_bytes_max
        self._interval_s = options.scrub_interval_ms / 1000
        self._log = log
        self._disk = disk
        self._clock = clock
        self._tasks = tasks
        self._recorder = recorder
        self._flushed = flushed
        self._dispatched = dispatched
        self._on_damaged = on_damaged
        self._repair_entries = repair_entries
        self._position = 0  # where the next read begins
        self._cut_count = 0  # cuts of the log when `_position` was a record boundary
        self._timer: TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Starts the rounds, unless the options disable them."""
        if self._bytes_per_second:
            self._schedule(FIRST_DELAY_S)

    def halt(self) -> None:
        """Stops reading."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def stop(self) -> None:
        """Stops reading, and waits until no read runs."""
        self.halt()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _schedule(self, seconds: float) -> None:
        assert self._timer is None, "one scan at a time"
        self._timer = self._clock.call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._is_stopped:
            assert self._task is None, "one scan at a time"
            self._task = self._tasks.start("scrub", self._run_once())

    async def _run_once(self) -> None:
        """Runs one read and schedules the next, after a longer rest at the end of a round."""
        if self._cut_count != self._flushed.cut_count:
            self._position = align_down(self._position, self._log.segment_bytes)
            self._cut_count = self._flushed.cut_count
        try:
            step = await self._scan_block(self._position)
        finally:
            self._task = None
        is_cut = self._cut_count != self._flushed.cut_count
        assert step is None or is_cut or step.position >= self._position, (step, self._position)
        assert step is None or step.read_bytes >= 0, step
        self._position = 0 if step is None else step.position
        if not self._is_stopped:
            self._schedule(self._interval_s if step is None else step.read_bytes / self._bytes_per_second)

    async def scan_range(self, log_offset: int, end: int) -> None:
        """Reads now, at full speed, from the record that contains `log_offset` up to `end`."""
        segment = self._log.log.find(log_offset)
        if segment is None:
            return
        position, cut_count = segment.base, self._flushed.cut_count
        at = max(0, log_offset - self._record_pair_bytes - segment.base)
        try:
            found_at = await self._off_loop(segment, _find_valid, at, log_offset - segment.base)
        except OSError as error:
            self._report_failure(segment, log_offset, str(error))
        else:
            if at and found_at is not None and self._flushed.cut_count == cut_count:
                position += found_at
        while (
            position < end and not self._is_stopped and (step := await self._scan_block(position)) is not None
        ):
            position = step.position

    async def _scan_block(self, position: int) -> _ScanStep | None:
        """Reads the block at `position` or the next valid one; returns None at the end of the
        readable part.
        """
        position = max(position, self._log.begin)  # retention may have deleted the position
        while (known := self._log.damaged.find(position, position + 1)) is not None:
            position = known.end
        segment = self._log.log.find(position)
        if segment is None or position >= segment.base + self._limit(segment):
            return None
        at, limit = position - segment.base, self._limit(segment)
        cut_count = self._flushed.cut_count
        try:
            scan = await self._off_loop(segment, _scan_file, at, limit)
            assert at <= scan.end <= segment.size, (segment, at, scan.end)
            self._recorder.scrubbed_bytes += scan.read_bytes
            if self._flushed.cut_count != cut_count:
                return _ScanStep(segment.base, scan.read_bytes)
            position = segment.base + scan.end
            if scan.block is not None and not self._is_removed(segment):
                self._repair_entries(scan.block)
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
        if self._is_removed(segment) or self._log.damaged.find(begin, begin + 1) is not None:
            return begin  # the next read begins after it
        if not _valid_end(segment.view(), at, segment.base)[1]:
            return begin  # it was healed meanwhile, or memory had an error
        limit, cut_count = self._limit(segment), self._flushed.cut_count
        found_at = await self._off_loop(segment, _find_valid, at, limit)
        if self._flushed.cut_count != cut_count:
            return segment.base
        if self._is_removed(segment):
            return begin
        if found_at is None and limit < segment.size and self._flushed.value < self._dispatched.value:
            return None  # it is unknown if a record ends at `limit`: next time
        end = segment.base + (limit if found_at is None else found_at)
        assert begin < end, "valid bytes follow the invalid ones"
        assert end <= min(segment.end, self._log.end), (segment, end, self._log.end)
        following = self._log.damaged.find(begin, end)
        damaged = DamagedRange(begin, end if following is None else following.begin, reason)
        try:
            self._log.damaged.add(damaged, segment.path)
        except Corrupt as error:
            self._report_failure(segment, begin, str(error))
            return None
        log.error(
            events.LOG_DAMAGED,
            extra={
                "path": str(segment.path),
                "file_offset": at,
                "log_offset": begin,
                "size_bytes": damaged.size,
                "reason": reason,
                "found_by": "scrub",
            },
        )
        self._on_damaged()
        return damaged.end

    async def _off_loop(self, segment: Segment, scan: Callable[..., _T], *facts: int) -> _T:
        """Runs `scan(file, view, base, *facts)`, which blocks, off the loop; the file stays open
        meanwhile.
        """
        file = segment.pin()
        try:
            return await self._disk.offload(scan, file, segment.view(), segment.base, *facts)
        finally:
            segment.unpin()

    def _limit(self, segment: Segment) -> int:
        """Returns the end of the readable part of the file; only a cut of the log lowers it."""
        return min(segment.size, min(self._flushed.value, self._dispatched.value) - segment.base)

    def _is_removed(self, segment: Segment) -> bool:
        return self._log.log.find(segment.base) is not segment

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


class Healer:
    """The heals of one store; one at a time.

    Invariants: nothing is written before two checks: the other copy's bytes are valid records that fill the
                range exactly, and its bytes around the range equal ours, so it is the same log. The old bytes
                are copied aside, and the copy is on disk, before they are overwritten. A range is valid again
                only after the fsync; the next start finds a heal interrupted by a crash as damage.
    Strategy:   missing queue entries are written first and flushed, because nothing restores them later.
                Readers skip them while the range is damaged. The key index is unchanged, since it accepts
                keys only in log order.
    At a bound: a range of more than `HEAL_BYTES_MAX` is left to an operator.
    Knows not:  the source of the other copy.
    """

    def __init__(
        self,
        *,
        log: CommitLog,
        dispatcher: Dispatcher,
        copies: Path,
        clock: Clock,
        flush_tables: Callable[[], Awaitable[object]],
    ) -> None:
        self._flush_tables = flush_tables
        self._log = log
        self._dispatcher = dispatcher
        self._copies = copies
        self._clock = clock

    async def heal(self, damaged: DamagedRange, fetch: Fetch) -> None:
        """Heals the range; it is valid again when the call returns.

        Raises:  what `fetch` raises; Corrupt when the other bytes do not fit here; DiskFull; OSError when an
                 fsync failed.
        """
        if damaged not in self._log.damaged:
            return  # it left the log while another one was healed
        if damaged.size > HEAL_BYTES_MAX:
            reason = f"{damaged.size} bytes exceed the {HEAL_BYTES_MAX} that are healed at once"
            raise self._mismatch(damaged, reason)
        data = await fetch(damaged.begin, damaged.end - damaged.begin)
        records = list(self._records(damaged, data))
        await self._compare_around(damaged, fetch)
        if damaged not in self._log.damaged:
            return  # retention or a cut removed it, or it grew meanwhile
        touched = self._dispatcher.restore(memoryview(data), damaged.begin, records)
        steps: tuple[Callable[[], Awaitable[object]], ...] = (
            self._flush_tables,
            partial(self._keep_copy, damaged),
            partial(self._write, damaged, data),
        )
        for step in steps:
            await step()
            if damaged not in self._log.damaged:
                return
        self._log.damaged.remove(damaged)
        self._dispatcher.notify_readable(touched)
        log.warning(
            events.LOG_HEALED,
            extra={"log_offset": damaged.begin, "size_bytes": damaged.size, "record_count": len(records)},
        )

    def _records(self, damaged: DamagedRange, data: bytes) -> Iterator[RecordCheck]:
        """Yields the records that fill the range, file by file. Raises Corrupt."""
        if len(data) != damaged.size:
            raise self._mismatch(damaged, f"the other copy sent {len(data)} bytes")
        view = memoryview(data)
        position = damaged.begin
        while position < damaged.end:
            segment = self._log.log.find(position)
            if segment is None:
                raise self._mismatch(damaged, "the file was deleted")
            at, file_end = position - damaged.begin, segment.end - damaged.begin
            found = check_record(view[:file_end], at, log_offset=position)
            if found.outcome is RecordOutcome.BLANK and found.size == segment.end - position:
                position = segment.end
            elif found.outcome is RecordOutcome.OK:
                yield found
                position += found.size
            else:
                raise self._mismatch(damaged, f"the other copy at {position}: {found.outcome.value}")
        if position != damaged.end:
            raise self._mismatch(damaged, f"the other copy's records end at {position}")

    async def _compare_around(self, damaged: DamagedRange, fetch: Fetch) -> None:
        """Compares the bytes around the range. Raises Corrupt if the other log differs from ours."""
        before = max(damaged.begin - AROUND_BYTES, self._log.begin)
        compared = 0
        for begin, end in ((before, damaged.begin), (damaged.end, damaged.end + AROUND_BYTES)):
            ours = self._valid_part(begin, end, is_before=end == damaged.begin)
            if ours is None:
                continue
            at, view = ours
            assert begin <= at < at + len(view) <= end, (damaged, begin, at, end)
            if await fetch(at, len(view)) != view:
                raise self._mismatch(damaged, f"the other log differs from this one at {at} or after it")
            compared += len(view)
        if not compared:
            raise self._mismatch(damaged, "no valid bytes beside the range to compare with the other copy")

    def _valid_part(self, begin: int, end: int, *, is_before: bool) -> tuple[int, memoryview] | None:
        """Returns valid bytes adjacent to the range, of one file; None without any."""
        if is_before:
            segment = self._log.log.find(end - 1)
            begin = begin if segment is None else max(begin, segment.base)
            while (other := self._log.damaged.find(begin, end)) is not None:
                begin = other.end
        view = self._log.valid_view(begin, max(0, end - begin))
        return (begin, view) if len(view) else None

    async def _keep_copy(self, damaged: DamagedRange) -> None:
        disk = self._log.disk
        now_ms = self._clock.now_ms()
        copy = partial(copy_aside, directory=self._copies, suffix="bad", disk=disk, now_ms=now_ms)
        try:
            old = [*read_range(self._log.log, damaged.begin, damaged.end)]
        except OSError:
            old = [bytes(damaged.size)]  # an unreadable sector holds nothing to keep
        assert sum(map(len, old)) == damaged.size, damaged
        await disk.offload(copy, old, damaged.begin, damaged.size)

    async def _write(self, damaged: DamagedRange, data: bytes) -> None:
        assert len(data) == damaged.size, (damaged, len(data))
        segments = self._log.dirty_segments(damaged.begin, damaged.end)
        assert segments, f"{damaged} is not in the log"
        assert segments[0].base <= damaged.begin < damaged.end <= segments[-1].end, (damaged, segments)
        for segment in segments:
            begin, end = max(segment.base, damaged.begin), min(segment.end, damaged.end)
            part = memoryview(data)[begin - damaged.begin : end - damaged.begin]
            assert len(part) == end - begin > 0, (damaged, segment)
            try:
                segment.file.pwrite(begin - segment.base, (part,))
            except OSError as error:
                raise DiskFull(f"{segment.path} cannot be written: {error.strerror or error}") from error
        await sync_segments(self._log.disk, segments)

    def _mismatch(self, damaged: DamagedRange, reason: str) -> StoreError:
        directory = self._log.log.directory
        return Corrupt(directory, damaged.begin, f"bytes to {damaged.end} are not healed: {reason}")
