"""Copies of a store that a broker uses, and of such a copy to a new store.

A backup is as a power cut leaves a store: tables first, then the log up to `end`, an offset that is confirmed
once the tables are copied. So no table is ahead of the log, and no byte below `end` changes meanwhile.
ConsumeQueues, key index and checkpoint are not copied: they are built from the log.

Invariants: `backup.json` exists only if everything else is whole and on the disk. What an earlier backup has
            of the log is not copied again. An update that fails (the broker stops, the disk is full, it is
            another store) leaves the earlier backup whole. A restored store appears only when it is complete.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from tandemmq.errors import StoreError
from tandemmq.runtime.disk import RealDisk, remove_tree, sync_directory, sync_file, sync_tree
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
_NEW_STORE: Final = ".restoring"
_NAME_CHARS: Final = 20
_EDGE_BYTES: Final = 64 * 1024

Copied = Callable[[int], None]
"""Called with the number of log bytes since the last call."""


class LogFile(msgspec.Struct, frozen=True):
    """The size of a log file, and the SHA-256 of its part below the end of the backup."""

    bytes: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True):
    """The log `[begin, end)` of a backup, the time at which its tables were copied, and their SHA-256."""

    begin: int
    end: int
    made_at_ms: int
    version: str
    logs: dict[str, LogFile]
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
        logs = _copy_log(log_dir, target / LOG, end, before, on_copied)
        sync_tree(target)
        (target / MANIFEST).unlink(missing_ok=True)
        for name in ("config", *_FILES):
            remove_tree(target / name)
        for path in new.iterdir():
            path.rename(target / path.name)
        new.rmdir()
        for path in (target / LOG).iterdir():
            if path.name not in logs:
                path.unlink()
        sync_tree(target)
        found = {"begin": int(min(logs)), "end": end, "logs": logs, "tables": tables}
        manifest = msgspec.convert({**found, **facts}, BackupManifest)
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


@contextmanager
def new_store(root: Path) -> Iterator[Path]:
    """Provides a directory that becomes `root` at the end, or is removed if the block fails.

    Raises:  StoreError if `root` is not empty or a mount point, or another restore to it has not ended.
    """
    root = root.resolve()
    if root.exists() and any(root.iterdir()):
        raise StoreError(f"{root} is not empty: restore to a new directory")
    if root.is_mount():
        raise StoreError(f"{root} is a mount point: restore to a new directory in it")
    unfinished = root.with_name(root.name + _NEW_STORE)
    root.parent.mkdir(parents=True, exist_ok=True)
    try:
        unfinished.mkdir(mode=0o700)
    except FileExistsError:
        raise StoreError(f"{unfinished} is a restore that runs, or was interrupted: delete it") from None
    try:
        with _named(unfinished):
            yield unfinished
            sync_tree(unfinished)
        unfinished.rename(root)
        sync_directory(root.parent)
    except BaseException:
        remove_tree(unfinished)
        raise


def copy_back(backup: Path, root: Path, on_copied: Copied) -> list[str]:
    """Copies a backup to a new store, without the files that are built from its log. Returns the files that
    are missing or not those of the manifest. Raises StoreError for an incomplete backup.
    """
    manifest = read_manifest(backup)
    tables = _copy_tables(backup, root)
    logs = _copy_log(backup / LOG, root / LOG, manifest.end, None, on_copied)
    log_names = _differing(logs, manifest.logs)
    return [*_differing(tables, manifest.tables), *(f"{LOG}/{name}" for name in log_names)]


def _differing(found: Mapping[str, object], wanted: Mapping[str, object]) -> list[str]:
    return sorted(name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name))


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
    (target / "config").mkdir(parents=True, exist_ok=True, mode=0o700)
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


def _copy_log(
    source: Path, target: Path, end: int, before: BackupManifest | None, on_copied: Copied
) -> dict[str, LogFile]:
    """Copies the log below `end`, without what the target has since `before`. Returns the log's files."""
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    logs: dict[str, LogFile] = {}
    for name in _log_names(source, end):
        copy, digest, begin = target / name, hashlib.sha256(), 0
        held = before.logs.get(name) if before is not None and copy.exists() else None
        try:
            size = (source / name).stat().st_size
            count = min(size, end - int(name))
            if before is not None and held is not None:
                begin = min(count, before.end - int(name))
                if begin == count:
                    logs[name] = held
                    continue
                for data in _read(copy, range(begin)):
                    digest.update(data)
                if digest.hexdigest() != held.sha256:
                    raise StoreError(
                        f"{copy} is not as it was copied: delete this file, and repeat the backup"
                    )
            _copy_file(source / name, copy, range(begin, count), size, digest, on_copied)
        except FileNotFoundError:  # expired meanwhile, and so have all older ones
            logs.clear()
            continue
        logs[name] = LogFile(size, digest.hexdigest())
    if not logs:
        raise StoreError(f"{source} has no log below {end}")
    return logs


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


def _copy_file(
    source: Path, copy: Path, part: range, size: int, digest: hashlib._Hash, on_copied: Copied
) -> None:
    """Copies the part of a file behind what the copy has; the rest of the file is a hole."""
    with _named(copy):
        private = os.open(copy, os.O_WRONLY | os.O_CREAT | (0 if part.start else os.O_TRUNC), 0o600)
        with open(private, "wb") as written:
            written.seek(part.start)
            for data in _read(source, part):
                written.write(data)
                digest.update(data)
                on_copied(len(data))
            written.truncate(size)
        sync_file(copy)


def _read(path: Path, part: range) -> Iterator[bytes]:
    """Yields a part of a file. Raises StoreError if the file ends before it."""
    left = len(part)
    with _named(path), path.open("rb") as file:
        file.seek(part.start)
        while left:
            data = file.read(min(left, CHUNK_BYTES))
            if not data:
                raise StoreError(f"{path} ends {left} bytes before the confirmed offset")
            left -= len(data)
            yield data


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Gives the path to an OSError that names none: that of a full disk, for example."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def _is_log_file(path: Path) -> bool:
    return len(path.name) == _NAME_CHARS and path.name.isdecimal()


def _write(path: Path, data: bytes) -> None:
    with _named(path):
        RealDisk().write_atomically(path, data, is_private=True)
