"""The two marks of a store that is in use: the lock against other processes, `abort` against forgetting a
crash.

Invariants: `abort` exists from before the first change that recovery makes until everything is on disk.
Source:     spec store 1, 12.
"""

from __future__ import annotations

import os

from tandemmq.runtime.ports import Disk, Lock
from tandemmq.store.paths import StorePaths


class StoreMarks:
    """Lock and abort file of one store."""

    def __init__(self, paths: StorePaths, disk: Disk) -> None:
        self._paths = paths
        self._disk = disk
        self._lock: Lock | None = None

    def take(self) -> None:
        """Take the lock. Raises StoreLocked; OSError when the directory cannot be written."""
        self._disk.make_dirs(self._paths.root)
        self._lock = self._disk.lock(self._paths.lock)

    @property
    def has_abort(self) -> bool:
        """True when the last run did not end cleanly."""
        return self._disk.exists(self._paths.abort)

    def write_abort(self) -> None:
        """From now on a crash is noticed; the content is this process's id, as RocketMQ writes it."""
        self._disk.write_atomically(self._paths.abort, str(os.getpid()).encode())

    def remove_abort(self) -> None:
        """Everything is on disk."""
        if self.has_abort:
            self._disk.remove(self._paths.abort)

    def release(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
