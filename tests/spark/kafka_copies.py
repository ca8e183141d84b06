"""Copies a topic from a Kafka broker to ours and back, as in docs/coming-from-kafka.md, and compares them.

Runs as a separate process, because Java needs the jars of Spark's Kafka source at its start: `python
kafka_copies.py DOCUMENT JAR_CACHE DIRECTORY` prints the content of each side.
"""

from __future__ import annotations

import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_cluster import start_cluster

from bench.java.clusters import fetch_jars
from bench.kafka.broker import BROKER, SOURCE, running_kafka
from tandemmq.client import BlockingAdmin
from tandemmq.spark.session import build_session

QUEUES = 3
ROWS = 90
TOMBSTONES = 5
SHAPE = ("partition", "CAST(key AS STRING)", "CAST(value AS STRING)", "CAST(headers AS STRING)")


def main(document: Path, cache: Path, directory: Path) -> None:
    source = fetch_jars(cache, "kafka-source", SOURCE, has_dependencies=False)
    broker = fetch_jars(cache, "kafka-broker", BROKER, has_dependencies=True)
    running_ours = contextmanager(start_cluster)(directory)
    running_theirs = running_kafka(broker, directory / "kafka", partition_count=QUEUES)
    with running_ours as cluster, running_theirs as (kafka, _):
        with BlockingAdmin(cluster.namesrv) as admin:
            admin.create_topic("orders", queue_count=QUEUES)
        settings = {"spark.driver.extraClassPath": ":".join(map(str, source))}
        spark = build_session("copies", "local[2]", log_file=directory / "spark.log", settings=settings)
        try:
            fill(spark, kafka)
            text = document.read_text().replace("127.0.0.1:9092", kafka)
            text = text.replace("127.0.0.1:9876", cluster.namesrv).replace("/data/", f"{directory}/")
            blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
            copying = [block for block in blocks if "kafka.bootstrap.servers" in block]
            for block in copying:
                exec(compile(block, str(document), "exec"), {"spark": spark})
            compare(spark, kafka, cluster.namesrv)
        finally:
            spark.stop()
    print(f"COPIED blocks={len(copying)}")


def fill(spark: Any, kafka: str) -> None:
    """Writes rows with and without headers, rows without a key, and tombstones."""
    rows = spark.range(ROWS + TOMBSTONES).selectExpr(
        f"CAST(id % {QUEUES} AS int) AS partition",
        "CASE WHEN id % 5 > 0 THEN concat('k', id) END AS key",
        f"CASE WHEN id < {ROWS} THEN concat('v', id) END AS value",
        "CASE WHEN id % 2 = 0 THEN "
        "array(named_struct('key', 'h', 'value', CAST(CAST(id AS string) AS binary))) END AS headers",
    )
    options = {"kafka.bootstrap.servers": kafka, "topic": "orders"}
    rows.write.format("kafka").options(**options).mode("append").save()


def compare(spark: Any, kafka: str, name_server: str) -> None:
    """Checks that our topic and its copy in Kafka have the original rows, except the tombstones."""

    def rows(frame: Any) -> list[tuple[Any, ...]]:
        found = frame.option("includeHeaders", "true").load().where("value IS NOT NULL").selectExpr(*SHAPE)
        return sorted((tuple(row) for row in found.collect()), key=lambda row: row[2])

    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka)
    first = rows(reader.option("subscribe", "orders"))
    ours = rows(spark.read.format("tandemmq_kafka").options(nameServer=name_server, subscribe="orders"))
    back = rows(reader.option("subscribe", "orders-copy"))
    assert len(first) == ROWS, len(first)
    assert ours == first, (ours[:3], first[:3])
    assert back == first, (back[:3], first[:3])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
