"""Restores damaged ranges of the log from the bytes of another copy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

from tandemmq.errors import ClientError, Corrupt, DiskFull, FlushFailed, StoreError
from tandemmq.protocol.record import RecordCheck, RecordOutcome, check_record
from tandemmq.store.core import StoreCore
from tandemmq.store.damage import DAMAGED, DamagedRange, copy_aside, read_range
from tandemmq.store.dispatcher import Dispatcher
from tandemmq.store.flusher import Flusher, sync_segments
from tandemmq.store.table_flusher import TableFlusher
from tandemmq.telemetry import events
from tandemmq.units import KIB, MIB

log = logging.getLogger(__name__)

HEAL_BYTES_MAX = 256 * MIB
AROUND_BYTES = 4 * KIB
"""The bytes on either side of a range that must be the same in both logs."""

Fetch = Callable[[int, int], Awaitable[bytes]]
"""(log_offset, size): returns the other copy's bytes, all of them. Raises a TandemError when it
lacks some.
"""


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
        self, core: StoreCore, dispatcher: Dispatcher, flusher: Flusher, table_flusher: TableFlusher
    ) -> None:
        self._core = core
        self._dispatcher = dispatcher
        self._flusher = flusher
        self._table_flusher = table_flusher
        self._lock = asyncio.Lock()

    async def heal_all(self, fetch: Fetch) -> int:
        """Repairs damaged ranges with the bytes of another copy of this log; returns how many are left.

        If none is left, sends are accepted again.
        Raises:  what `fetch` raises, at once; Corrupt or DiskFull for the last range that was not healed.
        """
        failure: StoreError | None = None
        known = self._core.log.damaged
        async with self._lock:
            for damaged in known:
                if self._core.admission.is_closed:
                    break
                try:
                    await self._heal(damaged, fetch)
                except (Corrupt, DiskFull) as error:
                    if damaged in known:  # else it left the log meanwhile, or grew
                        failure = error
                except ClientError:  # the peer failed; some of these errors are OSErrors
                    raise
                except OSError as error:
                    self._flusher.fail(error)
                    raise FlushFailed(f"fsync failed, the store must be recovered: {error}") from error
        if not known:
            self._core.admission.unblock(DAMAGED)
        elif failure is not None:
            raise failure
        return len(known)

    async def _heal(self, damaged: DamagedRange, fetch: Fetch) -> None:
        """Heals the range; it is valid again when the call returns.

        Raises:  what `fetch` raises; Corrupt when the other bytes do not fit here; DiskFull; OSError when an
                 fsync failed.
        """
        if damaged not in self._core.log.damaged:
            return  # it left the log while another one was healed
        if damaged.size > HEAL_BYTES_MAX:
            reason = f"{damaged.size} bytes exceed the {HEAL_BYTES_MAX} that are healed at once"
            raise self._mismatch(damaged, reason)
        data = await fetch(damaged.begin, damaged.end - damaged.begin)
        records = list(self._records(damaged, data))
        await self._compare_around(damaged, fetch)
        if damaged not in self._core.log.damaged:
            return  # retention or a cut removed it, or it grew meanwhile
        touched = self._dispatcher.restore(memoryview(data), damaged.begin, records)
        steps: tuple[Callable[[], Awaitable[object]], ...] = (
            self._table_flusher.flush_soon,
            partial(self._keep_copy, damaged),
            partial(self._write, damaged, data),
        )
        for step in steps:
            await step()
            if damaged not in self._core.log.damaged:
                return
        self._core.log.damaged.remove(damaged)
        self._dispatcher.notify(touched)
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
            segment = self._core.log.log.find(position)
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
        before = max(damaged.begin - AROUND_BYTES, self._core.log.begin)
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
            segment = self._core.log.log.find(end - 1)
            begin = begin if segment is None else max(begin, segment.base)
            while (other := self._core.log.damaged.find(begin, end)) is not None:
                begin = other.end
        view = self._core.log.valid_view(begin, max(0, end - begin))
        return (begin, view) if len(view) else None

    async def _keep_copy(self, damaged: DamagedRange) -> None:
        disk = self._core.log.disk
        now_ms = self._core.clock.now_ms()
        copy = partial(copy_aside, directory=self._core.paths.damaged, suffix="bad", disk=disk, now_ms=now_ms)
        try:
            old = [*read_range(self._core.log.log, damaged.begin, damaged.end)]
        except OSError:
            old = [bytes(damaged.size)]  # an unreadable sector holds nothing to keep
        assert sum(map(len, old)) == damaged.size, damaged
        await disk.offload(copy, old, damaged.begin, damaged.size)

    async def _write(self, damaged: DamagedRange, data: bytes) -> None:
        assert len(data) == damaged.size, (damaged, len(data))
        segments = self._core.log.dirty_segments(damaged.begin, damaged.end)
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
        await sync_segments(self._core.log.disk, segments)

    def _mismatch(self, damaged: DamagedRange, reason: str) -> StoreError:
        directory = self._core.log.log.directory
        return Corrupt(directory, damaged.begin, f"bytes to {damaged.end} are not healed: {reason}")
