"""The disk of a node: the store's faulty disk, with the one operation more that a broker's tables need."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

from tandemmq.runtime.ports import Buffer, T
from tandemmq.sim.disk import SimDisk


class NodeDisk(SimDisk):
    """Keeps the old content of a table at its `.bak` (spec store 18)."""

    def write_atomically(self, path: Path, data: Buffer, *, keep_backup: bool = False) -> None:
        if keep_backup and path in self.image.files:
            backup = path.with_name(path.name + ".bak")
            super().write_atomically(backup, self.image.files[path].data)
        super().write_atomically(path, data)

    async def offload(self, fn: Callable[..., T], *args: Any) -> T:
        """Only what waits for the disk may be slow; a checksum has a file of its own for each few KB here."""
        if fn is not crc32:
            return await super().offload(fn, *args)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._clock.call_soon(lambda: None if turn.done() else turn.set_result(None))
        await turn
        return fn(*args)
