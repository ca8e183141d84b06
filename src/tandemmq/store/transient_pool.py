"""The tail of the log in locked memory: appends go to the `TransientPool`; the `Committer` writes them to the
files and raises `appended`.

Invariants: bytes from the log's `end` to the pool's `end` are in buffers and nowhere else. A file of the log
            accepts appends only while it has a buffer of the pool. A buffer is returned once every byte of
            its file is committed, and never while a commit reads it. `appended` rises only when the bytes are
            in the page cache.
At a bound: without a free buffer the next file is not begun and the send is refused, so only bytes that can
            reach the disk are accepted.
Strategy:   buffers are created on demand, and the one returned last is lent first, so that memory use follows
            the number of files being filled.
Knows not:  the meaning of records, the waiting senders.
Source:     spec store 11, spec replication 10.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from tandemmq.errors import Busy, RequestRejected
from tandemmq.protocol.record import RecordOutcome, check_record
from tandemmq.runtime.disk import LockedMemory
from tandemmq.runtime.ports import File
from tandemmq.store.commit_log import CommitLog
from tandemmq.store.core import StoreCore
from tandemmq.store.options import PAGE_BYTES, StoreOptions
from tandemmq.store.segmented_log import Segment, pinned
from tandemmq.telemetry import events
from tandemmq.units import Buffer

log = logging.getLogger(__name__)

CREATE_FILE_FAILED = 1
"""SYSTEM_ERROR: the response code of a send for which no file can be created (spec store 4)."""
RETRY_AFTER_S = 1.0
LAST_ATTEMPTS = 10
"""The number of final commit attempts of a closing store (spec store 11)."""
_COMMIT_FAILED = "commit failed"

Write: TypeAlias = "tuple[File, int, Buffer]"


class PooledBytes(NamedTuple):
    """Bytes that belong at `position` of a file."""

    segment: Segment
    position: int
    data: memoryview


class _LentBuffer:
    """A buffer assigned to one file; bytes after `written` belong to the file it served before."""

    __slots__ = ("memory", "written")

    def __init__(self, memory: LockedMemory) -> None:
        self.memory = memory
        self.written = 0


class TransientPool:
    """The memory that holds appends until they are committed. `end` is the offset of the next byte."""

    def __init__(
        self, options: StoreOptions, log: CommitLog, allocate: Callable[[int], LockedMemory] = LockedMemory
    ) -> None:
        self._log = log
        self._count_max = options.transient_pool_size
        self._fails_fast = options.fail_fast_without_buffer
        self._allocate = allocate
        self._free: list[LockedMemory] = []
        self._lent: dict[int, _LentBuffer] = {}  # by the first byte of the file, oldest first
        self._is_exhausted = False
        self._has_warned = False
        self.end = 0

    @property
    def free_count(self) -> int:
        """The number of files that may still be begun now."""
        assert len(self._lent) <= self._count_max, (len(self._lent), self._count_max)
        return self._count_max - len(self._lent)

    @property
    def uncommitted_bytes(self) -> int:
        return self.end - self._log.end

    def restart(self) -> None:
        """Continues at the end of the log, which moved without the pool; everything must be committed."""
        assert self.end <= self._log.end, f"{self.uncommitted_bytes} bytes would be lost"
        # A commit may still read from the buffers; the last reference frees them.
        self._lent.clear()
        self.end = self._log.end
        assert len(self._free) <= self._count_max, (len(self._free), self._count_max)

    # The methods for the appender.

    def room_end(self, position: int) -> int:
        """Returns the end of the file that holds bytes at `position`; `position` itself if no file
        does yet.
        """
        segment = self._log.log.find(position)
        return position if segment is None or segment.base not in self._lent else segment.end

    def open_at(self, offset: int) -> Segment:
        """Returns the file for byte `offset`, with a buffer.

        Raises:  Busy, or code SYSTEM_ERROR if configured to fail fast, when every buffer is in use; OSError
                 when the file cannot be created.
        """
        assert offset >= self.end, (offset, self.end)
        if not self.free_count:
            raise self._exhausted()
        segment = self._log.open_at(offset)
        assert segment.base not in self._lent, segment
        assert not self._lent or max(self._lent) < segment.base, segment
        self._lent[segment.base] = _LentBuffer(self._free.pop() if self._free else self._make_buffer())
        assert len(self._lent) + len(self._free) <= self._count_max, (
            "the pool never holds more buffers than configured"
        )
        return segment

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Stores bytes for `offset`, within one file that was opened."""
        base = offset - offset % self._log.segment_bytes
        lent = self._lent[base]
        view = lent.memory.view
        at = offset - base
        assert at >= lent.written, "bytes in the pool are never overwritten"
        assert offset >= self.end, (offset, self.end)
        for buffer in buffers:
            end = at + len(buffer)
            view[at:end] = buffer
            at = end
        assert at <= len(view), (base, at, len(view))
        lent.written = at

    # The method for readers.

    def record(self, log_offset: int) -> memoryview | None:
        """Returns a copy of the uncommitted record that begins at `log_offset`; None without one."""
        base = log_offset - log_offset % self._log.segment_bytes
        lent = self._lent.get(base)
        if lent is None or not self._log.end <= log_offset < self.end:
            return None
        written = lent.memory.view[: lent.written]
        checked = check_record(written, log_offset - base, log_offset=log_offset, check_crc=False)
        if checked.outcome is not RecordOutcome.OK:
            return None
        # The buffer serves another file as soon as this one is committed.
        return memoryview(bytes(written[log_offset - base : log_offset - base + checked.size]))

    # The methods for the committer.

    def pieces(self, begin: int, end: int) -> list[PooledBytes]:
        """Returns the bytes `[begin, end)`, file by file; valid until `release_below` reaches a file's end.

        Nothing was written after a BLANK; the files are zero there.
        """
        assert self._log.end <= begin <= end <= self.end, (self._log.end, begin, end, self.end)
        found = []
        for segment in self._log.dirty_segments(begin, end):
            lent = self._lent[segment.base]
            first = max(begin, segment.base) - segment.base
            last = min(end - segment.base, lent.written)
            if first < last:
                found.append(PooledBytes(segment, first, lent.memory.view[first:last]))
        assert found or begin == end, "accepted bytes must be in a buffer"
        return found

    def release_below(self, committed: int) -> None:
        """Frees the buffers of files that end at or below `committed`."""
        assert committed <= self._log.end, (committed, self._log.end)
        for base in [base for base in self._lent if base + self._log.segment_bytes <= committed]:
            self._free.append(self._lent.pop(base).memory)
            self._is_exhausted = False

    def close(self) -> None:
        """Releases all memory; uncommitted bytes are lost."""
        self._free.clear()
        self._lent.clear()

    def _make_buffer(self) -> LockedMemory:
        size = self._log.segment_bytes
        memory = self._allocate(size)
        assert len(memory.view) == size, (len(memory.view), size)
        if not memory.is_locked and not self._has_warned:
            self._has_warned = True
            log.warning(events.POOL_MEMORY_NOT_LOCKED, extra={"size_bytes": size})
        return memory

    def _exhausted(self) -> RequestRejected:
        if not self._is_exhausted:
            self._is_exhausted = True
            log.warning(
                events.POOL_EXHAUSTED,
                extra={"buffer_count": self._count_max, "uncommitted_bytes": self.uncommitted_bytes},
            )
        if self._fails_fast:
            return RequestRejected("no file was made: all pool buffers are in use", code=CREATE_FILE_FAILED)
        return Busy("[REJECTREQUEST]all pool buffers are in use, try another broker")


class Committer:
    """The commits of one store. `written_at_ms()` is the store time of the newest record in the pool.

    Invariants: one commit at a time; a commit ends where a write of the appender ended, so readers and slaves
                never see a partial record.
    Strategy:   a put starts a commit if enough pages are uncommitted or the last commit is too long ago;
                otherwise a timer starts it later. The copy runs off the loop, so a stalled page cache delays
                readers, not producers. A failed commit changes nothing: it is repeated later with the same
                bytes and positions, and sends are refused meanwhile.
    """

    def __init__(self, core: StoreCore, pool: TransientPool, written_at_ms: Callable[[], int]) -> None:
        self._core = core
        self._rounds = core.rounds("commit")
        self._thorough_s = core.options.commit_thorough_interval_ms / 1000
        self._pool = pool
        self._written_at_ms = written_at_ms
        self._committed_at = core.clock.monotonic() - self._thorough_s
        self._retry_at = 0.0
        self.committed_stored_at_ms = 0  # of the newest record in the files

    def wake(self) -> None:
        """Starts or schedules a commit after a put into the pool."""
        if self._rounds.is_stopped or self._rounds.is_running:
            return
        if self._is_due():
            self._rounds.start(self._catch_up)
        elif not self._rounds.is_timed:
            self._rounds.after(self._core.options.commit_interval_ms / 1000, self._tick)

    def _tick(self) -> None:
        if self._pool.end > self._core.log.end:
            self.wake()

    def _is_due(self) -> bool:
        now = self._core.clock.monotonic()
        begin, end = self._core.log.end, self._pool.end
        if begin >= end or now < self._retry_at:
            return False
        if now >= self._committed_at + self._thorough_s:
            return True
        size = self._core.log.segment_bytes
        return (
            begin // size != end // size
            or end // PAGE_BYTES - begin // PAGE_BYTES >= self._core.options.commit_least_pages
        )

    async def _catch_up(self) -> None:
        while not self._rounds.is_stopped and self._is_due():
            await self.commit()
        if self._pool.end > self._core.log.end:
            self._rounds.after(self._core.options.commit_interval_ms / 1000, self._tick)

    async def commit(self) -> bool:
        """Writes the present content of the pool to the files; False if the disk accepted no write."""
        target, stored_at_ms = self._pool.end, self._written_at_ms()
        begun_at = self._core.clock.monotonic()
        pieces = self._pool.pieces(self._core.log.end, target)
        try:
            with pinned(piece.segment for piece in pieces) as files:
                writes = [
                    (file, piece.position, piece.data) for file, piece in zip(files, pieces, strict=True)
                ]
                await self._core.disk.offload(_write_all, writes)
        except OSError as error:
            # Else `commit_now` was faster, and no commit would lift the refusal.
            if target > self._core.log.end:
                self._block(error)
            return False
        self._core.recorder.commit_s.observe(self._core.clock.monotonic() - begun_at)
        self._advance(target, stored_at_ms)
        self._pool.release_below(self._core.log.end)
        return True

    def commit_now(self) -> None:
        """Commits at once, on the loop, before the role changes.

        Raises:  OSError; everything is still in the pool then.
        """
        target = self._pool.end
        for segment, position, data in self._pool.pieces(self._core.log.end, target):
            segment.file.pwrite(position, (data,))
        self._advance(target, self._written_at_ms())
        if not self._rounds.is_running:
            self._pool.release_below(target)

    def _advance(self, target: int, stored_at_ms: int) -> None:
        self._committed_at = self._core.clock.monotonic()
        if self._core.admission.is_blocked(_COMMIT_FAILED):
            self._core.admission.unblock(_COMMIT_FAILED)
            log.warning(events.COMMIT_RESUMED, extra={"log_offset": target})
        if target <= self._core.log.end:
            return  # `commit_now` was faster
        assert target <= self._pool.end, (target, self._pool.end)
        self.committed_stored_at_ms = max(self.committed_stored_at_ms, stored_at_ms)
        self._core.log.end = target
        self._core.appended.raise_to(target)
        assert self._core.appended.value == target, (self._core.appended.value, target)

    def _block(self, error: OSError) -> None:
        self._retry_at = self._core.clock.monotonic() + RETRY_AFTER_S
        if not self._core.admission.is_blocked(_COMMIT_FAILED):
            log.error(
                events.COMMIT_TO_LOG_FAILED,
                extra={"uncommitted_bytes": self._pool.uncommitted_bytes, "error": str(error)},
            )
        self._core.admission.block(_COMMIT_FAILED, f"the disk accepts no writes: {error.strerror or error}")

    async def stop(self) -> bool:
        """Commits the rest and starts no more commits. Returns True if nothing is left."""
        is_halted = self._rounds.is_stopped
        await self._rounds.stop()
        for _ in range(0 if is_halted else LAST_ATTEMPTS):
            if self._pool.end <= self._core.log.end or await self.commit():
                break
        # On a slave the log has grown without the pool.
        lost_bytes = max(0, self._pool.end - self._core.log.end)
        if lost_bytes:
            log.error(
                events.POOL_ABANDONED, extra={"log_offset": self._core.log.end, "lost_bytes": lost_bytes}
            )
        return not lost_bytes


def _write_all(writes: Sequence[Write]) -> None:
    for file, position, data in writes:
        file.pwrite(position, (data,))
