"""Postponing a record: `DelayRule` moves it into the topic in which it waits, and `make_room` drops spare
properties of a retry or dead letter that has no room for more.

Source: spec semantics 7 and 18; spec store 15 and 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tandemmq.broker.delay.timers import TIMER_OUT_MS, TIMER_TOPIC, TimerLimits
from tandemmq.protocol import properties as names
from tandemmq.protocol.record import NewRecord
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC, delivered_at_ms


@dataclass(slots=True)
class DelayRule:
    """Postpones a record by a delay level or until a time, by moving it into the topic in which it waits."""

    delay_levels_ms: Sequence[int]
    timers: TimerLimits
    level_max: int = field(init=False)

    def __post_init__(self) -> None:
        self.level_max = len(self.delay_levels_ms)

    def postpone(self, record: NewRecord, level: int, now_ms: int) -> None:
        """Moves the record to the queue of its delay level; its DELAY property is already set.

        The record's tag hash becomes its due time, which the delivery task reads from the queue.
        """
        assert 0 < level <= self.level_max
        _remember_target(record)
        record.topic = SCHEDULE_TOPIC
        record.queue_id = level - 1
        record.tag_hash = delivered_at_ms(level, now_ms, self.delay_levels_ms)

    def postpone_retry(self, record: NewRecord, level: int, now_ms: int) -> bool:
        """Postpones a message that is to be retried; its DELAY property is already set.

        If the properties have no room for the target, the message is retried at once, without its delay.
        Returns False if the properties are too large even without the delay; the record is unchanged then.
        """
        room = len(_with_target(b"", record))
        raw = make_room(record.properties, room)
        if raw is not None:
            record.properties = raw
            self.postpone(record, level, now_ms)
            return True
        raw = make_room(names.remove_property(record.properties, names.DELAY.encode()))
        if raw is None:
            return False
        record.properties = raw
        return True

    def postpone_until(self, record: NewRecord, slot_ms: int) -> None:
        """Moves the record to the timer topic."""
        record.properties = names.append_property(record.properties, TIMER_OUT_MS, str(slot_ms))
        _remember_target(record)
        record.topic = TIMER_TOPIC
        record.queue_id = 0


def _remember_target(record: NewRecord) -> None:
    record.properties = _with_target(record.properties, record)


def _with_target(raw: bytes, record: NewRecord) -> bytes:
    raw = names.append_property(raw, names.REAL_TOPIC, record.topic)
    return names.append_property(raw, names.REAL_QID, str(record.queue_id))


# Messages stored again for their group: a retry carries more properties than the failed message.

SPARE_NAMES: Final = (
    names.ORIGIN_MESSAGE_ID,
    names.WAIT,
    names.MSG_REGION,
    names.TRACE_ON,
    names.CLUSTER,
    names.RECONSUME_TIME,
    names.MAX_RECONSUME_TIMES,
    names.MIN_OFFSET,
    names.MAX_OFFSET,
    "CONSUME_START_TIME",
    "1ST_POP_TIME",
    TIMER_OUT_MS,
    "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS",
    "TIMER_ROLL_TIMES",
)
"""Properties that brokers and clients add and no consumer needs, in the order in which they are dropped."""

_SPARE_IN_DEAD_LETTERS: Final = (
    *SPARE_NAMES,
    names.DELAY,
    names.REAL_TOPIC,
    names.REAL_QID,
    names.RETRY_TOPIC,
)


def make_room(raw: bytes, room: int = 0, spare: Sequence[str] = SPARE_NAMES) -> bytes | None:
    """Returns `raw` with room for `room` more bytes, dropping as few spare properties as possible. Returns
    None if dropping all of them is not enough. The sender's own properties are never dropped.
    """
    for name in spare:
        if len(raw) + room <= names.PROPERTIES_BYTES_MAX:
            return raw
        raw = names.remove_property(raw, name.encode())
    return raw if len(raw) + room <= names.PROPERTIES_BYTES_MAX else None


def make_room_in_dead_letter(raw: bytes) -> bytes:
    """Returns the properties of a dead letter; details of its origin are dropped if there is no room for
    them.
    """
    made = make_room(raw, 0, _SPARE_IN_DEAD_LETTERS)
    return raw if made is None else made
