"""Files of a store directory, opened for reading only, and the lock that keeps brokers away meanwhile.

Invariants: nothing is created, changed or locked for longer than the inspection; sizes come from the files'
            lengths, because the settings that the store was written with may not be at hand.
Source:     spec store 1.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tandemmq.errors import StoreError, StoreLocked
from tandemmq.store.paths import parse_offset_file_name


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFile:
    """One file of a log: bytes `base` to `end` of it, as its name and length say."""

    path: Path
    base: int
    size: int

    @property
    def end(self) -> int:
        return self.base + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFiles:
    """The files of one directory by offset, and the other names that lie in it."""

    directory: Path
    files: tuple[OffsetFile, ...]
    strangers: tuple[Path, ...]

    def find(self, offset: int) -> OffsetFile | None:
        """The file that holds byte `offset`."""
        low, high = 0, len(self.files)
        while low < high:
            middle = (low + high) // 2
            if self.files[middle].end <= offset:
                low = middle + 1
            else:
                high = middle
        if low < len(self.files) and self.files[low].base <= offset:
            return self.files[low]
        return None


def list_offset_files(directory: Path) -> OffsetFiles:
    """The files of a log directory, ascending; none when it does not exist."""
    files = []
    strangers = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        base = parse_offset_file_name(path.name)
        if base is not None and path.is_file():
            files.append(OffsetFile(path=path, base=base, size=path.stat().st_size))
        elif path.is_file():
            strangers.append(path)
    return OffsetFiles(directory=directory, files=tuple(files), strangers=tuple(strangers))


def usual_size(files: Sequence[OffsetFile]) -> int:
    """The length that most of the files have, the longest of several; 0 without files."""
    counts = Counter(file.size for file in files if file.size)
    return max(counts, key=lambda size: (counts[size], size), default=0)


def map_file(path: Path) -> mmap.mmap:
    """The whole file, read-only; unmapped when the last slice of it goes. The file must not be empty."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    return mapped


def read_range(path: Path, offset: int, size: int) -> bytes:
    """Bytes of a file; shorter at its end."""
    with open(path, "rb", buffering=0) as file:
        return os.pread(file.fileno(), size, offset)


def data_limit(path: Path) -> int:
    """Behind the last byte that the file system has stored for a file; what follows was prepared only, and is
    zero. The file's length where the file system does not tell.
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
    """Keep brokers from starting on the directory while it is read; a missing lock file is not made.

    A shared record lock on the byte that brokers lock exclusively (spec store 1) needs no right to write.
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
    """Raises StoreError when there is nothing to look at."""
    if not root.is_dir():
        raise StoreError(f"{root} is no directory")
    if not log_dir.is_dir():
        raise StoreError(f"{log_dir} is no directory: {root} is no store, or its CommitLog lies elsewhere")


def holds_files(directory: Path) -> bool:
    """True when a file lies anywhere below the directory."""
    return any(path.is_file() for path in directory.rglob("*"))
