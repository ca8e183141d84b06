"""Values of the protocol: times, whose fields are seconds and nanoseconds, and numbers in texts. Pure.

Source: spec proxy 2.2.
"""

from __future__ import annotations

from typing import Any, Final

TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999, the last time that a Timestamp may hold."""
_DIGITS_MAX: Final = 18
"""Every number of this many digits fits into 64 bits."""


def milliseconds(time: Any) -> int:
    """Returns the milliseconds of a Timestamp or a Duration."""
    return int(time.seconds) * 1000 + int(time.nanos) // 1_000_000


def timestamp(at_ms: int) -> dict[str, int]:
    """Returns the fields of a Timestamp; a time before 1970 or after 9999 becomes the nearest one inside."""
    return _fields(min(max(at_ms, 0), TIME_MS_MAX))


def duration(span_ms: int) -> dict[str, int]:
    """Returns the fields of a Duration that is not negative."""
    return _fields(max(span_ms, 0))


def _fields(time_ms: int) -> dict[str, int]:
    seconds, ms = divmod(time_ms, 1000)
    return {"seconds": seconds, "nanos": ms * 1_000_000}


def natural_number(text: str) -> int | None:
    """Returns the value of a decimal text without a sign; None for another text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None


def whole_number(text: str | None) -> int | None:
    """Returns the value of a decimal text, which may begin with `-`; None for another text or for None."""
    if text is None or natural_number(text.removeprefix("-")) is None:
        return None
    return int(text)
