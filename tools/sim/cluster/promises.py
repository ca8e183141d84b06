"""The promises to producers, and the losses of them that the loss of a master permits: docs/durability.md as
a model.

Strategy:  each loss is recorded with the end of the log that must be left after it. A message that is missing
           later is accepted only if one of the losses explains it; else it is a finding.
Knows not: which check looks for a message.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sim.cluster.ledger import Fate, Sent
from sim.cluster.settings import Settings


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a master: the cluster continues with a log that must hold every byte below `kept_below`.

    Sends that were in flight in `[begin_s, end_s]` may be lost if they were stored at or above it.
    """

    begin_s: float
    end_s: float
    kept_below: int
    spares_promised: bool
    """True if messages that were acknowledged in time survive all the same: on another copy, or on
    the disk.
    """


class Promises:
    """The promises of one run, and its losses."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._losses: list[Loss] = []
        self._empty_until_s = -math.inf
        """The time at which the newest master with an empty disk was replaced; inf: it is still the
        master.
        """

    @property
    def spares_power_cut(self) -> bool:
        """True if a single power cut loses no acknowledged message."""
        return self._settings.is_sync_flush or self._settings.is_sync_double_write

    def on_killed(self, now_s: float, written: int) -> None:
        """Handles a killed master: its page cache stays, and its transient pool is lost."""
        if self._settings.has_pool:
            spares = self._settings.is_sync_double_write
            self._losses.append(Loss(0.0, now_s, written, spares_promised=spares))

    def on_power_cut(self, now_s: float, flushed: int) -> None:
        """Handles a power cut of the master: it loses what was not flushed, and comes back."""
        self._losses.append(Loss(0.0, now_s, flushed, spares_promised=self.spares_power_cut))

    def on_replaced(self, now_s: float, copied: int) -> None:
        """Handles the permanent loss of the master: a slave whose log ends at `copied` replaces it."""
        spares = self._settings.is_sync_double_write
        self._losses.append(Loss(0.0, now_s, copied, spares_promised=spares))

    def on_emptied(self) -> None:
        """Handles the loss of the master's disk: until a slave replaces it, it serves from an empty one."""
        self._empty_until_s = math.inf

    def on_discarded(self, begin_s: float, now_s: float) -> None:
        """Handles the replacement of a master that served from an empty disk since `begin_s`; its whole log
        is discarded.
        """
        self._empty_until_s = now_s
        spares = self._settings.is_sync_double_write
        self._losses.append(Loss(begin_s, now_s, 0, spares_promised=spares))

    def is_kept_since(self, begin_s: float) -> bool:
        """Returns True if no loss since then affects messages that were acknowledged in time."""
        return all(loss.spares_promised for loss in self._losses if loss.end_s >= begin_s)

    def may_be_hidden(self, begin_s: float) -> bool:
        """Returns True if a broker asked at `begin_s` or later may have been a master with an empty disk.

        The messages that it lacks are not lost: the broker that replaces it must have them.
        """
        return begin_s <= self._empty_until_s

    def may_be_gone(self, sent: Sent) -> bool:
        """Returns True if a loss explains that the message is missing.

        A send that was in flight at the loss may have been stored after it; the two cases are not
        distinguished.
        """
        is_promised = sent.fate is Fate.ACKNOWLEDGED and sent.is_waiting
        return any(
            sent.log_offset >= loss.kept_below
            and sent.sent_at <= loss.end_s
            and (sent.settled_at or loss.end_s) >= loss.begin_s
            and not (loss.spares_promised and is_promised)
            for loss in self._losses
        )
