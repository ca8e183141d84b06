"""Brings the files of a stopped broker into a state from which a store can start.

Afterwards the log ends after its last valid record and is zero from there on. Every queue has exactly the
entries that the records of the log require. Everything is synced. Bytes that were synced once and are no
longer valid records stay as they are, recorded as damaged ranges of the log.

Invariants: the decision is a pure function: each combination of facts is one case (a test tries them all).
Strategy:   facts -> `plan_recovery` -> `recovery_scan` from the chosen file to the log's end, dispatching on
            the way; tables skip what they already contain. Bytes to be cut are copied aside first, if they
            are more than the record that the crash tore.
Knows not:  sends, watermarks; recovery runs before they exist.
Source:     spec store 12.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import pairwise

import msgspec

from tandemmq.errors import Corrupt, DiskFull, LogMissing
from tandemmq.protocol.record import RecordOutcome, check_record
from tandemmq.store.checkpoint import SAFETY_MS
from tandemmq.store.core import StoreCore
from tandemmq.store.damage import copy_aside, data_end, read_range
from tandemmq.store.dispatcher import Dispatcher
from tandemmq.store.flusher import sync_segments
from tandemmq.store.recovery_scan import RecoveryScan, TrustLimits
from tandemmq.telemetry import events
from tandemmq.units import KIB

log = logging.getLogger(__name__)

STALE_BYTES_CLEAN = 64 * KIB
"""The number of bytes after the log's end that are checked for stale data after a clean stop. The stale bytes
of another store begin right at the end.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFacts:
    """The state of the files on disk.

    `has_abort`: the last run did not end cleanly. `had_log`: records of a log were fsynced, according
    to the checkpoint. `has_other_queues`: the queues or their ends differ from those at the clean stop.
    """

    has_log: bool
    has_queues: bool
    has_abort: bool
    had_log: bool
    has_other_queues: bool = False


class ScanFrom(Enum):
    """The file in which the scan of the log begins."""

    NOWHERE = "there is no log"
    BEGINNING = "the first file: the queues must be built from all of it"
    DISPATCHED = "the file with the newest record that the queues know"
    CHECKPOINT = "the newest file that begins before the checkpoint's safe time"


class RecoveryCase(Enum):
    """The cases, each with its meaning and the file in which its scan begins.

    After a crash any unsynced byte may be missing or stale. With other queues any queue entry may be wrong.
    """

    NEW = "neither log nor queues exist", ScanFrom.NOWHERE
    LOG_LOST = "queues without their log, which was never fsynced: a power cut lost it", ScanFrom.NOWHERE
    LOG_MISSING = "queues without their log, which was fsynced: it was moved or deleted", ScanFrom.NOWHERE
    CLEAN = "a clean stop", ScanFrom.DISPATCHED
    CLEAN_WITHOUT_QUEUES = "a clean stop, and the queues are missing", ScanFrom.BEGINNING
    CLEAN_WITH_OTHER_QUEUES = "a clean stop, queues were damaged or removed since", ScanFrom.BEGINNING
    CRASHED = "a crash", ScanFrom.CHECKPOINT
    CRASHED_WITHOUT_QUEUES = "a crash, and the queues are missing", ScanFrom.BEGINNING
    CRASHED_WITH_OTHER_QUEUES = "a crash before such queues were built anew", ScanFrom.BEGINNING

    @property
    def scan_from(self) -> ScanFrom:
        return self.value[1]

    @property
    def is_crash(self) -> bool:
        return self.name.startswith("CRASHED")

    @property
    def has_other_queues(self) -> bool:
        return self.name.endswith("WITH_OTHER_QUEUES")


def plan_recovery(facts: RecoveryFacts) -> RecoveryCase:
    """Returns the case that these facts make."""
    if not facts.has_log:
        if not facts.has_queues:
            return RecoveryCase.NEW
        return RecoveryCase.LOG_MISSING if facts.had_log else RecoveryCase.LOG_LOST
    if not facts.has_queues:
        return RecoveryCase.CRASHED_WITHOUT_QUEUES if facts.has_abort else RecoveryCase.CLEAN_WITHOUT_QUEUES
    if facts.has_abort:
        return RecoveryCase.CRASHED_WITH_OTHER_QUEUES if facts.has_other_queues else RecoveryCase.CRASHED
    return RecoveryCase.CLEAN_WITH_OTHER_QUEUES if facts.has_other_queues else RecoveryCase.CLEAN


@dataclass(frozen=True, slots=True, kw_only=True)
class FileHead:
    """The first record of a log file; `is_valid` is False if the file begins with anything else."""

    base: int
    is_valid: bool
    stored_at_ms: int


def choose_start(heads: Sequence[FileHead], scan_from: ScanFrom, *, dispatched_end: int, safe_ms: int) -> int:
    """Returns the index of the file to begin with; the first one if no later one qualifies.

    Units:   `dispatched_end` is the end of the newest record in any queue; `safe_ms` comes from the
             checkpoint.
    """
    assert all(before.base < after.base for before, after in pairwise(heads)), heads
    assert safe_ms >= 0, safe_ms
    if scan_from is ScanFrom.BEGINNING:
        return 0
    count = len(heads)
    if scan_from is ScanFrom.CHECKPOINT:
        # No checksum covers store times: after a file with a newer time, an old time may be a bit flip.
        count = next((index for index, head in enumerate(heads) if head.stored_at_ms > safe_ms), count)
    for index in range(count - 1, 0, -1):
        head = heads[index]
        if not head.is_valid or head.stored_at_ms == 0:
            continue
        if scan_from is ScanFrom.CHECKPOINT or head.base <= dispatched_end:
            return index
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The outcome of recovery.

    `stored_at_ms` and `last_log_offset` belong to the last record; 0 and -1 without one. The queue entries of
    all records below `tables_end` are on disk.
    """

    case: RecoveryCase
    stored_at_ms: int
    last_log_offset: int
    lost_bytes: int
    tables_end: int


class Recovery:
    """One recovery run over a directory whose log files and queues are loaded."""

    def __init__(self, core: StoreCore, dispatcher: Dispatcher) -> None:
        self._core = core
        self._dispatcher = dispatcher

    async def run(self, *, has_abort: bool, same_boot: bool = False) -> Recovered:
        """Recovers the files. `same_boot`: the machine has not restarted since the last process ended.

        Raises:  LogMissing with nothing changed, Corrupt with no byte of the log changed; OSError when the
                 disk fails.
        """
        core = self._core
        core.queues.drop_deleted()
        case = self._case(has_abort=has_abort)
        if case is RecoveryCase.LOG_MISSING:
            raise LogMissing(core.log.log.directory, core.queues.directory)
        self._require_files(core.checkpoint.times.durable_log_offset)
        if case.scan_from is ScanFrom.BEGINNING:
            self._distrust_all_entries()
        times = core.checkpoint.times
        limits = TrustLimits(
            safe_ms=times.safe_ms, unverified_ms=times.log_stored_at_ms - SAFETY_MS, same_boot=same_boot
        )
        scan = RecoveryScan(
            core, self._dispatcher, limits if case.is_crash else None, times.durable_log_offset
        )
        dispatched_end = core.queues.end_log_offset
        if case is RecoveryCase.LOG_LOST:
            core.queues.remove_all()
        if case.has_other_queues:
            log.warning(events.QUEUES_REBUILT, extra={"path": str(core.queues.directory)})
            core.queues.distrust(core.log.begin)
        lost_bytes = tables_end = 0
        if case.scan_from is not ScanFrom.NOWHERE:
            tables_end = self._choose_start(ScanFrom.CHECKPOINT, dispatched_end, times.safe_ms)
            lost_bytes = await self._scan(case, scan, dispatched_end)
            tables_end = min(tables_end, core.log.end)  # a file with a safe time may start after the cut
        self._finish_queues()
        return Recovered(
            case=case,
            stored_at_ms=scan.stored_at_ms,
            last_log_offset=scan.last_log_offset,
            lost_bytes=lost_bytes,
            tables_end=tables_end,
        )

    def _case(self, *, has_abort: bool) -> RecoveryCase:
        core, times = self._core, self._core.checkpoint.times
        has_log = bool(core.log.log.segments)
        case = plan_recovery(
            RecoveryFacts(
                has_log=has_log,
                has_queues=core.queues.end_log_offset >= 0,
                has_abort=has_abort,
                had_log=times.log_stored_at_ms > 0,
                has_other_queues=times.queues_digest not in (None, core.queues.digest()),
            )
        )
        assert has_log == (case.scan_from is not ScanFrom.NOWHERE), case
        return case

    def _distrust_all_entries(self) -> None:
        """Records that no queue entry is known to be on disk. This must precede a rebuild of the queues:
        after an interrupted one, the next start would take entries up to the checkpoint's time for safe.
        """
        checkpoint = self._core.checkpoint
        checkpoint.replace(msgspec.structs.replace(checkpoint.times, queues_stored_at_ms=0))
        if not checkpoint.write():
            raise OSError(
                errno.ENOSPC, "the checkpoint cannot be written, which precedes a rebuild of the queues"
            )

    async def _scan(self, case: RecoveryCase, scan: RecoveryScan, dispatched_end: int) -> int:
        """Dispatches the records of the log that the tables may lack, and ends the log after the last valid
        one. Returns how many bytes after it were not zero.
        """
        log_, times = self._core.log, self._core.checkpoint.times
        segments = log_.log.segments
        start = self._choose_start(case.scan_from, dispatched_end, times.safe_ms)
        if self._core.indexes is not None and times.durable_log_offset is not None:
            # Index entries that were not synced are rebuilt from the log.
            indexed_ms = max(0, times.index_stored_at_ms - SAFETY_MS)
            start = min(start, self._choose_start(ScanFrom.CHECKPOINT, dispatched_end, indexed_ms))
        scanned = [segment for segment in segments if segment.base >= start]
        log_.end = segments[-1].end
        end = await scan.run(start)
        assert start <= end <= segments[-1].end, (start, end)
        assert scan.last_log_offset < end, (scan.last_log_offset, end)
        await self._save_cut_bytes(case, scan, end)
        lost_bytes = self._cut(case, end)
        if case.is_crash:
            self._rewrite_unverified(scan.unverified_from, end)
        await sync_segments(log_.disk, [s for s in scanned if s in log_.log.segments])
        return lost_bytes

    def _choose_start(self, scan_from: ScanFrom, dispatched_end: int, safe_ms: int) -> int:
        """Returns the first byte of the file to begin with."""
        heads = self._heads()
        return heads[choose_start(heads, scan_from, dispatched_end=dispatched_end, safe_ms=safe_ms)].base

    def _require_files(self, durable_end: int | None) -> None:
        """Raises Corrupt if a file is missing that was fsynced, according to the checkpoint."""
        last = self._core.log.log.last
        if durable_end is None or last is None or durable_end <= last.end:
            return
        reason = f"the log was on disk up to {durable_end}: the files after this one are missing"
        raise Corrupt(last.path, last.size, f"{reason}; put them back, or run `tandemmq store repair`")

    def _heads(self) -> list[FileHead]:
        heads = []
        for segment in self._core.log.log.segments:
            head = check_record(segment.view(), 0, log_offset=segment.base, check_crc=False)
            is_valid = head.outcome is RecordOutcome.OK
            heads.append(FileHead(base=segment.base, is_valid=is_valid, stored_at_ms=head.stored_at_ms))
        return heads

    async def _save_cut_bytes(self, case: RecoveryCase, scan: RecoveryScan, end: int) -> None:
        """Copies the bytes that `_cut` removes, if they are more than one unfinished record."""
        stop = self._stale_end(case, end)
        if stop == end or not self._needs_copy(scan, end, stop):
            return
        disk = self._core.log.disk
        facts = {"log_offset": end, "size_bytes": stop - end}
        parts = read_range(self._core.log.log, end, stop)
        copy = partial(
            copy_aside,
            directory=self._core.paths.damaged,
            suffix="cut",
            disk=disk,
            now_ms=self._core.clock.now_ms(),
        )
        try:
            path = await disk.offload(copy, parts, end, stop - end)
        except DiskFull as error:
            # A full disk must not keep the broker down; these bytes were never acknowledged as safe.
            extra = {"path": str(self._core.paths.damaged), "error": str(error), **facts}
            log.error(events.LOG_COPY_FAILED, extra=extra)
        else:
            log.warning(events.LOG_TAIL_KEPT, extra={"path": str(path), **facts})

    def _stale_end(self, case: RecoveryCase, end: int) -> int:
        """Returns the end of the last non-zero byte that is cut; `end` without one."""
        for segment in reversed(self._core.log.log.segments):
            begin = max(0, end - segment.base)
            if begin >= segment.size:
                break
            view = segment.view()
            if not case.is_crash:
                view = view[: begin + STALE_BYTES_CLEAN]
            found = data_end(view, begin)
            if found > begin:
                return segment.base + found
        return end

    def _needs_copy(self, scan: RecoveryScan, end: int, stop: int) -> bool:
        segment = self._core.log.log.find(end)
        assert segment is not None, end
        torn_bytes = int.from_bytes(segment.file.pread(end - segment.base, 4), "big")
        return stop - end > torn_bytes or scan.next_valid_after(end) is not None

    def _cut(self, case: RecoveryCase, end: int) -> int:
        """Ends the log at `end`; returns how many bytes after it were not zero."""
        last_end = self._core.log.end
        assert self._core.log.begin <= end <= last_end, (self._core.log.begin, end, last_end)
        self._core.log.end = end
        stale_max = self._core.log.segment_bytes if case.is_crash else STALE_BYTES_CLEAN
        lost_bytes = self._core.log.log.truncate(end, zero_bytes_max=stale_max)
        if lost_bytes:
            log.warning(
                events.LOG_TAIL_CUT,
                extra={"log_offset": end, "file_end": last_end, "zeroed_bytes": lost_bytes},
            )
        return lost_bytes

    def _rewrite_unverified(self, unverified_from: int, end: int) -> None:
        """Rewrites the bytes from `unverified_from` on in place, as they may be unsynced; -1: none.

        After a failed fsync the page cache may hold bytes that the disk lacks and consider them clean.
        Without the rewrite a later fsync would succeed, and a power cut would leave a hole in the log.
        """
        position = unverified_from if unverified_from >= 0 else end
        assert self._core.log.begin <= position <= end, (self._core.log.begin, position, end)
        for raw in read_range(self._core.log.log, position, end):
            segment = self._core.log.log.find(position)
            assert segment is not None, position
            segment.file.pwrite(position - segment.base, (raw,))
            position += len(raw)

    def _finish_queues(self) -> None:
        """Writes the entries added by the scan, drops those whose records the log lost, and sets each queue's
        first offset.
        """
        for queue in self._core.queues:
            queue.write()
        self._core.queues.truncate(self._core.log.end)
        assert self._core.queues.end_log_offset <= self._core.log.end, (
            self._core.queues.end_log_offset,
            self._core.log.end,
        )
        self._core.queues.raise_min(self._core.log.begin)
