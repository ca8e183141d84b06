"""The disk of a node: the store's faulty disk, with the one operation more that a broker's tables need."""

from __future__ import annotations

from pathlib import Path

from tandemmq.runtime.ports import Buffer
from tandemmq.sim.disk import SimDisk


class NodeDisk(SimDisk):
    """Keeps the old content of a table at its `.bak` (spec store 18)."""

    def write_atomically(self, path: Path, data: Buffer, *, keep_backup: bool = False) -> None:
        if keep_backup and path in self.image.files:
            backup = path.with_name(path.name + ".bak")
            super().write_atomically(backup, self.image.files[path].data)
        super().write_atomically(path, data)
