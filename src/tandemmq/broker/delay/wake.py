"""Waits for a signal or for a time, whichever comes first; a signal that came before the wait counts."""

from __future__ import annotations

import asyncio

from tandemmq.runtime.ports import Clock


class Wake:
    """One task waits, anyone sets."""

    __slots__ = ("_clock", "_event")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()

    def set(self) -> None:
        """End the wait, or the next one."""
        self._event.set()

    def clear(self) -> None:
        """Forget earlier signals; do it before looking for work, never after."""
        self._event.clear()

    async def wait(self, delay_s: float | None) -> None:
        """Returns on a signal, or after `delay_s` (None: only on a signal); lets others run in any case."""
        if delay_s is None:
            await self._event.wait()
            return
        timer = self._clock.call_later(max(delay_s, 0.0), self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
