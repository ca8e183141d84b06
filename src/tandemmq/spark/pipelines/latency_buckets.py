"""Latencies counted by size: counts of any parts can be added, percentiles are read from the sum. Pure.

Four buckets per doubling: a percentile is right to 9 %. Bucket 0 holds what took less than a millisecond (or,
between machines whose clocks differ, less than nothing).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PER_DOUBLING = 4
BUCKETS = 28 * PER_DOUBLING + 1
"""The last one holds everything from 2.6 days on."""

Counts = NDArray[np.int64]


def find_buckets(milliseconds: NDArray[Any]) -> NDArray[np.int64]:
    """The bucket of each latency."""
    places = np.floor(np.log2(np.maximum(milliseconds, 1)) * PER_DOUBLING).astype(np.int64) + 1
    places[milliseconds < 1] = 0
    result: NDArray[np.int64] = np.minimum(places, BUCKETS - 1)
    return result


def find_percentile(counts: Counts, share: float) -> float | None:
    """Milliseconds that `share` (0..1) of the latencies do not exceed; None without latencies."""
    total = int(counts.sum())
    if not total:
        return None
    wanted = max(1, int(np.ceil(share * total)))
    bucket = int(np.searchsorted(np.cumsum(counts), wanted))
    return 0.0 if bucket == 0 else float(2 ** ((bucket - 0.5) / PER_DOUBLING))
