"""Deletes log files that are expired or take needed space, and trims the tables accordingly.

Invariants: the last file is never deleted, nor a file that is not flushed or whose queue entries are not.
            Files go oldest first, and not beyond the first that must stay or cannot be deleted: the log has
            no gap. Views that readers hold stay valid.
Strategy:   facts -> `plan_cleaning` (pure) -> files deleted, queues and key index cut at the new beginning. A
            file's age is that of the first records after it, which, unlike its mtime, survives copying.
Source:     spec store 19.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

from tandemmq.errors import ConfigError
from tandemmq.protocol.record import RecordOutcome
from tandemmq.runtime.ports import Disk
from tandemmq.store.core import StoreCore
from tandemmq.store.damage import DAMAGED
from tandemmq.store.options import StoreOptions
from tandemmq.store.segmented_log import Segment
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

HOUR_MS = 3_600_000
RECORDS_READ = 3
"""The number of records read at the beginning of a file to date the end of the previous file."""
USE_UNKNOWN = -1
"""The disk use if unknown: then expired files are deleted, but none is forced out (spec store 19)."""
_DISK_FULL = "disk full"


LOG_FILES_MIN: Final = 3
"""The least number of files the disk should hold: with fewer, a full log soon can neither continue nor drop
its oldest file.
"""


def require_room(options: StoreOptions, disk: Disk, directory: Path) -> None:
    """Checks that the disk of an empty log can hold what its settings require, before the broker is ready.

    Raises:  ConfigError when not even one log file fits: no message could ever be stored.
    """
    with suppress(OSError):
        total, _free = disk.usage(directory)
        usable, size = total * options.disk_warning_percent // 100, options.commit_log_file_bytes
        if 0 < usable < size:
            raise ConfigError(
                f"the disk of {directory} has {total:,} bytes, and one CommitLog file takes {size:,}: no"
                f" message could be stored. Set mappedFileSizeCommitLog to at most {usable // LOG_FILES_MIN}"
            )
        if 0 < usable < LOG_FILES_MIN * size:
            facts = {"path": directory, "disk_bytes": total, "commit_log_file_bytes": size}
            log.warning(events.DISK_SMALL, extra=facts)


def no_room_for_first_file(options: StoreOptions, disk: Disk, directory: Path) -> str:
    """Returns the reason why an empty log cannot accept its first message; empty if it can, or if unknown."""
    with suppress(OSError):
        total, free = disk.usage(directory)
        if total > 0 and free < options.commit_log_file_bytes:
            return (
                f"the disk has {free:,} free bytes, and a CommitLog file takes"
                f" {options.commit_log_file_bytes:,} (mappedFileSizeCommitLog)"
            )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningPlan:
    """A decision: the `delete_count` oldest files are deleted; while `is_disk_full` messages are refused."""

    delete_count: int
    is_disk_full: bool
    early_count: int = 0
    """The number of these files, the last ones, that are younger than fileReservedTime: the full disk forces
    them out.
    """


def plan_cleaning(
    options: StoreOptions,
    *,
    used_percent: int,
    hour: int,
    now_ms: int,
    left_at_ms: Sequence[int],
    at_any_hour: bool = False,
) -> CleaningPlan:
    """Returns the files to delete now.

    Units:   left_at_ms: per deletable file, oldest first, the time when the log left it; hour is local,
             0..23.
    """
    assert used_percent >= USE_UNKNOWN, used_percent
    assert 0 <= hour < 24, hour
    is_forced = used_percent > options.disk_forcible_percent
    is_short = used_percent > options.disk_used_percent_max or used_percent == USE_UNKNOWN
    is_due = at_any_hour or hour in options.delete_at_hours or is_short
    count = early_count = 0
    if is_forced or is_due:
        oldest_kept_ms = now_ms - options.file_reserved_hours * HOUR_MS
        for left_ms in left_at_ms[: options.delete_file_count_max]:
            if left_ms > oldest_kept_ms:
                if not (is_forced and options.clean_forcibly_enable):
                    break
                early_count += 1
            count += 1
    assert early_count <= count <= min(len(left_at_ms), options.delete_file_count_max)
    assert not early_count or (is_forced and options.clean_forcibly_enable), (early_count, used_percent)
    is_full = used_percent > options.disk_warning_percent
    return CleaningPlan(delete_count=count, is_disk_full=is_full, early_count=early_count)


@dataclass(eq=False)
class Cleaner:
    """The rounds of the cleaning.

    `tables_end`: the queue entries of all records below are on disk. An entry cannot be rebuilt without
    its record, and a queue whose file is lost in a power cut would begin at 0. `is_held`: the end of the
    log is being cut; no file may be deleted meanwhile, since the cut may be at the beginning of one.
    """

    core: StoreCore
    _: KW_ONLY
    tables_end: Callable[[], int]
    is_held: Callable[[], bool]

    def __post_init__(self) -> None:
        self._rounds = self.core.rounds("clean")

    def start(self) -> None:
        """Starts the rounds; with a disk that is already full no message is accepted until the first one."""
        assert not self._rounds.is_timed, "the rounds begin once"
        self._set_full(self._used_percent() > self.core.options.disk_warning_percent)
        self._rounds.after(self.core.options.clean_first_delay_ms / 1000, self._tick)

    def _tick(self) -> None:
        self._rounds.after(self.core.options.clean_interval_ms / 1000, self._tick)
        self.clean()

    def stop(self) -> None:
        """Ends the rounds."""
        self._rounds.halt()

    def clean(self, *, at_any_hour: bool = False) -> int:
        """Runs one round and returns how many log files were deleted.

        None is deleted while the log is being cut, or if a file that must be read cannot be: the next round
        retries.
        """
        if self.is_held():
            return 0
        now_ms, used_percent = self.core.clock.now_ms(), self._used_percent()
        try:
            left_at_ms = self._left_at()
        except OSError as error:
            log.warning(events.RETENTION_POSTPONED, extra={"error": str(error)})
            left_at_ms = []
        plan = plan_cleaning(
            self.core.options,
            used_percent=used_percent,
            hour=datetime.fromtimestamp(now_ms / 1000).hour,
            now_ms=now_ms,
            left_at_ms=left_at_ms,
            at_any_hour=at_any_hour,
        )
        self._set_full(plan.is_disk_full)
        deleted = 0
        try:
            for _ in range(plan.delete_count):
                segment = self.core.log.log.drop_oldest()
                assert segment.end <= self.core.flushed.value, (segment, self.core.flushed.value)
                assert segment.end <= self.tables_end(), (segment, self.tables_end())
                deleted += 1
                if deleted > plan.delete_count - plan.early_count:
                    # Its pending delayed and timer messages and open transactions are lost as well.
                    hours = self.core.options.file_reserved_hours
                    log.error(
                        events.SEGMENT_DELETED_EARLY,
                        extra={"path": str(segment.path), "reserved_hours": hours},
                    )
                else:
                    log.info(events.SEGMENT_DELETED, extra={"path": str(segment.path)})
        except OSError as error:
            # The log still begins with this file; the next round retries.
            log.warning(events.SEGMENT_DELETE_FAILED, extra={"error": str(error)})
        if deleted:
            self.cut_tables()
        return deleted

    def cut_tables(self) -> None:
        """Deletes the files of queues and key indexes that point only below the log."""
        begin = self.core.log.begin
        assert begin <= self.core.log.end, (begin, self.core.log.end)
        self.core.log.damaged.drop_below(begin)
        if not self.core.log.damaged:
            self.core.admission.unblock(DAMAGED)
        steps: list[Callable[[int], object]] = [
            step for queue in self.core.queues for step in (queue.drop_files_below, queue.raise_min)
        ]
        if self.core.indexes is not None:
            steps.append(self.core.indexes.drop_below)
        for step in steps:
            try:
                step(begin)
            except OSError as error:
                # A remaining table file only costs space until a later round; the other tables are trimmed
                # now.
                log.warning(events.SEGMENT_DELETE_FAILED, extra={"error": str(error)})

    def _used_percent(self) -> int:
        """Returns the use of the fuller disk of log and queues; `USE_UNKNOWN` if the system does not report
        it.
        """
        used = USE_UNKNOWN
        for directory in (self.core.paths.commit_log, self.core.paths.consume_queues):
            with suppress(OSError):
                total, free = self.core.disk.usage(directory)
                if total > 0:
                    used = max(used, -(-100 * (total - free) // total))
        return used

    def _left_at(self) -> list[int]:
        safe = min(self.core.flushed.value, self.tables_end())
        candidates = islice(pairwise(self.core.log.log.segments), self.core.options.delete_file_count_max)
        # A file followed by a damaged record counts as young as the next one, which the plan checks.
        times = [
            self._left_for(segment, after)
            for segment, after in candidates
            if segment.end <= safe and after.base < self.core.log.end
        ]
        for index in range(len(times) - 1, -1, -1):
            if times[index] < 0:
                times[index] = times[index + 1] if index + 1 < len(times) else self.core.clock.now_ms()
        assert not times or self.core.log.log.segments[len(times) - 1].end <= safe, (len(times), safe)
        assert len(times) < max(1, len(self.core.log.log.segments)), "the last file stays"
        assert min(times, default=0) >= 0, times
        return times

    def _left_for(self, segment: Segment, after: Segment) -> int:
        """Returns the time when the log left the file for the one after it; -1 if that begins with damage.

        No checksum covers a time: the middle one of three records counts, so that a bit flip neither ages a
        file nor keeps it for ever. With fewer records after the file, its own first one is used as well.
        """
        assert segment.end == after.base, (segment, after)
        times = self._first_times(after, RECORDS_READ)
        if not times:
            return -1
        if len(times) < RECORDS_READ:
            times += self._first_times(segment, 1)
        return sorted(times)[len(times) // 2]

    def _first_times(self, segment: Segment, count: int) -> list[int]:
        times: list[int] = []
        at = segment.base
        while at < segment.end and len(times) < count:
            record = self.core.log.check(at)
            if record.outcome is not RecordOutcome.OK:
                break
            times.append(record.stored_at_ms)
            at += record.size
        assert segment.base <= at <= segment.end, "a record is in one file"
        return times

    def _set_full(self, is_full: bool) -> None:
        if is_full == self.core.admission.is_blocked(_DISK_FULL):
            return
        if is_full:
            self.core.admission.block(_DISK_FULL, "the disk is full")
            log.error(events.DISK_FULL, extra={"path": str(self.core.log.log.directory)})
        else:
            self.core.admission.unblock(_DISK_FULL)
            log.warning(events.DISK_SPACE_RECOVERED, extra={"path": str(self.core.log.log.directory)})
