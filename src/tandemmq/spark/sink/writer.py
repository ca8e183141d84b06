"""The writers that Spark calls: rows of one task to messages, for batch and streaming queries.

What Spark commits was confirmed by the brokers before; there is nothing left to do at a commit, and an abort
cannot take messages back. A task that runs twice and a batch that is replayed send again, with the same keys;
brokers that are asked to (`once`) do not store them again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tandemmq.errors import ConfigError
from tandemmq.spark.sink.columns import SinkColumns
from tandemmq.spark.sink.options import SinkOptions
from tandemmq.spark.task_names import BATCH_ID, QUERY_ID

if TYPE_CHECKING:
    from tandemmq.spark.sink.once import OnceRun, Pins


@dataclass
class TaskSent(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """What one task attempt sent."""

    message_count: int
    send_count: int


class TopicWriter(DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """A batch write; `write_id` names it in the unique keys."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, write_id: str) -> None:
        self._options = options
        self._columns = columns
        self._write_id = write_id
        self._pins = _pin(options, columns)

    def write(self, iterator: Iterator[Any]) -> TaskSent:
        partition_id = TaskContext.get().partitionId()
        names = ("batch", self._write_id, self._options.topic, partition_id)
        once = _number(self._pins, "batch", self._write_id, partition_id, 0)
        return send_rows(iterator, self._options, self._columns, names, partition_id, once)

    def commit(self, messages: Sequence[TaskSent | None]) -> None: ...

    def abort(self, messages: Sequence[TaskSent | None]) -> None: ...


class TopicStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """The batches of one streaming query."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        self._pins = _pin(options, columns)

    def write(self, iterator: Iterator[Any]) -> TaskSent:
        context = TaskContext.get()
        partition_id = context.partitionId()
        batch = (context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID))
        names = ("stream", *batch, self._options.topic, partition_id)
        once = _number(
            self._pins, "stream", f"{batch[0]}\0{self._options.topic}", partition_id, int(batch[1])
        )
        return send_rows(iterator, self._options, self._columns, names, partition_id, once)

    def commit(self, messages: Sequence[TaskSent | None], batchId: int) -> None: ...

    def abort(self, messages: Sequence[TaskSent | None], batchId: int) -> None: ...


def _pin(options: SinkOptions, columns: SinkColumns) -> Pins | None:
    """The queues of an exactly-once write, None for others. Spark makes a writer once per batch, on the
    driver, before its tasks.
    """
    if not options.is_once:
        return None
    if columns.place("uniqueKey") is not None:
        raise ConfigError("semantics exactly-once makes the unique keys itself: drop the column uniqueKey")
    # The network is only touched by those who need it.
    from tandemmq.spark.sink.pins import pin_queues

    return pin_queues(options)


def _number(pins: Pins | None, kind: str, query: str, partition_id: int, epoch: int) -> OnceRun | None:
    if pins is None:
        return None
    from tandemmq.spark.sink.once import OnceRun

    return OnceRun(f"{kind}\0{query}", partition_id, epoch, pins)


class Pace:
    """Keeps a task to a rate; None: no limit."""

    def __init__(self, rows_per_s: int | None) -> None:
        self._rows_per_s = rows_per_s
        self._due_s = time.monotonic()

    def wait(self, rows: int) -> None:
        """Returns when the rows that were just sent have had their time."""
        if self._rows_per_s is None:
            return
        now = time.monotonic()
        self._due_s = max(self._due_s, now) + rows / self._rows_per_s
        time.sleep(self._due_s - now)


def send_rows(
    batches: Iterator[Any],
    options: SinkOptions,
    columns: SinkColumns,
    names: tuple[object, ...],
    partition_id: int,
    once: OnceRun | None = None,
) -> TaskSent:
    """Sends all rows; returns when the last one is confirmed. `names` name the task in the unique keys."""
    # numpy and pyarrow come with it, which planners do not need.
    from tandemmq.spark.sink.encode import BatchEncoder
    from tandemmq.spark.sink.keys import make_prefix
    from tandemmq.spark.sink.sender import Sender

    sender = Sender(options, turn=partition_id, once=once)
    encoder = BatchEncoder(
        columns,
        topic=options.topic,
        batch_bytes=options.batch_bytes,
        key_prefix=make_prefix(*names),
        queues=sender.queues,
        spread=partition_id + once.epoch if once is not None else None,
    )
    # A slow task sends small batches, or its rate would be one of bursts.
    limit = options.task_rows_per_s
    encoder.batch_count = min(encoder.batch_count, max(1, limit // 10)) if limit else encoder.batch_count
    pace = Pace(options.task_rows_per_s)
    try:
        for batch in batches:
            for shipment in encoder.encode(batch):
                sender.send(shipment)
                pace.wait(shipment.count)
        sender.finish()
    finally:
        sender.close()
    return TaskSent(message_count=sender.message_count, send_count=sender.send_count)
