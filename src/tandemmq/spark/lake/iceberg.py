"""An Iceberg table through `pyiceberg`, its catalog a SQLite file in the lake's directory.

A batch is one commit. It names the files and sets the property `tandemmq.batch.QUERY` of the table, which a
replayed batch finds; the catalog takes only one of two commits that began at the same state. Columns that are
new are added in that commit too. Must not know Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform

from tandemmq.spark.lake.files import CommitOutcome, StagedFile
from tandemmq.spark.lake.parquet import TIME_COLUMN

CATALOG_FILE = "catalog.db"

# It warns of every column without bounds, for every file; we leave them out on purpose (bodies, maps).
logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
NAMESPACE = "tandemmq"
TABLE = f"{NAMESPACE}.messages"
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
