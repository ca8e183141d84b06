"""The file that says which master wrote which bytes of the log: `epochFileCheckpoint`, as RocketMQ has it.

Invariants: what `save` was given is on disk when it returns; a reader sees all of the old list or all of the
            new. The content before is kept in `.bak`, which is read where the file is damaged: what it lacks
            is the newest term, so a copy ends sooner and nothing wrong is kept.
Source:     spec replication 12.8; spec controller 4.4.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tandemmq.errors import Corrupt
from tandemmq.replication.core.epochs import EpochList, decode_epochs, encode_epochs
from tandemmq.runtime.ports import Disk
from tandemmq.telemetry import events

log = logging.getLogger(__name__)


class EpochFile:
    """The list of terms of one store, in memory as it is on disk."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._backup = path.with_name(path.name + ".bak")
        self._disk = disk
        self.epochs = EpochList()

    def load(self) -> None:
        """Read the list; without files it is empty.

        Raises:  Corrupt when neither the file nor its backup can be read.
        """
        damage: list[tuple[Path, str]] = []
        for path in (self._path, self._backup):
            if not self._disk.exists(path):
                continue
            try:
                self.epochs = decode_epochs(self._disk.read_bytes(path))
            except ValueError as error:
                damage.append((path, str(error)))
                continue
            if damage:
                facts = {"path": str(damage[0][0]), "reason": damage[0][1]}
                log.warning(events.EPOCH_FILE_DAMAGED, extra=facts)
            return
        if damage:
            path, reason = damage[0]
            raise Corrupt(path, 0, f"{reason}; no backup can be read: copy the log anew from the master")
        self.epochs = EpochList()

    def save(self, epochs: EpochList) -> None:
        """Make `epochs` the list, on disk first. Blocks.

        Raises:  OSError; the list is unchanged in memory.
        """
        if epochs:
            self._disk.write_atomically(self._path, encode_epochs(epochs), keep_backup=True)
        else:
            for path in (self._path, self._backup):
                if self._disk.exists(path):
                    self._disk.remove(path)
        self.epochs = epochs
