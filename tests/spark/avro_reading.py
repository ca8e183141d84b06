"""Reads Avro bodies with Spark's own functions, as in docs/spark/landing.md, and compares them.

Runs as a separate process, because Java needs the jar of Spark's Avro package at its start: `python
avro_reading.py DOCUMENT JAR_CACHE DIRECTORY` prints the number of rows that it read.
"""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import fastavro
from spark_cluster import start_cluster

from bench.java.clusters import fetch_jars
from bench.kafka.broker import SOURCE_VERSION
from tandemmq.client import BlockingProducer
from tandemmq.protocol.message import Message
from tandemmq.spark.session import build_session

JAR: Final = f"org.apache.spark:spark-avro_2.13:{SOURCE_VERSION}"
SCHEMA: Final = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "number", "type": "long"}, {"name": "article", "type": ["null", "string"]}],
}
ORDERS: Final = [{"number": n, "article": None if n % 3 == 0 else f"article {n}"} for n in range(50)]
REGISTRY_HEADER: Final = b"\x00\x00\x00\x00\x07"


def main(document: Path, cache: Path, directory: Path) -> None:
    jars = fetch_jars(cache, "spark-avro", (JAR,), has_dependencies=False)
    (directory / "order.avsc").write_text(json.dumps(SCHEMA))
    with contextmanager(start_cluster)(directory) as cluster:
        with BlockingProducer("avro", cluster.namesrv) as producer:
            for topic, header in (("AvroOrders", b""), ("RegistryOrders", REGISTRY_HEADER)):
                for order in ORDERS:
                    producer.send(Message(topic=topic, body=header + encode(order)))
        settings = {"spark.driver.extraClassPath": ":".join(map(str, jars))}
        spark = build_session("avro", "local[2]", log_file=directory / "spark.log", settings=settings)
        try:
            text = document.read_text().replace("127.0.0.1:9876", cluster.namesrv)
            blocks = re.findall(r"```python\n(.*?)```", text.replace("/data/", f"{directory}/"), re.DOTALL)
            (block,) = [block for block in blocks if "from_avro" in block]
            scope: dict[str, Any] = {"spark": spark}
            exec(compile(block, str(document), "exec"), scope)
            for name in ("plain", "behind_header"):
                rows = [row.order.asDict() for row in scope[name].collect()]
                assert sorted(rows, key=lambda row: row["number"]) == ORDERS, rows[:3]
        finally:
            spark.stop()
    print(f"READ rows={2 * len(ORDERS)}")


def encode(order: dict[str, Any]) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, SCHEMA, order)
    return written.getvalue()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
