"""Encodes Arrow batches into bodies of batch sends, without a Python object per row.

The wire form of each message is one element-wise join of binary columns: head, body, size of the properties,
properties. The result is contiguous in one buffer, so a batch body is a slice of it (spec spark SP-55, spec
remoting 12.6). Only delayed messages are sent one by one, because no broker accepts them in a batch.

Rows are assigned to a queue by `queueId`, else by `shardingKey` as in Java's hash selector: abs(hash) modulo
the number of queues (spec semantics 3.8). Rows without a fixed queue stay together.

Pure: numpy and pyarrow, no Spark, no network; a function supplies the queues of a topic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tandemmq.errors import MessageIllegal
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.hashes import java_hash
from tandemmq.protocol.message import MESSAGE_BYTES_MAX
from tandemmq.protocol.record_scan import Ints
from tandemmq.protocol.topic_names import NOT_SENDABLE_TOPICS, is_retry_topic, topic_fault
from tandemmq.spark.sink.columns import SinkColumns, encode_row_properties, fixed_binary, make_keys
from tandemmq.spark.sink.options import EmptyBodies, SinkOptions


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Rows for one queue, or for any queue of one topic if `queue` is None; `rows` None means all rows."""

    topic: str
    queue: MessageQueue | None
    rows: Ints | None

    def of(self, chosen: Ints) -> RowGroup:
        """Returns the same rows renumbered for the whole batch, of which only `chosen` were grouped."""
        return replace(self, rows=chosen if self.rows is None else chosen[self.rows])

    def without(self, is_out: NDArray[np.bool_]) -> RowGroup:
        rows = np.flatnonzero(~is_out) if self.rows is None else self.rows[~is_out[self.rows]]
        return replace(self, rows=rows)


def group_rows(
    batch: Any, columns: SinkColumns, topic: str, queues: Callable[[str], Sequence[MessageQueue]]
) -> list[RowGroup]:
    """Returns the groups of a RecordBatch; within a group the rows keep their order.

    Raises:  MessageIllegal for a topic that accepts no messages, or a queue that does not exist.
    """
    groups: list[RowGroup] = []
    for name, rows in _split_by_topic(batch, columns, topic):
        check_topic(name)
        slots = _choose_slots(batch, columns, name, rows, queues)
        if slots is None:
            groups.append(RowGroup(name, None, rows))
            continue
        numbers = np.arange(batch.num_rows) if rows is None else rows
        known = queues(name)
        for slot in np.unique(slots).tolist():
            queue = None if slot < 0 else known[slot]
            groups.append(RowGroup(name, queue, numbers[slots == slot]))
    return groups


def check_topic(topic: str) -> None:
    """Raises MessageIllegal for a topic to which a sink must not send."""
    fault = topic_fault(topic)
    if fault:
        raise MessageIllegal(fault)
    if topic in NOT_SENDABLE_TOPICS or is_retry_topic(topic):
        raise MessageIllegal(f"the topic {topic} takes no messages from a sink")


def _split_by_topic(batch: Any, columns: SinkColumns, topic: str) -> list[tuple[str, Ints | None]]:
    names_of_rows = columns.read(batch, "topic")
    if topic or names_of_rows is None:
        return [(topic, None)]
    encoded = names_of_rows.dictionary_encode()
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
    """Returns each row's index in the topic's queues, -1 for any queue; None if every row may go to any
    queue.
    """
    slots: Ints | None = None
    for name, find in (("shardingKey", _slot_of_key), ("queueId", _slot_of_queue)):
        values = columns.read(batch, name)
        if values is not None and rows is not None:
            values = values.take(rows)
        if values is None or values.null_count == len(values):
            continue
        if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
            values = _decode_keys(values)
        encoded = values.dictionary_encode()
        known = queues(topic)
        table = np.array(
            [find(value, known, topic) for value in encoded.dictionary.to_pylist()], dtype=np.int64
        )
        codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
        chosen = np.where(codes < 0, -1, table[codes])
        slots = chosen if slots is None else np.where(chosen < 0, slots, chosen)
    return slots


def _decode_keys(keys: Any) -> Any:
    """Returns binary keys as text, because keys of messages are text."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise MessageIllegal(
            "a row's key is not UTF-8: cast it to a string, for example by base64"
        ) from error


def _slot_of_key(key: str, known: Sequence[MessageQueue], topic: str) -> int:
    # An empty key imposes no order.
    return abs(java_hash(key)) % len(known) if key else -1


def _slot_of_queue(queue_id: int, known: Sequence[MessageQueue], topic: str) -> int:
    for slot, queue in enumerate(known):
        if queue.queue_id == queue_id:
            return slot
    raise MessageIllegal(f"the topic {topic} has no writable queue {queue_id}")


Queues = Callable[[str], Sequence[MessageQueue]]
"""A function that returns the writable queues of a topic, sorted."""

BATCH_COUNT_MAX = 32_768
SPREAD_ROWS = 4096
"""The number of consecutive rows that are sent to one queue if the sink assigns queues. It must never change:
a replay by a later release must send each row to the queue where it may already be stored.
"""
_HEAD_BYTES = 20
_FRAME_BYTES = _HEAD_BYTES + 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShipment:
    """One send. `queue` None: any queue of the topic. `is_batch` False: one message with `properties`.

    `last_key`: the unique key of its last message, if the sink made the keys.
    """

    topic: str
    queue: MessageQueue | None
    body: bytes | memoryview
    count: int
    is_batch: bool = True
    properties: str = ""
    flag: int = 0
    last_key: str = ""


@dataclass
class BatchEncoder:
    """Encodes the rows of one task, in their order.

    `spread`: if set, rows without a fixed queue get one by their row number, which is the same in a replay;
    the value is the start of the rotation. None: the sender chooses. `is_singly`: every row is a separate
    send.
    """

    columns: SinkColumns
    options: SinkOptions
    _: KW_ONLY
    key_prefix: bytes
    queues: Queues
    spread: int | None = None
    is_singly: bool = False
    row_count: int = 0
    empty_count: int = 0
    """The number of rows without a body that were skipped or diverted."""

    @cached_property
    def _batch_count(self) -> int:
        """The maximum number of rows per send: a slow task sends small batches, because otherwise its rate
        would be met in bursts.
        """
        limit = self.options.task_rows_per_s
        return min(BATCH_COUNT_MAX, max(1, limit // 10)) if limit else BATCH_COUNT_MAX

    def encode(self, batch: Any) -> Iterator[RowShipment]:
        """Yields the sends of one RecordBatch; rows for the same queue keep their order.

        Raises:  MessageIllegal naming a row that no broker would store.
        """
        count = batch.num_rows
        if count == 0:
            return
        first_row, self.row_count = self.row_count, self.row_count + count
        body, is_empty = self._read_bodies(batch, first_row)
        keys = make_keys(self.key_prefix, first_row, count)
        properties, is_delayed = encode_row_properties(batch, self.columns, keys, first_row)
        flags = self._read_flags(batch)
        groups = self._group(batch, is_empty)
        if self.spread is not None:
            groups = [part for group in groups for part in self._fix(group, first_row, count, self.spread)]
        is_single = np.ones_like(is_delayed) if self.is_singly else is_delayed
        if is_single.any():
            yield from self._encode_singly(groups, is_single, body, properties, flags, first_row)
            groups = [] if self.is_singly else [group.without(is_single) for group in groups]
        messages = _join(body, properties, flags)
        for group in groups:
            if group.rows is None:
                yield from self._cut(group, messages, first_row)
            elif len(group.rows):
                yield from self._cut(group, messages.take(pa.array(group.rows)), first_row)

    def _read_bodies(self, batch: Any, first_row: int) -> tuple[Any, NDArray[np.bool_] | None]:
        """Returns the bodies, and a mask of the rows without one; None if all rows have one."""
        body = self.columns.read(batch, "body").cast(pa.binary())
        is_missing = pc.fill_null(pc.equal(pc.binary_length(body), 0), True)
        if not pc.any(is_missing).as_py():
            return body, None
        if self.options.empty_bodies is EmptyBodies.FAIL:
            row = first_row + pc.index(is_missing, True).as_py()
            raise MessageIllegal(
                f"row {row} of the task has no body: at least one byte is needed; the option emptyBodies"
                " can skip or divert such rows"
            )
        is_empty = is_missing.to_numpy(zero_copy_only=False)
        self.empty_count += int(is_empty.sum())
        notes = [
            self._diverted_body(batch, row, body[row].is_valid) for row in np.flatnonzero(is_empty).tolist()
        ]
        return pc.replace_with_mask(body, is_missing, pa.array(notes, pa.binary())), is_empty

    def _diverted_body(self, batch: Any, row: int, is_valid: bool) -> bytes:
        """Returns the body of a diverted message: the row's topic, and whether its body was empty or null."""
        names = self.columns.read(batch, "topic")
        topic = self.options.topic or (None if names is None else names[row].as_py())
        return json.dumps({"topic": topic, "body": "" if is_valid else None}).encode()

    def _group(self, batch: Any, is_empty: NDArray[np.bool_] | None) -> list[RowGroup]:
        """Groups the rows by queue; rows without a body are diverted to their own topic, or skipped."""
        if is_empty is None:
            return group_rows(batch, self.columns, self.options.topic, self.queues)
        chosen, empty = np.flatnonzero(~is_empty), np.flatnonzero(is_empty)
        whole = batch.take(pa.array(chosen))
        topic = self.options.topic
        groups = group_rows(whole, self.columns, topic, self.queues) if len(chosen) else []
        groups = [group.of(chosen) for group in groups]
        if self.options.empty_bodies is EmptyBodies.DIVERT:
            groups.append(RowGroup(self.options.empty_bodies_topic, None, empty))
        return groups

    def _read_flags(self, batch: Any) -> NDArray[np.int32]:
        given = self.columns.read(batch, "flag")
        if given is None:
            return np.zeros(batch.num_rows, dtype=np.int32)
        numbers = pc.fill_null(given, 0).cast(pa.int32())
        flags: NDArray[np.int32] = numbers.to_numpy(zero_copy_only=False)
        return flags

    def _encode_singly(
        self,
        groups: Sequence[RowGroup],
        is_single: NDArray[np.bool_],
        body: Any,
        properties: Any,
        flags: NDArray[np.int32],
        first_row: int,
    ) -> Iterator[RowShipment]:
        for group in groups:
            rows = np.flatnonzero(is_single) if group.rows is None else group.rows[is_single[group.rows]]
            for row in rows.tolist():
                yield RowShipment(
                    topic=group.topic,
                    queue=group.queue,
                    body=body[row].as_py(),
                    count=1,
                    is_batch=False,
                    properties=properties[row].as_py().decode(),
                    flag=int(flags[row]),
                    last_key=self._key(first_row + row),
                )

    def _fix(self, group: RowGroup, first_row: int, count: int, turn: int) -> Iterator[RowGroup]:
        """Splits a group so that each row has a queue."""
        if group.queue is not None:
            yield group
            return
        rows = np.arange(count) if group.rows is None else group.rows
        known = self.queues(group.topic)
        slots = ((rows + first_row) // SPREAD_ROWS + turn) % len(known)
        for slot in np.unique(slots).tolist():
            chosen = rows[slots == slot]
            yield RowGroup(group.topic, known[slot], None if len(chosen) == count else chosen)

    def _key(self, row: int) -> str:
        return f"{self.key_prefix.decode()}{row:012X}"

    def _cut(self, group: RowGroup, messages: Any, first_row: int) -> Iterator[RowShipment]:
        """Yields the messages of a group in pieces of about `batch_bytes`."""
        _, offsets, data = messages.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int32)[messages.offset : messages.offset + len(messages) + 1]
        view = memoryview(data)
        at = 0
        while at < len(messages):
            room = int(bounds[at]) + self.options.batch_bytes
            stop = int(np.searchsorted(bounds, room, side="right")) - 1
            stop = min(max(stop, at + 1), at + self._batch_count, len(messages))
            size = int(bounds[stop] - bounds[at])
            if size > MESSAGE_BYTES_MAX:
                row = first_row + (at if group.rows is None else int(group.rows[at]))
                raise MessageIllegal(
                    f"row {row} of the task has {size} bytes, brokers take {MESSAGE_BYTES_MAX} at most"
                )
            last_row = first_row + (stop - 1 if group.rows is None else int(group.rows[stop - 1]))
            yield RowShipment(
                topic=group.topic,
                queue=group.queue,
                body=view[bounds[at] : bounds[stop]],
                count=stop - at,
                last_key=self._key(last_row),
            )
            at = stop


def _join(body: Any, properties: Any, flags: NDArray[np.int32]) -> Any:
    """Returns the wire form of every row."""
    count = len(body)
    body_sizes = pc.binary_length(body).to_numpy(zero_copy_only=False)
    property_sizes = pc.binary_length(properties).to_numpy(zero_copy_only=False)
    heads = np.zeros((count, 5), dtype=">i4")
    heads[:, 0] = _FRAME_BYTES + body_sizes + property_sizes
    heads[:, 3] = flags
    heads[:, 4] = body_sizes
    sizes = property_sizes.astype(">u2")
    return pc.binary_join_element_wise(
        fixed_binary(heads.view(np.uint8).reshape(count, _HEAD_BYTES)),
        body,
        fixed_binary(sizes.view(np.uint8).reshape(count, 2)),
        properties,
        pa.scalar(b"", pa.binary()),
    )
