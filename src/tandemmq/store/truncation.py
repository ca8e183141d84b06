"""Cuts the end of a log that its master does not have, so that a deposed master can follow again.

Copies of the removed tails are kept; `list_kept` and `read_kept` show an operator the messages in them.

Owns:       the mark `truncate.pending`, and the copies of removed tails.
Invariants: once the mark is on disk, this run or the next completes the cut; nothing is appended before that.
            Cut bytes, also in the files after the cut, are zero on disk before the mark is cleared. A power
            cut therefore brings back no record that was cut.
Strategy:   copy the tail; write the mark; write zeros; write the list of terms; clear the mark by emptying
            it, because the removal of a file may not be durable. A full disk is detected before the mark,
            when nothing has changed yet.
Knows not:  queues, watermarks: the store cuts them, or recovery does at its start.
Source:     spec controller 4.6, 10.9.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from tandemmq.errors import Corrupt, DiskFull, StoreError
from tandemmq.protocol.record import Record, RecordError, RecordOutcome, check_record, decode_record
from tandemmq.replication.core.epochs import (
    EpochList,
    decode_epochs,
    decode_ids,
    encode_epochs,
    encode_ids,
)
from tandemmq.runtime.ports import Disk
from tandemmq.store.commit_log import CommitLog
from tandemmq.store.damage import write_copy
from tandemmq.store.segmented_log import Segment, pinned, zero_stale
from tandemmq.telemetry import events
from tandemmq.units import Buffer

log = logging.getLogger(__name__)


class PendingCut(msgspec.Struct, frozen=True, rename="camel"):
    """A request to end the log at `point` and to set its terms to `epochs`, the text of their file.

    `epoch`: the term that wrote at least the first byte of the tail. `ids`: the ids of the terms, as text of
    their file.
    """

    point: Annotated[int, msgspec.Meta(ge=0)]
    epochs: str
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    reason: str
    ids: str = ""

    @property
    def terms(self) -> EpochList:
        """The terms with their ids. Raises ValueError for unreadable text."""
        ids = decode_ids(self.ids.encode("ascii")) if self.ids else {}
        return decode_terms(self.epochs).with_ids(ids)


class CutMark:
    """The mark of a cut that has begun and may not be complete."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk

    def read(self) -> PendingCut | None:
        """Returns the pending cut; None without one. Raises Corrupt."""
        if not self._disk.exists(self._path):
            return None
        data = self._disk.read_bytes(self._path)
        if not data:
            return None
        try:
            pending = msgspec.json.decode(data, type=PendingCut)
            _ = pending.terms
        except ValueError as error:
            raise self.damage(f"cannot be read: {error}") from error
        return pending

    def damage(self, reason: str) -> Corrupt:
        """Returns the error for an invalid mark."""
        remedy = "copy the log again from the master"
        return Corrupt(self._path, 0, f"the mark of a cut of the log {reason}; {remedy}")

    @property
    def is_there(self) -> bool:
        """True if the next start would find the mark."""
        return self._disk.exists(self._path)

    def write(self, pending: PendingCut) -> None:
        """Writes the mark. Blocks. Raises OSError."""
        self._disk.write_atomically(self._path, msgspec.json.encode(pending))

    def clear(self) -> None:
        """Removes the mark after the cut is on disk. Blocks. Raises OSError."""
        self._disk.write_atomically(self._path, b"")
        self._disk.remove(self._path)


def encode_terms(epochs: EpochList) -> str:
    text = encode_epochs(epochs).decode("ascii") if epochs else ""
    assert decode_terms(text).entries == epochs.entries, text
    return text


def encode_term_ids(epochs: EpochList) -> str:
    return encode_ids(epochs.ids).decode("ascii") if epochs.ids else ""


def decode_terms(text: str) -> EpochList:
    return decode_epochs(text.encode("ascii")) if text else EpochList()


def keep_tail(
    parts: Iterable[Buffer],
    begin: int,
    size: int,
    *,
    epoch: int,
    directory: Path,
    bytes_max: int,
    disk: Disk,
) -> Path | None:
    """Copies `size` bytes from `begin` on to the file `<epoch>-<begin>-<end>`, synced, and returns its path.
    Blocks.

    `bytes_max`: the limit for all copies together. The oldest copies make room; a tail that is larger alone
    is shortened at its end.

    Returns None if the disk has no room. A full disk must not keep the broker from following, and these bytes
    were never reported as safe.
    Raises:  OSError when the fsync fails.
    """
    assert size >= 0, (begin, size)
    assert bytes_max >= 0, bytes_max
    path = directory / f"{epoch}-{begin}-{begin + size}"
    facts = {"path": str(path), "log_offset": begin, "size_bytes": size}
    size = min(size, bytes_max)
    if not size:
        return None
    try:
        write_copy(path, parts, size, bytes_max=bytes_max, age=_age, disk=disk)
    except DiskFull as error:
        log.error(events.LOG_COPY_FAILED, extra={**facts, "error": str(error)})
        return None
    log.warning(events.LOG_TAIL_KEPT, extra=facts)
    return path


def _age(path: Path) -> tuple[int, ...]:
    """Returns the sort key of a copy: terms are numbered in time order; foreign names are the oldest."""
    words = path.name.split("-")
    return tuple(map(int, words)) if all(word.isdecimal() for word in words) else ()


async def zero_behind(disk: Disk, segments: Sequence[Segment], point: int, end: int) -> int:
    """Zeroes and syncs the bytes `[point, end)` in these files, off the loop; returns their number.

    Raises:  OSError.
    """
    with pinned(segments):
        return await disk.offload(_zero_behind, segments, point, end)


def _zero_behind(segments: Sequence[Segment], point: int, end: int) -> int:
    zeroed = 0
    for segment in segments:
        assert segment.end > point, (segment, point)
        begin = max(0, point - segment.base)
        assert begin <= min(segment.size, end - segment.base), (segment, point, end)
        zeroed += zero_stale(segment, begin, min(segment.size, end - segment.base))
        segment.file.sync()
    return zeroed


async def finish_cut(mark: CutMark, pending: PendingCut, log_: CommitLog) -> None:
    """Repeats a cut that a former run began, at the start, before the files are in use.

    The tail was copied before the mark was written.
    Raises:  Corrupt for a point outside the log, with nothing changed; OSError.
    """
    assert not log_.end, "the log is not open yet"
    last = log_.log.last
    if last is not None and not log_.begin <= pending.point <= last.end:
        raise mark.damage(f"names byte {pending.point}, and the files have {log_.begin} to {last.end}")
    segments = [segment for segment in log_.log.segments if segment.end > pending.point]
    end = segments[-1].end if segments else 0
    zeroed = await zero_behind(log_.disk, segments, pending.point, end)
    log_.log.truncate(pending.point, zero_bytes_max=0)
    facts = {"log_offset": pending.point, "reason": pending.reason, "zeroed_bytes": zeroed}
    log.warning(events.LOG_TAIL_CUT, extra=facts)


@dataclass(frozen=True, slots=True)
class KeptTail:
    """A file created by `keep_tail`.

    `[begin, end)` is the cut range of the log; the file may hold less of it.
    """

    path: Path
    epoch: int
    begin: int
    end: int
    size_bytes: int


def list_kept(directory: Path, disk: Disk) -> list[KeptTail]:
    """Returns the copies in a store's `divergent` directory, oldest first; foreign names are skipped."""
    found = []
    for name in disk.list(directory):
        words = name.split("-")
        if len(words) == 3 and all(word.isdecimal() for word in words):
            epoch, begin, end = map(int, words)
            path = directory / name
            found.append(KeptTail(path, epoch, begin, end, disk.size(path)))
    return sorted(found, key=lambda one: (one.epoch, one.begin, one.end))


def read_kept(tail: KeptTail, disk: Disk) -> Iterator[Record]:
    """Yields the messages of the file in log order, up to the first damage or a truncated end.

    Raises:  StoreError when the file cannot be read.
    """
    try:
        data = memoryview(disk.read_bytes(tail.path))
    except OSError as error:
        raise StoreError(f"{tail.path} cannot be read: {error.strerror or error}") from error
    position = 0
    while position < len(data):
        log_offset = tail.begin + position
        checked = check_record(data, position, log_offset=log_offset)
        if checked.outcome is RecordOutcome.OK:
            try:
                record = decode_record(data, position, log_offset=log_offset)
            except RecordError:
                return
            yield record
        elif checked.outcome is not RecordOutcome.BLANK:
            return
        position += checked.size
