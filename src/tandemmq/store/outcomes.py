"""The results of the store: values that callers branch on, never exceptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec


class PutStatus(Enum):
    """The outcome of an accepted append; refusals before staging are raised instead (spec store 4)."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    """The write failed (disk full, I/O error) and was undone: nothing of it is stored."""
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    """The store stopped, or could not undo a failed write: the message may or may not survive."""


NOT_STORED = (PutStatus.SERVICE_NOT_AVAILABLE, PutStatus.UNKNOWN_ERROR)
"""The outcomes with which the message is not stored, or its fate is unknown."""


class QueueBounds(NamedTuple):
    """The offsets of one queue: `min_offset <= max_offset <= next_offset`.

    `min_offset`: the first kept record. `max_offset`: after the last dispatched record. `next_offset`: that
    of the next record. `run_start`: the queue's end at the last `begin_run`.
    """

    min_offset: int = 0
    max_offset: int = 0
    next_offset: int = 0
    run_start: int = 0


NO_BOUNDS = QueueBounds()
"""The offsets of a queue without messages."""


class Appended(msgspec.Struct, gc=False, frozen=True):
    """The position of an append; final only once its callback reports success.

    Units:   queue_offset of the first record; log_offsets one per record; end_offset is exclusive.
    """

    queue_offset: int
    log_offsets: Sequence[int]
    end_offset: int
    stored_at_ms: int


class GetStatus(Enum):
    """The outcome of a queue read; the names are RocketMQ's and travel as remarks (spec store 13.1)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


Packed = bytes
"""Many numbers in one byte string."""


class GetResult(msgspec.Struct, frozen=True):
    """The result of a read: whole records as slices of the mapped log, oldest first.

    Shape:   slices hold `count` records of together `bytes` bytes; neighbours in the log share a slice.
    Units:   next_offset, min_offset, max_offset in messages; lag_bytes: last record seen to the log's end.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    slices: Sequence[memoryview] = ()
    count: int = 0
    bytes: int = 0
    suggest_slave: bool = False
    lag_bytes: int = 0
    sizes: Packed = b""
    """The sizes of the records of a bulk read, four bytes each, big-endian."""
    rejected_bytes: int = 0
    """The size of the records that a `RecordFilter` examined and rejected."""


class RecordFilter(NamedTuple):
    """A filter on the properties of records, called for at most `count_max` of them per read.

    Records whose TAGS match none of `tag_hashes` are skipped without a call; None: any record may match.
    `select`: `matches` for many records at once, with the properties `view[begin:end]` for each pair of the
    two lists.
    """

    matches: Callable[[bytes], bool]
    count_max: int
    tag_hashes: frozenset[int] | None = None
    select: Callable[[memoryview, Sequence[int], Sequence[int]], Sequence[bool]] | None = None
