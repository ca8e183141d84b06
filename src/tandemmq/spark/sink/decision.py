"""The decision to commit, written down before the first half message is ended.

A directory per query holds the newest one: `decision.json` says which batch, and whether all is done;
`halves-BATCH-*.bin` holds its half messages until then. A driver that dies between two ends leaves the file,
and the commit of the same batch after a restart goes on from it. Runs on the driver. Must not know Spark.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from tandemmq.errors import ConfigError
from tandemmq.spark.lake.files import sync_dir, sync_file

if TYPE_CHECKING:
    from tandemmq.spark.sink.halves import HalfPart

DIRECTORY = "transactions"
DECISION_FILE = "decision.json"
LOCK_FILE = "lock"
_FILES = f"*/{DECISION_FILE}"
VERSION = 1
_SIZE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Decision:
    """Batch `batch_id` of the query `name` is to be committed, or `is_done`; `file` holds what of."""

    name: str
    batch_id: int
    group: str
    rows: int
    decided_at_ms: int
    file: str
    is_done: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """What tells a task that its rows need not be sent."""
        return self.name, self.batch_id


class DecisionFiles:
    """The directory of one query."""

    def __init__(self, state_dir: str, name: str) -> None:
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        self.directory = Path(state_dir) / DIRECTORY / digest

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time is inside: a driver that was given up may still be at work."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / LOCK_FILE).open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> Decision | None:
        """The newest decision; None before the first.

        Raises:  ConfigError for a file of another version.
        """
        return _read(self.directory / DECISION_FILE)

    def write(self, decision: Decision, parts: Sequence[HalfPart]) -> None:
        """Returns when the decision and its half messages are on disk."""
        path = self.directory / decision.file
        with path.open("wb") as file:
            for part in parts:
                raw = part.encode()
                file.write(len(raw).to_bytes(_SIZE_BYTES, "big"))
                file.write(raw)
        sync_file(path)
        self._put(decision)

    def read_parts(self, decision: Decision) -> list[HalfPart]:
        """The half messages of a decision that is not done.

        Raises:  ConfigError when the file does not hold them.
        """
        from tandemmq.spark.sink.halves import count_halves, decode_part

        path = self.directory / decision.file
        parts = []
        try:
            with path.open("rb") as file:
                while head := file.read(_SIZE_BYTES):
                    parts.append(decode_part(file.read(int.from_bytes(head, "big"))))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: cannot be read: {error}") from error
        if count_halves(parts) != decision.rows:
            raise ConfigError(f"{path} does not hold the {decision.rows} rows of the decision")
        return parts

    def mark_done(self, decision: Decision) -> None:
        """All of it is committed; files of half messages go."""
        self._put(replace(decision, is_done=True))
        for path in self.directory.glob("halves-*.bin"):
            path.unlink(missing_ok=True)

    def _put(self, decision: Decision) -> None:
        document = {"version": VERSION, **{name: getattr(decision, name) for name in Decision.__slots__}}
        path = self.directory / DECISION_FILE
        staged = path.with_name(f"{path.name}.{uuid4().hex[:12]}")
        staged.write_text(json.dumps(document) + "\n")
        sync_file(staged)
        os.replace(staged, path)
        sync_dir(self.directory)


def new_file_name(batch_id: int) -> str:
    return f"halves-{batch_id}-{uuid4().hex[:12]}.bin"


def read_decided(state_dir: str, name: str = "") -> frozenset[tuple[str, int]]:
    """Queries and batches that are decided: what their tasks would send is there already.

    `name`: only this one; a streaming query does not know its own before its tasks run.
    """
    if not state_dir:
        return frozenset()
    directory = Path(state_dir) / DIRECTORY
    paths = [DecisionFiles(state_dir, name).directory / DECISION_FILE] if name else directory.glob(_FILES)
    found = (_read(path) for path in paths)
    return frozenset(decision.key for decision in found if decision is not None)


def _read(path: Path) -> Decision | None:
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    version = document.pop("version", None)
    if version != VERSION:
        raise ConfigError(f"{path} has version {version!r}, not {VERSION}")
    return Decision(**document)
