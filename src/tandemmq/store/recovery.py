"""Brings the files of a stopped broker into the state in which a store may go on.

Afterwards: the log ends behind its last intact record and is zero from there on; every queue has an entry for
each record of the log that it should have, and none for others; everything is synced.
Strategy:   facts -> `recovery_plan` -> scan from the chosen file to the first bytes that are no intact
            record, dispatching on the way; what tables have already they skip. Bytes behind the first
            damage are lost even if intact, because nothing says that they follow.
Knows not:  sends, watermarks; it runs before they exist.
Source:     spec store 12.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from tandemmq.protocol.record import RecordCheck, RecordOutcome, check_record, decode_record
from tandemmq.runtime.ports import Clock
from tandemmq.store.appender import BLANK_BYTES, SECTOR_BYTES, ZERO_SECTOR, Unit
from tandemmq.store.checkpoint import SAFETY_MS, Checkpoint
from tandemmq.store.commit_log import CommitLog
from tandemmq.store.consume_queues import ConsumeQueues
from tandemmq.store.dispatcher import Dispatcher
from tandemmq.store.flusher import sync_segments
from tandemmq.store.known_records import BLOCK_COUNT, last_known_record
from tandemmq.store.recovery_plan import (
    FileHead,
    RecoveryFacts,
    RecoveryPlan,
    ScanFrom,
    choose_start,
    plan_recovery,
)
from tandemmq.store.table_flusher import next_turn
from tandemmq.telemetry import events
from tandemmq.units import KIB, MIB, align_up

log = logging.getLogger(__name__)

STALE_BYTES_CLEAN = 64 * KIB
"""After a clean stop nothing lies behind the end; a foreign store's stale bytes begin right at it."""
ALL_TIMES = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """Where the log stands. `stored_at_ms` and `last_log_offset` of its last record, 0 and -1 without one."""

    plan: RecoveryPlan
    stored_at_ms: int
    last_log_offset: int
    lost_bytes: int


class Recovery:
    """One run over one directory whose log files and queues are loaded."""

    def __init__(
        self,
        *,
        log: CommitLog,
        queues: ConsumeQueues,
        dispatcher: Dispatcher,
        checkpoint: Checkpoint,
        clock: Clock,
        check_crc: bool,
    ) -> None:
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._checkpoint = checkpoint
        self._clock = clock
        self._check_crc = check_crc
        self._stored_at_ms = 0
        self._last_log_offset = -1
        self._dispatched_end = -1
        self._safe_ms = 0
        self._is_safe = False
        self._distrusts_disk = False
        self._unsure_ms = checkpoint.times.log_stored_at_ms - SAFETY_MS
        self._unsure_from = -1  # the first record that no successful fsync may have covered

    async def run(self, *, has_abort: bool) -> Recovered:
        """Carry out the plan. Raises OSError when the disk does not let us."""
        segments = self._log.log.segments
        self._dispatched_end = self._queues.end_log_offset
        plan = plan_recovery(
            RecoveryFacts(has_log=bool(segments), has_queues=self._dispatched_end >= 0, has_abort=has_abort)
        )
        if plan.drops_queues:
            self._queues.remove_all()
        lost_bytes = 0
        if plan.scan_from is not ScanFrom.NOWHERE:
            start = choose_start(
                self._heads(),
                plan.scan_from,
                dispatched_end=self._dispatched_end,
                safe_ms=self._checkpoint.times.safe_ms,
            )
            scanned = segments[start:]
            self._log.end = segments[-1].end
            self._is_safe = self._distrusts_disk = plan.distrusts_disk
            self._safe_ms = self._checkpoint.times.safe_ms if self._is_safe else ALL_TIMES
            end = await self._scan(scanned[0].base)
            if self._is_safe:
                self._leave_safety(end)
            lost_bytes = self._cut(plan, end)
            if plan.distrusts_disk:
                self._write_again(end)
            await sync_segments(self._log.disk, [s for s in scanned if s in self._log.log.segments])
        self._settle_queues()
        return Recovered(
            plan=plan,
            stored_at_ms=self._stored_at_ms,
            last_log_offset=self._last_log_offset,
            lost_bytes=lost_bytes,
        )

    def _heads(self) -> list[FileHead]:
        heads = []
        for segment in self._log.log.segments:
            head = check_record(segment.view(), 0, log_offset=segment.base, check_crc=False)
            is_valid = head.outcome is RecordOutcome.OK
            heads.append(FileHead(base=segment.base, is_valid=is_valid, stored_at_ms=head.stored_at_ms))
        return heads

    async def _scan(self, position: int) -> int:
        """Walk the log from the start of a file on; where the intact records end."""
        while True:
            found = self._log.segment_view(position)
            if found is None:
                return position
            base, view = found
            position, is_filled = await self._scan_segment(base, view)
            if not is_filled:
                return position

    async def _scan_segment(self, base: int, view: memoryview) -> tuple[int, bool]:
        """Where the intact records of one file end, and whether a BLANK leads on to the next file."""
        at = 0
        while True:
            # The last of the known records begins the next block, because it may be the last of all.
            while (known := self._last_known(view, at, base)) > at:
                at = known
                await next_turn(self._clock)
            end, checked = self._scan_block(view, at, base)
            if checked.outcome is RecordOutcome.BLANK and checked.size == len(view) - end:
                return base + len(view), True
            if checked.outcome is not RecordOutcome.OK or end == at:
                return base + end, False
            at = end
            await next_turn(self._clock)

    def _last_known(self, view: memoryview, at: int, base: int) -> int:
        found = last_known_record(
            view,
            at,
            base,
            queues=self._queues,
            indexed_to=self._dispatcher.keys_known_to,
            safe_ms=self._safe_ms,
            check_crc=self._check_crc,
        )
        return at if found is None else found

    def _scan_block(self, view: memoryview, at: int, base: int) -> tuple[int, RecordCheck]:
        """Dispatch a bounded number of records; the position behind them and what lies there or was last."""
        units: list[Unit] = []
        while True:
            position = base + at
            checked = check_record(view, at, log_offset=position, check_crc=self._check_crc)
            if checked.outcome is not RecordOutcome.OK or _is_torn(view, at, checked.size):
                break
            is_unsure = self._distrusts_disk and checked.stored_at_ms >= self._unsure_ms
            if is_unsure and _has_hole(view, at, checked.size):
                break
            if self._is_safe and checked.stored_at_ms > self._safe_ms:
                self._leave_safety(position)
            if self._unsure_from < 0 and is_unsure:
                self._unsure_from = position
            units.append(self._dispatch(checked, position, view, base))
            self._stored_at_ms = checked.stored_at_ms
            self._last_log_offset = position
            at += checked.size
            if len(units) >= BLOCK_COUNT:
                break
        self._dispatcher.add_keys(units)
        return at, checked

    def _leave_safety(self, position: int) -> None:
        """The checkpoint does not vouch for entries of records from here on: they are made again."""
        self._is_safe = False
        self._queues.distrust(position)

    def _dispatch(self, checked: RecordCheck, position: int, view: memoryview, base: int) -> Unit:
        queue = None
        if self._dispatcher.is_queued(checked):
            queue = self._queues.get_or_create((checked.topic, checked.queue_id))
            if position + checked.size > queue.end_log_offset:
                self._dispatcher.put_checked(queue, checked, view, position - base)
        return queue, position, checked.size, checked, checked.stored_at_ms

    def _cut(self, plan: RecoveryPlan, end: int) -> int:
        """End the log at `end`; how many bytes behind it were not zero."""
        last_end = self._log.end
        self._log.end = end
        stale_max = self._log.segment_bytes if plan.distrusts_disk else STALE_BYTES_CLEAN
        lost_bytes = self._log.log.truncate(end, zero_bytes_max=stale_max)
        if lost_bytes:
            log.warning(
                events.LOG_TAIL_CUT,
                extra={"log_offset": end, "file_end": last_end, "zeroed_bytes": lost_bytes},
            )
        return lost_bytes

    def _write_again(self, end: int) -> None:
        """Put the bytes that were perhaps never synced where they are already.

        After a failed fsync the page cache may hold what the disk does not, and take it for clean: without
        this a later fsync succeeds, and a power cut tears a hole into the log.
        """
        position = self._unsure_from if self._unsure_from >= 0 else end
        while position < end:
            view = self._log.view(position, MIB)
            self._log.write(position, (bytes(view),))
            position += len(view)

    def _settle_queues(self) -> None:
        """Write what the scan added, drop what the log lost, find the first entry that is kept."""
        for queue in self._queues:
            queue.write()
        self._queues.truncate(self._log.end)
        self._queues.raise_min(self._log.begin)


def _is_torn(view: memoryview, at: int, size: int) -> bool:
    """True for a last record whose properties end in zeros: the checksum covers the body only.

    Asked of the last record alone, because a message in the middle may well have such properties, and ending
    the log there would lose what follows.
    """
    end = at + size
    if view[end - 1] or any(view[end : end + BLANK_BYTES]):
        return False
    return decode_record(view, at, check_crc=False).raw_properties.endswith(b"\0")


def _has_hole(view: memoryview, at: int, size: int) -> bool:
    """True for a record of whose properties a whole sector is zeros: a power cut took it.

    The store takes no record whose properties look like that.
    """
    end = at + size
    for sector in range(align_up(at, SECTOR_BYTES), end - SECTOR_BYTES + 1, SECTOR_BYTES):
        if view[sector : sector + SECTOR_BYTES] == ZERO_SECTOR:
            properties = decode_record(view, at, check_crc=False).raw_properties
            return ZERO_SECTOR in properties
    return False
