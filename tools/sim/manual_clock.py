"""A clock that moves only when a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

from tandemmq.units import EpochMs

START_MS = 1_700_000_000_000
TURNS_BETWEEN_TIMERS = 20  # loop turns in which tasks woken by one timer may react before the next


class ManualTimer:
    """A pending call of a `ManualClock`."""

    __slots__ = ("args", "fn", "is_cancelled")

    def __init__(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.fn = fn
        self.args = args
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualClock:
    """Time as a number: `advance` moves it and runs the due calls, ordered by due time, then by request.

    Calls of `call_soon` run at `run_soon` or `advance`, or by themselves in the next turn if a loop is
    running.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._start_ms = now_ms
        self.skew_ms = 0
        """The offset by which the wall clock was set; it does not affect the monotonic clock."""
        self._now_s = 0.0
        self._soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._timers: list[tuple[float, int, ManualTimer]] = []
        self._numbers = itertools.count()
        self._drain_loop: asyncio.AbstractEventLoop | None = None

    def now_ms(self) -> EpochMs:
        return EpochMs(self._start_ms + self.skew_ms + round(self._now_s * 1000))

    def monotonic(self) -> float:
        return self._now_s

    def call_later(self, delay_s: float, fn: Callable[..., object], *args: Any) -> ManualTimer:
        timer = ManualTimer(fn, args)
        heapq.heappush(self._timers, (self._now_s + max(0.0, delay_s), next(self._numbers), timer))
        return timer

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None:
        self._soon.append((fn, args))
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if self._drain_loop is not loop:
            self._drain_loop = loop
            loop.call_soon(self._drain_turn)

    async def sleep(self, delay_s: float) -> None:
        done = asyncio.get_running_loop().create_future()
        timer = self.call_later(delay_s, _wake, done)
        try:
            await done
        finally:
            timer.cancel()

    def run_soon(self) -> None:
        """Runs all `call_soon` calls, including those that they request."""
        while self._soon:
            fn, args = self._soon.popleft()
            fn(*args)

    def advance(self, seconds: float) -> None:
        """Moves time forward and runs each timer at its own due time."""
        end = self._now_s + seconds
        self.run_soon()
        while self._run_next_timer(end):
            self.run_soon()
        self._now_s = end

    async def pass_time(self, seconds: float) -> None:
        """Like `advance`, but lets the tasks of the running loop react between two timers."""
        end = self._now_s + seconds
        await _let_tasks_run()
        while self._run_next_timer(end):
            await _let_tasks_run()
        self._now_s = end

    def _run_next_timer(self, end: float) -> bool:
        while self._timers and self._timers[0][0] <= end:
            due, _, timer = heapq.heappop(self._timers)
            if timer.is_cancelled:
                continue
            self._now_s = max(self._now_s, due)
            timer.fn(*timer.args)
            return True
        return False

    def _drain_turn(self) -> None:
        """Runs one loop turn: the calls requested before it; later calls wait for the next turn."""
        self._drain_loop = None
        for _ in range(len(self._soon)):
            if self._soon:
                fn, args = self._soon.popleft()
                fn(*args)


async def _let_tasks_run() -> None:
    """Ends early if no task but this one wants to run, as far as the loop tells: uvloop does not."""
    ready = getattr(asyncio.get_running_loop(), "_ready", (True,))
    for _ in range(TURNS_BETWEEN_TIMERS):
        await asyncio.sleep(0)
        if not ready:
            return


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
