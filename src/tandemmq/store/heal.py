"""Puts damaged ranges of the log right with the bytes of another copy.

Invariants: nothing is written before the other copy's bytes are a run of sound records that fills the range
            exactly, and its bytes around the range are the same as ours: so it is the same log. What was
            there is copied aside, and on disk, before. A range is sound again only after the fsync; a heal
            that a crash ended is found by the next start, as damage.
Strategy:   first the queue entries that are missing, and on disk: nobody looks for them later. Readers pass
            over them while the range is damaged. The key index stays as it is: it takes keys in the order of
            the log only.
At a bound: a range of more than `HEAL_BYTES_MAX` is left to a person.
Knows not:  who has the other copy.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

from tandemmq.errors import Corrupt, DiskFull, StoreError
from tandemmq.protocol.record import RecordCheck, RecordOutcome, check_record
from tandemmq.runtime.ports import Clock
from tandemmq.store.commit_log import CommitLog
from tandemmq.store.damage import DamagedRange, copy_aside, read_range
from tandemmq.store.dispatcher import Dispatcher
from tandemmq.store.flusher import sync_segments
from tandemmq.telemetry import events
from tandemmq.units import KIB, MIB

log = logging.getLogger(__name__)

HEAL_BYTES_MAX = 256 * MIB
AROUND_BYTES = 4 * KIB
"""So much on either side must be the same in both logs."""

Fetch = Callable[[int, int], Awaitable[bytes]]
"""(log_offset, size): the other copy's bytes, all of them. Raises a TandemError when it has not."""


class Healer:
    """The heals of one store; one at a time."""

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
        """The range is sound again when this returns.

        Raises:  what `fetch` raises; Corrupt when the other bytes do not fit here; DiskFull; OSError when an
                 fsync failed.
        """
        if damaged.size > HEAL_BYTES_MAX:
            raise self._misfit(damaged, f"{damaged.size} bytes are too many to heal at once")
        data = await fetch(damaged.begin, damaged.end - damaged.begin)
        records = list(self._records(damaged, data))
        await self._compare_around(damaged, fetch)
        if damaged not in self._log.damaged:
            return  # retention took it, or it grew meanwhile
        touched = self._dispatcher.restore(memoryview(data), damaged.begin, records)
        await self._flush_tables()
        await self._write(damaged, data)
        self._log.damaged.remove(damaged)
        self._dispatcher.tell_of(touched)
        log.warning(
            events.LOG_HEALED,
            extra={"log_offset": damaged.begin, "size_bytes": damaged.size, "record_count": len(records)},
        )

    def _records(self, damaged: DamagedRange, data: bytes) -> Iterator[RecordCheck]:
        """The records that fill the range, file by file. Raises Corrupt."""
        if len(data) != damaged.size:
            raise self._misfit(damaged, f"{len(data)} bytes came")
        view = memoryview(data)
        position = damaged.begin
        while position < damaged.end:
            segment = self._log.log.find(position)
            if segment is None:
                raise self._misfit(damaged, "the file is gone")
            at, file_end = position - damaged.begin, segment.end - damaged.begin
            found = check_record(view[:file_end], at, log_offset=position)
            if found.outcome is RecordOutcome.BLANK and found.size == segment.end - position:
                position = segment.end
            elif found.outcome is RecordOutcome.OK:
                yield found
                position += found.size
            else:
                raise self._misfit(damaged, f"the other copy at {position}: {found.outcome.value}")
        if position != damaged.end:
            raise self._misfit(damaged, f"the other copy's records end at {position}")

    async def _compare_around(self, damaged: DamagedRange, fetch: Fetch) -> None:
        """Raises Corrupt where the other log is not ours."""
        before = max(damaged.begin - AROUND_BYTES, self._log.begin)
        compared = 0
        for begin, end in ((before, damaged.begin), (damaged.end, damaged.end + AROUND_BYTES)):
            ours = self._sound_part(begin, end, is_before=end == damaged.begin)
            if ours is None:
                continue
            at, view = ours
            if await fetch(at, len(view)) != view:
                raise self._misfit(damaged, f"the other log differs from ours at {at} or behind it")
            compared += len(view)
        if not compared:
            raise self._misfit(damaged, "no sound byte lies around it that could be compared")

    def _sound_part(self, begin: int, end: int, *, is_before: bool) -> tuple[int, memoryview] | None:
        """Sound bytes that touch the range, of one file; None without any."""
        if is_before:
            segment = self._log.log.find(end - 1)
            begin = begin if segment is None else max(begin, segment.base)
            while (other := self._log.damaged.find(begin, end)) is not None:
                begin = other.end
        view = self._log.sound_view(begin, max(0, end - begin))
        return (begin, view) if len(view) else None

    async def _write(self, damaged: DamagedRange, data: bytes) -> None:
        disk = self._log.disk
        now_ms = self._clock.now_ms()
        copy = partial(copy_aside, directory=self._copies, suffix="bad", disk=disk, now_ms=now_ms)
        try:
            old = [*read_range(self._log.log, damaged.begin, damaged.end)]
        except OSError:
            old = [bytes(damaged.size)]  # a sector that cannot be read holds nothing to keep
        await disk.offload(copy, old, damaged.begin, damaged.size)
        segments = self._log.dirty_segments(damaged.begin, damaged.end)
        for segment in segments:
            begin, end = max(segment.base, damaged.begin), min(segment.end, damaged.end)
            part = memoryview(data)[begin - damaged.begin : end - damaged.begin]
            try:
                segment.file.pwrite(begin - segment.base, (part,))
            except OSError as error:
                raise DiskFull(f"{segment.path} takes no writes: {error.strerror or error}") from error
        await sync_segments(disk, segments)

    def _misfit(self, damaged: DamagedRange, reason: str) -> StoreError:
        directory = self._log.log.directory
        return Corrupt(directory, damaged.begin, f"bytes to {damaged.end} are not healed: {reason}")
