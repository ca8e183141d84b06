"""Tests that rows of real DataFrames and streams become messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def _read(spark: Any, cluster: Any, topic: str) -> Any:
    options = {"nameServer": cluster.namesrv, "topic": topic, "startingOffsets": "earliest"}
    return spark.read.format("tandemmq").options(**options).load()


def _sink(frame: Any, cluster: Any, **options: str) -> Any:
    return frame.write.format("tandemmq").options(nameServer=cluster.namesrv, **options)


def test_a_frame_becomes_messages(spark: Any, cluster: Any) -> None:
    frame = spark.range(2000, numPartitions=2).selectExpr(
        "concat('n', id) AS value",
        "if(id % 2 = 0, 'even', 'odd') AS tags",
        "concat('k', id) AS keys",
        "cast(id % 5 AS string) AS shardingKey",
        "map('id', cast(id AS string)) AS properties",
    )
    _sink(frame, cluster, topic="SinkBatch", batchBytes="16k").mode("append").save()
    rows = _read(spark, cluster, "SinkBatch").collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(b"n%d" % n for n in range(2000))
    assert len({row.msgId for row in rows}) == 2000
    queues: dict[str, set[int]] = {}
    order: dict[int, list[int]] = {}
    for row in sorted(rows, key=lambda row: (row.queueId, row.queueOffset)):
        number = int(row.properties["id"])
        assert (row.tags, row["keys"]) == ("odd" if number % 2 else "even", f"k{number}")
        queues.setdefault(row.properties["__SHARDINGKEY"], set()).add(row.queueId)
        if number < 1000:
            order.setdefault(row.queueId, []).append(number)
    assert all(len(ids) == 1 for ids in queues.values())
    assert all(numbers == sorted(numbers) for numbers in order.values())


@pytest.mark.long
def test_a_stream_repeats_a_batch_with_the_same_keys(spark: Any, cluster: Any, tmp_path: Path) -> None:
    cluster.send("SinkFrom", 300)

    def run() -> None:
        query = (
            spark.readStream.format("tandemmq")
            .options(nameServer=cluster.namesrv, topic="SinkFrom", startingOffsets="earliest")
            .option("columns", "body,tags,properties")
            .load()
            .writeStream.format("tandemmq")
            .options(nameServer=cluster.namesrv, topic="SinkTo", checkpointLocation=str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    # Simulates a crash between the sends and Spark's own log of the batch.
    for path in (tmp_path / "c" / "commits").iterdir():
        path.unlink()
    run()
    rows = _read(spark, cluster, "SinkTo").select("msgId", "body").collect()
    assert len(rows) == 600
    assert len({(row.msgId, bytes(row.body)) for row in rows}) == 300
    assert len({row.msgId for row in rows}) == 300


@pytest.mark.long
def test_arrays_of_keys_and_rows_without_a_body(spark: Any, cluster: Any, tmp_path: Path) -> None:
    cluster.send("SinkHoles", 90)
    options = {"nameServer": cluster.namesrv, "topic": "SinkHoles", "startingOffsets": "earliest"}
    stream = spark.readStream.format("tandemmq").options(**options, columns="body,keys").load()
    rows = stream.selectExpr(
        "CASE keys WHEN 'k3' THEN NULL WHEN 'k4' THEN '' ELSE cast(body AS string) END AS body",
        "CASE WHEN keys = 'k5' THEN array('x', NULL, 'y') ELSE array(keys, 'all') END AS keys",
    )

    def follow(name: str, **more: str) -> None:
        options = {"nameServer": cluster.namesrv, "topic": name, **more}
        query = rows.writeStream.format("tandemmq").options(**options)
        query = query.option("checkpointLocation", str(tmp_path / name)).trigger(availableNow=True)
        query.start().awaitTermination()

    follow("SinkSkipped", emptyBodies="skip", semantics="exactly-once")
    follow("SinkDiverted", emptyBodies="divert", emptyBodiesTopic="SinkEmpty")
    for topic in ("SinkSkipped", "SinkDiverted"):
        found = {bytes(row.body): row["keys"] for row in _read(spark, cluster, topic).collect()}
        assert len(found) == 88
        assert found[b'{"n":5}'] == "x y"
        assert found[b'{"n":6}'] == "k6 all"
    empty = {bytes(row.body): row["keys"] for row in _read(spark, cluster, "SinkEmpty").collect()}
    assert empty == {
        b'{"topic": "SinkDiverted", "body": null}': "k3 all",
        b'{"topic": "SinkDiverted", "body": ""}': "k4 all",
    }
    # Columns that are not nullable in Spark have no nulls in Arrow either.
    ordinary = spark.sql(
        "SELECT 'b' AS body, array('k1', 'k2') AS keys UNION ALL SELECT 'c', split('k3,k4', ',')"
    )
    _sink(ordinary, cluster, topic="SinkArrays").mode("append").save()
    assert {row["keys"] for row in _read(spark, cluster, "SinkArrays").collect()} == {"k1 k2", "k3 k4"}


def test_sink_refuses_unsupported_columns_and_modes(spark: Any, cluster: Any) -> None:
    frame = spark.sql("SELECT 'x' AS body")
    delayed = frame.selectExpr("body", "1 AS delayLevel")
    with pytest.raises(Exception, match="drop the column delayLevel"):
        _sink(delayed, cluster, topic="T", semantics="transactional").mode("append").save()
    with pytest.raises(Exception, match="did you mean tags"):
        _sink(frame.selectExpr("body", "'a' AS tag"), cluster, topic="T").mode("append").save()
    with pytest.raises(Exception, match="can only be added"):
        _sink(frame, cluster, topic="T").mode("overwrite").save()
