"""The marks of a store that is in use: the lock against other processes, `abort` against forgetting a crash,
`tailDoubt` (ours) against serving a log that may lack acknowledged messages.

Invariants: `abort` exists from before the first change that recovery makes until everything is on disk. It
            names the machine's boot in which bytes were written that may not be on disk: until recovery has
            synced what a former life left, that is still the boot of that life.
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

    @property
    def same_boot(self) -> bool:
        """True when the life that left `abort` wrote on the present boot of the machine, so that every byte
        it wrote can be read; False also when that is not known.
        """
        boot_id = self._disk.boot_id()
        return bool(boot_id) and self._told_boot_id() == boot_id

    def keep_abort(self) -> None:
        """From now on a crash is noticed. What is left of a former life stays: recovery has not synced it."""
        if not self.has_abort:
            self.write_abort()

    def write_abort(self, *, is_readable: bool = True) -> None:
        """What is not on disk was written on this boot; this process's id first, as RocketMQ writes it.

        `is_readable` False: an fsync has failed, and pages that were written may be gone from memory, too.
        Then no boot is named, and the next start trusts as little as after a power cut.
        """
        content = f"{os.getpid()} {self._disk.boot_id() if is_readable else ''}".rstrip()
        self._disk.write_atomically(self._paths.abort, content.encode())

    def _told_boot_id(self) -> str:
        """ "" in a file of RocketMQ, which holds the process's id only."""
        if not self.has_abort:
            return ""
        words = self._disk.read_bytes(self._paths.abort).decode("ascii", "replace").split()
        return words[1] if len(words) == 2 else ""

    def remove_abort(self) -> None:
        """Everything is on disk."""
        if self.has_abort:
            self._disk.remove(self._paths.abort)

    @property
    def doubt(self) -> str:
        """Why the log may lack acknowledged messages; empty when nothing says so."""
        if not self._disk.exists(self._paths.tail_doubt):
            return ""
        return self._disk.read_bytes(self._paths.tail_doubt).decode("utf-8", "replace")

    def write_doubt(self, reason: str) -> None:
        """From now on every start knows it, also one after a clean stop."""
        self._disk.write_atomically(self._paths.tail_doubt, reason.encode())

    def remove_doubt(self) -> None:
        """The log is what is served from now on."""
        if self._disk.exists(self._paths.tail_doubt):
            self._disk.remove(self._paths.tail_doubt)

    def release(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
