"""What producers were promised, and what the loss of a master may take of it: docs/durability.md as a model.

Strategy: each loss is kept with the end of the log that must be left after it. A message that is missing
          later is forgiven only if one of the losses explains it; else it is a finding.
Knows not: who looks whether a message is there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sim.cluster.ledger import Fate, Sent
from sim.cluster.settings import Settings


@dataclass(frozen=True, slots=True)
class Loss:
    """A master is gone, and the cluster goes on with a log that must hold every byte below `kept_below`.

    What was stored at or above it may be gone, of the sends that were under way in `begin_s` .. `end_s`.
    """

    begin_s: float
    end_s: float
    kept_below: int
    spares_promised: bool
    """What was acknowledged in time is there all the same: another copy, or the disk, has it."""


class Promises:
    """The promises of one run, and its losses."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._losses: list[Loss] = []
        self._empty_until_s = -math.inf
        """When the newest master that had got an empty disk was replaced; inf: it is still there."""

    @property
    def spares_power_cut(self) -> bool:
        """A single power cut takes nothing that was acknowledged."""
        return self._settings.is_sync_flush or self._settings.is_sync_double_write

    def on_killed(self, now_s: float, written: int) -> None:
        """The master's process is gone; its page cache stays, and its transient pool is gone."""
        if self._settings.has_pool:
            spares = self._settings.is_sync_double_write
            self._losses.append(Loss(0.0, now_s, written, spares_promised=spares))

    def on_power_cut(self, now_s: float, flushed: int) -> None:
        """The master's machine forgets what was not flushed, and comes back."""
        self._losses.append(Loss(0.0, now_s, flushed, spares_promised=self.spares_power_cut))

    def on_replaced(self, now_s: float, copied: int) -> None:
        """The master is gone for good, and a slave whose log ends at `copied` takes its place."""
        spares = self._settings.is_sync_double_write
        self._losses.append(Loss(0.0, now_s, copied, spares_promised=spares))

    def on_emptied(self) -> None:
        """The master's disk is lost: until a slave takes its place it serves from an empty one."""
        self._empty_until_s = math.inf

    def on_discarded(self, begin_s: float, now_s: float) -> None:
        """A master served from an empty disk since `begin_s`; its whole log is thrown away."""
        self._empty_until_s = now_s
        spares = self._settings.is_sync_double_write
        self._losses.append(Loss(begin_s, now_s, 0, spares_promised=spares))

    def is_kept_since(self, begin_s: float) -> bool:
        """No loss since then takes what was acknowledged in time."""
        return all(loss.spares_promised for loss in self._losses if loss.end_s >= begin_s)

    def may_be_hidden(self, begin_s: float) -> bool:
        """Who was asked at `begin_s` or later may have been a master with an empty disk.

        What it lacks is not lost: whoever takes its place must have it.
        """
        return begin_s <= self._empty_until_s

    def may_be_gone(self, sent: Sent) -> bool:
        """Some loss explains that the message is not there.

        A send that was under way at the loss may have been stored after it; that is not told apart.
        """
        is_promised = sent.fate is Fate.ACKNOWLEDGED and sent.is_waiting
        return any(
            sent.log_offset >= loss.kept_below
            and sent.sent_at <= loss.end_s
            and (sent.settled_at or loss.end_s) >= loss.begin_s
            and not (loss.spares_promised and is_promised)
            for loss in self._losses
        )
