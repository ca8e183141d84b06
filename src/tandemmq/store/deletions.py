"""Which topics were deleted, and where the log ended then: what is below belongs to no topic any more.

The records of a deleted topic stay in the log until they expire. Whoever builds queue entries from the log,
a recovery, a slave, a repair, asks here first, so that deleted messages do not come back.
Invariants: a deletion is on disk before a queue is touched. It is forgotten once the log begins behind it.
            One that nobody has told shows in the log, where a queue of the topic begins anew at 0.
            No record that is appended here lies below one: a recovery that ends the log earlier lowers it, so
            does a slave that begins to copy a log, which may have gone on in another way than it was told.
At a bound: the deletion that expires next is forgotten; if the queues of its topic are then built anew, they
            hold the deleted messages, until the topic is made again.
Knows not:  topics, groups: a name is a name.
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
    """What a store's file says, or its second copy; nothing when there is none.

    Raises:  Corrupt: to go on without it would bring deleted messages back, which an operator must decide.
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
        raise Corrupt(path, 0, f"{reason}; put back the file: a copy of this log has one, too") from damage
    return {}


class Deletions:
    """The deletions of one store; `ends` is only read by others."""

    __slots__ = ("_disk", "_kept", "_lock", "_written", "ends", "path")

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk
        self._lock = asyncio.Lock()
        self._kept: Ends = {}  # what holds even if the record fails that is being written
        self._written: Ends = {}  # what is on disk
        self.ends: Ends = {}

    def load(self) -> None:
        """Raises Corrupt."""
        self.ends = self._written = read_deletions(self.path, self._disk)

    async def record(self, ends: Mapping[str, int], *, log_begin: int) -> None:
        """Take these over and have them on disk; what expired is forgotten.

        Raises:  OSError when they cannot be written; nothing has changed then but what others changed.
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
        """The log shows a deletion at or behind `end`. Blocks, unless a write is under way, which takes it
        along.

        Raises:  OSError when it cannot be written; it is known all the same.
        """
        self._kept = _merge(self._kept, {topic: end}, log_begin=0)
        if end <= self.ends.get(topic, 0):
            return
        self.ends = _merge(self.ends, {topic: end}, log_begin=0)
        assert self.ends.get(topic, end) >= end, (topic, end)
        self._write_now()

    def cut(self, log_end: int) -> None:
        """The log goes on at `log_end` with records of its own: none of them is deleted. Blocks, unless a
        write is under way, which takes it along.

        Raises:  OSError when the change cannot be written.
        """
        if self.lower(log_end):
            self._write_now()

    def lower(self, log_end: int) -> bool:
        """As `cut`, in memory only; True when there is something to `save`."""
        assert log_end >= 0, log_end
        self.ends, self._kept = _lowered(self.ends, log_end), _lowered(self._kept, log_end)
        return self.ends != self._written

    @property
    def is_behind(self) -> bool:
        """Whether the disk has something else, because it took no write."""
        return self.ends != self._written

    async def save(self) -> None:
        """Raises:  OSError when they cannot be written."""
        async with self._lock:
            await self._write()

    async def _write(self) -> None:
        """What changes meanwhile is written, too."""
        assert self._lock.locked(), "one write at a time"
        ends = None
        while ends is not self.ends:
            ends = self.ends
            await self._disk.offload(self._writer())
            self._written = ends

    def _write_now(self) -> None:
        """Two writes at once would take each other's file away."""
        if not self._lock.locked():
            self._writer()()
            self._written = self.ends

    def _writer(self) -> partial[None]:
        data = seal_json(msgspec.json.encode(_File(topics=self.ends)))
        return partial(_write, self.path, data, self._disk)


def _second(path: Path) -> Path:
    """The same content once more, unlike a backup: an older one would bring deleted messages back."""
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
