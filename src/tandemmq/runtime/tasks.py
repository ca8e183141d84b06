"""Named background tasks that fail loudly and stop in order (`TaskScope`), callbacks of the event loop whose
faults are equally loud (`FaultGuard`), and the sleep of a task that a signal may end (`TimedEvent`).

This is the only module that starts asyncio tasks. A task that ends with an exception ends its whole scope:
the others are cancelled and the owner is notified once, because a role whose flusher or dispatcher is gone
must not continue to answer requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVarTuple

from tandemmq.errors import TandemError
from tandemmq.runtime.ports import Clock
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

OnFailure = Callable[[str, BaseException], None]
OnFatal = Callable[[BaseException], None]
"""A callback for an error after which a component cannot continue."""

Args = TypeVarTuple("Args")


class TaskScope:
    """Tasks with one owner. `close` cancels and awaits them, the youngest first."""

    def __init__(self, name: str, on_failure: OnFailure | None = None) -> None:
        self.name = name
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in order of start
        self._is_closed = False
        self.failure: BaseException | None = None

    def __len__(self) -> int:
        """Returns the number of tasks that have not ended."""
        return len(self._tasks)

    @property
    def is_closed(self) -> bool:
        """True if newly started tasks no longer run."""
        return self._is_closed

    def start(self, name: str, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs `coro` as a task of this scope; in a closed or failed scope it is cancelled before its first
        step.
        """
        task = asyncio.get_running_loop().create_task(coro, name=f"{self.name}.{name}")
        if self._is_closed:
            task.cancel()
            return task
        self._tasks[task] = None
        task.add_done_callback(self._on_done)
        return task

    async def run_to_completion(self, name: str, coro: Coroutine[Any, Any, None]) -> None:
        """Runs `coro` to completion even if the caller is cancelled; the cancellation is re-raised
        afterwards. A TandemError or OSError of `coro` is raised only to the caller, and does not fail the
        scope.

        Raises:  the error of `coro`, or of another task of the scope whose failure ended it.
        """

        async def outcome() -> Exception | None:
            try:
                await coro
            except (TandemError, OSError) as error:
                return error
            return None

        task = self.start(name, outcome())
        is_abandoned = False
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                is_abandoned = True
        error = self.failure if task.cancelled() else task.result()
        if is_abandoned or (error is None and task.cancelled()):
            raise asyncio.CancelledError
        if error is not None:
            raise error

    async def close(self) -> None:
        """Cancels all tasks and waits until every one has ended. Safe to call twice; must not be called from
        a task of the scope itself.

        A cancelled caller stops waiting, and the tasks are cancelled nevertheless.
        """
        self._is_closed = True
        try:
            for task in reversed(list(self._tasks)):
                task.cancel()
                await asyncio.wait([task])
        finally:
            for task in reversed(list(self._tasks)):
                task.cancel()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is None or self.failure is not None:
            return
        self.failure = error
        self._is_closed = True
        log.error(events.TASK_FAILED, extra={"task": task.get_name()}, exc_info=error)
        for other in reversed(list(self._tasks)):
            other.cancel()
        if self._on_failure is not None:
            self._on_failure(task.get_name(), error)


async def run_out(current: Callable[[], asyncio.Task[Any] | None]) -> None:
    """Waits until `current` returns no running task. A task that ends may have begun the next, or may have
    been cancelled before its first step, in which it would have removed itself.
    """
    while (task := current()) is not None and not task.done():
        await asyncio.wait([task])


class TimedEvent:
    """Lets one task wait for a signal or a time, whichever comes first; any task may set the signal. A signal
    set before the wait counts.
    """

    __slots__ = ("_clock", "_event")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()

    def set(self) -> None:
        """Ends the current wait, or the next one."""
        self._event.set()

    def clear(self) -> None:
        """Clears earlier signals; call it before checking for work, never after."""
        self._event.clear()

    async def wait(self, delay_s: float | None) -> None:
        """Waits for a signal, or at most `delay_s` (None: for a signal only)."""
        if delay_s is None:
            await self._event.wait()
            return
        timer = self._clock.call_later(max(delay_s, 0.0), self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()


class FaultGuard:
    """Runs callbacks of the event loop. Failed assertions and fatal errors go to the owner, so that they stop
    the node and do not vanish in the loop's log.

    An error that asyncio catches in a protocol callback only closes that connection, and one in a timer
    closes nothing; the retry would hide the bug for ever.
    """

    __slots__ = ("_on_fatal",)

    def __init__(self, on_fatal: OnFatal | None) -> None:
        self._on_fatal = on_fatal

    def run(self, fn: Callable[[*Args], None], *args: *Args) -> None:
        """Calls `fn`. Without an owner, the error is raised to the loop."""
        try:
            fn(*args)
        except AssertionError as error:
            self._notify(error)
        except TandemError as error:
            if not error.fatal:
                raise
            self._notify(error)

    def _notify(self, error: BaseException) -> None:
        if self._on_fatal is None:
            raise error
        self._on_fatal(error)
