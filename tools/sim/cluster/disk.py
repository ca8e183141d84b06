"""The disk of a node: the store's faulty disk, with the additional operation that a broker's tables need."""

from __future__ import annotations

import errno
from pathlib import Path

from sim.disk import SimDisk, SimFile
from tandemmq.units import Buffer


class NodeDisk(SimDisk):
    """A disk that keeps the old content of a table at its `.bak` (spec store 18), and that can be full."""

    is_full = False

    def create(self, path: Path, size: int, *, sparse: bool = False) -> SimFile:
        self._refuse_if_full(path)
        return super().create(path, size, sparse=sparse)

    def usage(self, path: Path) -> tuple[int, int]:
        total, free = super().usage(path)
        return total, 0 if self.is_full else free

    def _refuse_if_full(self, path: Path) -> None:
        if self.is_full and not self.is_lost:
            self.failed_paths.add(path)
            raise OSError(errno.ENOSPC, "no space left on device", str(path))

    def write_atomically(
        self, path: Path, data: Buffer, *, keep_backup: bool = False, is_private: bool = False
    ) -> None:
        self._refuse_if_full(path)
        if keep_backup and path in self.image.files:
            backup = path.with_name(path.name + ".bak")
            super().write_atomically(backup, self.image.files[path].data)
        super().write_atomically(path, data)
