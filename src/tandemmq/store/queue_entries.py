"""The entry of a ConsumeQueue: 20 bytes that say where a record lies; and how far a file of them can be true.

Shape:      ENTRY, as they lie on disk; a filler stands for an offset that no record has.
Knows not:  queues; which file it looks at.
Source:     spec store 5, 12.
"""

from __future__ import annotations

from struct import Struct

import numpy as np
from numpy.typing import NDArray

from tandemmq.store.options import QUEUE_UNIT_BYTES
from tandemmq.store.segment import Segment

UNIT = Struct(">qiq")  # log_offset, size, tag_hash
FILLER_SIZE = 0x7FFFFFFF
FILLER = UNIT.pack(0, FILLER_SIZE, 0)
ENTRY = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tag_hash", ">i8")])

SCAN_UNITS = 4096
"""So many entries are looked at together."""
TORN_UNITS_MAX = 64
"""A write that was cut short tears its last entry, a sector the one across its border."""

Ints = NDArray[np.int64]


def pack_entries(log_offsets: Ints, sizes: Ints, tag_hashes: Ints) -> bytes:
    """Entries as they lie on disk, one per item."""
    units = np.empty(len(log_offsets), dtype=ENTRY)
    units["log_offset"], units["size"], units["tag_hash"] = log_offsets, sizes, tag_hashes
    return units.tobytes()


def units_below(segment: Segment, log_offset: int) -> int:
    """How many entries of a file, from its start without a gap, are well-formed and of records below."""
    first, size, _ = UNIT.unpack(segment.file.pread(0, QUEUE_UNIT_BYTES))
    if size <= 0 or (first >= log_offset and size != FILLER_SIZE):
        return 0
    units = np.frombuffer(segment.file.pread(0, segment.size), dtype=ENTRY)
    offsets = units["log_offset"].astype(np.int64)
    is_filler = units["size"] == FILLER_SIZE
    # A torn offset above 4 GiB can look like a small one, but then it is not above those before it.
    is_falling = offsets < np.maximum.accumulate(offsets)
    is_bad = (offsets < 0) | (units["size"] <= 0) | ((offsets >= log_offset) | is_falling) & ~is_filler
    return int(is_bad.argmax()) if is_bad.any() else len(units)


def torn_units(segment: Segment, count: int) -> int:
    """How many of the last of `count` entries are torn: they name records before those of earlier entries."""
    begin = max(0, count - TORN_UNITS_MAX)
    raw = segment.file.pread(begin * QUEUE_UNIT_BYTES, (count - begin) * QUEUE_UNIT_BYTES)
    units = np.frombuffer(raw, dtype=ENTRY)
    offsets = np.where(units["size"] == FILLER_SIZE, -1, units["log_offset"].astype(np.int64))
    is_sound = (offsets < 0) | (offsets >= np.maximum.accumulate(offsets))
    return int(is_sound[::-1].argmax()) if len(units) else 0


def valid_units(segment: Segment) -> tuple[int, tuple[int, int, int] | None]:
    """How many entries of a file are well-formed, from its start without a gap; and the last of them."""
    count = 0
    last = None
    for at in range(0, segment.size, SCAN_UNITS * QUEUE_UNIT_BYTES):
        raw = segment.file.pread(at, SCAN_UNITS * QUEUE_UNIT_BYTES)
        units = np.frombuffer(raw, dtype=ENTRY)
        is_bad = (units["log_offset"] < 0) | (units["size"] <= 0)
        good = int(is_bad.argmax()) if is_bad.any() else len(units)
        count += good
        if good:
            last = UNIT.unpack_from(raw, (good - 1) * QUEUE_UNIT_BYTES)
        if good < len(units):
            break
    return count, last
