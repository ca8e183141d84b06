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
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tandemmq.errors import ConfigError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.spark.documents import read_document, write_document
from tandemmq.spark.sink.columns import SinkColumns
from tandemmq.spark.sink.options import SinkOptions
from tandemmq.spark.sink.sender import Pins, RowSender
from tandemmq.spark.task import BATCH_ID, QUERY_ID
from tandemmq.telemetry import events

if TYPE_CHECKING:
    from tandemmq.spark.sink.halves import HalfLog
    from tandemmq.spark.sink.sender import OnceRun, Pins
    from tandemmq.spark.sink.transaction import TaskHalves

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
    pins = _read(path) if path else {}
    missing = [topic for topic in options.exactly_once_topics if topic not in pins]
    if not missing:
        return pins
    sender = RowSender(options)
    try:
        pins.update({topic: tuple(sender.queues(topic)) for topic in missing})
    finally:
        sender.close()
    if path:
        _write(path, pins)
    return pins


def require_same_names(options: SinkOptions) -> None:
    """Stores the options that determine a query's row names, or compares them with those of an earlier run.

    Raises:  ConfigError if they differ, because the rows of a repeated batch would get new names.
    """
    if not (options.state_dir and options.is_state_of_query):
        return
    path = Path(options.state_dir) / NAMES_FILE
    known = _read_document(path)
    wanted = {"semantics": options.semantics, "topic": options.topic}
    if not known:
        write_document(path, {"version": PIN_VERSION, **wanted})
        return
    for name, value in wanted.items():
        if known.get(name) != value:
            raise ConfigError(
                f"option {name}: the query began with {known.get(name)!r} and has {value!r} now; rows of a "
                f"batch that is repeated would be stored twice. Use {known.get(name)!r} or a new checkpoint; "
                f"if the query ended with nothing left to do, remove {path.parent} instead"
            )


def _read(path: Path) -> Pins:
    document = _read_document(path)
    if not document:
        return {}
    return {topic: _queues(topic, places) for topic, places in document["topics"].items()}


def _queues(topic: str, places: Sequence[tuple[str, int]]) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic=topic, broker_name=name, queue_id=queue_id) for name, queue_id in places)


def _write(path: Path, pins: Pins) -> None:
    topics = {topic: [(q.broker_name, q.queue_id) for q in queues] for topic, queues in pins.items()}
    write_document(path, {"version": PIN_VERSION, "topics": topics})


def _read_document(path: Path) -> dict[str, Any]:
    """Reads a document of the sink's state; empty if there is no file."""
    document = read_document(path)
    if document is None:
        return {}
    if document.get("version") != PIN_VERSION:
        raise ConfigError(f"{path} has version {document.get('version')!r}, not {PIN_VERSION}")
    return document


@dataclass
class TaskSent(WriterCommitMessage):  # type: ignore[misc]  # pyspark is untyped here
    """The counts of one task attempt."""

    message_count: int
    send_count: int
    empty_count: int = 0
    """The number of rows without a body that were skipped or diverted."""


class TopicWriter(DataSourceArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """A batch write; `write_id` identifies it in the unique keys. If transactional, it is batch 0 of
    that id.
    """

    def __init__(self, options: SinkOptions, columns: SinkColumns, write_id: str) -> None:
        if options.is_transactional and not options.write_id:
            # Without a writeId no later run could find its decision.
            options = replace(options, state_dir="")
        self._options = options
        self._columns = columns
        self._write_id = write_id
        self._pins = _pin(options, columns)
        self._name = f"batch\0{write_id}"
        self._decided = _read_decided(options, columns, self._name)

    def write(self, iterator: Iterator[Any]) -> TaskSent | TaskHalves:
        partition_id = TaskContext.get().partitionId()
        names = ("batch", self._write_id, self._options.topic, partition_id)
        if self._options.is_transactional:
            key = (self._name, 0)
            return _send_halves(
                iterator, self._options, self._columns, names, partition_id, key, self._decided
            )
        once = _number(self._pins, "batch", self._write_id, partition_id, 0)
        return send_rows(iterator, self._options, self._columns, names, partition_id, once)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages, 0)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _abort(self._options, messages, 0)


class TopicStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]  # pyspark is untyped here
    """The writer of one streaming query's batches."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        require_same_names(options)
        self._pins = _pin(options, columns)
        if options.is_transactional and not options.state_dir:
            raise ConfigError("semantics transactional needs the option checkpointLocation, or stateDir")
        self._decided = _read_decided(options, columns)

    def write(self, iterator: Iterator[Any]) -> TaskSent | TaskHalves:
        context = TaskContext.get()
        partition_id = context.partitionId()
        batch = (context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID))
        names = ("stream", *batch, self._options.topic, partition_id)
        if self._options.is_transactional:
            key = (f"stream\0{batch[0]}\0{self._options.topic}", int(batch[1]))
            return _send_halves(
                iterator, self._options, self._columns, names, partition_id, key, self._decided
            )
        once = _number(
            self._pins, "stream", f"{batch[0]}\0{self._options.topic}", partition_id, int(batch[1])
        )
        return send_rows(iterator, self._options, self._columns, names, partition_id, once)

    # Spark passes the number by position; the name is that of its interface.
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _commit(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _abort(self._options, messages, batchId)


def _pin(options: SinkOptions, columns: SinkColumns) -> Pins | None:
    """Returns the queues of an exactly-once write, None for others. Spark makes a writer once per batch, on
    the driver, before its tasks.
    """
    if not options.is_exactly_once:
        return None
    if columns.place("uniqueKey") is not None:
        raise ConfigError("semantics exactly-once makes the unique keys itself: drop the column uniqueKey")
    # Only exactly-once writes need the network here.
    from tandemmq.spark.sink.writer import pin_queues

    return pin_queues(options)


def _number(pins: Pins | None, kind: str, query: str, partition_id: int, epoch: int) -> OnceRun | None:
    if pins is None:
        return None
    from tandemmq.spark.sink.sender import OnceRun

    return OnceRun(f"{kind}\0{query}", partition_id, epoch, pins)


def _read_decided(options: SinkOptions, columns: SinkColumns, name: str = "") -> frozenset[tuple[str, int]]:
    """Returns the batches of a transactional write whose rows are already stored; called on the driver,
    before the tasks.
    """
    if not options.is_transactional:
        return frozenset()
    for name in ("delayLevel", "deliverAt"):
        if columns.place(name) is not None:
            raise ConfigError(
                f"semantics transactional: brokers delay no half messages; drop the column {name}"
            )
    from tandemmq.spark.sink.halves import read_decided

    return read_decided(options.state_dir, name)


def _send_halves(
    batches: Iterator[Any],
    options: SinkOptions,
    columns: SinkColumns,
    names: tuple[object, ...],
    partition_id: int,
    key: tuple[str, int],
    decided: frozenset[tuple[str, int]],
) -> TaskHalves:
    """Stores all rows as half messages; rolls them back as far as possible if one cannot be stored.

    `key`: query and batch, as in the driver's decision.
    """
    from tandemmq.spark.sink.halves import HalfLog
    from tandemmq.spark.sink.transaction import TaskHalves, roll_back

    if key in decided:
        return TaskHalves(name=key[0], parts=(), is_decided=True)
    halves = HalfLog(options.group, options.transaction_rows_max)
    try:
        sent = send_rows(batches, options, columns, names, partition_id, halves=halves)
    except Exception:
        roll_back(options, halves.parts())
        raise
    parts = tuple(part.encode() for part in halves.parts())
    return TaskHalves(name=key[0], parts=parts, empty_count=sent.empty_count)


def _commit(options: SinkOptions, messages: Sequence[Any], batch_id: int) -> None:
    if options.is_transactional:
        from tandemmq.spark.sink import transaction

        transaction.commit(options, batch_id, [message for message in messages if message is not None])
    count = sum(message.empty_count for message in messages if message is not None)
    if count:
        # The facts are part of the text: Spark's Python processes log nothing else of a record.
        how = f"diverted to {options.empty_bodies_topic}" if options.empty_bodies_topic else "skipped"
        text = f"batch {batch_id}: {count} rows have no body and were {how}"
        log.warning("%s %s", events.EMPTY_BODIES_NOT_SENT, text, extra={"batch": batch_id, "rows": count})


def _abort(options: SinkOptions, messages: Sequence[Any], batch_id: int) -> None:
    if options.is_transactional:
        from tandemmq.spark.sink import transaction

        transaction.abort(options, batch_id, [message for message in messages if message is not None])


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
    # These modules import numpy and pyarrow, which planners do not need.
    from tandemmq.spark.sink.columns import make_prefix
    from tandemmq.spark.sink.encode import BatchEncoder
    from tandemmq.spark.sink.sender import RowSender

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
