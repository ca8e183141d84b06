"""The writers that Spark calls: they send the rows of one task, for batch and streaming queries.

When Spark commits, the brokers have already confirmed the rows. Unless the write is transactional, a commit
has nothing left to do, and an abort cannot withdraw messages. A task that runs twice and a batch that is
replayed send again, with the same keys; with `once` the brokers do not store them again. A transactional
write stores half messages, which the driver ends (`transaction`).

A replay must send each row to the queue where it may already be stored, even if a broker is temporarily
absent or the topic has grown since. An exactly-once query therefore stores its list of queues before its
first send, once per topic, beside its checkpoint. The options `semantics` and `topic` determine the names of
rows, so they are stored too, and a query that returns with other values is rejected.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tandemmq.errors import ConfigError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.spark.documents import read_versioned, write_document
from tandemmq.spark.sink import transaction
from tandemmq.spark.sink.columns import SinkColumns, make_prefix
from tandemmq.spark.sink.encode import BatchEncoder
from tandemmq.spark.sink.halves import HalfLog, read_decided
from tandemmq.spark.sink.options import AT_LEAST_ONCE, SinkOptions
from tandemmq.spark.sink.sender import OnceRun, Pins, RowSender
from tandemmq.spark.sink.transaction import TaskHalves
from tandemmq.spark.task import BATCH_ID, QUERY_ID
from tandemmq.telemetry import events

log = logging.getLogger(__name__)

PIN_FILE = "queues.json"
PIN_VERSION = 1
NAMES_FILE = "names.json"


def pin_queues(options: SinkOptions) -> Pins:
    """Returns the queues of all topics of a write: the stored ones, else those that the name servers list
    now.

    Raises:  ConfigError for a file of another version, NoRoute for a topic that accepts no messages.
    """
    path = Path(options.state_dir) / PIN_FILE if options.state_dir else None
    stored = read_versioned(path, PIN_VERSION) if path else None
    pins: Pins = {
        topic: tuple(MessageQueue(topic=topic, broker_name=name, queue_id=number) for name, number in places)
        for topic, places in (stored or {}).get("topics", {}).items()
    }
    missing = [topic for topic in options.exactly_once_topics if topic not in pins]
    if not missing:
        return pins
    sender = RowSender(options)
    try:
        pins.update({topic: tuple(sender.queues(topic)) for topic in missing})
    finally:
        sender.close()
    if path:
        topics = {topic: [(q.broker_name, q.queue_id) for q in queues] for topic, queues in pins.items()}
        write_document(path, {"version": PIN_VERSION, "topics": topics})
    return pins


def require_same_names(options: SinkOptions) -> None:
    """Stores the options that determine a query's row names, or compares them with those of an earlier run.

    Raises:  ConfigError if they differ, because the rows of a repeated batch would get new names.
    """
    if not (options.state_dir and options.is_state_of_query):
        return
    path = Path(options.state_dir) / NAMES_FILE
    wanted = {"semantics": options.semantics, "topic": options.topic}
    if options.semantics == AT_LEAST_ONCE:
        # Its rows may go to another topic. A checkpoint on another file system stores nothing.
        del wanted["topic"]
        if not path.parent.parent.is_dir():
            return
    known = read_versioned(path, PIN_VERSION)
    if known is None:
        write_document(path, {"version": PIN_VERSION, **wanted})
        return
    for name, value in wanted.items():
        if known.get(name) != value:
            raise ConfigError(
                f"option {name}: the query began with {known.get(name)!r} and has {value!r} now; rows of a "
                f"batch that is repeated would be stored twice. Use {known.get(name)!r} or a new checkpoint; "
                f"if the query ended with nothing left to do, remove {path.parent} instead"
            )


@dataclass
class TaskSent(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """The counts of one task attempt."""

    message_count: int
    send_count: int
    empty_count: int = 0
    """The number of rows without a body that were skipped or diverted."""


class _RowWriter:
    """A write of either kind. Spark makes it on the driver, once per batch, and copies it into the tasks."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, name: str = "") -> None:
        """Creates the write; `name` identifies it in the decisions, if it is known before the tasks run."""
        self._options = options
        self._columns = columns
        self._pins: Pins | None = None
        self._decided: frozenset[tuple[str, int]] = frozenset()
        if options.is_exactly_once:
            if "uniqueKey" in columns.places:
                raise ConfigError(
                    "semantics exactly-once makes the unique keys itself: drop the column uniqueKey"
                )
            self._pins = pin_queues(options)
        if options.is_transactional:
            for column in ("delayLevel", "deliverAt"):
                if column in columns.places:
                    raise ConfigError(
                        f"semantics transactional: brokers delay no half messages; drop the column {column}"
                    )
            self._decided = read_decided(options.state_dir, name)

    def commit(self, messages: Sequence[Any], batchId: int = 0) -> None:
        """Makes the rows visible if the write is transactional; others are visible already."""
        options, done = self._options, [message for message in messages if message is not None]
        if options.is_transactional:
            transaction.commit(options, batchId, done)
        count = sum(message.empty_count for message in done)
        if count:
            # The facts are part of the text: Spark's Python processes log nothing else of a record.
            how = f"diverted to {options.empty_bodies_topic}" if options.empty_bodies_topic else "skipped"
            text = f"batch {batchId}: {count} rows have no body and were {how}"
            log.warning("%s %s", events.EMPTY_BODIES_NOT_SENT, text, extra={"batch": batchId, "rows": count})

    def abort(self, messages: Sequence[Any], batchId: int = 0) -> None:
        if self._options.is_transactional:
            transaction.abort(
                self._options, batchId, [message for message in messages if message is not None]
            )

    def _send(
        self, rows: Iterator[Any], names: tuple[object, ...], name: str, batch_id: int
    ) -> TaskSent | TaskHalves:
        """Sends the rows of this task. `names`: the write and batch in the unique keys; `name`: the write in
        the numbers of sends and in the decisions.
        """
        partition_id = TaskContext.get().partitionId()
        names = (*names, self._options.topic, partition_id)
        if not self._options.is_transactional:
            once = None if self._pins is None else OnceRun(name, partition_id, batch_id, self._pins)
            return send_rows(rows, self._options, self._columns, names, partition_id, once)
        if (name, batch_id) in self._decided:
            return TaskHalves(name=name, parts=(), is_decided=True)
        halves = HalfLog(self._options.group, self._options.transaction_rows_max)
        try:
            sent = send_rows(rows, self._options, self._columns, names, partition_id, halves=halves)
        except Exception:
            transaction.roll_back(self._options, halves.parts())
            raise
        parts = tuple(part.encode() for part in halves.parts())
        return TaskHalves(name=name, parts=parts, empty_count=sent.empty_count)


class TopicWriter(_RowWriter, DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """A batch write; `write_id` identifies it in the unique keys. If transactional, it is batch 0 of
    that id.
    """

    def __init__(self, options: SinkOptions, columns: SinkColumns, write_id: str) -> None:
        if options.is_transactional and not options.write_id:
            # Without a writeId no later run could find its decision.
            options = replace(options, state_dir="")
        self._write_id = write_id
        super().__init__(options, columns, f"batch\0{write_id}")

    def write(self, iterator: Iterator[Any]) -> TaskSent | TaskHalves:
        return self._send(iterator, ("batch", self._write_id), f"batch\0{self._write_id}", 0)


class TopicStreamWriter(_RowWriter, DataSourceStreamArrowWriter):  # type: ignore[misc]  # untyped here
    """The writer of one streaming query's batches."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        require_same_names(options)
        if options.is_transactional and not options.state_dir:
            raise ConfigError("semantics transactional needs the option checkpointLocation, or stateDir")
        super().__init__(options, columns)

    def write(self, iterator: Iterator[Any]) -> TaskSent | TaskHalves:
        context = TaskContext.get()
        query, batch = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
        name = f"stream\0{query}\0{self._options.topic}"
        return self._send(iterator, ("stream", query, batch), name, int(batch))


class Pace:
    """Limits a task to a rate; None: no limit."""

    def __init__(self, rows_per_s: int | None) -> None:
        self._rows_per_s = rows_per_s
        self._due_s = time.monotonic()

    def wait(self, rows: int) -> None:
        """Sleeps for the time that `rows` rows take at this rate."""
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
    halves: HalfLog | None = None,
) -> TaskSent:
    """Sends all rows and waits until the last one is confirmed. `names` identify the task in the unique
    keys.
    """
    sender = RowSender(options, turn=partition_id, once=once, halves=halves)
    encoder = BatchEncoder(
        columns,
        options,
        key_prefix=make_prefix(*names),
        queues=sender.queues,
        spread=partition_id + once.epoch if once is not None else None,
        is_singly=halves is not None,
    )
    pace = Pace(options.task_rows_per_s)
    try:
        for batch in batches:
            for shipment in encoder.encode(batch):
                sender.send(shipment)
                pace.wait(shipment.count)
        sender.finish()
    finally:
        sender.close()
    return TaskSent(
        message_count=sender.message_count,
        send_count=sender.send_count,
        empty_count=encoder.empty_count,
    )
