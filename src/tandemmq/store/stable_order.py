"""Sorting that keeps the order of equals, several times quicker than numpy's for numbers of few bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_VALUE_BITS = 63


def stable_order(values: Ints) -> Ints:
    """The indices that sort `values`; of equal ones the earlier index comes first."""
    count = len(values)
    bits = count.bit_length()
    if not count or int(values.min()) < 0 or int(values.max()) >> (_VALUE_BITS - bits):
        return values.argsort(kind="stable")
    # With its index below it each value is unique, so the quickest sort will do, and it moves no indices.
    packed = values << bits | np.arange(count)
    packed.sort()
    return packed & ((1 << bits) - 1)
