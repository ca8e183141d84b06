"""Tests the exactly-once sink against real brokers: replays, kills of driver and master, equal counts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from spark_cluster import Cluster
from spark_lakes import count_offsets, follow_topic, forget_last_commit, read_topic

from tandemmq.errors import TandemError
from waits import until_blocking

WAIT_S = 300.0

COPY = """
import json
import sys
from pathlib import Path
from tandemmq.spark.pipelines.runner import open_session

namesrv, checkpoint, source, sink = sys.argv[1:]
with open_session("copy", "local[2]", Path(checkpoint + ".log")) as (spark, _):
    stream = spark.readStream.format("tandemmq").options(
        nameServer=namesrv, topic="From", startingOffsets="earliest", columns="body", **json.loads(source)
    ).load()
    query = stream.writeStream.format("tandemmq").options(
        nameServer=namesrv, topic="To", checkpointLocation=checkpoint, mode="exactly-once", **json.loads(sink)
    ).trigger(availableNow=True).start()
    query.awaitTermination()
"""

CUTS = {"maxOffsetsPerTrigger": "400", "maxRecordsPerPartition": "100", "packRecords": "0"}


def check_copy(spark: Any, cluster: Any, topic: str, sent: list[bytes], scratch: Path) -> None:
    """Checks that Spark, pyarrow and the brokers' offsets count each body once."""
    frame = read_topic(spark, cluster.namesrv, topic, columns="body,msgId")
    frame.write.parquet(str(scratch))
    table = pq.read_table(scratch)
    assert sorted(table["body"].to_pylist()) == sorted(sent)
    assert pc.count_distinct(table["msgId"]).as_py() == len(sent)
    assert frame.count() == table.num_rows == count_offsets(cluster.namesrv, topic) == len(sent)


def copy_stream(
    spark: Any,
    cluster: Cluster,
    topics: tuple[str, str],
    checkpoint: Path,
    *,
    source: Mapping[str, str] = CUTS,
    mode: str = "exactly-once",
    **options: str,
) -> Any:
    """Starts the query that copies one topic to another, some hundred messages at a time."""
    known = {"topic": topics[0], "columns": "body", **source}
    stream = follow_topic(spark, cluster.namesrv, known.pop("topic"), **known)
    return (
        stream.writeStream.format("tandemmq")
        .options(nameServer=cluster.namesrv, topic=topics[1], checkpointLocation=str(checkpoint))
        .options(mode=mode, **options)
        .trigger(availableNow=True)
        .start()
    )


def test_batches_that_are_replayed_are_stored_once(spark: Any, cluster: Any, tmp_path: Path) -> None:
    sent = cluster.send("OnceFrom", 700)
    topics = ("OnceFrom", "OnceTo")
    copy_stream(spark, cluster, topics, tmp_path / "c").awaitTermination()
    assert count_offsets(cluster.namesrv, "OnceTo") == 700
    # Simulates a crash between the sends and Spark's own log of the batch, then with other batch sizes.
    for options in ({}, {"batchBytes": "700"}, {"inFlight": "1", "taskRowsPerSecond": "2000", "group": "g"}):
        forget_last_commit(tmp_path / "c")
        copy_stream(spark, cluster, topics, tmp_path / "c", **options).awaitTermination()
    check_copy(spark, cluster, "OnceTo", sent, tmp_path / "read")


CHANGES: list[dict[str, str]] = [
    {"maxRecordsPerPartition": "33", "packRecords": "0"},
    {"maxRecordsPerPartition": "0", "packRecords": "20000"},
    {"minPartitions": "7"},
    {"startingTimestamp": "now", "maxOffsetsPerTrigger": "5", "failOnDataLoss": "false"},
    {"topic": "OnceFrom2,OnceOther", "readFrom": "prefer-slave", "group": "g"},
    {"arrowRows": "9", "pullBatchSize": "3", "decompress": "false", "verifyCrc": "true"},
    {"columns": "body,tags", "propertiesAs": "string"},
]
"""Options of the source that replace the original ones before a batch is repeated."""


def test_batches_that_are_replayed_under_other_options_are_stored_once(
    spark: Any, cluster: Any, tmp_path: Path
) -> None:
    sent = cluster.send("OnceFrom2", 700)
    topics = ("OnceFrom2", "OnceTo2")
    copy_stream(spark, cluster, topics, tmp_path / "c").awaitTermination()
    rows_per_batch = "spark.sql.execution.arrow.maxRecordsPerBatch"
    for changed in CHANGES:
        forget_last_commit(tmp_path / "c")
        spark.conf.set(rows_per_batch, "17")
        try:
            copy_stream(spark, cluster, topics, tmp_path / "c", source={**CUTS, **changed}).awaitTermination()
        finally:
            spark.conf.unset(rows_per_batch)
        assert count_offsets(cluster.namesrv, "OnceTo2") == 700, changed
    # The offsets of a release that stored no packing.
    forget_last_commit(tmp_path / "c")
    forget_plans(tmp_path / "c")
    copy_stream(spark, cluster, topics, tmp_path / "c").awaitTermination()
    check_copy(spark, cluster, "OnceTo2", sent, tmp_path / "read")
    forget_last_commit(tmp_path / "c")
    refused: list[tuple[str, dict[str, str]]] = [
        ("tags or filter differs", {"tags": "a"}),
        ("tags or filter differs", {"filter": "TAGS = 'a'"}),
    ]
    for reason, source in refused:
        query = copy_stream(spark, cluster, topics, tmp_path / "c", source={**CUTS, **source})
        with pytest.raises(Exception, match=reason):
            query.awaitTermination()
    assert count_offsets(cluster.namesrv, "OnceTo2") == 700


def test_at_least_once_a_batch_that_is_replayed_under_other_options_keeps_its_keys(
    spark: Any, cluster: Any, tmp_path: Path
) -> None:
    sent = cluster.send("KeptFrom", 300)
    topics, checkpoint = ("KeptFrom", "KeptTo"), tmp_path / "c"
    changes = ({}, {"maxRecordsPerPartition": "33", "minPartitions": "7"}, {"packRecords": "20000"})
    for number, changed in enumerate(changes):
        if number:
            forget_last_commit(checkpoint)
        source = {**CUTS, **changed}
        copy_stream(
            spark,
            cluster,
            topics,
            checkpoint,
            source=source,
            mode="at-least-once",
            batchBytes=f"{number + 1}k",
        ).awaitTermination()
    rows = read_topic(spark, cluster.namesrv, "KeptTo", columns="msgId,body").collect()
    assert len(rows) == 300 * len(changes)
    keys = {(row.msgId, bytes(row.body)) for row in rows}
    assert len(keys) == len({key for key, _ in keys}) == 300
    assert sorted(body for _, body in keys) == sorted(sent)
    forget_last_commit(checkpoint)
    for mode in ("exactly-once", "transactional"):
        with pytest.raises(Exception, match="option semantics: the query began with 'at-least-once'"):
            copy_stream(spark, cluster, topics, checkpoint, mode=mode).awaitTermination()
    assert count_offsets(cluster.namesrv, "KeptTo") == 300 * len(changes)


def forget_plans(checkpoint: Path) -> None:
    """Removes the packing from the offsets of a query."""
    for path in (checkpoint / "offsets").iterdir():
        if path.name.isdecimal():
            version, facts, offset = path.read_text().split("\n")
            document = json.loads(offset)
            del document["plan"]
            path.write_text("\n".join([version, facts, json.dumps(document)]))
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


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
    kill_copy(own_cluster, tmp_path / "c", 500, CUTS, {"batchBytes": "1k"})
    query = copy_stream(spark, own_cluster, ("From", "To"), tmp_path / "c", batchBytes="1k")
    try:
        wait_until_copied(own_cluster, 2500, lambda: query.isActive)
        own_cluster.master.kill()
        own_cluster.master.start()
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    check_copy(spark, own_cluster, "To", sent, tmp_path / "read")


def test_a_batch_that_is_killed_inside_is_finished_once_under_other_options(
    spark: Any, own_cluster: Cluster, tmp_path: Path
) -> None:
    sent = own_cluster.send("From", 6000)
    slowly = {"taskRowsPerSecond": "400", "batchBytes": "1k"}
    first = {"maxRecordsPerPartition": "700", "packRecords": "0"}
    for count, source in ((500, first), (1500, {"minPartitions": "3"})):
        kill_copy(own_cluster, tmp_path / "c", count, source, slowly)
        assert [path.name for path in (tmp_path / "c" / "offsets").glob("[0-9]*")] == ["0"]
        assert not list((tmp_path / "c" / "commits").glob("[0-9]*"))
    # With the defaults.
    query = copy_stream(spark, own_cluster, ("From", "To"), tmp_path / "c", source={})
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    check_copy(spark, own_cluster, "To", sent, tmp_path / "read")


def kill_copy(
    cluster: Cluster, checkpoint: Path, count: int, source: Mapping[str, str], sink: Mapping[str, str]
) -> None:
    """Runs the copy in a separate process, and kills that once `count` messages have been copied."""
    arguments = [cluster.namesrv, str(checkpoint), json.dumps(source), json.dumps(sink)]
    driver = subprocess.Popen([sys.executable, "-c", COPY, *arguments])
    try:
        wait_until_copied(cluster, count, lambda: driver.poll() is None)
    finally:
        driver.kill()
        driver.wait()


def wait_until_copied(cluster: Cluster, count: int, is_copying: Callable[[], bool]) -> None:
    def is_copied() -> bool:
        assert is_copying(), f"it ended before there were {count} messages"
        return count_offsets(cluster.namesrv, "To") >= count

    # The first send creates the topic.
    until_blocking(is_copied, f"{count} messages copied", WAIT_S, not_yet=(TandemError,))
