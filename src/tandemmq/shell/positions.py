"""The texts of commands for durations, for times, and for the position at which a group reads."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import typer

from tandemmq.admin.options import Text
from tandemmq.api.broker_admin import END_OF_QUEUE_MS

_MS_DIGITS_MAX: Final = 18
_MS_MAX: Final = 10.0**15
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION_MS_MIN: Final = 100
_EARLIEST: Final = ("earliest", "first")
_LATEST: Final = ("latest", "last")
_OFFSET: Final = "offset:"


def parse_duration(text: str) -> int | None:
    """Returns the milliseconds of a duration such as 500ms, 30s, 10m, 2h or 7d; None for another text."""
    found = _DURATION.fullmatch(text)
    return None if found is None else int(min(float(found[1]) * _UNITS_MS[found[2]], _MS_MAX))


def parse_when(text: str) -> int:
    """Returns milliseconds since 1970 for a duration such as `10m` (ago), an ISO time (local unless it has a
    zone), or milliseconds.

    Raises:  typer.BadParameter.
    """
    ago_ms = parse_duration(text)
    if ago_ms is not None:
        return max(0, int(time.time() * 1000) - ago_ms)
    if text.isdecimal() and 8 < len(text) <= _MS_DIGITS_MAX:
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text}: expected a duration (90s, 10m, 2h, 7d), a time (2026-11-23 14:05) or Unix milliseconds"
        ) from None


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The position at which a group reads a queue: the first message stored at or after `time_ms` (0: the
    first; END_OF_QUEUE_MS: behind the last), or an offset.
    """

    time_ms: int = 0
    offset: int | None = None


FIRST: Final = StartPosition()
LAST: Final = StartPosition(END_OF_QUEUE_MS)


def parse_position(text: str, option: str) -> StartPosition:
    """Returns the position that the text names. Raises typer.BadParameter."""
    if text in _EARLIEST:
        return FIRST
    if text in _LATEST:
        return LAST
    number = text.removeprefix(_OFFSET)
    if number != text and number.isascii() and number.isdecimal() and len(number) <= _MS_DIGITS_MAX:
        return StartPosition(offset=int(number))
    try:
        return StartPosition(parse_when(text))
    except typer.BadParameter:
        raise typer.BadParameter(
            f"{option} {text}: expected earliest, latest, offset:N, a duration ago (10m, 2h), a time"
            " (2026-11-23 14:05) or Unix milliseconds"
        ) from None


def _seconds(text: str, option: str) -> float:
    """Returns seconds for a duration, or for a plain number of seconds. Raises typer.BadParameter."""
    given_ms = parse_duration(text)
    if given_ms is None and re.fullmatch(r"\d+(?:\.\d+)?", text):
        given_ms = int(float(text) * 1_000)
    if given_ms is None or given_ms < _DURATION_MS_MIN:
        raise typer.BadParameter(f"{option} {text}: expected at least 100ms, such as 500ms, 30s, 10m or 2h")
    return given_ms / 1_000


WHEN: Final = Text(lambda text, _: parse_when(text))
POSITION: Final = Text(parse_position)
SECONDS: Final = Text(_seconds)
"""Marks an option with a duration, in seconds; a number without a unit is seconds."""
