"""Takes back the end of a log that its master does not have: a deposed master's tail, so that it can follow.
Copies of such tails are kept; `list_kept` and `read_kept` show an operator the messages in them.

Owns:       the mark `truncate.pending`, the copies of what was cut.
Invariants: once the mark is on disk the cut happens, by this life or the next; until it is undone nothing is
            appended. Cut bytes are zeros on disk before the mark goes, files behind the cut included:
            whatever a power cut brings back, no cut record does.
Strategy:   copy the tail; mark; zeros; the list of terms; an empty mark, because the removal of a file may
            not last. A disk that is full is met before the mark, when nothing is changed yet.
Knows not:  queues, watermarks: the store cuts them, or the recovery at its start does.
Source:     spec controller 4.6, 10.9.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from tandemmq.errors import Corrupt, StoreError
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
from tandemmq.store.segmented_log import Segment, zero_stale
from tandemmq.telemetry import events
from tandemmq.units import Buffer

log = logging.getLogger(__name__)


class PendingCut(msgspec.Struct, frozen=True, rename="camel"):
    """The log is to end at `point`, and `epochs` to be its terms, as text of their file.

    `epoch`: of the term that wrote what is cut, its first byte at least. `ids`: the ids of the terms, as text
    of their file.
    """

    point: Annotated[int, msgspec.Meta(ge=0)]
    epochs: str
    epoch: Annotated[int, msgspec.Meta(ge=0)]
    reason: str
    ids: str = ""

    @property
    def terms(self) -> EpochList:
        """Raises ValueError for text that cannot be read."""
        ids = decode_ids(self.ids.encode("ascii")) if self.ids else {}
        return decode_terms(self.epochs).with_ids(ids)


class CutMark:
    """The mark of a cut that has begun and may not have ended."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk

    def read(self) -> PendingCut | None:
        """None when no cut is under way. Raises Corrupt."""
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
        """The error for a mark that makes no sense."""
        remedy = "copy the log anew from the master"
        return Corrupt(self._path, 0, f"the mark of a cut of the log {reason}; {remedy}")

    @property
    def is_there(self) -> bool:
        """Whether the next start would find it."""
        return self._disk.exists(self._path)

    def write(self, pending: PendingCut) -> None:
        """Blocks. Raises OSError."""
        self._disk.write_atomically(self._path, msgspec.json.encode(pending))

    def clear(self) -> None:
        """The cut is on disk. Blocks. Raises OSError."""
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
    """The file `<epoch>-<begin>-<end>`: a copy of `size` bytes from `begin` on, synced; None where there is
    no room for it. Blocks.

    `bytes_max`: of all copies together; the oldest make room, and what alone is more is left out at its end.

    A full disk must not keep the broker from following: nobody was told that these bytes are safe.
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
        if disk.exists(path):
            disk.remove(path)  # of an attempt before this one
        _make_room(directory, size, bytes_max, disk)
        file = disk.create(path, size)
    except OSError as error:
        log.error(events.LOG_COPY_FAILED, extra={**facts, "error": str(error)})
        return None
    try:
        at = 0
        for raw in parts:
            part = raw[: size - at]
            file.pwrite(at, (part,))
            at += len(part)
    except OSError as error:
        file.close()
        log.error(events.LOG_COPY_FAILED, extra={**facts, "error": str(error)})
        with suppress(OSError):
            disk.remove(path)
        return None
    try:
        file.sync()
    finally:
        file.close()
    log.warning(events.LOG_TAIL_KEPT, extra=facts)
    return path


def _make_room(directory: Path, size: int, bytes_max: int, disk: Disk) -> None:
    """Delete the oldest copies until `size` more bytes are within the bound. Raises OSError."""
    assert 0 < size <= bytes_max, (size, bytes_max)
    paths = sorted((directory / name for name in disk.list(directory)), key=_age)
    total = sum(map(disk.size, paths))
    while paths and total + size > bytes_max:
        oldest = paths.pop(0)
        total -= disk.size(oldest)
        disk.remove(oldest)


def _age(path: Path) -> tuple[int, ...]:
    """Terms are numbered in the order of time; what somebody else put there is the oldest."""
    words = path.name.split("-")
    return tuple(map(int, words)) if all(word.isdecimal() for word in words) else ()


def zero_behind(segments: Iterable[Segment], point: int, end: int) -> int:
    """Zero what these pinned files hold from `point` to `end`, and sync them; how many bytes. Blocks.

    Raises:  OSError.
    """
    zeroed = 0
    for segment in segments:
        assert segment.end > point, (segment, point)
        begin = max(0, point - segment.base)
        assert begin <= min(segment.size, end - segment.base), (segment, point, end)
        zeroed += zero_stale(segment, begin, min(segment.size, end - segment.base))
        segment.file.sync()
    return zeroed


async def finish_cut(mark: CutMark, pending: PendingCut, log_: CommitLog) -> None:
    """At the start: do again, on files that nobody uses yet, what a former life may have begun. The tail was
    copied before the mark.

    Raises:  Corrupt for a point outside the log, with nothing changed; OSError.
    """
    assert not log_.end, "the log is not open yet"
    last = log_.log.last
    if last is not None and not log_.begin <= pending.point <= last.end:
        raise mark.damage(f"names byte {pending.point}, and the files have {log_.begin} to {last.end}")
    segments = [segment for segment in log_.log.segments if segment.end > pending.point]
    end = segments[-1].end if segments else 0
    for segment in segments:
        segment.pin()
    try:
        zeroed = await log_.disk.offload(zero_behind, segments, pending.point, end)
    finally:
        for segment in segments:
            segment.unpin()
    log_.log.truncate(pending.point, zero_bytes_max=0)
    facts = {"log_offset": pending.point, "reason": pending.reason, "zeroed_bytes": zeroed}
    log.warning(events.LOG_TAIL_CUT, extra=facts)


@dataclass(frozen=True, slots=True)
class KeptTail:
    """A file that `keep_tail` made. `begin` and `end`: the offsets in the log of what was cut; the file may
    hold less of it.
    """

    path: Path
    epoch: int
    begin: int
    end: int
    size_bytes: int


def list_kept(directory: Path, disk: Disk) -> list[KeptTail]:
    """The files of a store's `divergent` directory, oldest first; names that are not ours are passed over."""
    found = []
    for name in disk.list(directory):
        words = name.split("-")
        if len(words) == 3 and all(word.isdecimal() for word in words):
            epoch, begin, end = map(int, words)
            path = directory / name
            found.append(KeptTail(path, epoch, begin, end, disk.size(path)))
    return sorted(found, key=lambda one: (one.epoch, one.begin, one.end))


def read_kept(tail: KeptTail, disk: Disk) -> Iterator[Record]:
    """The messages of the file in the order of the log; damage ends it, as does a copy that is short.

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
