"""The record of who was refused and who changed something: one line each, by a logger of its own.

At a bound: refusals above LINES_PER_PERIOD_MAX in a period are counted and told in one line at its end, so
that a flood of them costs neither disk nor time. Administrative requests are always told.
"""

from __future__ import annotations

import logging
from typing import Final

from tandemmq.remoting.address import render_address
from tandemmq.runtime.ports import Address, Clock, TimerHandle
from tandemmq.telemetry import events

log = logging.getLogger("tandemmq.audit")

PERIOD_S: Final = 10.0
LINES_PER_PERIOD_MAX: Final = 20


class Audit:
    """Writes to the logger `tandemmq.audit`. `denied_count` counts all refusals since the start."""

    def __init__(self, clock: Clock) -> None:
        self.denied_count = 0
        self._clock = clock
        self._lines = 0
        self._suppressed = 0
        self._timer: TimerHandle | None = None

    def denied(self, who: str, peer: Address, code: int, resource: str, reason: str) -> None:
        """Log that a request was denied; above `LINES_PER_PERIOD_MAX` lines in a period only count it."""
        self.denied_count += 1
        if self._timer is None:
            self._timer = self._clock.call_later(PERIOD_S, self._end_period)
        if self._lines >= LINES_PER_PERIOD_MAX:
            self._suppressed += 1
            return
        self._lines += 1
        log.warning(events.ACCESS_DENIED, extra={**_facts(who, peer, code, resource), "reason": reason})

    def allowed(self, who: str, peer: Address, code: int, resource: str) -> None:
        """Log that an administrative request was allowed."""
        log.info(events.ADMIN_REQUEST_ALLOWED, extra=_facts(who, peer, code, resource))

    def close(self) -> None:
        """Tells what is not told yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_period()

    def _end_period(self) -> None:
        if self._suppressed:
            log.warning(
                events.ACCESS_DENIALS_SUPPRESSED,
                extra={"count": self._suppressed, "period_s": PERIOD_S},
            )
        self._lines = self._suppressed = 0
        self._timer = None


def _facts(who: str, peer: Address, code: int, resource: str) -> dict[str, object]:
    return {"who": who or "(nobody)", "peer": render_address(peer), "code": code, "resource": resource}
