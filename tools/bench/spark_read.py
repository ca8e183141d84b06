"""Measures the cost of reading a topic with Spark, by a batch query over all of it and by micro-batches of
one message; and the command `python -m bench spark`, which runs both.

Broker, Spark's Java process and its Python workers share the machine, so processor time is attributed by
process: to the broker, and to everything that Spark started. Every figure is the best of several runs,
because other load on the machine only ever adds to it.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from bench.processes import Servers, running_servers, tree_seconds
from tandemmq.bench.process_stats import processor_seconds
from tandemmq.errors import TandemError
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.spark.session import build_session
from tandemmq.spark.wire import OPEN, POOL, Security, WireConnection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


BATCH_BYTES = 512 * 1024
SENDS_AT_ONCE = 8
SEND_TIMEOUT_S = 30.0
IDLE_BATCHES = 25
IDLE_SKIPPED = 5
"""The number of first batches to skip: a query starts its Python processes in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCost:
    """A read of all rows: elapsed seconds, and processor time per row."""

    what: str
    rows: int
    body_bytes: int
    seconds: float
    broker_us: float
    spark_us: float

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds

    @property
    def mib_per_second(self) -> float:
        return self.rows * self.body_bytes / self.seconds / 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCost:
    """Micro-batches of one message each: milliseconds from trigger to commit."""

    what: str
    median_ms: float
    best_ms: float


def fill_topic(
    address: str, topic: str, *, rows: int, body_bytes: int, queue_count: int, security: Security = OPEN
) -> None:
    """Sends `rows` messages in batches, spread over the queues. The bodies are incompressible noise; the same
    batches are sent repeatedly, which makes no difference to a reader.

    Raises:  TandemError if the broker rejects a send.
    """
    per_batch = max(1, min(BATCH_BYTES // (body_bytes + 100), rows))
    noise = random.Random(body_bytes).randbytes(body_bytes + SENDS_AT_ONCE * per_batch)
    bodies = [
        _encode_batch(noise, number * per_batch, per_batch, body_bytes) for number in range(SENDS_AT_ONCE)
    ]
    commands: list[Command] = []
    left = rows
    with POOL.borrow(address, security) as connection:
        for number in range(-(-rows // per_batch)):
            body = bodies[number % SENDS_AT_ONCE]
            if left < per_batch:
                body = _encode_batch(noise, 0, left, body_bytes)
            left -= min(left, per_batch)
            commands.append(_make_send(topic, number % queue_count, queue_count, body))
            # The first send alone, because it creates the topic.
            if len(commands) == SENDS_AT_ONCE or number == 0 or not left:
                _send_all(connection, commands)
                commands = []


def _encode_batch(noise: bytes, first: int, count: int, body_bytes: int) -> bytes:
    items = [(0, noise[n : n + body_bytes], _properties(n)) for n in range(first, first + count)]
    return encode_batch(items)


def _properties(number: int) -> bytes:
    return encode_properties({"UNIQ_KEY": f"7F0000010001{number:020X}", "TAGS": f"Tag{number % 4}"})


def _make_send(topic: str, queue_id: int, queue_count: int, body: bytes) -> Command:
    header = SendRequestV2(
        producer_group="bench",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_count=queue_count,
        queue_id=queue_id,
        sys_flag=0,
        born_at_ms=1_700_000_000_000,
        flag=0,
        is_batch=True,
    )
    return Command.request(RequestCode.SEND_BATCH_MESSAGE, header, body=body)


def _send_all(connection: WireConnection, commands: list[Command]) -> None:
    for answer in connection.request_all(commands, SEND_TIMEOUT_S):
        if answer.code != ResponseCode.SUCCESS:
            raise TandemError(f"a send was answered with {answer.code}: {answer.remark}")


def measure_read(
    what: str, frame: DataFrame, *, rows: int, body_bytes: int, broker: int, runs: int
) -> ReadCost:
    """Returns the cheapest of `runs` reads of the whole frame; the rows are built, and discarded in Java.

    Raises:  TandemError if the frame does not have `rows` rows.
    """
    found = frame.count()
    if found != rows:
        raise TandemError(f"{what}: read {found} of {rows} rows")
    costs = [measure_once(what, frame, rows=rows, body_bytes=body_bytes, broker=broker) for _ in range(runs)]
    return min(costs, key=lambda cost: cost.seconds)


def measure_once(
    what: str,
    frame: DataFrame,
    *,
    rows: int,
    body_bytes: int,
    broker: int,
    others: frozenset[int] = frozenset(),
) -> ReadCost:
    """Reads the frame once; it has `rows` rows. The processes `others` are neither Spark nor the broker that
    it reads from.
    """
    not_spark = others | {broker}
    broker_before = processor_seconds(broker)
    spark_before = tree_seconds(os.getpid(), without=not_spark)
    begun = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - begun
    spark_used = tree_seconds(os.getpid(), without=not_spark) - spark_before
    return ReadCost(
        what=what,
        rows=rows,
        body_bytes=body_bytes,
        seconds=seconds,
        broker_us=(processor_seconds(broker) - broker_before) * 1e6 / rows,
        spark_us=spark_used * 1e6 / rows,
    )


def measure_idle(what: str, stream: DataFrame, send_one: Callable[[], None]) -> IdleCost:
    """Measures micro-batches of one message: sends a message, waits for its batch, then sends the next. The
    topic must have a message from the start.
    """
    taken: list[float] = []
    batches: Queue[float] = Queue()
    with (
        TemporaryDirectory(prefix="tandemmq-bench-", ignore_cleanup_errors=True) as checkpoint,
        _listening(stream.sparkSession, batches),
    ):
        query = (
            stream.writeStream.format("noop")
            .option("checkpointLocation", str(Path(checkpoint) / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            _await_batch(query, batches)
            for _ in range(IDLE_BATCHES):
                send_one()
                taken.append(_await_batch(query, batches))
        finally:
            query.stop()
    kept = taken[IDLE_SKIPPED:]
    return IdleCost(what=what, median_ms=statistics.median(kept), best_ms=min(kept))


@contextmanager
def _listening(spark: SparkSession, batches: Queue[float]) -> Iterator[None]:
    """Puts the milliseconds of each batch with rows into `batches`. Reading `query.lastProgress` repeatedly
    instead takes Java and Python the time that the batch needs.
    """
    from pyspark.sql.streaming import StreamingQueryListener

    class BatchListener(StreamingQueryListener):  # type: ignore[misc]  # pyspark is untyped here
        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            if event.progress.numInputRows:
                batches.put(float(event.progress.durationMs["triggerExecution"]))

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            pass

    listener = BatchListener()
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        spark.streams.removeListener(listener)


def _await_batch(query: Any, batches: Queue[float]) -> float:
    """Returns the milliseconds of the next batch with rows."""
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline:
        with suppress(Empty):
            return batches.get(timeout=0.5)
        if query.exception() is not None:
            raise TandemError(f"the query failed: {query.exception()}")
    raise TandemError("no batch within 60 s")


def read_topic(spark: SparkSession, name_server: str, topic: str, columns: str) -> DataFrame:
    """Returns the topic as a table of those columns."""
    options = {"nameServer": name_server, "topic": topic, **({"columns": columns} if columns else {})}
    return spark.read.format("tandemmq").options(**options).load()


def follow_topic(spark: SparkSession, name_server: str, topic: str) -> DataFrame:
    """Returns the topic as a stream, from its first message."""
    options = {"nameServer": name_server, "topic": topic, "startingOffsets": "earliest"}
    return spark.readStream.format("tandemmq").options(**options, columns="queueOffset,body").load()


# The command: a broker, a topic, a Spark session, and the printed costs of reading.

TOPIC = "BenchSpark"
IDLE_TOPIC = "BenchSparkIdle"
# Java with its default options: our own sessions are set up for a quick start, which costs time per row.
SETTINGS = {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC", "spark.log.level": "WARN"}
COLUMN_SETS = (
    ("queueId, queueOffset, body", "queueId,queueOffset,body"),
    ("the 12 default columns", ""),
    ("all 18 columns", "all"),
)


def run_spark_bench(
    *, rows: int, body_bytes: int, queue_count: int, master: str, runs: int, has_idle: bool
) -> Iterator[str]:
    """Yields lines to print as soon as each is known."""
    with tempfile.TemporaryDirectory(prefix="tandemmq-bench-") as name:
        directory = Path(name)
        with running_servers(directory) as servers:
            address = servers.broker.address
            fill_topic(address, TOPIC, rows=rows, body_bytes=body_bytes, queue_count=queue_count)
            log = directory / "spark.log"
            spark = build_session("tandemmq bench", master, log_file=log, settings=SETTINGS)
            try:
                for what, columns in COLUMN_SETS:
                    frame = read_topic(spark, servers.name_server.address, TOPIC, columns)
                    pid = servers.broker.pid
                    yield render_read(
                        measure_read(what, frame, rows=rows, body_bytes=body_bytes, broker=pid, runs=runs)
                    )
                if has_idle:
                    yield render_idle(_measure_idle(spark, servers, queue_count))
            finally:
                spark.stop()


def _measure_idle(spark: SparkSession, servers: Servers, queue_count: int) -> IdleCost:
    def send_one() -> None:
        fill_topic(servers.broker.address, IDLE_TOPIC, rows=1, body_bytes=64, queue_count=queue_count)

    send_one()
    stream = follow_topic(spark, servers.name_server.address, IDLE_TOPIC)
    return measure_idle("tandemmq", stream, send_one)


def render_read(cost: ReadCost) -> str:
    return (
        f"{cost.rows:,} rows of {cost.body_bytes} B, {cost.what}: {cost.rows_per_second:,.0f} rows/s, "
        f"{cost.mib_per_second:,.0f} MiB/s of bodies; processor time per row: "
        f"broker {cost.broker_us:.2f} us, Spark {cost.spark_us:.2f} us"
    )


def render_idle(cost: IdleCost) -> str:
    return (
        f"micro-batch of one message, {cost.what}: median {cost.median_ms:.0f} ms, best {cost.best_ms:.0f} ms"
    )
