"""Finds, many records at once, what recovery need not look at again: intact, and in every table already.

A restart reads the last file of the log from its start, which is up to a gibibyte of records that nearly
all are fine; through numpy that costs a quarter of looking at each.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tandemmq.protocol.record import RecordOutcome, check_record
from tandemmq.protocol.record_scan import (
    RecordColumns,
    read_columns,
    scan_boundaries,
    topic_names,
    verify_bodies,
)
from tandemmq.store.consume_queues import ConsumeQueues

BLOCK_COUNT = 8192
_UNQUEUED = 0x4

Ints: TypeAlias = NDArray[np.int64]


def last_known_record(
    view: memoryview,
    at: int,
    base: int,
    *,
    queues: ConsumeQueues,
    indexed_to: int,
    safe_ms: int,
    check_crc: bool,
) -> int | None:
    """The position of the last of a block of known records from `at` on; None when one of them is not.

    Units:   positions in bytes of `view`, which begins at log offset `base`; entries of records stored after
             `safe_ms` are not trusted.
    Strategy: all or nothing for the block: where the unknown begins is found record by record.
    """
    first = check_record(view, at, log_offset=base + at, check_crc=False)
    if first.outcome is not RecordOutcome.OK or first.log_offset > indexed_to:
        return None
    if first.stored_at_ms > safe_ms:
        return None
    queue = queues.table.get((first.topic, first.queue_id))
    if queue is None or queue.end_log_offset < first.log_offset + first.size:
        return None
    boundaries = scan_boundaries(view, at, count_max=BLOCK_COUNT)
    if len(boundaries.positions) < 2:
        return None
    columns = read_columns(view, boundaries, log_offset=base)
    if not columns.is_valid.all() or int(columns.log_offset[-1]) > indexed_to:
        return None
    if int(columns.stored_at_ms[-1]) > safe_ms:
        return None
    if not _is_in_queues(columns, topic_names(view, columns), queues):
        return None
    if check_crc and not verify_bodies(view, columns).all():
        return None
    return int(columns.position[-1])


def _is_in_queues(columns: RecordColumns, topics: list[str], queues: ConsumeQueues) -> bool:
    """True when every queue has the entry of its last record here, and therefore all before it."""
    numbers = {topic: number for number, topic in enumerate(dict.fromkeys(topics))}
    if "" in numbers:
        return False
    codes = np.fromiter((numbers[topic] for topic in topics), dtype=np.int64, count=len(topics))
    is_queued = columns.sys_flag & _UNQUEUED == 0
    keys = (codes << 32 | columns.queue_id & 0xFFFFFFFF)[is_queued]
    ends = (columns.log_offset + columns.size)[is_queued]
    # Of several values for one place numpy keeps the last, which is the newest record.
    groups, inverse = np.unique(keys, return_inverse=True)
    newest: Ints = np.zeros(len(groups), dtype=np.int64)
    newest[inverse] = ends
    names = list(numbers)
    for group, end in zip(groups.tolist(), newest.tolist(), strict=True):
        queue = queues.table.get((names[group >> 32], group & 0xFFFFFFFF))
        if queue is None or queue.end_log_offset < end:
            return False
    return True
