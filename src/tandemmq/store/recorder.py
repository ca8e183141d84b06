"""The numbers a store keeps for its metrics, which its parts update once per batch.

Invariants: nothing here is updated per message; a waiting batch is one entry, whatever the number of its
            sends.
At a bound: batches that start to wait while `BATCHES_WATCHED_MAX` others do are not measured.
Knows not:  the readers of the metrics.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tandemmq.store.outcomes import PutStatus
from tandemmq.telemetry.metrics import DISK_BUCKETS_S, WAIT_BUCKETS_S, WRITE_BUCKETS_S, Histogram

BATCHES_WATCHED_MAX = 4096


class WaitTimes:
    """The waiting times of batches for a log offset, each from `begin` to `reach`."""

    __slots__ = ("_batches", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram(WAIT_BUCKETS_S)
        self._batches: deque[tuple[int, float]] = deque()

    def __len__(self) -> int:
        """Returns the number of waiting batches."""
        return len(self._batches)

    def begin(self, end: int, now: float) -> None:
        """Starts measuring a batch that ends at `end`; ends come in ascending order."""
        assert not self._batches or self._batches[-1][0] <= end, (self._batches[-1][0], end)
        if len(self._batches) < BATCHES_WATCHED_MAX:
            self._batches.append((end, now))

    def reach(self, offset: int, now: float) -> None:
        """Ends the wait of all batches that end at or below `offset`."""
        batches = self._batches
        while batches and batches[0][0] <= offset:
            self.seconds.observe(now - batches.popleft()[1])

    def forget(self) -> None:
        """Drops all waiting batches without measuring them."""
        self._batches.clear()


class StoreRecorder:
    """The durations of one store, and the outcomes of its appends."""

    def __init__(self) -> None:
        self.append_batch_s = Histogram(WRITE_BUCKETS_S)
        self.commit_s = Histogram(WRITE_BUCKETS_S)
        self.flush_s = Histogram(DISK_BUCKETS_S)
        self.flush_wait = WaitTimes()
        self.ack_wait = WaitTimes()
        self.outcomes = dict.fromkeys(PutStatus, 0)
        self.read_distance_bytes = 0  # of the last read, from the log's end
        self.far_read_count = 0  # reads beyond the memory window
        self.scrubbed_bytes = 0  # of the log, read to find damage


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """The state of a store at one moment, beside its watermarks. `refusal`: the reason for refusing sends."""

    is_failed: bool
    refusal: str | None
    log_file_count: int
    queue_count: int
    sends_waiting_for_flush: int
    sends_waiting_for_acks: int
    has_pool: bool  # False on a slave too, which does not use it
    pool_free_count: int
    uncommitted_bytes: int
    damaged_range_count: int
    damaged_bytes: int
