"""Named background tasks that fail loudly and stop in order (`TaskScope`), and callbacks of the event loop
whose faults are as loud (`FaultGuard`).

The only place that starts asyncio tasks. A task that ends by an exception takes its whole scope down: the
others are cancelled and the owner is told once, because a role whose flusher or dispatcher is gone must not
go on answering.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVarTuple

from tandemmq.errors import TandemError
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

OnFailure = Callable[[str, BaseException], None]
OnFatal = Callable[[BaseException], None]
"""What is called with the error that a part cannot go on after."""

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
        """How many tasks have not ended."""
        return len(self._tasks)

    @property
    def is_closed(self) -> bool:
        """Nothing that is started runs any more."""
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

    async def see_through(self, name: str, coro: Coroutine[Any, Any, None]) -> None:
        """Await `coro`, which must not be left half done: whoever is cancelled while it waits goes on
        waiting, and is cancelled then. What `coro` refuses is for the caller alone, and fails no scope.

        Raises:  what `coro` raises, or what another task of the scope failed by, if that ended it.
        """

        async def outcome() -> Exception | None:
            try:
                await coro
            except (TandemError, OSError) as error:
                return error
            return None

        task = self.start(name, outcome())
        is_given_up = False
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                is_given_up = True
        error = self.failure if task.cancelled() else task.result()
        if is_given_up or (error is None and task.cancelled()):
            raise asyncio.CancelledError
        if error is not None:
            raise error

    async def close(self) -> None:
        """Returns when every task has ended. Safe to call twice; not from a task of the scope itself.

        Whoever is cancelled meanwhile does not wait any longer, and the tasks end all the same.
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
    """Returns when `current` tells no task that runs. One that ends may have begun the next, or have been
    cancelled before its first step, in which it would have taken itself back.
    """
    while (task := current()) is not None and not task.done():
        await asyncio.wait([task])


class FaultGuard:
    """Runs callbacks of the event loop; faults of ours and fatal errors go to the owner, so that a failed
    assertion stops the node and does not vanish in the loop's log.

    An error that asyncio catches in a protocol callback only closes that connection, and one in a timer
    closes nothing; the retry would hide our own fault for ever.
    """

    __slots__ = ("_on_fatal",)

    def __init__(self, on_fatal: OnFatal | None) -> None:
        self._on_fatal = on_fatal

    def run(self, fn: Callable[[*Args], None], *args: *Args) -> None:
        """Call `fn`. Without an owner to tell, the error goes on to the loop."""
        try:
            fn(*args)
        except AssertionError as error:
            self._tell(error)
        except TandemError as error:
            if not error.fatal:
                raise
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        if self._on_fatal is None:
            raise error
        self._on_fatal(error)
