"""`tandemmq bench spark`: a broker, a topic, a Spark session, and the lines that tell what reading cost."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tandemmq.bench.spark_read import (
    IdleCost,
    ReadCost,
    fill_topic,
    follow_topic,
    measure_idle,
    measure_read,
    read_topic,
)
from tandemmq.launcher import Server, stopping, write_properties
from tandemmq.spark.session import build_session

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
        name_server = Server(
            "name server",
            ["namesrv", "--set", "listenPort=0", "--set", "bindAddress=127.0.0.1"],
            directory / "namesrv.log",
        )
        with stopping([name_server]):
            name_server.start()
            conf = write_properties(
                directory / "broker.conf",
                {
                    "namesrvAddr": name_server.address,
                    "brokerName": "bench",
                    "brokerIP1": "127.0.0.1",
                    "bindAddress": "127.0.0.1",
                    "listenPort": 0,
                    "storePathRootDir": directory / "store",
                },
            )
            broker = Server("broker", ["broker", "-c", str(conf)], directory / "broker.log")
            with stopping([broker]):
                broker.start()
                fill_topic(broker.address, TOPIC, rows=rows, body_bytes=body_bytes, queue_count=queue_count)
                spark = build_session(
                    "tandemmq bench", master, log_file=directory / "spark.log", settings=SETTINGS
                )
                try:
                    for what, columns in COLUMN_SETS:
                        frame = read_topic(spark, name_server.address, TOPIC, columns)
                        yield render_read(
                            measure_read(
                                what,
                                frame,
                                rows=rows,
                                body_bytes=body_bytes,
                                broker=broker.pid,
                                runs=runs,
                            )
                        )
                    if has_idle:
                        fill_topic(broker.address, IDLE_TOPIC, rows=4, body_bytes=64, queue_count=queue_count)

                        def send_one() -> None:
                            fill_topic(
                                broker.address, IDLE_TOPIC, rows=1, body_bytes=64, queue_count=queue_count
                            )

                        stream = follow_topic(spark, name_server.address, IDLE_TOPIC)
                        yield render_idle(measure_idle("tandemmq", stream, send_one))
                finally:
                    spark.stop()


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
