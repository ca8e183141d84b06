"""Consecutive plain records of one topic as lists, read by the optional kernel: most of what a slave that
follows its master receives.

Invariants: a run contains only records that `check_record` finds OK, with the same values; none is delayed or
            of a transaction that is not committed, and each uses one queue offset. Other records are left to
            `check_record`.
Strategy:   the kernel reads the fields. The checksums are computed here, by the faster library.
"""

from __future__ import annotations

from operator import eq
from typing import NamedTuple

from tandemmq.protocol import speedups
from tandemmq.protocol.hashes import crc32
from tandemmq.protocol.record_layout import CRC_MASK
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC


class RecordRun(NamedTuple):
    """The fields of `RecordCheck` for n records of one topic, as lists."""

    topic: str
    sizes: list[int]
    log_offsets: list[int]
    queue_ids: list[int]
    queue_offsets: list[int]
    tag_hashes: list[int]
    stored_times_ms: list[int]
    unique_keys: list[str]
    keys: list[str]

    @property
    def size_bytes(self) -> int:
        """The size of all records together."""
        return self.log_offsets[-1] + self.sizes[-1] - self.log_offsets[0]

    def head(self, count: int) -> RecordRun:
        """Returns the first `count` records."""
        return RecordRun(
            self.topic,
            self.sizes[:count],
            self.log_offsets[:count],
            self.queue_ids[:count],
            self.queue_offsets[:count],
            self.tag_hashes[:count],
            self.stored_times_ms[:count],
            self.unique_keys[:count],
            self.keys[:count],
        )


def read_run(
    view: memoryview, position: int, end: int, *, log_offset: int, record_bytes_max: int
) -> RecordRun | None:
    """Returns the run from byte `position` of `view` on; None without the kernel, or if another record is
    there.

    Units:   `log_offset` is the log offset of `position`. No record of the run ends after byte `end`.
    """
    kernel = speedups.kernel
    if kernel is None:
        return None
    found = kernel.read_records(view, position, end, log_offset, record_bytes_max)
    if found is None or found[-1] == SCHEDULE_TOPIC:
        return None
    (
        sizes,
        log_offsets,
        queue_ids,
        queue_offsets,
        tags,
        times,
        bodies,
        body_ends,
        sums,
        unique_keys,
        keys,
        topic,
    ) = found
    run = RecordRun(topic, sizes, log_offsets, queue_ids, queue_offsets, tags, times, unique_keys, keys)
    computed = [crc32(view[at:to]) & CRC_MASK for at, to in zip(bodies, body_ends, strict=True)]
    if computed == sums:
        return run
    good = list(map(eq, computed, sums)).index(False)
    return run.head(good) if good else None
