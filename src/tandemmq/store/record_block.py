"""Parses consecutive valid records into columns, for recovery and for a slave's dispatch; hashes their
properties for queue entries and the key index.

Invariants: a block contains only records that `check_record` finds OK, with the same values that
            `check_record` and `PropertyScan` return. The block ends at the first other bytes; the caller
            checks there for the reason.
Strategy:   numpy reads the fixed fields of all records at once. Properties are read on first use, because
            after a restart most entries are in the tables already. The records of one producer nearly always
            have the same properties in the same order and of the same sizes, with different values. Such
            records are read as a table of bytes whose columns are known from its first row. `PropertyScan`
            reads all other records, and values that need more than a sum.
Knows not:  tables.
Source:     spec store 3 (properties string), 3.3, 5 (tagsCode), 8 (keyHash).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.hashes import java_hash
from tandemmq.protocol.record import NewRecord, RecordCheck
from tandemmq.protocol.record_scan import (
    Bools,
    Ints,
    RecordColumns,
    gather_texts,
    read_columns,
    scan_boundaries,
    verify_bodies,
)
from tandemmq.protocol.sys_flag import TRANSACTION_PREPARED
from tandemmq.protocol.topic_names import DELAY_LEVELS_MS
from tandemmq.store.columns import (
    ASCII_MAX,
    POWERS,
    UNREADABLE,
    PropertyScan,
    TopicNumbers,
    due_times,
    has_keys,
    hash_texts,
    take_rows,
)
from tandemmq.store.consume_queue import ConsumeQueue
from tandemmq.store.consume_queues import QueueKey
from tandemmq.store.key_index import fold_hashes, stable_order

Bytes = NDArray[np.uint8]

LAYOUT_COUNT_MAX = 8
SIZE_COUNT_MAX = 32
ROW_COUNT_MIN = 16
"""The smallest number of records that are read as a table. More than LAYOUT_COUNT_MAX layouts or
SIZE_COUNT_MAX sizes are not worth tables, either.
"""
_HASHED = (b"TAGS", b"UNIQ_KEY", b"KEYS")
_SEPARATOR_MAX, _SPACE = 2, 32
assert _SEPARATOR_MAX < _SPACE < ASCII_MAX, "a layout tells separators from values by their order"


class PlacedBatch(NamedTuple):
    """The fields of a batch's records that tables need; the lists have a value for each record. `queues` is
    empty if all belong to the queue of the unit.
    """

    topic: str
    sys_flag: int
    log_offsets: list[int]
    sizes: list[int]
    tag_hashes: Sequence[int]
    stored_times_ms: Sequence[int]
    unique_keys: Sequence[str]
    keys: Sequence[str]
    queues: Sequence[ConsumeQueue] = ()


Unit: TypeAlias = "tuple[ConsumeQueue | None, int, int, NewRecord | RecordCheck | PlacedBatch, int]"
"""(queue, log_offset, size, record, stored_at_ms): the input for table entries.

A batch is one unit, with the total size of its records; without a queue if they belong to several.
"""


def count_records(units: Sequence[Unit]) -> int:
    """Returns the number of records in these units."""
    count = len(units)
    for unit in units:
        if type(unit[3]) is PlacedBatch:
            count += len(unit[3].log_offsets) - 1
    return count


class Layout(NamedTuple):
    """Records whose properties differ only in values: `texts` has a row for each.

    `value_spans`: begin and end of the hashed values, which are ASCII without spaces.
    """

    rows: Ints
    texts: Bytes
    value_spans: dict[bytes, tuple[int, int]]


class PropertyHashes:
    """The property hashes of the records of one run; all records must be valid."""

    def __init__(self, view: memoryview, columns: RecordColumns) -> None:
        self._count = len(columns)
        self._layouts, self._rest = _split(view, columns)
        self._scan = PropertyScan(view, take_rows(columns, self._rest)) if len(self._rest) else None

    def tag_hashes(self) -> Ints:
        """Returns the hash of TAGS of every record, 0 without tags."""
        result = np.zeros(self._count, dtype=np.int64)
        for layout in self._layouts:
            place = layout.value_spans.get(b"TAGS")
            if place is not None:
                result[layout.rows] = hash_texts(layout.texts[:, slice(*place)]).view(np.int32)
        if self._scan is not None:
            result[self._rest] = self._scan.tag_hashes()
        return result

    def key_hashes(self, topics: Sequence[str], topic: Ints, is_keyed: Bools) -> tuple[Ints, Ints]:
        """Like `PropertyScan.key_hashes`: ordered by row, the unique key of a record first."""
        assert len(topic) == len(is_keyed) == self._count, (len(topic), len(is_keyed), self._count)
        heads = np.array([java_hash(name + "#") & 0xFFFFFFFF for name in topics], dtype=np.uint32)
        rows, hashes = [], []
        for name in (b"UNIQ_KEY", b"KEYS"):
            for layout in self._layouts:
                if name in layout.value_spans:
                    begin, end = layout.value_spans[name]
                    sums = hash_texts(layout.texts[:, begin:end])
                    sums += heads[topic[layout.rows]] * POWERS[end - begin]
                    kept = is_keyed[layout.rows]
                    rows.append(layout.rows[kept])
                    hashes.append(fold_hashes(sums[kept].view(np.int32)))
        if self._scan is not None:
            found, at = self._scan.key_hashes(topics, topic[self._rest], is_keyed[self._rest])
            rows.append(self._rest[at])
            hashes.append(found)
        if not rows:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        if len(rows) == 1:
            return hashes[0], rows[0]
        row = np.concatenate(rows)
        order = stable_order(row)
        return np.concatenate(hashes)[order], row[order]


def _split(view: memoryview, columns: RecordColumns) -> tuple[list[Layout], Ints]:
    """Splits records into tables of the same layout; returns them and the rows of all others."""
    sizes = columns.properties_size
    all_sizes = np.flatnonzero(np.bincount(sizes)).tolist() if len(sizes) else []
    if len(all_sizes) > SIZE_COUNT_MAX:
        return [], np.arange(len(columns))
    layouts: list[Layout] = []
    rest = []
    for size in all_sizes:
        rows = np.flatnonzero(sizes == size)
        while size and len(rows) >= ROW_COUNT_MIN and len(layouts) < LAYOUT_COUNT_MAX:
            layout, others = _split_first_layout(
                gather_texts(view, columns.properties_position[rows], size), rows
            )
            if not len(layout.rows):
                break
            layouts.append(layout)
            rows = others
        rest.append(rows)
    others = np.sort(np.concatenate(rest)) if rest else np.zeros(0, dtype=np.int64)
    assert sum(len(layout.rows) for layout in layouts) + len(others) == len(columns), "each record is in one"
    return layouts, others


def _split_first_layout(texts: Bytes, rows: Ints) -> tuple[Layout, Ints]:
    """Returns the rows with the layout of the first row, and the others; no row if the first one is
    irregular.
    """
    first = texts[0]
    low, high, value_spans = _read_layout(first)
    # Unsigned bytes below `low` wrap around, so one comparison finds everything outside the range.
    is_odd: Bools = (texts - low) > (high - low)
    if b"KEYS" in value_spans:
        begin, end = value_spans[b"KEYS"]
        is_odd[:, begin:end] |= texts[:, begin:end] == _SPACE
    if not is_odd.any():
        return Layout(rows, texts, value_spans), rows[:0]
    is_other: Bools = np.asarray(is_odd.any(axis=1))
    if is_odd[0].any():
        return Layout(rows[:0], texts[:0], value_spans), rows
    return Layout(rows[~is_other], texts[~is_other], value_spans), rows[is_other]


def _read_layout(first: Bytes) -> tuple[Bytes, Bytes, dict[bytes, tuple[int, int]]]:
    """Returns the least and the greatest byte allowed at each position, and the positions of hashed
    values.
    """
    low, high = first.copy(), first.copy()
    value_spans = {}
    begin = 0
    for pair in first.tobytes().split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        end = begin + len(pair)
        value_at = end - len(value)
        low[value_at:end], high[value_at:end] = _SEPARATOR_MAX + 1, 255
        if value and name in _HASHED:
            value_spans[name] = value_at, end
            high[value_at:end] = ASCII_MAX
        begin = end + 1
    assert begin == len(first) + 1, "pairs and separators fill the row"
    return low, high, value_spans


class RecordBlock:
    """The records of `columns`; `topic` holds the index of each record's topic in `names`."""

    def __init__(self, view: memoryview, columns: RecordColumns, topic: Ints, names: Sequence[str]) -> None:
        assert len(columns) == len(topic), (len(columns), len(topic))
        assert columns.end <= len(view), (columns.end, len(view))
        self.columns = columns
        self._view = view
        self._topic = topic
        self._names = names

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def end(self) -> int:
        """The end of the last record, in bytes of the view; 0 without records."""
        return self.columns.end

    @cached_property
    def ends(self) -> Ints:
        """The end offset of each record in the log."""
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
        """Returns the first `count` records."""
        assert 0 <= count <= len(self), (count, len(self))
        if count == len(self):
            return self
        return RecordBlock(self._view, self.columns.head(count), self._topic[:count], self._names)

    def take(self, rows: Ints) -> RecordBlock:
        """Returns the records at `rows`, ascending."""
        return RecordBlock(self._view, take_rows(self.columns, rows), self._topic[rows], self._names)

    def queues(self, begin: int, end: int) -> list[tuple[QueueKey, Ints]]:
        """Returns the queues of records `[begin, end)`, ordered by their first record, with the rows queued
        there.
        """
        assert 0 <= begin <= end <= len(self), (begin, end, len(self))
        columns = self.columns
        rows = begin + np.flatnonzero(columns.sys_flag[begin:end] & TRANSACTION_PREPARED == 0)
        if not len(rows):
            return []
        place = self._topic[rows] << 32 | columns.queue_id[rows] & 0xFFFFFFFF
        order = stable_order(place)
        place, rows = place[order], rows[order]
        starts = [0, *((place[1:] != place[:-1]).nonzero()[0] + 1).tolist(), len(rows)]
        firsts = rows[starts[:-1]]
        topics, queue_ids = self._topic[firsts].tolist(), columns.queue_id[firsts].tolist()
        assert 0 <= min(topics) <= max(topics) < len(self._names), (min(topics), max(topics))
        return [
            ((self._names[topics[index]], queue_ids[index]), rows[starts[index] : starts[index + 1]])
            for index in firsts.argsort().tolist()
        ]

    def due_times(self, rows: Ints, delays_ms: Sequence[int] = DELAY_LEVELS_MS) -> Ints:
        """Returns the due times of messages, stored as the tag in entries of the schedule topic (spec store
        5).
        """
        return due_times(self.tag_hash[rows], rows, self.columns, self.properties, delays_ms)

    def keys(self, begin: int, end: int) -> tuple[Ints, Ints]:
        """Returns the hash of every key of records `[begin, end)`, in index order, and the row of each."""
        assert 0 <= begin <= end <= len(self), (begin, end, len(self))
        is_keyed = has_keys(self.columns)
        is_keyed[:begin] = False
        is_keyed[end:] = False
        return self.hashes.key_hashes(self._names, self._topic, is_keyed)


def read_block(
    view: memoryview, begin: int = 0, *, log_offset: int, check_crc: bool, count_max: int | None = None
) -> RecordBlock:
    """Returns the valid records from byte `begin` of `view` on, up to the first other bytes.

    Units:   `log_offset` is the log offset of byte 0 of the view.
    """
    assert 0 <= begin <= len(view), (begin, len(view))
    boundaries = scan_boundaries(view, begin, count_max=count_max)
    columns = read_columns(view, boundaries, log_offset=log_offset)
    return block_of(view, columns.head(columns.valid_count), check_crc=check_crc)


def block_of(view: memoryview, columns: RecordColumns, *, check_crc: bool) -> RecordBlock:
    """Returns the records of `columns`, all valid, up to the first with a bad topic or checksum."""
    assert columns.valid_count == len(columns), (columns.valid_count, len(columns))
    topics = TopicNumbers()
    topic = topics.read(view, columns)
    is_good = topic != UNREADABLE
    if check_crc:
        is_good &= verify_bodies(view, columns)
    count = len(columns) if is_good.all() else int(is_good.argmin())
    return RecordBlock(view, columns.head(count), topic[:count], topics.names)
