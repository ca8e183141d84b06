"""The ConsumeQueue entries that a run of records should have, queue by queue.

Source: spec store 5, 5.2, 15.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.topic_names import DELAY_LEVELS_MS, delivered_at_ms
from tandemmq.store.column_rows import take_rows
from tandemmq.store.consume_queues import SCHEDULE_TOPIC
from tandemmq.store.inspect.log_walk import Run

Ints = NDArray[np.int64]

UNQUEUED = 0x4
"""Prepared and rolled back transactions have no entry."""
INNER_BATCH = 0x80
"""Their entries lie in `batchconsumequeue`, which only RocketMQ has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRows:
    """The records of one queue in a run, in the order of the log; one array item each."""

    key: tuple[str, int]
    queue_offset: Ints
    log_offset: Ints
    size: Ints
    tag_hash: Ints
    is_intact: NDArray[np.bool_]

    def part(self, begin: int, end: int) -> QueueRows:
        """Some of the rows."""
        return QueueRows(
            key=self.key,
            queue_offset=self.queue_offset[begin:end],
            log_offset=self.log_offset[begin:end],
            size=self.size[begin:end],
            tag_hash=self.tag_hash[begin:end],
            is_intact=self.is_intact[begin:end],
        )


class EntryReader:
    """Makes entries of runs. `delays_ms`: the broker's delay levels; `deleted`: where the log ended when a
    topic was deleted.
    """

    def __init__(
        self,
        names: Sequence[str],
        delays_ms: Sequence[int] = DELAY_LEVELS_MS,
        *,
        deleted: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._names = names
        self._delays_ms = delays_ms
        self._deleted = deleted
        self.inner_batch_count = 0

    def read(self, run: Run) -> Iterator[QueueRows]:
        """The entries by queue; records without one are left out."""
        flags = run.columns.sys_flag
        is_batch = flags & INNER_BATCH != 0
        self.inner_batch_count += int(is_batch.sum())
        rows = np.flatnonzero(~is_batch & (flags & UNQUEUED == 0))
        if not len(rows):
            return
        columns = run.columns if len(rows) == len(run.columns) else take_rows(run.columns, rows)
        topic = run.topic[rows]
        tags = run.properties.tag_hashes()[rows]
        order = np.lexsort((columns.queue_id, topic))
        topic, queue_id = topic[order], columns.queue_id[order]
        is_new = np.flatnonzero((np.diff(topic) != 0) | (np.diff(queue_id) != 0)) + 1
        for group in np.split(order, is_new):
            first = int(group[0])
            key = (self._names[int(run.topic[rows[first]])], int(columns.queue_id[first]))
            tag = tags[group]
            if key[0] == SCHEDULE_TOPIC:
                tag = self._due_times(run, rows[group], tag)
            queue_rows = QueueRows(
                key=key,
                queue_offset=columns.queue_offset[group],
                log_offset=columns.log_offset[group],
                size=columns.size[group],
                tag_hash=tag,
                is_intact=run.is_intact[rows[group]],
            )
            # A queue's records stand in the order of the log.
            gone = int(queue_rows.log_offset.searchsorted(self._deleted.get(key[0], 0)))
            if gone < len(group):
                yield queue_rows.part(gone, len(group))

    def _due_times(self, run: Run, rows: Ints, tags: Ints) -> Ints:
        """In place of the tag a delayed message's entry says when it is due."""
        result = tags.copy()
        place = {row: index for index, row in enumerate(rows.tolist())}
        levels = run.properties.find(b"DELAY")
        for row, level in zip(levels.row.tolist(), run.properties.texts(levels), strict=True):
            if row in place and level.isdigit() and len(level) <= 9 and int(level) > 0:
                stored_at_ms = int(run.columns.stored_at_ms[row])
                result[place[row]] = delivered_at_ms(int(level), stored_at_ms, self._delays_ms)
        return result
