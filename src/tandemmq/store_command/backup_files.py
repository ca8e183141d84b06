"""Copies of a store that a broker uses, and of such a copy to a new store.

A backup is as a power cut leaves a store: tables first, then the log up to `end`, an offset that is confirmed
once the tables are copied. So no table is ahead of the log, and no byte below `end` changes meanwhile.
ConsumeQueues, key index and checkpoint are not copied: they are built from the log.

Invariants: `backup.json` exists only if everything else is whole and on the disk. What an earlier backup has
            of the log is not copied again. An update that fails (the broker stops, the disk is full, it is
            another store) leaves the earlier backup whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from tandemmq.errors import StoreError
from tandemmq.runtime.disk import RealDisk, remove_tree, sync_file, sync_tree
from tandemmq.units import MIB

MANIFEST: Final = "backup.json"
LOG: Final = "commitlog"
CHUNK_BYTES: Final = 8 * MIB
_FILES: Final = ("brokerIdentity", "brokerGroup", "epochFileCheckpoint", "epochFileCheckpoint.ids")
_PASSING: Final = ("truncate.pending", "tailDoubt")
"""Marks of a log that is about to be cut."""
_UNFINISHED: Final = (".bak", ".tmp")
_LOCK: Final = "lock"
_NEW_TABLES: Final = "tables.tmp"
_NAME_CHARS: Final = 20
_EDGE_BYTES: Final = 64 * 1024

Copied = Callable[[int], None]
"""Called with the number of log bytes since the last call."""


class BackupManifest(msgspec.Struct, frozen=True):
    """The log `[begin, end)` of a backup, the time at which its tables were copied, and their SHA-256."""

    begin: int
    end: int
    made_at_ms: int
    version: str
    tables: dict[str, str] = {}


def back_up(
    root: Path, log_dir: Path, target: Path, read_end: Callable[[], int], on_copied: Copied, **facts: object
) -> BackupManifest:
    """Copies a store, in use or not, to a new directory or over an earlier backup of it.

    `read_end` returns the confirmed offset; it is called after the tables are copied. `facts` are the other
    fields of the manifest.
    Raises:  StoreError when the log is about to be cut, the target is not a backup of it or has more of it,
             or another process writes to it; OSError.
    """
    if not log_dir.is_dir():
        raise StoreError(f"{log_dir} is not a directory: {root} is not a store on this machine")
    held = [name for name in _PASSING if (root / name).exists()]
    if held:
        raise StoreError(f"{root / held[0]} exists: the log is about to be cut; try again later")
    _require_backup(target)
    lock = RealDisk().lock(target / _LOCK)
    try:
        before = read_manifest(target) if (target / MANIFEST).exists() else None
        end_before = 0 if before is None else before.end
        _require_same_log(log_dir, target / LOG, end_before)
        new = target / _NEW_TABLES
        remove_tree(new)
        tables = _copy_tables(root, new)
        end = read_end()
        if end < end_before:
            raise StoreError(f"the log is confirmed up to {end}, but {target} has it up to {end_before}")
        kept = _copy_log(log_dir, target / LOG, end, end_before, on_copied)
        sync_tree(target)
        (target / MANIFEST).unlink(missing_ok=True)
        for name in ("config", *_FILES):
            remove_tree(target / name)
        for path in new.iterdir():
            path.rename(target / path.name)
        new.rmdir()
        for path in (target / LOG).iterdir():
            if path.name not in kept:
                path.unlink()
        sync_tree(target)
        begin = int(kept[0])
        manifest = msgspec.convert({"begin": begin, "end": end, "tables": tables, **facts}, BackupManifest)
        _write(target / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        return manifest
    finally:
        lock.release()


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


def damaged_files(restored: Path, manifest: BackupManifest) -> list[str]:
    """Returns the tables that are not those of the manifest, and the first log file if it is missing."""
    found = [name for name, digest in manifest.tables.items() if _digest(restored / name) != digest]
    first = Path(LOG) / f"{manifest.begin:0{_NAME_CHARS}}"
    return found if (restored / first).exists() else [*found, str(first)]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _require_backup(target: Path) -> None:
    """Raises StoreError for a directory with other files than those of a backup."""
    if not target.exists():
        target.mkdir(parents=True, mode=0o700)
        return
    known = {MANIFEST, LOG, _LOCK, "config", *_FILES}
    names = sorted(path.name for path in target.iterdir())
    strange = [name for name in names if name not in known and not name.endswith(_UNFINISHED)]
    if strange:
        raise StoreError(f"{target} has {strange[0]}, which no backup has: give a new directory")


def _copy_tables(root: Path, target: Path) -> dict[str, str]:
    """Copies the tables; returns their digests by name."""
    (target / "config").mkdir(parents=True, exist_ok=True)
    digests: dict[str, str] = {}
    for path in _tables(root):
        name = path.relative_to(root)
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # a table that the broker has deleted since it was listed
            continue
        _write(target / name, data)
        digests[str(name)] = hashlib.sha256(data).hexdigest()
    return digests


def _tables(root: Path) -> Iterator[Path]:
    yield from (root / name for name in _FILES)
    for path in sorted((root / "config").rglob("*")):
        if path.is_file() and not path.name.endswith(_UNFINISHED):
            yield path


def _log_names(directory: Path, end: int) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if _is_log_file(path) and int(path.name) < end)


def _copy_log(source: Path, target: Path, end: int, end_before: int, on_copied: Copied) -> list[str]:
    """Copies the log `[end_before, end)`, and missing files below it. Returns the log's files."""
    target.mkdir(parents=True, exist_ok=True)
    kept: list[str] = []
    for name in _log_names(source, end):
        try:
            size = (source / name).stat().st_size
            count = min(size, end - int(name))
            begin = max(0, end_before - int(name)) if (target / name).exists() else 0
            if begin < count:
                _copy_file(source / name, target / name, range(begin, count), size, on_copied)
        except FileNotFoundError:  # expired meanwhile, and so have all older ones
            kept.clear()
            continue
        kept.append(name)
    if not kept:
        raise StoreError(f"{source} has no log below {end}")
    return kept


def _require_same_log(source: Path, target: Path, end: int) -> None:
    """Raises StoreError if a copied log file is not that of the source."""
    for name in _log_names(target, end) if end else ():
        if not (source / name).exists():
            continue
        count = min((target / name).stat().st_size, end - int(name))
        if _edges(source / name, count) != _edges(target / name, count):
            raise StoreError(f"{target / name} differs from {source / name}: it is of another store")


def _edges(path: Path, count: int) -> tuple[int, bytes, bytes]:
    """Returns the file's size, and the begin and end of its first `count` bytes."""
    with path.open("rb") as file:
        begin = file.read(min(count, _EDGE_BYTES))
        file.seek(max(0, count - _EDGE_BYTES))
        return path.stat().st_size, begin, file.read(min(count, _EDGE_BYTES))


def _copy_file(source: Path, copy: Path, part: range, size: int, on_copied: Copied) -> None:
    """Copies the part of a file behind what the copy has; the rest of the file is a hole."""
    private = os.open(copy, os.O_WRONLY | os.O_CREAT | (0 if part.start else os.O_TRUNC), 0o600)
    with source.open("rb") as read, open(private, "wb") as written:
        read.seek(part.start)
        written.seek(part.start)
        left = len(part)
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
