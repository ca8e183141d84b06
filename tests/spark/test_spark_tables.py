"""Tests rollup, history and parsed bodies: each message counts once, wherever the seam is."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline_recorder import Recorder
from spark_lakes import forget_last_commit, land, read_topic

from tandemmq.client import BlockingProducer
from tandemmq.protocol.message import Message
from tandemmq.spark.pipelines.audit import Audit
from tandemmq.spark.pipelines.events import Stopped
from tandemmq.spark.pipelines.history import FROM_COLUMN, history, run_history
from tandemmq.spark.pipelines.json_bodies import BAD_COLUMN
from tandemmq.spark.pipelines.options import AuditOptions, HistoryOptions
from tandemmq.spark.pipelines.rollup import make_stream, read_rollup
from tandemmq.spark.pipelines.runner import StopFlag, Workplace


def _source(cluster: Any, topic: str, **more: str) -> dict[str, str]:
    return {"nameServer": cluster.namesrv, "subscribe": topic, "startingOffsets": "earliest", **more}


def test_a_rollup_counts_each_message_once_though_a_batch_is_repeated(
    spark: Any, cluster: Any, tmp_path: Path
) -> None:
    bodies = cluster.send("Rolled", 900)
    source = _source(cluster, "Rolled", maxOffsetsPerTrigger="400")
    land(make_stream(spark, source, live_since_ms=0), tmp_path)
    forget_last_commit(tmp_path / "_checkpoint")
    bodies += cluster.send("Rolled", 100, first=900)
    land(make_stream(spark, source, live_since_ms=None), tmp_path)
    rows = read_rollup(tmp_path)
    assert {row.tag: 0 for row in rows} == {"a": 0, "b": 0}
    assert sum(row.messages for row in rows) == len(bodies)
    assert sum(row.size_bytes for row in rows) == sum(map(len, bodies))
    for row in rows:
        assert row.minute_ms % 60_000 == 0
        assert row.born_to_store.p50_ms is not None
        assert row.born_to_store.p50_ms <= (row.born_to_store.p99_ms or 0) <= (row.born_to_store.max_ms or 0)
    # Only messages followed live have a consumption latency.
    assert any(row.store_to_consumer.p50_ms for row in rows)
    assert read_rollup(tmp_path, topic="Other") == []
    newest = max(row.minute_ms for row in rows)
    assert {row.minute_ms for row in read_rollup(tmp_path, begin_ms=newest)} == {newest}


@pytest.mark.usefixtures("run_command")
def test_history_has_no_gap_and_no_overlap(spark: Any, cluster: Any, tmp_path: Path) -> None:
    bodies = cluster.send("Historic", 600)
    stream = spark.readStream.format("tandemmq").options(**_source(cluster, "Historic"))
    out = tmp_path / "lake"
    columns = "topic,brokerName,queueId,queueOffset,tags,body"

    def read() -> Any:
        return history(spark, lake=out, name_servers=cluster.namesrv, topic="Historic")

    assert read().count() == 600
    land(stream.option("columns", columns).option("maxOffsetsPerTrigger", "250").load(), out)
    bodies += cluster.send("Historic", 150, first=600)
    frame = read()
    assert frame.columns == [*columns.split(","), FROM_COLUMN]
    # Landed while the frame is in use: the frame has neither fewer nor more rows.
    land(stream.option("columns", columns).load(), out)
    cluster.send("Historic", 50, first=750)
    rows = frame.collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(bodies)
    assert sum(row[FROM_COLUMN] for row in rows) == 600
    assert read().where(f"NOT {FROM_COLUMN}").count() == 50

    reported, target = Recorder(), tmp_path / "export"
    options = HistoryOptions(lake=out, name_servers=cluster.namesrv, out=target, where="no_such_column = 1")
    assert run_history(options, reported) == 1
    assert "no_such_column" in reported.of(Stopped)[0].error
    assert not target.exists()


def test_bad_bodies_are_kept_apart_with_their_reason_and_are_messages_all_the_same(
    spark: Any, cluster: Any, tmp_path: Path, run_pipeline: Callable[..., list[dict[str, Any]]]
) -> None:
    first = [b'{"n":7,"n":8,"in":{"A":1,"A":2}}', b'{"N":1,"in":{"a":5}}', b'{"n":9,"in":{"A":1}}']
    bad = [b"no json", b"[1]", b"\xff\xfe", b"\x00", b'{"n":1}\n{"n":2}', b'{"n":3} x']
    with BlockingProducer("spark-tests", cluster.namesrv) as producer:
        for body in first:
            producer.send(Message(topic="Parsed", body=body))
        for body in bad:
            producer.send(Message(topic="Parsed", body=body, tags="bad"))
    sent = [*first, *bad, *cluster.send("Parsed", 300)]
    command = ("landing", "--namesrv", cluster.namesrv, "--topic", "Parsed", "--out", str(tmp_path), "--once")
    lake_options = ("--json-schema", "infer", "--batch-rows", "200", "--partition-by", "dt")
    lake_options += ("--bad-topic", "ParsedBad")
    # Left by an earlier attempt that landed nothing, so the lake need not keep this schema.
    (tmp_path / "_tandemmq").mkdir()
    (tmp_path / "_tandemmq" / "json-schema.json").write_text('{"type": "struct", "fields": []}')
    events = run_pipeline(*command, *lake_options)
    (schema,) = [event for event in events if event["event"] == "json_schema"]
    assert (schema["fields"], schema["left_out"]) == (["in", "n"], ["N", "in.a"])
    assert sum(event["bad"] for event in events if event["event"] == "batch") == len(bad)
    assert (events[-1]["rows_total"], events[-1]["bad_total"]) == (303, len(bad))
    forget_last_commit(tmp_path / "_checkpoint")
    assert run_pipeline(*command, *lake_options)[-1]["bad_total"] == len(bad)

    good = pq.read_table(tmp_path)
    assert good["json"].type.field("n").type == pa.int64()
    assert sum(row["n"] is not None for row in good["json"].to_pylist()) == 302
    assert BAD_COLUMN not in good.column_names
    apart = pq.read_table(tmp_path / "_bad_records")
    reasons = dict(zip(apart["body"].to_pylist(), apart[BAD_COLUMN].to_pylist(), strict=True))
    assert sorted(reasons) == sorted(bad)
    assert reasons[b"[1]"] == "the body: expected an object, got [1]"
    assert reasons[b"\xff\xfe"].startswith("not UTF-8")
    assert reasons[b"no json"].startswith("no JSON: ")
    assert reasons[b'{"n":1}\n{"n":2}'].startswith("no JSON: Extra data")

    reported = read_topic(spark, cluster.namesrv, "ParsedBad", columns="msgId,tags,properties,body").collect()
    assert len({row.msgId for row in reported}) == len(bad)
    assert {bytes(row.body): row.properties["badReason"] for row in reported} == reasons
    assert {row.tags for row in reported} == {"bad"}
    assert all(row.properties["origin"].startswith("Parsed@b:") for row in reported)

    # They are messages of the topic: no copy is complete without them.
    recorder = Recorder()
    options = AuditOptions(topic="Parsed", name_servers=cluster.namesrv, lakes=(tmp_path,), piece_size=100)
    assert Audit(Workplace(spark, recorder, StopFlag()), options).run(), recorder.events
    rows = history(spark, lake=tmp_path, name_servers=cluster.namesrv).collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(sent)
    assert all(row[FROM_COLUMN] for row in rows)
    where = ("--where", "dt IS NOT NULL AND (badReason IS NOT NULL OR json.n >= 298)")
    again = run_pipeline(
        "replay", "--lake", str(tmp_path), "--namesrv", cluster.namesrv, "--to", "Fixed", *where
    )
    assert again[-1]["rows_total"] == len(bad) + 2
    fixed = read_topic(spark, cluster.namesrv, "Fixed", columns="body").collect()
    assert sorted(bytes(row.body) for row in fixed) == sorted([*bad, b'{"n":298}', b'{"n":299}'])


def test_bodies_that_change_are_rescued_and_the_schema_grows(
    spark: Any, cluster: Any, tmp_path: Path, run_pipeline: Callable[..., list[dict[str, Any]]]
) -> None:
    # One field has the name under which the landing looks for bodies that Spark cannot parse.
    bodies = [b'{"n":%d,"new":{"a":%d},"_tandemmq_corrupt":"no"}' % (n, n) for n in range(80)]
    bodies[1] = b'{"n":"x","new":{"a":1}}'
    bodies[2] = b"{'n':2,'new':{'a':2}}"  # Spark would take it for JSON, and drop what does not fit
    bodies[3] = b'{"n":3,"new":{"a":3},"odd":"\xff"}'
    out, schema = ("--out", str(tmp_path)), ("--json-schema", "n bigint", "--json-changes", "grow")
    command = ("landing", "--namesrv", cluster.namesrv, "--topic", "Changing", *out, "--once", *schema)
    reported: list[dict[str, Any]] = []
    with BlockingProducer("spark-tests", cluster.namesrv) as producer:
        for some in (bodies[:40], bodies[40:]):
            producer.send(Message(topic="Changing", body=some[0]))
            producer.send_many([Message(topic="Changing", body=body) for body in some[1:]])
            reported += run_pipeline(*command, "--batch-rows", "20")
    # Each start of the query reports its schema.
    read_with = dict.fromkeys(tuple(event["fields"]) for event in reported if event["event"] == "json_schema")
    assert [set(fields) for fields in read_with] == [{"n"}, {"n", "new", "odd", "_tandemmq_corrupt"}]
    assert (reported[-1]["rows_total"], reported[-1]["bad_total"]) == (79, 1)
    rows = spark.read.option("mergeSchema", "true").parquet(str(tmp_path)).collect()
    parts = [(row.json.asDict(recursive=True), json.loads(row.jsonRescue or "{}")) for row in rows]
    found = sorted((rest.get("new") or read["new"])["a"] for read, rest in parts)
    assert found == [number for number in range(80) if number != 2]
    assert [rest["odd"] for _, rest in parts if "odd" in rest] == ["\ufffd"]
    assert sum("new" not in rest for _, rest in parts) >= 40
    assert [rest["n"] for _, rest in parts if "n" in rest] == ["x"]


def test_avro_bodies_become_columns(
    spark: Any, cluster: Any, tmp_path: Path, run_pipeline: Callable[..., list[dict[str, Any]]]
) -> None:
    fastavro = pytest.importorskip("fastavro")
    fields = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
    ]
    schema = {"type": "record", "name": "Order", "fields": fields}
    at = datetime(2025, 1, 2, 3, tzinfo=UTC)
    with BlockingProducer("spark-tests", cluster.namesrv) as producer:
        for number in range(20):
            stream = io.BytesIO()
            fastavro.schemaless_writer(stream, schema, {"id": number, "at": at, "counts": {"a": number}})
            producer.send(Message(topic="InAvro", body=b"\0\0\0\0\x01" + stream.getvalue()))
        producer.send(Message(topic="InAvro", body=b"\0\0\0\0\x01\x02"))
    command = ("landing", "--namesrv", cluster.namesrv, "--topic", "InAvro", "--out", str(tmp_path), "--once")
    events = run_pipeline(*command, "--avro-schema", json.dumps(schema), "--registry-header")
    assert (events[-1]["rows_total"], events[-1]["bad_total"]) == (20, 1)
    rows = pq.read_table(tmp_path)["record"].to_pylist()
    expected = [{"id": n, "at": at, "counts": [("a", n)]} for n in range(20)]
    assert sorted(rows, key=lambda row: row["id"]) == expected
    (reason,) = pq.read_table(tmp_path / "_bad_records")[BAD_COLUMN].to_pylist()
    assert reason.startswith("no Avro of that schema")
