"""Puts whole blocks of records into the ConsumeQueues and the key index; finds what has changed there since.

Invariants: the tables hold afterwards what dispatching the records one by one would have put there.
Strategy:   the records of one queue nearly always continue it, so they are one append; where they do not
            (a gap, entries that are there already, a topic made again) the queue itself decides at each
            break.
Source:     spec store 5, 8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandemmq.store.appender import Unit
from tandemmq.store.consume_queue import ConsumeQueue
from tandemmq.store.consume_queues import ConsumeQueues
from tandemmq.store.options import QUEUE_UNIT_BYTES
from tandemmq.store.queue_entries import ENTRY, pack_entries
from tandemmq.store.record_block import RecordBlock

Ints = NDArray[np.int64]


class KeySink(Protocol):
    """Where the keys of dispatched records go; those up to log offset `indexed_to` are there already."""

    @property
    def indexed_to(self) -> int: ...

    def add(self, units: list[Unit]) -> None: ...

    def add_hashes(self, hashes: Ints, log_offsets: Ints, stored_at_ms: Ints) -> None: ...


class BlockDispatch:
    """`on_failed(queue, error)` is told of queue files that take no writes; their entries wait in memory."""

    def __init__(
        self,
        *,
        queues: ConsumeQueues,
        keys: KeySink | None,
        delays_ms: Sequence[int],
        on_failed: Callable[[ConsumeQueue, OSError], None],
    ) -> None:
        self._queues = queues
        self._keys = keys
        self._delays_ms = delays_ms
        self._on_failed = on_failed

    def put(self, block: RecordBlock, begin: int, end: int) -> list[ConsumeQueue]:
        """Dispatch records `begin` to `end`; the queues that they belong to."""
        touched: list[ConsumeQueue] = []
        position = begin
        while (row := self._find_anew(block, position, end)) is not None:
            # What this record shows of its topic holds for what lies before it.
            touched += self._put_part(block, position, row)
            touched += self._put_part(block, row, row + 1)
            position = row + 1
        touched += self._put_part(block, position, end)
        keys = self._keys
        if keys is not None and end > begin and int(block.columns.log_offset[end - 1]) >= keys.indexed_to:
            hashes, rows = block.keys(begin, end)
            keys.add_hashes(hashes, block.columns.log_offset[rows], block.columns.stored_at_ms[rows])
        return touched

    def find_wrong(self, block: RecordBlock) -> list[int]:
        """The rows of records whose entry is not what dispatching them would have put there."""
        columns = block.columns
        deleted = self._queues.deletions.ends
        wrong: list[int] = []
        for key, found in block.queues(0, len(block)):
            queue = self._queues.table.get(key)
            if queue is None:
                continue
            offsets = columns.queue_offset[found]
            is_kept = (offsets >= queue.first_offset) & (offsets < queue.max_offset)
            rows = found[is_kept & (columns.log_offset[found] >= deleted.get(key[0], 0))]
            while len(rows):
                # Of one run in one file of the queue, or in its tail.
                first = int(columns.queue_offset[rows[0]])
                breaks = np.flatnonzero(np.diff(columns.queue_offset[rows]) != 1)
                entries = queue.entries(first, int(breaks[0]) + 1 if len(breaks) else len(rows))
                count = len(entries) // QUEUE_UNIT_BYTES
                if not count:
                    break
                run, rows = rows[:count], rows[count:]
                held = np.frombuffer(entries, dtype=ENTRY)
                is_wrong = held["log_offset"] != columns.log_offset[run]
                is_wrong |= held["size"] != columns.size[run]
                if not queue.is_schedule:  # there it is when a message is due
                    is_wrong |= held["tag_hash"] != block.tag_hash[run]
                wrong += run[is_wrong].tolist()
        return wrong

    def _find_anew(self, block: RecordBlock, begin: int, end: int) -> int | None:
        """The first record that begins a queue anew at 0, if one does."""
        columns = block.columns
        if columns.queue_offset[begin:end].all():
            return None
        found = []
        for key, every in block.queues(begin, end):
            queue = self._queues.table.get(key)
            known_to = self._queues.deletions.ends.get(key[0], 0)
            if queue is not None:
                known_to = max(known_to, queue.end_log_offset)
            rows = every[columns.log_offset[every] >= known_to]
            is_empty = queue is None or queue.max_offset == 0
            zeros = rows[is_empty:][columns.queue_offset[rows[is_empty:]] == 0]
            found += zeros[:1].tolist()
        return min(found, default=None)

    def _put_part(self, block: RecordBlock, begin: int, end: int) -> list[ConsumeQueue]:
        columns = block.columns
        touched = []
        new = []
        deleted = self._queues.deletions.ends
        for key, found in block.queues(begin, end):
            rows = found
            if deleted and key[0] in deleted:
                rows = found[columns.log_offset[found] >= deleted[key[0]]]
                if not len(rows):
                    continue
            queue = self._queues.get_or_create(key)
            touched.append(queue)
            if int(block.ends[rows[-1]]) > queue.end_log_offset:
                new.append((queue, rows))
        if new:
            self._put_queues(block, new)
        return touched

    def _put_queues(self, block: RecordBlock, new: list[tuple[ConsumeQueue, Ints]]) -> None:
        """Append entries to each queue whose records in the block are not all there."""
        columns = block.columns
        order = np.concatenate([rows for _, rows in new]) if len(new) > 1 else new[0][1]
        offsets, log_offsets = columns.queue_offset[order], columns.log_offset[order]
        entries = pack_entries(log_offsets, columns.size[order], block.tag_hash[order])
        breaks = (offsets[1:] != offsets[:-1] + 1).nonzero()[0] + 1
        last = 0
        for queue, rows in new:
            first, last = last, last + len(rows)
            # Breaks between queues lie at their ends, others within.
            is_one_run = breaks.searchsorted(first, side="right") == breaks.searchsorted(last)
            continues = offsets[first] == queue.max_offset and log_offsets[first] >= queue.end_log_offset
            if is_one_run and continues and not queue.is_schedule:
                part = entries[first * QUEUE_UNIT_BYTES : last * QUEUE_UNIT_BYTES]
                self._put_many(queue, part, int(block.ends[rows[-1]]))
            else:
                self._put_rows(queue, block, rows)

    def _put_rows(self, queue: ConsumeQueue, block: RecordBlock, rows: Ints) -> None:
        columns = block.columns
        rows = rows[columns.log_offset[rows] >= queue.end_log_offset]
        if not len(rows):
            return
        tags = block.due_times(rows, self._delays_ms) if queue.is_schedule else block.tag_hash[rows]
        offsets, log_offsets, sizes = columns.queue_offset[rows], columns.log_offset[rows], columns.size[rows]
        breaks = ((offsets[1:] != offsets[:-1] + 1).nonzero()[0] + 1).tolist()
        for first, last in zip([0, *breaks], [*breaks, len(rows)], strict=True):
            while first < last:
                place = (int(offsets[first]), int(log_offsets[first]), int(sizes[first]), int(tags[first]))
                first += 1
                if self._put_at(queue, place):
                    break
            if first < last:
                entries = pack_entries(log_offsets[first:last], sizes[first:last], tags[first:last])
                self._put_many(queue, entries, int(block.ends[rows[last - 1]]))

    def _put_at(self, queue: ConsumeQueue, place: tuple[int, int, int, int]) -> bool:
        """Append one entry at its place; True when the next one continues it."""
        try:
            self._queues.put_at(queue, *place)
        except OSError as error:
            self._on_failed(queue, error)
        return queue.max_offset == place[0] + 1

    def _put_many(self, queue: ConsumeQueue, entries: bytes, end_log_offset: int) -> None:
        try:
            queue.put_many(entries, end_log_offset)
        except OSError as error:
            self._on_failed(queue, error)
