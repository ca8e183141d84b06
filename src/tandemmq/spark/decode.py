"""Decodes stored records, concatenated as a pull returns them, into one Arrow record batch.

No Python object is made per message. The body, topic and properties of a record divide it into consecutive
pieces. One array of offsets over the original buffer therefore *is* an Arrow array of all pieces, and each
wanted column is one strided `take` in C++ (spec spark 5, SP-68). Only bodies that a client compressed and the
host columns are handled row by row.

Used by all readers of record bytes. Pure: numpy and pyarrow, no Spark, no network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemmq.errors import LocalProtocolError, RemoteProtocolError
from tandemmq.protocol.compression import decompress
from tandemmq.protocol.message_id import decode_host, encode_message_id
from tandemmq.protocol.properties import SYSTEM_NAMES, TRANSIENT_PREFIX
from tandemmq.protocol.record_layout import RecordOutcome
from tandemmq.protocol.record_scan import (
    Boundaries,
    Ints,
    RecordColumns,
    gather_texts,
    read_columns,
    scan_boundaries,
    verify_bodies,
)
from tandemmq.protocol.sys_flag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6
from tandemmq.spark.columns import LIST_TYPE, MAP_TYPE, OutputColumn, Projection, arrow_schema, check_nulls
from tandemmq.spark.properties import (
    PropertySpans,
    build_headers,
    build_map,
    leave_out,
    pick_values,
    repair_text,
    scan_properties,
)
from tandemmq.units import Buffer

_BORN_HOST_AT = 48
_STORE_HOST_AT = 64
_HOST_V4_BYTES = 8
_HOST_V6_EXTRA = 12

_BODY, _TOPIC, _PROPERTIES = 0, 2, 4
_PIECES_PER_RECORD = 6

TIMES_MS = (-62_135_510_400_000, 253_402_214_400_000)
"""From 0001-01-02 to 9999-12-31: Python's years, less a day for time zones."""

_SYSTEM = frozenset(name.encode() for name in SYSTEM_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePlan:
    """The columns to build and how; `tags` drops rows whose tag only shares the hash of a wanted tag."""

    projection: Projection
    decompress: bool = True
    verify_crc: bool = False
    tags: tuple[str, ...] = ()


@dataclass(slots=True)
class BodyFaults:
    """The number of bodies that contradict their compression flag, and the first of them."""

    count: int = 0
    first: str = ""

    def add(self, place: str, reason: str) -> None:
        self.first = self.first or f"{place}: {reason}"
        self.count += 1


def decode_records(
    data: Buffer,
    brokers: Sequence[tuple[str, int]],
    plan: DecodePlan,
    *,
    positions: Ints | None = None,
    faults: BodyFaults | None = None,
) -> Any:
    """Decodes the records in `data` into a RecordBatch of exactly the plan's columns.

    A body that cannot be decompressed as its flag says is returned as stored; the column `bodyFault` contains
    the reason, and `faults` counts it.

    `brokers`: pairs of broker name and record count, in record order. `positions`: the start of each record,
    if already known.
    Raises:  LocalProtocolError if the counts in `brokers` do not add up to the number of records;
             RemoteProtocolError if the bytes are not whole, valid records, or, with `verify_crc`, if a body
             is damaged; ConfigError if a column that is declared NOT NULL has nulls.
    """
    if positions is None:
        boundaries = scan_boundaries(data)
    else:
        boundaries = Boundaries(positions=positions, end=len(data), outcome=RecordOutcome.END)
    if boundaries.end != len(data):
        raise RemoteProtocolError(
            f"{len(data)} bytes of records: no valid record at byte {boundaries.end} "
            f"({boundaries.outcome.value})"
        )
    columns = read_columns(data, boundaries)
    if sum(count for _, count in brokers) != len(columns):
        raise LocalProtocolError(f"{brokers} do not add up to {len(columns)} records")
    _check(data, columns, plan)
    rows = _Rows(data, columns, brokers, plan, faults or BodyFaults())
    schema = arrow_schema(plan.projection)
    arrays = [rows.build(column) for column in plan.projection]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    if plan.tags:
        wanted = pc.fill_null(pc.is_in(rows.property(b"TAGS"), pa.array(plan.tags)), False)
        if not pc.all(wanted).as_py():
            batch = batch.filter(wanted)
    return check_nulls(batch)


def _check(data: Buffer, columns: RecordColumns, plan: DecodePlan) -> None:
    if not columns.is_valid.all():
        row = columns.valid_count
        raise RemoteProtocolError(
            f"record at byte {columns.position[row]}: its lengths contradict each other"
        )
    if plan.verify_crc:
        is_intact = verify_bodies(data, columns)
        if not is_intact.all():
            row = int(is_intact.argmin())
            raise RemoteProtocolError(
                f"the body at queue {columns.queue_id[row]}, queue offset {columns.queue_offset[row]} "
                "does not match its CRC"
            )


@dataclass
class _Rows:
    """The records of one buffer; each part is computed when a column first needs it."""

    data: Buffer
    columns: RecordColumns
    brokers: Sequence[tuple[str, int]]
    plan: DecodePlan
    faults: BodyFaults
    fault_of: dict[int, str] = field(default_factory=dict)

    def build(self, column: OutputColumn) -> Any:
        return _BUILDERS[column.name](self, column)

    def property(self, name: bytes) -> Any:
        # Many topics have no keys. One search for the name then replaces the scan for all pairs.
        if name + b"\x01" not in self._property_bytes:
            return pa.nulls(len(self.columns), pa.string())
        return pick_values(self._spans, name)

    @cached_property
    def _property_bytes(self) -> bytes:
        data = self._wire_properties.buffers()[2]
        return b"" if data is None else data.to_pybytes()

    @cached_property
    def _spans(self) -> PropertySpans:
        return scan_properties(self._wire_properties)

    @cached_property
    def _wire_properties(self) -> Any:
        """The properties of each record as stored, as a binary array."""
        return self._piece_array(_PROPERTIES)

    def _piece_array(self, piece: int) -> Any:
        """Returns one piece of every record as a separate binary array."""
        stop = _PIECES_PER_RECORD * len(self.columns)
        return self._pieces.take(pa.array(np.arange(piece, stop, _PIECES_PER_RECORD, dtype=np.int32)))

    @cached_property
    def _pieces(self) -> Any:
        columns = self.columns
        bounds = np.empty(_PIECES_PER_RECORD * len(columns) + 1, dtype=np.int32)
        parts = (
            (columns.body_position, columns.body_size),
            (columns.topic_position, columns.topic_size),
            (columns.properties_position, columns.properties_size),
        )
        for index, (position, size) in enumerate(parts):
            bounds[2 * index : -1 : _PIECES_PER_RECORD] = position
            bounds[2 * index + 1 : -1 : _PIECES_PER_RECORD] = position + size
        bounds[-1] = len(self.data)
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(self.data)]
        return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)

    def topic(self, column: OutputColumn) -> Any:
        columns = self.columns
        if len(columns):
            sizes = columns.topic_size
            size = int(sizes[0])
            at = int(columns.topic_position[0])
            if (sizes == size).all():
                texts = gather_texts(self.data, columns.topic_position, size)
                # The usual case: a queue has one topic.
                if (texts == texts[0]).all():
                    return _repeat(bytes(self.data[at : at + size]), len(columns))
        return repair_text(self._piece_array(_TOPIC).view(pa.string()))

    def broker_name(self, column: OutputColumn) -> Any:
        parts = [_repeat(name.encode(), count) for name, count in self.brokers]
        return pa.concat_arrays(parts) if parts else pa.array([], type=pa.string())

    def body(self, column: OutputColumn) -> Any:
        body = self._bodies
        return body if column.type == "binary" else repair_text(body.view(pa.string()))

    def body_fault(self, column: OutputColumn) -> Any:
        """Returns the reason per row why a body flagged as compressed is returned as stored; null for all
        others.
        """
        # Reading the bodies finds the faults.
        faults = self.fault_of if len(self._bodies) else {}
        if not faults:
            return pa.nulls(len(self.columns), pa.string())
        return pa.array([faults.get(row) for row in range(len(self.columns))], type=pa.string())

    @cached_property
    def _bodies(self) -> Any:
        """All bodies, decompressed if the plan says so."""
        body = self._piece_array(_BODY)
        return self._inflate(body) if self.plan.decompress else body

    def _inflate(self, body: Any) -> Any:
        """Returns `body` with the compressed values replaced; the others are not visited one by one."""
        sys_flags = self.columns.sys_flag
        rows = np.flatnonzero(sys_flags & COMPRESSED)
        if len(rows) == 0:
            return body
        packed = body.take(pa.array(rows)).to_pylist()
        flags = sys_flags[rows].tolist()
        plain = [self._decompress(*item) for item in zip(rows.tolist(), packed, flags, strict=True)]
        order = np.arange(len(body), dtype=np.int64)
        order[rows] = len(body) + np.arange(len(rows))
        return pa.concat_arrays([body, pa.array(plain, type=pa.binary())]).take(pa.array(order))

    def _decompress(self, row: int, raw: bytes, sys_flag: int) -> bytes:
        """Returns the decompressed body, or `raw` with its fault recorded.

        Raises:  LocalProtocolError if the lz4 or zstd extra is not installed here: the message is not at
                 fault, and another executor could decode it.
        """
        try:
            return decompress(raw, sys_flag)
        except RemoteProtocolError as error:
            self.fault_of[row] = str(error)
            columns = self.columns
            begin, size = int(columns.topic_position[row]), int(columns.topic_size[row])
            topic = bytes(self.data[begin : begin + size]).decode("utf-8", "replace")
            place = f"{topic}, queue {columns.queue_id[row]}, queue offset {columns.queue_offset[row]}"
            self.faults.add(place, str(error))
            return raw

    def properties(self, column: OutputColumn) -> Any:
        if column.type == MAP_TYPE:
            return build_map(self._spans)
        return repair_text(self._wire_properties.view(pa.string()))

    def keys(self, column: OutputColumn) -> Any:
        keys = self.property(b"KEYS")
        if column.type == LIST_TYPE:
            return pc.utf8_split_whitespace(pc.utf8_trim_whitespace(keys))
        return keys.cast(pa.binary()) if column.type == "binary" else keys

    def message_id(self, column: OutputColumn) -> Any:
        """Returns the producer's message id, or the broker's if the message has none (spec remoting 12.2)."""
        ids = self.property(b"UNIQ_KEY")
        if ids.null_count == 0:
            return ids
        log_offsets = self.columns.log_offset.tolist()
        hosts = self._hosts(_STORE_HOST_AT)
        known = ids.to_pylist()
        missing = [row for row, value in enumerate(known) if value is None]
        for row in missing:
            known[row] = encode_message_id(hosts[row], log_offsets[row])
        return pa.array(known, type=pa.string())

    def host_column(self, at: int) -> Any:
        flags = self.columns.sys_flag
        if (flags & (BORN_HOST_V6 | STORE_HOST_V6)).any() or not len(flags):
            return _render_hosts(self._hosts(at))
        # The usual case: eight bytes at the same position in every record, with few distinct values.
        words: NDArray[Any] = np.ndarray((len(self.data) - 7,), "u8", buffer=self.data, strides=(1,))
        hosts = words[self.columns.position + at]
        if (hosts == hosts[0]).all():
            (text,) = _render_hosts([hosts[:1].tobytes()]).to_pylist()
            return _repeat(text.encode(), len(hosts))
        packed = pa.array(hosts).dictionary_encode()
        known = packed.dictionary.to_numpy()
        return _render_hosts([one.tobytes() for one in known]).take(packed.indices)

    def _hosts(self, at: int) -> list[bytes]:
        """Returns the packed hosts; `at` is the position of the host in a record whose hosts are all IPv4."""
        columns, data = self.columns, self.data
        is_born_v6 = columns.sys_flag & BORN_HOST_V6 != 0
        starts = columns.position + at
        if at == _STORE_HOST_AT:
            starts = starts + np.where(is_born_v6, _HOST_V6_EXTRA, 0)
            is_v6 = columns.sys_flag & STORE_HOST_V6 != 0
        else:
            is_v6 = is_born_v6
        ends = starts + np.where(is_v6, _HOST_V4_BYTES + _HOST_V6_EXTRA, _HOST_V4_BYTES)
        return [bytes(data[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def user_pairs(self) -> PropertySpans:
        """Returns the properties without those that clients and brokers set."""
        return leave_out(self._spans, _SYSTEM, TRANSIENT_PREFIX.encode())


def _repeat(text: bytes, count: int) -> Any:
    """Returns the same text `count` times; bytes that are not UTF-8 become U+FFFD."""
    data = text.decode("utf-8", "replace").encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _timestamps(times_ms: Ints) -> Any:
    """Returns the times. A client may set any; those outside of TIMES_MS, which neither Python nor the tables
    of lakes can represent, become the nearest in it.
    """
    return pa.array(np.clip(times_ms, *TIMES_MS) * 1000).view(pa.timestamp("us", tz="UTC"))


def _render_hosts(packed: Sequence[bytes]) -> Any:
    """Renders hosts as `10.0.0.1:10911` or `[::1]:10911`."""
    known: dict[bytes, str] = {}
    for host in set(packed):
        ip, port = decode_host(host)
        known[host] = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
    return pa.array([known[host] for host in packed], type=pa.string())


def _number(field: str) -> Callable[[_Rows, OutputColumn], Any]:
    def build(rows: _Rows, column: OutputColumn) -> Any:
        values = getattr(rows.columns, field)
        return pa.array(values.astype(np.int32) if column.type == "int" else values)

    return build


_BUILDERS: dict[str, Callable[[_Rows, OutputColumn], Any]] = {
    "topic": _Rows.topic,
    "brokerName": _Rows.broker_name,
    "queueId": _number("queue_id"),
    "queueOffset": _number("queue_offset"),
    "physicalOffset": _number("log_offset"),
    "msgId": _Rows.message_id,
    "tags": lambda rows, _: rows.property(b"TAGS"),
    "keys": _Rows.keys,
    "body": _Rows.body,
    "bodyFault": _Rows.body_fault,
    "flag": _number("flag"),
    "sysFlag": _number("sys_flag"),
    "bornTimestamp": lambda rows, _: _timestamps(rows.columns.born_at_ms),
    "storeTimestamp": lambda rows, _: _timestamps(rows.columns.stored_at_ms),
    "bornHost": lambda rows, _: rows.host_column(_BORN_HOST_AT),
    "storeHost": lambda rows, _: rows.host_column(_STORE_HOST_AT),
    "reconsumeTimes": _number("retry_count"),
    "preparedTransactionOffset": _number("prepared_offset"),
    "properties": _Rows.properties,
    "userProperties": lambda rows, _: build_map(rows.user_pairs()),
    "headers": lambda rows, _: build_headers(rows.user_pairs()),
    # Kafka's constant for a timestamp set by the broker.
    "timestampType": lambda rows, _: pa.array(np.ones(len(rows.columns), dtype=np.int32)),
}
