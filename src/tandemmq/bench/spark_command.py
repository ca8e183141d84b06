"""`tandemmq bench spark`: a broker, a topic, a Spark session, and the lines that tell what reading cost."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tandemmq.bench.servers import Servers, running_servers
from tandemmq.bench.spark_read import (
    IdleCost,
    ReadCost,
    fill_topic,
    follow_topic,
    measure_idle,
    measure_read,
    read_topic,
)
from tandemmq.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "BenchSpark"
IDLE_TOPIC = "BenchSparkIdle"
# Java as it comes: our own sessions are set up for a quick start, at a price per row.
SETTINGS = {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC", "spark.log.level": "WARN"}
COLUMN_SETS = (("queueId, queueOffset, body", "queueId,queueOffset,body"), ("all 18 columns", ""))


def run_spark_bench(
    *, rows: int, body_bytes: int, queue_count: int, master: str, runs: int, has_idle: bool
) -> Iterator[str]:
    """Lines to print, each as soon as it is known."""
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
