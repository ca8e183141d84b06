"""The kinds of lake behind one small interface: tasks write files, and the driver commits a batch once.

    parquet   a directory per batch, renamed into place; needs only pyarrow (`files`)
    delta     a Delta table; the batch is an application transaction of its log (`delta`, needs deltalake)
    iceberg   an Iceberg table; the batch is a table property, set with the files (`iceberg`, needs pyiceberg)

The files of the two tables are written directly under `data/`. No reader sees them before the table's log
names them. Files of killed tasks stay there until they are removed as orphans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tandemmq.errors import ConfigError, install_hint
from tandemmq.spark.documents import read_document, write_document
from tandemmq.spark.lake.files import (
    BAD,
    BAD_RECORDS_DIR,
    CONTROL_DIR,
    SUMMARY_FILE,
    CommitOutcome,
    CommittedFile,
    Crash,
    StagedFile,
    Totals,
    batch_dir,
    claim_lake,
    commit_batch,
    list_batches,
    no_crash,
    read_summary,
    summarize,
)
from tandemmq.spark.lake.home import (
    DATA_DIR,
    LakeFormat,
    Partitions,
    TableHome,
    find_files,
    find_home,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tandemmq.spark.lake.parquet import ParquetOptions

SUMMARIES_DIR = "batches"
TABLE_PARTITIONS = ("topic", "dt")
"""The default partition columns of tables, as far as the data has them."""

_PACKAGES = {LakeFormat.DELTA: "deltalake", LakeFormat.ICEBERG: "pyiceberg"}


class LakeTable(Protocol):
    """The functions that both modules of tables have, `delta` and `iceberg`.

    `list_table_files`: the files of the current version, with the sizes that its log has of them. A file that
    the log names twice is there twice.
    """

    def commit_table(
        self, root: Path, batch_id: int, query_id: str, files: Sequence[StagedFile]
    ) -> CommitOutcome: ...
    def upsert_table(
        self, root: Path, batch_id: int, query_id: str, changes: pa.Table, key: str
    ) -> CommitOutcome: ...
    def list_table_files(self, root: Path) -> list[CommittedFile]: ...
    def read_table_state(self, root: Path, query_id: str) -> tuple[int | None, Partitions, list[str]]: ...
    def compact_table(self, root: Path, target_bytes: int) -> None: ...
    def expire_table(self, root: Path, before: datetime) -> None: ...


def find_table(kind: LakeFormat) -> LakeTable:
    """Returns the module of a kind of table; each imports a library that other lakes do not need."""
    if kind is LakeFormat.DELTA:
        from tandemmq.spark.lake import delta

        return delta
    from tandemmq.spark.lake import iceberg

    return iceberg


def parse_format(text: str) -> LakeFormat:
    """Returns the kind; raises ConfigError for an unknown one, or one whose package is not installed."""
    try:
        kind = LakeFormat(text.lower())
    except ValueError:
        raise ConfigError(f"format: expected one of {', '.join(LakeFormat)}, got {text!r}") from None
    package = _PACKAGES.get(kind)
    if package and find_spec(package) is None:
        raise ConfigError(f"format {kind} needs {package}: {install_hint('spark', kind)}")
    return kind


def make_home(kind: str, data: str, catalog: str, table: str) -> TableHome:
    """Returns the kind and location of the table: at `data`, or as the catalog says.

    Raises:  ConfigError for an impossible combination, and as `parse_format`.
    """
    home = TableHome(kind=parse_format(kind), address=data, catalog=catalog, table=table)
    if not catalog:
        return home
    from tandemmq.spark.lake.iceberg import find_location

    location = find_location(catalog, table)
    if location is None and not home.address:
        raise ConfigError(f"catalog {catalog} has no table {table}; set the address of its files with --data")
    address = home.address if location is None else location.rstrip("/")
    if home.address and address != home.address:
        raise ConfigError(f"{table} of the catalog {catalog} is at {address}, not at {home.address}")
    return replace(home, address=address)


def plan_files(
    kind: LakeFormat,
    names: Sequence[str],
    partition_by: Sequence[str],
    compression: str,
    address: str = "",
) -> ParquetOptions:
    """Returns the options with which tasks write files with these columns.

    Raises:  ConfigError if they cannot be partitioned or compressed that way.
    """
    from tandemmq.spark.lake.parquet import TIME_COLUMN, ParquetOptions, check_partition_columns

    columns, is_table = tuple(partition_by), kind is not LakeFormat.PARQUET
    if is_table and not columns:
        there = {*names, *(("dt",) if TIME_COLUMN in names else ())}
        columns = tuple(name for name in TABLE_PARTITIONS if name in there)
    if kind is LakeFormat.ICEBERG and not set(columns) <= set(TABLE_PARTITIONS):
        raise ConfigError(f"iceberg tables are partitioned by {' and '.join(TABLE_PARTITIONS)} only")
    check_partition_columns(names, columns)
    return ParquetOptions(
        partition_by=columns,
        compression=compression,
        data_dir=DATA_DIR if is_table else "",
        address=address,
        keeps_partition_columns=kind is LakeFormat.ICEBERG,
    )


def commit_files(
    kind: LakeFormat,
    root: Path,
    batch_id: int,
    query_id: str,
    files: Sequence[StagedFile],
    crash: Crash = no_crash,
    key: str = "",
    bad_rows: int = 0,
) -> CommitOutcome:
    """Makes all files of a batch visible at once, unless the batch is visible already. With `key`, their rows
    replace those of the same key in a table. `bad_rows`: the number of the batch's bad records.

    Raises:  ConfigError if the lake belongs to another query, has another key, or is of another kind.
    """
    _check_same(root, find_home(root), kind)
    if kind is LakeFormat.PARQUET:
        return commit_batch(root, batch_id, query_id, files, bad_rows)
    claim_lake(root, query_id, key)
    if not files:
        return CommitOutcome.EMPTY
    data = find_files(root)
    if not key:
        for file in files:
            data.sync_parents(file.staged)
    crash("before commit")
    table = find_table(kind)
    if key:
        from tandemmq.spark.lake.upsert import read_changes

        outcome = table.upsert_table(root, batch_id, query_id, read_changes(data, files, key), key)
    else:
        outcome = table.commit_table(root, batch_id, query_id, files)
    crash("after commit")
    if key or outcome is CommitOutcome.ALREADY_COMMITTED:
        # Attempts have separate file names, but a file that the table may need is never removed.
        live = list_live_files(kind, root)
        for file in files:
            if file.staged not in live:
                data.delete(file.staged)
    record_summary(root, batch_id, files, bad_rows)
    return outcome


def list_live_files(kind: LakeFormat, root: Path) -> set[str]:
    """Returns the files under `data/` in the current version of a table, by their names below its home."""
    return {file.name for file in find_table(kind).list_table_files(root)}


def _check_same(root: Path, known: TableHome | None, kind: LakeFormat) -> None:
    """Raises ConfigError if a lake of another kind was found in the directory."""
    if known is not None and known.kind is not kind:
        raise ConfigError(f"{root} is a {known.kind} lake, not {kind}: give its format, or another directory")


def check_table(root: Path, home: TableHome) -> None:
    """Rejects a table that another lake has written, because its rows would silently be doubled.

    Raises:  ConfigError for such a table, and for a lake of another kind or whose table is elsewhere.
    """
    known = find_home(root)
    _check_same(root, known, home.kind)
    if known is not None and known != home:
        place = f"at {known.address or known.table}" if known.is_elsewhere else "in that directory"
        raise ConfigError(
            f"the table of {root} is {place}, not at {home.address or home.table or 'the directory'}: give"
            " the same --data, --catalog and --table as before, or another directory"
        )
    if not home.is_elsewhere or known is not None:
        return
    if home.catalog:
        from tandemmq.spark.lake.iceberg import find_writers

        writers = find_writers(home.catalog, home.table)
    else:
        writers = [name for name in ("_delta_log", "metadata") if home.files(root).has(name)]
    if writers:
        raise ConfigError(
            f"{home.table or home.address} was written by another landing ({', '.join(writers)}), and {root}"
            " is new: give the directory of that landing, or another table"
        )


def list_committed(root: Path) -> list[int]:
    """Returns the numbers of the committed batches that had rows, ascending; for a table, those that its
    writer recorded.
    """
    found = set(list_batches(root))
    directory = root / CONTROL_DIR / SUMMARIES_DIR
    if directory.is_dir():
        found.update(int(entry.stem) for entry in directory.glob("*.json"))
    return sorted(found)


def is_begun(root: Path) -> bool:
    """Returns True if anything has been landed, good rows or bad records."""
    return bool(list_committed(root) or list_batches(root / BAD_RECORDS_DIR))


def read_committed(root: Path, batch_id: int) -> Totals:
    """Returns the size of a batch in any kind of lake."""
    document = read_document(_summary_path(root, batch_id))
    if document is None:
        return read_summary(root, batch_id)
    return Totals(rows=int(document["rows"]), size_bytes=int(document["bytes"]))


def _summary_path(root: Path, batch_id: int) -> Path:
    return root / CONTROL_DIR / SUMMARIES_DIR / f"{batch_id:08d}.json"


def record_summary(root: Path, batch_id: int, files: Sequence[StagedFile], bad_rows: int = 0) -> None:
    """Records the size of a committed batch; a replay has the same rows and records it again."""
    write_document(_summary_path(root, batch_id), summarize(files, bad_rows))


def read_bad_rows(root: Path, batch_id: int) -> int:
    """Returns the number of bad records of a committed batch; 0 if an earlier release committed it."""
    paths = (_summary_path(root, batch_id), batch_dir(root, batch_id) / SUMMARY_FILE)
    return max(int((read_document(path) or {}).get(BAD, 0)) for path in paths)
