"""The hashes that ConsumeQueue entries and key index need of many records' properties.

Invariants: what `PropertyScan` says of the same records.
Strategy:   the records of one producer nearly always have the same properties in the same order and sizes,
            and differ in the values. They are read as a table of bytes whose columns are known from its first
            row; rows that do not fit, or with values that take more than a sum, are left to `PropertyScan`.
Source:     spec store 3 (properties string), 5 (tagsCode), 8 (keyHash).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.java_hash import java_hash
from tandemmq.protocol.record_scan import RecordColumns, gather_texts
from tandemmq.store.column_rows import take_rows
from tandemmq.store.key_index import fold_hashes
from tandemmq.store.property_scan import ASCII_MAX, POWERS, PropertyScan, hash_texts
from tandemmq.store.stable_order import stable_order

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]

LAYOUT_COUNT_MAX = 8
SIZE_COUNT_MAX = 32
ROW_COUNT_MIN = 16
"""Fewer records, or records of more layouts and sizes, are not worth a table of their own."""
_HASHED = (b"TAGS", b"UNIQ_KEY", b"KEYS")
_SEPARATOR_MAX, _SPACE = 2, 32


class Layout(NamedTuple):
    """Records whose properties differ in values only: a row of `texts` each. `places`: begin and end of the
    hashed values, ASCII and without spaces."""

    rows: Ints
    texts: Bytes
    places: dict[bytes, tuple[int, int]]


class PropertyHashes:
    """Of the records of one run; all must be valid."""

    def __init__(self, view: memoryview, columns: RecordColumns) -> None:
        self._count = len(columns)
        self._layouts, self._rest = _split(view, columns)
        self._scan = PropertyScan(view, take_rows(columns, self._rest)) if len(self._rest) else None

    def tag_hashes(self) -> Ints:
        """The hash of TAGS of every record, 0 without."""
        result = np.zeros(self._count, dtype=np.int64)
        for layout in self._layouts:
            place = layout.places.get(b"TAGS")
            if place is not None:
                result[layout.rows] = hash_texts(layout.texts[:, slice(*place)]).view(np.int32)
        if self._scan is not None:
            result[self._rest] = self._scan.tag_hashes()
        return result

    def key_hashes(self, topics: Sequence[str], topic: Ints, is_keyed: Bools) -> tuple[Ints, Ints]:
        """As `PropertyScan.key_hashes`: by row, of one record the unique key first."""
        heads = np.array([java_hash(name + "#") & 0xFFFFFFFF for name in topics], dtype=np.uint32)
        rows, hashes = [], []
        for name in (b"UNIQ_KEY", b"KEYS"):
            for layout in self._layouts:
                if name in layout.places:
                    begin, end = layout.places[name]
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
    """Tables of records that are alike, and the rows of all others."""
    sizes = columns.properties_size
    all_sizes = np.flatnonzero(np.bincount(sizes)).tolist() if len(sizes) else []
    if len(all_sizes) > SIZE_COUNT_MAX:
        return [], np.arange(len(columns))
    layouts: list[Layout] = []
    rest = []
    for size in all_sizes:
        rows = np.flatnonzero(sizes == size)
        while size and len(rows) >= ROW_COUNT_MIN and len(layouts) < LAYOUT_COUNT_MAX:
            layout, others = _take_alike(gather_texts(view, columns.properties_position[rows], size), rows)
            if not len(layout.rows):
                break
            layouts.append(layout)
            rows = others
        rest.append(rows)
    return layouts, np.sort(np.concatenate(rest)) if rest else np.zeros(0, dtype=np.int64)


def _take_alike(texts: Bytes, rows: Ints) -> tuple[Layout, Ints]:
    """The rows with the layout of the first, and the others; none at all if the first is not simple."""
    first = texts[0]
    low, high, places = _read_layout(first)
    # Unsigned bytes below `low` wrap around, so one comparison tells what lies outside.
    is_odd: Bools = (texts - low) > (high - low)
    if b"KEYS" in places:
        begin, end = places[b"KEYS"]
        is_odd[:, begin:end] |= texts[:, begin:end] == _SPACE
    if not is_odd.any():
        return Layout(rows, texts, places), rows[:0]
    is_other: Bools = np.asarray(is_odd.any(axis=1))
    if is_odd[0].any():
        return Layout(rows[:0], texts[:0], places), rows
    return Layout(rows[~is_other], texts[~is_other], places), rows[is_other]


def _read_layout(first: Bytes) -> tuple[Bytes, Bytes, dict[bytes, tuple[int, int]]]:
    """The least and the greatest byte that each place may have, and where the values are that get hashed."""
    low, high = first.copy(), first.copy()
    places = {}
    begin = 0
    for pair in first.tobytes().split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        end = begin + len(pair)
        value_at = end - len(value)
        low[value_at:end], high[value_at:end] = _SEPARATOR_MAX + 1, 255
        if value and name in _HASHED:
            places[name] = value_at, end
            high[value_at:end] = ASCII_MAX
        begin = end + 1
    return low, high, places
