"""An event loop whose time jumps to the next timer, with processes that it can freeze or kill.

Owns:      virtual time; the process (`SimProcess`) to which each callback belongs.
Strategy:  the context of tasks and callbacks carries the `SimProcess`, so everything that a process starts
           belongs to it. Callbacks of a dead process are set aside, as if its process were gone; those of a
           stalled one wait together and run, in order, when the stall is over.
Knows not: what the processes do.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Callable, Coroutine
from typing import Any, TypeVarTuple

from sim.manual_clock import START_MS
from tandemmq.runtime.ports import TimerHandle
from tandemmq.units import EpochMs

Args = TypeVarTuple("Args")

TURNS_MAX = 3_000_000
"""The limit of loop turns; a seed takes some 100,000, so this many mean an endless loop."""
UNWIND_ROUNDS = 50


class SimulationStuck(Exception):
    """The simulation cannot continue: nothing is left to happen, or far too much has happened."""


class SimProcess:
    """One run of one process: from its start until it stops or is killed."""

    __slots__ = ("context", "is_alive", "is_frozen", "name", "stash", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True
        self.is_frozen = False
        self.stash: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.context = contextvars.Context()
        self.context.run(CURRENT_PROCESS.set, self)

    def __repr__(self) -> str:
        return self.name

    def end(self) -> None:
        """Marks the process as gone."""
        self.is_alive = False
        self.is_frozen = True

    def keep_task(self, task: asyncio.Task[Any]) -> None:
        """Keeps the task alive: a frozen task must not be unwound by the garbage collector."""
        if len(self.tasks) % 256 == 255:
            self.tasks = self.running_tasks()
        self.tasks.append(task)

    def running_tasks(self) -> list[asyncio.Task[Any]]:
        return [task for task in self.tasks if not task.done()]


CURRENT_PROCESS: contextvars.ContextVar[SimProcess | None] = contextvars.ContextVar(
    "CURRENT_PROCESS", default=None
)


def _may_run(handle: Any) -> bool:
    process = handle._context.get(CURRENT_PROCESS)
    if process is None or not process.is_frozen:
        return True
    process.stash.append(handle)
    return False


class ProcessHandle(asyncio.Handle):
    """A callback that knows its process."""

    __slots__ = ()

    def _run(self) -> None:
        if _may_run(self):
            super()._run()


class ProcessTimer(asyncio.TimerHandle):
    """A timer that knows its process."""

    __slots__ = ()

    def _run(self) -> None:
        if _may_run(self):
            super()._run()


class _Jump:
    """Replaces a selector: nothing comes from outside, so waiting only moves the time."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.jump(timeout)
        return []


class SimLoop(asyncio.BaseEventLoop):
    """An event loop that runs callbacks in a fixed order. Its time begins at 0 and moves only when nothing is
    left to do.
    """

    _scheduled: list[ProcessTimer]
    _ready: Any

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._clock_resolution = 1e-9
        self._selector = _Jump(self)
        self.turn_count = 0

    def time(self) -> float:
        return self._now_s

    def jump(self, timeout: float | None) -> None:
        """Moves the time by `timeout`. Raises SimulationStuck if there is nothing to wait for."""
        self.turn_count += 1
        if timeout is None:
            raise SimulationStuck("nothing is left to happen")
        if self.turn_count > TURNS_MAX:
            raise SimulationStuck(f"{self.turn_count} turns until {self._now_s:.3f} s: something spins")
        self._now_s += timeout

    def _process_events(self, event_list: list[Any]) -> None:
        return None

    def _write_to_self(self) -> None:
        return None

    def _call_soon(
        self, callback: Callable[..., Any], args: Any, context: contextvars.Context | None
    ) -> asyncio.Handle:
        handle = ProcessHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Args], object],
        *args: *Args,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = ProcessTimer(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True  # type: ignore[attr-defined]  # not in typeshed
        return timer

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        text = None if name is None else str(name)
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=text, context=context)
        process = CURRENT_PROCESS.get() if context is None else context.get(CURRENT_PROCESS)
        if process is not None:
            process.keep_task(task)
        return task

    def stall(self, process: SimProcess) -> None:
        """Freezes the process until `resume`, as SIGSTOP does."""
        process.is_frozen = True

    def resume(self, process: SimProcess) -> None:
        """Resumes the process; everything that became due meanwhile happens now."""
        if process.is_alive:
            self.thaw(process)

    def thaw(self, process: SimProcess) -> None:
        """Runs the callbacks that were set aside, also of a dead process."""
        process.is_frozen = False
        self._ready.extend(handle for handle in process.stash if not handle.cancelled())
        process.stash = []


class SimClock:
    """A `runtime.ports.Clock` of one machine: the loop's time, and a wall clock that is off by `skew_ms`.

    The wall clock can be stepped, as by an operator or a time service; the monotonic clock never jumps.
    """

    def __init__(self, loop: SimLoop, skew_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms
        self.lead_ms = skew_ms
        """The largest `skew_ms` so far."""

    def set_skew(self, skew_ms: int) -> None:
        """Sets the wall clock."""
        self.skew_ms = skew_ms
        self.lead_ms = max(self.lead_ms, skew_ms)

    def now_ms(self) -> EpochMs:
        return EpochMs(START_MS + self.skew_ms + int(self._loop.time() * 1000))

    def monotonic(self) -> float:
        return self._loop.time()

    def call_later(self, delay_s: float, fn: Callable[..., object], *args: Any) -> TimerHandle:
        return self._loop.call_later(max(0.0, delay_s), fn, *args)

    def call_soon(self, fn: Callable[..., object], *args: Any) -> None:
        self._loop.call_soon(fn, *args)

    async def sleep(self, delay_s: float) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_later(max(0.0, delay_s), _wake, done)
        try:
            await done
        finally:
            timer.cancel()


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def run_simulated(make_main: Callable[[SimLoop], Coroutine[Any, Any, None]]) -> None:
    """Runs the coroutine to its end in a loop of its own."""
    loop = SimLoop()
    try:
        loop.run_until_complete(make_main(loop))
    finally:
        loop.close()


async def unwind(loop: SimLoop, processes: list[SimProcess]) -> list[str]:
    """Lets the remaining tasks of ended processes finish, without effect; only then may they be dropped.

    Returns the names of tasks that cannot be ended.
    """
    for process in processes:
        process.end()
        loop.thaw(process)
    for _ in range(UNWIND_ROUNDS):
        rest = [task for process in processes for task in process.running_tasks()]
        if not rest:
            return []
        for task in rest:
            task.cancel()
        await asyncio.wait(rest, timeout=1.0)
    return [task.get_name() for task in rest]
