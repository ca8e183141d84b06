"""The kinds of lake behind one small interface: tasks write files, and the driver commits a batch once.

    parquet   a directory per batch, renamed into place; needs only pyarrow (`files`)
    delta     a Delta table; the batch is an application transaction of its log (`delta`, needs deltalake)
    iceberg   an Iceberg table; the batch is a table property, set with the files (`iceberg`, needs pyiceberg)

The files of the two tables are written directly under `data/`. No reader sees them before the table's log
names them. Files of killed tasks stay there until they are removed as orphans.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from tandemmq.spark.lake.files import (
    CommitOutcome,
    CommittedFile,
    Crash,
    Partitions,
    StagedFile,
    claim_lake,
    commit_batch,
    no_crash,
)
from tandemmq.spark.lake.home import Lake, LakeFormat, check_table
from tandemmq.spark.lake.summaries import record_summary

if TYPE_CHECKING:
    import pyarrow as pa


class LakeTable(Protocol):
    """The functions that both modules of tables have, `delta` and `iceberg`.

    `list_table_files`: the files of the current version, with the sizes that its log has of them. A file that
    the log names twice is there twice.
    """

    def commit_table(
        self, lake: Lake, batch_id: int, query_id: str, files: Sequence[StagedFile]
    ) -> CommitOutcome: ...
    def upsert_table(
        self, lake: Lake, batch_id: int, query_id: str, changes: pa.Table, key: str
    ) -> CommitOutcome: ...
    def list_table_files(self, lake: Lake) -> list[CommittedFile]: ...
    def read_table_state(self, lake: Lake, query_id: str) -> tuple[int | None, Partitions, list[str]]: ...
    def compact_table(self, lake: Lake, target_bytes: int) -> None: ...
    def expire_table(self, lake: Lake, before: datetime) -> None: ...


def find_table(kind: LakeFormat) -> LakeTable:
    """Returns the module of a kind of table; each imports a library that other lakes do not need."""
    if kind is LakeFormat.DELTA:
        from tandemmq.spark.lake import delta

        return delta
    from tandemmq.spark.lake import iceberg

    return iceberg


def commit_files(
    lake: Lake,
    batch_id: int,
    query_id: str,
    files: Sequence[StagedFile],
    bad_files: Sequence[StagedFile] = (),
    *,
    key: str = "",
    crash: Crash = no_crash,
) -> CommitOutcome:
    """Makes all files of a batch visible at once, unless the batch is visible already. With `key`, their rows
    replace those of the same key in a table. `bad_files`: of the batch's bad records.

    Raises:  ConfigError if the lake belongs to another query, has another key, or has another table.
    """
    check_table(lake)
    lake.save()
    # The lake is committed last: if it has the batch, the batch is complete, and a replay changes neither
    # lake.
    if bad_files:
        commit_batch(lake.bad_records.root, batch_id, query_id, bad_files)
    bad_rows = sum(file.rows for file in bad_files)
    if lake.kind is LakeFormat.PARQUET:
        outcome = commit_batch(lake.root, batch_id, query_id, files, bad_rows)
    else:
        claim_lake(lake.root, query_id, key)
        outcome = _commit_rows(lake, batch_id, query_id, files, key, crash) if files else CommitOutcome.EMPTY
    has_directory = lake.kind is LakeFormat.PARQUET and bool(files)
    if (files or bad_files) and not has_directory:
        # The lake has no other record that the batch is complete.
        record_summary(lake.root, batch_id, files, bad_rows)
    return outcome


def _commit_rows(
    lake: Lake, batch_id: int, query_id: str, files: Sequence[StagedFile], key: str, crash: Crash
) -> CommitOutcome:
    """Commits the files to the log of the lake's table."""
    data = lake.data
    if not key:
        for file in files:
            data.sync_parents(file.staged)
    crash("before commit")
    table = find_table(lake.kind)
    if key:
        from tandemmq.spark.lake.upsert import read_changes

        outcome = table.upsert_table(lake, batch_id, query_id, read_changes(data, files, key), key)
    else:
        outcome = table.commit_table(lake, batch_id, query_id, files)
    crash("after commit")
    if key or outcome is CommitOutcome.ALREADY_COMMITTED:
        # Attempts have separate file names, but a file that the table may need is never removed.
        live = list_live_files(lake)
        for file in files:
            if file.staged not in live:
                data.delete(file.staged)
    return outcome


def list_live_files(lake: Lake) -> set[str]:
    """Returns the files under `data/` in the current version of a table, by their names below its place."""
    return {file.name for file in find_table(lake.kind).list_table_files(lake)}
