"""A clock whose callbacks cannot fail unheard: what one raises goes to the owner of the store.

Strategy:   asyncio tells an error of a callback to the loop's handler, which logs it and goes on, with
            whatever the callback left half done. Tasks have their scope for that, callbacks have this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tandemmq.runtime.ports import Clock, TimerHandle
from tandemmq.units import EpochMs


class FailStopClock:
    """The clock given, but `on_error` is told what its callbacks raise."""

    __slots__ = ("_clock", "_on_error", "monotonic", "now_ms")

    def __init__(self, clock: Clock, on_error: Callable[[Exception], None]) -> None:
        self._clock = clock
        self._on_error = on_error
        # Asked for each message, so without a step between.
        self.now_ms: Callable[[], EpochMs] = clock.now_ms
        self.monotonic: Callable[[], float] = clock.monotonic

    def call_later(self, delay_s: float, fn: Callable[..., object], *args: Any) -> TimerHandle:
        return self._clock.call_later(delay_s, self._run, fn, args)

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None:
        self._clock.call_soon(self._run, fn, args)

    async def sleep(self, delay_s: float) -> None:
        await self._clock.sleep(delay_s)

    def _run(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        try:
            fn(*args)
        except Exception as error:  # noqa: BLE001 (whatever it is, the store's state is in doubt)
            self._on_error(error)
