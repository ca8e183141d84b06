"""Puts a directory or file that was built beside another in its place, in one step.

Strategy: renameat2 with RENAME_EXCHANGE swaps two names at once, so a kill leaves the old or the new one,
          never none. Where the system has no such call, two renames; a kill between them leaves derived files
          missing, which brokers build again from the log.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from pathlib import Path

BESIDE = ".repair"
_EXCHANGE = 2
_AT_FDCWD = -100
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})


def beside(path: Path) -> Path:
    """Where the replacement of `path` is built: the same directory, so that a rename reaches it."""
    real = path.resolve()
    return real.with_name(real.name + BESIDE)


def _displaced(path: Path) -> Path:
    """Where the old one waits between the two renames."""
    real = path.resolve()
    return real.with_name(real.name + BESIDE + ".old")


def restore(path: Path) -> None:
    """Clear away what a killed run left beside `path`; what it had only displaced comes back."""
    displaced = _displaced(path)
    if displaced.exists() and not path.exists():
        displaced.rename(path.resolve())
    remove_tree(displaced)
    remove_tree(beside(path))


def remove_tree(path: Path) -> None:
    """Remove a directory or file, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace(new: Path, old: Path) -> None:
    """`old` becomes what `new` is, durably; what `old` was is removed. Raises OSError."""
    old = old.resolve()
    if not old.exists():
        new.rename(old)
    elif not _exchange(new, old):
        doomed = _displaced(old)
        old.rename(doomed)
        new.rename(old)
        sync_directory(old.parent)
        remove_tree(doomed)
    sync_directory(old.parent)
    remove_tree(new)


def _exchange(one: Path, other: Path) -> bool:
    """Swap the two names; False where the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(other))


def sync_tree(directory: Path) -> None:
    """Make the names of every directory below durable; the files' content is synced by who wrote it."""
    for path, _, _ in os.walk(directory):
        sync_directory(Path(path))


def sync_directory(directory: Path) -> None:
    """Make the names in one directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
