"""Everything that brings waiting messages back: delay levels and timers, started on a master only.

Starts and stops with the role: a slave copies the progress (delayOffset.json, timercheck) and delivers
nothing; a broker that becomes master goes on where its master was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from tandemmq.broker.delay.level_delivery import LevelDelivery
from tandemmq.broker.delay.timer_check import TimerProgress
from tandemmq.broker.delay.timer_delivery import TimerDelivery, TimerFigures
from tandemmq.broker.delay.timer_rule import ROLL_AFTER_MS, TIMER_TOPIC
from tandemmq.broker.delay.timer_wheel import COUNT_MAX
from tandemmq.broker.delay.writer import Writer
from tandemmq.broker.offsets.delay_offset_table import DelayOffsetTable
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store import MessageStore
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

STOP_S_MAX = 5.0
"""A delivery that the store refuses does not hold up the end of the broker."""


class Delivery:
    """`start` and `stop` follow the role; both may be called again."""

    def __init__(
        self,
        store: MessageStore,
        *,
        delay_offsets: DelayOffsetTable,
        timer_progress: TimerProgress,
        has_timers: bool,
        timer_count_max: int = COUNT_MAX,
        roll_after_ms: int = ROLL_AFTER_MS,
        clock: Clock,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._store = store
        self._delay_offsets = delay_offsets
        self._timer_progress = timer_progress
        self._has_timers = has_timers
        self._timer_count_max = timer_count_max
        self._roll_after_ms = roll_after_ms
        self._clock = clock
        self._on_fatal = on_fatal
        self._scope: TaskScope | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._levels: LevelDelivery | None = None
        self._timers: TimerDelivery | None = None
        store.on_dispatch(self._on_dispatch)

    def start(self) -> None:
        """Begin to deliver; does nothing when it runs."""
        if self._tasks:
            return
        on_fatal = self._on_fatal
        scope = TaskScope("delivery", None if on_fatal is None else lambda _name, error: on_fatal(error))
        self._scope = scope
        writer = Writer(self._store, self._clock)
        self._levels = LevelDelivery(
            self._store,
            self._delay_offsets,
            delays_ms=self._store.options.delay_levels_ms,
            writer=writer,
            clock=self._clock,
        )
        self._tasks = [scope.start("levels", self._levels.run())]
        if self._has_timers:
            self._timers = TimerDelivery(
                self._store,
                self._timer_progress,
                writer=writer,
                clock=self._clock,
                count_max=self._timer_count_max,
                roll_after_ms=self._roll_after_ms,
            )
            self._tasks.append(scope.start("timers", self._timers.run()))
        log.info(events.DELIVERY_STARTED, extra={"has_timers": self._has_timers})

    @property
    def timer_figures(self) -> TimerFigures:
        """How far timers are; all zero while none are delivered."""
        return TimerFigures() if self._timers is None else self._timers.figures

    async def stop(self) -> None:
        """Returns when nothing more is delivered; `settle` afterwards, once the store is closed."""
        if self._scope is None:
            return
        for part in (self._levels, self._timers):
            if part is not None:
                part.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S_MAX)
        await self._scope.close()
        self._scope = None
        self._tasks = []
        log.info(events.DELIVERY_STOPPED)

    def settle(self) -> None:
        """Take over the progress of all that is on disk: after the store was closed, all of it."""
        for part in (self._levels, self._timers):
            if part is not None:
                part.settle(self._store.flushed.value)

    def _on_dispatch(self, newest: Mapping[tuple[str, int], int]) -> None:
        for topic, _ in newest:
            if topic == SCHEDULE_TOPIC and self._levels is not None:
                self._levels.wake()
            elif topic == TIMER_TOPIC and self._timers is not None:
                self._timers.wake()
