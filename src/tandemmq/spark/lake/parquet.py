"""Writes the Arrow batches of one task to finished Parquet files in the staging directory.

Each value of the partition columns has one open file, up to `FILES_OPEN_MAX`; beyond that the fullest is
closed and continued in another file. The names inside a batch depend only on the task's number and the order
of its rows, so a replay produces the same ones (spec spark SP-52). Statistics are written for the columns
that queries filter on, and dictionaries for columns with repeated values; a dictionary over bodies would cost
time without benefit.

Must not know Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.data_files import DATA_DIR, DataFiles
from tandemmq.spark.lake.files import StagedFile, new_staged_path
from tandemmq.spark.lake.home import Lake, LakeFormat
from tandemmq.units import MIB

TABLE_PARTITIONS = ("topic", "dt")
"""The default partition columns of tables, as far as the data has them."""

FILES_OPEN_MAX = 64
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 32 * MIB
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
NAME_BYTES_MAX = 255
"""The longest name of a directory; a longer value is cut, and ends with a checksum of the whole."""

COMPRESSIONS = ("zstd", "snappy", "none")

TIME_COLUMN = "storeTimestamp"
DERIVED_PARTITIONS = {"dt": "%Y-%m-%d", "hour": "%H"}
"""Partition columns derived from the store time (UTC) if the data has no column of that name."""

_DICTIONARY_COLUMNS = ("topic", "brokerName", "tags", "bornHost", "storeHost", "queueId", "flag", "sysFlag")
_STATISTICS_COLUMNS = (
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "tags",
    "bornTimestamp",
    "storeTimestamp",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetOptions:
    """The options for writing files; `partition_by` names columns of the data or of DERIVED_PARTITIONS."""

    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    data_dir: str = ""
    """The directory into which the files of a table with its own log are written directly; empty: the staging
    directory.
    """
    address: str = ""
    """The address of those files, if they are outside the lake's directory."""
    keeps_partition_columns: bool = False

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise ConfigError(
                f"compression: expected one of {', '.join(COMPRESSIONS)}, got {self.compression!r}"
            )


def plan_files(
    lake: Lake, names: Sequence[str], partition_by: Sequence[str], compression: str
) -> ParquetOptions:
    """Returns the options with which tasks write files with these columns.

    Raises:  ConfigError if they cannot be partitioned or compressed that way.
    """
    columns, is_table = tuple(partition_by), lake.kind is not LakeFormat.PARQUET
    if is_table and not columns:
        there = {*names, *(("dt",) if TIME_COLUMN in names else ())}
        columns = tuple(name for name in TABLE_PARTITIONS if name in there)
    if lake.kind is LakeFormat.ICEBERG and not set(columns) <= set(TABLE_PARTITIONS):
        raise ConfigError(f"iceberg tables are partitioned by {' and '.join(TABLE_PARTITIONS)} only")
    check_partition_columns(names, columns)
    return ParquetOptions(
        partition_by=columns,
        compression=compression,
        data_dir=DATA_DIR if is_table else "",
        address=lake.address,
        keeps_partition_columns=lake.kind is LakeFormat.ICEBERG,
    )


def check_partition_columns(names: Sequence[str], partition_by: Sequence[str]) -> None:
    """Raises ConfigError if the data cannot be partitioned that way."""
    for name in partition_by:
        if name == "batch":
            raise ConfigError("partition by: batch is already the first level of every lake")
        if name in names:
            continue
        if name not in DERIVED_PARTITIONS:
            allowed = ", ".join([*names, *DERIVED_PARTITIONS])
            raise ConfigError(f"partition by: no column {name!r}; there are {allowed}")
        if TIME_COLUMN not in names:
            raise ConfigError(f"partition by {name}: it is made from {TIME_COLUMN}, which is not written")
    if partition_by and not set(names) - set(partition_by):
        raise ConfigError("partition by: at least one column must remain in the files")


@dataclass(slots=True)
class _OpenFile:
    name: str
    target: str
    writer: Any
    pending: list[Any] = field(default_factory=list)
    pending_rows: int = 0
    pending_bytes: int = 0
    rows: int = 0


class ParquetStager:
    """Writes the rows of one task attempt; `finish` returns the files, `discard` removes them."""

    def __init__(
        self, root: Path, *, batch_id: int, partition_id: int, schema: Any, options: ParquetOptions
    ) -> None:
        self._root = root
        self._files = DataFiles(options.address or str(root.absolute()))
        self._batch_id = batch_id
        self._partition_id = partition_id
        self._options = options
        schema = with_utc(schema)
        left_out = () if options.keeps_partition_columns else options.partition_by
        self._file_schema = pa.schema([f for f in schema if f.name not in left_out])
        self._open: dict[str, _OpenFile] = {}
        self._parts: dict[str, int] = {}
        self._finished: list[StagedFile] = []

    def write(self, batch: Any) -> None:
        """Adds the rows of one RecordBatch."""
        for directory, rows in split_by_partition(batch, self._options.partition_by):
            file = self._open.get(directory) or self._create(directory)
            rows = rows.select(self._file_schema.names)
            file.pending.append(rows if rows.schema == self._file_schema else rows.cast(self._file_schema))
            file.pending_rows += rows.num_rows
            file.pending_bytes += rows.nbytes
            if file.pending_rows >= ROW_GROUP_ROWS or file.pending_bytes >= ROW_GROUP_BYTES:
                self._write_row_group(file)

    def finish(self) -> tuple[StagedFile, ...]:
        """Closes all files and returns them; they are on disk."""
        for directory in list(self._open):
            self._close(directory)
        return tuple(self._finished)

    def discard(self) -> None:
        """Removes everything that was written."""
        for file in self._open.values():
            file.writer.close()
            self._files.delete(file.name)
        for staged in self._finished:
            self._files.delete(staged.staged)
        self._open.clear()
        self._finished.clear()

    def _create(self, directory: str) -> _OpenFile:
        if len(self._open) >= FILES_OPEN_MAX:
            self._close(max(self._open, key=lambda name: (self._open[name].rows, name)))
        part = self._parts.get(directory, 0)
        self._parts[directory] = part + 1
        suffix = f"-{part}" if part else ""
        name = self._new_name(directory)
        names = self._file_schema.names
        writer = pq.ParquetWriter(
            self._files.path(name),
            self._file_schema,
            filesystem=self._files.system,
            compression=self._options.compression,
            use_dictionary=[name for name in _DICTIONARY_COLUMNS if name in names],
            write_statistics=[name for name in _STATISTICS_COLUMNS if name in names],
        )
        file = _OpenFile(
            name=name, target=f"{directory}part-{self._partition_id:05d}{suffix}.parquet", writer=writer
        )
        self._open[directory] = file
        return file

    def _new_name(self, directory: str) -> str:
        """Returns a name that no other attempt uses."""
        if not self._options.data_dir:
            staged = new_staged_path(self._root, self._batch_id, self._partition_id)
            return str(staged.relative_to(self._root))
        attempt = f"{self._batch_id:08d}-{self._partition_id:05d}-{uuid4().hex[:12]}.parquet"
        name = f"{self._options.data_dir}/{directory}{attempt}"
        self._files.make_room(name)
        return name

    def _write_row_group(self, file: _OpenFile) -> None:
        if not file.pending_rows:
            return
        table = pa.Table.from_batches(file.pending, schema=self._file_schema)
        file.writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        file.rows += file.pending_rows
        file.pending = []
        file.pending_rows = file.pending_bytes = 0

    def _close(self, directory: str) -> None:
        file = self._open.pop(directory)
        self._write_row_group(file)
        file.writer.close()
        self._files.sync(file.name)
        self._finished.append(
            StagedFile(
                staged=file.name,
                target=file.target,
                rows=file.rows,
                size_bytes=self._files.size(file.name),
            )
        )


def with_utc(schema: Any) -> Any:
    """Returns the schema with times in UTC. Spark names the time zone of its session, which Delta and Iceberg
    tables reject, and which would make files of other sessions differ. The instants are the same.
    """
    return pa.schema([field.with_type(_in_utc(field.type)) for field in schema])


def _in_utc(kind: Any) -> Any:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_in_utc(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    return kind


def split_by_partition(batch: Any, partition_by: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yields the rows of each partition directory (`dt=2025-01-31/`, empty without partition columns), in a
    fixed order.
    """
    if batch.num_rows == 0:
        return
    if not partition_by:
        yield "", batch
        return
    codes = np.zeros(batch.num_rows, dtype=np.int64)
    labels: list[list[str]] = []
    for name in partition_by:
        encoded = _partition_values(batch, name).dictionary_encode(null_encoding="encode")
        values = [_render_partition(name, value) for value in encoded.dictionary.to_pylist()]
        codes = codes * len(values) + np.asarray(encoded.indices)
        labels.append(values)
    # Several values may share a directory, for example null and an empty text.
    groups: dict[str, list[int]] = {}
    for code in np.unique(codes).tolist():
        groups.setdefault(_directory(code, labels), []).append(code)
    for directory in sorted(groups):
        rows = np.flatnonzero(np.isin(codes, groups[directory]))
        yield directory, batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))


def _directory(code: int, labels: list[list[str]]) -> str:
    parts: list[str] = []
    for values in reversed(labels):
        code, index = divmod(code, len(values))
        parts.append(values[index])
    return "/".join(reversed(parts)) + "/"


def _partition_values(batch: Any, name: str) -> Any:
    if name in batch.schema.names:
        return batch.column(name)
    times = batch.column(TIME_COLUMN).cast(pa.timestamp("us", "UTC"))
    return pc.strftime(times.cast(pa.timestamp("s", "UTC"), safe=False), format=DERIVED_PARTITIONS[name])


def _render_partition(name: str, value: object) -> str:
    if value is None or value == "":
        return f"{name}={NULL_PARTITION}"
    # Spark decodes each %XX as a character, not as a byte of one, so only ASCII may be encoded like that.
    parts = [char if ord(char) > 0x7F else quote(char, safe=" ,;@+()!~$&-_.") for char in str(value)]
    whole = f"{name}={''.join(parts)}"
    if len(whole.encode()) <= NAME_BYTES_MAX:
        return whole
    mark = f"...{crc32(str(value).encode()):08x}"
    ends = accumulate(len(part.encode()) for part in parts)
    kept = sum(end <= NAME_BYTES_MAX - len(f"{name}={mark}".encode()) for end in ends)
    return f"{name}={''.join(parts[:kept])}{mark}"
