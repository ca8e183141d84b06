"""The columns of the sink: which column of a DataFrame becomes which part of a message, the unique keys of
rows, and the wire form of their properties. Pure: numpy and pyarrow.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemmq.errors import ConfigError, MessageIllegal
from tandemmq.protocol import properties as names
from tandemmq.protocol.properties import PROPERTIES_BYTES_MAX, RESERVED, TRANSIENT_PREFIX
from tandemmq.spark.columns import HEADERS_TYPE, MAP_TYPE, SOURCE_COLUMNS
from tandemmq.spark.option_table import suggest
from tandemmq.spark.properties import build_map, scan_properties

# The columns.
#
# A column that neither the sink nor the source knows is rejected, because a misspelt `tag` that is silently
# ignored sends the wrong messages. Columns that only the source has (`queueOffset`, `msgId`, ...) are
# skipped, so the rows of a topic can be written back unchanged.

_TEXT = ("string", "binary")
_WHOLE = ("tinyint", "smallint", "int", "bigint")

SINK_COLUMNS: dict[str, tuple[str, ...]] = {
    "body": _TEXT,
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "shardingKey": ("string",),
    "queueId": _WHOLE,
    "delayLevel": _WHOLE,
    "deliverAt": ("timestamp", "bigint"),
    "properties": (MAP_TYPE, "string", HEADERS_TYPE),
    "flag": _WHOLE,
    "uniqueKey": ("string",),
}
"""Each column of the sink and the Spark types it accepts."""

_ALIASES = {"value": "body", "partition": "queueId", "headers": "properties"}
_KEY = "key"
"""Kafka's key column, which sets both the order of rows (`shardingKey`) and their search keys (`keys`)."""
_READ_ONLY = frozenset(column.name.lower() for column in SOURCE_COLUMNS)


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The position of each known column in the rows, by its name in SINK_COLUMNS."""

    places: dict[str, int]

    def read(self, batch: Any, name: str) -> Any:
        """Returns the column of a RecordBatch; None if the rows lack it."""
        return batch.column(self.places[name]) if name in self.places else None


def find_sink_columns(fields: Sequence[tuple[str, str]], *, has_topic_option: bool) -> SinkColumns:
    """Returns the columns of a DataFrame, given as names and Spark types.

    Raises:  ConfigError naming a column that is missing, unknown, duplicated or of a wrong type.
    """
    known = {name.lower(): name for name in (*SINK_COLUMNS, *_ALIASES)}
    labels = {label.lower() for label, _ in fields}
    places: dict[str, int] = {}
    for index, (label, type_name) in enumerate(fields):
        if label.lower() == _KEY:
            if type_name not in _TEXT:
                raise ConfigError(f"column {label}: expected {' or '.join(_TEXT)}, got {type_name}; cast it")
            places |= {name: index for name in ("keys", "shardingKey") if name.lower() not in labels}
            continue
        spelled = known.get(label.lower())
        if spelled is None:
            if label.lower() in _READ_ONLY:
                continue
            hint = suggest(label, known)
            raise ConfigError(f"the sink knows no column {label!r}{hint} There are {', '.join(SINK_COLUMNS)}")
        name = _ALIASES.get(spelled, spelled)
        if name in places:
            raise ConfigError(f"the column {name} is there twice")
        # Spark's name for a map type is the same with and without nullable values.
        if type_name not in SINK_COLUMNS[name]:
            raise ConfigError(
                f"column {label}: expected {' or '.join(SINK_COLUMNS[name])}, got {type_name}; cast it"
            )
        places[name] = index
    if "body" not in places:
        raise ConfigError("a column body (or value) is required")
    if "topic" not in places and not has_topic_option:
        raise ConfigError("either the option topic or a column topic is required")
    return SinkColumns(places)


# Unique keys that are the same when a row is repeated.
#
# Spark runs tasks twice and replays batches, but (query, batch, task, row) always identifies the same row
# (spec spark SP-52). A key is 32 hexadecimal digits like every client's: ten bytes of a hash of the first
# three, then the row number in six bytes. Java reads milliseconds since the start of the month from bytes 10
# to 13. Here those bytes are the upper part of the row number and so near zero, which makes Java's search by
# unique key go back far enough.

KEY_CHARS = 32
_PREFIX_BYTES = 10
_ROW_BYTES = 6
_HEX = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)


def make_prefix(*names: object) -> bytes:
    """Returns the first digits of one task's keys: a hash of the names that identify the task."""
    text = "\0".join(str(name) for name in names)
    return hashlib.blake2b(text.encode(), digest_size=_PREFIX_BYTES).hexdigest().upper().encode()


def make_keys(prefix: bytes, first_row: int, count: int) -> Any:
    """Returns the keys of `count` rows, starting with row number `first_row`, as a binary array."""
    numbers = np.arange(first_row, first_row + count, dtype=">u8")
    digits = numbers.view(np.uint8).reshape(count, 8)[:, 8 - _ROW_BYTES :]
    keys = np.empty((count, KEY_CHARS), dtype=np.uint8)
    keys[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    keys[:, len(prefix) :: 2] = _HEX[digits >> 4]
    keys[:, len(prefix) + 1 :: 2] = _HEX[digits & 15]
    return fixed_binary(keys)


def fixed_binary(rows: np.ndarray[Any, np.dtype[np.uint8]]) -> Any:
    """Returns a (count, width) array of bytes as a binary array of `count` values."""
    count, width = rows.shape
    offsets = (
        np.arange(0, (count + 1) * width, width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    )
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    )


# The properties of many rows in their wire form, as one binary array.
#
# The user's properties come first, then those with a column of their own, because the later of two equal
# names wins. Names that only clients and brokers set are removed from the user's map, so that the rows of a
# topic can be written back.
#
# Source: spec remoting 12.4.

Bools = NDArray[np.bool_]

DELIVER_AT = "TIMER_DELIVER_MS"
_NAME_END, _PAIR_END = b"\x01", b"\x02"
_EMPTY = pa.scalar(b"", pa.binary())


def encode_row_properties(batch: Any, columns: SinkColumns, keys: Any, first_row: int) -> tuple[Any, Bools]:
    """Returns the wire form of each row's properties, and True for each row that is a delayed message.

    Raises:  MessageIllegal naming a row whose properties have no wire form.
    """
    count = batch.num_rows
    parts: list[Any] = []

    def add(name: str, values: Any) -> None:
        """Adds the pair `name`, left out for rows whose value is null or empty."""
        _refuse(pc.match_substring(values, _PAIR_END.decode()), first_row, f"{name} holds the byte 2")
        values = pc.if_else(pc.equal(pc.binary_length(values), 0), pa.scalar(None, pa.binary()), values)
        head = pa.scalar(f"{name}\x01".encode(), pa.binary())
        parts.append(pc.binary_join_element_wise(head, values, pa.scalar(_PAIR_END, pa.binary()), _EMPTY))

    own = columns.read(batch, "properties")
    if own is not None:
        parts.append(_encode_map(own, first_row))
    for name, wire_name in (("shardingKey", names.SHARDING_KEY), ("keys", names.KEYS), ("tags", names.TAGS)):
        values = columns.read(batch, name)
        if values is not None:
            add(wire_name, _to_binary(values))
    levels, times = columns.read(batch, "delayLevel"), columns.read(batch, "deliverAt")
    is_delayed = np.zeros(count, dtype=bool)
    if levels is not None:
        levels = _drop_zeros(levels.cast(pa.int64()))
        add(names.DELAY, levels.cast(pa.string()).cast(pa.binary()))
        is_delayed |= levels.is_valid().to_numpy(zero_copy_only=False)
    if times is not None:
        times = _drop_zeros(_milliseconds(times))
        add(DELIVER_AT, times.cast(pa.string()).cast(pa.binary()))
        is_delayed |= times.is_valid().to_numpy(zero_copy_only=False)
    given = columns.read(batch, "uniqueKey")
    add(names.UNIQ_KEY, keys if given is None else pc.coalesce(_to_binary(given), keys))
    encoded = pc.binary_join_element_wise(*parts, _EMPTY, null_handling="replace", null_replacement="")
    _refuse(
        pc.greater(pc.binary_length(encoded), PROPERTIES_BYTES_MAX),
        first_row,
        f"its properties have more than {PROPERTIES_BYTES_MAX} bytes",
    )
    return encoded, is_delayed


def _to_binary(values: Any) -> Any:
    return (_join_texts(values) if pa.types.is_list(values.type) else values).cast(pa.binary())


def _join_texts(lists: Any) -> Any:
    """Returns each row's texts joined by spaces; null and empty texts are left out."""
    # Spark can be configured to use Arrow's large types, which cannot be joined.
    texts, rows = lists.flatten().cast(pa.string()), pc.list_parent_indices(lists)
    is_there = pc.fill_null(pc.greater(pc.binary_length(texts), 0), False)
    counts = np.bincount(rows.filter(is_there), minlength=len(lists))
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
    # Arrow cannot join the lists of a column with non-nullable elements, so they are rebuilt.
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts.filter(is_there)), " ")


def _drop_zeros(numbers: Any) -> Any:
    return pc.if_else(pc.less_equal(numbers, 0), pa.scalar(None, numbers.type), numbers)


def _milliseconds(times: Any) -> Any:
    if pa.types.is_timestamp(times.type):
        return pc.divide(times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64()), 1000)
    return times.cast(pa.int64())


def _encode_map(column: Any, first_row: int) -> Any:
    """Returns each row's map in wire form, without reserved names and empty values."""
    if pa.types.is_list(column.type):
        column = _map_headers(column)
    elif not pa.types.is_map(column.type):
        column = build_map(scan_properties(_plain(column)))
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    begin, end = int(offsets[0]), int(offsets[-1])
    keys = column.keys.slice(begin, end - begin).cast(pa.binary())
    items = column.items.slice(begin, end - begin).cast(pa.binary())
    rows = np.repeat(np.arange(len(column)), np.diff(offsets))
    is_user = ~pc.is_in(keys, pa.array([name.encode() for name in sorted(RESERVED)])).to_numpy(
        zero_copy_only=False
    )
    is_user &= ~pc.starts_with(keys, TRANSIENT_PREFIX).to_numpy(zero_copy_only=False)
    is_user &= pc.fill_null(pc.greater(pc.binary_length(items), 0), False).to_numpy(zero_copy_only=False)
    is_user &= column.is_valid().to_numpy(zero_copy_only=False)[rows]
    chosen = pa.array(is_user)
    keys, items, rows = keys.filter(chosen), items.filter(chosen), rows[is_user]
    for mark in (_NAME_END, _PAIR_END):
        _refuse(pc.match_substring(keys, mark.decode()), first_row, "a property name holds 1 or 2", rows)
    _refuse(pc.equal(pc.binary_length(keys), 0), first_row, "a property has no name", rows)
    _refuse(pc.match_substring(items, _PAIR_END.decode()), first_row, "a property holds the byte 2", rows)
    name_end, pair_end = pa.scalar(_NAME_END, pa.binary()), pa.scalar(_PAIR_END, pa.binary())
    pairs = pc.binary_join_element_wise(keys, name_end, items, pair_end, _EMPTY)
    first_pair = np.searchsorted(rows, np.arange(len(column) + 1))
    _, pair_offsets, data = pairs.buffers()
    places = (
        np.frombuffer(pair_offsets, dtype=np.int32)[: len(pairs) + 1] if len(pairs) else np.zeros(1, np.int32)
    )
    bounds = places[first_pair].astype(np.int32)
    return pa.Array.from_buffers(
        pa.binary(),
        len(column),
        [None, pa.py_buffer(bounds), data if data is not None else pa.py_buffer(b"")],
    )


def _map_headers(column: Any) -> Any:
    """Returns Kafka's headers as maps; a header without a value counts as absent, like an empty property."""
    pairs = column.flatten()
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)])
    names = pc.fill_null(pc.struct_field(pairs, "key"), "")
    return pa.MapArray.from_arrays(pa.array(offsets), names, pc.struct_field(pairs, "value"))


def _plain(column: Any) -> Any:
    """Returns a string column as a binary array with offset 0 and no nulls."""
    filled = pc.fill_null(column.cast(pa.binary()), b"")
    return filled if filled.offset == 0 else pa.concat_arrays([filled, pa.array([], pa.binary())])


def _refuse(is_bad: Any, first_row: int, why: str, rows: NDArray[np.int64] | None = None) -> None:
    if pc.any(is_bad).as_py():
        index = pc.index(is_bad, True).as_py()
        row = first_row + (index if rows is None else int(rows[index]))
        raise MessageIllegal(f"row {row} of the task: {why}")
