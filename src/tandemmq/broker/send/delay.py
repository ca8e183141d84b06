"""Delayed and timed messages on their way into the topics in which they wait.

Source: spec semantics 18, spec store 15 and 16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tandemmq.broker.delay.timers import TIMER_OUT_MS, TIMER_TOPIC, TimerLimits, plan_timer
from tandemmq.protocol.properties import REAL_QID, REAL_TOPIC, append_property
from tandemmq.protocol.record import NewRecord
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC, delivered_at_ms


class DelayRule:
    """Puts a record off by a delay level or until a time."""

    def __init__(self, delay_levels_ms: Sequence[int], timers: TimerLimits) -> None:
        self._delay_levels_ms = delay_levels_ms
        self._timers = timers
        self.level_max = len(delay_levels_ms)

    def postpone(self, record: NewRecord, level: int, now_ms: int) -> None:
        """Move the record to the queue of its level; its DELAY property is there already.

        Its tag hash becomes the time it is due, which is what the delivering side reads from the queue.
        """
        assert 0 < level <= self.level_max
        _remember_target(record)
        record.topic = SCHEDULE_TOPIC
        record.queue_id = level - 1
        record.tag_hash = delivered_at_ms(level, now_ms, self._delay_levels_ms)

    def plan_timer(self, wishes: Mapping[str, str], now_ms: int) -> int | None:
        """The time slot in which a message with these wishes waits; None when it is due already.

        Raises:  MessageIllegal or RequestRejected, naming what is allowed.
        """
        return plan_timer(wishes, now_ms, self._timers)

    def postpone_until(self, record: NewRecord, slot_ms: int) -> None:
        """Move the record to the timer topic."""
        record.properties = append_property(record.properties, TIMER_OUT_MS, str(slot_ms))
        _remember_target(record)
        record.topic = TIMER_TOPIC
        record.queue_id = 0


def _remember_target(record: NewRecord) -> None:
    raw = append_property(record.properties, REAL_TOPIC, record.topic)
    record.properties = append_property(raw, REAL_QID, str(record.queue_id))
