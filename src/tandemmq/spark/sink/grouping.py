"""Which rows go to which topic and queue; rows that may go anywhere stay together.

A queue is chosen by `queueId`, else by `shardingKey` as Java's selector by hash does: abs(hash) modulo the
number of queues (spec semantics 3.8). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemmq.errors import MessageIllegal
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.java_hash import java_hash
from tandemmq.protocol.topic_names import NOT_SENDABLE_TOPICS, is_retry_topic, topic_fault
from tandemmq.spark.sink.columns import SinkColumns

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows for one queue, or for any queue of one topic; `rows` None means all rows."""

    topic: str
    queue: MessageQueue | None
    rows: Ints | None

    def of(self, chosen: Ints) -> Group:
        """The same rows by their numbers in a batch out of which only `chosen` were grouped."""
        return replace(self, rows=chosen if self.rows is None else chosen[self.rows])

    def without(self, is_out: NDArray[np.bool_]) -> Group:
        rows = np.flatnonzero(~is_out) if self.rows is None else self.rows[~is_out[self.rows]]
        return replace(self, rows=rows)


def group_rows(
    batch: Any, columns: SinkColumns, topic: str, queues: Callable[[str], Sequence[MessageQueue]]
) -> list[Group]:
    """The groups of a RecordBatch; within a group the rows keep their order.

    Raises:  MessageIllegal for a topic that takes no messages or a queue that there is not.
    """
    groups: list[Group] = []
    for name, rows in _split_by_topic(batch, columns, topic):
        check_topic(name)
        slots = _choose_slots(batch, columns, name, rows, queues)
        if slots is None:
            groups.append(Group(name, None, rows))
            continue
        numbers = np.arange(batch.num_rows) if rows is None else rows
        known = queues(name)
        for slot in np.unique(slots).tolist():
            queue = None if slot < 0 else known[slot]
            groups.append(Group(name, queue, numbers[slots == slot]))
    return groups


def check_topic(topic: str) -> None:
    """Raises MessageIllegal for a name that no batch may be sent to."""
    fault = topic_fault(topic)
    if fault:
        raise MessageIllegal(fault)
    if topic in NOT_SENDABLE_TOPICS or is_retry_topic(topic):
        raise MessageIllegal(f"the topic {topic} takes no messages from a sink")


def _split_by_topic(batch: Any, columns: SinkColumns, topic: str) -> list[tuple[str, Ints | None]]:
    place = columns.place("topic")
    if topic or place is None:
        return [(topic, None)]
    encoded = batch.column(place).dictionary_encode()
    if encoded.null_count:
        raise MessageIllegal("a row has no topic; set the option topic, or fill the column")
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        return [(names[0], None)]
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    return [(name, np.flatnonzero(codes == code)) for code, name in enumerate(names)]


def _choose_slots(
    batch: Any,
    columns: SinkColumns,
    topic: str,
    rows: Ints | None,
    queues: Callable[[str], Sequence[MessageQueue]],
) -> Ints | None:
    """Each row's index in the topic's queues, -1 for any; None when every row may go anywhere."""
    slots: Ints | None = None
    for name, find in (("shardingKey", _slot_of_key), ("queueId", _slot_of_queue)):
        place = columns.place(name)
        if place is None:
            continue
        values = batch.column(place)
        if rows is not None:
            values = values.take(rows)
        if values.null_count == len(values):
            continue
        if pa.types.is_binary(values.type):
            values = _as_text(values)
        encoded = values.dictionary_encode()
        known = queues(topic)
        table = np.array(
            [find(value, known, topic) for value in encoded.dictionary.to_pylist()], dtype=np.int64
        )
        codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
        chosen = np.where(codes < 0, -1, table[codes])
        slots = chosen if slots is None else np.where(chosen < 0, slots, chosen)
    return slots


def _as_text(keys: Any) -> Any:
    """Keys of messages are text."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise MessageIllegal(
            "a row's key is not UTF-8: cast it to a string, for example by base64"
        ) from error


def _slot_of_key(key: str, known: Sequence[MessageQueue], topic: str) -> int:
    # An empty key orders nothing.
    return abs(java_hash(key)) % len(known) if key else -1


def _slot_of_queue(queue_id: int, known: Sequence[MessageQueue], topic: str) -> int:
    for slot, queue in enumerate(known):
        if queue.queue_id == queue_id:
            return slot
    raise MessageIllegal(f"the topic {topic} has no writable queue {queue_id}")
