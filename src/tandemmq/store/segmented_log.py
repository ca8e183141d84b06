"""The ordered files of one log: find by offset, roll, truncate, drop the oldest.

Invariants: equal sizes, names are the offsets of their first bytes, no gap between neighbours; files are zero
behind the data, also after a truncation (spec store 21.11).
Knows not:  where the data ends, or what it is: its owners do.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tandemmq.errors import Corrupt
from tandemmq.runtime.ports import Advice, File
from tandemmq.store.paths import offset_file_name, parse_offset_file_name
from tandemmq.store.segment import OpenFiles, Segment
from tandemmq.telemetry import events
from tandemmq.units import MIB, align_down

log = logging.getLogger(__name__)

_ZEROS = bytes(MIB)


class SegmentedLog:
    """Files of `segment_bytes` each in `directory`, created when asked for."""

    __slots__ = ("_advice", "_files", "_sparse", "directory", "segment_bytes", "segments")

    def __init__(
        self,
        directory: Path,
        segment_bytes: int,
        files: OpenFiles,
        *,
        sparse: bool,
        advice: Advice | None = None,
    ) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self._files = files
        self._sparse = sparse
        self._advice = advice

    def advise(self, advice: Advice) -> None:
        """How the files are read from now on, those that come later, too."""
        self._advice = advice
        for segment in self.segments:
            segment.advise(advice)

    def load(self) -> None:
        """Take up the files that are there; an unused last file that a crash left short is deleted.

        Raises:  Corrupt for another length than configured, or a gap between the files.
        """
        disk = self._files.disk
        bases = []
        for name in disk.list(self.directory):
            base = parse_offset_file_name(name)
            if base is None:
                log.warning(events.STORE_FILE_IGNORED, extra={"path": str(self.directory / name)})
            else:
                bases.append(base)
        for index, base in enumerate(bases):
            path = self.path_of(base)
            size = disk.size(path)
            if size != self.segment_bytes:
                is_last = index == len(bases) - 1
                if is_last and size < self.segment_bytes and self._is_unused(path):
                    disk.remove(path)
                    break
                reason = f"the file must have {self.segment_bytes} bytes, it has {size}"
                raise Corrupt(
                    path,
                    size,
                    f"{reason}: set the size that it was made with, or run `tandemmq store repair`",
                )
            if base % self.segment_bytes or (self.segments and self.segments[-1].end != base):
                raise Corrupt(path, 0, "the file does not follow the one before it")
            self.segments.append(Segment(path, base, self.segment_bytes, self._files, advice=self._advice))

    def _is_unused(self, path: Path) -> bool:
        file = self._files.disk.open(path)
        try:
            return not any(file.pread(0, 64))
        finally:
            file.close()

    @property
    def last(self) -> Segment | None:
        return self.segments[-1] if self.segments else None

    def find(self, offset: int) -> Segment | None:
        """The file that holds byte `offset`; None when there is none."""
        segments = self.segments
        if not segments:
            return None
        index = (offset - segments[0].base) // self.segment_bytes
        return segments[index] if 0 <= index < len(segments) else None

    def open_at(self, offset: int) -> Segment:
        """The file for byte `offset`, created when it is the next one (or the first of all).

        Raises:  OSError when it cannot be created; nothing is left behind then.
        """
        segment = self.find(offset)
        if segment is not None:
            return segment
        base = align_down(offset, self.segment_bytes)
        file = self._files.disk.create(self.path_of(base), self.segment_bytes, sparse=self._sparse)
        return self.adopt(base, file)

    def path_of(self, base: int) -> Path:
        """The name of the file that begins at byte `base`."""
        return self.directory / offset_file_name(base)

    def adopt(self, base: int, file: File) -> Segment:
        """Take in a file that was just created for `base`."""
        assert not self.segments or self.segments[-1].end == base, (self.directory, base)
        segment = Segment(file.path, base, self.segment_bytes, self._files, file, advice=self._advice)
        self.segments.append(segment)
        return segment

    def truncate(self, end: int, *, zero_bytes_max: int) -> int:
        """Cut at `end`: later files are deleted, the rest of its file is zeroed; how many bytes were.

        The first file is kept even when nothing is left in it: its name remembers where the log stands.

        Strategy: stale data begins right at the cut; `zero_bytes_max` bounds how far behind it is searched
        for, because a reserved gibibyte that was never written need not be read on a clean start.
        """
        while len(self.segments) > 1 and self.segments[-1].base >= end:
            self.segments.pop().remove()
        segment = self.find(end)
        if segment is None:
            return 0
        return zero_stale(segment, end - segment.base, min(segment.size, end - segment.base + zero_bytes_max))

    def drop_oldest(self) -> Segment:
        """Delete the first file; views of it stay valid."""
        assert len(self.segments) > 1, "the last file is never dropped"
        segment = self.segments.pop(0)
        segment.remove()
        return segment

    def remove_all(self) -> None:
        """Delete every file, and the directory when nothing else is in it."""
        while self.segments:
            self.segments.pop().remove()
        disk = self._files.disk
        if disk.exists(self.directory) and not disk.list(self.directory):
            disk.remove(self.directory)


def zero_stale(segment: Segment, begin: int, end: int) -> int:
    """Zero the parts of bytes `begin` to `end` of a file that are not zero; how many bytes were written."""
    file = segment.file
    written = 0
    for at in range(begin, end, MIB):
        size = min(MIB, end - at)
        if file.pread(at, size) != (_ZEROS if size == MIB else _ZEROS[:size]):
            file.pwrite(at, (_ZEROS[:size],))
            written += size
    return written
