"""The damaged ranges of the log, the search for the next valid bytes, and copies of bytes set aside.

Invariants: ranges are ascending and disjoint, and begin and end at record boundaries; a reader gets no byte
            of them. Bytes are copied aside, and the copy is on disk, before they are overwritten.
At a bound: beyond `DAMAGED_RANGES_MAX` ranges the log is unusable (`Corrupt`). Copies of more than
            `COPIES_BYTES_MAX` together make room, the oldest first.
Knows not:  the search for damage, or its repair.
Source:     spec store 3.3.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tandemmq.errors import Corrupt, DiskFull
from tandemmq.protocol.record import (
    NewRecord,
    RecordOutcome,
    check_record,
    encode_blank,
    encode_record,
    record_size,
)
from tandemmq.protocol.record_layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from tandemmq.runtime.ports import Disk
from tandemmq.store.record_maker import BLANK_BYTES
from tandemmq.store.segmented_log import Segment, SegmentedLog
from tandemmq.telemetry import events
from tandemmq.units import GIB, MIB, Buffer

log = logging.getLogger(__name__)

DAMAGED_RANGES_MAX = 1024
COPIES_BYTES_MAX = GIB
DAMAGED = "damaged"
"""The reason for refusing messages while damage found at a start remains."""
BLANK_STORED_AT_MS = -1
"""The store time of a BLANK, which has none."""
SEAL_TOPIC = "TANDEM_DAMAGED_LOG"
"""The topic name in sealed ranges; it never has messages."""
_SEAL_BYTES_MAX = MIB
_ROLLED_BACK = 0xC
_NO_HOST = bytes(8)
_FIND_BYTES = MIB
_MAGICS = {magic: (magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK)}
_ZEROS = bytes(MIB)


class DamagedRange(NamedTuple):
    """Bytes `[begin, end)` of the log that are not records any more."""

    begin: int
    end: int
    reason: str

    @property
    def size(self) -> int:
        return self.end - self.begin


class DamagedRanges:
    """The known ranges of one log."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[DamagedRange] = []

    def __len__(self) -> int:
        return len(self._ranges)

    def __contains__(self, damaged: object) -> bool:
        return damaged in self._ranges

    def __iter__(self) -> Iterator[DamagedRange]:
        return iter(tuple(self._ranges))

    @property
    def size_bytes(self) -> int:
        return sum(damaged.size for damaged in self._ranges)

    def add(self, damaged: DamagedRange, path: Path) -> bool:
        """Adds a range; False if it is known already. Overlapping ranges are merged.

        Raises:  Corrupt at the bound; `path` is the file that it names.
        """
        assert damaged.begin < damaged.end, damaged
        others = [other for other in self._ranges if other.begin < damaged.end and damaged.begin < other.end]
        if any(other.begin <= damaged.begin and damaged.end <= other.end for other in others):
            return False
        if len(self._ranges) - len(others) >= DAMAGED_RANGES_MAX:
            raise Corrupt(path, 0, f"more than {DAMAGED_RANGES_MAX} ranges of the log are damaged")
        begin = min([damaged.begin, *(other.begin for other in others)])
        end = max([damaged.end, *(other.end for other in others)])
        kept = [other for other in self._ranges if other not in others]
        self._ranges = sorted([*kept, DamagedRange(begin, end, damaged.reason)])
        assert all(one.end <= other.begin for one, other in pairwise(self._ranges)), self._ranges
        return True

    def remove(self, damaged: DamagedRange) -> None:
        """Removes a range that is valid again."""
        self._ranges.remove(damaged)

    def drop_below(self, log_begin: int) -> None:
        """Drops ranges that have left the log."""
        self._ranges = [
            damaged._replace(begin=max(damaged.begin, log_begin))
            for damaged in self._ranges
            if damaged.end > log_begin
        ]
        # Ranges are ascending, so the first one stands for all.
        assert not self._ranges or self._ranges[0].begin >= log_begin, (log_begin, self._ranges[0])

    def drop_behind(self, log_end: int) -> None:
        """Drops ranges that were cut, as other bytes will be stored there."""
        self._ranges = [
            damaged._replace(end=min(damaged.end, log_end))
            for damaged in self._ranges
            if damaged.begin < log_end
        ]
        assert not self._ranges or self._ranges[-1].end <= log_end, (log_end, self._ranges[-1])

    def find(self, begin: int, end: int) -> DamagedRange | None:
        """Returns the first range with bytes in `[begin, end)`."""
        ranges = self._ranges
        index = bisect_right(ranges, begin, key=lambda damaged: damaged.end)
        if index < len(ranges) and ranges[index].begin < end:
            return ranges[index]
        return None


def report_damage(damaged: DamagedRange, segment: Segment, *, found_by: str) -> None:
    """Logs a range that was found in a file."""
    log.error(
        events.LOG_DAMAGED,
        extra={
            "path": str(segment.path),
            "file_offset": damaged.begin - segment.base,
            "log_offset": damaged.begin,
            "size_bytes": damaged.size,
            "reason": damaged.reason,
            "found_by": found_by,
        },
    )


class ValidRecord(NamedTuple):
    """A record whose stored offset matches its position, or a BLANK that ends at the file's end."""

    log_offset: int
    stored_at_ms: int


def next_valid(
    view: memoryview, begin: int, *, base: int, newest_ms: int = 0, check_crc: bool = True
) -> tuple[ValidRecord | None, bool]:
    """Returns the next record or BLANK after byte `begin` of a whole file that begins at `base` of the log.

    Records stored before `newest_ms` are left over from an earlier end of the log, which RocketMQ does not
    zero; then the second value is True.
    """
    assert -1 <= begin <= len(view), (begin, len(view))
    is_stale = False
    found = {magic: find_bytes(view, raw, begin + 5) for magic, raw in _MAGICS.items()}
    while any(at >= 0 for at in found.values()):
        magic = min((at, magic) for magic, at in found.items() if at >= 0)[1]
        at = found[magic] - 4
        assert begin < at < len(view), (begin, at, len(view))
        record = check_record(view, at, log_offset=base + at, check_crc=check_crc)
        if record.outcome is RecordOutcome.OK:
            if record.stored_at_ms >= newest_ms:
                return ValidRecord(base + at, record.stored_at_ms), False
            is_stale = True
        elif record.outcome is RecordOutcome.BLANK and record.size == len(view) - at and not is_stale:
            return ValidRecord(base + at, BLANK_STORED_AT_MS), False
        found[magic] = find_bytes(view, _MAGICS[magic], at + 5)
    return None, is_stale


def seal(begin: int, size: int, *, reaches_file_end: bool, stored_at_ms: int) -> bytes:
    """Returns bytes that any broker skips: records without queue and key, and a BLANK at a file's end.

    They look like records of a rolled-back transaction, which get no entry in any table (spec store 5, 8).
    """
    blank = b""
    assert reaches_file_end or size >= SEALED_BYTES_MIN, size
    if reaches_file_end:
        assert size >= BLANK_BYTES, size
        blank_bytes = BLANK_BYTES if size >= SEALED_BYTES_MIN + BLANK_BYTES else size
        blank = encode_blank(blank_bytes).ljust(blank_bytes, b"\0")
    sealed = b""
    while left := size - len(blank) - len(sealed):
        # The rest after a piece must hold another record.
        piece = left if left <= _SEAL_BYTES_MAX + _SEAL_BYTES_MIN else _SEAL_BYTES_MAX
        assert SEALED_BYTES_MIN <= piece <= left, (piece, left)
        empty = _empty_record(SEAL_TOPIC[: max(1, len(SEAL_TOPIC) - max(0, _SEAL_BYTES_MIN - piece))])
        body = bytes(piece - record_size(empty))
        sealed += encode_record(
            msgspec.structs.replace(empty, body=body),
            queue_offset=0,
            log_offset=begin + len(sealed),
            stored_at_ms=stored_at_ms,
            store_host=_NO_HOST,
        )
    assert len(sealed) + len(blank) == size, (begin, size)
    return sealed + blank


def _empty_record(topic: str) -> NewRecord:
    return NewRecord(
        topic=topic,
        queue_id=0,
        body=b"",
        properties=b"",
        born_at_ms=0,
        born_host=_NO_HOST,
        sys_flag=_ROLLED_BACK,
    )


SEALED_BYTES_MIN = record_size(_empty_record("T"))
"""The least size of a record, and therefore of a range between two records."""
_SEAL_BYTES_MIN = record_size(_empty_record(SEAL_TOPIC))
assert len(SEAL_TOPIC) - 1 == _SEAL_BYTES_MIN - SEALED_BYTES_MIN, "a topic that is cut makes up for each byte"
assert SEALED_BYTES_MIN + BLANK_BYTES <= _SEAL_BYTES_MAX


def find_bytes(view: memoryview, wanted: bytes, start: int) -> int:
    """Returns the position of the next `wanted`; -1 without one.

    mmap.find is not used: that of Python 3.11.2 (Debian 12) crashes the process here.
    """
    assert start >= 0, start
    assert 0 < len(wanted) <= _FIND_BYTES, len(wanted)
    for begin in range(start, len(view), _FIND_BYTES):
        found = bytes(view[begin : begin + _FIND_BYTES + len(wanted) - 1]).find(wanted)
        if found >= 0:
            return begin + found
    return -1


def data_end(view: memoryview, begin: int) -> int:
    """Returns the end of the last non-zero byte from `begin` on; `begin` if all are zero."""
    assert begin >= 0, begin
    for start in range(begin + (len(view) - begin) // MIB * MIB, begin - 1, -MIB):
        part = bytes(view[start : start + MIB])
        if part != _ZEROS[: len(part)]:
            return start + len(part.rstrip(b"\0"))
    return begin


def copy_aside(
    parts: Iterable[bytes], begin: int, size: int, *, directory: Path, suffix: str, disk: Disk, now_ms: int
) -> Path:
    """Copies `size` bytes of the log from `begin` on to a separate file; returns its path. Otherwise like
    `write_copy`. Bytes beyond `COPIES_BYTES_MAX` are left out at the end.
    """
    assert begin >= 0, begin
    assert size > 0, (begin, size)
    path = directory / f"{begin:020d}-{now_ms}.{suffix}"
    size = min(size, COPIES_BYTES_MAX)
    write_copy(path, parts, size, bytes_max=COPIES_BYTES_MAX, age=_made_at, disk=disk)
    return path


def _made_at(path: Path) -> str:
    return path.name.partition("-")[2]


def write_copy(
    path: Path,
    parts: Iterable[Buffer],
    size: int,
    *,
    bytes_max: int,
    age: Callable[[Path], Any],
    disk: Disk,
) -> None:
    """Writes the first `size` bytes of `parts` to a file, synced. Blocks.

    The files of its directory have at most `bytes_max` bytes together: the first ones by `age` make room. A
    copy that cannot be completed is removed.

    Raises:  DiskFull when the disk accepts no writes; OSError when `parts` cannot be read, or the fsync
             failed.
    """
    assert 0 < size <= bytes_max, (path, size, bytes_max)
    try:
        if disk.exists(path):
            disk.remove(path)  # left by an earlier attempt
        _make_room(path.parent, bytes_max - size, age, disk)
        file = disk.create(path, size)
    except OSError as error:
        raise DiskFull(f"{path} cannot be made: {error}") from error
    try:
        at = 0
        for raw in parts:
            part = raw[: size - at]
            try:
                file.pwrite(at, (part,))
            except OSError as error:
                raise DiskFull(f"{path} cannot be written: {error}") from error
            at += len(part)
            if at == size:
                break
        file.sync()
    except DiskFull:
        with suppress(OSError):
            disk.remove(path)
        raise
    finally:
        file.close()


def _make_room(directory: Path, kept_bytes_max: int, age: Callable[[Path], Any], disk: Disk) -> None:
    """Deletes the oldest copies until the others are within the bound. Raises OSError."""
    kept = sorted((directory / name for name in disk.list(directory)), key=age)
    total = sum(map(disk.size, kept))
    while kept and total > kept_bytes_max:
        oldest = kept.pop(0)
        total -= disk.size(oldest)
        disk.remove(oldest)


def read_range(log: SegmentedLog, begin: int, end: int) -> Iterator[bytes]:
    """Yields bytes `[begin, end)` of the log in parts. Raises OSError if a file was shortened meanwhile."""
    while begin < end:
        segment = log.find(begin)
        assert segment is not None, begin
        at = begin - segment.base
        raw = segment.file.pread(at, min(MIB, segment.size - at, end - begin))
        if not raw:
            raise OSError(errno.EIO, f"the file ends at byte {at} or before", str(segment.path))
        yield raw
        begin += len(raw)
