"""Delayed messages on their way into the schedule topic (spec semantics 18.1, store 15)."""

from __future__ import annotations

from collections.abc import Sequence

from tandemmq.protocol.delay_levels import delivered_at_ms
from tandemmq.protocol.properties import REAL_QID, REAL_TOPIC, append_property
from tandemmq.protocol.record import NewRecord
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC


class DelayRule:
    """Puts a record off by a delay level."""

    def __init__(self, delay_levels_ms: Sequence[int]) -> None:
        self._delay_levels_ms = delay_levels_ms
        self.level_max = len(delay_levels_ms)

    def postpone(self, record: NewRecord, level: int, now_ms: int) -> None:
        """Move the record to the queue of its level; its DELAY property is there already.

        Its tag hash becomes the time it is due, which is what the delivering side reads from the queue.
        """
        assert 0 < level <= self.level_max
        raw = append_property(record.properties, REAL_TOPIC, record.topic)
        record.properties = append_property(raw, REAL_QID, str(record.queue_id))
        record.topic = SCHEDULE_TOPIC
        record.queue_id = level - 1
        record.tag_hash = delivered_at_ms(level, now_ms, self._delay_levels_ms)
