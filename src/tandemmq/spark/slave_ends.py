"""How far a stream that reads from slaves plans its next batch.

A batch that ends where the slave ends needs the master for nothing, so the stream goes on while the master is
down. But a slave that stopped replicating would then stop the stream too, in silence. So the slave's end
counts only while it keeps up: it must have reached, after `PATIENCE_S`, what its master had then. Otherwise
the batch ends where the master does, and the readers take from the master what the slave has not got.

Pure: the caller gives the time.
"""

from __future__ import annotations

from collections import deque

from tandemmq.spark.offsets import Positions, QueueKey

PATIENCE_S = 5.0
SNAPSHOTS_MAX = 512


class SlaveEnds:
    """Remembers the master's ends of the last seconds; one per running query."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._seen: deque[tuple[float, Positions]] = deque(maxlen=SNAPSHOTS_MAX)
        self._due: Positions = {}

    def choose(self, now_s: float, *, master: Positions, slave: Positions) -> dict[QueueKey, int]:
        """The end to plan for each queue that either replica answered for."""
        while self._seen and self._seen[0][0] <= now_s - self._patience_s:
            self._due = self._seen.popleft()[1]
        self._seen.append((now_s, dict(master)))
        ends = dict(slave)
        for queue, end in master.items():
            reached = slave.get(queue)
            if reached is None or reached < self._due.get(queue, 0):
                ends[queue] = end
            else:
                ends[queue] = min(reached, end)
        return ends
