"""`LimitedLines`: the log lines that clients can cause.

At a bound: `LINES_MAX` lines of one event in `LINES_PERIOD_S`; the next line says how many were suppressed.
            So a client cannot write a line per call, and a flood of one event does not hide another. Texts
            are cut after TEXT_CHARS_MAX: they may contain names of any length.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from tandemmq.remoting.shared_bounds import LineLimit
from tandemmq.runtime.ports import Clock

TEXT_CHARS_MAX: Final = 1_024


class LimitedLines:
    """Writes lines, limited by event."""

    __slots__ = ("_clock", "_limits")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limits: dict[str, LineLimit] = {}

    def write(
        self,
        log: logging.Logger,
        event: str,
        facts: Mapping[str, Any],
        *,
        level: int = logging.WARNING,
        error: Exception | None = None,
    ) -> None:
        """Writes a line, unless too many of its event were written. `error` adds a traceback."""
        limit = self._limits.get(event)
        if limit is None:
            limit = self._limits[event] = LineLimit(self._clock)
        admitted = limit.admit()
        if admitted is not None:
            shown = {
                name: fact[:TEXT_CHARS_MAX] if isinstance(fact, str) else fact for name, fact in facts.items()
            }
            log.log(level, event, extra={**shown, **admitted}, exc_info=error)
