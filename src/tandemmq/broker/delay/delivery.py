"""Delivery of waiting messages, on a master only: the delay levels, and the start of all delivery.

`LevelDelivery` delivers the messages of delay levels, and `make_deliveries` adds the delivery of timers. A
slave copies the progress (delayOffset.json, timercheck) and delivers nothing; a broker that becomes master
continues where its master was.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tandemmq.broker.arrivals import DELAY
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.delay.timer_delivery import TimerDelivery
from tandemmq.broker.delay.timers import COUNT_MAX, ROLL_AFTER_MS
from tandemmq.broker.durable import DurableWriter, Duty, Progress, restore
from tandemmq.protocol.record import NewRecord, Record
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.store.outcomes import Appended
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
    waiting: Sequence[Record],
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
_READER = f"{SCHEDULE_TOPIC}@SCHEDULE_CONSUMER"


@dataclass(eq=False, slots=True)
class Level:
    """One level's queue: the messages read from its head, at most one batch, and the next offset to read."""

    number: int
    delay_ms: int
    offset: int
    arrivals: ArrivalTimes
    waiting: list[Record] = field(default_factory=list)

    @property
    def queue_id(self) -> int:
        return self.number - 1


class LevelDelivery(Duty):
    """Delivers the messages of all delay levels; `stop` ends it between two batches."""

    name = "levels"
    topic = SCHEDULE_TOPIC

    def __init__(self, core: BrokerCore, writer: DurableWriter) -> None:
        self._store, self._offsets, self._clock = core.store, core.tables.delay_offsets, core.clock
        self._delays_ms = core.store.options.delay_levels_ms
        self._stats = core.stats
        self._writer = writer
        self._levels: dict[int, Level] = {}
        self._progress: Progress[tuple[int, int]] = Progress()
        super().__init__(core.clock)

    def on_dispatched(self, queue_id: int, queue_end: int) -> None:
        """Records that a message became readable in a level's queue. Wakes the task only if the level has no
        waiting message; otherwise the task reads the message after the waiting ones.
        """
        if self._is_stopping or queue_id < 0:
            return
        level = self._levels.get(queue_id + 1) or self._open_level(queue_id + 1)
        self._record_arrival(level)
        if not level.waiting:
            self._wake.set()

    def settle(self, safe: int) -> None:
        """Commits the progress that became safe."""
        latest = dict(self._progress.settle(safe))
        now_ms = self._clock.now_ms()
        for level, offset in latest.items():
            self._offsets.update(level, offset, now_ms)

    async def run(self) -> None:
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
        delay_ms = self._delays_ms[min(number, len(self._delays_ms)) - 1]
        level = self._levels[number] = Level(number, delay_ms, offset, ArrivalTimes(delay_ms))
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
            end = await self._writer.append(restored, self._count) if restored else self._writer.log_end
            self._progress.add(end, (level.number, due[-1].queue_offset + 1))
            del level.waiting[: plan.due_count]
        return 0.0 if plan.wait_ms is None else min(plan.wait_ms / 1000, TICK_S)

    def _count(self, records: Sequence[NewRecord], appended: Appended) -> None:
        """Counts delivered messages, as RocketMQ does: read by a group of the system, and stored again."""
        arrivals, begins = self._stats.arrivals, appended.log_offsets
        for record, begin, end in zip(records, begins, (*begins[1:], appended.end_offset), strict=True):
            arrivals.row(record.topic, DELAY).record(end - begin)
        arrivals.not_sent += len(begins)
        self._stats.groups_out.add(_READER, len(begins), appended.end_offset - begins[0])

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


def make_deliveries(
    core: BrokerCore, *, timer_count_max: int = COUNT_MAX, roll_after_ms: int = ROLL_AFTER_MS
) -> list[Duty]:
    """Returns the deliveries of delay levels and, with `timer_wheel_enable`, of timer messages."""
    writer = DurableWriter(core.store, core.clock)
    deliveries: list[Duty] = [LevelDelivery(core, writer)]
    if core.options.timer_wheel_enable:
        deliveries.append(TimerDelivery(core, writer, count_max=timer_count_max, roll_after_ms=roll_after_ms))
    return deliveries
