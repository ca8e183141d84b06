"""Reads thousands of messages of a queue at once, for peers that request it.

RocketMQ limits every pull to 32 messages or 256 KiB; a bulk reader asks for more through an extension field
of ours. Queue entries are processed as numpy columns, so the cost is microseconds per slice of the log, not
per message. Queues that alternate in the log yield one slice per message, so slices are bounded, too.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.record_scan import Ints
from tandemmq.store.commit_log import CommitLog
from tandemmq.store.consume_queue import ENTRY, FILLER_SIZE, ConsumeQueue
from tandemmq.store.options import QUEUE_UNIT_BYTES
from tandemmq.store.outcomes import Packed, RecordFilter
from tandemmq.units import MIB

BULK_COUNT_MAX = 32_768
BULK_BYTES_MAX = 8 * MIB
BULK_COLD_BYTES_MAX = MIB
"""The most bytes that are probably on disk only: the loop waits for the disk while they are sent."""
BULK_SLICES_MAX = 1024
assert BULK_SLICES_MAX <= BULK_COUNT_MAX
assert BULK_COLD_BYTES_MAX <= BULK_BYTES_MAX


class WrongEntry(NamedTuple):
    """An entry that does not name its record; `is_record`: it names a record of another queue offset."""

    queue_offset: int
    is_record: bool


@dataclass(slots=True)
class Batch:
    """The records that a read has collected: `count` records in `ranges` of the log.

    A range is [begin, end, queue offset of its first record, begin of its last one, queue offset of that].
    `sizes`: of a bulk read, the size of each record, four bytes, big-endian.
    """

    next_offset: int
    ranges: list[list[int]] = field(default_factory=list)
    count: int = 0
    bytes: int = 0
    last_log_offset: int = 0
    was_removing: bool = False
    rejected_bytes: int = 0
    sizes: Packed = b""
    wrong: WrongEntry | None = None


class ReadRequest(NamedTuple):
    """One read of a queue, from queue offset `offset` on.

    `limit`: records that begin there or later in the log are hidden; None: none is. `waits`: the read ends
    before an entry that is being repaired, else it skips the entry.
    """

    queue: ConsumeQueue
    offset: int
    count_max: int
    bytes_max: int
    tag_hashes: frozenset[int] | None = None
    record_filter: RecordFilter | None = None
    limit: int | None = None
    waits: bool = True


def collect_bulk(
    request: ReadRequest,
    log: CommitLog,
    *,
    near: int,
    until: int,
    lost: Set[int],
    on_wrong_entry: Callable[[ConsumeQueue, int], bool],
) -> Batch | None:
    """Collects records below queue offset `until`; None without entries.

    `near`: the log offset where warm data begins. `lost`: entries to skip. `on_wrong_entry`: as in `Reader`.
    """
    queue, offset = request.queue, request.offset
    assert queue.min_offset <= offset <= queue.max_offset, (queue, offset)
    entries = _read_entries(queue, offset, min(request.count_max, until - offset, BULK_COUNT_MAX))
    if request.limit is not None and queue.end_log_offset > request.limit:
        is_hidden = entries["log_offset"] >= request.limit  # a filler names offset 0
        entries = entries[: int(is_hidden.argmax()) if is_hidden.any() else len(entries)]
    is_doubtful = _doubtful(entries, log.end)
    for row in np.flatnonzero(is_doubtful).tolist():
        if on_wrong_entry(queue, offset + row):
            entries, is_doubtful = entries[:row], is_doubtful[:row]
            break
    if not len(entries):
        return None
    begins = entries["log_offset"].astype(np.int64)
    sizes = entries["size"].astype(np.int64)
    ends = begins + sizes
    is_kept = (sizes != FILLER_SIZE) & (begins >= log.begin) & ~is_doubtful
    if request.tag_hashes is not None:
        wanted = np.array(sorted(request.tag_hashes), dtype=np.int32)
        is_kept &= np.isin(entries["tag_hash"].astype(np.int32), wanted)
    for queue_offset in lost:
        if queue_offset - offset < len(entries):
            is_kept[queue_offset - offset] = False
    for damaged in log.damaged:
        is_kept &= (begins >= damaged.end) | (ends <= damaged.begin)
    rows = np.flatnonzero(is_kept)
    if len(rows):
        bytes_max = min(request.bytes_max, BULK_BYTES_MAX if begins[rows[0]] >= near else BULK_COLD_BYTES_MAX)
        rows = rows[: _fitting(begins[rows], sizes[rows], bytes_max, log.segment_bytes)]
    # If rows are left out, the next answer begins after the last included one.
    is_cut = len(rows) < int(is_kept.sum())
    reached = int(rows[-1]) + 1 if is_cut else len(entries)
    assert 0 < reached <= len(entries), (reached, len(entries))
    ranges = _join(begins[rows], sizes[rows], rows + offset, log.segment_bytes)
    assert len(ranges) <= min(len(rows), BULK_SLICES_MAX), (len(ranges), len(rows))
    return Batch(
        offset + reached,
        ranges,
        len(rows),
        int(sizes[rows].sum()),
        int(begins[reached - 1]),
        was_removing=request.tag_hashes is None and not len(rows),
        sizes=sizes[rows].astype(">i4").tobytes(),
    )


def _doubtful(entries: NDArray[np.void], log_end: int) -> NDArray[np.bool_]:
    """Returns a mask of the entries that name bytes outside any log that ends at `log_end`."""
    begins = entries["log_offset"].astype(np.int64)
    sizes = entries["size"].astype(np.int64)
    ends = begins + sizes
    is_outside = (begins < 0) | (ends <= begins) | (ends > log_end)
    is_doubtful: NDArray[np.bool_] = is_outside & (sizes != FILLER_SIZE)
    return is_doubtful


def _read_entries(queue: ConsumeQueue, offset: int, count: int) -> NDArray[np.void]:
    """Reads entries from the files and from memory, of one queue file at most."""
    end = min(offset + count, queue.file_end(offset), queue.max_offset)
    pieces = []
    while offset < end:
        raw = queue.entries(offset, end - offset)
        if not raw:
            break
        pieces.append(raw)
        offset += len(raw) // QUEUE_UNIT_BYTES
    return np.frombuffer(b"".join(pieces), dtype=ENTRY)


def _starts(begins: Ints, sizes: Ints, segment_bytes: int) -> NDArray[np.bool_]:
    """Returns a mask of records that begin a slice: not adjacent to the previous one, or first in a file."""
    assert len(begins) == len(sizes)
    is_start = np.ones(len(begins), dtype=np.bool_)
    is_start[1:] = (begins[1:] != begins[:-1] + sizes[:-1]) | (begins[1:] % segment_bytes == 0)
    return is_start


def _fitting(begins: Ints, sizes: Ints, bytes_max: int, segment_bytes: int) -> int:
    """Returns how many records fit; at least one."""
    by_bytes = int(np.searchsorted(np.cumsum(sizes), bytes_max, side="right"))
    slices = np.cumsum(_starts(begins, sizes, segment_bytes))
    by_slices = int(np.searchsorted(slices, BULK_SLICES_MAX, side="right"))
    count = max(1, min(by_bytes, by_slices))
    assert count <= len(begins), (count, len(begins))
    return count


def _join(begins: Ints, sizes: Ints, offsets: Ints, segment_bytes: int) -> list[list[int]]:
    firsts = np.flatnonzero(_starts(begins, sizes, segment_bytes))
    lasts = np.append(firsts[1:], len(begins)) - 1
    if not len(begins):
        return []
    ends = begins[lasts] + sizes[lasts]
    columns = begins[firsts], ends, offsets[firsts], begins[lasts], offsets[lasts]
    return np.stack(columns, axis=1).tolist()  # type: ignore[no-any-return]  # of five numbers each
