"""One preallocated file of a log, and the bounded set of files that are open.

Invariants: a segment's length never changes; its handle is opened on first use and may be closed behind
its back when too many are open, but never while it is pinned (a flush runs on it off the loop). Views
outlive the handle.
Strategy:   second chance: each use sets a flag, eviction clears flags in a circle and closes the first
unflagged. Knows not:  what the bytes mean.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

from tandemmq.runtime.ports import Advice, Disk, File


class OpenFiles:
    """Handles of segments, at most about `count_max` at a time."""

    __slots__ = ("_count_max", "_segments", "disk")

    def __init__(self, disk: Disk, count_max: int) -> None:
        self.disk = disk
        self._count_max = count_max
        self._segments: deque[Segment] = deque()

    def __len__(self) -> int:
        return len(self._segments)

    def release_pages(self) -> None:
        """Let the mapped pages of all files leave this process's memory."""
        for segment in self._segments:
            segment.release_pages()

    def add(self, segment: Segment) -> None:
        """Count a handle that was just opened; closes others above the bound."""
        self._segments.append(segment)
        # Twice around clears every flag; what is then still open is pinned, and the bound gives way.
        for _ in range(2 * len(self._segments)):
            if len(self._segments) <= self._count_max:
                return
            candidate = self._segments.popleft()
            if candidate.is_closable(segment):
                candidate.shut()
            else:
                self._segments.append(candidate)

    def forget(self, segment: Segment) -> None:
        """A segment closed its handle by itself."""
        self._segments.remove(segment)

    def close(self) -> None:
        """Close every handle."""
        while self._segments:
            self._segments.popleft().shut()


class Segment:
    """One file of a log: bytes `base` to `end` (exclusive) of it."""

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
            file = self._file = self._files.disk.open(self.path)
            self._opened(file)
        return file

    def _opened(self, file: File) -> None:
        if self._advice is not None:
            file.advise(self._advice)
        self._files.add(self)

    def advise(self, advice: Advice) -> None:
        """How it is read from now on; what is not open now is told when it is."""
        self._advice = advice
        if self._file is not None:
            self._file.advise(advice)

    def view(self) -> memoryview:
        """The whole file, read-only; slices of it stay valid after the segment is closed or removed."""
        return self.file.view()

    def release_pages(self) -> None:
        """Let its mapped pages leave this process's memory; views stay valid."""
        if self._file is not None:
            self._file.advise(Advice.IDLE)

    def pin(self) -> File:
        """The open file, kept open until `unpin`: for work off the loop."""
        file = self.file
        self._pins += 1
        return file

    def unpin(self) -> None:
        """End of one `pin`."""
        assert self._pins > 0
        self._pins -= 1
        if self._is_doomed and self._pins == 0:
            self.shut()

    def remove(self) -> None:
        """Delete the file; who still holds a view keeps its bytes."""
        if self._pins:
            self._is_doomed = True
        elif self._file is not None:
            self._files.forget(self)
            self.shut()
        self._files.disk.remove(self.path)

    def is_closable(self, newest: Segment) -> bool:
        """One step of the eviction: False spends the second chance."""
        if self._used or self._pins or self is newest:
            self._used = False
            return False
        return True

    def shut(self) -> None:
        """Close the handle; the next use opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None
