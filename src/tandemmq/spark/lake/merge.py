"""Merges neighbouring batches of a Parquet lake into fewer, larger files.

A plain reader lists directories, so the change must be a single step. A second tree is built beside the lake,
from hard links to unchanged files and from the merged files, and the two trees are exchanged (renameat2 with
RENAME_EXCHANGE). A reader sees the old lake or the new one. A reader that listed the old one and opens a file
that is gone gets an error and must read again. A kill leaves either the old or the new lake, and a tree
beside it that the next run removes.

The newest batch stays as it is, because Spark may replay it. Must not know Spark.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tandemmq.errors import ConfigError
from tandemmq.spark.documents import read_document, sync_directory, sync_file
from tandemmq.spark.lake.files import (
    AFTER,
    BAD,
    SUMMARY_FILE,
    Crash,
    batch_dir,
    list_batches,
    no_crash,
    read_range,
)
from tandemmq.spark.lake.parquet import ROW_GROUP_ROWS
from tandemmq.units import MIB

TARGET_BYTES = 256 * MIB
EXPIRED_MARK = "_expired"
"""A marker file in a batch whose oldest rows were deleted."""

_EXCHANGE = 2
_AT_FDCWD = -100


def merge_batches(
    root: Path, *, target_bytes: int = TARGET_BYTES, crash: Crash = no_crash
) -> tuple[int, int]:
    """Replaces the lake with a compacted one; does nothing if no file could be saved. Returns the number of
    files before and after.

    The caller must hold the lake's lock. Raises:  ConfigError if the file system cannot exchange directories.
    """
    root = root.absolute()
    beside = root.with_name(f".{root.name}.compacting")
    shutil.rmtree(beside, ignore_errors=True)
    planned = plan_groups(root, target_bytes)
    groups = [group for group in planned if len(group) > 1 or _has_many_files(root, group[0])]
    before = count_files(root)
    if not groups:
        return before, before
    merged = {batch for group in groups for batch in group}
    for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
        number = entry.name.removeprefix("batch=")
        if number.isdecimal() and int(number) in merged:
            continue
        _link(Path(entry.path), beside / entry.name)
    for group in groups:
        _merge_group(root, beside, group)
    _sync_tree(beside)
    if _rows(beside) != _rows(root):
        raise AssertionError(f"{beside} has other rows than {root}; nothing was changed")
    crash("before exchange")
    _exchange(beside, root)
    sync_directory(root.parent)
    crash("after exchange")
    shutil.rmtree(beside, ignore_errors=True)
    return before, count_files(root)


def plan_groups(root: Path, target_bytes: int) -> list[list[int]]:
    """Returns groups of neighbouring batches to merge: equal columns, together at most `target_bytes`, and no
    batch missing between them, because a merged batch would count it among its own.
    """
    groups: list[list[int]] = []
    size, columns, covered = 0, None, range(0)
    for batch in list_batches(root)[:-1]:
        summary = read_document(batch_dir(root, batch) / SUMMARY_FILE) or {}
        there = summary.get("bytes", 0)
        names = _columns(root, batch)
        is_next = AFTER not in summary or summary[AFTER] in covered
        if not groups or not is_next or columns != names or size + there > target_bytes:
            groups.append([])
            size, columns = 0, names
        groups[-1].append(batch)
        size += there
        covered = read_range(root, batch)
    return groups


def data_files(root: Path) -> list[Path]:
    """Returns the committed files of a Parquet lake."""
    return sorted(path for batch in list_batches(root) for path in batch_dir(root, batch).rglob("*.parquet"))


def count_files(root: Path) -> int:
    """Returns the number of committed files of a Parquet lake."""
    return len(data_files(root))


def _columns(root: Path, batch: int) -> Any:
    first = next(iter(sorted(batch_dir(root, batch).rglob("*.parquet"))), None)
    return pq.read_schema(first).remove_metadata() if first is not None else None


def _has_many_files(root: Path, batch: int) -> bool:
    places = [path.parent for path in batch_dir(root, batch).rglob("*.parquet")]
    return len(places) > len(set(places))


def _merge_group(root: Path, beside: Path, group: Sequence[int]) -> None:
    target = batch_dir(beside, group[0])
    target.mkdir(parents=True)
    parts: dict[Path, list[Path]] = {}
    for batch in group:
        directory = batch_dir(root, batch)
        for path in sorted(directory.rglob("*.parquet")):
            parts.setdefault(path.parent.relative_to(directory), []).append(path)
    for place, paths in parts.items():
        (target / place).mkdir(parents=True, exist_ok=True)
        merge_files(paths, target / place / f"merged-{group[-1]:08d}.parquet")
    documents = [read_document(batch_dir(root, batch) / SUMMARY_FILE) or {} for batch in group]
    size = sum(path.stat().st_size for path in target.rglob("*.parquet"))
    rows, bad_rows = (sum(document.get(name, 0) for document in documents) for name in ("rows", BAD))
    document = {"rows": rows, "bytes": size, "batches": [group[0], read_range(root, group[-1])[-1]]}
    document |= {BAD: bad_rows} if bad_rows else {}
    document |= {AFTER: documents[0][AFTER]} if AFTER in documents[0] else {}
    (target / SUMMARY_FILE).write_text(json.dumps(document) + "\n")
    if any((batch_dir(root, batch) / EXPIRED_MARK).exists() for batch in group):
        (target / EXPIRED_MARK).touch()


def merge_files(paths: Sequence[Path | str], target: Path | str, system: Any = None) -> None:
    """Writes the rows of all files to one file, in order, with one row group in memory at a time.

    `system`: the Arrow file system of the files, by default the local one.
    """
    if len(paths) == 1:
        if system is None:
            os.link(paths[0], target)
        else:
            system.copy_file(paths[0], target)
        return
    with pq.ParquetFile(paths[0], filesystem=system) as first:
        schema, metadata = first.schema_arrow, first.metadata
        compression = metadata.row_group(0).column(0).compression if metadata.num_row_groups else "ZSTD"
        bounds = _columns_with_statistics(metadata)
    with pq.ParquetWriter(
        target, schema, compression=compression, write_statistics=bounds, filesystem=system
    ) as writer:
        for table in _read_in_groups(paths, system):
            writer.write_table(table)


def _read_in_groups(paths: Sequence[Path | str], system: Any) -> Iterator[Any]:
    import pyarrow as pa

    waiting: list[Any] = []
    count = 0
    for path in paths:
        with pq.ParquetFile(path, filesystem=system) as file:
            for batch in file.iter_batches(batch_size=ROW_GROUP_ROWS // 8):
                waiting.append(batch)
                count += batch.num_rows
                if count >= ROW_GROUP_ROWS:
                    yield pa.Table.from_batches(waiting)
                    waiting, count = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _columns_with_statistics(metadata: Any) -> list[str]:
    if not metadata.num_row_groups:
        return []
    group = metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return [column.path_in_schema for column in columns if column.statistics is not None]


def _link(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, copy_function=os.link)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, target)


def _sync_tree(root: Path) -> None:
    for directory, _, names in os.walk(root):
        for name in names:
            sync_file(Path(directory) / name)
        sync_directory(Path(directory))


def _rows(root: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in data_files(root))


def _exchange(one: Path, other: Path) -> None:
    """Exchanges the two directories in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    paths = (os.fsencode(one), os.fsencode(other))
    if libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _EXCHANGE) == 0:
        return
    code = ctypes.get_errno()
    raise ConfigError(
        f"{other}: its file system cannot let two directories change places"
        f" ({errno.errorcode.get(code, code)}); nothing was changed. A mount point or a link cannot be"
        " compacted, and NFS cannot do it"
    )
