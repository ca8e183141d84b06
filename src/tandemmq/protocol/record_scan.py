"""Parses many contiguous records at once into numpy columns: for recovery, a slave's dispatch and Spark.

Invariants: foreign bytes lead to `is_valid` False or an early end, never to an exception. Positions in the
            columns are bytes from the start of the given buffer.
Strategy:   the start of a record follows only from the size of the one before, so boundaries are found in a
            Python loop over one integer per record. Every other field is gathered for all records at once
            through arrays with a stride of one byte, which read a number at any position without copying the
            buffer.
Source:     spec store 3, 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.hashes import crc32
from tandemmq.protocol.record_check import RecordCheck, check_record, tag_hash_of
from tandemmq.protocol.record_layout import (
    BLANK_BYTES_MIN,
    BODY_SIZE_AT_V4,
    CRC_MASK,
    HEAD_V4_BYTES,
    HOST_V6_EXTRA,
    INT,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORED_AT_V4,
    TOPIC_BYTES_MAX,
    TOPIC_BYTES_MAX_V1,
    RecordOutcome,
)
from tandemmq.protocol.record_run import RecordRun
from tandemmq.protocol.sys_flag import BORN_HOST_V6, HOSTS_V6_MASK, STORE_HOST_V6
from tandemmq.units import Buffer

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

_HEAD: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("log_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_at_ms", ">i8"),
        ("born_host", "V8"),
        ("stored_at_ms", ">i8"),
        ("store_host", "V8"),
        ("retry_count", ">i4"),
        ("prepared_offset", ">i8"),
        ("body_size", ">i4"),
    ]
)
"""The fields before the body. Fields after an IPv6 host are shifted."""
assert _HEAD.itemsize == HEAD_V4_BYTES
_MAGIC_AT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """The positions of records: `positions` ascending, `end` after the last one, `outcome` for the bytes
    there.

    `outcome` is OK only if `count_max` records were found and more may follow.
    """

    positions: Ints
    end: int
    outcome: RecordOutcome


def scan_boundaries(buffer: Buffer, start: int = 0, *, count_max: int | None = None) -> Boundaries:
    """Finds consecutive records from `start` on, by size and magic only.

    Stops at the first bytes that begin no whole record, or after `count_max` records.
    """
    starts: list[int] = []
    append = starts.append
    unpack = INT.unpack_from
    total = len(buffer)
    last = total - RECORD_BYTES_MIN
    position = start
    is_full = True
    for _ in repeat(None) if count_max is None else repeat(None, count_max):
        if position > last:
            is_full = False
            break
        size = unpack(buffer, position)[0]
        if size < RECORD_BYTES_MIN:
            is_full = False
            break
        append(position)
        position += size
    # The magics are checked together: after a wrong one, the following positions are meaningless.
    positions = np.array(starts, dtype=np.int64)
    magic = _gather_ints(np.frombuffer(buffer, dtype=np.uint8), positions + _MAGIC_AT, ">i4")
    is_record = (magic == MAGIC_V1) | (magic == MAGIC_V2)
    count = len(starts)
    if count and position > total:
        is_record[-1] = False
    if not is_record.all():
        count = int(is_record.argmin())
        position, is_full = starts[count], False
    outcome = RecordOutcome.OK if is_full else _outcome_at(buffer, position)
    return Boundaries(positions=positions[:count], end=position, outcome=outcome)


def _outcome_at(buffer: Buffer, position: int) -> RecordOutcome:
    if len(buffer) - position < BLANK_BYTES_MIN:
        return RecordOutcome.END
    return check_record(buffer, position, check_crc=False).outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordColumns:
    """The fields of n records, one array each.

    Shape:   (n,), dtype int64 (`is_valid`: bool).
    Units:   `*_position` in bytes from the start of the buffer; `*_size` in bytes.

    If `is_valid` is False (inconsistent lengths), positions and sizes are meaningless.
    """

    position: Ints
    size: Ints
    queue_id: Ints
    flag: Ints
    queue_offset: Ints
    log_offset: Ints
    sys_flag: Ints
    born_at_ms: Ints
    stored_at_ms: Ints
    retry_count: Ints
    prepared_offset: Ints
    body_crc: Ints
    body_position: Ints
    body_size: Ints
    topic_position: Ints
    topic_size: Ints
    properties_position: Ints
    properties_size: Ints
    is_valid: Bools

    def __len__(self) -> int:
        return len(self.position)

    @property
    def valid_count(self) -> int:
        """The number of valid records from the first on, without a gap."""
        return len(self) if self.is_valid.all() else int(self.is_valid.argmin())

    @property
    def end(self) -> int:
        """The end of the last record, in bytes of the buffer; 0 without records."""
        return int(self.position[-1] + self.size[-1]) if len(self) else 0

    def head(self, count: int) -> RecordColumns:
        """Returns the first `count` records."""
        if count == len(self):
            return self
        return RecordColumns(**{field.name: getattr(self, field.name)[:count] for field in fields(self)})


ParsedRecords: TypeAlias = RecordColumns | Sequence[RecordCheck | RecordRun]
"""The fields of consecutive intact records: of many as columns, of a few as runs or one by one. One of the
few may have another outcome than OK, for example a topic that is not UTF-8.
"""


def read_columns(buffer: Buffer, boundaries: Boundaries, *, log_offset: int | None = None) -> RecordColumns:
    """Returns the fields of every record of `boundaries`, and a mask of consistent lengths.

    `log_offset`: the log offset of byte 0 of `buffer`; a record with a different stored offset is invalid.
    """
    position = boundaries.positions
    data = np.frombuffer(buffer, dtype=np.uint8)
    head = _gather(data, position, _HEAD)
    end = position + head["size"]
    late = _late_fields(data, position, head)
    body_size = late.body_size
    body_position = position + late.head_size
    topic_at = body_position + body_size
    is_valid = (body_size >= 0) & (topic_at <= end - 4)

    topic_size, topic_position, is_topic = _topics(data, topic_at, head["magic"] == MAGIC_V2)
    is_valid &= is_topic
    properties_position = topic_position + topic_size + 2
    properties_size = _gather_ints(data, properties_position - 2, ">i2")
    is_valid &= (properties_size >= 0) & (properties_position + properties_size == end)

    said_offset = head["log_offset"].astype(np.int64)
    if log_offset is not None:
        is_valid &= said_offset == position + log_offset
    return RecordColumns(
        position=position,
        size=head["size"].astype(np.int64),
        queue_id=head["queue_id"].astype(np.int64),
        flag=head["flag"].astype(np.int64),
        queue_offset=head["queue_offset"].astype(np.int64),
        log_offset=said_offset,
        sys_flag=head["sys_flag"].astype(np.int64),
        born_at_ms=head["born_at_ms"].astype(np.int64),
        stored_at_ms=late.stored_at_ms,
        retry_count=late.retry_count,
        prepared_offset=late.prepared_offset,
        body_crc=head["body_crc"].astype(np.int64),
        body_position=body_position,
        body_size=body_size,
        topic_position=topic_position,
        topic_size=topic_size,
        properties_position=properties_position,
        properties_size=properties_size,
        is_valid=is_valid,
    )


class _LateFields(NamedTuple):
    """The fields after a host address, and the sizes of the heads."""

    stored_at_ms: Ints
    retry_count: Ints
    prepared_offset: Ints
    body_size: Ints
    head_size: Ints | int


def _late_fields(data: NDArray[np.uint8], position: Ints, head: NDArray[Any]) -> _LateFields:
    sys_flag = head["sys_flag"]
    if not (sys_flag & HOSTS_V6_MASK).any():  # nearly always: they are in `head` already
        return _LateFields(
            stored_at_ms=head["stored_at_ms"].astype(np.int64),
            retry_count=head["retry_count"].astype(np.int64),
            prepared_offset=head["prepared_offset"].astype(np.int64),
            body_size=head["body_size"].astype(np.int64),
            head_size=HEAD_V4_BYTES,
        )
    born_extra = np.where(sys_flag & BORN_HOST_V6, HOST_V6_EXTRA, 0)
    extra = born_extra + np.where(sys_flag & STORE_HOST_V6, HOST_V6_EXTRA, 0)
    return _LateFields(
        stored_at_ms=_gather_ints(data, position + STORED_AT_V4 + born_extra, ">i8"),
        retry_count=_gather_ints(data, position + BODY_SIZE_AT_V4 - 12 + extra, ">i4"),
        prepared_offset=_gather_ints(data, position + BODY_SIZE_AT_V4 - 8 + extra, ">i8"),
        body_size=_gather_ints(data, position + BODY_SIZE_AT_V4 + extra, ">i4"),
        head_size=HEAD_V4_BYTES + extra,
    )


def _topics(data: NDArray[np.uint8], topic_at: Ints, is_v2: Bools) -> tuple[Ints, Ints, Bools]:
    """Returns sizes and positions of the topics after their length fields, and a mask of allowed sizes."""
    size = _gather_ints(data, topic_at, "u1")
    if not is_v2.any():
        return size, topic_at + 1, (size > 0) & (size <= TOPIC_BYTES_MAX_V1)
    size = np.where(is_v2, _gather_ints(data, topic_at, ">u2"), size)
    is_good = (size > 0) & (size <= np.where(is_v2, TOPIC_BYTES_MAX, TOPIC_BYTES_MAX_V1))
    return size, topic_at + 1 + is_v2, is_good


def _gather(data: NDArray[np.uint8], positions: Ints, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Returns one item of `dtype` per byte position; positions outside the data read its nearest item."""
    size = dtype.itemsize
    count = len(data) - size + 1
    if count <= 0:
        return np.zeros(len(positions), dtype=dtype)
    # Opaque bytes are copied whole, while fields would be copied one by one.
    items: NDArray[Any] = np.ndarray(shape=(count,), dtype=f"V{size}", buffer=data, strides=(1,))
    return items[np.maximum(np.minimum(positions, count - 1), 0)].view(dtype)


def _gather_ints(data: NDArray[np.uint8], positions: Ints, dtype: str) -> Ints:
    return _gather(data, positions, np.dtype(dtype)).astype(np.int64)


def gather_texts(buffer: Buffer, starts: Ints, size: int) -> NDArray[np.uint8]:
    """Returns the `size` bytes from each start on, all within the buffer.

    Shape:   (n, size); `size` is at least 1.
    """
    items: NDArray[Any] = np.ndarray((len(buffer) - size + 1,), f"V{size}", buffer=buffer, strides=(1,))
    return items[starts].view(np.uint8).reshape(len(starts), size)


def verify_bodies(buffer: Buffer, columns: RecordColumns) -> Bools:
    """Returns a mask of records whose body matches its checksum; False for an invalid record."""
    is_valid = columns.is_valid
    starts, ends = columns.body_position, columns.body_position + columns.body_size
    if not is_valid.all():
        starts, ends = np.where(is_valid, starts, 0), np.where(is_valid, ends, 0)
    with memoryview(buffer) as view:
        bounds = zip(starts.tolist(), ends.tolist(), strict=True)
        found = np.array([crc32(view[start:end]) for start, end in bounds], dtype=np.int64)
    result: Bools = is_valid & ((found & CRC_MASK == columns.body_crc) | (columns.body_size == 0))
    return result


def read_intact(buffer: Buffer, *, log_offset: int, record_bytes_max: int) -> RecordColumns:
    """Returns the records from the start of `buffer` up to the first that is too long or not intact.

    Units:   `log_offset` is the log offset of byte 0 of the buffer.
    """
    columns = read_columns(buffer, scan_boundaries(buffer), log_offset=log_offset)
    is_good = verify_bodies(buffer, columns) & (columns.size <= record_bytes_max)
    return columns if is_good.all() else columns.head(int(is_good.argmin()))


def topic_names(buffer: Buffer, columns: RecordColumns) -> list[str]:
    """Returns the topic of each record; empty if the record is invalid or the topic is not UTF-8."""
    known: dict[bytes, str] = {}
    names = []
    for raw in _slices(buffer, columns.topic_position, columns.topic_size, columns.is_valid):
        name = known.get(raw)
        if name is None:
            name = known[raw] = _utf8_or_empty(raw)
        names.append(name)
    return names


def _utf8_or_empty(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return ""


def raw_properties(buffer: Buffer, columns: RecordColumns) -> list[bytes]:
    """Returns the wire form of each record's properties; empty if the record is invalid."""
    return _slices(buffer, columns.properties_position, columns.properties_size, columns.is_valid)


def bodies(buffer: Buffer, columns: RecordColumns) -> list[bytes]:
    """Returns each record's body as stored; empty if the record is invalid."""
    return _slices(buffer, columns.body_position, columns.body_size, columns.is_valid)


def _slices(buffer: Buffer, starts: Ints, sizes: Ints, is_valid: Bools) -> list[bytes]:
    starts = np.where(is_valid, starts, 0)
    ends = np.where(is_valid, starts + sizes, 0)
    if isinstance(buffer, bytes):
        return [buffer[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    with memoryview(buffer) as view:
        return [bytes(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def tag_hashes(properties: list[bytes]) -> Ints:
    """Returns the hash of TAGS of each record, as in its ConsumeQueue entry (delayed messages excepted)."""
    return np.fromiter(map(tag_hash_of, properties), dtype=np.int64, count=len(properties))
