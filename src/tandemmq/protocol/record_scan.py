"""Many contiguous records at once, as numpy columns: for recovery, a slave's dispatch and Spark.

Invariants: foreign bytes give `is_valid` False or an early end, never an exception; positions in the columns
are
            bytes from the start of the buffer given.
Strategy:   where a record begins is only known from the size of the one before, so that walk is a Python loop
            of one integer per record; every other field is gathered for all records at once through arrays
            whose stride is one byte, which read a number at any position without copying the buffer.
Source:     spec store 3, 3.3.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import repeat
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.checksum import crc32
from tandemmq.protocol.record_check import check_record, tag_hash_of
from tandemmq.protocol.record_encode import Buffer
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
from tandemmq.protocol.sys_flag import BORN_HOST_V6, STORE_HOST_V6

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

_LEADING: Final = np.dtype(
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
    ]
)
"""The fields before the first host: the same place in every record."""
_MAGIC_AT: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundaries:
    """Where records begin: `positions` ascending, `end` after the last one, `outcome` is what lies at `end`.

    `outcome` is OK only if `count_max` records were found and more may follow.
    """

    positions: Ints
    end: int
    outcome: RecordOutcome


def scan_boundaries(buffer: Buffer, start: int = 0, *, count_max: int | None = None) -> Boundaries:
    """The records that follow each other from `start` on, judged by size and magic only.

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
        (size,) = unpack(buffer, position)
        if size < RECORD_BYTES_MIN:
            is_full = False
            break
        append(position)
        position += size
    # The magics are looked at together: where one is wrong, the steps behind it led nowhere.
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
    """Fields of n records, one array each.

    Shape:   (n,), dtype int64 (`is_valid`: bool).
    Units:   `*_position` in bytes from the start of the buffer; `*_size` in bytes.
    Where `is_valid` is False (lengths that contradict each other) the positions and sizes mean nothing.
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
        """How many records from the first on are valid without a gap."""
        return len(self) if self.is_valid.all() else int(self.is_valid.argmin())

    @property
    def end(self) -> int:
        """Behind the last record, in bytes of the buffer; 0 without records."""
        return int(self.position[-1] + self.size[-1]) if len(self) else 0

    def head(self, count: int) -> RecordColumns:
        """The first `count` records."""
        if count == len(self):
            return self
        return RecordColumns(**{field.name: getattr(self, field.name)[:count] for field in fields(self)})


def read_columns(buffer: Buffer, boundaries: Boundaries, *, log_offset: int | None = None) -> RecordColumns:
    """The fields of every record of `boundaries`, and whether its lengths fit together.

    `log_offset`: where the log says that byte 0 of `buffer` lies; a record that says otherwise is not valid.
    """
    position = boundaries.positions
    data = np.frombuffer(buffer, dtype=np.uint8)
    leading = _gather(data, position, _LEADING)
    magic = leading["magic"].astype(np.int64)
    size = leading["size"].astype(np.int64)
    sys_flag = leading["sys_flag"].astype(np.int64)
    born_extra = np.where(sys_flag & BORN_HOST_V6, HOST_V6_EXTRA, 0)
    extra = born_extra + np.where(sys_flag & STORE_HOST_V6, HOST_V6_EXTRA, 0)
    end = position + size

    body_size = _gather_ints(data, position + BODY_SIZE_AT_V4 + extra, ">i4")
    body_position = position + HEAD_V4_BYTES + extra
    is_valid = (body_size >= 0) & (body_position + body_size <= end - 4)

    topic_at = body_position + body_size
    is_v2 = magic == MAGIC_V2
    topic_size = np.where(is_v2, _gather_ints(data, topic_at, ">u2"), _gather_ints(data, topic_at, "u1"))
    is_valid &= (topic_size > 0) & (topic_size <= np.where(is_v2, TOPIC_BYTES_MAX, TOPIC_BYTES_MAX_V1))
    topic_position = topic_at + 1 + is_v2
    properties_position = topic_position + topic_size + 2
    is_valid &= properties_position <= end
    properties_size = _gather_ints(data, properties_position - 2, ">i2")
    is_valid &= (properties_size >= 0) & (properties_position + properties_size == end)

    said_offset = leading["log_offset"].astype(np.int64)
    if log_offset is not None:
        is_valid &= said_offset == position + log_offset
    return RecordColumns(
        position=position,
        size=size,
        queue_id=leading["queue_id"].astype(np.int64),
        flag=leading["flag"].astype(np.int64),
        queue_offset=leading["queue_offset"].astype(np.int64),
        log_offset=said_offset,
        sys_flag=sys_flag,
        born_at_ms=leading["born_at_ms"].astype(np.int64),
        stored_at_ms=_gather_ints(data, position + STORED_AT_V4 + born_extra, ">i8"),
        retry_count=_gather_ints(data, position + BODY_SIZE_AT_V4 - 12 + extra, ">i4"),
        prepared_offset=_gather_ints(data, position + BODY_SIZE_AT_V4 - 8 + extra, ">i8"),
        body_crc=leading["body_crc"].astype(np.int64),
        body_position=body_position,
        body_size=body_size,
        topic_position=topic_position,
        topic_size=topic_size,
        properties_position=properties_position,
        properties_size=properties_size,
        is_valid=is_valid,
    )


def _gather(data: NDArray[np.uint8], positions: Ints, dtype: np.dtype[Any]) -> NDArray[Any]:
    """One item of `dtype` per byte position; positions outside the data read its nearest item."""
    count = len(data) - dtype.itemsize + 1
    if count <= 0:
        return np.zeros(len(positions), dtype=dtype)
    items: NDArray[Any] = np.ndarray(shape=(count,), dtype=dtype, buffer=data, strides=(1,))
    return items[np.maximum(np.minimum(positions, count - 1), 0)]


def _gather_ints(data: NDArray[np.uint8], positions: Ints, dtype: str) -> Ints:
    return _gather(data, positions, np.dtype(dtype)).astype(np.int64)


def gather_texts(buffer: Buffer, starts: Ints, size: int) -> NDArray[np.uint8]:
    """The `size` bytes from each start on, all within the buffer.

    Shape:   (n, size); `size` is at least 1.
    """
    items: NDArray[Any] = np.ndarray((len(buffer) - size + 1,), f"V{size}", buffer=buffer, strides=(1,))
    return items[starts].view(np.uint8).reshape(len(starts), size)


def verify_bodies(buffer: Buffer, columns: RecordColumns) -> Bools:
    """Whether each valid record's body matches its checksum; False for a record that is not valid."""
    is_valid = columns.is_valid
    starts = np.where(is_valid, columns.body_position, 0)
    ends = np.where(is_valid, starts + columns.body_size, 0)
    with memoryview(buffer) as view:
        texts = map(view.__getitem__, map(slice, starts.tolist(), ends.tolist()))
        found = np.fromiter(map(crc32, texts), dtype=np.int64, count=len(columns))
    result: Bools = is_valid & ((found & CRC_MASK == columns.body_crc) | (columns.body_size == 0))
    return result


def read_intact(buffer: Buffer, *, log_offset: int, record_bytes_max: int) -> RecordColumns:
    """The records from the start of `buffer` on, up to the first that is too long or not intact.

    Units:   `log_offset` is where byte 0 of the buffer lies in the log.
    """
    columns = read_columns(buffer, scan_boundaries(buffer), log_offset=log_offset)
    is_good = verify_bodies(buffer, columns) & (columns.size <= record_bytes_max)
    return columns if is_good.all() else columns.head(int(is_good.argmin()))


def topic_names(buffer: Buffer, columns: RecordColumns) -> list[str]:
    """The topic of each record; empty where the record is not valid or the topic is no UTF-8."""
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
    """The wire form of each record's properties; empty where the record is not valid."""
    return _slices(buffer, columns.properties_position, columns.properties_size, columns.is_valid)


def bodies(buffer: Buffer, columns: RecordColumns) -> list[bytes]:
    """Each record's body as stored; empty where the record is not valid."""
    return _slices(buffer, columns.body_position, columns.body_size, columns.is_valid)


def _slices(buffer: Buffer, starts: Ints, sizes: Ints, is_valid: Bools) -> list[bytes]:
    starts = np.where(is_valid, starts, 0)
    ends = np.where(is_valid, starts + sizes, 0)
    if isinstance(buffer, bytes):
        return [buffer[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    with memoryview(buffer) as view:
        return [bytes(view[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def tag_hashes(properties: list[bytes]) -> Ints:
    """The hash of TAGS of each record, as its ConsumeQueue entry has it (delayed messages excepted)."""
    return np.fromiter(map(tag_hash_of, properties), dtype=np.int64, count=len(properties))
