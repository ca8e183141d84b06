"""Compares the two sources in one Spark session, alternately: the cost of a row, and the cost of a batch of
one message.

Spark fills Kafka's topic from ours, each message with the same queue and the same body, and both are compared
before anything is measured. Kafka's messages have no keys and no headers; ours have a unique id and a tag
each, as every RocketMQ message has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.java.clusters import fetch_jars
from bench.kafka.broker import (
    BROKER,
    BROKER_VERSION,
    SOURCE,
    SOURCE_VERSION,
    running_kafka,
)
from bench.processes import running_servers
from bench.spark_read import (
    SETTINGS,
    ReadCost,
    fill_topic,
    follow_topic,
    measure_idle,
    measure_once,
    read_topic,
    render_idle,
)
from tandemmq.errors import TandemError
from tandemmq.launcher import Server
from tandemmq.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS, KAFKA = "tandemmq", "kafka"
# A busy machine answers late; the figures show that by themselves.
_PATIENCE_MS = "600000"
_READING = {"kafka.request.timeout.ms": _PATIENCE_MS, "kafkaConsumer.pollTimeoutMs": _PATIENCE_MS}
_WRITING = {
    "kafka.request.timeout.ms": _PATIENCE_MS,
    "kafka.delivery.timeout.ms": str(2 * int(_PATIENCE_MS)),
    "kafka.max.block.ms": _PATIENCE_MS,
    # Large batches, as in a producer tuned for throughput: they are also cheaper to read.
    "kafka.batch.size": "262144",
    "kafka.linger.ms": "50",
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns to read from either side."""

    what: str
    ours: str
    kafka: str


COLUMNS = (
    Columns("queue, offset and body", "queueId,queueOffset,body", "partition,offset,value"),
    Columns("the same seven columns", "kafka", "*"),
    Columns("the default columns (12 and 7)", "", "*"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BothBrokers:
    """Addresses and process ids of both brokers."""

    name_server: Server
    broker: Server
    kafka: str
    kafka_pid: int

    @property
    def pids(self) -> frozenset[int]:
        return frozenset([self.broker.pid, self.name_server.pid, self.kafka_pid])


def run_kafka_bench(
    *, rows: dict[int, int], queue_count: int, master: str, runs: int, has_idle: bool, cache: Path
) -> Iterator[str]:
    """Yields lines to print as soon as each is known; `rows` is the number of messages per size in bytes.

    Raises:  TandemError if a jar cannot be downloaded, a broker does not start or the topics differ.
    """
    source_jars = fetch_jars(cache, "kafka-source", SOURCE, has_dependencies=False)
    broker_jars = fetch_jars(cache, "kafka-broker", BROKER, has_dependencies=True)
    settings = {**SETTINGS, "spark.driver.extraClassPath": ":".join(map(str, source_jars))}
    with tempfile.TemporaryDirectory(prefix="tandemmq-bench-") as name:
        directory = Path(name)
        with _running_both(directory, broker_jars, queue_count) as cluster:
            spark = build_session("kafka bench", master, log_file=directory / "spark.log", settings=settings)
            try:
                yield (
                    f"Spark {spark.version}, {master}; Kafka broker {BROKER_VERSION}, Spark's Kafka source "
                    f"{SOURCE_VERSION}; {queue_count} queues; best of {runs} runs, in turns"
                )
                yield HEAD
                for body_bytes, count in rows.items():
                    yield from _compare_size(spark, cluster, body_bytes, count, queue_count, runs)
                if has_idle:
                    yield from _measure_idle(spark, cluster, queue_count)
            finally:
                spark.stop()


def _compare_size(
    spark: SparkSession, cluster: BothBrokers, body_bytes: int, count: int, queue_count: int, runs: int
) -> Iterator[str]:
    """Fills both topics with messages of one size, and reads them with each set of columns."""
    topic = f"Bench{body_bytes}"
    address = cluster.broker.address
    fill_topic(address, topic, rows=count, body_bytes=body_bytes, queue_count=queue_count)
    fill_kafka(spark, cluster, topic)
    check_equal(spark, cluster, topic, count)
    for columns in COLUMNS:
        yield from _measure(spark, cluster, topic, columns, count, body_bytes, runs)


@contextmanager
def _running_both(directory: Path, broker_jars: list[Path], queue_count: int) -> Iterator[BothBrokers]:
    kafka = running_kafka(broker_jars, directory / "kafka", partition_count=queue_count)
    with running_servers(directory) as ours, kafka as (address, pid):
        yield BothBrokers(name_server=ours.name_server, broker=ours.broker, kafka=address, kafka_pid=pid)


def read_kafka(spark: SparkSession, address: str, topic: str) -> DataFrame:
    """Returns Kafka's topic as a table."""
    options = {"kafka.bootstrap.servers": address, "subscribe": topic, **_READING}
    return spark.read.format("kafka").options(**options).load()


def fill_kafka(spark: SparkSession, cluster: BothBrokers, topic: str) -> None:
    """Copies our topic to Kafka's of the same name, which the first message creates."""
    ours = read_topic(spark, cluster.name_server.address, topic, "queueId,queueOffset,body")
    rows = ours.selectExpr("body AS value", "queueId AS partition")
    options = {"kafka.bootstrap.servers": cluster.kafka, "topic": topic, **_WRITING}
    rows.write.format("kafka").options(**options).mode("append").save()


def check_equal(spark: SparkSession, cluster: BothBrokers, topic: str, count: int) -> None:
    """Raises TandemError unless every queue has the same number of equal bodies on both sides."""
    ours = read_topic(spark, cluster.name_server.address, topic, "queueId,queueOffset,body")
    kafka = read_kafka(spark, cluster.kafka, topic)
    digests = [
        sorted(
            map(tuple, frame.groupBy("queue").agg({"body": "count", "sum": "sum", "offset": "max"}).collect())
        )
        for frame in (
            ours.selectExpr("queueId AS queue", "queueOffset AS offset", "body", "crc32(body) AS sum"),
            kafka.selectExpr("partition AS queue", "offset", "value AS body", "crc32(value) AS sum"),
        )
    ]
    found = kafka.count()
    if digests[0] != digests[1] or found != count:
        raise TandemError(f"{topic}: Kafka has {found} of {count} messages, or others: {digests}")


def _measure(
    spark: SparkSession,
    cluster: BothBrokers,
    topic: str,
    columns: Columns,
    count: int,
    body_bytes: int,
    runs: int,
) -> Iterator[str]:
    frames = {
        OURS: (read_topic(spark, cluster.name_server.address, topic, columns.ours), cluster.broker.pid),
        KAFKA: (
            read_kafka(spark, cluster.kafka, topic).selectExpr(*columns.kafka.split(",")),
            cluster.kafka_pid,
        ),
    }
    costs: dict[str, list[ReadCost]] = {side: [] for side in frames}
    # One uncounted read of each: Java compiles frequently run code.
    for run in range(runs + 1):
        for side, (frame, broker) in frames.items():
            cost = measure_once(
                f"{side}, {columns.what}",
                frame,
                rows=count,
                body_bytes=body_bytes,
                broker=broker,
                others=cluster.pids,
            )
            if run:
                costs[side].append(cost)
    best = {side: min(found, key=lambda cost: cost.seconds) for side, found in costs.items()}
    yield render_row(columns.what, best[OURS], best[KAFKA])


HEAD = (
    "| rows | columns | rows/s | Kafka | ratio | processor time per row, brokers included | Kafka | ratio |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|"
)


def render_row(what: str, ours: ReadCost, kafka: ReadCost) -> str:
    """Renders the comparison as a row of the table; both ratios are above 1 where ours is the better one."""
    rates = ours.rows_per_second, kafka.rows_per_second
    ours_us, kafka_us = ours.spark_us + ours.broker_us, kafka.spark_us + kafka.broker_us
    return (
        f"| {ours.body_bytes} B | {what} | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[0] / rates[1]:.2f} "
        f"| {ours_us:.2f} µs | {kafka_us:.2f} µs | {kafka_us / max(ours_us, 1e-9):.2f} |"
    )


def _measure_idle(spark: SparkSession, cluster: BothBrokers, queue_count: int) -> Iterator[str]:
    topic = "BenchIdle"

    def send_ours() -> None:
        fill_topic(cluster.broker.address, topic, rows=1, body_bytes=64, queue_count=queue_count)

    send_ours()
    stream = follow_topic(spark, cluster.name_server.address, topic)
    yield render_idle(measure_idle(OURS, stream, send_ours))
    with _kafka_producer(spark, cluster.kafka, topic) as send_kafka:
        send_kafka()
        options = {
            "kafka.bootstrap.servers": cluster.kafka,
            "subscribe": topic,
            "startingOffsets": "earliest",
        }
        reader = spark.readStream.format("kafka").options(**options, **_READING)
        yield render_idle(measure_idle(KAFKA, reader.load().selectExpr("offset", "value"), send_kafka))


@contextmanager
def _kafka_producer(spark: SparkSession, address: str, topic: str) -> Iterator[Callable[[], None]]:
    """Sends one message and waits for its acknowledgement, with Kafka's own client in Spark's Java."""
    java: Any = spark._jvm
    settings = java.java.util.HashMap()
    for key, value in {
        "bootstrap.servers": address,
        "key.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
        "value.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
    }.items():
        settings.put(key, value)
    clients = java.org.apache.kafka.clients.producer
    producer = clients.KafkaProducer(settings)
    try:
        yield lambda: producer.send(clients.ProducerRecord(topic, bytearray(64))).get()
    finally:
        producer.close()
