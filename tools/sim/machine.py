"""A sequence of machines around one image: starts stores, lets virtual time pass, loses machines.

Strategy: every start gets its own clock and disk, so that timers and file handles of a lost machine affect
          nothing. A coroutine of the store runs in a task while the clock jumps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sim.dice import Dice
from sim.disk import Crash, SimDisk
from sim.image import Image, Tear
from sim.ledger import Ledger
from sim.manual_clock import START_MS, ManualClock
from tandemmq.errors import FlushFailed, StoreError, TandemError
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store import MessageStore, StoreOptions

T = TypeVar("T")

STEP_S = 0.005
HOUR_MS = 3_600_000
STEPS_MAX = 20_000
"""100 virtual seconds: a close or an open that takes longer counts as hung."""

OpenStore = Callable[..., Coroutine[Any, Any, MessageStore]]


class Hung(Exception):
    """The store did not finish within STEPS_MAX steps."""


class Machine:
    """The state left by the previous machine, and the store that runs on the current one."""

    def __init__(
        self,
        options: StoreOptions,
        *,
        dice: Dice,
        ledger: Ledger,
        note: Callable[[str], None],
        open_store: OpenStore,
    ) -> None:
        self.options = options
        self.store: MessageStore | None = None
        self.fatal: list[BaseException] = []
        self.after_power_cut = False
        self._dice = dice
        self._ledger = ledger
        self._note = note
        self._open_store = open_store
        self._now_ms = START_MS
        self._power_on(Image())

    def _power_on(self, image: Image) -> None:
        self.clock = ManualClock(self._now_ms)
        self.disk = SimDisk(
            image, dice=self._dice, clock=self.clock, note=self._note, on_lost=self._ledger.freeze
        )
        self.store = None
        self.fatal = []
        self._scope = TaskScope("machine")

    async def start(self) -> bool:
        """Starts a store. Returns True if it is open; False if a fault of the disk prevented it.

        The machine may be lost meanwhile. Raises any error that no fault explains.
        """
        disk = self.disk
        opening = self._open_store(self.options, disk=disk, clock=self.clock, on_fatal=self.fatal.append)
        try:
            store = await self.drive(opening)
        except (StoreError, OSError) as error:
            if not (disk.failed_paths or disk.sync_failed or disk.is_lost):
                raise
            self._note(f"  start fails: {error}")
            return False
        self.store = store
        if not disk.is_lost:
            store.appended.follow(self._ledger.record_written)
            store.flushed.follow(self._ledger.record_durable)
        return True

    async def stop(self) -> bool:
        """Closes the store; returns True if it reports that nothing needs recovery."""
        assert self.store is not None
        await self.drive(self.store.close())
        return not self.disk.exists(self.options.root / "abort")

    def lose(self, *, is_power_cut: bool, tear: Tear) -> None:
        """Kills the process or cuts the power now."""
        self.disk.lose(Crash(0, is_power_cut, tear))

    async def replace(self) -> None:
        """Continues with a new process, or a new machine, on the state left by the old one."""
        self._ledger.freeze()
        await self.end_tasks()
        lost_by = self.disk.lost_by
        if lost_by is not None and lost_by.is_power_cut:
            self.after_power_cut = True
        pause_ms = self._dice.pick_weighted(((19, self._dice.between(1, 5000)), (1, 4 * HOUR_MS)))
        self._now_ms = self.clock.now_ms() + pause_ms
        self._power_on(self.disk.image if self.disk.left is None else self.disk.left)

    async def pass_time(self, seconds: float) -> None:
        """Lets timers and tasks run."""
        await self.clock.pass_time(seconds)

    async def drive(self, coro: Coroutine[Any, Any, T]) -> T:
        """Returns the result of the store's coroutine, or raises its error, while time passes."""
        task: asyncio.Task[T] = self._scope.start("drive", _wrap(coro))
        for _ in range(STEPS_MAX):
            if task.done():
                break
            await self.clock.pass_time(STEP_S)
        else:
            task.cancel()
            raise Hung(str(coro))
        value = task.result()
        if isinstance(value, BaseException):
            raise value
        return value

    async def end_tasks(self) -> None:
        """Ends everything that the lost process still runs; the results are ignored."""
        await self._scope.close()
        mine = asyncio.current_task()
        while rest := [task for task in asyncio.all_tasks() if task is not mine]:
            for task in rest:
                task.cancel()
            await asyncio.wait(rest)


async def _wrap(coro: Coroutine[Any, Any, T]) -> T | BaseException:
    """Returns errors as values, so that a failed open is not a failure of the scope."""
    try:
        return await coro
    except (TandemError, OSError, AssertionError) as error:
        return error


def is_fail_stop(fatal: list[BaseException]) -> bool:
    """Returns True if the owner was notified exactly once that the store has failed."""
    return len(fatal) == 1 and isinstance(fatal[0], FlushFailed)
