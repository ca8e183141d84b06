"""Rollup, history and parsed bodies: each message counted once, at any seam."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pipeline_recorder import Recorder
from spark_lakes import forget_last_commit, land

from tandemmq.client import BlockingProducer
from tandemmq.protocol.message import Message
from tandemmq.spark.pipelines.events import Stopped
from tandemmq.spark.pipelines.history import FROM_COLUMN, HistoryOptions, history, run_history
from tandemmq.spark.pipelines.json_bodies import BAD_COLUMN, infer_schema, parse_bodies
from tandemmq.spark.pipelines.rollup import make_stream
from tandemmq.spark.pipelines.rollup_table import read_rollup


def _source(cluster: Any, topic: str, **more: str) -> dict[str, str]:
    return {"nameServer": cluster.namesrv, "subscribe": topic, "startingOffsets": "earliest", **more}


def test_a_rollup_counts_each_message_once_though_a_batch_is_repeated(
    lake_spark: Any, cluster: Any, tmp_path: Path
) -> None:
    bodies = cluster.send("Rolled", 900)
    source = _source(cluster, "Rolled", maxOffsetsPerTrigger="400")
    land(make_stream(lake_spark, source, live_since_ms=0), tmp_path)
    forget_last_commit(tmp_path / "_checkpoint")
    bodies += cluster.send("Rolled", 100, first=900)
    land(make_stream(lake_spark, source, live_since_ms=None), tmp_path)
    rows = read_rollup(tmp_path)
    assert {row.tag: 0 for row in rows} == {"a": 0, "b": 0}
    assert sum(row.messages for row in rows) == len(bodies)
    assert sum(row.size_bytes for row in rows) == sum(map(len, bodies))
    for row in rows:
        assert row.minute_ms % 60_000 == 0
        assert row.born_to_store.p50_ms is not None
        assert row.born_to_store.p50_ms <= (row.born_to_store.p99_ms or 0) <= (row.born_to_store.max_ms or 0)
    # Only what was followed live says how long it took to be consumed.
    assert any(row.store_to_consumer.p50_ms for row in rows)
    assert read_rollup(tmp_path, topic="Other") == []
    newest = max(row.minute_ms for row in rows)
    assert {row.minute_ms for row in read_rollup(tmp_path, begin_ms=newest)} == {newest}


@pytest.mark.usefixtures("run_command")
def test_history_has_no_gap_and_no_overlap(lake_spark: Any, cluster: Any, tmp_path: Path) -> None:
    bodies = cluster.send("Historic", 600)
    stream = lake_spark.readStream.format("tandemmq").options(**_source(cluster, "Historic"))
    out = tmp_path / "lake"
    columns = "topic,brokerName,queueId,queueOffset,tags,body"

    def read() -> Any:
        return history(lake_spark, lake=out, name_servers=cluster.namesrv, topic="Historic")

    assert read().count() == 600
    land(stream.option("columns", columns).option("maxOffsetsPerTrigger", "250").load(), out)
    bodies += cluster.send("Historic", 150, first=600)
    frame = read()
    assert frame.columns == [*columns.split(","), FROM_COLUMN]
    # Landed while the frame is in use: it reads neither less nor more.
    land(stream.option("columns", columns).load(), out)
    cluster.send("Historic", 50, first=750)
    rows = frame.collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(bodies)
    assert sum(row[FROM_COLUMN] for row in rows) == 600
    assert read().where(f"NOT {FROM_COLUMN}").count() == 50

    told, target = Recorder(), tmp_path / "export"
    options = HistoryOptions(lake=out, name_servers=cluster.namesrv, out=target, where="no_such_column = 1")
    assert run_history(options, told) == 1
    assert "no_such_column" in told.of(Stopped)[0].error
    assert not target.exists()


def test_bad_bodies_are_kept_apart_with_their_reason(lake_spark: Any, cluster: Any, tmp_path: Path) -> None:
    cluster.send("Parsed", 300)
    cluster.send("PlainJson", 20)
    bad = [b"no json", b'{"n":"x"}', b"[1]", b"\xff\xfe", b"\x00"]
    with BlockingProducer("spark-tests", cluster.namesrv) as producer:
        for body in bad:
            producer.send(Message(topic="Parsed", body=body))
    source = _source(cluster, "Parsed", maxOffsetsPerTrigger="200")
    schema = infer_schema(lake_spark, _source(cluster, "PlainJson"))
    assert schema.simpleString() == "struct<n:bigint>"
    stream = lake_spark.readStream.format("tandemmq").options(**source, columns="queueId,queueOffset,body")
    land(parse_bodies(stream.load(), schema), tmp_path, badColumn=BAD_COLUMN)
    forget_last_commit(tmp_path / "_checkpoint")
    land(parse_bodies(stream.load(), schema), tmp_path, badColumn=BAD_COLUMN)
    good = pq.read_table(tmp_path)
    assert sorted(row["n"] for row in good["json"].to_pylist()) == list(range(300))
    assert BAD_COLUMN not in good.column_names
    apart = pq.read_table(tmp_path / "_bad_records")
    reasons = dict(zip(apart["body"].to_pylist(), apart[BAD_COLUMN].to_pylist(), strict=True))
    assert sorted(reasons) == sorted(bad)
    assert reasons[b'{"n":"x"}'] == 'n: expected a whole number (bigint), got "x"'
    assert reasons[b"[1]"] == "the body: expected an object, got [1]"
    assert reasons[b"\xff\xfe"].startswith("not UTF-8")
    assert reasons[b"no json"].startswith("no JSON: ")
