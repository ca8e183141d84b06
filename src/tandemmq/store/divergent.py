"""What was cut of a log at a switch and kept aside: read for an operator, one message after the other.

Source: spec controller 4.6; the files are made by `truncation.keep_tail`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tandemmq.errors import StoreError
from tandemmq.protocol.record import Record, RecordError, RecordOutcome, check_record, decode_record
from tandemmq.runtime.ports import Disk


@dataclass(frozen=True, slots=True)
class KeptTail:
    """One file. `begin` and `end`: the offsets in the log of what was cut; the file may hold less of it."""

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
