"""The half messages of a transactional write: what a task says of them, what the driver needs to end them.

A row costs 16 bytes for two offsets and the bytes of its unique key, 48 in all with a key that the sink made,
on its way to the driver and in the driver. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from tandemmq.api.broker_send import read_send_answer
from tandemmq.errors import MessageIllegal
from tandemmq.protocol import properties as names
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import decode_message_id

_SCHEMA = pa.schema([("half_offset", pa.int64()), ("log_offset", pa.int64()), ("key", pa.binary())])
_TOPIC, _BROKER = b"topic", b"broker"


class Half(NamedTuple):
    """One half message: its offset in the half topic and in the CommitLog of its broker."""

    half_offset: int
    log_offset: int
    key: str


@dataclass(frozen=True, slots=True)
class HalfPart:
    """Half messages of one topic on one broker; `rows` is a RecordBatch."""

    topic: str
    broker_name: str
    rows: Any

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def read(self, at: int, count: int) -> list[Half]:
        """Up to `count` half messages from number `at` on."""
        columns = (column.to_pylist() for column in self.rows.slice(at, count).columns)
        return [Half(half, log, key.decode()) for half, log, key in zip(*columns, strict=True)]

    def encode(self) -> bytes:
        """The part as bytes; `decode_part` reads them."""
        facts = {_TOPIC: self.topic.encode(), _BROKER: self.broker_name.encode()}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SCHEMA.with_metadata(facts)) as writer:
            writer.write_batch(self.rows)
        return bytes(sink.getvalue())


def decode_part(raw: bytes) -> HalfPart:
    """What `HalfPart.encode` wrote."""
    with pa.ipc.open_stream(raw) as reader:
        facts = reader.schema.metadata
        batch = reader.read_next_batch()
    return HalfPart(facts[_TOPIC].decode(), facts[_BROKER].decode(), batch)


def count_halves(parts: Iterable[HalfPart]) -> int:
    return sum(len(part) for part in parts)


class _Column(NamedTuple):
    half_offsets: array[int]
    log_offsets: array[int]
    keys: list[bytes]


class HalfLog:
    """What one task has sent; `rows_max` bounds it."""

    def __init__(self, group: str, rows_max: int) -> None:
        self._group = group
        self._rows_max = rows_max
        self._columns: dict[tuple[str, str], _Column] = {}
        self._count = 0

    def properties(self, text: str) -> str:
        """The properties of a row as those of a half message.

        A row's own immunity time goes: past it a broker refuses ends that it has not asked for.
        """
        if names.CHECK_IMMUNITY_TIME in text:
            text = names.remove_property(text.encode(), names.CHECK_IMMUNITY_TIME.encode()).decode()
        return f"{text}{names.TRAN_MSG}\x01true\x02{names.PGROUP}\x01{self._group}\x02"

    def add(self, topic: str, broker_name: str, properties: str, answer: Command) -> None:
        """Takes over what a broker answered to a half message with these properties.

        Raises:  MessageIllegal for one row too many.
        """
        if self._count >= self._rows_max:
            raise too_many_rows(self._rows_max)
        sent = read_send_answer(answer)
        column = self._columns.get((topic, broker_name))
        if column is None:
            column = self._columns[topic, broker_name] = _Column(array("q"), array("q"), [])
        column.half_offsets.append(sent.queue_offset)
        column.log_offsets.append(decode_message_id(sent.message_id).log_offset)
        # RocketMQ 4.9 does not name it in its answer.
        column.keys.append(names.find_property(properties.encode(), names.UNIQ_KEY.encode()) or b"")
        self._count += 1

    def parts(self) -> list[HalfPart]:
        return [
            HalfPart(topic, broker_name, _make_rows(column))
            for (topic, broker_name), column in self._columns.items()
        ]


def too_many_rows(rows_max: int) -> MessageIllegal:
    return MessageIllegal(
        f"a transaction has more than {rows_max} rows, and its driver keeps some 50 bytes of each: make the"
        " batches smaller (maxOffsetsPerTrigger), or raise the option transactionRows"
    )


def _make_rows(column: _Column) -> Any:
    arrays = [
        pa.array(column.half_offsets, pa.int64()),
        pa.array(column.log_offsets, pa.int64()),
        pa.array(column.keys, pa.binary()),
    ]
    return pa.record_batch(arrays, schema=_SCHEMA)
