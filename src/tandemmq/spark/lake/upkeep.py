"""Maintenance of a lake of any kind: compaction, and expiry of old rows and of orphans.

Parquet and Iceberg lakes are locked during the change, so no landing writes to them meanwhile; a Delta table
accepts a landing's appends during maintenance. Must not know Spark.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.parquet as pq

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.files import BAD_RECORDS_DIR, batch_dir, list_batches, staging_dir
from tandemmq.spark.lake.formats import find_table, list_live_files
from tandemmq.spark.lake.home import Lake, LakeFormat, hold_directory, require_lake
from tandemmq.spark.lake.merge import EXPIRED_MARK, TARGET_BYTES, merge_batches
from tandemmq.spark.lake.parquet import TIME_COLUMN

ORPHAN_AGE_S = 24 * 3600
"""The minimum age of an orphan, in seconds: a younger file that no log names may belong to a running
batch.
"""


def compact_lake(root: Path, *, target_bytes: int = TARGET_BYTES) -> tuple[int, int]:
    """Compacts the lake; returns its number of files before and after."""
    lake = require_lake(root)
    with _hold(lake):
        if lake.kind is LakeFormat.PARQUET:
            return merge_batches(root, target_bytes=target_bytes)
        before = len(list_live_files(lake))
        find_table(lake.kind).compact_table(lake, target_bytes)
        return before, len(list_live_files(lake))


def expire_lake(root: Path, days: int, *, now: datetime | None = None) -> int:
    """Deletes the files whose rows were all stored before the last `days` days (UTC), also those of
    `_bad_records`, and orphans; returns their number.
    """
    lake = require_lake(root)
    today = (now or datetime.now(UTC)).replace(hour=0, minute=0, second=0, microsecond=0)
    before = today - timedelta(days=days)
    with _hold(lake):
        bad = lake.bad_records.root
        gone = _expire_files(bad, before) + (0 if lake.kind is LakeFormat.DELTA else _discard_staged(bad))
        if lake.kind is LakeFormat.PARQUET:
            return gone + _expire_files(root, before) + _discard_staged(root)
        count = len(list_live_files(lake))
        find_table(lake.kind).expire_table(lake, before)
        return gone + count - len(list_live_files(lake)) + _remove_orphans(lake)


def _hold(lake: Lake) -> AbstractContextManager[None]:
    if lake.root.absolute().name == BAD_RECORDS_DIR:
        # Its own lock excludes no landing, and the lake counts the bad records of each batch.
        raise ConfigError(f"{lake.root} is a part of a lake: give the directory that contains it")
    return nullcontext() if lake.kind is LakeFormat.DELTA else hold_directory(lake.root)


def _expire_files(root: Path, before: datetime) -> int:
    count = 0
    for batch in list_batches(root)[:-1]:
        directory = batch_dir(root, batch)
        for path in sorted(directory.rglob("*.parquet")):
            newest = _newest_row(path)
            if newest is None or newest >= before:
                continue
            (directory / EXPIRED_MARK).touch()
            path.unlink()
            count += 1
    return count


def _discard_staged(root: Path) -> int:
    """Removes the staged files of killed tasks; no task may be writing."""
    staged = list(staging_dir(root).glob("*.staged")) if staging_dir(root).is_dir() else []
    for path in staged:
        path.unlink()
    return len(staged)


def _newest_row(path: Path) -> datetime | None:
    """Returns the newest store time in a file, from its footer; None if the footer lacks it."""
    footer = pq.read_metadata(path)
    names = footer.schema.to_arrow_schema().names
    if TIME_COLUMN not in names or not footer.num_row_groups:
        return None
    paths = [footer.schema.column(column).path for column in range(footer.num_columns)]
    newest: list[datetime] = []
    for number in range(footer.num_row_groups):
        statistics = footer.row_group(number).column(paths.index(TIME_COLUMN)).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        newest.append(statistics.max)
    return max(newest)


def find_orphans(lake: Lake) -> list[str]:
    """Returns the files that no snapshot names."""
    if lake.kind is LakeFormat.PARQUET:
        staged = sorted(staging_dir(lake.root).glob("*.staged"))
        return [str(path.relative_to(lake.root)) for path in staged]
    if lake.kind is LakeFormat.DELTA:
        live = list_live_files(lake)
    else:
        from tandemmq.spark.lake.iceberg import list_all_files

        live = list_all_files(lake)
    return [name for name in lake.data.list_parquet() if name not in live]


def _remove_orphans(lake: Lake) -> int:
    if lake.kind is LakeFormat.DELTA:
        return 0  # Delta's vacuum did that, and knows which files older versions still need
    data = lake.data
    limit_ns = (time.time() - ORPHAN_AGE_S) * 1e9
    old = [name for name in find_orphans(lake) if data.modified_ns(name) < limit_ns]
    for name in old:
        data.delete(name)
    return len(old)
