"""One queue of one topic: an entry of 20 bytes per message holds the position of its record.

First come the entries as stored on disk, and checks of how much of a file is valid; then `ConsumeQueue`,
which reads and writes entries.

Invariants: entry n is at byte 20 * n of the queue's files; `max_offset` entries exist. The next append gets
            `next_offset`, which is ahead of `max_offset` while records wait to be confirmed. Entries below
            `_written` are in the files, those from `tail_start` on are in memory; the two ranges overlap.
Strategy:   appending is one bytearray +=. Files are written when the tail is long or when the flusher runs.
            The files are derived data that recovery rebuilds from the log, so a failed write is only retried
            later.
Knows not:  the content of records beyond the three numbers of an entry.
Source:     spec store 5, 12.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from struct import Struct

import numpy as np

from tandemmq.protocol.record_scan import Ints
from tandemmq.runtime.ports import NotOpened
from tandemmq.store.options import QUEUE_OFFSET_MAX, QUEUE_UNIT_BYTES
from tandemmq.store.segmented_log import OpenFiles, Segment, SegmentedLog
from tandemmq.units import KIB, MIB, align_down

# The entries: `ENTRY` is the array type; a filler stands for an offset without a record.

UNIT = Struct(">qiq")  # log_offset, size, tag_hash
FILLER_SIZE = 0x7FFFFFFF
FILLER = UNIT.pack(0, FILLER_SIZE, 0)
ENTRY = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tag_hash", ">i8")])
assert ENTRY.itemsize == UNIT.size == QUEUE_UNIT_BYTES

SCAN_UNITS = 4096
"""The number of entries that are read together."""
TORN_UNITS_MAX = 64
"""The most entries that a short write tears at the end: its last entry, and one across a sector border."""


def pack_entries(log_offsets: Ints, sizes: Ints, tag_hashes: Ints) -> bytes:
    """Packs entries as stored on disk, one per item."""
    assert len(log_offsets) == len(sizes) == len(tag_hashes)
    units = np.empty(len(log_offsets), dtype=ENTRY)
    units["log_offset"], units["size"], units["tag_hash"] = log_offsets, sizes, tag_hashes
    return units.tobytes()


def units_below(segment: Segment, log_offset: int) -> int:
    """Returns how many entries from the file's start are contiguous, well-formed and of records below
    `log_offset`.

    Fillers count if such an entry follows them.
    """
    first, size, _ = UNIT.unpack(segment.file.pread(0, QUEUE_UNIT_BYTES))
    if size <= 0 or (first >= log_offset and size != FILLER_SIZE):
        return 0
    units = np.frombuffer(segment.file.pread(0, segment.size), dtype=ENTRY)
    offsets = units["log_offset"].astype(np.int64)
    is_filler = units["size"] == FILLER_SIZE
    # A torn offset above 4 GiB can look small, but then it is below its predecessors.
    is_falling = offsets < np.maximum.accumulate(offsets)
    is_bad = (offsets < 0) | (units["size"] <= 0) | ((offsets >= log_offset) | is_falling) & ~is_filler
    is_good = ~is_filler[: int(is_bad.argmax()) if is_bad.any() else len(units)]
    count = len(is_good) - int(is_good[::-1].argmax()) if is_good.any() else 0
    assert not count or 0 <= offsets[count - 1] < log_offset, (segment, count, log_offset)
    return count


def head_fillers(segment: Segment) -> int:
    """Returns how many fillers a file begins with."""
    is_filler = np.frombuffer(segment.file.pread(0, segment.size), dtype=ENTRY)["size"] == FILLER_SIZE
    return len(is_filler) if is_filler.all() else int(is_filler.argmin())


def torn_units(segment: Segment, count: int) -> int:
    """Returns how many of the last of `count` entries are torn: their records precede those of earlier
    entries.
    """
    assert 0 <= count * QUEUE_UNIT_BYTES <= segment.size, (segment, count)
    begin = max(0, count - TORN_UNITS_MAX)
    raw = segment.file.pread(begin * QUEUE_UNIT_BYTES, (count - begin) * QUEUE_UNIT_BYTES)
    units = np.frombuffer(raw, dtype=ENTRY)
    offsets = np.where(units["size"] == FILLER_SIZE, -1, units["log_offset"].astype(np.int64))
    is_valid = (offsets < 0) | (offsets >= np.maximum.accumulate(offsets))
    torn = int(is_valid[::-1].argmax()) if len(units) else 0
    assert torn < max(1, len(units)), "the first one has none before it that it contradicts"
    return torn


def valid_units(segment: Segment) -> tuple[int, tuple[int, int, int] | None]:
    """Returns how many entries of a file are well-formed, from its start without a gap; and the last
    of them.
    """
    count = 0
    last = None
    for at in range(0, segment.size, SCAN_UNITS * QUEUE_UNIT_BYTES):
        raw = segment.file.pread(at, SCAN_UNITS * QUEUE_UNIT_BYTES)
        units = np.frombuffer(raw, dtype=ENTRY)
        is_bad = (units["log_offset"] < 0) | (units["size"] <= 0)
        good = int(is_bad.argmax()) if is_bad.any() else len(units)
        count += good
        if good:
            last = UNIT.unpack_from(raw, (good - 1) * QUEUE_UNIT_BYTES)
        if good < len(units):
            break
    assert (last is None) == (count == 0), (segment, count)
    assert count * QUEUE_UNIT_BYTES <= segment.size, (segment, count)
    return count, last


def last_log_offset(segment: Segment) -> int:
    """Returns the log offset in the last entry of a full file that is not a filler; -1 without one."""
    for end in range(segment.size, 0, -SCAN_UNITS * QUEUE_UNIT_BYTES):
        begin = max(0, end - SCAN_UNITS * QUEUE_UNIT_BYTES)
        units = np.frombuffer(segment.file.pread(begin, end - begin), dtype=ENTRY)
        is_real = units["size"] != FILLER_SIZE
        if is_real.any():
            return int(units["log_offset"][is_real][-1])
    return -1


# The queue: the limits for writing entries and for reading its files in recovery.

TAIL_BYTES_MAX = 32 * KIB
"""The limit of entries in memory, in bytes; beyond it they are written, and the newer half is kept for
readers.
"""
TAIL_BYTES_KEPT = align_down(TAIL_BYTES_MAX // 2, QUEUE_UNIT_BYTES)
assert QUEUE_UNIT_BYTES <= TAIL_BYTES_KEPT < TAIL_BYTES_MAX
RECOVERY_FILE_COUNT = 3
RECOVERY_BYTES = 16 * MIB
"""The last files or bytes, whichever are more, that recovery searches for the end of the entries (spec store
12).

No more than that is ever unsynced, because the flusher syncs long queues every second.
"""

_FILLERS_MAX = TAIL_BYTES_MAX // QUEUE_UNIT_BYTES
"""The number of fillers that one write puts before the first entry of a queue."""

_pack = UNIT.pack


class FilesLeft(OSError):
    """Raised if files of a former run of the queue cannot be deleted, so its entries stay in memory.

    Other queues are not affected.
    """


class ConsumeQueue:
    """The entries of (topic, queue_id), addressed by queue offset."""

    __slots__ = (
        "_has_stale",
        "_is_overtaken",
        "_log",
        "_synced",
        "_tail",
        "_written",
        "end_log_offset",
        "is_dropped",
        "is_schedule",
        "key",
        "max_offset",
        "min_offset",
        "next_offset",
        "run_start",
        "tail_start",
        "waits_for_deletion",
    )

    def __init__(
        self, key: tuple[str, int], directory: Path, file_bytes: int, files: OpenFiles, *, is_schedule: bool
    ) -> None:
        assert file_bytes % QUEUE_UNIT_BYTES == 0, "an entry never spans files"
        self.key = key
        self.is_schedule = is_schedule
        self.is_dropped = False
        self.waits_for_deletion = False  # for the deletion of its former files; that was logged
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        self.run_start = 0  # the end of the queue when this process took over its log as a master
        self.end_log_offset = -1  # the end of the last entry's record, fillers excluded; -1 without one
        self._log = SegmentedLog(directory, file_bytes, files, sparse=True)
        self._tail = bytearray()
        self.tail_start = 0  # entries from here on are in memory
        self._written = 0
        self._synced = 0
        self._has_stale = False  # a power cut may bring back entries that were cut
        self._is_overtaken = False  # entries have changed since the last `unsynced_segments`

    def __repr__(self) -> str:
        return f"ConsumeQueue({self.key[0]}/{self.key[1]}, {self.min_offset}..{self.max_offset})"

    # Appending.

    def put(self, log_offset: int, size: int, tag_hash: int) -> None:
        """Appends the entry of the next message.

        Raises:  OSError when a long tail could not be written; the entry is kept in memory all the same.
        """
        tail = self._tail
        tail += _pack(log_offset, size, tag_hash)
        self.max_offset += 1
        self.end_log_offset = log_offset + size
        if len(tail) > TAIL_BYTES_MAX:
            self._write_long_tail()

    def put_many(self, entries: bytes, end_log_offset: int) -> None:
        """Appends the packed entries of the next messages, the last of which ends at `end_log_offset`.

        Raises:  OSError when a long tail could not be written; the entries are kept in memory all the same.
        """
        assert len(entries) % QUEUE_UNIT_BYTES == 0, len(entries)
        assert end_log_offset > self.end_log_offset, (self, end_log_offset, self.end_log_offset)
        self._tail += entries
        self.max_offset += len(entries) // QUEUE_UNIT_BYTES
        self.next_offset = max(self.next_offset, self.max_offset)
        self.end_log_offset = end_log_offset
        if len(self._tail) > TAIL_BYTES_MAX:
            self._write_long_tail()

    def put_at(self, queue_offset: int, log_offset: int, size: int, tag_hash: int) -> int:
        """Appends an entry at the queue offset stored in its record. Returns the number of fillers put before
        it, or a negative number if the queue restarts.

        A record that is already present, or has an impossible queue offset, changes nothing. A gap is filled
        with filler entries, so that no entry is ever at a wrong offset (spec store 5 step 2, 21.5). After a
        gap longer than a file the queue restarts. In log order a queue offset falls only if the topic was
        deleted and created again: then the queue restarts, and its former entries are gone.

        Raises:  OSError when a file could not be written or deleted; the entry is kept in memory even so.
        """
        if log_offset < self.end_log_offset or not 0 <= queue_offset <= QUEUE_OFFSET_MAX:
            return 0
        gap = queue_offset - self.max_offset
        is_far = gap > 0 and (self.max_offset == 0 or gap > self._log.segment_bytes // QUEUE_UNIT_BYTES)
        try:
            if gap < 0 or is_far:
                self._start_at(queue_offset)
            elif gap:
                self._tail += FILLER * gap
                self.max_offset += gap
        finally:
            # The offset is used up even if the entry's file cannot be written.
            self.next_offset = max(self.next_offset, self.max_offset + 1)
            self.put(log_offset, size, tag_hash)
        assert self.max_offset == queue_offset + 1, (self, queue_offset, gap)
        return gap

    def restore(
        self, queue_offset: int, log_offset: int, size: int, tag_hash: int, *, replaces: bool = False
    ) -> None:
        """Writes the entry of a formerly damaged record, unless another entry exists and `replaces` is False.

        Raises:  OSError when the file cannot be written: the entry is missing until the queue is rebuilt.
        """
        if queue_offset >= self.max_offset:
            self.put_at(queue_offset, log_offset, size, tag_hash)
            return
        if self._written < self.tail_start:
            self.write()  # the fillers that the queue begins with are not stored yet
        old = self.entry(queue_offset)
        if old is None or (old[1] != FILLER_SIZE and not replaces):
            return
        raw = _pack(log_offset, size, tag_hash)
        if queue_offset >= self.tail_start:
            at = (queue_offset - self.tail_start) * QUEUE_UNIT_BYTES
            assert at + QUEUE_UNIT_BYTES <= len(self._tail), (self, queue_offset, len(self._tail))
            self._tail[at : at + QUEUE_UNIT_BYTES] = raw
        if queue_offset < self._written:
            segment = self._log.find(queue_offset * QUEUE_UNIT_BYTES)
            assert segment is not None, queue_offset
            segment.file.pwrite(queue_offset * QUEUE_UNIT_BYTES - segment.base, (raw,))
            self._synced = min(self._synced, queue_offset)
            self._is_overtaken = True
        self.min_offset = min(self.min_offset, queue_offset)

    def _start_at(self, queue_offset: int) -> None:
        """Makes the queue begin at `queue_offset`; `write` puts fillers before it, from its file's start."""
        assert queue_offset >= 0, queue_offset
        first = align_down(queue_offset, self._log.segment_bytes // QUEUE_UNIT_BYTES)
        self._tail = bytearray()
        self._written = self._synced = first
        self.tail_start = self.min_offset = self.max_offset = self.next_offset = queue_offset
        self.end_log_offset = -1
        self._is_overtaken = True
        _deleting(self._log.drop_files)

    def _write_long_tail(self) -> None:
        if self.is_dropped:
            self._tail.clear()
            return
        self.write()
        drop = max(0, len(self._tail) - TAIL_BYTES_KEPT)
        del self._tail[:drop]
        self.tail_start += drop // QUEUE_UNIT_BYTES
        assert self.tail_start <= self._written, "what leaves the memory is in the files"
        assert len(self._tail) == (self.max_offset - self.tail_start) * QUEUE_UNIT_BYTES, self

    @property
    def first_offset(self) -> int:
        """The offset at which the first file begins, or the queue while it has no file; only retention moves
        it.
        """
        return self._log.segments[0].base // QUEUE_UNIT_BYTES if self._log.segments else self.max_offset

    @property
    def begin_log_offset(self) -> int:
        """The log offset of the first entry that is not a filler; -1 without one."""
        return self.first_real(self.min_offset)[1]

    @property
    def unwritten_bytes(self) -> int:
        assert self._written <= self.max_offset, (self, self._written)
        return (self.max_offset - self._written) * QUEUE_UNIT_BYTES

    @property
    def unsynced_bytes(self) -> int:
        """The bytes that a power cut may change."""
        return (self._written - self._synced + self._has_stale) * QUEUE_UNIT_BYTES

    def write(self) -> None:
        """Writes every entry to the files. Raises OSError; the next call writes what is missing."""
        assert not self.is_dropped, f"{self}: its files would come back"
        # The tail reaches to the end of the queue, and the files reach to the tail.
        assert len(self._tail) == (self.max_offset - self.tail_start) * QUEUE_UNIT_BYTES, self
        if self._written < self.max_offset and not self._log.segments:
            # Files from before a long gap, or from before the topic was created again.
            _deleting(self._log.remove_leftovers)
        while self._written < self.tail_start:
            self._write_fillers()
        tail = memoryview(self._tail)
        try:
            while self._written < self.max_offset:
                at = self._written * QUEUE_UNIT_BYTES
                segment = self._log.open_at(at)
                end = min(self.max_offset * QUEUE_UNIT_BYTES, segment.end)
                start = at - self.tail_start * QUEUE_UNIT_BYTES
                assert 0 <= start < start + end - at <= len(tail), (self, start, end - at, len(tail))
                segment.file.pwrite(at - segment.base, (tail[start : start + end - at],))
                self._written = end // QUEUE_UNIT_BYTES
        finally:
            tail.release()
        assert self._written == self.max_offset, (self, self._written)
        self.waits_for_deletion = False

    def _write_fillers(self) -> None:
        """Writes a part of the fillers before the first entry."""
        at = self._written * QUEUE_UNIT_BYTES
        segment = self._log.open_at(at)
        end = min(self.tail_start, segment.end // QUEUE_UNIT_BYTES, self._written + _FILLERS_MAX)
        assert end > self._written, (self, end)
        segment.file.pwrite(at - segment.base, (FILLER * (end - self._written),))
        self._written = end

    def unsynced_segments(self) -> tuple[list[Segment], int]:
        """Returns the files that hold written but unsynced entries, and the offset to pass to
        `set_synced`.
        """
        assert self._synced <= self._written, (self, self._synced, self._written)
        self._is_overtaken = False
        begin, end = self._synced * QUEUE_UNIT_BYTES, self._written * QUEUE_UNIT_BYTES
        if self._has_stale:
            return [s for s in self._log.segments if s.end >= begin], self._written
        return [s for s in self._log.segments if s.base < end and s.end > begin], self._written

    def set_synced(self, queue_offset: int) -> bool:
        """Marks entries below `queue_offset` as safe against a power cut.

        Returns False if entries changed during the sync: it is unknown which were synced, so the next round
        syncs them again.
        """
        if self._is_overtaken:
            return False
        assert queue_offset <= self._written, (self, queue_offset, self._written)
        self._synced = max(self._synced, queue_offset)
        self._has_stale = False
        return True

    def _recovery_segments(self) -> list[Segment]:
        count = max(RECOVERY_FILE_COUNT, RECOVERY_BYTES // self._log.segment_bytes)
        return self._log.segments[-count:]

    def drop_tail(self) -> None:
        """Releases the memory of written entries, for an idle queue."""
        if self._tail and self._written == self.max_offset:
            tail_bytes = (self.max_offset - self.tail_start) * QUEUE_UNIT_BYTES
            assert self.is_dropped or len(self._tail) == tail_bytes, (self, len(self._tail), tail_bytes)
            self._tail = bytearray()
            self.tail_start = self.max_offset

    # Reading.

    def entries(self, queue_offset: int, count_max: int) -> bytes:
        """Returns entries from `queue_offset` on, oldest first, as stored on disk; from one file or from
        memory only.

        Shape:   20 * n bytes with n <= count_max; empty at the end, below the first file or above the last.
        """
        end = min(queue_offset + count_max, self.max_offset)
        if end <= queue_offset:
            return b""
        if queue_offset >= self.tail_start:
            start = (queue_offset - self.tail_start) * QUEUE_UNIT_BYTES
            return bytes(self._tail[start : (end - self.tail_start) * QUEUE_UNIT_BYTES])
        at = queue_offset * QUEUE_UNIT_BYTES
        segment = self._log.find(at)
        if segment is None:
            return b""
        size = max(min(end, self._written) * QUEUE_UNIT_BYTES - at, 0)
        return segment.file.pread(at - segment.base, size)

    def entry(self, queue_offset: int) -> tuple[int, int, int] | None:
        """Returns (log_offset, size, tag_hash); None if the entry does not exist."""
        raw = self.entries(queue_offset, 1)
        return UNIT.unpack(raw) if len(raw) == QUEUE_UNIT_BYTES else None

    def file_end(self, queue_offset: int) -> int:
        """Returns the first queue offset of the file after the one that holds `queue_offset`."""
        per_file = self._log.segment_bytes // QUEUE_UNIT_BYTES
        return align_down(queue_offset, per_file) + per_file

    # Start, stop and cleaning.

    def load(self, *, stale_bytes_max: int) -> None:
        """Opens the files; the end of the entries is found by their form (spec store 12)."""
        assert not self._tail, f"{self}: the files are loaded once"
        assert self._written == self.max_offset == 0, f"{self}: the files are loaded once"
        self._log.load()
        segments = self._log.segments
        if not segments:
            return
        end = segments[0].base
        last: tuple[int, int, int] | None = None
        for segment in self._recovery_segments():
            count, found = valid_units(segment)
            last = found or last
            # With torn entries kept, the scan would take its records for ones already present.
            count -= torn_units(segment, count)
            end = segment.base + count * QUEUE_UNIT_BYTES
            if end < segment.end:
                break
        self._cut(end, stale_bytes_max)
        if last is not None:
            self._record_end()
        self.min_offset = segments[0].base // QUEUE_UNIT_BYTES if segments else self.max_offset
        assert self.min_offset <= self.max_offset, self

    def _cut(self, end_bytes: int, stale_bytes_max: int) -> None:
        """Ends the queue at `end_bytes`: everything below is written, nothing is above."""
        assert end_bytes % QUEUE_UNIT_BYTES == 0, (self, end_bytes)
        assert self._log.last is None or end_bytes <= self._log.last.end, (self, end_bytes)
        assert self.first_offset * QUEUE_UNIT_BYTES <= end_bytes or not self._log.segments, (self, end_bytes)
        self._log.truncate(end_bytes, zero_bytes_max=stale_bytes_max)
        end = end_bytes // QUEUE_UNIT_BYTES
        self._is_overtaken = True
        self.max_offset = self.next_offset = self._written = self._synced = self.tail_start = end
        self._tail = bytearray()

    def truncate(self, log_end: int) -> int:
        """Drops entries whose records end after `log_end`; returns their number. All must be in the files.

        Fillers before a dropped entry are dropped too, since a filler for a cut record would block another
        record. Other fillers keep their offsets, which were assigned and which a repair may use.
        """
        assert self._written == self.max_offset
        before = self.max_offset
        first = self.first_offset
        end = at = self.max_offset
        while at > first:
            entry = self.entry(at - 1)
            if entry is None or entry[1] != FILLER_SIZE:
                if entry is not None and entry[0] + entry[1] <= log_end:
                    end = at if end < before else before
                    break
                end = at - 1
            at -= 1
        if end < before:
            self._cut(end * QUEUE_UNIT_BYTES, self._log.segment_bytes)
            self.min_offset = min(self.min_offset, end)
            self._has_stale = True
        self._record_end()
        assert self.end_log_offset <= log_end, (self, self.end_log_offset, log_end)
        assert self.min_offset <= self.max_offset == end <= before, (self, end, before)
        return before - end

    def distrust(self, log_offset: int) -> None:
        """Drops, after a crash, the entries of records at or after `log_offset`, and all that follow them.

        Entries below were synced long ago. Above, a power cut may have left any part of the written data:
        holes, torn entries, deleted files. All entries must be in the files.

        Fillers prove nothing about the records before them, so those after the last kept entry are dropped;
        the scan adds them again. If no entry is kept, the queue begins after its first fillers, as before.
        """
        assert self._written == self.max_offset
        segments = self._log.segments
        assert segments or not self.max_offset, f"{self}: entries that are written have a file"
        end = 0
        for segment in reversed(segments):
            # The first entry is within one sector, so it is whole or missing; others may be torn.
            count = units_below(segment, log_offset)
            if not count and segment is segments[0]:
                count = head_fillers(segment)
            end = segment.base + count * QUEUE_UNIT_BYTES
            if count:
                break
        if segments:
            self._cut(end, self._log.segment_bytes)
            self._record_end()
            # A torn entry may have led `raise_min` past kept ones; recovery calls it again at its end.
            self.min_offset = self.first_offset
            assert self.min_offset <= self.max_offset, self
            self._has_stale = True

    def _record_end(self) -> None:
        """Finds the last entry that is not a filler. All must be in the files."""
        assert self._written == self.max_offset, (self, self._written)
        first = self.first_offset
        end = self.max_offset
        self.end_log_offset = -1
        while end > first:
            entry = self.entry(end - 1)
            if entry is not None and entry[1] != FILLER_SIZE:
                self.end_log_offset = entry[0] + entry[1]
                break
            end -= 1

    def raise_min(self, log_begin: int) -> None:
        """Sets `min_offset` to the first entry whose record is still kept (spec store 5,
        correctMinOffset).
        """
        before = self.min_offset
        low, high = before, self.max_offset
        if self._log.segments:
            low = max(low, self._log.segments[0].base // QUEUE_UNIT_BYTES)
        while low < high:
            middle = (low + high) // 2
            at, log_offset = self.first_real(middle)
            assert at >= middle, (self, middle, at)
            if at >= high or log_offset >= log_begin:
                high = middle
            else:
                low = at + 1
        self.min_offset = self.first_real(low)[0]
        assert before <= self.min_offset <= self.max_offset, (self, before)

    def first_real(self, queue_offset: int, log_begin: int = 0) -> tuple[int, int]:
        """Returns queue offset and log offset of the first entry at or after `queue_offset` that is not a
        filler and whose record is at or after `log_begin`.
        """
        while queue_offset < self.max_offset:
            units = np.frombuffer(self.entries(queue_offset, SCAN_UNITS), dtype=ENTRY)
            if not len(units):
                break
            is_real = (units["size"] != FILLER_SIZE) & (units["log_offset"] >= log_begin)
            if is_real.any():
                index = int(is_real.argmax())
                return queue_offset + index, int(units["log_offset"][index])
            queue_offset += len(units)
        return self.max_offset, -1

    def drop_files_below(self, log_begin: int) -> int:
        """Deletes leading files whose records are all gone, never the last file; returns their number."""
        dropped = 0
        segments = self._log.segments
        while len(segments) > 1 and segments[0].end <= self._written * QUEUE_UNIT_BYTES:
            if last_log_offset(segments[0]) >= log_begin:
                break
            self._log.drop_oldest()
            dropped += 1
        assert not dropped or self.first_offset <= self._written, (self, dropped, self._written)
        return dropped

    def remove(self) -> None:
        """Deletes the queue's files and directory; later entries are ignored.

        Raises:  FilesLeft: a new queue of that name deletes them before its first entry is written.
        """
        assert not self.is_dropped, self
        self.is_dropped = True
        _deleting(self._log.remove_all)


def _deleting(act: Callable[[], None]) -> None:
    try:
        act()
    except NotOpened:
        raise
    except OSError as error:
        raise FilesLeft(error.errno, error.strerror, error.filename) from error
