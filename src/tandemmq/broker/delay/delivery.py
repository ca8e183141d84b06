"""Delivery of waiting messages, on a master only: the delay levels, and the start of all delivery.

`LevelDelivery` delivers the messages of delay levels. `DelayedDelivery` starts and stops it and the delivery
of timers with the broker's role. A slave copies the progress (delayOffset.json, timercheck) and delivers
nothing; a broker that becomes master continues where its master was.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tandemmq.broker.delay.timer_delivery import TimerDelivery, TimerFigures
from tandemmq.broker.delay.timers import COUNT_MAX, ROLL_AFTER_MS, TIMER_TOPIC, TimerProgress
from tandemmq.broker.durable import DurableWriter, Progress, TimedEvent, restore
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
# Owns: the progress of each level. Progress that is safe goes to the DelayOffsetTable (delayOffset.json).
# Invariants: a message is delivered after its delay, in the order of its level. It is delivered again only if
# the process died before the progress was saved.
# Strategy: no timer per message. The task checks the head of every level, appends the due messages, and
# sleeps until the next head is due, at most TICK_S, so that it notices a changed wall clock. Messages that
# were read but are not yet due are kept, so each message is read once and later arrivals do not wake the
# task. If no message waits, the task sleeps until one arrives.
# A message is due once either of two clocks shows that its delay has passed: the wall clock since the message
# was stored, or the monotonic clock since this process has known the message. So a wall clock that is set
# back neither holds messages beyond their delay nor releases them early.
# Source: spec store 15, spec semantics 18.1. If the wall clock was set back, a message seems due later than
# its level's delay allows. RocketMQ releases such a message at once; here it waits for its delay, counted
# from the moment at which this process learned of it.


ARRIVAL_COUNT_MAX = 4_096
ARRIVAL_GAP_MS_MIN = 100


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message that was read from a level's queue and is not delivered yet."""

    queue_offset: int
    stored_at_ms: int


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """The messages to deliver now: the first `due_count`. The message after them is due in `wait_ms`;
    `wait_ms` is None if all messages are due.
    """

    due_count: int
    wait_ms: int | None


class ArrivalTimes:
    """The times, by the monotonic clock, at which messages of a queue became known. A recorded time is never
    before the true one.

    Bound: at most ARRIVAL_COUNT_MAX + 1 samples. An arrival less than `_gap_ms` after the last sample gets no
           sample; the next sample covers its messages.
    """

    __slots__ = ("_gap_ms", "_samples")

    def __init__(self, delay_ms: int) -> None:
        self._samples: deque[tuple[int, int]] = deque()  # (queue offset after the known messages, time)
        self._gap_ms = max(ARRIVAL_GAP_MS_MIN, -(-delay_ms // ARRIVAL_COUNT_MAX))

    def __len__(self) -> int:
        return len(self._samples)

    def add_sample(self, queue_end: int, monotonic_ms: int) -> None:
        """Records that all messages below `queue_end` are known now."""
        samples = self._samples
        if samples and (queue_end <= samples[-1][0] or monotonic_ms - samples[-1][1] < self._gap_ms):
            return
        if len(samples) > ARRIVAL_COUNT_MAX:  # the delay has passed for the head: no clock holds it back
            return
        samples.append((queue_end, monotonic_ms))

    def known_since(self, queue_offset: int) -> int | None:
        """Returns a time at which the message was already known, or None if no sample covers the message.
        `queue_offset` must not decrease from call to call.
        """
        samples = self._samples
        while samples and samples[0][0] <= queue_offset:
            samples.popleft()
        return samples[0][1] if samples else None


def plan_level(
    waiting: Sequence[Waiting | Record],
    arrivals: ArrivalTimes,
    *,
    delay_ms: int,
    now_ms: int,
    monotonic_ms: int,
) -> LevelPlan:
    """Returns the number of due messages at the head, and the wait for the next one. The order within a level
    is kept: the first message that is not due holds back those after it.

    Units:   now_ms by the wall clock, monotonic_ms by the monotonic clock.
    """
    for count, message in enumerate(waiting):
        wait_ms = message.stored_at_ms + delay_ms - now_ms
        if wait_ms > 0:
            since_ms = arrivals.known_since(message.queue_offset)
            if since_ms is not None:
                wait_ms = min(wait_ms, since_ms + delay_ms - monotonic_ms)
        if wait_ms > 0:
            return LevelPlan(count, wait_ms)
    return LevelPlan(len(waiting), None)


TICK_S = 1.0


class Level:
    """One level's queue: the messages read from its head, at most one batch, and the next offset to read."""

    __slots__ = ("arrivals", "delay_ms", "number", "offset", "waiting")

    def __init__(self, number: int, delay_ms: int, offset: int) -> None:
        self.number = number
        self.delay_ms = delay_ms
        self.offset = offset
        self.arrivals = ArrivalTimes(delay_ms)
        self.waiting: list[Record] = []

    @property
    def queue_id(self) -> int:
        return self.number - 1


class LevelDelivery:
    """Delivers the messages of all delay levels. `run` is the task; `stop` ends it between two batches."""

    def __init__(
        self,
        store: MessageStore,
        offsets: DelayOffsetTable,
        *,
        delays_ms: Sequence[int],
        writer: DurableWriter,
        clock: Clock,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._delays_ms = delays_ms
        self._writer = writer
        self._clock = clock
        self._levels: dict[int, Level] = {}
        self._progress: Progress[tuple[int, int]] = Progress()
        self._wake = TimedEvent(clock)
        self._is_stopping = False

    def wake(self, queue_id: int) -> None:
        """Records that a message became readable in a level's queue. Wakes the task only if the level has no
        waiting message; otherwise the task reads the message after the waiting ones.
        """
        if self._is_stopping:
            return
        level = self._levels.get(queue_id + 1) or self._open_level(queue_id + 1)
        self._record_arrival(level)
        if not level.waiting:
            self._wake.set()

    def stop(self) -> None:
        """Makes `run` return after the batch in progress."""
        self._is_stopping = True
        self._wake.set()

    def settle(self, safe: int) -> None:
        """Commits the progress that became safe."""
        latest = dict(self._progress.settle(safe))
        now_ms = self._clock.now_ms()
        for level, offset in latest.items():
            self._offsets.update(level, offset, now_ms)

    async def run(self) -> None:
        """Runs until `stop` is called."""
        # Levels that are no longer configured are included: their queues may still hold messages.
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
        self._levels.clear()  # the messages that were read; the progress stays, because `settle` needs it

    async def _deliver_round(self) -> float | None:
        """Delivers a batch of every level. Returns the seconds until the next round, or None to wait for
        arrivals.
        """
        waits: list[float] = []
        for level in list(self._levels.values()):
            if self._is_stopping:
                break
            if self._progress.is_full:  # no signal reports that room became free, so poll
                waits.append(TICK_S)
                break
            wait_s = await self._deliver_level(level)
            if wait_s is not None:
                waits.append(wait_s)
        return min(waits, default=None)

    def _open_level(self, number: int) -> Level:
        """Opens a level at its saved offset, limited to the offsets that its queue still has."""
        low = self._store.queue_min(SCHEDULE_TOPIC, number - 1)
        high = self._store.queue_max(SCHEDULE_TOPIC, number - 1)
        offset = min(max(self._offsets.get(number) or 0, low), high)
        level = Level(number, self._delays_ms[min(number, len(self._delays_ms)) - 1], offset)
        self._levels[number] = level
        return level

    def _record_arrival(self, level: Level) -> tuple[int, int]:
        """Records the level's arrivals. Returns its queue's end and the monotonic time in milliseconds."""
        queue_end = self._store.queue_max(SCHEDULE_TOPIC, level.queue_id)
        monotonic_ms = int(self._clock.monotonic() * 1000)
        level.arrivals.add_sample(queue_end, monotonic_ms)
        return queue_end, monotonic_ms

    async def _deliver_level(self, level: Level) -> float | None:
        """Delivers a batch. Returns the seconds until the level is due again, or None if nothing waits in
        it.
        """
        queue_end, monotonic_ms = self._record_arrival(level)
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
            monotonic_ms=monotonic_ms,
        )
        due = level.waiting[: plan.due_count]
        if due:
            restored = [new for new in map(restore, due) if new is not None]
            end = await self._writer.append(restored) if restored else self._writer.log_end
            self._progress.add(end, (level.number, due[-1].queue_offset + 1))
            del level.waiting[: plan.due_count]
        return 0.0 if plan.wait_ms is None else min(plan.wait_ms / 1000, TICK_S)

    def _read(self, level: Level) -> bool:
        """Reads the next batch of the level's queue. Returns False if that is not possible now."""
        begin = level.offset
        level.waiting, level.offset = self._writer.read(SCHEDULE_TOPIC, level.queue_id, begin)
        if begin < (low := self._store.queue_min(SCHEDULE_TOPIC, level.queue_id)):
            facts = {"topic": SCHEDULE_TOPIC, "queue_id": level.queue_id, "queue_offset": begin}
            log.error(
                events.DELAYED_MESSAGE_LOST,
                extra={**facts, "count": low - begin, "reason": "deleted by retention"},
            )
        return level.offset > begin


STOP_S_MAX = 5.0
"""The longest time that `DelayedDelivery.stop` waits for its tasks. The store may keep rejecting an append,
and the broker's stop must not wait for that.
"""


class DelayedDelivery:
    """Starts and stops all delivery. `start` and `stop` follow the broker's role; both may be called
    again.
    """

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
        store.dispatcher.on_dispatch(self._on_dispatch)

    def start(self) -> None:
        """Starts delivery; does nothing if already running."""
        if self._tasks:
            return
        on_fatal = self._on_fatal
        scope = TaskScope("delivery", None if on_fatal is None else lambda _name, error: on_fatal(error))
        self._scope = scope
        writer = DurableWriter(self._store, self._clock)
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
        """The progress of timer delivery; all zero while no timers are delivered."""
        return TimerFigures() if self._timers is None else self._timers.figures

    async def stop(self) -> None:
        """Stops delivery and waits for the tasks to end. Call `settle` afterwards, once the store is
        closed.
        """
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
        """Commits the progress of all copies on disk. Once the store is closed, that is all progress."""
        for part in (self._levels, self._timers):
            if part is not None:
                part.settle(self._store.flushed.value)

    def _on_dispatch(self, newest: Mapping[tuple[str, int], int]) -> None:
        for topic, queue_id in newest:
            if topic == SCHEDULE_TOPIC and queue_id >= 0 and self._levels is not None:
                self._levels.wake(queue_id)
            elif topic == TIMER_TOPIC and self._timers is not None:
                self._timers.wake()
