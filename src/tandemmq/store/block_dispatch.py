"""Puts whole blocks of records into the ConsumeQueues and the key index.

Invariants: the tables hold afterwards what dispatching the records one by one would have put there.
Strategy:   the records of one queue nearly always continue it, so they are one append; where they do not
            (a gap, entries that are there already, a topic made again) the queue itself decides at each
            break.
Source:     spec store 5, 8.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandemmq.store.appender import Unit
from tandemmq.store.consume_queue import ConsumeQueue
from tandemmq.store.consume_queues import ConsumeQueues
from tandemmq.store.options import QUEUE_UNIT_BYTES
from tandemmq.store.queue_entries import pack_entries
from tandemmq.store.record_block import RecordBlock
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

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
        keys = self._keys
        if keys is not None and end > begin and int(columns.log_offset[end - 1]) >= keys.indexed_to:
            hashes, rows = block.keys(begin, end)
            keys.add_hashes(hashes, columns.log_offset[rows], columns.stored_at_ms[rows])
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
            note_gap(queue, queue.put_at(*place), place[0])
        except OSError as error:
            self._on_failed(queue, error)
        return queue.max_offset == place[0] + 1

    def _put_many(self, queue: ConsumeQueue, entries: bytes, end_log_offset: int) -> None:
        try:
            queue.put_many(entries, end_log_offset)
        except OSError as error:
            self._on_failed(queue, error)


def note_gap(queue: ConsumeQueue, gap: int, queue_offset: int) -> None:
    """Say that `gap` fillers were put before the entry at `queue_offset`, unless the queue began there; or
    that it began anew, when the gap is negative.
    """
    if gap < 0:
        log.info(
            events.QUEUE_BEGUN_ANEW,
            extra={"topic": queue.key[0], "queue_id": queue.key[1], "queue_offset": queue_offset},
        )
    elif gap and queue.min_offset != queue_offset:
        log.warning(
            events.QUEUE_GAP_FILLED,
            extra={"topic": queue.key[0], "queue_id": queue.key[1], "entry_count": gap},
        )
