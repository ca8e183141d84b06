"""The deleted topics with the log end at their deletion: a topic's records below that offset are deleted.

The records of a deleted topic stay in the log until they expire. Recovery, a slave and a repair build queue
entries from the log; they check here first, so that deleted messages do not reappear.
Invariants: a deletion is on disk before a queue is changed, and is dropped once the log begins after it. A
            deletion without notice shows in the log, where a queue of the topic restarts at 0. No record that
            is appended here is below a deletion: recovery lowers deletions to an earlier log end. So does a
            slave that starts to copy a log, whose history may differ from the one reported.
At a bound: the deletion that expires next is dropped; if the queues of its topic are then rebuilt, they
            contain the deleted messages until the topic is created again.
Knows not:  topics, groups: only names.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from tandemmq.errors import Corrupt
from tandemmq.protocol.hashes import seal_json, unseal_json
from tandemmq.runtime.ports import Disk
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

DELETIONS_MAX: Final = 10_000

Ends = dict[str, int]
"""Topic -> log offset."""


class _File(msgspec.Struct, frozen=True):
    """The content of the file, a JSON object."""

    topics: dict[str, int] = msgspec.field(name="deletedTopicTable", default_factory=dict)


def read_deletions(path: Path, disk: Disk) -> Ends:
    """Returns the deletions in a store's file or its second copy; empty without files.

    Raises:  Corrupt: ignoring the file would bring deleted messages back, so an operator must decide.
    """
    damage: Exception | None = None
    for copy in (path, _second(path)):
        if not disk.exists(copy):
            continue
        try:
            return msgspec.json.decode(unseal_json(disk.read_bytes(copy)), type=_File).topics
        except (msgspec.MsgspecError, ValueError) as error:
            log.warning(events.TABLE_UNREADABLE, extra={"path": str(copy), "reason": str(error)})
            damage = damage or error
    if damage is not None:
        reason = f"the deleted topics cannot be read: {damage}"
        raise Corrupt(path, 0, f"{reason}; restore the file from a copy of this log") from damage
    return {}


class Deletions:
    """The deletions of one store; other parts only read `ends`."""

    __slots__ = ("_disk", "_kept", "_lock", "_written", "ends", "path")

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._lock = asyncio.Lock()
        self._kept: Ends = {}  # the state if the write in progress fails
        self._written: Ends = {}  # the state on disk
        self.ends: Ends = {}

    def load(self) -> None:
        """Loads the file. Raises Corrupt."""
        self.ends = self._written = read_deletions(self.path, self._disk)

    async def record(self, ends: Mapping[str, int], *, log_begin: int) -> None:
        """Adds deletions and writes them to disk; expired ones are dropped.

        Raises:  OSError when they cannot be written; these deletions are then not applied, other changes
                 remain.
        """
        assert log_begin >= 0, log_begin
        assert min(ends.values(), default=0) >= 0, ends
        async with self._lock:
            self._kept, self.ends = self.ends, _merge(self.ends, ends, log_begin)
            try:
                await self._write()
            except OSError:
                self.ends = self._kept
                raise

    def note(self, topic: str, end: int) -> None:
        """Records a deletion, at or after `end`, that the log revealed.

        Blocks, unless a write is in progress, which includes it.

        Raises:  OSError when it cannot be written; the deletion applies in memory all the same.
        """
        self._kept = _merge(self._kept, {topic: end}, log_begin=0)
        if end <= self.ends.get(topic, 0):
            return
        self.ends = _merge(self.ends, {topic: end}, log_begin=0)
        assert self.ends.get(topic, end) >= end, (topic, end)
        self._write_now()

    def cut(self, log_end: int) -> None:
        """Lowers deletions to `log_end`, as new records from there on are not deleted.

        Blocks, unless a write is in progress, which includes it.

        Raises:  OSError when the change cannot be written.
        """
        if self.lower(log_end):
            self._write_now()

    def lower(self, log_end: int) -> bool:
        """Like `cut`, in memory only; returns True if there is something to `save`."""
        assert log_end >= 0, log_end
        self.ends, self._kept = _lowered(self.ends, log_end), _lowered(self._kept, log_end)
        return self.ends != self._written

    @property
    def is_behind(self) -> bool:
        """True if the state on disk differs, because a write failed."""
        return self.ends != self._written

    async def save(self) -> None:
        """Writes the deletions.

        Raises:  OSError when they cannot be written.
        """
        async with self._lock:
            await self._write()

    async def _write(self) -> None:
        """Writes the current state, including changes made during the write."""
        assert self._lock.locked(), "one write at a time"
        ends = None
        while ends is not self.ends:
            ends = self.ends
            await self._disk.offload(self._writer())
            self._written = ends

    def _write_now(self) -> None:
        """Writes at once, unless a write is in progress: two writes would remove each other's file."""
        if not self._lock.locked():
            self._writer()()
            self._written = self.ends

    def _writer(self) -> partial[None]:
        data = seal_json(msgspec.json.encode(_File(topics=self.ends)))
        return partial(_write, self.path, data, self._disk)


def _second(path: Path) -> Path:
    """Returns the path of the second copy. Its content is never older, since that would restore
    deleted messages.
    """
    return path.with_name(path.name + ".bak")


def _write(path: Path, data: bytes, disk: Disk) -> None:
    for copy in (_second(path), path):
        disk.write_atomically(copy, data)


def _lowered(ends: Ends, log_end: int) -> Ends:
    lowered = {topic: min(end, log_end) for topic, end in ends.items() if log_end}
    assert all(end <= log_end for end in lowered.values()), (log_end, lowered)
    return lowered


def _merge(old: Ends, new: Mapping[str, int], log_begin: int) -> Ends:
    ends = old | {topic: max(end, old.get(topic, 0)) for topic, end in new.items()}
    assert log_begin >= 0, log_begin
    kept = {topic: end for topic, end in ends.items() if end > log_begin}
    return dict(heapq.nlargest(DELETIONS_MAX, kept.items(), key=lambda item: item[1]))
