"""Reads a topic on a standalone cluster with WORKERS workers, and reports begin and end on standard output.

Usage: read_timed.py MASTER NAME_SERVER TOPIC WORKERS
"""

from __future__ import annotations

import sys
import time

from tandemmq.spark.session import build_session
from waits import until_blocking

MASTER, NAME_SERVER, TOPIC, WORKERS = sys.argv[1:]

spark = build_session(
    f"{WORKERS} workers",
    MASTER,
    settings={
        "spark.cores.max": WORKERS,
        "spark.executor.cores": "1",
        "spark.executor.memory": "512m",
        "spark.locality.wait": "0s",
    },
)
java = spark.sparkContext._jsc.sc()
until_blocking(
    lambda: java.getExecutorMemoryStatus().size() == 1 + int(WORKERS), f"{WORKERS} executors", 240.0
)


def read(topic: str) -> None:
    source = spark.read.format("tandemmq").options(nameServer=NAME_SERVER, topic=topic, packRecords="0")
    source.option("columns", "queueId,body").load().write.format("noop").mode("overwrite").save()


# Every executor has started its Python, classes and connection before the clock runs.
read(f"{TOPIC}Small")
print("begun", flush=True)
begun = time.monotonic()
read(TOPIC)
print(f"ended {time.monotonic() - begun:.3f}", flush=True)
spark.stop()
