"""Checks of numbers that an application passes to a call: a wrong one is refused by its name, before anything
is sent.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Final

from tandemmq.errors import BadRequest

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
TIMEOUT_S_MAX: Final = 24 * 86_400.0
"""Longer timeouts count as this one; their milliseconds are an int32 in some requests."""


def is_number(value: Any) -> bool:
    """Returns True for a number, such as an int, a float or one of numpy's; not for a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_number(name: str, value: Any, low: float, high: float) -> None:
    """Raises BadRequest for a value that is not a number, or out of bounds."""
    if not is_number(value) or not low <= value <= high:
        raise BadRequest(f"{name} {value!r:.64}: must be a number from {low:g} to {high:g}")


def check_count(name: str, value: Any, low: int, high: int) -> None:
    """Raises BadRequest for a value that is not a whole number, or out of bounds."""
    if not is_number(value) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise BadRequest(f"{name} {value!r:.64}: must be a whole number from {low} to {high}")


def to_timeout(value: Any) -> float:
    """Returns a timeout in seconds, at most `TIMEOUT_S_MAX`; that of a deadline in the past is negative.

    Raises:  BadRequest for a value that is not a number.
    """
    if not is_number(value) or value != value:  # NaN differs from itself
        raise BadRequest(f"timeout_s {value!r:.64}: must be a number of seconds")
    return float(max(-TIMEOUT_S_MAX, min(value, TIMEOUT_S_MAX)))
