"""The audit log of refused and of administrative requests, written by the guards of brokers and controllers.

Source:  spec semantics 21.
"""

from __future__ import annotations

import logging
from typing import Final

from tandemmq.remoting.options import render_address
from tandemmq.runtime.ports import Address, Clock, TimerHandle
from tandemmq.telemetry import events

log = logging.getLogger("tandemmq.audit")

PERIOD_S: Final = 10.0
LINES_PER_PERIOD_MAX: Final = 20
NEWEST_LENGTH_MAX: Final = 512


class AccessLog:
    """Records refusals and changes: one line each, by the logger `tandemmq.audit`.

    At a bound: refusals above LINES_PER_PERIOD_MAX in a period are counted and reported in one line at its
                end, so that a flood of them costs neither disk nor time. The same holds for unsigned
                administrative requests. Signed ones are always recorded.

    `denied_count` counts all refusals since the start; `newest` describes the last one.
    """

    def __init__(self, clock: Clock) -> None:
        self.denied_count = 0
        self.newest = ""
        self._clock = clock
        self._lines = 0
        self._suppressed = 0
        self._unsigned = 0
        self._timer: TimerHandle | None = None

    def denied(self, who: str, peer: Address, code: int, resource: str, reason: str) -> None:
        """Logs a denied request; above `LINES_PER_PERIOD_MAX` lines in a period it is only counted."""
        self.denied_count += 1
        facts = _facts(who, peer, code, resource)
        self.newest = f"{facts['who']} from {facts['peer']}: {reason}"[:NEWEST_LENGTH_MAX]
        self._begin_period()
        if self._lines >= LINES_PER_PERIOD_MAX:
            self._suppressed += 1
            return
        self._lines += 1
        log.warning(events.ACCESS_DENIED, extra={**facts, "reason": reason})

    def allowed(self, who: str, peer: Address, code: int, resource: str) -> None:
        """Logs an allowed administrative request; `who` is empty for an unsigned one."""
        if self._has_room(who):
            log.info(events.ADMIN_REQUEST_ALLOWED, extra=_facts(who, peer, code, resource))

    def refused(self, who: str, peer: Address, code: int, resource: str, reason: str) -> None:
        """Logs an administrative request that the sender may make, and that was not carried out."""
        if self._has_room(who):
            facts = _facts(who, peer, code, resource)
            log.info(events.ADMIN_REQUEST_REFUSED, extra={**facts, "reason": reason})

    def _has_room(self, who: str) -> bool:
        """Returns True if a line may be written: signed requests always have one."""
        if who:
            return True
        self._begin_period()
        self._unsigned += 1
        return self._unsigned <= LINES_PER_PERIOD_MAX

    def close(self) -> None:
        """Reports the counts that are not reported yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._end_period()

    def _begin_period(self) -> None:
        if self._timer is None:
            self._timer = self._clock.call_later(PERIOD_S, self._end_period)

    def _end_period(self) -> None:
        if self._suppressed:
            log.warning(
                events.ACCESS_DENIALS_SUPPRESSED,
                extra={"count": self._suppressed, "period_s": PERIOD_S},
            )
        if self._unsigned > LINES_PER_PERIOD_MAX:
            count = self._unsigned - LINES_PER_PERIOD_MAX
            log.warning(events.ADMIN_REQUESTS_SUPPRESSED, extra={"count": count, "period_s": PERIOD_S})
        self._lines = self._suppressed = self._unsigned = 0
        self._timer = None


def _facts(who: str, peer: Address, code: int, resource: str) -> dict[str, object]:
    return {"who": who or "(anonymous)", "peer": render_address(peer), "code": code, "resource": resource}
