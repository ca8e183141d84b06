"""The time of this process as its servers and clients see it, which a test may set ahead."""

from __future__ import annotations

from typing import Final

from tandemmq.runtime.machine import LoopClock
from tandemmq.units import EpochMs

_system_ms: Final = LoopClock.now_ms


class ProcessTime:
    """The distance of the clocks from the system's. The whole process shares it: a broker whose clock is
    ahead of its clients' would reject their pops as late.
    """

    def __init__(self) -> None:
        self._ahead_ms = 0

    def shift(self, ahead_ms: int) -> None:
        """Sets all clocks ahead, or back for a negative number."""
        self._ahead_ms += ahead_ms

        def now_ms(self: LoopClock, /, *, time: ProcessTime = self) -> EpochMs:
            return EpochMs(_system_ms(self) + time._ahead_ms)

        setattr(LoopClock, "now_ms", now_ms if self._ahead_ms else _system_ms)  # noqa: B010  # for mypy


process_time: Final = ProcessTime()

__all__ = ["process_time"]
