"""The exactly-once sink against real brokers: replays, kills of driver and master, counts that agree."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
from spark_cluster import Cluster
from spark_lakes import count_offsets, follow_topic, forget_last_commit, read_topic

from tandemmq.errors import TandemError
from waits import until_blocking

WAIT_S = 300.0

COPY = """
import sys
from pathlib import Path
from tandemmq.spark.pipelines.runner import open_session

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


def check_copy(spark: Any, cluster: Any, topic: str, sent: list[bytes], scratch: Path) -> None:
    """Spark, pyarrow and the brokers' offsets agree: each body once."""
    frame = read_topic(spark, cluster.namesrv, topic, columns="body,msgId")
    frame.write.parquet(str(scratch))
    table = pq.read_table(scratch)
    assert sorted(table["body"].to_pylist()) == sorted(sent)
    assert pc.count_distinct(table["msgId"]).as_py() == len(sent)
    assert frame.count() == table.num_rows == count_offsets(cluster.namesrv, topic) == len(sent)


def copy_stream(
    spark: Any, cluster: Cluster, topics: tuple[str, str], checkpoint: Path, **options: str
) -> Any:
    """The running query that copies one topic to another, some hundred messages at a time."""
    cuts = {"maxOffsetsPerTrigger": "400", "maxRecordsPerPartition": "100", "packRecords": "0"}
    stream = follow_topic(spark, cluster.namesrv, topics[0], columns="body", **cuts)
    return (
        stream.writeStream.format("tandemmq")
        .options(nameServer=cluster.namesrv, topic=topics[1], checkpointLocation=str(checkpoint))
        .options(mode="exactly-once", **options)
        .trigger(availableNow=True)
        .start()
    )


def test_batches_that_are_replayed_are_stored_once(spark: Any, cluster: Any, tmp_path: Path) -> None:
    sent = cluster.send("OnceFrom", 700)
    topics = ("OnceFrom", "OnceTo")
    copy_stream(spark, cluster, topics, tmp_path / "c").awaitTermination()
    assert count_offsets(cluster.namesrv, "OnceTo") == 700
    # As after a crash between the sends and Spark's own log of the batch; then with other cuts of the rows.
    for options in ({}, {"batchBytes": "700"}):
        forget_last_commit(tmp_path / "c")
        copy_stream(spark, cluster, topics, tmp_path / "c", **options).awaitTermination()
    check_copy(spark, cluster, "OnceTo", sent, tmp_path / "read")


def test_a_batch_write_that_is_repeated_is_stored_once(spark: Any, cluster: Any, tmp_path: Path) -> None:
    frame = spark.range(500, numPartitions=2).selectExpr(
        "concat('n', id) AS body", "'OnceBatch' AS topic", "if(id % 100 = 7, 1, 0) AS delayLevel"
    )
    for _ in range(2):
        writer = frame.write.format("tandemmq").options(nameServer=cluster.namesrv, mode="exactly-once")
        writer = writer.options(topics="OnceBatch", writeId="w1", stateDir=str(tmp_path / "state"))
        writer.mode("append").save()
    # Five of them are delayed by a second.
    until_blocking(lambda: count_offsets(cluster.namesrv, "OnceBatch") >= 500, timeout_s=WAIT_S)
    check_copy(spark, cluster, "OnceBatch", [b"n%d" % n for n in range(500)], tmp_path / "read")


def test_kills_of_driver_and_master_double_and_lose_nothing(
    spark: Any, own_cluster: Cluster, tmp_path: Path
) -> None:
    sent = own_cluster.send("From", 6000)
    driver = subprocess.Popen([sys.executable, "-c", COPY, own_cluster.namesrv, str(tmp_path / "c")])
    try:
        wait_until_copied(own_cluster, 500, lambda: driver.poll() is None)
    finally:
        driver.kill()
        driver.wait()
    query = copy_stream(spark, own_cluster, ("From", "To"), tmp_path / "c", batchBytes="1k")
    try:
        wait_until_copied(own_cluster, 2500, lambda: query.isActive)
        own_cluster.master.kill()
        own_cluster.master.start()
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    check_copy(spark, own_cluster, "To", sent, tmp_path / "read")


def wait_until_copied(cluster: Cluster, count: int, is_copying: Callable[[], bool]) -> None:
    def is_copied() -> bool:
        assert is_copying(), f"it ended before there were {count} messages"
        return count_offsets(cluster.namesrv, "To") >= count

    # The topic is made by the first send.
    until_blocking(is_copied, f"{count} messages copied", WAIT_S, not_yet=(TandemError,))
