"""The ordered files of one log: `SegmentedLog` finds by offset, rolls, truncates and drops the oldest. A
`Segment` is one file; `OpenFiles` bounds the number of open files.

Invariants: files have equal sizes, are named by the offset of their first byte, and leave no gap. They are
            zero after the data, also after a truncation (spec store 21.11).
Knows not:  the end of the data, or its content: the owners do.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tandemmq.errors import Corrupt
from tandemmq.runtime.ports import Advice, Disk, File, NotOpened, T
from tandemmq.store.options import offset_file_name, parse_offset_file_name
from tandemmq.telemetry import events
from tandemmq.units import MIB, align_down

log = logging.getLogger(__name__)

_ZEROS = bytes(MIB)


class SegmentedLog:
    """Files of `segment_bytes` each in `directory`, created on demand."""

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
        assert segment_bytes > 0, (directory, segment_bytes)
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self._files = files
        self._sparse = sparse
        self._advice = advice

    def advise(self, advice: Advice) -> None:
        """Sets the read advice for present and later files."""
        self._advice = advice
        for segment in self.segments:
            segment.advise(advice)

    def load(self) -> None:
        """Opens the existing files; an unused last file that a crash left short is deleted.

        Raises:  Corrupt for another length than configured, or a gap between the files.
        """
        assert not self.segments, "the files are loaded once"
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
                    f"{reason}: set the size with which it was created, or run `tandemmq store repair`",
                )
            if base % self.segment_bytes or (self.segments and self.segments[-1].end != base):
                raise Corrupt(path, 0, "the file does not follow the one before it")
            self.segments.append(Segment(path, base, self.segment_bytes, self._files, advice=self._advice))
        span = self.segments[-1].end - self.segments[0].base if self.segments else 0
        assert span == len(self.segments) * self.segment_bytes, "`find` counts on files without a gap"

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
        """Returns the file that holds byte `offset`; None without one."""
        segments = self.segments
        if not segments:
            return None
        last = segments[-1]
        if last.base <= offset < last.end:  # nearly always
            return last
        index = (offset - segments[0].base) // self.segment_bytes
        return segments[index] if 0 <= index < len(segments) else None

    def open_at(self, offset: int) -> Segment:
        """Returns the file for byte `offset`, created if it is the next one (or the first of all).

        Raises:  OSError when it cannot be created; nothing is left behind then.
        """
        segment = self.find(offset)
        if segment is not None:
            assert segment.base <= offset < segment.end, (segment, offset)
            return segment
        base = align_down(offset, self.segment_bytes)
        assert not self.segments or self.segments[-1].end == base, (self.directory, base, self.segments[-1])
        path, disk = self.path_of(base), self._files.disk
        file = self._files.opening(lambda: disk.create(path, self.segment_bytes, sparse=self._sparse))
        return self.adopt(base, file)

    def path_of(self, base: int) -> Path:
        """Returns the path of the file that begins at byte `base`."""
        return self.directory / offset_file_name(base)

    def adopt(self, base: int, file: File) -> Segment:
        """Adds a file that was just created for `base`."""
        assert base % self.segment_bytes == 0, (self.directory, base)
        assert file.size == self.segment_bytes, (file.path, file.size)
        assert not self.segments or self.segments[-1].end == base, (self.directory, base)
        segment = Segment(file.path, base, self.segment_bytes, self._files, file, advice=self._advice)
        self.segments.append(segment)
        return segment

    def truncate(self, end: int, *, zero_bytes_max: int) -> int:
        """Cuts at `end`: deletes later files and zeroes the rest of its file; returns how many bytes were
        zeroed.

        The first file is kept even when it is empty: its name records the position of the log.

        Strategy: stale data begins right at the cut; `zero_bytes_max` bounds the search for it, because a
                  reserved gibibyte that was never written need not be read on a clean start.
        """
        assert zero_bytes_max >= 0, (self.directory, zero_bytes_max)
        while len(self.segments) > 1 and self.segments[-1].base >= end:
            self.segments.pop().remove()
        segment = self.find(end)
        if segment is None:
            return 0
        return zero_stale(segment, end - segment.base, min(segment.size, end - segment.base + zero_bytes_max))

    def drop_oldest(self) -> Segment:
        """Deletes the first file; views of it stay valid.

        Raises:  OSError when it cannot be deleted: then the log still begins with it. Otherwise later files
                 could go, and the next start would find it before a gap.
        """
        assert len(self.segments) > 1, "the last file is never dropped"
        segment = self.segments[0]
        assert self.segments[1].base == segment.end, (segment, self.segments[1])
        segment.remove()
        del self.segments[0]
        return segment

    def remove_all(self) -> None:
        """Deletes every file, and the directory if nothing else is in it.

        Raises:  OSError when one cannot be deleted; it still is a file of the log.
        """
        while self.segments:
            self.segments[-1].remove()
            del self.segments[-1]
        disk = self._files.disk
        if disk.exists(self.directory) and not disk.list(self.directory):
            disk.remove(self.directory)

    def drop_files(self) -> None:
        """Like `remove_all`, but the log has no file afterwards in any case: call `remove_leftovers` before
        the next one.

        Raises:  OSError when a file cannot be deleted.
        """
        try:
            self.remove_all()
        finally:
            self.segments.clear()

    def remove_leftovers(self) -> None:
        """Deletes former files of a log that has none, since its first file may precede them.

        Raises:  OSError when one cannot be deleted.
        """
        assert not self.segments, (self.directory, self.segments[0])
        disk = self._files.disk
        for name in disk.list(self.directory):
            if parse_offset_file_name(name) is not None:
                disk.remove(self.directory / name)


def zero_stale(segment: Segment, begin: int, end: int) -> int:
    """Zeroes the non-zero parts of bytes `[begin, end)` of a file; returns how many bytes were written."""
    assert begin >= 0, (segment, begin)
    assert begin <= end, (segment, begin, end)
    assert end <= segment.size, (segment, end)
    file = segment.file
    written = 0
    for at in range(begin, end, MIB):
        size = min(MIB, end - at)
        if file.pread(at, size) != (_ZEROS if size == MIB else _ZEROS[:size]):
            file.pwrite(at, (_ZEROS[:size],))
            written += size
    assert written <= end - begin, (segment, begin, end, written)
    return written


class Segment:
    """One preallocated file of a log: bytes `[base, end)` of it.

    Invariants: its length never changes. Its handle is opened on first use and may be closed by `OpenFiles`
                when too many are open, but never while it is pinned (a flush runs on it off the loop). Views
                outlive the handle.
    """

    __slots__ = (
        "_advice",
        "_file",
        "_files",
        "_is_doomed",
        "_pins",
        "_used",
        "base",
        "end",
        "path",
        "size",
    )

    def __init__(
        self,
        path: Path,
        base: int,
        size: int,
        files: OpenFiles,
        file: File | None = None,
        *,
        advice: Advice | None = None,
    ) -> None:
        assert base % size == 0, (path, base, size)
        assert base >= 0, (path, base)
        self.path = path
        self.base = base
        self.size = size
        self.end = base + size
        self._files = files
        self._file = file
        self._advice = advice
        self._used = True
        self._pins = 0
        self._is_doomed = False
        if file is not None:
            self._opened(file)

    def __repr__(self) -> str:
        return f"Segment({self.path})"

    @property
    def file(self) -> File:
        """The open file; valid until the next await or the opening of another segment."""
        self._used = True
        file = self._file
        if file is None:
            assert not self._is_doomed, f"{self} was removed: another file may have its name"
            file = self._file = self._files.opening(lambda: self._files.disk.open(self.path))
            self._opened(file)
        return file

    def _opened(self, file: File) -> None:
        if self._advice is not None:
            file.advise(self._advice)
        self._files.add(self)

    def advise(self, advice: Advice) -> None:
        """Sets the read advice; a file that is not open receives it when opened."""
        self._advice = advice
        if self._file is not None:
            self._file.advise(advice)

    def view(self) -> memoryview:
        """Returns the whole file, read-only; slices stay valid after the segment is closed or removed."""
        return self._files.opening(self.file.view, keeps=self)

    def release_pages(self) -> None:
        """Releases the mapped pages from this process; views stay valid."""
        if self._file is not None:
            self._file.advise(Advice.IDLE)

    def pin(self) -> File:
        """Returns the open file, kept open until `unpin`: for work off the loop."""
        file = self.file
        self._pins += 1
        return file

    @property
    def is_pinned(self) -> bool:
        """True if work off the loop needs the open file."""
        return self._pins > 0

    def unpin(self) -> None:
        """Ends one `pin`."""
        assert self._pins > 0
        self._pins -= 1
        if self._is_doomed and self._pins == 0:
            self.shut()

    def remove(self) -> None:
        """Deletes the file; existing views keep its bytes.

        Raises:  OSError when it cannot be deleted; it remains usable then. A file already deleted by others
                 counts as deleted.
        """
        assert not self._is_doomed, f"{self} is removed twice"
        with suppress(FileNotFoundError):
            self._files.disk.remove(self.path)
        if self._pins:
            self._is_doomed = True
        elif self._file is not None:
            self._files.forget(self)
            self.shut()
        assert self._file is None or self._pins > 0, f"{self} is open without a user"

    def is_closable(self, newest: Segment) -> bool:
        """Returns True if eviction may close the handle; False uses up the second chance."""
        if self._used or self._pins or self is newest:
            self._used = False
            return False
        return True

    def make_room(self) -> None:
        """Closes idle handles of other files, because no descriptor was free."""
        self._files.close_some()

    def shut(self) -> None:
        """Closes the handle; the next use opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


@contextmanager
def pinned(segments: Iterable[Segment]) -> Iterator[list[File]]:
    """Keeps these files open, for work off the loop. Raises NotOpened if one cannot be opened."""
    with ExitStack() as pins:
        files = []
        for segment in segments:
            files.append(segment.pin())
            pins.callback(segment.unpin)
        yield files


class OpenFiles:
    """The handles of segments, at most about `count_max` at a time, and fewer if the system allows no more.

    Strategy: second chance: each use sets a flag; eviction clears flags in a circle and closes the first
              segment without one.
    """

    __slots__ = ("_count_max", "_segments", "disk")

    def __init__(self, disk: Disk, count_max: int) -> None:
        assert count_max > 0, count_max
        self.disk = disk
        self._count_max = count_max
        self._segments: deque[Segment] = deque()

    def __len__(self) -> int:
        return len(self._segments)

    def release_pages(self) -> None:
        """Releases the mapped pages of all files from this process."""
        for segment in self._segments:
            segment.release_pages()

    def add(self, segment: Segment) -> None:
        """Adds a handle that was just opened; closes others above the bound."""
        self._segments.append(segment)
        # Two passes clear every flag; handles still open then are pinned, and exceed the bound.
        for _ in range(2 * len(self._segments)):
            if len(self._segments) <= self._count_max:
                return
            candidate = self._segments.popleft()
            if candidate.is_closable(segment):
                candidate.shut()
            else:
                self._segments.append(candidate)

    def opening(self, act: Callable[[], T], *, keeps: Segment | None = None) -> T:
        """Calls `act`, which opens a file or a map, and returns its result. On the loop only.

        If the process has no descriptor or memory left, half of the idle handles are closed and the call is
        repeated.

        Raises:  NotOpened when closing does not help any more; what `act` raises.
        """
        while True:
            try:
                return act()
            except NotOpened:
                if not self.close_some(keeps):
                    raise

    def close_some(self, keeps: Segment | None = None) -> bool:
        """Closes half of the idle handles, the oldest first; False without any."""
        idle = [segment for segment in self._segments if not (segment.is_pinned or segment is keeps)]
        for segment in idle[: (len(idle) + 1) // 2]:
            self._segments.remove(segment)
            segment.shut()
        return bool(idle)

    def forget(self, segment: Segment) -> None:
        """Removes a segment that closes its own handle."""
        self._segments.remove(segment)

    def close(self) -> None:
        """Closes every handle."""
        while self._segments:
            self._segments.popleft().shut()
