"""One ConsumeQueue as it lies on disk: entries by queue offset, over file borders, for reading only.

Invariants: the queue ends behind its last entry that is not all zero, wherever a broker would stop at an
            entry that is none.
Source:     spec store 1, 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemmq.store.inspect.files import OffsetFile, OffsetFiles, data_limit, list_offset_files, read_range
from tandemmq.store.options import QUEUE_UNIT_BYTES
from tandemmq.store.paths import parse_queue_id
from tandemmq.store.queue_entries import ENTRY, FILLER_SIZE

ENTRIES_PER_READ = 65_536

Entries = NDArray[Any]


class QueueFiles:
    """The entries `first` to `end` (exclusive) of (topic, queue_id)."""

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

    @staticmethod
    def _data_end(file: OffsetFile) -> int:
        """The queue offset behind the file's last entry that is not all zero."""
        step = ENTRIES_PER_READ * QUEUE_UNIT_BYTES
        for at in range(data_limit(file.path) // step * step, -1, -step):
            part = read_range(file.path, at, step)
            size = len(part.rstrip(b"\0")) if any(part) else 0
            if size:
                return (file.base + at + size - 1) // QUEUE_UNIT_BYTES + 1
        return file.base // QUEUE_UNIT_BYTES

    @property
    def end_log_offset(self) -> int:
        """Where the record of the last entry ends that is no filler; -1 without one."""
        for end in range(self.end, self.first, -ENTRIES_PER_READ):
            begin = max(self.first, end - ENTRIES_PER_READ)
            entries = self.read(begin, end - begin)
            real = entries[~is_filler(entries)]
            if len(real):
                return int(real["log_offset"][-1]) + int(real["size"][-1])
        return -1

    def place(self, queue_offset: int) -> tuple[Path, int]:
        """The file and the byte at which an entry lies, or would lie."""
        at = queue_offset * QUEUE_UNIT_BYTES
        file = self.all.find(at)
        return (self.directory, at) if file is None else (file.path, at - file.base)

    def read(self, queue_offset: int, count: int) -> Entries:
        """Entries from `queue_offset` on; zeros where no file holds them."""
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
            at += size
        return np.frombuffer(parts, dtype=ENTRY)

    def blocks(self, first: int, end: int) -> Iterator[tuple[int, Entries]]:
        """The entries `first` to `end` in blocks, with the queue offset of each block's first."""
        for queue_offset in range(first, end, ENTRIES_PER_READ):
            yield queue_offset, self.read(queue_offset, min(ENTRIES_PER_READ, end - queue_offset))


def is_filler(entries: Entries) -> NDArray[np.bool_]:
    """Which entries only fill the place of messages that this broker never had."""
    result: NDArray[np.bool_] = entries["size"] == FILLER_SIZE
    return result


def list_queues(directory: Path) -> dict[tuple[str, int], QueueFiles]:
    """Every queue below `consumequeue`, by topic and number."""
    queues = {}
    for topic in sorted(directory.iterdir()) if directory.is_dir() else ():
        for path in sorted(topic.iterdir()) if topic.is_dir() else ():
            queue_id = parse_queue_id(path.name)
            if queue_id is not None and path.is_dir():
                key = (topic.name, queue_id)
                queues[key] = QueueFiles(key, path)
    return queues
