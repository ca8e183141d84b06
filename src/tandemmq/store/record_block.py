"""Intact records that follow each other, in columns: what recovery and a slave's dispatch read at once.

Invariants: a record is in a block only if `check_record` finds it OK, and the block says of it what
            `check_record` says; where one is not, the block ends, and whoever wants the reason looks there.
Strategy:   everything that is asked of all records is done in numpy; properties are read when first asked
            for, because most of what a restart reads is in every table already.
Knows not:  tables.
Source:     spec store 3, 3.3, 5, 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.delay_levels import DELAY_LEVELS_MS, delivered_at_ms
from tandemmq.protocol.record_scan import RecordColumns, read_columns, scan_boundaries, verify_bodies
from tandemmq.store.consume_queues import QueueKey
from tandemmq.store.property_hashes import PropertyHashes
from tandemmq.store.property_scan import PropertyScan
from tandemmq.store.stable_order import stable_order
from tandemmq.store.topic_numbers import UNREADABLE, TopicNumbers

Ints = NDArray[np.int64]

LEVEL_DIGITS_MAX = 9
_UNQUEUED = 0x4  # prepared and rolled back transactions, which get no queue entry (spec store 5)
_ROLLBACK = 0xC  # rolled back ones, which get no key either (spec store 8)


class RecordBlock:
    """Records of `columns`; `topic` holds the place of each one's name in `names`."""

    def __init__(self, view: memoryview, columns: RecordColumns, topic: Ints, names: Sequence[str]) -> None:
        self.columns = columns
        self._view = view
        self._topic = topic
        self._names = names

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def end(self) -> int:
        """Behind the last record, in bytes of the view; 0 without records."""
        return self.columns.end

    @cached_property
    def ends(self) -> Ints:
        """Where each record ends in the log."""
        result: Ints = self.columns.log_offset + self.columns.size
        return result

    @cached_property
    def properties(self) -> PropertyScan:
        """The properties of all records."""
        return PropertyScan(self._view, self.columns)

    @cached_property
    def hashes(self) -> PropertyHashes:
        """The hashes of the properties of all records."""
        return PropertyHashes(self._view, self.columns)

    @cached_property
    def tag_hash(self) -> Ints:
        """The hash of each record's tags."""
        return self.hashes.tag_hashes()

    def head(self, count: int) -> RecordBlock:
        """The first `count` records."""
        if count == len(self):
            return self
        return RecordBlock(self._view, self.columns.head(count), self._topic[:count], self._names)

    def queues(self, begin: int, end: int) -> list[tuple[QueueKey, Ints]]:
        """The queues of records `begin` to `end`, by their first record, and the rows with an entry there."""
        columns = self.columns
        rows = begin + np.flatnonzero(columns.sys_flag[begin:end] & _UNQUEUED == 0)
        if not len(rows):
            return []
        place = self._topic[rows] << 32 | columns.queue_id[rows] & 0xFFFFFFFF
        order = stable_order(place)
        place, rows = place[order], rows[order]
        starts = [0, *((place[1:] != place[:-1]).nonzero()[0] + 1).tolist(), len(rows)]
        firsts = rows[starts[:-1]]
        topics, queue_ids = self._topic[firsts].tolist(), columns.queue_id[firsts].tolist()
        return [
            ((self._names[topics[index]], queue_ids[index]), rows[starts[index] : starts[index + 1]])
            for index in firsts.argsort().tolist()
        ]

    def due_times(self, rows: Ints, delays_ms: Sequence[int] = DELAY_LEVELS_MS) -> Ints:
        """When messages are due, which entries of the schedule topic have as tag (spec store 5)."""
        result = self.tag_hash[rows]
        place = {row: index for index, row in enumerate(rows.tolist())}
        levels = self.properties.find(b"DELAY")
        for row, level in zip(levels.row.tolist(), self.properties.texts(levels), strict=True):
            if row in place and level.isdigit() and len(level) <= LEVEL_DIGITS_MAX and int(level) > 0:
                stored_at_ms = int(self.columns.stored_at_ms[row])
                result[place[row]] = delivered_at_ms(int(level), stored_at_ms, delays_ms)
        return result

    def keys(self, begin: int, end: int) -> tuple[Ints, Ints]:
        """The hash of every key of records `begin` to `end` in the order of an index, and its row."""
        is_keyed = self.columns.sys_flag & _ROLLBACK != _ROLLBACK
        is_keyed[:begin] = False
        is_keyed[end:] = False
        return self.hashes.key_hashes(self._names, self._topic, is_keyed)


def read_block(
    view: memoryview, begin: int = 0, *, log_offset: int, check_crc: bool, count_max: int | None = None
) -> RecordBlock:
    """The intact records from byte `begin` of `view` on, up to the first bytes that are none.

    Units:   `log_offset` is where byte 0 of the view lies in the log.
    """
    boundaries = scan_boundaries(view, begin, count_max=count_max)
    columns = read_columns(view, boundaries, log_offset=log_offset)
    return block_of(view, columns.head(columns.valid_count), check_crc=check_crc)


def block_of(view: memoryview, columns: RecordColumns, *, check_crc: bool) -> RecordBlock:
    """The records of `columns`, all valid, up to the first whose topic or checksum is wrong."""
    topics = TopicNumbers()
    topic = topics.read(view, columns)
    is_good = topic != UNREADABLE
    if check_crc:
        is_good &= verify_bodies(view, columns)
    count = len(columns) if is_good.all() else int(is_good.argmin())
    return RecordBlock(view, columns.head(count), topic[:count], topics.names)
