"""Files of a store directory, opened read-only: files named by offsets, ConsumeQueues (`QueueFiles`), and the
lock that keeps brokers away meanwhile.

Invariants: nothing is created or changed, and nothing stays locked after the inspection. Sizes come from the
            files' lengths, because the settings of the store may not be available.
Source:     spec store 1, 5.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemmq.errors import StoreError, StoreLocked
from tandemmq.store.consume_queue import ENTRY, FILLER_SIZE
from tandemmq.store.options import QUEUE_UNIT_BYTES, parse_offset_file_name, parse_queue_id

ENTRIES_PER_READ = 65_536
assert ENTRY.itemsize == QUEUE_UNIT_BYTES, "files are read as arrays of entries"

Entries = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFile:
    """One file of a log: bytes `[base, end)` of it, by its name and length."""

    path: Path
    base: int
    size: int

    @property
    def end(self) -> int:
        return self.base + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFiles:
    """The files of one directory by offset, and files with other names."""

    directory: Path
    files: tuple[OffsetFile, ...]
    foreign_files: tuple[Path, ...]

    def find(self, offset: int) -> OffsetFile | None:
        """Returns the file that holds byte `offset`; None without one."""
        assert offset >= 0, offset
        index = bisect_right(self.files, offset, key=lambda file: file.end)
        if index < len(self.files) and self.files[index].base <= offset:
            return self.files[index]
        return None


def list_offset_files(directory: Path) -> OffsetFiles:
    """Returns the files of a log directory, ascending; none if it does not exist."""
    files = []
    foreign_files = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        base = parse_offset_file_name(path.name)
        if base is not None and path.is_file():
            files.append(OffsetFile(path=path, base=base, size=path.stat().st_size))
        elif path.is_file():
            foreign_files.append(path)
    assert all(one.base < other.base for one, other in pairwise(files)), directory
    return OffsetFiles(directory=directory, files=tuple(files), foreign_files=tuple(foreign_files))


def usual_size(files: Sequence[OffsetFile]) -> int:
    """Returns the most frequent file length, the longest of several; 0 without files."""
    counts = Counter(file.size for file in files if file.size)
    return max(counts, key=lambda size: (counts[size], size), default=0)


def map_file(path: Path) -> mmap.mmap:
    """Maps the whole file read-only; it is unmapped with its last slice. The file must not be empty."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    return mapped


def read_range(path: Path, offset: int, size: int) -> bytes:
    """Returns bytes of a file; fewer at its end."""
    assert min(offset, size) >= 0, (path, offset, size)
    with open(path, "rb", buffering=0) as file:
        return os.pread(file.fileno(), size, offset)


def data_limit(path: Path) -> int:
    """Returns the end of the last byte that the file system has stored for a file.

    Later bytes were only reserved, and are zero. The file's length if the file system does not report holes.
    """
    with open(path, "rb", buffering=0) as file:
        limit = 0
        try:
            while True:
                limit = os.lseek(file.fileno(), os.lseek(file.fileno(), limit, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            return limit if error.errno == errno.ENXIO else os.fstat(file.fileno()).st_size


@contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """Keeps brokers from starting on the directory while it is read; a missing lock file is not created.

    A shared record lock on the byte that brokers lock exclusively (spec store 1) needs no write permission.
    Raises:  StoreLocked when a broker runs there.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
        except (PermissionError, BlockingIOError):
            raise StoreLocked(f"{path.parent} is in use: a broker runs on it (it holds {path})") from None
        yield
    finally:
        os.close(descriptor)


def require_store(root: Path, log_dir: Path) -> None:
    """Checks that a store exists. Raises StoreError."""
    if not root.is_dir():
        raise StoreError(f"{root} is not a directory")
    if not log_dir.is_dir():
        raise StoreError(f"{log_dir} is not a directory: {root} is not a store, or its log is elsewhere")


def holds_files(directory: Path) -> bool:
    """Returns True if any file exists below the directory."""
    return any(path.is_file() for path in directory.rglob("*"))


class QueueFiles:
    """The entries `[first, end)` of (topic, queue_id), across file borders.

    Invariants: the queue ends after its last entry that is not all zero, even if a broker would stop earlier
                at an invalid entry.
    """

    def __init__(self, key: tuple[str, int], directory: Path) -> None:
        self.key = key
        self.directory = directory
        self.all: OffsetFiles = list_offset_files(directory)
        files = self.all.files
        self.first = files[0].base // QUEUE_UNIT_BYTES if files else 0
        self.end = self.first
        for file in reversed(files):
            end = self._data_end(file)
            if end > file.base // QUEUE_UNIT_BYTES:
                self.end = end
                break
        assert 0 <= self.first <= self.end, (key, self.first, self.end)

    @staticmethod
    def _data_end(file: OffsetFile) -> int:
        """Returns the queue offset after the file's last entry that is not all zero."""
        step = ENTRIES_PER_READ * QUEUE_UNIT_BYTES
        for at in range(data_limit(file.path) // step * step, -1, -step):
            part = read_range(file.path, at, step)
            size = len(part.rstrip(b"\0")) if any(part) else 0
            if size:
                return (file.base + at + size - 1) // QUEUE_UNIT_BYTES + 1
        return file.base // QUEUE_UNIT_BYTES

    @property
    def end_log_offset(self) -> int:
        """The log end of the record of the last entry that is not a filler; -1 without one."""
        for end in range(self.end, self.first, -ENTRIES_PER_READ):
            begin = max(self.first, end - ENTRIES_PER_READ)
            entries = self.read(begin, end - begin)
            real = entries[~is_filler(entries)]
            if len(real):
                return int(real["log_offset"][-1]) + int(real["size"][-1])
        return -1

    def place(self, queue_offset: int) -> tuple[Path, int]:
        """Returns the file and the byte of an entry, even if the entry does not exist."""
        assert queue_offset >= 0, (self.key, queue_offset)
        at = queue_offset * QUEUE_UNIT_BYTES
        file = self.all.find(at)
        return (self.directory, at) if file is None else (file.path, at - file.base)

    def read(self, queue_offset: int, count: int) -> Entries:
        """Returns entries from `queue_offset` on; zeros if no file holds them."""
        assert count > 0, (self.key, queue_offset, count)
        assert queue_offset >= 0, (self.key, queue_offset, count)
        parts = bytearray()
        at = queue_offset * QUEUE_UNIT_BYTES
        end = at + count * QUEUE_UNIT_BYTES
        while at < end:
            file = self.all.find(at)
            if file is None:
                following = [f.base for f in self.all.files if f.base > at]
                size = min(end, *following) - at if following else end - at
                parts += bytes(size)
            else:
                size = min(end, file.end) - at
                parts += read_range(file.path, at - file.base, size).ljust(size, b"\0")
            assert size > 0, (self.key, at, end)
            at += size
        assert len(parts) == count * QUEUE_UNIT_BYTES, (self.key, queue_offset, count, len(parts))
        return np.frombuffer(parts, dtype=ENTRY)

    def blocks(self, first: int, end: int) -> Iterator[tuple[int, Entries]]:
        """Yields the entries `[first, end)` that have bytes in a file, in blocks with their first queue
        offset.

        If files are missing, the number of their entries is unknown.
        """
        for file in self.all.files:
            first = max(first, file.base // QUEUE_UNIT_BYTES)
            stop = min(end, -(-file.end // QUEUE_UNIT_BYTES))
            for queue_offset in range(first, stop, ENTRIES_PER_READ):
                yield queue_offset, self.read(queue_offset, min(ENTRIES_PER_READ, stop - queue_offset))
            first = max(first, stop)


def is_filler(entries: Entries) -> NDArray[np.bool_]:
    """Returns a mask of the fillers, which stand for messages that this broker never had."""
    result: NDArray[np.bool_] = entries["size"] == FILLER_SIZE
    return result


def is_expired(entries: Entries, log_begin: int) -> NDArray[np.bool_]:
    """Returns a mask of the entries whose records are before the log's first byte."""
    # An offset may have any value: adding the size could overflow.
    before_log = entries["log_offset"] <= log_begin - entries["size"].astype(np.int64)
    result: NDArray[np.bool_] = before_log & (entries["size"] > 0) & (entries["log_offset"] >= 0)
    return result


def list_queues(directory: Path) -> dict[tuple[str, int], QueueFiles]:
    """Returns every queue below `consumequeue`, by topic and number."""
    queues = {}
    for topic in sorted(directory.iterdir()) if directory.is_dir() else ():
        for path in sorted(topic.iterdir()) if topic.is_dir() else ():
            queue_id = parse_queue_id(path.name)
            if queue_id is not None and path.is_dir():
                key = (topic.name, queue_id)
                queues[key] = QueueFiles(key, path)
    return queues
