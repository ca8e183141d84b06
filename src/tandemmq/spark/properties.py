"""The properties of many records at once: from their wire form to Arrow maps and single values.

The property blobs of a buffer are consecutive in one Arrow binary array. One pass over these bytes finds the
separators, so no Python object is made per message. The rules are those of
`protocol.properties.decode_properties`: pieces without a name or a value are ignored, the last separator may
be missing, and the later of two equal names wins.

Source: spec remoting 12.4, spec spark 5. Pure: numpy and pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemmq.protocol.record_scan import Ints

_PAIR_END = 2
_NAME_END = 1
_WORD = 8


@dataclass(frozen=True, kw_only=True)
class PropertySpans:
    """The positions of the pairs in `blob`.

    Shape:   `name_at`, `name_end`, `value_end`: (pairs,); a value begins behind its name's separator.
             `first_pair`: (records + 1,): the pairs of record r are `[first_pair[r], first_pair[r + 1])`.
             `head`: (pairs,): the first eight bytes of each name as a number, padded with zeros.
    """

    blob: NDArray[np.uint8]
    name_at: Ints
    name_end: Ints
    value_end: Ints
    first_pair: Ints
    head: NDArray[np.uint64]

    @property
    def record_count(self) -> int:
        return len(self.first_pair) - 1

    @cached_property
    def rows(self) -> Ints:
        """The record number of each pair."""
        return np.repeat(np.arange(self.record_count, dtype=np.int64), np.diff(self.first_pair))

    @cached_property
    def pieces(self) -> Any:
        """The blob divided at both ends of every name and value: name, separator, value, separator, name,
        ...
        """
        bounds = np.empty(4 * len(self.name_at) + 1, dtype=np.int32)
        bounds[0:-1:4] = self.name_at
        bounds[1:-1:4] = self.name_end
        np.add(self.name_end, 1, out=bounds[2:-1:4], casting="unsafe")
        bounds[3:-1:4] = self.value_end
        bounds[-1] = len(self.blob)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.blob)]
        return pa.Array.from_buffers(pa.string(), len(bounds) - 1, buffers)

    @cached_property
    def is_ascii(self) -> bool:
        """True if no value needs `repair_text`."""
        return not len(self.blob) or int(self.blob.max()) < 0x80

    def repair(self, values: Any) -> Any:
        """Applies `repair_text` to values from `blob`."""
        return values if self.is_ascii else repair_text(values)


def scan_properties(properties: Any) -> PropertySpans:
    """Returns the pairs of a binary array of wire forms, one element per record."""
    blob, offsets = _blob_of(properties)
    starts, splits, ends = _find_pairs(blob, offsets)
    is_pair = (splits > starts) & (splits < ends - 1)
    if not is_pair.all():
        starts, splits, ends = starts[is_pair], splits[is_pair], ends[is_pair]
    spans = PropertySpans(
        blob=blob,
        name_at=starts,
        name_end=splits,
        value_end=ends,
        first_pair=_find_first_pairs(starts, offsets),
        head=_read_heads(blob, starts, splits),
    )
    return _drop_overridden(spans)


def _find_pairs(blob: NDArray[np.uint8], offsets: Ints) -> tuple[Ints, Ints, Ints]:
    """Returns the start of each piece, the end of its name (beyond its end if it has none), and its end."""
    marks = np.flatnonzero((blob == _NAME_END) | (blob == _PAIR_END))
    kinds = blob[marks]
    is_regular = (
        len(marks) % 2 == 0
        and bool((kinds[0::2] == _NAME_END).all())
        and bool((kinds[1::2] == _PAIR_END).all())
    )
    ends = marks[1::2] if is_regular else marks[kinds == _PAIR_END]
    with_open = _add_open_ends(blob, offsets, ends)
    if is_regular and with_open is ends:
        # The usual case: name, value, name, value, each followed by its separator.
        starts = np.empty_like(ends)
        starts[:1] = 0
        starts[1:] = ends[:-1] + 1
        return starts, marks[0::2], ends
    ends = with_open
    is_separator = np.zeros(len(ends), dtype=np.int64)
    inside = ends < len(blob)
    is_separator[inside] = blob[ends[inside]] == _PAIR_END
    starts = np.empty_like(ends)
    starts[:1] = 0
    starts[1:] = ends[:-1] + is_separator[:-1]
    return starts, _find_splits(marks[kinds == _NAME_END], starts, ends), ends


def _find_first_pairs(starts: Ints, offsets: Ints) -> Ints:
    """Returns the first pair of each record, and the total at the end."""
    records = len(offsets) - 1
    each = len(starts) // records if records else 0
    if each and each * records == len(starts) and bool((starts[::each] == offsets[:-1]).all()):
        # The usual case: every record begins at a multiple of `each` pairs, so all have the same number.
        return np.arange(0, len(starts) + 1, each, dtype=np.int64)
    return np.searchsorted(starts, offsets).astype(np.int64)


def build_map(spans: PropertySpans) -> Any:
    """Returns one `map<string, string>` per record."""
    offsets, names, values = _split_pairs(spans)
    return pa.MapArray.from_arrays(pa.array(offsets), spans.repair(names), spans.repair(values))


def build_headers(spans: PropertySpans) -> Any:
    """Returns one `list<struct<key: string, value: binary>>` per record, null for a record without pairs."""
    offsets, names, values = _split_pairs(spans)
    pairs = pa.StructArray.from_arrays([spans.repair(names), values.view(pa.binary())], ["key", "value"])
    is_empty = pa.array(offsets[1:] == offsets[:-1])
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, mask=is_empty)


def _split_pairs(spans: PropertySpans) -> tuple[NDArray[np.int32], Any, Any]:
    """Returns the first pair of each record with the total at the end, all names, and all values."""
    count = len(spans.name_at)
    names = spans.pieces.take(pa.array(np.arange(0, 4 * count, 4, dtype=np.int32)))
    values = spans.pieces.take(pa.array(np.arange(2, 4 * count, 4, dtype=np.int32)))
    return spans.first_pair.astype(np.int32), names, values


def pick_values(spans: PropertySpans, name: bytes) -> Any:
    """Returns the value of one property per record, null if absent; `name` has at most 8 bytes."""
    assert 0 < len(name) <= _WORD
    head = np.uint64(int.from_bytes(name.ljust(_WORD, b"\0"), "big"))
    pairs = np.flatnonzero(spans.head == head)
    is_longer = spans.name_end[pairs] - spans.name_at[pairs] != len(name)
    if is_longer.any():
        pairs = pairs[~is_longer]
    if len(pairs) == 0:
        return pa.nulls(spans.record_count, pa.string())
    if len(pairs) == spans.record_count:  # a name is unique within a record, so every record has one
        return spans.repair(spans.pieces.take(pa.array(4 * pairs + 2)))
    rows = spans.rows[pairs]
    index = np.zeros(spans.record_count, dtype=np.int64)
    is_absent = np.ones(spans.record_count, dtype=bool)
    index[rows] = 4 * pairs + 2
    is_absent[rows] = False
    return spans.repair(spans.pieces.take(pa.array(index, mask=is_absent)))


def repair_text(values: Any) -> Any:
    """Returns the strings with bytes that are not UTF-8 replaced by U+FFFD, as Java readers show them."""
    data = values.buffers()[2]
    if data is None or not (np.frombuffer(data, dtype=np.uint8) >= 0x80).any():
        return values
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        raw = values.view(pa.binary()).to_pylist()
        return pa.array([v if v is None else v.decode("utf-8", "replace") for v in raw], type=pa.string())
    return values


def _blob_of(properties: Any) -> tuple[NDArray[np.uint8], Ints]:
    """Returns the bytes of all elements, and the start of each in them, with the total at the end."""
    assert properties.offset == 0
    assert properties.null_count == 0
    _, offset_buffer, data = properties.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[: len(properties) + 1].astype(np.int64)
    size = int(offsets[-1] - offsets[0])
    if size == 0:
        return np.zeros(0, dtype=np.uint8), np.zeros(len(properties) + 1, dtype=np.int64)
    blob = np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]
    return blob, offsets - offsets[0]


def _add_open_ends(blob: NDArray[np.uint8], offsets: Ints, ends: Ints) -> Ints:
    """Returns `ends` with the ends of those records whose last pair has no separator behind it."""
    stops = offsets[1:]
    is_open = stops > offsets[:-1]
    is_open[is_open] = blob[stops[is_open] - 1] != _PAIR_END
    return np.union1d(ends, stops[is_open]) if is_open.any() else ends


def _find_splits(marks: Ints, starts: Ints, ends: Ints) -> Ints:
    """Returns the first name separator at or after each start; beyond every end if there is none."""
    if len(marks) == len(starts) and bool(((marks >= starts) & (marks < ends)).all()):
        return marks
    padded = np.append(marks, np.iinfo(np.int64).max)
    return padded[np.searchsorted(marks, starts)]


def _read_heads(blob: NDArray[np.uint8], starts: Ints, splits: Ints) -> NDArray[np.uint64]:
    padded = np.concatenate([blob, np.zeros(_WORD, dtype=np.uint8)])
    words: NDArray[Any] = np.ndarray(shape=(len(blob) + 1,), dtype=">u8", buffer=padded, strides=(1,))
    spare = (8 * (_WORD - np.minimum(splits - starts, _WORD))).astype(np.uint64)
    heads = words[starts].astype(np.uint64)
    # A shift by all 64 bits is undefined, but no name is empty, so `spare` is at most 56.
    kept: NDArray[np.uint64] = (heads >> spare) << spare
    return kept


def _drop_overridden(spans: PropertySpans) -> PropertySpans:
    """Returns the spans without pairs whose name occurs again later in the same record."""
    counts = np.diff(spans.first_pair)
    if len(spans.name_at) == 0 or counts.max() < 2:
        return spans
    rows = spans.rows
    mark = spans.head ^ (rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    suspects = [
        (at, at + step)
        for step in range(1, int(counts.max()))
        for at in np.flatnonzero(mark[:-step] == mark[step:]).tolist()
    ]
    is_kept = np.ones(len(mark), dtype=bool)
    for first, second in suspects:
        if rows[first] == rows[second] and _name(spans, first) == _name(spans, second):
            is_kept[first] = False
    return _filter_pairs(spans, is_kept)


def leave_out(spans: PropertySpans, names: Iterable[bytes], prefix: bytes) -> PropertySpans:
    """Returns the spans without pairs that have one of the names, or a name that begins with `prefix`."""
    found = spans.pieces.take(pa.array(np.arange(0, 4 * len(spans.name_at), 4, dtype=np.int32)))
    found = found.view(pa.binary())
    is_out = pc.or_(pc.is_in(found, pa.array(sorted(names), pa.binary())), pc.starts_with(found, prefix))
    return _filter_pairs(spans, ~is_out.to_numpy(zero_copy_only=False))


def _filter_pairs(spans: PropertySpans, is_kept: NDArray[np.bool_]) -> PropertySpans:
    if is_kept.all():
        return spans
    return PropertySpans(
        blob=spans.blob,
        name_at=spans.name_at[is_kept],
        name_end=spans.name_end[is_kept],
        value_end=spans.value_end[is_kept],
        first_pair=np.concatenate([[0], np.cumsum(is_kept)])[spans.first_pair],
        head=spans.head[is_kept],
    )


def _name(spans: PropertySpans, pair: int) -> bytes:
    return spans.blob[spans.name_at[pair] : spans.name_end[pair]].tobytes()
