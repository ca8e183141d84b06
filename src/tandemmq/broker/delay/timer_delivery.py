"""Delivery of messages with their own delivery times: one task, running on the master only.

Owns: the wheel of the nearest messages, and the read position in the timer topic. The progress goes to
      TimerProgress (config/timercheck) once it is safe.
Invariants: messages are delivered in the order of their keys, none before its slot is over. Every message
            that the checkpoint calls done is done.
            At a boundary between two batches where nothing earlier than the last delivered message is
            pending, "done" is a single comparison of keys. Checkpoints are made only at such boundaries, and
            the task stops only there.
Strategy: the timer topic is the only store of messages. Reading alternates with delivering, and due messages
          go first. At the start, or when the wheel had to forget far messages and has run empty, the topic is
          read again from the first pending offset. Nothing is delivered meanwhile: one pass over the pending
          messages per `COUNT_MAX` deliveries.
          A message or cancellation that waits longer than the roll window is stored anew, so that retention
          does not reach it. The window follows fileReservedTime. A shorter window applies at once, by reading
          again. A longer one applies when nothing is pending, because messages stored anew would look pending
          under it.
Source: spec store 16, spec semantics 18.2. RocketMQ's timerlog and timerwheel files are not written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.delay import timers
from tandemmq.broker.durable import (
    BATCH_COUNT_MAX,
    TIMER_ROLL_TIMES,
    DurableWriter,
    Duty,
    Progress,
    restore_timer,
    roll_timer,
)
from tandemmq.protocol.properties import REAL_TOPIC
from tandemmq.protocol.record import NewRecord, Record
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

TICK_S = 1.0
LOW_PERIOD_S = 10.0
"""The period, in seconds, of searching the first pending offset, which only shortens reading after a
start.
"""


class TimerFigures(NamedTuple):
    """The state of timer delivery. `behind_s`: how long the first waiting message is overdue, in seconds;
    `unread_count`: messages of the topic not yet read.
    """

    behind_s: int = 0
    unread_count: int = 0
    waiting_count: int = 0
    delivered_count: int = 0


class TimerDelivery(Duty):
    """Delivers timer messages; `stop` ends it at a boundary."""

    name = "timers"
    topic = timers.TIMER_TOPIC

    def __init__(
        self,
        core: BrokerCore,
        writer: DurableWriter,
        *,
        count_max: int = timers.COUNT_MAX,
        roll_after_ms: int = timers.ROLL_AFTER_MS,
    ) -> None:
        self._store, self._valid, self._clock = core.store, core.tables.timer_progress, core.clock
        self._counts = core.stats.timers
        self._counts.read_to = max(self._counts.read_to, self._valid.check.read_offset)
        self._counts.read_due = self._count_due
        self._writer = writer
        self._count_max = count_max
        self._roll_after_ms_max = roll_after_ms
        self._progress: Progress[timers.TimerCheck] = Progress()
        super().__init__(core.clock)
        self.delivered_count = 0  # messages that left the topic: delivered, stored anew or cancelled
        self._low_at_s = 0.0
        self._begin(self._valid.check)
        first = self._valid.check.next_key
        self._front = timers.TimerKey(first.slot_ms, first.rank - 1)  # no delivered message is after it

    def _begin(self, check: timers.TimerCheck) -> None:
        """Continues after the messages that `check` calls done."""
        queue_end = self._store.queue_max(timers.TIMER_TOPIC, 0)
        read_offset = min(check.read_offset, queue_end)  # a truncated log reuses its offsets
        low_offset = min(check.low_offset, read_offset)
        begin = self._store.queue_min(timers.TIMER_TOPIC, 0)
        if 0 < low_offset < begin:
            # At least the first pending message is lost.
            facts = {
                "topic": timers.TIMER_TOPIC,
                "queue_offset": low_offset,
                "reason": "retention deleted it",
            }
            log.error(events.DELAYED_MESSAGE_LOST, extra=facts)
        self._roll_after_ms = min(self._configured_window_ms(), check.roll_after_ms)
        # A shorter window moves pending messages to keys before those done under the longer window. Until
        # they are handled, "done" is not a single comparison of keys.
        is_shorter = self._roll_after_ms < check.roll_after_ms
        self._earlier = (
            timers.TimerCheck(check.next_key, read_offset, 0, check.roll_after_ms) if is_shorter else None
        )
        next_key = timers.TimerKey(0, 0) if is_shorter else check.next_key
        self._read_again(timers.TimerCheck(next_key, read_offset, low_offset, self._roll_after_ms))

    def _read_again(self, base: timers.TimerCheck) -> None:
        """Reads the topic again from the first pending message on, skipping messages that `base` calls
        done.
        """
        self._base = base
        self._counts.read_again()
        self._wheel = timers.TimerWheel(self._count_max)
        self._scan_offset = max(base.low_offset, self._store.queue_min(timers.TIMER_TOPIC, 0))
        # A cancellation may be behind the messages that were read before.
        self._scan_end = self._store.queue_max(timers.TIMER_TOPIC, 0)

    def _configured_window_ms(self) -> int:
        return min(self._roll_after_ms_max, timers.roll_window_ms(self._store.options.file_reserved_hours))

    @property
    def figures(self) -> TimerFigures:
        """The current state of delivery."""
        first = self._wheel.next_key()
        behind_ms = 0 if first is None else self._clock.now_ms() - first.slot_ms - timers.PRECISION_MS
        return TimerFigures(
            behind_s=max(0, behind_ms // 1000),
            unread_count=max(0, self._store.queue_max(timers.TIMER_TOPIC, 0) - self._scan_offset),
            waiting_count=len(self._wheel),
            delivered_count=self.delivered_count,
        )

    def settle(self, safe: int) -> None:
        """Commits the progress that became safe."""
        settled = self._progress.settle(safe)
        if settled:
            self._valid.replace(settled[-1], self._clock.now_ms())

    async def run(self) -> None:
        """Runs until `stop` is called and a boundary is reached."""
        while not (self._is_stopping and (self._is_exact or (self._is_scanning and self._earlier is None))):
            self._wake.clear()
            was_full = self._progress.is_full
            did_work = await self._work()
            if self._is_stopping and not did_work:
                return
            if not self._is_scanning:
                self._end_shift()
            if self._is_exact and not self._is_scanning:
                self._record_progress()
                if self._configured_window_ms() < self._roll_after_ms and not self._is_stopping:
                    self._begin(self._base)
                    did_work = True
            self.settle(self._writer.safe_end())
            if was_full and not self._progress.is_full:  # nothing else signals that there is room again
                did_work = True
            await self._wake.wait(0.0 if did_work else self._wait_s())

    async def _work(self) -> bool:
        """Takes one step: delivers a batch, reads further, or starts to read again. Returns False if there is
        nothing to do.
        """
        if self._progress.is_full:
            return False
        if not self._is_scanning and await self._deliver_batch():
            return True
        if self._is_stopping and self._earlier is None:
            return False
        if not self._is_scanning and self._wheel.wants_refill:
            assert self._wheel.horizon is not None
            self._read_again(
                timers.TimerCheck(
                    self._wheel.horizon, self._scan_offset, self._base.low_offset, self._roll_after_ms
                )
            )
            return True
        return self._read_on()

    @property
    def _is_scanning(self) -> bool:
        """True while messages known before are still being read again."""
        return self._scan_offset < self._scan_end

    @property
    def _is_exact(self) -> bool:
        """True if every message before the last delivered one is done."""
        first = self._wheel.next_key()
        return self._earlier is None and (first is None or first > self._front)

    def _end_shift(self) -> None:
        """Drops the longer window's checkpoint once all messages that the shorter window moved ahead are
        handled.
        """
        if self._earlier is not None:
            pending = self._wheel.next_key() or self._wheel.horizon
            if pending is None or pending >= self._earlier.next_key:
                self._earlier = None

    def _is_done(self, record: Record, key: timers.TimerKey) -> bool:
        if self._base.is_done(key):
            return True
        earlier = self._earlier
        before = None if earlier is None else timers.read_timer(record, earlier.roll_after_ms)
        return earlier is not None and before is not None and earlier.is_done(before.key)

    def _read_on(self) -> bool:
        """Reads the next messages of the topic. Returns False at its end."""
        records, next_offset = self._writer.read(timers.TIMER_TOPIC, 0, self._scan_offset)
        for record in records:
            timed = timers.read_timer(record, self._roll_after_ms)
            if timed is None or self._is_done(record, timed.key):
                continue
            if timed.cancels:
                self._wheel.cancel(timed.slot_ms, timed.cancels)
            else:
                self._count(record, timed)
            self._wheel.add(timed.key)
        has_moved = next_offset > self._scan_offset
        self._scan_offset = next_offset
        self._counts.read_to = max(self._counts.read_to, next_offset)
        return has_moved

    def _count_due(self) -> Iterator[tuple[int, int]]:
        return self._wheel.counts_by_slot()

    def _count(self, record: Record, timed: timers.Timed) -> None:
        is_new = record.queue_offset >= self._counts.read_to and not record.text(TIMER_ROLL_TIMES.encode())
        delay_s = max(0, timed.slot_ms - record.born_at_ms) // 1000
        self._counts.add(record.text(REAL_TOPIC.encode()), is_new=is_new, delay_s=delay_s)

    async def _deliver_batch(self) -> bool:
        """Delivers the first due messages. Returns False if none is due."""
        keys = self._wheel.peek(timers.slots_over(self._clock.now_ms()), BATCH_COUNT_MAX)
        if not keys:
            return False
        batch, used = self._collect(keys)
        if batch:
            await self._writer.append(batch)
        done = keys[:used]
        self._wheel.remove(done)
        self.delivered_count += used
        self._front = max(self._front, done[-1])
        if self._wheel.has_cancelled:
            self._wheel.forget_cancelled_below(done[-1].slot_ms)
        return True

    def _collect(self, keys: list[timers.TimerKey]) -> tuple[list[NewRecord], int]:
        """Returns the records for the first `used` of these messages, as many as one append should hold."""
        batch: list[NewRecord] = []
        size = used = 0
        for key in keys:
            if batch and size >= self._writer.batch_bytes_max:
                break
            used += 1
            record = self._read(key.queue_offset)
            timed = None if record is None else timers.read_timer(record, self._roll_after_ms)
            if record is None or timed is None:
                log.error(
                    events.DELAYED_MESSAGE_LOST,
                    extra={"topic": timers.TIMER_TOPIC, "queue_offset": key.queue_offset},
                )
                continue
            new = self._make(record, timed)
            if not timed.cancels:
                is_delivered = new is not None and new.topic != timers.TIMER_TOPIC
                self._counts.remove(record.text(REAL_TOPIC.encode()), is_delivered=is_delivered)
            if new is not None:
                batch.append(new)
                size += record.size
        return batch, used

    def _make(self, record: Record, timed: timers.Timed) -> NewRecord | None:
        """Returns the message to append; None for a cancellation that is due, and for a cancelled message."""
        now_ms = self._clock.now_ms()
        if timed.is_roll:
            return roll_timer(record, now_ms)
        if timed.cancels:
            return None
        if self._wheel.has_cancelled:
            topic = record.properties.get(REAL_TOPIC, "")
            if self._wheel.is_cancelled(timed.key.slot_ms, timers.cancel_name(topic, record.unique_key)):
                return None
        return restore_timer(record, now_ms)

    def _read(self, queue_offset: int) -> Record | None:
        records, _ = self._writer.read(timers.TIMER_TOPIC, 0, queue_offset, 1)
        return records[0] if records and records[0].queue_offset == queue_offset else None

    def _record_progress(self) -> None:
        """Records what is done now; this becomes safe with the current end of the log."""
        steady_s = self._clock.monotonic()
        low = self._base.low_offset
        if steady_s >= self._low_at_s:
            self._low_at_s = steady_s + LOW_PERIOD_S
            first = self._wheel.first_offset()
            low = self._scan_offset if first is None else first
            if first is None:
                self._roll_after_ms = self._configured_window_ms()
        # Close to the delivered messages: if it were far ahead, every message sent next would count as late.
        next_key = timers.TimerKey(self._front.slot_ms + timers.PRECISION_MS, 0)
        pending = self._wheel.next_key() or self._wheel.horizon
        if pending is not None:
            next_key = min(next_key, pending)
        check = timers.TimerCheck(next_key, self._scan_offset, low, self._roll_after_ms)
        if check != self._base:
            self._base = check
            self._progress.add(self._writer.log_end, check, replaces=True)

    def _wait_s(self) -> float | None:
        """Returns the seconds until the next message is due, at most TICK_S because the wall clock may
        change.
        """
        first = self._wheel.next_key()
        if first is None:
            return TICK_S if len(self._progress) else None
        wait_ms = first.slot_ms + timers.PRECISION_MS - self._clock.now_ms()
        return min(max(wait_ms, 1) / 1000, TICK_S)
