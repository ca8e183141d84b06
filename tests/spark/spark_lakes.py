"""Helpers: topics as tables, streams and lakes in the shared session, message counts, a simulated crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandemmq.spark.lake.sink import SINK_NAME
from tandemmq.spark.metadata import QueriedCluster as Brokers
from tandemmq.spark.options import parse_options


def read_topic(spark: Any, namesrv: str, topic: str, **options: str) -> Any:
    """Returns the topic as a table, from its first message."""
    return spark.read.format("tandemmq").options(nameServer=namesrv, topic=topic, **options).load()


def follow_topic(spark: Any, namesrv: str, topic: str, **options: str) -> Any:
    """Returns the topic as a stream, from its first message."""
    known = {"nameServer": namesrv, "topic": topic, "startingOffsets": "earliest"}
    return spark.readStream.format("tandemmq").options(**known, **options).load()


def land(stream: Any, out: Path, **options: str) -> None:
    """Lands all current messages in the lake `out`, which contains its checkpoint, as the pipelines do."""
    writer = stream.writeStream.format(SINK_NAME).options(**options)
    writer = writer.option("checkpointLocation", str(out / "_checkpoint")).trigger(availableNow=True)
    writer.start(str(out)).awaitTermination()


def forget_last_commit(checkpoint: Path) -> None:
    """Simulates that Spark was killed after writing the last batch and before logging it: it will repeat the
    batch.
    """
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)


def count_offsets(namesrv: str, topic: str) -> int:
    """Returns the number of messages in the brokers' queues.

    Raises:  TandemError if the topic does not exist yet.
    """
    brokers = Brokers(parse_options({"nameserver": namesrv, "topic": topic}, is_streaming=False))
    return sum(bound.end - bound.begin for bound in brokers.read_bounds(brokers.describe()).values())
