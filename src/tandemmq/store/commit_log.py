"""Records in a segmented log: write bytes, read one, look at a stretch.

Invariants: bytes below `end` are written and never change; a record never spans files; whoever moves `end`
has written everything below it. The only file behind the one that holds `end` is one made ahead of need.
Knows not:  queues, watermarks, who waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandemmq.protocol.record import RecordCheck, RecordOutcome, check_record
from tandemmq.runtime.ports import Buffer, Disk
from tandemmq.store.segment import Segment
from tandemmq.store.segmented_log import SegmentedLog
from tandemmq.units import MIB

AHEAD_SEGMENT_BYTES_MIN = 64 * MIB
"""Smaller files are made in no time; making them ahead would only add a state."""
_STORED_AT = 56  # with an IPv4 born host
_SYS_FLAG_AT = 36
_BORN_HOST_V6 = 0x10
_ZEROS = bytes(MIB)


class CommitLog:
    """The log's bytes. `end` is where the next byte goes."""

    __slots__ = ("_ahead_for", "disk", "end", "log")

    def __init__(self, log: SegmentedLog, disk: Disk) -> None:
        self.log = log
        self.disk = disk
        self.end = 0
        self._ahead_for = -1

    @property
    def segment_bytes(self) -> int:
        return self.log.segment_bytes

    @property
    def begin(self) -> int:
        """The first byte that is kept."""
        segments = self.log.segments
        return segments[0].base if segments else self.end

    def begin_at(self, base: int) -> None:
        """Let the empty log begin at byte `base`, the start of a file."""
        assert self.begin == self.end
        assert base % self.segment_bytes == 0
        self.log.remove_all()
        self.end = base

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Put bytes at `offset`, within one file that exists.

        Raises:  OSError; any part of the range may then hold new bytes.
        """
        segment = self.log.find(offset)
        assert segment is not None, offset
        segment.file.pwrite(offset - segment.base, buffers)

    def zero(self, offset: int, size: int) -> None:
        """Overwrite a range of one file with zeros. Raises OSError."""
        segment = self.log.find(offset)
        if segment is None:
            return
        end = min(offset + size, segment.end)
        for at in range(offset, end, len(_ZEROS)):
            segment.file.pwrite(at - segment.base, (_ZEROS[: min(len(_ZEROS), end - at)],))

    def view(self, log_offset: int, bytes_max: int) -> memoryview:
        """Written bytes from `log_offset` on, of one file; empty at the end and below the beginning."""
        if not self.begin <= log_offset < self.end:
            return memoryview(b"")
        segment = self.log.find(log_offset)
        assert segment is not None, log_offset
        start = log_offset - segment.base
        return segment.view()[start : min(start + bytes_max, segment.size, self.end - segment.base)]

    def segment_view(self, log_offset: int) -> tuple[int, memoryview] | None:
        """First offset and all written bytes of the file that holds `log_offset`; None outside the log."""
        if not self.begin <= log_offset < self.end:
            return None
        segment = self.log.find(log_offset)
        assert segment is not None, log_offset
        view = segment.view()
        return segment.base, view if segment.end <= self.end else view[: self.end - segment.base]

    def check(self, log_offset: int, *, check_crc: bool = False) -> RecordCheck:
        """What lies at `log_offset`, compared with the offset that the record says."""
        found = self.segment_view(log_offset)
        if found is None:
            return RecordCheck(RecordOutcome.END)
        base, view = found
        return check_record(view, log_offset - base, log_offset=log_offset, check_crc=check_crc)

    def record(self, log_offset: int) -> memoryview | None:
        """The whole record that begins at `log_offset`; None when none does."""
        checked = self.check(log_offset)
        if checked.outcome is not RecordOutcome.OK:
            return None
        return self.view(log_offset, checked.size)

    def stored_at(self, log_offset: int) -> int:
        """STORETIMESTAMP of the record at `log_offset`; -1 outside the log (spec store 13.2)."""
        if not self.begin <= log_offset < self.end:
            return -1
        segment = self.log.find(log_offset)
        assert segment is not None, log_offset
        head = segment.file.pread(log_offset - segment.base, _STORED_AT + 20)
        if len(head) < _STORED_AT + 20:
            return -1
        at = _STORED_AT + (12 if head[_SYS_FLAG_AT + 3] & _BORN_HOST_V6 else 0)
        return int.from_bytes(head[at : at + 8], "big", signed=True)

    def wants_segment_ahead(self) -> bool:
        """True once per file: when it is four fifths full and the next one is worth making off the loop."""
        last = self.log.last
        if last is None or self._ahead_for >= last.end or last.size < AHEAD_SEGMENT_BYTES_MIN:
            return False
        if self.end < last.base + last.size * 4 // 5:
            return False
        self._ahead_for = last.end
        return True

    async def make_segment_ahead(self) -> None:
        """Create the next file off the loop. A failure is left for the append that needs the file."""
        last = self.log.last
        assert last is not None
        path = self.log.path_of(last.end)
        try:
            file = await self.disk.offload(self.disk.create, path, last.size)
        except OSError:
            return
        # An append that could not wait may have made it meanwhile; then ours failed with FileExistsError.
        self.log.adopt(last.end, file)

    def drop_unused_segments(self) -> None:
        """Delete files behind the end, as RocketMQ does at a clean stop (spec store 2)."""
        while self.log.segments and self.log.segments[-1].base >= self.end:
            self.log.segments.pop().remove()

    def dirty_segments(self, begin: int, end: int) -> list[Segment]:
        """The files that hold bytes `begin` to `end`."""
        return [segment for segment in self.log.segments if segment.base < end and segment.end > begin]
