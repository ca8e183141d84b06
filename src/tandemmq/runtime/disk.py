"""The real disk: preallocated files written with pwritev and read through read-only maps (`RealDisk`,
`DiskFile`); replacing a directory by another in one step (`replace`); and memory that the kernel never swaps
out (`LockedMemory`). Clients on Windows use only the methods for small files: `make_dirs`, `exists`,
`read_bytes` and `write_atomically`.

On a full disk, a writable map would kill the process with SIGBUS where pwritev raises OSError. Blocks
reserved when a file is created cannot run out while it is filled.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import itertools
import mmap
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tandemmq.errors import StoreLocked
from tandemmq.runtime.descriptors import opening
from tandemmq.runtime.ports import Advice, T
from tandemmq.units import Buffer

BUFFERS_PER_CALL_MAX = 1024  # IOV_MAX of Linux
_OPEN_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)  # Windows has only the second
_FALLOCATE_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})
_BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")
_LOCK_CONTENT = b"lock"  # the content that a RocketMQ broker writes (spec store 1)

# POSIX record locks exclude only other processes, so the lock files of this process are recorded here.
_locked_here: set[str] = set()


class DiskFile:
    """One open file of fixed length."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._size = size
        self._unsynced_directories = [path.parent]
        self._is_random = False
        self._map: mmap.mmap | None = None
        self._view: memoryview | None = None

    @property
    def path(self) -> Path:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    @property
    def is_closed(self) -> bool:
        return self._descriptor < 0

    def pwrite(self, offset: int, buffers: Sequence[Buffer]) -> None:
        if len(buffers) <= BUFFERS_PER_CALL_MAX:
            total = sum(map(len, buffers))
            assert 0 <= offset <= offset + total <= self._size, (self._path, offset, total, self._size)
            if os.pwritev(self._descriptor, buffers, offset) == total:
                return
        self._pwrite_in_parts(offset, buffers)

    def _pwrite_in_parts(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Continues after a short write, and writes more buffers than one call accepts. Starts again at
        `offset`, because writing the same bytes twice is harmless.
        """
        rest = [memoryview(buffer).cast("B") for buffer in buffers]
        assert 0 <= offset <= self._size - sum(map(len, rest)), (self._path, offset, self._size)
        first = 0
        while first < len(rest):
            written = os.pwritev(self._descriptor, rest[first : first + BUFFERS_PER_CALL_MAX], offset)
            offset += written
            if written == 0 and any(map(len, rest[first : first + BUFFERS_PER_CALL_MAX])):
                raise OSError(errno.EIO, "the disk takes no bytes", str(self._path))
            while first < len(rest) and written >= len(rest[first]):
                written -= len(rest[first])
                first += 1
            if written:
                rest[first] = rest[first][written:]

    def pread(self, offset: int, size: int) -> bytes:
        parts = []
        while size > 0 and (part := os.pread(self._descriptor, size, offset)):
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def view(self) -> memoryview:
        if self._view is None:
            if self._size == 0:
                self._view = memoryview(b"")
            else:
                descriptor, size = self._descriptor, self._size
                assert descriptor >= 0, f"{self._path} is closed: a map of no file would read as zeros"
                self._map = opening(lambda: mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
                if self._is_random:
                    self._map.madvise(mmap.MADV_RANDOM)
                self._view = memoryview(self._map)
        return self._view

    def sync(self) -> None:
        os.fdatasync(self._descriptor)
        for directory in tuple(self._unsynced_directories):
            # If the topic was deleted meanwhile, the directory and its files no longer exist: there is no
            # name to sync.
            with suppress(FileNotFoundError):
                sync_directory(directory)
            with suppress(ValueError):  # another thread synced this file at the same time and removed it
                self._unsynced_directories.remove(directory)

    def add_new_directories(self, parents: list[Path]) -> None:
        """Adds directories that contain the name of a directory created for this file; `sync` syncs them."""
        self._unsynced_directories += parents

    def advise(self, advice: Advice) -> None:
        with suppress(OSError):
            if advice is not Advice.IDLE:
                self._is_random = advice is Advice.RANDOM
                is_random = self._is_random
                file_advice = os.POSIX_FADV_RANDOM if is_random else os.POSIX_FADV_NORMAL
                os.posix_fadvise(self._descriptor, 0, 0, file_advice)
                if self._map is not None:
                    self._map.madvise(mmap.MADV_RANDOM if is_random else mmap.MADV_NORMAL)
            elif self._map is not None:
                # A shared map has no data of its own: the next access finds the page in the page cache.
                self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        if self._descriptor < 0:
            return
        os.close(self._descriptor)
        self._descriptor = -1
        # A socket's write buffer may still hold slices: dropping these references unmaps the file once the
        # last slice is gone.
        self._view = None
        self._map = None


class DiskLock:
    """A held lock file."""

    def __init__(self, key: str, descriptor: int) -> None:
        self._key = key
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _locked_here.discard(self._key)


class RealDisk:
    """The file systems of this machine."""

    def open(self, path: Path) -> DiskFile:
        descriptor = _open(path, os.O_RDWR)
        return DiskFile(path, descriptor, os.fstat(descriptor).st_size)

    def create(self, path: Path, size: int, *, sparse: bool = False) -> DiskFile:
        new_directories = _new_directories(path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            if sparse:
                os.ftruncate(descriptor, size)
            else:
                _reserve(descriptor, size)
        except BaseException:
            os.close(descriptor)
            path.unlink()
            raise
        file = DiskFile(path, descriptor, size)
        file.add_new_directories([directory.parent for directory in new_directories])
        return file

    def list(self, directory: Path) -> list[str]:
        try:
            return sorted(opening(lambda: os.listdir(directory)))
        except FileNotFoundError:
            return []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def remove(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink()

    def make_dirs(self, path: Path) -> None:
        _make_durable_directories(path)

    def read_bytes(self, path: Path) -> bytes:
        with os.fdopen(_open(path, os.O_RDONLY), "rb") as file:
            return file.read()

    def write_atomically(
        self, path: Path, data: Buffer, *, keep_backup: bool = False, is_private: bool = False
    ) -> None:
        _make_durable_directories(path.parent)
        temporary = _sibling(path, ".tmp")
        try:
            mode = 0o600 if is_private else 0o666
            with os.fdopen(_open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
                if path.exists() and hasattr(os, "fchmod"):  # a file on Windows has no mode
                    # A file that only its owner may read, for example because of a secret, must stay so.
                    os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if keep_backup and path.exists():
                _keep_backup(path)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)

    def usage(self, path: Path) -> tuple[int, int]:
        while not path.exists() and path != path.parent:
            path = path.parent
        state = os.statvfs(path)
        # As in `df`, blocks reserved for root count as neither used nor available.
        used = state.f_blocks - state.f_bfree
        return (used + state.f_bavail) * state.f_frsize, state.f_bavail * state.f_frsize

    def lock(self, path: Path) -> DiskLock:
        _make_durable_directories(path.parent)
        key = os.path.realpath(path)
        if key in _locked_here:
            raise StoreLocked(f"{path} is locked by this process")
        descriptor = _open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            import fcntl  # clients, on Windows too, lock nothing

            # lockf, not flock: only the former excludes a RocketMQ broker (spec store 1).
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            os.pwrite(descriptor, _LOCK_CONTENT, 0)
            os.fsync(descriptor)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise StoreLocked(f"{path} is locked by another process") from None
            raise
        _locked_here.add(key)
        return DiskLock(key, descriptor)

    def boot_id(self) -> str:
        try:
            return _BOOT_ID_PATH.read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""

    async def offload(self, fn: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(None, fn, *args)


def _open(path: Path, flags: int, mode: int = 0o777) -> int:
    return opening(lambda: os.open(path, flags | _OPEN_FLAGS, mode))


def _reserve(descriptor: int, size: int) -> None:
    if size == 0:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _FALLOCATE_UNSUPPORTED:
            raise
        os.ftruncate(descriptor, size)


def _keep_backup(path: Path) -> None:
    """Copies the present content to `path` + ".bak"; `path` itself never disappears."""
    backup = _sibling(path, ".bak")
    staged = _sibling(path, ".bak.tmp")
    staged.unlink(missing_ok=True)
    try:
        os.link(path, staged)
    except OSError:  # no hard links on this file system
        os.replace(path, backup)
    else:
        os.replace(staged, backup)
        # rename() does nothing if both names already link to one file, which a crash after the previous
        # rename can cause. The staged name must not remain.
        staged.unlink(missing_ok=True)


def _sibling(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _new_directories(path: Path) -> list[Path]:
    """Returns the missing directories among `path` and its parents, the innermost first."""
    return list(itertools.takewhile(lambda directory: not directory.exists(), (path, *path.parents)))


def _make_durable_directories(path: Path) -> None:
    """Creates `path` so that a power cut cannot remove any of the created directories."""
    made = _new_directories(path)
    path.mkdir(parents=True, exist_ok=True)
    for directory in made:
        sync_directory(directory.parent)


# Replacing a directory or file by one that was built beside it.
#
# Strategy: renameat2 with RENAME_EXCHANGE swaps two names atomically, so after a kill `path` is the old or
#           the new content, never missing. Without that system call there are two renames; a kill between
#           them leaves `path` missing until `restore`. That is safe, because only derived files are replaced,
#           which brokers rebuild from the log.

REPLACEMENT_SUFFIX = ".repair"
_EXCHANGE = 2
_AT_FDCWD = -100
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})


def replacement_path(path: Path) -> Path:
    """Returns the path at which the replacement of `path` is built: in the same directory, so that a rename
    works.
    """
    real = path.resolve()
    return real.with_name(real.name + REPLACEMENT_SUFFIX)


def _displaced_path(path: Path) -> Path:
    """Returns the path of the old directory between the two renames."""
    real = path.resolve()
    return real.with_name(real.name + REPLACEMENT_SUFFIX + ".old")


def restore(path: Path) -> None:
    """Removes the files that a killed run left beside `path`, and restores `path` if it was displaced."""
    displaced = _displaced_path(path)
    if displaced.exists() and not path.exists():
        displaced.rename(path.resolve())
    remove_tree(displaced)
    remove_tree(replacement_path(path))


def remove_tree(path: Path) -> None:
    """Removes a directory or file, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def replace(new: Path, old: Path) -> None:
    """Replaces `old` by `new` durably and removes the old content. Raises OSError."""
    old = old.resolve()
    if not old.exists():
        new.rename(old)
    elif not _exchange(new, old):
        doomed = _displaced_path(old)
        old.rename(doomed)
        new.rename(old)
        sync_directory(old.parent)
        remove_tree(doomed)
    sync_directory(old.parent)
    remove_tree(new)


def _exchange(one: Path, other: Path) -> bool:
    """Swaps the two names; returns False if the system does not support it."""
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
    """Makes the names in `directory`, and in every directory below it, durable. The content of the files must
    already be synced.
    """
    for path, _, _ in os.walk(directory):
        sync_directory(Path(path))


def sync_directory(directory: Path) -> None:
    """Makes the names in one directory durable, where a program can open a directory: not on Windows."""
    if hasattr(os, "O_DIRECTORY"):
        _sync(directory, os.O_RDONLY | os.O_DIRECTORY)


def sync_file(path: Path) -> None:
    """Makes the content of one file durable."""
    _sync(path, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    descriptor = _open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_MLOCK_ONFAULT = 1


class LockedMemory:
    """A block of `size` zero bytes outside the Python heap, released when the last view of it is gone.

    If `is_locked` is False, the kernel may swap the block out; everything else works.

    Strategy: an anonymous map costs nothing until it is written. Each page is locked when it is first written
              (mlock2 with MLOCK_ONFAULT), because locking a gibibyte at once would block the loop until all
              pages are zeroed. If the kernel refuses (RLIMIT_MEMLOCK), the memory is an ordinary map.
    """

    __slots__ = ("_map", "is_locked", "view")

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        self.is_locked = _lock(self._map, size)
        self.view = memoryview(self._map)


def _lock(memory: mmap.mmap, size: int) -> bool:
    try:
        lock = ctypes.CDLL(None, use_errno=True).mlock2
    except (OSError, AttributeError):  # the C library lacks it
        return False
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    return bool(lock(address, ctypes.c_size_t(size), ctypes.c_int(_MLOCK_ONFAULT)) == 0)
