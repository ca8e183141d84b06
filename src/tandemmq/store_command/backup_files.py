"""Copies of a store that a broker uses, and of such a copy to a new store.

A backup is as a power cut leaves a store: tables first, then the log up to `end`, an offset that is confirmed
once the tables are copied. So no table is ahead of the log, and no byte below `end` changes meanwhile.
ConsumeQueues, key index and checkpoint are not copied: they are built from the log.

Invariants: `backup.json` exists only if everything else is whole and on the disk. A log file that an earlier
            backup has whole is not copied again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from tandemmq.errors import StoreError
from tandemmq.runtime.disk import RealDisk, sync_file, sync_tree
from tandemmq.units import MIB

MANIFEST: Final = "backup.json"
LOG: Final = "commitlog"
CHUNK_BYTES: Final = 8 * MIB
_FILES: Final = ("brokerIdentity", "brokerGroup", "epochFileCheckpoint", "epochFileCheckpoint.ids")
_PASSING: Final = ("truncate.pending", "tailDoubt")
"""Marks of a log that is about to be cut."""
_UNFINISHED: Final = (".bak", ".tmp")
_NAME_CHARS: Final = 20
_EDGE_BYTES: Final = 64 * 1024

Copied = Callable[[int], None]
"""Called with the number of log bytes since the last call."""


class BackupManifest(msgspec.Struct, frozen=True):
    """The log `[begin, end)` of a backup, and the time at which its tables were copied."""

    begin: int
    end: int
    made_at_ms: int
    version: str


def back_up(
    root: Path, log_dir: Path, target: Path, read_end: Callable[[], int], on_copied: Copied, **facts: object
) -> BackupManifest:
    """Copies a store, in use or not, to a new directory or over an earlier backup of it.

    `read_end` returns the confirmed offset; it is called after the tables are copied. `facts` are the other
    fields of the manifest.
    Raises:  StoreError when the log is about to be cut, or the target is not a backup; OSError.
    """
    if not log_dir.is_dir():
        raise StoreError(f"{log_dir} is not a directory: {root} is not a store on this machine")
    held = [name for name in _PASSING if (root / name).exists()]
    if held:
        raise StoreError(f"{root / held[0]} exists: the log is about to be cut; try again later")
    _require_backup(target)
    before = None if not (target / MANIFEST).exists() else read_manifest(target)
    (target / MANIFEST).unlink(missing_ok=True)
    _copy_tables(root, target)
    end = read_end()
    begin = _copy_log(log_dir, target / LOG, end, 0 if before is None else before.end, on_copied)
    sync_tree(target)
    manifest = msgspec.convert({"begin": begin, "end": end, **facts}, BackupManifest)
    _write(target / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
    return manifest


def read_manifest(backup: Path) -> BackupManifest:
    """Returns the manifest. Raises StoreError for a directory without a whole backup."""
    try:
        return msgspec.json.decode((backup / MANIFEST).read_bytes(), type=BackupManifest)
    except FileNotFoundError:
        raise StoreError(
            f"{backup} has no {MANIFEST}: it is not a backup, or an interrupted one; make it again"
        ) from None
    except msgspec.DecodeError as error:
        raise StoreError(f"{backup / MANIFEST}: {error}") from None


def copy_back(backup: Path, root: Path, on_copied: Copied) -> BackupManifest:
    """Copies a backup to a new store, without the files that are built from its log. Raises StoreError for
    an incomplete backup, or a directory that is not empty.
    """
    manifest = read_manifest(backup)
    if root.exists() and any(root.iterdir()):
        raise StoreError(f"{root} is not empty: restore to a new directory")
    root.mkdir(parents=True, exist_ok=True)
    _copy_tables(backup, root)
    _copy_log(backup / LOG, root / LOG, manifest.end, 0, on_copied)
    return manifest


def _require_backup(target: Path) -> None:
    """Raises StoreError for a directory with other files than those of a backup."""
    if not target.exists():
        target.mkdir(parents=True, mode=0o700)
        return
    known = {MANIFEST, LOG, "config", *_FILES}
    names = sorted(path.name for path in target.iterdir())
    strange = [name for name in names if name not in known and not name.endswith(_UNFINISHED)]
    if strange:
        raise StoreError(f"{target} has {strange[0]}, which no backup has: give a new directory")


def _copy_tables(root: Path, target: Path) -> None:
    shutil.rmtree(target / "config", ignore_errors=True)
    (target / "config").mkdir(parents=True)
    for path in _tables(root):
        copy = target / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(copy, path.read_bytes())
        except FileNotFoundError:  # a table that the broker has deleted since it was listed
            continue


def _tables(root: Path) -> Iterator[Path]:
    yield from (root / name for name in _FILES)
    for path in sorted((root / "config").rglob("*")):
        if path.is_file() and not path.name.endswith(_UNFINISHED):
            yield path


def _copy_log(source: Path, target: Path, end: int, end_before: int, on_copied: Copied) -> int:
    """Copies the log below `end`, and deletes copied files that the log no longer has. Returns its begin."""
    target.mkdir(parents=True, exist_ok=True)
    names = sorted(path.name for path in source.iterdir() if _is_log_file(path) and int(path.name) < end)
    kept: list[str] = []
    for name in names:
        try:
            size = (source / name).stat().st_size
            copy = target / name
            is_whole = copy.exists() and int(name) + size <= end_before
            if is_whole and not _has_equal_edges(source / name, copy):
                raise StoreError(f"{copy} differs from {source / name}: it is of another store")
            if not is_whole:
                _copy_file(source / name, copy, min(size, end - int(name)), size, on_copied)
        except FileNotFoundError:  # expired meanwhile, and so have all older ones
            kept.clear()
            continue
        kept.append(name)
    if not kept:
        raise StoreError(f"{source} has no log below {end}")
    for path in target.iterdir():
        if path.name not in kept:
            path.unlink()
    return int(kept[0])


def _has_equal_edges(source: Path, copy: Path) -> bool:
    """Compares the size, the begin and the end of two files."""
    sizes = [path.stat().st_size for path in (source, copy)]
    if sizes[0] != sizes[1]:
        return False
    edges: list[tuple[bytes, bytes]] = []
    for path in (source, copy):
        with path.open("rb") as file:
            begin = file.read(_EDGE_BYTES)
            file.seek(max(0, sizes[0] - _EDGE_BYTES))
            edges.append((begin, file.read()))
    return edges[0] == edges[1]


def _copy_file(source: Path, copy: Path, count: int, size: int, on_copied: Copied) -> None:
    """Copies the first `count` bytes; the rest of the file is a hole."""
    private = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with source.open("rb") as read, open(private, "wb") as written:
        left = count
        while left and (data := read.read(min(left, CHUNK_BYTES))):
            written.write(data)
            left -= len(data)
            on_copied(len(data))
        written.truncate(size)
    sync_file(copy)
    if left:
        raise StoreError(f"{source} ends {left} bytes before the confirmed offset")


def _is_log_file(path: Path) -> bool:
    return len(path.name) == _NAME_CHARS and path.name.isdecimal()


def _write(path: Path, data: bytes) -> None:
    RealDisk().write_atomically(path, data, is_private=True)
