"""Derives values from record columns, for many records at once: property values and their Java hashes
(`PropertyScan`), topic numbers (`TopicNumbers`), selected rows (`take_rows`).

Source:  spec store 3 (properties string), 5 (tagsCode), 8 (keyHash).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.hashes import TAG_KEY_HEAD, java_hash
from tandemmq.protocol.properties import PROPERTIES_BYTES_MAX
from tandemmq.protocol.record_scan import Bools, Ints, RecordColumns, gather_texts
from tandemmq.protocol.sys_flag import TRANSACTION_ROLLBACK
from tandemmq.protocol.topic_names import delivered_at_ms
from tandemmq.store.key_index import fold_hashes

_PAD = bytes(8)
"""A prefix of the joined properties, so that eight bytes precede the end of any name."""
assert len(_PAD) == np.dtype(">u8").itemsize, "names are compared as one number"
SIZE_COUNT_MAX = 8
"""The number of distinct lengths up to which texts are hashed as tables per length; more are hashed byte by
byte.
"""
_PAIR_END, _NAME_END, _SPACE, ASCII_MAX = 2, 1, 32, 127
POWERS = np.cumprod(np.full(PROPERTIES_BYTES_MAX + 1, 31, dtype=np.uint32), dtype=np.uint32)
POWERS = np.concatenate((np.ones(1, dtype=np.uint32), POWERS))


@dataclass(frozen=True, slots=True)
class Values:
    """Texts by record: bytes `[begin, end)` of the joined properties, ascending, at most one per position."""

    row: Ints
    begin: Ints
    end: Ints


class PropertyScan:
    """The properties of the records of one run; all must be valid.

    Invariants: returns the same values as `find_property`: the last of several non-empty ones.
    Strategy:   the properties are joined, and names are found in arrays by their separators. Hashes are sums
                of bytes times powers of 31; only values that are not ASCII are decoded one by one.
    """

    def __init__(self, view: memoryview, columns: RecordColumns) -> None:
        starts = columns.properties_position
        ends = (starts + columns.properties_size).tolist()
        self._raw = _PAD + b"".join(map(view.__getitem__, map(slice, starts.tolist(), ends)))
        self._data = np.frombuffer(self._raw, dtype=np.uint8)
        self._starts = np.full(len(columns) + 1, len(_PAD))
        self._starts[1:] += columns.properties_size.cumsum()
        assert self._starts[-1] == len(self._raw), "properties of valid records lie in the view"
        self._marks = (self._data == _NAME_END).nonzero()[0]
        self._ends = np.append((self._data == _PAIR_END).nonzero()[0], len(self._data))
        words: NDArray[np.uint64] = np.ndarray((len(self._raw) - 7,), ">u8", buffer=self._raw, strides=(1,))
        self._words = words[self._marks - 8]  # the ends of all names

    def find(self, name: bytes) -> Values:
        """Returns the value of property `name` in each record that has one."""
        assert len(name) <= len(_PAD), name
        data, word = self._data, int.from_bytes(name, "big")
        at = self._marks[self._words & ((1 << 8 * len(name)) - 1) == word]
        if not len(at):
            return Values(at, at, at)
        row = self._starts.searchsorted(at, side="right") - 1
        name_at = at - len(name)
        is_first = name_at == self._starts[row]
        is_whole = is_first | ((name_at > self._starts[row]) & (data[name_at - 1] == _PAIR_END))
        at, row = at[is_whole], row[is_whole]
        begin = at + 1
        end = np.minimum(self._ends[self._ends.searchsorted(begin)], self._starts[row + 1])
        is_last = end > begin
        row, begin, end = row[is_last], begin[is_last], end[is_last]
        if (row[1:] == row[:-1]).any():
            is_last = np.append(row[1:] != row[:-1], True)
            row, begin, end = row[is_last], begin[is_last], end[is_last]
        assert len(row) < len(self._starts), "a record has one value at most"
        return Values(row, begin, end)

    def pieces(self, values: Values) -> Values:
        """Returns the values split at single spaces, without empty pieces."""
        spaces = np.flatnonzero(self._data == _SPACE) if len(values.row) else values.row
        owner = np.searchsorted(values.begin, spaces, side="right") - 1
        is_inside = owner >= 0
        is_inside[is_inside] = spaces[is_inside] < values.end[owner[is_inside]]
        spaces, owner = spaces[is_inside], owner[is_inside]
        if not len(spaces):
            return values
        begin = np.sort(np.concatenate((values.begin, spaces + 1)))
        end = np.sort(np.concatenate((values.end, spaces)))
        row = np.sort(np.concatenate((values.row, values.row[owner])))
        assert len(row) == len(begin) == len(end), "each space ends one piece and begins another"
        kept = end > begin
        return Values(row[kept], begin[kept], end[kept])

    def hashes(self, values: Values, prefixes: Sequence[str] = ("",), prefix: Ints | None = None) -> Ints:
        """Returns the Java hash of each value, signed; with `prefix`, the value is prefixed with
        `prefixes[prefix[i]]`.
        """
        count = len(values.row)
        if not count:
            return np.zeros(0, dtype=np.int64)
        assert prefix is None or len(prefix) == count, (len(prefix), count)
        lengths = values.end - values.begin
        sums, is_wide = self._sums(values.begin, lengths)
        if prefix is not None:
            heads = np.array([java_hash(text) & 0xFFFFFFFF for text in prefixes], dtype=np.uint32)
            sums = sums + heads[prefix] * POWERS[lengths]
        result: Ints = sums.view(np.int32).astype(np.int64)
        for index in np.flatnonzero(is_wide).tolist():
            raw = self._raw[int(values.begin[index]) : int(values.end[index])]
            head = "" if prefix is None else prefixes[int(prefix[index])]
            result[index] = java_hash(head + str(raw, "utf-8", "replace"))
        return result

    def _sums(self, begin: Ints, lengths: Ints) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Returns the hash of each text as ASCII, and a mask of the texts that are not ASCII."""
        sizes = np.flatnonzero(np.bincount(lengths)).tolist()
        assert sizes[0] > 0, "an empty text takes the sum of its neighbour"
        if len(sizes) > SIZE_COUNT_MAX:
            return self._sums_of_any(begin, lengths)
        sums = np.empty(len(begin), dtype=np.uint32)
        is_wide = np.empty(len(begin), dtype=np.bool_)
        for size in sizes:
            rows = lengths == size
            texts = gather_texts(self._raw, begin[rows], size)
            sums[rows] = hash_texts(texts)
            is_wide[rows] = texts.max(axis=1) > ASCII_MAX
        return sums, is_wide

    def _sums_of_any(self, begin: Ints, lengths: Ints) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """Like `_sums`, for texts of many lengths."""
        total = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(lengths)))
        within = np.arange(total[-1]) - np.repeat(total[:-1], lengths)
        units = self._data[np.repeat(begin, lengths) + within]
        weights = POWERS[np.repeat(lengths - 1, lengths) - within]
        sums = np.add.reduceat(units * weights, total[:-1], dtype=np.uint32)
        return sums, np.logical_or.reduceat(units > ASCII_MAX, total[:-1])

    def texts(self, values: Values) -> list[bytes]:
        """Returns the values one by one."""
        raw = self._raw
        return [raw[a:b] for a, b in zip(values.begin.tolist(), values.end.tolist(), strict=True)]

    def tag_hashes(self) -> Ints:
        """Returns the hash of TAGS of every record, 0 without tags."""
        values = self.find(b"TAGS")
        result = np.zeros(len(self._starts) - 1, dtype=np.int64)
        result[values.row] = self.hashes(values)
        return result

    def key_hashes(
        self, topics: Sequence[str], topic: Ints, is_keyed: NDArray[np.bool_]
    ) -> tuple[Ints, Ints]:
        """Returns the hash of every key in index order, and the row of its record.

        `topics[topic[row]]` is the record's topic; records that are not `is_keyed` are left out.
        """
        heads = [name + "#" for name in topics]
        kinds = ((self.find(b"UNIQ_KEY"), heads), (self.pieces(self.find(b"KEYS")), heads))
        return self._index_hashes(kinds, topic, is_keyed)

    def tag_key_hashes(
        self, topics: Sequence[str], topic: Ints, is_keyed: NDArray[np.bool_]
    ) -> tuple[Ints, Ints]:
        """Returns the hash of the tags as RocketMQ 5.4 and later index them; otherwise like `key_hashes`."""
        heads = [f"{name}#{TAG_KEY_HEAD}" for name in topics]
        return self._index_hashes(((self.find(b"TAGS"), heads),), topic, is_keyed)

    def _index_hashes(
        self, kinds: Iterable[tuple[Values, list[str]]], topic: Ints, is_keyed: NDArray[np.bool_]
    ) -> tuple[Ints, Ints]:
        assert len(topic) == len(is_keyed) == len(self._starts) - 1, (len(topic), len(is_keyed))
        rows, hashes = [], []
        for values, prefixes in kinds:
            kept = is_keyed[values.row]
            values = Values(values.row[kept], values.begin[kept], values.end[kept])
            rows.append(values.row)
            hashes.append(self.hashes(values, prefixes, topic[values.row]))
        row = np.concatenate(rows)
        order = np.argsort(row, kind="stable")  # the unique key of a record comes first
        return fold_hashes(np.concatenate(hashes)[order].astype(np.int32)), row[order]


def hash_texts(texts: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Returns the Java hash of each row, if it is ASCII.

    Shape:   (n, size) -> (n,); `size` is at least 1.
    """
    assert texts.shape[1] > 0, texts.shape
    sums: NDArray[np.uint32] = texts.astype(np.uint32) @ POWERS[: texts.shape[1]][::-1]
    return sums


COMPARED_MAX = 16
UNREADABLE = -1
_OPEN = -2


class TopicNumbers:
    """The topics seen so far: `names[number]`.

    Strategy: a few topics repeat, so the topics of all records are compared with one known topic after the
              other; with many topics a dictionary lookup per record is faster.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._raw: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def read(self, view: memoryview, columns: RecordColumns) -> NDArray[np.int64]:
        """Returns the number of each record's topic; UNREADABLE if it is not UTF-8. All records must be
        valid.
        """
        result = np.full(len(columns), _OPEN, dtype=np.int64)
        rest = np.arange(len(columns))
        known = 0
        while len(rest) and known < COMPARED_MAX:
            if known == len(self._raw):
                row = int(rest[0])
                start = int(columns.topic_position[row])
                self._number(bytes(view[start : start + int(columns.topic_size[row])]))
                if known == len(self._raw):  # unreadable: nothing to compare the others with
                    break
            raw = self._raw[known]
            same_size = (columns.topic_size == len(raw)).nonzero()[0]
            # Texts of one size are equal byte by byte; numpy compares them at once.
            texts = gather_texts(view, columns.topic_position[same_size], len(raw)).view(f"S{len(raw)}")
            result[same_size[(texts == raw).ravel()]] = known
            rest = (result == _OPEN).nonzero()[0]
            known += 1
        starts = columns.topic_position[rest].tolist()
        sizes = columns.topic_size[rest].tolist()
        for row, start, size in zip(rest.tolist(), starts, sizes, strict=True):
            result[row] = self._number(bytes(view[start : start + size]))
        assert not (result == _OPEN).any(), "each record has a number"
        return result

    def _number(self, raw: bytes) -> int:
        number = self._numbers.get(raw)
        if number is None:
            try:
                name = raw.decode()
            except UnicodeDecodeError:
                return UNREADABLE
            number = self._numbers[raw] = len(self.names)
            self.names.append(name)
            self._raw.append(raw)
            assert len(self.names) == len(self._raw) == len(self._numbers)
        return number


_NAMES = tuple(field.name for field in fields(RecordColumns))


def take_rows(columns: RecordColumns, rows: slice | NDArray[np.int64]) -> RecordColumns:
    """Returns the records at `rows`."""
    return RecordColumns(**{name: getattr(columns, name)[rows] for name in _NAMES})


LEVEL_DIGITS_MAX = 9
assert 10**LEVEL_DIGITS_MAX <= 2**31, "a level is a number of four bytes"


def due_at(level: bytes, stored_at_ms: int, delays_ms: Sequence[int]) -> int | None:
    """Returns the due time of a message with the delay `level`; None if the bytes are not a level."""
    if not level.isdigit() or len(level) > LEVEL_DIGITS_MAX or int(level) == 0:
        return None
    return delivered_at_ms(int(level), stored_at_ms, delays_ms)


def due_times(
    tags: Ints, rows: Ints, columns: RecordColumns, properties: PropertyScan, delays_ms: Sequence[int]
) -> Ints:
    """Returns the tags of these rows as entries of the schedule topic hold them: a delayed message's entry
    has its due time instead (spec store 5).
    """
    result = tags.copy()
    place = {row: index for index, row in enumerate(rows.tolist())}
    assert len(place) == len(rows) == len(tags), "each record is due once"
    levels = properties.find(b"DELAY")
    for row, level in zip(levels.row.tolist(), properties.texts(levels), strict=True):
        if row in place:
            at_ms = due_at(level, int(columns.stored_at_ms[row]), delays_ms)
            result[place[row]] = result[place[row]] if at_ms is None else at_ms
    return result


def has_keys(columns: RecordColumns) -> Bools:
    """Returns a mask of the records whose keys are indexed."""
    result: Bools = columns.sys_flag & TRANSACTION_ROLLBACK != TRANSACTION_ROLLBACK
    return result
