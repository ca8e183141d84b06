"""Everything that brings waiting messages back, on a master only: the delay levels, and the start of all.

`LevelDelivery` delivers the messages of delay levels. `DelayedDelivery` starts and stops it and the delivery
of timers with the role: a slave copies the progress (delayOffset.json, timercheck) and delivers nothing; a
broker that becomes master goes on where its master was.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tandemmq.broker.delay.timer_delivery import TimerDelivery, TimerFigures
from tandemmq.broker.delay.timers import COUNT_MAX, ROLL_AFTER_MS, TIMER_TOPIC, TimerProgress
from tandemmq.broker.durable import Progress, Wake, Writer, restore
from tandemmq.broker.offsets.offset_table import DelayOffsetTable
from tandemmq.protocol.record import Record
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.runtime.ports import Clock
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store import MessageStore
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

# Delay levels: one task for all of them.
#
# Owns:       how far each level has got; what of it is valid goes to the DelayOffsetTable (delayOffset.json).
# Invariants: a message is delivered after its delay, in the order of its level, and again only when the
#             process died before its progress was saved.
# Strategy:   no timer per message. The task looks at the head of every level, appends what is due, and sleeps
#             until the next head is due, at most TICK_S, so that a changed wall clock is noticed. What it has
#             read of a level and is not due yet is kept, so each message is read once, and no arrival behind
#             it wakes the task. With nothing waiting it sleeps. Two clocks decide what is due, and either is
#             enough: the wall clock, a level's delay after the message was stored; the steady clock, when
#             this process has known it for that long. So a wall clock that is set back neither holds messages
#             for ever nor releases them early, and none is delivered before its delay has passed on one of
#             the two.
# Source:     spec store 15, spec semantics 18.1. RocketMQ releases a message that is due later than its level
#             allows at once; here it waits for its delay, counted from when it was found.


ARRIVAL_COUNT_MAX = 4_096
ARRIVAL_GAP_MS_MIN = 100


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message at the head of a level's queue."""

    queue_offset: int
    stored_at_ms: int


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """The first `due_count` messages may go; the one behind them in `wait_ms` (None: there is none)."""

    due_count: int
    wait_ms: int | None


class Arrivals:
    """Since when the messages of a queue are known, by the steady clock: never too early, a little too late.

    Bound: ARRIVAL_COUNT_MAX notes for one delay, because notes nearer to each other than a fraction of the
    delay are left out; what they would say is then said by the next one.
    """

    __slots__ = ("_gap_ms", "_notes")

    def __init__(self, delay_ms: int) -> None:
        self._notes: deque[tuple[int, int]] = deque()  # (queue offset behind what is known, since when)
        self._gap_ms = max(ARRIVAL_GAP_MS_MIN, -(-delay_ms // ARRIVAL_COUNT_MAX))

    def __len__(self) -> int:
        return len(self._notes)

    def note(self, queue_end: int, steady_ms: int) -> None:
        """All messages below `queue_end` are known now."""
        notes = self._notes
        if notes and (queue_end <= notes[-1][0] or steady_ms - notes[-1][1] < self._gap_ms):
            return
        if len(notes) > ARRIVAL_COUNT_MAX:  # the head is long due: what holds it back is no clock
            return
        notes.append((queue_end, steady_ms))

    def known_since(self, queue_offset: int) -> int | None:
        """Since when a message is known at least; None when no note covers it. Offsets must not fall."""
        notes = self._notes
        while notes and notes[0][0] <= queue_offset:
            notes.popleft()
        return notes[0][1] if notes else None


def plan_level(
    waiting: Sequence[Waiting | Record], arrivals: Arrivals, *, delay_ms: int, now_ms: int, steady_ms: int
) -> LevelPlan:
    """How many messages from the head on are due. Order within a level is kept: the first that is not due
    holds back those behind it.

    Units:   now_ms by the wall clock, steady_ms by the steady one.
    """
    for count, message in enumerate(waiting):
        wait_ms = message.stored_at_ms + delay_ms - now_ms
        if wait_ms > 0:
            since_ms = arrivals.known_since(message.queue_offset)
            if since_ms is not None:
                wait_ms = min(wait_ms, since_ms + delay_ms - steady_ms)
        if wait_ms > 0:
            return LevelPlan(count, wait_ms)
    return LevelPlan(len(waiting), None)


TICK_S = 1.0


class Level:
    """One level's queue: the head as far as it was read, one batch at most, and the offset behind it."""

    __slots__ = ("arrivals", "delay_ms", "number", "offset", "waiting")

    def __init__(self, number: int, delay_ms: int, offset: int) -> None:
        self.number = number
        self.delay_ms = delay_ms
        self.offset = offset
        self.arrivals = Arrivals(delay_ms)
        self.waiting: list[Record] = []

    @property
    def queue_id(self) -> int:
        return self.number - 1


class LevelDelivery:
    """`run` is the task; `stop` lets it end between two batches."""

    def __init__(
        self,
        store: MessageStore,
        offsets: DelayOffsetTable,
        *,
        delays_ms: Sequence[int],
        writer: Writer,
        clock: Clock,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._delays_ms = delays_ms
        self._writer = writer
        self._clock = clock
        self._levels: dict[int, Level] = {}
        self._progress: Progress[tuple[int, int]] = Progress()
        self._wake = Wake(clock)
        self._is_stopping = False

    def wake(self, queue_id: int) -> None:
        """A message became readable in a level's queue. Behind one that waits it is found in its turn."""
        if self._is_stopping:
            return
        level = self._levels.get(queue_id + 1) or self._open_level(queue_id + 1)
        self._note_arrival(level)
        if not level.waiting:
            self._wake.set()

    def stop(self) -> None:
        """`run` returns after the batch that it is writing."""
        self._is_stopping = True
        self._wake.set()

    def settle(self, safe: int) -> None:
        """Take over the progress that became valid."""
        latest = dict(self._progress.settle(safe))
        now_ms = self._clock.now_ms()
        for level, offset in latest.items():
            self._offsets.update(level, offset, now_ms)

    async def run(self) -> None:
        """Returns after `stop`."""
        # Every level with a queue, those above the configured ones included: nothing is left behind.
        for topic, queue_id in self._store.queue_keys():
            if topic == SCHEDULE_TOPIC and queue_id >= 0 and queue_id + 1 not in self._levels:
                self._open_level(queue_id + 1)
        while not self._is_stopping:
            self._wake.clear()
            wait_s = await self._deliver_round()
            self.settle(self._writer.safe_end())
            if len(self._progress):
                wait_s = TICK_S if wait_s is None else min(wait_s, TICK_S)
            await self._wake.wait(wait_s)
        self._levels.clear()  # its progress is asked for later, what it has read is not

    async def _deliver_round(self) -> float | None:
        """One batch of every level; in how many seconds to look again, None: when one arrives."""
        waits: list[float] = []
        for level in list(self._levels.values()):
            if self._is_stopping:
                break
            if self._progress.is_full:  # and may be empty a moment later, with nobody to tell
                waits.append(TICK_S)
                break
            wait_s = await self._deliver_level(level)
            if wait_s is not None:
                waits.append(wait_s)
        return min(waits, default=None)

    def _open_level(self, number: int) -> Level:
        """A level at its saved offset, or at the nearest one that its queue has."""
        low = self._store.queue_min(SCHEDULE_TOPIC, number - 1)
        high = self._store.queue_max(SCHEDULE_TOPIC, number - 1)
        offset = min(max(self._offsets.get(number) or 0, low), high)
        level = Level(number, self._delays_ms[min(number, len(self._delays_ms)) - 1], offset)
        self._levels[number] = level
        return level

    def _note_arrival(self, level: Level) -> tuple[int, int]:
        """Where the level's queue ends, and the steady time at which that is known."""
        queue_end = self._store.queue_max(SCHEDULE_TOPIC, level.queue_id)
        steady_ms = int(self._clock.monotonic() * 1000)
        level.arrivals.note(queue_end, steady_ms)
        return queue_end, steady_ms

    async def _deliver_level(self, level: Level) -> float | None:
        """Seconds until the level wants to be looked at again; None when nothing waits in it."""
        queue_end, steady_ms = self._note_arrival(level)
        if not level.waiting:
            if level.offset >= queue_end:
                return None
            if not self._read(level):
                return TICK_S
        plan = plan_level(
            level.waiting,
            level.arrivals,
            delay_ms=level.delay_ms,
            now_ms=self._clock.now_ms(),
            steady_ms=steady_ms,
        )
        due = level.waiting[: plan.due_count]
        if due:
            restored = [new for new in map(restore, due) if new is not None]
            end = await self._writer.append(restored) if restored else self._writer.log_end
            self._progress.add(end, (level.number, due[-1].queue_offset + 1))
            del level.waiting[: plan.due_count]
        return 0.0 if plan.wait_ms is None else min(plan.wait_ms / 1000, TICK_S)

    def _read(self, level: Level) -> bool:
        """Go on in the level's queue; False when that is not possible now."""
        begin = level.offset
        level.waiting, level.offset = self._writer.read(SCHEDULE_TOPIC, level.queue_id, begin)
        if begin < (low := self._store.queue_min(SCHEDULE_TOPIC, level.queue_id)):
            facts = {"topic": SCHEDULE_TOPIC, "queue_id": level.queue_id, "queue_offset": begin}
            log.error(
                events.DELAYED_MESSAGE_LOST,
                extra={**facts, "count": low - begin, "reason": "they were deleted"},
            )
        return level.offset > begin


STOP_S_MAX = 5.0
"""A delivery that the store refuses does not hold up the end of the broker."""


class DelayedDelivery:
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
        for topic, queue_id in newest:
            if topic == SCHEDULE_TOPIC and queue_id >= 0 and self._levels is not None:
                self._levels.wake(queue_id)
            elif topic == TIMER_TOPIC and self._timers is not None:
                self._timers.wake()
