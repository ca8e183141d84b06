"""`Arrivals`: the messages that the broker has stored, by topic and type, as RocketMQ's metrics count them.

Strategy: a send appends the stored size of its message to a column of its topic, and counts nothing else.
          `fold` adds the columns up, for all topics at once, every 10 s and at a scrape.
At a bound: topics beyond `rows_max` have no row of their own until others are deleted; `sent_count` includes
            them. A column grows for 10 s, by 4 bytes per message.
Source: spec metrics 3.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterator, Sequence
from typing import Final

import numpy as np

from tandemmq.protocol.topic_names import is_derived
from tandemmq.telemetry.metrics import Histogram
from tandemmq.telemetry.rocketmq_metrics import SIZE_BUCKETS

NORMAL: Final = "normal"
FIFO: Final = "fifo"
DELAY: Final = "delay"
TRANSACTION: Final = "transaction"

RowKey = tuple[str, str]
"""Topic and type."""

SIZES_PER_STEP: Final = 65_536
_BOUNDS: Final = np.array(SIZE_BUCKETS)
_PLACES: Final = len(SIZE_BUCKETS) + 1


class ArrivalRow:
    """The messages of one topic and type. `record` counts one message by its stored size; `folded` is their
    number up to the last `fold`.
    """

    __slots__ = ("_more_bytes", "folded", "record", "sizes", "unfolded")

    def __init__(self) -> None:
        self.unfolded = array("I")
        self.record = self.unfolded.append
        self.sizes = Histogram(SIZE_BUCKETS)
        """Sizes of single messages, and the mean size of each batch."""
        self.folded = 0
        self._more_bytes = 0

    def record_each(self, sizes: Sequence[int]) -> None:
        """Counts single messages by their stored sizes."""
        self.unfolded.extend(sizes)

    def record_batch(self, count: int, size: int) -> None:
        """Counts a batch of `count` messages that together have `size` bytes."""
        mean = size // count
        self.record(mean)
        self.folded += count - 1
        self._more_bytes += size - mean

    def add(self, counts: list[int], total: float) -> None:
        """Adds folded sizes: `counts` by bucket, and their sum."""
        sizes = self.sizes
        sizes.counts = [before + count for before, count in zip(sizes.counts, counts, strict=True)]
        sizes.total += total
        self.folded += sum(counts)

    @property
    def messages(self) -> int:
        return self.folded + len(self.unfolded)

    @property
    def bytes(self) -> int:
        """The stored bytes up to the last `fold`."""
        return int(self.sizes.total) + self._more_bytes


class Arrivals:
    """The rows, by topic and type. `not_sent`: messages in them that no producer sent."""

    def __init__(self, rows_max: int) -> None:
        self.rows: dict[RowKey, ArrivalRow] = {}
        self.hidden = ArrivalRow()
        """The messages without series: those of retry and dead letter topics, and those beyond the bound."""
        self.not_sent = 0
        self._rows_max = rows_max
        self._forgotten = 0

    def row(self, topic: str, kind: str) -> ArrivalRow:
        """Returns the row that counts messages of the topic and type, and begins it if it is new."""
        row = self.rows.get((topic, kind))
        if row is None:
            if is_derived(topic) or len(self.rows) >= self._rows_max:
                return self.hidden
            row = self.rows[topic, kind] = ArrivalRow()
        return row

    @property
    def sent_count(self) -> int:
        """The messages that producers sent, retries included."""
        counts = sum(row.messages for row in self.rows.values())
        return counts + self.hidden.messages + self._forgotten - self.not_sent

    def fold(self) -> Iterator[tuple[()]]:
        """Adds the columns up; yields nothing where other tasks may run."""
        waiting = [row for row in (self.hidden, *self.rows.values()) if row.unfolded]
        while waiting:
            taken: list[ArrivalRow] = []
            size = 0
            while waiting and size < SIZES_PER_STEP:
                taken.append(waiting.pop())
                size += len(taken[-1].unfolded)
            _fold(taken)
            yield ()

    def keep_topics(self, topics: Container[str]) -> None:
        """Forgets rows of deleted topics, and with them their series."""
        for key in [key for key in self.rows if key[0] not in topics]:
            self._forgotten += self.rows.pop(key).messages


def _fold(rows: list[ArrivalRow]) -> None:
    lengths = [len(row.unfolded) for row in rows]
    sizes = np.frombuffer(b"".join([row.unfolded for row in rows]), np.uint32)
    owners = np.repeat(np.arange(len(rows)), lengths)
    places = owners * _PLACES + np.searchsorted(_BOUNDS, sizes)
    counts = np.bincount(places, minlength=len(rows) * _PLACES).reshape(len(rows), _PLACES).tolist()
    totals = np.bincount(owners, weights=sizes, minlength=len(rows)).tolist()
    for row, of_row, total in zip(rows, counts, totals, strict=True):
        row.add(of_row, total)
        del row.unfolded[:]
