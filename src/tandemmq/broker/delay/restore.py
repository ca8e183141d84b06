"""Stored messages on their way back from a waiting topic: pure.

The properties stay as they were stored, DELAY, REAL_TOPIC and REAL_QID included, because that is what
RocketMQ stores (spec store 15); a timer message gets its times added (spec store 16).
"""

from __future__ import annotations

from tandemmq.protocol import properties as names
from tandemmq.protocol.properties import PROPERTIES_BYTES_MAX, append_property, find_property
from tandemmq.protocol.record import NewRecord, Record, tag_hash_of
from tandemmq.protocol.topic_names import HALF_TOPIC

TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"


def restore(record: Record) -> NewRecord | None:
    """The message for the topic and queue that it was meant for; None when it has no such topic.

    Half messages are never brought back (spec store 15). Its sender was answered long ago, so it waits for
    nothing.
    """
    topic = _text(record, b"REAL_TOPIC")
    queue_id = _text(record, b"REAL_QID")
    if not topic or topic == HALF_TOPIC:
        return None
    is_number = queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= 9
    return _copy(record, topic, int(queue_id) if is_number else 0, record.raw_properties)


def restore_timer(record: Record, now_ms: int) -> NewRecord | None:
    """The same for a timer message, with when it began and ended to wait."""
    restored = restore(record)
    if restored is not None:
        restored.properties = _with_times(record, now_ms)
    return restored


def roll_timer(record: Record, now_ms: int) -> NewRecord:
    """The message for another stay in its timer topic: a younger copy, which retention reaches later."""
    count = _text(record, TIMER_ROLL_TIMES.encode())
    times = int(count) + 1 if count.isascii() and count.isdigit() and len(count) <= 9 else 1
    rolled = _with_pair(_with_times(record, now_ms), TIMER_ROLL_TIMES, str(times))
    return _copy(record, record.topic, record.queue_id, rolled)


def _with_times(record: Record, now_ms: int) -> bytes:
    timed = _with_pair(record.raw_properties, TIMER_ENQUEUE_MS, str(record.stored_at_ms))
    return _with_pair(timed, TIMER_DEQUEUE_MS, str(now_ms))


def _with_pair(raw: bytes, name: str, value: str) -> bytes:
    """With the pair in the place of an older one; a message that has no room for it goes without."""
    longer = append_property(names.remove_property(raw, name.encode()), name, value)
    return longer if len(longer) <= PROPERTIES_BYTES_MAX else raw


def _copy(record: Record, topic: str, queue_id: int, properties: bytes) -> NewRecord:
    return NewRecord(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=properties,
        born_at_ms=record.born_at_ms,
        born_host=record.born_host,
        tag_hash=tag_hash_of(properties),
        flag=record.flag,
        sys_flag=record.sys_flag,
        retry_count=record.retry_count,
        prepared_offset=record.prepared_offset,
        keys=record.keys,
        unique_key=record.unique_key,
        wait_stored=False,
        is_internal=True,
    )


def _text(record: Record, name: bytes) -> str:
    value = find_property(record.raw_properties, name)
    return "" if value is None else str(value, "utf-8", "replace")
