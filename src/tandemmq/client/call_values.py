"""Numbers that an application passes to a call: a wrong one is refused by its name, before anything is sent.

Others become plain ints and floats: a number of numpy may overflow where its seconds become milliseconds.
"""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, Final

from tandemmq.errors import BadRequest

TIMEOUT_S_MAX: Final = 24 * 86_400.0
"""Longer timeouts count as this one; their milliseconds are an int32 in some requests."""


def to_number(name: str, value: Any, low: float, high: float) -> float:
    """Returns a number as a float. Raises BadRequest for a value that is not a number, or out of bounds."""
    number = _to_float(value)
    if not low <= number <= high:
        raise BadRequest(f"{name} {value!r:.64}: must be a number from {low:g} to {high:g}")
    return number


def to_count(name: str, value: Any, low: int, high: int) -> int:
    """Returns a whole number as an int. Raises BadRequest for any other value, or one out of bounds."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise BadRequest(f"{name} {value!r:.64}: must be a whole number from {low} to {high}")
    return int(value)


def to_timeout(value: Any) -> float:
    """Returns a timeout in seconds, at most `TIMEOUT_S_MAX`; that of a deadline in the past is negative.

    Raises:  BadRequest for a value that is not a number.
    """
    number = _to_float(value)
    if math.isnan(number):
        raise BadRequest(f"timeout_s {value!r:.64}: must be a number of seconds")
    return max(-TIMEOUT_S_MAX, min(number, TIMEOUT_S_MAX))


def _to_float(value: Any) -> float:
    """Returns a number, such as an int or one of numpy's, as a float; NaN for a bool and other values."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # a huge int
        return math.inf if value == abs(value) else -math.inf
