"""Stores records in a segmented log: writes bytes, reads one record, and returns views of ranges.

Invariants: bytes below `end` are written and never change. A record never spans files. The caller that moves
            `end` has written everything below it. Files after the one that contains `end` are empty: one
            created ahead of need, and those whose bytes still wait in the transient pool.
Strategy:   bytes that readers touch stay mapped into this process until `mapped_bytes_max` is reached,
            counted in blocks that the kernel may map at once. Then all pages are released, which costs a
            later reader a page fault but no disk read, and leaves views valid.
Knows not:  queues, watermarks, waiting senders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tandemmq.protocol.record import RecordCheck, RecordOutcome, check_record
from tandemmq.protocol.record_check import parse_record
from tandemmq.runtime.ports import Disk, File
from tandemmq.store.damage import DamagedRanges
from tandemmq.store.segmented_log import Segment, SegmentedLog
from tandemmq.units import MIB, Buffer

AHEAD_SEGMENT_BYTES_MIN = 64 * MIB
"""The smallest file that is created ahead; smaller ones are created too quickly for this to pay."""
_STORED_AT = 56  # with an IPv4 born host
_SYS_FLAG_AT = 36
_BORN_HOST_V6 = 0x10
_ZEROS = bytes(MIB)
BLOCK_SHIFT = 21
"""The block size as a power of two: a page fault may map a huge page of the page cache, 2 MiB (measured on
Linux 6, ext4).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmth:
    """The warming of files created ahead.

    `sync_bytes`: the number of bytes between fsyncs; None: never.
    """

    sync_bytes: int | None


def warm(file: File, warmth: Warmth) -> None:
    """Fills a new file with zeros, so that later writes find its blocks and pages allocated. Raises OSError.

    Source:  spec store 11.
    """
    assert warmth.sync_bytes is None or warmth.sync_bytes > 0, warmth
    unsynced = 0
    for at in range(0, file.size, len(_ZEROS)):
        size = min(len(_ZEROS), file.size - at)
        file.pwrite(at, (_ZEROS[:size],))
        unsynced += size
        if warmth.sync_bytes is not None and (unsynced >= warmth.sync_bytes or at + size == file.size):
            file.sync()
            unsynced = 0
    assert warmth.sync_bytes is None or unsynced == 0, (file.path, unsynced)


class LogWindow:
    """A reader of many positions of a log, optimised for neighbours in the same file and block."""

    __slots__ = ("_base", "_block_begin", "_block_end", "_log", "_segment", "_stop", "_whole")

    def __init__(self, log: CommitLog) -> None:
        self._log = log
        self._segment: Segment | None = None
        self._base = self._stop = 0
        self._block_begin = self._block_end = 0  # the part of this file inside the block read last
        self._whole = memoryview(b"")

    def view(self, begin: int, end: int) -> memoryview:
        """Like `CommitLog.view`, but for the range `[begin, end)`."""
        if not (self._block_begin <= begin and end <= self._block_end):
            end = self._move(begin, end)
        base = self._base
        return self._whole[begin - base : end - base]

    def _move(self, begin: int, end: int) -> int:
        """Moves to another block. Returns the end of the readable bytes; `begin` if none are readable."""
        log = self._log
        if not self._base <= begin < self._stop:
            if not log.begin <= begin < log.end:
                return begin
            segment = self._segment = log.log.find(begin)
            assert segment is not None, begin
            self._base, self._stop, self._whole = segment.base, min(segment.end, log.end), segment.view()
            assert self._base <= begin < self._stop, (segment, begin, log.end)
        end = min(end, self._stop)
        assert self._segment is not None
        log.touch(self._segment, begin, end)
        block = (end - 1) >> BLOCK_SHIFT << BLOCK_SHIFT
        self._block_begin = max(self._base, block)
        self._block_end = min(self._stop, block + (1 << BLOCK_SHIFT))
        return end


class CommitLog:
    """The bytes of the log; `end` is the offset of the next byte to write."""

    def __init__(
        self, log: SegmentedLog, disk: Disk, *, mapped_bytes_max: int, warmth: Warmth | None = None
    ) -> None:
        self.log = log
        self.disk = disk
        self.end = 0
        self.damaged = DamagedRanges()
        self._ahead_at = 0  # no file is made ahead while the log ends before this offset
        self._warmth = warmth
        self._block_count_max = max(1, mapped_bytes_max >> BLOCK_SHIFT)
        self._blocks: set[int] = set()
        self._touched: dict[Segment, None] = {}

    @property
    def segment_bytes(self) -> int:
        return self.log.segment_bytes

    @property
    def begin(self) -> int:
        """The offset of the first byte that is kept."""
        segments = self.log.segments
        return segments[0].base if segments else self.end

    def begin_at(self, base: int) -> None:
        """Makes the empty log begin at byte `base`, the start of a file."""
        assert self.begin == self.end
        assert base % self.segment_bytes == 0
        assert not self.damaged, "an empty log has no damage"
        self.log.remove_all()
        self.end = base
        assert self.begin == base, (self.begin, base)

    def cut_at(self, end: int) -> None:
        """Shortens the log; the caller zeroes the bytes after `end`."""
        assert self.begin <= end <= self.end
        self.release_pages()
        self.damaged.drop_behind(end)
        assert all(one.begin < one.end <= end for one in self.damaged), (end, tuple(self.damaged))
        self.end = end
        self._ahead_at = 0

    def room_end(self, position: int) -> int:
        """Returns the end of the file that holds bytes at `position`; `position` itself if no file does."""
        segment = self.log.find(position)
        return position if segment is None else segment.end

    def open_at(self, offset: int) -> Segment:
        """Returns the file for byte `offset`, created if it is the next one. Raises OSError."""
        return self.log.open_at(offset)

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Writes bytes at `offset`, within one existing file.

        Raises:  OSError; any part of the range may then hold new bytes.
        """
        # Written bytes never change.
        assert offset >= self.end, (offset, self.end)
        segment = self.log.find(offset)
        assert segment is not None, offset
        assert segment.base <= offset < segment.end, (segment, offset)
        segment.file.pwrite(offset - segment.base, buffers)

    def zero(self, offset: int, size: int) -> None:
        """Overwrites a range of one file with zeros. Raises OSError."""
        assert size >= 0, (offset, size)
        segment = self.log.find(offset)
        if segment is None:
            return
        end = min(offset + size, segment.end)
        for at in range(offset, end, len(_ZEROS)):
            segment.file.pwrite(at - segment.base, (_ZEROS[: min(len(_ZEROS), end - at)],))

    def view(self, log_offset: int, bytes_max: int) -> memoryview:
        """Returns written bytes from `log_offset` on, of one file; empty outside the log."""
        assert bytes_max >= 0, (log_offset, bytes_max)
        if not self.begin <= log_offset < self.end:
            return memoryview(b"")
        segment = self.log.find(log_offset)
        assert segment is not None, log_offset
        start = log_offset - segment.base
        stop = min(start + bytes_max, segment.size, self.end - segment.base)
        self.touch(segment, log_offset, segment.base + stop)
        return segment.view()[start:stop]

    def views(self, places: Iterable[Sequence[int]]) -> list[memoryview]:
        """Returns a view for each place; the first two numbers of a place are its begin and end offset.

        Neighbouring places in the same file share a lookup.
        """
        window = LogWindow(self)
        return [window.view(located[0], located[1]) for located in places]

    def segment_view(self, log_offset: int) -> tuple[int, memoryview] | None:
        """Returns the first offset and all written bytes of the file that contains `log_offset`.

        None outside the log. The caller is assumed to read from there to the end.
        """
        return self._segment_view(log_offset, self.end)

    def _segment_view(self, log_offset: int, read_end: int) -> tuple[int, memoryview] | None:
        if not self.begin <= log_offset < self.end:
            return None
        segment = self.log.find(log_offset)
        assert segment is not None, log_offset
        self.touch(segment, log_offset, min(read_end, segment.end))
        view = segment.view()
        return segment.base, view if segment.end <= self.end else view[: self.end - segment.base]

    def touch(self, segment: Segment, begin: int, end: int) -> None:
        """Records that a caller is about to read these bytes through the map."""
        blocks = self._blocks
        first, last = begin >> BLOCK_SHIFT, (end - 1) >> BLOCK_SHIFT
        if first in blocks and last in blocks and last - first < 2:
            return
        touched = range(first, last + 1)
        if blocks and len(blocks) + len(touched) > self._block_count_max:
            self.release_pages()
        blocks.update(touched)
        assert len(blocks) <= max(self._block_count_max, len(touched)), (segment, begin, end)
        self._touched[segment] = None

    def release_pages(self) -> None:
        """Releases the mapped pages from this process; they stay in the page cache, and views stay valid."""
        for segment in self._touched:
            segment.release_pages()
        self._touched.clear()
        self._blocks.clear()

    def valid_view(self, log_offset: int, bytes_max: int) -> memoryview:
        """Like `view`, but stops where damage begins; empty inside a damaged range."""
        view = self.view(log_offset, bytes_max)
        if not self.damaged:
            return view
        damaged = self.damaged.find(log_offset, log_offset + len(view))
        return view if damaged is None else view[: max(0, damaged.begin - log_offset)]

    def check(self, log_offset: int, *, check_crc: bool = False) -> RecordCheck:
        """Checks the record at `log_offset`, including the offset stored in it."""
        located = self._locate(log_offset)
        if isinstance(located, RecordOutcome):
            return RecordCheck(located)
        return check_record(*located, log_offset=log_offset, check_crc=check_crc)

    def _locate(self, log_offset: int) -> tuple[memoryview, int] | RecordOutcome:
        """Returns the written bytes of the file that contains `log_offset`, and its position in them.

        If no valid bytes exist there, the reason is returned instead.
        """
        if self.damaged and self.damaged.find(log_offset, log_offset + 1) is not None:
            return RecordOutcome.BAD_CRC
        found = self._segment_view(log_offset, log_offset + 1)
        if found is None:
            return RecordOutcome.END
        base, view = found
        return view, log_offset - base

    def record(self, log_offset: int) -> memoryview | None:
        """Returns the whole record that begins at `log_offset`; None if no valid one does."""
        located = self._locate(log_offset)
        if isinstance(located, RecordOutcome):
            return None
        parsed = parse_record(*located)
        if isinstance(parsed, RecordCheck) or parsed[0][6] != log_offset:
            return None
        size = parsed[0][0]
        view = self.view(log_offset, size)
        assert len(view) == size, (log_offset, size, len(view))
        return view

    def stored_at(self, log_offset: int) -> int:
        """Returns STORETIMESTAMP of the record at `log_offset`; -1 outside the log or in damage (spec store
        13.2).
        """
        if not self.begin <= log_offset < self.end:
            return -1
        if self.damaged and self.damaged.find(log_offset, log_offset + 1) is not None:
            return -1
        segment = self.log.find(log_offset)
        assert segment is not None, log_offset
        head = segment.file.pread(log_offset - segment.base, _STORED_AT + 20)
        if len(head) < _STORED_AT + 20:
            return -1
        at = _STORED_AT + (12 if head[_SYS_FLAG_AT + 3] & _BORN_HOST_V6 else 0)
        return int.from_bytes(head[at : at + 8], "big", signed=True)

    def needs_segment_ahead(self) -> bool:
        """Returns True once per file: when it is four fifths full and the next file is worth creating off the
        loop.
        """
        if self.end < self._ahead_at:
            return False
        last = self.log.last
        if last is None:
            return False
        self._ahead_at = last.base + last.size * 4 // 5
        if self.end < self._ahead_at:
            return False
        assert self.end <= last.end, (self.end, last)
        self._ahead_at += last.size
        return last.size >= AHEAD_SEGMENT_BYTES_MIN or self._warmth is not None

    async def make_segment_ahead(self) -> None:
        """Creates the next file off the loop. A failure is left to the append that needs the file."""
        last = self.log.last
        assert last is not None
        assert self.end <= last.end, (self.end, last)
        path = self.log.path_of(last.end)
        try:
            file = await self.disk.offload(self._make, path, last.size)
        except OSError:
            return
        # An append that could not wait may have created the file; then this attempt failed with
        # FileExistsError.
        assert self.log.last is last, "nothing was cut, nor another file begun, while this one was made"
        self.log.adopt(last.end, file)

    def _make(self, path: Path, size: int) -> File:
        file = self.disk.create(path, size)
        if self._warmth is not None:
            # Warming only makes later writes faster; the file is usable without it.
            with suppress(OSError):
                warm(file, self._warmth)
        return file

    def drop_unused_segments(self) -> None:
        """Deletes files after the end, as RocketMQ does at a clean stop (spec store 2).

        An empty log that starts after 0 keeps one file, whose name records the start.
        """
        kept_count = 1 if self.end else 0
        while len(self.log.segments) > kept_count and self.log.segments[-1].base >= self.end:
            self.log.segments.pop().remove()
        assert self.log.last is None or self.end <= self.log.last.end, (self.end, self.log.last)

    def dirty_segments(self, begin: int, end: int) -> list[Segment]:
        """Returns the files that hold bytes `[begin, end)`."""
        assert begin <= end, (begin, end)
        return [segment for segment in self.log.segments if segment.base < end and segment.end > begin]
