"""Judges the entries of a ConsumeQueue that no record of the log accounted for.

Strategy: fillers and entries of expired records are as they should be; one that points into damage tells
          which queue the damaged record belongs to; the others point to nothing of this queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tandemmq.protocol.record_check import RecordCheck
from tandemmq.protocol.record_layout import RecordOutcome
from tandemmq.store.inspect.damage import damage_at
from tandemmq.store.inspect.log_walk import LogWalk
from tandemmq.store.inspect.queue_files import Entries, QueueFiles, is_filler

RecordAt = Callable[[int], RecordCheck]
"""What lies at a log offset; END outside the log."""

Judged = tuple[int, int, str, bool]
"""First and end queue offset, what is wrong with these entries, whether a crash explains it."""


class Leftovers:
    """The entries of one queue outside the given intervals."""

    def __init__(self, files: QueueFiles, walk: LogWalk, record_at: RecordAt, *, has_abort: bool) -> None:
        self._files = files
        self._walk = walk
        self._record_at = record_at
        self._has_abort = has_abort

    def judge(self, covered: Sequence[tuple[int, int]]) -> Iterator[Judged]:
        """What is wrong with the entries outside `covered`, neighbours with the same fault together."""
        at = self._files.first
        for begin, end in [*sorted(covered), (self._files.end, self._files.end)]:
            for first, entries in self._files.blocks(at, begin):
                yield from self._judge_block(first, entries)
            at = max(at, end)

    def _judge_block(self, first: int, entries: Entries) -> Iterator[Judged]:
        ends = entries["log_offset"].astype(np.int64) + entries["size"]
        is_expired = (entries["size"] > 0) & (entries["log_offset"] >= 0) & (ends <= self._walk.begin)
        pending: Judged | None = None
        for row in np.flatnonzero(~is_filler(entries) & ~is_expired).tolist():
            queue_offset = first + row
            log_offset, size = int(entries["log_offset"][row]), int(entries["size"][row])
            reason, is_expected = self._judge_entry(queue_offset, log_offset, size)
            if not reason:
                continue
            if pending is not None and pending[1:] == (queue_offset, reason, is_expected):
                pending = (pending[0], queue_offset + 1, reason, is_expected)
                continue
            if pending is not None:
                yield pending
            pending = (queue_offset, queue_offset + 1, reason, is_expected)
        if pending is not None:
            yield pending

    def _judge_entry(self, queue_offset: int, log_offset: int, size: int) -> tuple[str, bool]:
        if size <= 0 or log_offset < 0:
            return "is empty or no entry", False
        damage = damage_at(self._walk.damages, log_offset)
        if damage is not None:
            if damage.topic is None:
                damage.topic, damage.queue_id = self._files.key
                damage.queue_offset = queue_offset
            return "", False
        if log_offset + size > self._walk.intact_end:
            return "is ahead of the log: it points behind the log's end", self._has_abort
        found = self._record_at(log_offset)
        if found.outcome is RecordOutcome.OK:
            owner = f"{found.topic}/{found.queue_id} at queue offset {found.queue_offset}"
            return f"points to a record of {owner}", False
        return "points to no record", False
