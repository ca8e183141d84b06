"""The real clock: the running loop's timers and the system's wall time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from tandemmq.runtime.ports import TimerHandle
from tandemmq.units import EpochMs


class LoopClock:
    """Time of the running event loop (asyncio's or uvloop's); used from the loop's thread only.

    The loop is looked up at each call and not kept, so one clock serves every loop of a process.
    """

    def now_ms(self) -> EpochMs:
        return EpochMs(time.time_ns() // 1_000_000)

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, delay_s: float, fn: Callable[..., object], *args: Any) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, fn, *args)

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None:
        asyncio.get_running_loop().call_soon(fn, *args)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
