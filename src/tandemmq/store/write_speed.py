"""Sheds load while writes to the page cache take too long.

Strategy:   one slow write makes the store refuse what arrives next; after a pause one turn's sends try the
            disk again, and a quick write ends it.
Source:     spec store 11.
"""

from __future__ import annotations

import logging

from tandemmq.errors import Busy
from tandemmq.store.admission import Admission
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

BUSY_PAUSE_S = 0.1
"""After a slow write sends are refused this long; then one turn's sends try the disk again."""
_PAGE_CACHE_BUSY = "page cache busy"


class WriteSpeed:
    """What the last writes took. `is_watching`: tell `note` of quick ones, too."""

    __slots__ = ("_admission", "_busy_until", "is_watching", "slow_s")

    def __init__(self, slow_s: float, admission: Admission) -> None:
        self.slow_s = slow_s
        self.is_watching = False
        self._admission = admission
        self._busy_until = 0.0

    def note(self, took_s: float, now: float) -> None:
        """A write took so long: a slow one, or one while this is watching."""
        if took_s > self.slow_s:
            if not self.is_watching:
                log.warning(events.PAGE_CACHE_BECAME_BUSY, extra={"write_ms": round(took_s * 1000)})
            self.is_watching = True
            self._busy_until = now + BUSY_PAUSE_S
            remark = f"[PC_SYNCHRONIZED]the page cache is busy, a write took {took_s * 1000:.0f} ms"
            self._admission.block(_PAGE_CACHE_BUSY, remark, Busy)
        elif not self._admission.is_blocked(_PAGE_CACHE_BUSY):
            self.is_watching = False
            log.warning(events.PAGE_CACHE_BECAME_QUICK, extra={"write_ms": round(took_s * 1000)})

    def retry(self, now: float) -> None:
        """A send was refused: let the next ones try the disk, if the pause is over."""
        if self.is_watching and now >= self._busy_until:
            self._admission.unblock(_PAGE_CACHE_BUSY)
