"""The exactly-once sink against real brokers: replays, kills of driver and master, counts that agree."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from spark_cluster import Cluster, start_cluster

from tandemmq.errors import TandemError
from tandemmq.spark.metadata import Cluster as Brokers
from tandemmq.spark.options import parse_options

WAIT_S = 120.0

COPY = """
import sys
from pathlib import Path
from tandemmq.spark.pipelines.sessions import open_session

namesrv, checkpoint = sys.argv[1:]
with open_session("copy", "local[2]", Path(checkpoint + ".log")) as (spark, _):
    stream = spark.readStream.format("tandemmq").options(
        nameServer=namesrv, topic="From", startingOffsets="earliest", columns="body",
        maxOffsetsPerTrigger="400", maxRecordsPerPartition="100", packRecords="0",
    ).load()
    query = stream.writeStream.format("tandemmq").options(
        nameServer=namesrv, topic="To", checkpointLocation=checkpoint, mode="exactly-once", batchBytes="1k",
    ).trigger(availableNow=True).start()
    query.awaitTermination()
"""


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose processes a test may kill."""
    yield from start_cluster(tmp_path)


def count_offsets(cluster: Any, topic: str) -> int:
    """What the brokers' queues say."""
    raw = {"nameserver": cluster.namesrv, "topic": topic}
    metadata = Brokers(parse_options(raw, is_streaming=False))
    bounds = metadata.read_bounds(metadata.describe())
    return sum(bound.end - bound.begin for bound in bounds.values())


def check_copy(spark: Any, cluster: Any, topic: str, sent: list[bytes], scratch: Path) -> None:
    """Spark, pyarrow and the brokers' offsets agree: each body once."""
    options = {"nameServer": cluster.namesrv, "topic": topic, "startingOffsets": "earliest"}
    frame = spark.read.format("tandemmq").options(**options, columns="body,msgId").load()
    frame.write.parquet(str(scratch))
    table = pq.read_table(scratch)
    assert sorted(table["body"].to_pylist()) == sorted(sent)
    assert pc.count_distinct(table["msgId"]).as_py() == len(sent)
    assert frame.count() == table.num_rows == count_offsets(cluster, topic) == len(sent)


def copy_stream(spark: Any, cluster: Any, checkpoint: Path, **options: str) -> Any:
    stream = (
        spark.readStream.format("tandemmq")
        .options(nameServer=cluster.namesrv, topic="OnceFrom", startingOffsets="earliest", columns="body")
        .options(maxOffsetsPerTrigger="300", maxRecordsPerPartition="80", packRecords="0")
        .load()
    )
    return (
        stream.writeStream.format("tandemmq")
        .options(nameServer=cluster.namesrv, topic="OnceTo", checkpointLocation=str(checkpoint))
        .options(mode="exactly-once", **options)
        .trigger(availableNow=True)
        .start()
    )


def test_batches_that_are_replayed_are_stored_once(spark: Any, cluster: Any, tmp_path: Path) -> None:
    sent = cluster.send("OnceFrom", 700)
    copy_stream(spark, cluster, tmp_path / "c").awaitTermination()
    assert count_offsets(cluster, "OnceTo") == 700
    # As after a crash between the sends and Spark's own log of the batch; then with other cuts of the rows.
    for options in ({}, {"batchBytes": "700"}):
        commits = tmp_path / "c" / "commits"
        newest = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        for path in (commits / str(newest), commits / f".{newest}.crc"):
            path.unlink(missing_ok=True)
        copy_stream(spark, cluster, tmp_path / "c", **options).awaitTermination()
    check_copy(spark, cluster, "OnceTo", sent, tmp_path / "read")


def test_a_batch_write_that_is_repeated_is_stored_once(spark: Any, cluster: Any, tmp_path: Path) -> None:
    frame = spark.range(500, numPartitions=2).selectExpr(
        "concat('n', id) AS body", "'OnceBatch' AS topic", "if(id % 100 = 7, 1, 0) AS delayLevel"
    )
    for _ in range(2):
        writer = frame.write.format("tandemmq").options(nameServer=cluster.namesrv, mode="exactly-once")
        writer = writer.options(topics="OnceBatch", writeId="w1", stateDir=str(tmp_path / "state"))
        writer.mode("append").save()
    deadline = time.monotonic() + WAIT_S
    while count_offsets(cluster, "OnceBatch") < 500 and time.monotonic() < deadline:
        time.sleep(0.1)
    check_copy(spark, cluster, "OnceBatch", [b"n%d" % n for n in range(500)], tmp_path / "read")


def test_kills_of_driver_and_master_double_and_lose_nothing(
    spark: Any, own_cluster: Cluster, tmp_path: Path
) -> None:
    sent = own_cluster.send("From", 8000)
    command = [sys.executable, "-c", COPY, own_cluster.namesrv, str(tmp_path / "c")]
    driver = subprocess.Popen(command)
    try:
        wait_until_copied(own_cluster, driver, 500)
        driver.kill()
        driver.wait()
        driver = subprocess.Popen(command)
        wait_until_copied(own_cluster, driver, 2500)
        own_cluster.master.kill()
        own_cluster.master.start()
        assert driver.wait(WAIT_S) == 0
    finally:
        driver.kill()
        driver.wait()
    check_copy(spark, own_cluster, "To", sent, tmp_path / "read")


def wait_until_copied(cluster: Cluster, driver: subprocess.Popen[bytes], count: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and driver.poll() is None:
        try:
            if count_offsets(cluster, "To") >= count:
                return
        except TandemError:  # the topic is made by the first send
            time.sleep(0.2)
        time.sleep(0.02)
    raise AssertionError(f"not {count} messages in time; the driver's exit code is {driver.poll()}")
