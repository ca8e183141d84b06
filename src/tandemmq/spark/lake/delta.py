"""A Delta table in a directory or an object store, through `deltalake`: a batch is one commit of its log.

The commit contains (query, batch) as an application transaction, which Delta keeps forever, so a batch that
is replayed after a crash is recognised. New columns are added to the table first; older files have nulls for
them. The statistics of a file come from its Parquet footer alone. Must not know Spark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import TableNotFoundError
from deltalake.schema import ArrayType, StructType
from deltalake.transaction import AddAction, create_table_with_add_actions

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.data_files import DataFiles
from tandemmq.spark.lake.files import CommitOutcome, CommittedFile, Partitions, StagedFile
from tandemmq.spark.lake.home import Lake
from tandemmq.spark.lake.parquet import NULL_PARTITION
from tandemmq.spark.lake.upsert import DELETED

TEXT_CHARS_MAX = 64
"""The longest text that gets bounds; a truncated upper bound would be wrong."""


def read_statistics(path: Path | str, system: Any = None) -> dict[str, Any]:
    """Returns `numRecords`, and `minValues`, `maxValues`, `nullCount` of columns with bounds in every row
    group.
    """
    footer = pq.read_metadata(path, filesystem=system)
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    without: set[str] = set()
    for group in (footer.row_group(number) for number in range(footer.num_row_groups)):
        for column in (group.column(number) for number in range(group.num_columns)):
            name = column.path_in_schema
            statistics = column.statistics
            if "." in name or statistics is None or not statistics.has_null_count:
                without.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + statistics.null_count
            if statistics.null_count == group.num_rows:
                continue
            if not statistics.has_min_max or _is_long(statistics.max) or _is_long(statistics.min):
                without.add(name)
                continue
            low[name] = min(low.get(name, statistics.min), statistics.min)
            high[name] = max(high.get(name, statistics.max), statistics.max)
    return {
        "numRecords": footer.num_rows,
        "minValues": {name: _render(value) for name, value in low.items() if name not in without},
        "maxValues": {name: _render(value) for name, value in high.items() if name not in without},
        "nullCount": {name: count for name, count in nulls.items() if name not in without},
    }


def _is_long(value: object) -> bool:
    return isinstance(value, bytes) or (isinstance(value, str) and len(value) > TEXT_CHARS_MAX)


def _render(value: Any) -> Any:
    if isinstance(value, datetime):
        # Delta rounds to milliseconds; readers allow for that.
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value


_PARTITION_TYPES = {"dt": pa.date32()}


def commit_table(lake: Lake, batch_id: int, query_id: str, files: Sequence[StagedFile]) -> CommitOutcome:
    """Appends the files as one transaction, unless the query's batch is in the log.

    Raises:  ConfigError for columns that are incompatible with the table's.
    """
    data = lake.data
    partitions = [_partition_values(file) for file in files]
    names = list(partitions[0])
    schema = _table_schema(data, files[0], names)
    properties = _mark(batch_id, query_id)
    added = [_add(data, file, values) for file, values in zip(files, partitions, strict=True)]
    table = open_delta(lake)
    if table is None:
        create_table_with_add_actions(
            data.place, Schema.from_arrow(schema), added, partition_by=names, commit_properties=properties
        )
        return CommitOutcome.COMMITTED
    known = table.transaction_version(query_id)
    if known is not None and known >= batch_id:
        return CommitOutcome.ALREADY_COMMITTED
    if list(table.metadata().partition_columns) != names:
        raise ConfigError(
            f"{lake.root} is partitioned by {table.metadata().partition_columns}, this batch by {names}"
        )
    _add_columns(table, schema)
    table.create_write_transaction([*added], "append", table.schema(), names, commit_properties=properties)
    return CommitOutcome.COMMITTED


def upsert_table(lake: Lake, batch_id: int, query_id: str, changes: pa.Table, key: str) -> CommitOutcome:
    """Updates, inserts and deletes rows by key as one transaction, unless the query's batch is in the log."""
    table = open_delta(lake)
    schema = changes.schema.remove(changes.schema.get_field_index(DELETED))
    if table is None:
        table = DeltaTable.create(lake.data.place, Schema.from_arrow(schema))
    known = table.transaction_version(query_id)
    if known is not None and known >= batch_id:
        return CommitOutcome.ALREADY_COMMITTED
    _add_columns(table, schema)
    values = {f"t.`{name}`": f"s.`{name}`" for name in schema.names}
    merge = table.merge(
        changes,
        f"s.`{key}` = t.`{key}`",
        source_alias="s",
        target_alias="t",
        commit_properties=_mark(batch_id, query_id),
    )
    merge.when_matched_delete(f"s.`{DELETED}`").when_matched_update(
        values, predicate=f"NOT s.`{DELETED}`"
    ).when_not_matched_insert(values, predicate=f"NOT s.`{DELETED}`").execute()
    return CommitOutcome.COMMITTED


def _mark(batch_id: int, query_id: str) -> CommitProperties:
    """Returns the properties by which a commit is recognised as that of the batch."""
    return CommitProperties(
        custom_metadata={"tandemmq.query": query_id, "tandemmq.batch": str(batch_id)},
        app_transactions=[Transaction(query_id, batch_id)],
    )


def open_delta(lake: Lake) -> DeltaTable | None:
    """Returns the table; None if there is none yet."""
    try:
        return DeltaTable(lake.data.place)
    except TableNotFoundError:
        return None


def read_table_state(lake: Lake, query_id: str) -> tuple[int | None, Partitions, list[str]]:
    """Returns, for one version of the table, the query's last batch, the partition values by file, and the
    file names.

    Raises:  ConfigError for a table with deleted rows inside its files.
    """
    table = require_delta(lake)
    if "deletionVectors" in (table.protocol().reader_features or ()):
        raise ConfigError(f"{lake.root} has data files with deleted rows (deletion vectors): unsupported")
    partitions: Partitions = {}
    paths = []
    names = table.metadata().partition_columns
    for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        # The path is percent-encoded.
        path = unquote(file["path"])
        values = {name: file[f"partition.{name}"] for name in names}
        partitions[path.rpartition("/")[2]] = {n: None if v is None else str(v) for n, v in values.items()}
        paths.append(path)
    return table.transaction_version(query_id), partitions, paths


def list_table_files(lake: Lake) -> list[CommittedFile]:
    """Returns the files in the current version of the table."""
    table = open_delta(lake)
    if table is None:
        return []
    data = lake.data
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [
        CommittedFile(data.name_of(unquote(file["path"])), file.get("num_records"), file["size_bytes"])
        for file in files
    ]


def _add_columns(table: DeltaTable, schema: pa.Schema) -> None:
    known = {field.name: field for field in table.schema().fields}
    wanted = Schema.from_arrow(schema).fields
    for field in wanted:
        if field.name in known and not _is_within(known[field.name].type, field.type):
            raise ConfigError(
                f"column {field.name} is {known[field.name].type} in the table, now {field.type}"
            )
    new = [field for field in wanted if field.name not in known or known[field.name].type != field.type]
    if new:
        table.alter.add_columns(new)
        table.update_incremental()


def _is_within(known: Any, wanted: Any) -> bool:
    """Returns True if the table's type equals the wanted one, or becomes it by adding fields to structs."""
    if isinstance(known, StructType) and isinstance(wanted, StructType):
        there = {field.name: field.type for field in wanted.fields}
        return all(
            field.name in there and _is_within(field.type, there[field.name]) for field in known.fields
        )
    if isinstance(known, ArrayType) and isinstance(wanted, ArrayType):
        return _is_within(known.element_type, wanted.element_type)
    return bool(known == wanted)


def _table_schema(data: DataFiles, first: StagedFile, partitions: Sequence[str]) -> pa.Schema:
    file_schema = pq.read_schema(data.path(first.staged), filesystem=data.system).remove_metadata()
    fields = [pa.field(field.name, field.type, nullable=True) for field in file_schema]
    fields += [pa.field(name, _PARTITION_TYPES.get(name, pa.string())) for name in partitions]
    return pa.schema(fields)


def _partition_values(file: StagedFile) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for part in file.target.split("/")[:-1]:
        name, _, text = part.partition("=")
        values[name] = None if text == NULL_PARTITION else unquote(text)
    return values


def _add(data: DataFiles, file: StagedFile, partition: dict[str, str | None]) -> AddAction:
    statistics: dict[str, Any] = read_statistics(data.path(file.staged), data.system)
    return AddAction(
        path=file.staged,
        size=file.size_bytes,
        partition_values=partition,
        modification_time=data.modified_ns(file.staged) // 1_000_000,
        data_change=True,
        stats=json.dumps(statistics),
    )


def require_delta(lake: Lake) -> DeltaTable:
    """Returns the table; raises ConfigError if there is none."""
    table = open_delta(lake)
    if table is None:
        raise ConfigError(f"{lake.root} has no Delta table")
    return table


def expire_table(lake: Lake, before: datetime) -> None:
    """Deletes the days before `before`, and files that no version of the last week needs.

    Raises:  ConfigError for a table that is not partitioned by day.
    """
    table = require_delta(lake)
    if "dt" not in table.metadata().partition_columns:
        raise ConfigError(f"{lake.root} is not partitioned by dt: nothing can expire by days")
    table.delete(f"dt < '{before:%Y-%m-%d}'")
    table.vacuum(dry_run=False, full=True)


def compact_table(lake: Lake, target_bytes: int) -> None:
    """Merges small files into ones of about `target_bytes`."""
    require_delta(lake).optimize.compact(target_size=target_bytes)
