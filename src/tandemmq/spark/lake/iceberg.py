"""An Iceberg table through `pyiceberg`. Its catalog is a SQLite file in the lake's directory, or a catalog of
any kind from the settings of `pyiceberg` (`~/.pyiceberg.yaml`, `PYICEBERG_CATALOG__...`).

A batch is one commit. It adds the files and sets the table property `tandemmq.batch.QUERY`, by which a
replayed batch is recognised. Of two commits that began at the same state the catalog accepts only one. New
columns are added in the same commit. Must not know Spark.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import In, Reference
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.catalogs import BATCH_PROPERTY, close_connections, open_catalog
from tandemmq.spark.lake.data_files import DataFiles, s3_settings
from tandemmq.spark.lake.files import CommitOutcome, CommittedFile, Partitions, StagedFile
from tandemmq.spark.lake.home import CATALOG_FILE, Lake
from tandemmq.spark.lake.merge import merge_files
from tandemmq.spark.lake.parquet import TIME_COLUMN
from tandemmq.spark.lake.upsert import DELETED

# pyiceberg warns about every column without bounds, for every file; bodies and maps have none on purpose.
logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
NAMESPACE = "tandemmq"
TABLE = f"{NAMESPACE}.messages"
SNAPSHOTS_KEPT = timedelta(days=7)
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


def commit_table(lake: Lake, batch_id: int, query_id: str, files: Sequence[StagedFile]) -> CommitOutcome:
    """Appends the files as one snapshot, unless the query's batch is in the table.

    Raises:  ValueError for columns that are incompatible with the table's.
    """
    data = lake.data
    schema = pq.read_schema(data.path(files[0].staged), filesystem=data.system).remove_metadata()
    table = open_iceberg(lake) or _create(lake, schema)
    name = BATCH_PROPERTY + query_id
    if int(table.properties.get(name, -1)) >= batch_id:
        return CommitOutcome.ALREADY_COMMITTED
    with table.transaction() as change:
        with change.update_schema() as columns:
            columns.union_by_name(schema)
        change.set_properties({name: str(batch_id)})
        change.add_files(
            [data.uri(file.staged) for file in files],
            snapshot_properties={"tandemmq.query": query_id, "tandemmq.batch": str(batch_id)},
        )
    return CommitOutcome.COMMITTED


def upsert_table(lake: Lake, batch_id: int, query_id: str, changes: pa.Table, key: str) -> CommitOutcome:
    """Updates, inserts and deletes rows by key as one commit, unless the query's batch is in the table.

    Files with a row of a changed key are written anew without it; the new rows are appended.
    """
    rows = changes.filter(pc.invert(changes.column(DELETED))).drop_columns([DELETED])
    # To write rows of a day's partition pyiceberg would need one more package.
    table = open_iceberg(lake) or _create(lake, rows.schema, is_partitioned=False)
    name = BATCH_PROPERTY + query_id
    if int(table.properties.get(name, -1)) >= batch_id:
        return CommitOutcome.ALREADY_COMMITTED
    keys = set(changes.column(key).to_pylist())
    with table.transaction() as change, warnings.catch_warnings():
        # pyiceberg warns if none of the keys is there yet.
        warnings.simplefilter("ignore")
        with change.update_schema() as columns:
            columns.union_by_name(rows.schema)
        change.set_properties({name: str(batch_id)})
        change.delete(In(term=Reference(key), values=keys))
        if rows.num_rows:
            change.append(rows)
    return CommitOutcome.COMMITTED


def open_iceberg(lake: Lake) -> Table | None:
    """Returns the table; None if there is none yet."""
    if not (lake.root / CATALOG_FILE).exists() and not lake.catalog:
        return None
    try:
        return _catalog(lake).load_table(lake.table or TABLE)
    except NoSuchTableError:
        return None


def read_table_state(lake: Lake, query_id: str) -> tuple[int | None, Partitions, list[str]]:
    """Returns the query's last batch, partition values, and the names of the files, all of one version of the
    table. The partition values are empty, because the files contain these columns.

    Raises:  ConfigError for a table with deleted rows inside its files.
    """
    table = require_iceberg(lake)
    if table.inspect.delete_files().num_rows:
        raise ConfigError(f"{lake.root} has data files with deleted rows: unsupported")
    last = table.properties.get(BATCH_PROPERTY + query_id)
    paths = table.inspect.data_files()["file_path"].to_pylist()
    data = lake.data
    return None if last is None else int(last), {}, [data.name_of(path) for path in paths]


def list_table_files(lake: Lake) -> list[CommittedFile]:
    """Returns the files in the current version of the table."""
    table = open_iceberg(lake)
    if table is None:
        return []
    data = lake.data
    columns = ["file_path", "record_count", "file_size_in_bytes"]
    files = table.inspect.data_files().select(columns).to_pylist()
    return [CommittedFile(data.name_of(path), rows, size) for path, rows, size in (f.values() for f in files)]


def _catalog(lake: Lake) -> Catalog:
    if lake.catalog:
        return open_catalog(lake.catalog)
    place = f"sqlite:///{lake.root.absolute() / CATALOG_FILE}"
    return close_connections(SqlCatalog(NAMESPACE, uri=place, warehouse=_location(lake), **s3_settings()))


def _location(lake: Lake) -> str:
    return lake.data.uri("").rstrip("/")


def _create(lake: Lake, schema: pa.Schema, *, is_partitioned: bool = True) -> Table:
    lake.root.mkdir(parents=True, exist_ok=True)
    catalog = _catalog(lake)
    name = lake.table or TABLE
    catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
    with (
        catalog.create_table_transaction(
            name, schema, location=_location(lake), properties=_PROPERTIES
        ) as change,
        change.update_spec() as spec,
    ):
        if is_partitioned and "topic" in schema.names:
            spec.add_field("topic", IdentityTransform(), "topic_part")
        if is_partitioned and TIME_COLUMN in schema.names:
            spec.add_field(TIME_COLUMN, DayTransform(), "dt")
    return catalog.load_table(name)


def compact_table(lake: Lake, target_bytes: int) -> None:
    """Merges the small files of each partition into one per set of columns, with one commit per partition.

    Files of at least half of `target_bytes` are left as they are. A partition that another writer changed
    while its files were merged is also left as it is; otherwise the new rows would be lost.
    """
    table, data = require_iceberg(lake), lake.data
    present, seen = _list_partitions(table, data), table.metadata.current_snapshot_id
    for (topic, day), files in sorted(present.items()):
        small = [name for name, size in files if size < target_bytes // 2]
        if len(small) < 2:
            continue
        merged = [_merge(data, names) for names in _group_by_columns(data, small)]
        if len(merged) == len(small):
            continue
        kept = [name for name, size in files if size >= target_bytes // 2]
        table.refresh()
        if table.metadata.current_snapshot_id != seen:
            present, seen = _list_partitions(table, data), table.metadata.current_snapshot_id
        if present.get((topic, day)) != files:
            for name in merged:
                data.delete(name)
            continue
        with table.transaction() as change:
            change.delete(f"topic = '{topic}' and {_since(day)} and {_until(day + timedelta(days=1))}")
            change.add_files([data.uri(name) for name in (*kept, *merged)], check_duplicate_files=False)
        seen = table.metadata.current_snapshot_id


def _list_partitions(table: Table, data: DataFiles) -> dict[tuple[str, datetime], list[tuple[str, int]]]:
    """Returns the files and their sizes by topic and day; files without a topic or day are left out."""
    partitions: dict[tuple[str, datetime], list[tuple[str, int]]] = {}
    columns = ["partition", "file_path", "file_size_in_bytes"]
    for file in table.inspect.data_files().select(columns).to_pylist():
        topic, date = file["partition"].get("topic_part"), file["partition"].get("dt")
        if topic is None or date is None:
            continue
        day = datetime.combine(date, datetime.min.time(), UTC)
        name = data.name_of(file["file_path"])
        partitions.setdefault((topic, day), []).append((name, file["file_size_in_bytes"]))
    return {key: sorted(files) for key, files in partitions.items()}


def _group_by_columns(data: DataFiles, names: Sequence[str]) -> list[list[str]]:
    groups: list[tuple[pa.Schema, list[str]]] = []
    for name in names:
        schema = pq.read_schema(data.path(name), filesystem=data.system).remove_metadata()
        found = next((group for known, group in groups if known == schema), None)
        if found is None:
            groups.append((schema, [name]))
        else:
            found.append(name)
    return [group for _, group in groups]


def _merge(data: DataFiles, names: Sequence[str]) -> str:
    target = f"{names[0].rpartition('/')[0]}/merged-{uuid4().hex[:12]}.parquet"
    merge_files([data.path(name) for name in names], data.path(target), data.system)
    data.sync(target)
    data.sync_parents(target)
    return target


def expire_table(lake: Lake, before: datetime) -> None:
    """Deletes the days before `before`, and expires snapshots older than a week."""
    table = require_iceberg(lake)
    table.delete(_until(before))
    table.maintenance.expire_snapshots().older_than(datetime.now() - SNAPSHOTS_KEPT).commit()


def list_all_files(lake: Lake) -> set[str]:
    """Returns the names of the files that any snapshot needs."""
    data = lake.data
    paths = require_iceberg(lake).inspect.all_data_files()["file_path"].to_pylist()
    return {data.name_of(path) for path in paths}


def require_iceberg(lake: Lake) -> Table:
    """Returns the table; raises ConfigError if there is none."""
    table = open_iceberg(lake)
    if table is None:
        raise ConfigError(f"{lake.root} has no Iceberg table")
    return table


def _since(time: datetime) -> str:
    return f"{TIME_COLUMN} >= '{time.isoformat()}'"


def _until(time: datetime) -> str:
    return f"{TIME_COLUMN} < '{time.isoformat()}'"
