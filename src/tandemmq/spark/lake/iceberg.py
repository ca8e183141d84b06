"""An Iceberg table through `pyiceberg`, its catalog a SQLite file in the lake's directory.

A batch is one commit. It names the files and sets the property `tandemmq.batch.QUERY` of the table, which a
replayed batch finds; the catalog takes only one of two commits that began at the same state. Columns that are
new are added in that commit too. Must not know Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.files import CommitOutcome, StagedFile, sync_dir, sync_file
from tandemmq.spark.lake.merge import merge_files
from tandemmq.spark.lake.parquet import TIME_COLUMN

CATALOG_FILE = "catalog.db"

# It warns of every column without bounds, for every file; we leave them out on purpose (bodies, maps).
logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
NAMESPACE = "tandemmq"
TABLE = f"{NAMESPACE}.messages"
SNAPSHOTS_KEPT = timedelta(days=7)
BATCH_PROPERTY = "tandemmq.batch."
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


def commit_iceberg(root: Path, batch_id: int, query_id: str, files: Sequence[StagedFile]) -> CommitOutcome:
    """Appends the files as one snapshot, unless the query's batch is in the table.

    Raises:  ValueError for columns that do not fit the table's.
    """
    schema = pq.read_schema(root / files[0].staged).remove_metadata()
    table = open_iceberg(root) or _create(root, schema)
    name = BATCH_PROPERTY + query_id
    if int(table.properties.get(name, -1)) >= batch_id:
        return CommitOutcome.ALREADY_COMMITTED
    with table.transaction() as change:
        with change.update_schema() as columns:
            columns.union_by_name(schema)
        change.set_properties({name: str(batch_id)})
        change.add_files(
            [_uri(root / file.staged) for file in files],
            snapshot_properties={"tandemmq.query": query_id, "tandemmq.batch": str(batch_id)},
        )
    return CommitOutcome.COMMITTED


def open_iceberg(root: Path) -> Table | None:
    """The table; None when there is none yet."""
    if not (root / CATALOG_FILE).exists():
        return None
    try:
        return _catalog(root).load_table(TABLE)
    except NoSuchTableError:
        return None


def look_at_iceberg(root: Path, query_id: str) -> tuple[int | None, list[Path]]:
    """Of one version of the table: the query's last batch, and the files.

    Raises:  ConfigError for a table with deleted rows inside of its files.
    """
    table = require_iceberg(root)
    if table.inspect.delete_files().num_rows:
        raise ConfigError(f"{root} has rows that were deleted inside of its files")
    last = table.properties.get(BATCH_PROPERTY + query_id)
    paths = table.inspect.data_files()["file_path"].to_pylist()
    return None if last is None else int(last), [Path(path.removeprefix("file://")) for path in paths]


def list_iceberg_files(root: Path) -> set[str]:
    """The files that the table consists of now, relative to the lake."""
    table = open_iceberg(root)
    if table is None:
        return set()
    paths = table.inspect.data_files()["file_path"].to_pylist()
    return {str(Path(path.removeprefix("file://")).relative_to(root.absolute())) for path in paths}


def _catalog(root: Path) -> SqlCatalog:
    return SqlCatalog(NAMESPACE, uri=f"sqlite:///{root.absolute() / CATALOG_FILE}", warehouse=_uri(root))


def _create(root: Path, schema: pa.Schema) -> Table:
    root.mkdir(parents=True, exist_ok=True)
    catalog = _catalog(root)
    catalog.create_namespace_if_not_exists(NAMESPACE)
    with (
        catalog.create_table_transaction(
            TABLE, schema, location=_uri(root), properties=_PROPERTIES
        ) as change,
        change.update_spec() as spec,
    ):
        if "topic" in schema.names:
            spec.add_field("topic", IdentityTransform(), "topic_part")
        if TIME_COLUMN in schema.names:
            spec.add_field(TIME_COLUMN, DayTransform(), "dt")
    return catalog.load_table(TABLE)


def _uri(path: Path) -> str:
    return f"file://{path.absolute()}"


def compact_iceberg(root: Path, target_bytes: int) -> None:
    """One file for each partition and set of columns, one commit per partition with several small ones.

    Files of at least half of `target_bytes` stay as they are.
    """
    table = require_iceberg(root)
    for (topic, day), files in sorted(_list_partitions(table).items()):
        small = [path for path, size in files if size < target_bytes // 2]
        if len(small) < 2:
            continue
        merged = [_merge(paths) for paths in _group_by_columns(small)]
        if len(merged) == len(small):
            continue
        kept = [path for path, size in files if size >= target_bytes // 2]
        table.refresh()
        with table.transaction() as change:
            change.delete(f"topic = '{topic}' and {_since(day)} and {_until(day + timedelta(days=1))}")
            change.add_files([_uri(path) for path in (*kept, *merged)], check_duplicate_files=False)


def _list_partitions(table: Table) -> dict[tuple[str, datetime], list[tuple[Path, int]]]:
    """The files and their sizes by topic and day; rows that have neither are left alone."""
    partitions: dict[tuple[str, datetime], list[tuple[Path, int]]] = {}
    columns = ["partition", "file_path", "file_size_in_bytes"]
    for file in table.inspect.data_files().select(columns).to_pylist():
        topic, date = file["partition"].get("topic_part"), file["partition"].get("dt")
        if topic is None or date is None:
            continue
        day = datetime.combine(date, datetime.min.time(), UTC)
        path = Path(file["file_path"].removeprefix("file://"))
        partitions.setdefault((topic, day), []).append((path, file["file_size_in_bytes"]))
    return {key: sorted(files) for key, files in partitions.items()}


def _group_by_columns(paths: Sequence[Path]) -> list[list[Path]]:
    groups: list[tuple[pa.Schema, list[Path]]] = []
    for path in paths:
        schema = pq.read_schema(path).remove_metadata()
        found = next((group for known, group in groups if known == schema), None)
        if found is None:
            groups.append((schema, [path]))
        else:
            found.append(path)
    return [group for _, group in groups]


def _merge(paths: Sequence[Path]) -> Path:
    target = paths[0].with_name(f"merged-{uuid4().hex[:12]}.parquet")
    merge_files(paths, target)
    sync_file(target)
    sync_dir(target.parent)
    return target


def expire_iceberg(root: Path, before: datetime) -> None:
    """Drops the days before `before`, and snapshots that are older than a week."""
    table = require_iceberg(root)
    table.delete(_until(before))
    table.maintenance.expire_snapshots().older_than(datetime.now() - SNAPSHOTS_KEPT).commit()


def list_all_files(root: Path) -> set[str]:
    """The files that any snapshot needs, relative to the lake."""
    paths = require_iceberg(root).inspect.all_data_files()["file_path"].to_pylist()
    return {str(Path(path.removeprefix("file://")).relative_to(root.absolute())) for path in paths}


def require_iceberg(root: Path) -> Table:
    """Raises ConfigError when there is no table."""
    table = open_iceberg(root)
    if table is None:
        raise ConfigError(f"{root} has no Iceberg table")
    return table


def _since(time: datetime) -> str:
    return f"{TIME_COLUMN} >= '{time.isoformat()}'"


def _until(time: datetime) -> str:
    return f"{TIME_COLUMN} < '{time.isoformat()}'"
