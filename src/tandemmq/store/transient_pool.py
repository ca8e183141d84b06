"""The tail of the log in locked memory: appends go here, the committer carries them to the files.

Invariants: bytes from the log's `end` to the pool's `end` are in buffers and nowhere else; a file of the log
            takes appends only while it has a buffer of the pool; a buffer returns when every byte of its file
            is committed, and never while a commit reads it.
At a bound: without a free buffer the next file is not begun and the send is refused: nothing is ever accepted
            that has no way to the disk.
Strategy:   buffers are made when they are first needed, and the one returned last is lent first, so that as
            much memory is used as there are files in the making.
Knows not:  what records mean, when commits happen, who waits.
Source:     spec store 11, spec replication 10.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tandemmq.errors import Busy, RequestRejected
from tandemmq.protocol.record import RecordOutcome, check_record
from tandemmq.runtime.disk import LockedMemory
from tandemmq.runtime.ports import Buffer
from tandemmq.store.commit_log import CommitLog
from tandemmq.store.options import StoreOptions
from tandemmq.store.segment import Segment
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

CREATE_FILE_FAILED = 1
"""SYSTEM_ERROR, which a send gets when no file can be made for it (spec store 4)."""


class Piece(NamedTuple):
    """Bytes that belong at `position` of a file."""

    segment: Segment
    position: int
    data: memoryview


class _Lent:
    """A buffer that belongs to one file; what lies behind `written` is of the file it served before."""

    __slots__ = ("memory", "written")

    def __init__(self, memory: LockedMemory) -> None:
        self.memory = memory
        self.written = 0


class TransientPool:
    """Where appends are kept until they are committed. `end` is where the next byte goes."""

    def __init__(
        self, options: StoreOptions, log: CommitLog, allocate: Callable[[int], LockedMemory] = LockedMemory
    ) -> None:
        self._log = log
        self._count_max = options.transient_pool_size
        self._fails_fast = options.fail_fast_without_buffer
        self._allocate = allocate
        self._free: list[LockedMemory] = []
        self._lent: dict[int, _Lent] = {}  # by the first byte of the file, oldest first
        self._is_exhausted = False
        self._has_warned = False
        self.end = 0

    @property
    def free_count(self) -> int:
        """How many more files may be begun now."""
        return self._count_max - len(self._lent)

    @property
    def uncommitted_bytes(self) -> int:
        return self.end - self._log.end

    def restart(self) -> None:
        """Go on at the end of the log, which others moved; everything must be committed."""
        # A commit may still read from them; whoever reads last frees them.
        self._lent.clear()
        self.end = self._log.end

    # What the appender asks for.

    def room_end(self, position: int) -> int:
        """The end of the file that takes bytes at `position`; `position` itself when none does yet."""
        segment = self._log.log.find(position)
        return position if segment is None or segment.base not in self._lent else segment.end

    def open_at(self, offset: int) -> Segment:
        """The file for byte `offset`, with a buffer.

        Raises:  Busy, or code SYSTEM_ERROR if told to fail fast, when every buffer is in use; OSError when
                 the file cannot be made.
        """
        if not self.free_count:
            raise self._exhausted()
        segment = self._log.open_at(offset)
        assert segment.base not in self._lent, segment
        self._lent[segment.base] = _Lent(self._free.pop() if self._free else self._make_buffer())
        return segment

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Keep bytes for `offset`, within one file that was opened."""
        base = offset - offset % self._log.segment_bytes
        lent = self._lent[base]
        view = lent.memory.view
        at = offset - base
        for buffer in buffers:
            end = at + len(buffer)
            view[at:end] = buffer
            at = end
        lent.written = at

    # What readers ask for.

    def record(self, log_offset: int) -> memoryview | None:
        """A copy of the uncommitted record that begins at `log_offset`; None when none does."""
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

    # What the committer asks for.

    def pieces(self, begin: int, end: int) -> list[Piece]:
        """The bytes from `begin` to `end`, file by file; valid until `release_below` a file's end.

        Behind a BLANK nothing was written; the files are zero there.
        """
        found = []
        for segment in self._log.dirty_segments(begin, end):
            lent = self._lent[segment.base]
            first = max(begin, segment.base) - segment.base
            last = min(end - segment.base, lent.written)
            if first < last:
                found.append(Piece(segment, first, lent.memory.view[first:last]))
        return found

    def release_below(self, committed: int) -> None:
        """Take back the buffers of files that end at or below `committed`."""
        for base in [base for base in self._lent if base + self._log.segment_bytes <= committed]:
            self._free.append(self._lent.pop(base).memory)
            self._is_exhausted = False

    def close(self) -> None:
        """Give all memory back; what is not committed is lost."""
        self._free.clear()
        self._lent.clear()

    def _make_buffer(self) -> LockedMemory:
        size = self._log.segment_bytes
        memory = self._allocate(size)
        if not memory.is_locked and not self._has_warned:
            self._has_warned = True
            log.warning(events.POOL_MEMORY_UNLOCKED, extra={"size_bytes": size})
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
