"""A `runtime.ports.Disk` over an image: it fails on request, and can lose the machine in any operation.

Strategy:  a crash copies the image at that moment and lets the old one continue: what the dying store still
           does has no effect on the copy.
Knows not: the content of the files.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.dice import Dice
from sim.image import SECTOR_BYTES, Image, Node, Tear
from tandemmq.errors import StoreLocked
from tandemmq.runtime.ports import Advice, Clock, T
from tandemmq.units import Buffer, align_down

TOTAL_BYTES = 1 << 40
SLOW_MS_MAX = 40
"""The longest duration of an offloaded call."""


@dataclass(slots=True)
class Faults:
    """The faults from now on, as percentages of operations; 0: never."""

    write_error_percent: int = 0
    create_error_percent: int = 0
    slow_sync_percent: int = 0
    sync_errors: int = 0  # the next N fsyncs fail
    is_dropping_pages: bool = False  # a failed fsync drops pages
    stalled_until_s: float = 0.0  # no offloaded call ends before


@dataclass(slots=True)
class Crash:
    """The time and kind of a crash: the machine is lost in the operation after `operations` more ones."""

    operations: int
    is_power_cut: bool
    tear: Tear


class SimFile:
    """One open file of fixed length."""

    def __init__(self, path: Path, node: Node, disk: SimDisk) -> None:
        self._path = path
        self._node = node
        self._disk = disk
        self._is_entry_durable = False
        self._is_closed = False

    @property
    def path(self) -> Path:
        return self._path

    @property
    def size(self) -> int:
        return len(self._node.data)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def pwrite(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._check_open()
        data = b"".join(buffers)
        assert 0 <= offset <= offset + len(data) <= self.size, (self._path, offset, len(data), self.size)
        self._disk.write(self._path, self._node, offset, data)

    def pread(self, offset: int, size: int) -> bytes:
        self._check_open()
        return bytes(self._node.data[offset : offset + size])

    def view(self) -> memoryview:
        self._check_open()
        return memoryview(self._node.data).toreadonly()

    def sync(self) -> None:
        self._check_open()
        self._disk.sync(self._path, self._node)
        if not self._is_entry_durable:
            self._disk.image.sync_directory(self._path.parent)
            self._is_entry_durable = True

    def advise(self, advice: Advice) -> None:
        return None

    def close(self) -> None:
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise OSError(errno.EBADF, "the file is closed", str(self._path))


class SimLock:
    """A held lock file."""

    def __init__(self, path: Path, held: set[Path]) -> None:
        self._path = path
        self._held = held

    def release(self) -> None:
        self._held.discard(self._path)


class SimDisk:
    """The disk of one machine from its start to its loss; `left` is the state for the next machine."""

    def __init__(
        self,
        image: Image,
        *,
        dice: Dice,
        clock: Clock,
        note: Callable[[str], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.image = image
        self.faults = Faults()
        self.crash: Crash | None = None
        self.left: Image | None = None
        self.lost_by: Crash | None = None
        self.lost_at_s = 0.0
        self.total_bytes = TOTAL_BYTES
        self.failed_paths: set[Path] = set()  # files with a failed operation
        self.sync_failed = False
        self.write_count = 0
        self.last_written = ""
        self._dice = dice
        self._clock = clock
        self._note = note
        self._on_lost = on_lost
        self._locks: set[Path] = set()
        self._covered: tuple[int, int] | None = None  # the writes covered by the fsyncs of an offloaded call

    @property
    def is_lost(self) -> bool:
        """True from the crash on."""
        return self.left is not None

    # The crash.

    def lose(self, crash: Crash) -> None:
        """Stops the machine now: the process is killed, or the power is cut."""
        if self.left is not None:
            return
        self.lost_by = crash
        self.lost_at_s = self._clock.monotonic()
        self._on_lost()
        self.left = self.image.clone()
        if crash.is_power_cut:
            self.left.power_cut(self._dice, crash.tear)
        self._note(f"  crash: {'power cut, ' + crash.tear.value if crash.is_power_cut else 'process killed'}")

    def _is_due(self) -> bool:
        """Counts one operation; returns True if the machine is lost in it."""
        crash = self.crash
        if crash is None or self.left is not None:
            return False
        crash.operations -= 1
        return crash.operations < 0

    def _lose_if_due(self) -> None:
        if self._is_due():
            assert self.crash is not None
            self.lose(self.crash)

    # Calls from open files.

    def write(self, path: Path, node: Node, offset: int, data: bytes) -> None:
        self.write_count += 1
        self.last_written = f"{path} at {offset}"
        if self._is_due():
            assert self.crash is not None
            arrived = align_down(offset + self._dice.between(0, len(data)), SECTOR_BYTES) - offset
            self.image.write(node, offset, data[: max(0, arrived)])
            self.lose(self.crash)
        if self._dice.happens(self.faults.write_error_percent) and not self.is_lost:
            arrived = self._dice.pick((0, self._dice.between(0, len(data)), len(data)))
            self.image.write(node, offset, data[:arrived])
            self._note(f"  write fails: {path.name} at {offset}, {arrived} of {len(data)} bytes")
            raise self._error(path)
        self.image.write(node, offset, data)

    def sync(self, path: Path, node: Node) -> None:
        self._lose_if_due()
        newest = self.image.write_number
        limit, since = self._covered or (newest, newest)
        if self.faults.sync_errors > 0 and not self.is_lost:
            self.faults.sync_errors -= 1
            self.sync_failed = True
            self._note(f"  fsync fails: {path}{', drops pages' if self.faults.is_dropping_pages else ''}")
            if self.faults.is_dropping_pages:
                node.drop(limit)
            raise OSError(errno.EIO, "input/output error", str(path))
        node.sync(limit, since)

    def _error(self, path: Path) -> OSError:
        self.failed_paths.add(path)
        if self._dice.happens(70):
            return OSError(errno.ENOSPC, "no space left on device", str(path))
        return OSError(errno.EIO, "input/output error", str(path))

    # The `Disk` port.

    def open(self, path: Path) -> SimFile:
        return SimFile(path, self._node(path), self)

    def create(self, path: Path, size: int, *, sparse: bool = False) -> SimFile:
        if path in self.image.files:
            raise FileExistsError(errno.EEXIST, "the file exists", str(path))
        if self._dice.happens(self.faults.create_error_percent) and not self.is_lost:
            self._note(f"  create fails: {path}")
            raise self._error(path)
        self.make_dirs(path.parent)
        if self._is_due():
            assert self.crash is not None
            self.image.create(path, self._dice.pick((0, size, self._dice.between(0, size))))
            self.lose(self.crash)
        return SimFile(path, self.image.create(path, size), self)

    def list(self, directory: Path) -> list[str]:
        prefix = f"{directory}/"  # strings, because comparing paths took half the time of a run
        size = len(prefix)
        texts = map(str, (*self.image.files, *self.image.directories))
        return sorted({text[size:].partition("/")[0] for text in texts if text.startswith(prefix)})

    def exists(self, path: Path) -> bool:
        return path in self.image.files or path in self.image.directories

    def size(self, path: Path) -> int:
        return len(self._node(path).data)

    def remove(self, path: Path) -> None:
        self._lose_if_due()
        if path in self.image.directories:
            if self.list(path):
                raise OSError(errno.ENOTEMPTY, "the directory is not empty", str(path))
            self.image.directories.discard(path)
        else:
            self._node(path)
            self.image.remove(path)

    def make_dirs(self, path: Path) -> None:
        self.image.directories.update((path, *path.parents))

    def read_bytes(self, path: Path) -> bytes:
        return bytes(self._node(path).data)

    def write_atomically(
        self, path: Path, data: Buffer, *, keep_backup: bool = False, is_private: bool = False
    ) -> None:
        assert not keep_backup, "the store keeps no backups"
        self._lose_if_due()
        self.make_dirs(path.parent)
        self.image.replace(path, bytes(data))
        self._lose_if_due()

    def usage(self, path: Path) -> tuple[int, int]:
        return self.total_bytes, self.total_bytes // 2

    def lock(self, path: Path) -> SimLock:
        if path in self._locks:
            raise StoreLocked(f"{path} is locked")
        self._locks.add(path)
        if path not in self.image.files:
            self.make_dirs(path.parent)
            self.image.replace(path, b"lock")
        return SimLock(path, self._locks)

    def boot_id(self) -> str:
        return f"boot-{self.image.boot_count}"

    async def offload(self, fn: Callable[..., T], *args: Any) -> T:
        """Runs `fn` as if in a thread: other work happens meanwhile, and an fsync covers only the writes
        before it.
        """
        limit = self.image.write_number
        if self._dice.happens(self.faults.slow_sync_percent):
            await self._clock.sleep(self._dice.between(1, SLOW_MS_MAX) / 1000)
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._clock.call_soon(lambda: None if turn.done() else turn.set_result(None))
            await turn
        stalled_s = self.faults.stalled_until_s - self._clock.monotonic()
        if stalled_s > 0:
            await self._clock.sleep(stalled_s)
        self._covered = limit, self.image.write_number
        try:
            return fn(*args)
        finally:
            self._covered = None

    def _node(self, path: Path) -> Node:
        try:
            return self.image.files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from None
