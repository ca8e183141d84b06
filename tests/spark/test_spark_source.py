"""Tests the source in a real Spark session, against real brokers."""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from spark_cluster import Cluster
from spark_lakes import follow_topic, forget_last_commit, land

from tandemmq.client import BlockingAdmin, BlockingProducer, Compression, ProducerOptions
from tandemmq.errors import GroupNotFound
from tandemmq.launcher import Server, stopping, write_properties
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.compression import SYS_FLAGS, compressor
from tandemmq.protocol.message import Message
from tandemmq.protocol.requests.admin import CreateTopicRequest
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.spark.offsets import MANY_QUEUES, PACKED_VERSION, decode_offset
from tandemmq.spark.wire import POOL
from waits import until_blocking


def _read(spark: Any, cluster: Any, topic: str, **options: str) -> Any:
    return spark.read.format("tandemmq").options(nameServer=cluster.namesrv, topic=topic, **options)


def test_a_topic_is_a_table(spark: Any, cluster: Any) -> None:
    bodies = cluster.send("SparkTable", 500)
    # A session in which nothing is registered: Spark finds the module pyspark_tandemmq by its name.
    table = _read(spark.newSession(), cluster, "SparkTable", columns="all").load()
    rows = table.collect()
    assert sorted(bytes(row.body) for row in rows) == sorted(bodies)
    row = next(row for row in rows if bytes(row.body) == b'{"n":7}')
    assert (row.topic, row.brokerName, row.tags, row["keys"], row.reconsumeTimes) == (
        "SparkTable",
        "b",
        "b",
        "k7",
        0,
    )
    assert row.properties["TAGS"] == "b"
    assert row.msgId == row.properties["UNIQ_KEY"]
    assert abs(row.storeTimestamp.timestamp() - time.time()) < 600
    places = {(row.queueId, row.queueOffset) for row in rows}
    assert len(places) == 500
    default = _read(spark, cluster, "SparkTable").load()
    assert [field.name for field in default.schema if field.nullable] == ["tags", "keys"]
    shared = [name for name in default.columns if name != "properties"]
    assert default.select(shared).exceptAll(table.select(shared)).count() == 0
    assert "bornHost" not in default.columns
    assert "bornHost" in table.columns


@pytest.mark.long
def test_compressed_bodies_are_delivered_inflated(spark: Any, cluster: Any, tmp_path: Path) -> None:
    topic = "SparkPacked"
    texts = {f"{kind.value} {n} " * 900 for kind in Compression for n in range(6)}
    for kind in Compression:
        options = ProducerOptions(compression=kind, batch_linger_ms=0)
        with BlockingProducer("spark-tests", cluster.namesrv, options=options) as producer:
            for n in range(3):
                producer.send(Message(topic=topic, body=(f"{kind.value} {n} " * 900).encode()))
            # Java's clients never compress a batch; if a request is flagged as compressed, every message of
            # its batch is.
            bodies = [(f"{kind.value} {n} " * 900).encode() for n in range(3, 6)]
            _send_packed_batch(cluster.master.address, topic, kind, bodies)
    schema = "body string, sysFlag int"
    rows = _read(spark, cluster, topic).schema(schema).load().collect()
    assert len(rows) == len(texts) == 18
    assert {row.body for row in rows} == texts
    assert {row.body.split()[0]: row.sysFlag for row in rows} == {
        kind.value: flag for kind, flag in SYS_FLAGS.items()
    }
    files = spark.read.format("commitlog").option("topic", topic).schema(schema)
    assert sorted(files.load(str(cluster.directory / "master")).collect()) == sorted(rows)
    land(follow_topic(spark, cluster.namesrv, topic, columns="body"), tmp_path / "lake")
    assert {body.decode() for body in pq.read_table(tmp_path / "lake")["body"].to_pylist()} == texts
    stored = _read(spark, cluster, topic, decompress="false").schema("body binary").load().collect()
    assert sorted(len(row.body) for row in stored)[-1] < 1000


def _send_packed_batch(address: str, topic: str, kind: Compression, bodies: list[bytes]) -> None:
    compress = compressor(kind)
    _send_as(address, topic, SYS_FLAGS[kind], [compress(content) for content in bodies])


def _send_as(address: str, topic: str, sys_flag: int, bodies: list[bytes], queue_id: int = 0) -> None:
    """Sends the bodies unchanged, whatever the flag says about them."""
    header = SendRequestV2(
        producer_group="spark-tests",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=queue_id,
        sys_flag=sys_flag,
        born_at_ms=1_700_000_000_000,
        flag=0,
        is_batch=True,
    )
    body = encode_batch((0, content, b"") for content in bodies)
    with POOL.borrow(address) as connection:
        command = Command.request(RequestCode.SEND_BATCH_MESSAGE, header, body=body)
        assert connection.request(command, 30.0).code == ResponseCode.SUCCESS


@pytest.mark.long
def test_a_body_that_is_not_what_its_flag_says_is_marked_and_kept_apart(
    spark: Any, cluster: Any, spark_log: Path, run_pipeline: Callable[..., Any], tmp_path: Path
) -> None:
    topic, wrong = "SparkFaults", b'{"n": 7, "plain": true}'
    sent = cluster.send(topic, 40)
    _send_as(cluster.master.address, topic, SYS_FLAGS[Compression.ZLIB], [wrong])
    rows = _read(spark, cluster, topic, columns="body,bodyFault,sysFlag").load().collect()
    assert sorted(bytes(row.body) for row in rows) == sorted([*sent, wrong])
    (marked,) = [row for row in rows if row.bodyFault is not None]
    assert bytes(marked.body) == wrong
    assert marked.bodyFault.startswith("message body is not a zlib stream")
    assert f'bodies.undecoded messages=1 first="{topic}, queue 0, queue offset ' in spark_log.read_text()
    files = spark.read.format("commitlog").option("topic", topic).schema("body binary, bodyFault string")
    assert sorted(files.load(str(cluster.directory / "master")).collect()) == sorted(
        row for row in _read(spark, cluster, topic, columns="body,bodyFault").load().collect()
    )

    def land_once(out: Path, *more: str) -> tuple[int, int]:
        """Lands the topic; returns the numbers of rows in the lake and of bad records."""
        reported = run_pipeline(
            "landing", "--namesrv", cluster.namesrv, "--topic", topic, "--out", str(out), "--once", *more
        )
        return reported[-1]["rows_total"], reported[-1]["bad_total"]

    assert land_once(tmp_path / "plain") == (40, 1)
    (apart,) = pq.read_table(tmp_path / "plain" / "_bad_records").to_pylist()
    assert (apart["body"], apart["badReason"]) == (wrong, marked.bodyFault)
    # Bodies that can be parsed are good.
    assert land_once(tmp_path / "json", "--json-schema", "n bigint") == (41, 0)
    lakes = ("--lake", str(tmp_path / "plain"), "--lake", str(tmp_path / "json"))
    reported = run_pipeline("audit", "--namesrv", cluster.namesrv, "--topic", topic, *lakes)
    assert reported[-1]["reason"] == "equal"


@pytest.mark.long
@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_batch_is_repeated_without_queues_that_are_gone(
    spark: Any, cluster: Any, spark_log: Path, tmp_path: Path, is_deleted: bool
) -> None:
    topic, address = f"SparkGone{is_deleted}", cluster.master.address
    with BlockingAdmin(cluster.namesrv) as admin:
        admin.create_topic(topic, queue_count=4)
        for queue_id in range(4):
            _send_as(address, topic, 0, [b"%d" % n for n in range(100)], queue_id)
        counts = _count_batches(spark, cluster.namesrv, topic, tmp_path)
        forget_last_commit(tmp_path)
        if is_deleted:
            admin.delete_topic(topic)
        else:
            _set_queues(address, topic, 1)
    lost = rf"{topic}@b:[01]: .* the queue is gone.*Set failOnDataLoss=false to continue without it"
    with pytest.raises(Exception, match=lost):
        _count_batches(spark, cluster.namesrv, topic, tmp_path)
    counts += _count_batches(spark, cluster.namesrv, topic, tmp_path, failOnDataLoss="false")
    # A batch without rows follows, whose offset no longer names the missing queues.
    assert [count for count in counts if count] == ([400] if is_deleted else [400, 100])
    assert f"messages.lost queue={topic}@b:3 from_offset=0 messages=100 " in spark_log.read_text()


@pytest.mark.long
def test_a_batch_is_repeated_though_a_broker_that_it_does_not_need_is_silent(
    spark: Any, own_cluster: Cluster, spark_log: Path, tmp_path: Path
) -> None:
    namesrv, checkpoint = own_cluster.namesrv, tmp_path / "checkpoint"
    own_cluster.send("Needed", 60)
    settings = {"namesrvAddr": namesrv, "brokerName": "c", "brokerIP1": "127.0.0.1", "listenPort": 0}
    settings |= {"storePathRootDir": tmp_path / "c"}
    conf = write_properties(tmp_path / "c.conf", settings)
    other = Server("other broker", ["broker", "-c", str(conf)], tmp_path / "c.log")
    topics, quick = "Needed,Unneeded", {"pullTimeoutMs": "1000", "fetchOffset.numRetries": "1"}
    with stopping([other]):
        _set_queues(other.start(), "Unneeded", 2)
        until_blocking(lambda: _has_topic(namesrv, "Unneeded"), "the topic is registered")
        counts = _count_batches(spark, namesrv, topics, checkpoint, **quick)
        assert counts == [60]
        forget_last_commit(checkpoint)
        os.kill(other.pid, signal.SIGSTOP)
        try:
            # The batch is repeated; then the run fails, because it might skip messages.
            with pytest.raises(Exception, match=r"no broker answers for Unneeded@c:0.*failOnDataLoss=false"):
                _count_batches(spark, namesrv, topics, checkpoint, counts, **quick)
            assert counts == [60, 60]
            forget_last_commit(checkpoint)
            lenient = {**quick, "failOnDataLoss": "false"}
            _count_batches(spark, namesrv, topics, checkpoint, counts, **lenient)
            assert counts == [60, 60, 60]
        finally:
            os.kill(other.pid, signal.SIGCONT)
    assert "messages.lost queue=Needed" not in spark_log.read_text()


def test_a_stream_over_many_queues_continues_from_its_packed_offset(
    spark: Any, cluster: Any, tmp_path: Path
) -> None:
    topic, lake = "SparkManyQueues", tmp_path / "lake"
    queue_count = MANY_QUEUES + 1
    with BlockingAdmin(cluster.namesrv) as admin:
        admin.create_topic(topic, queue_count=queue_count)
    sent: list[bytes] = []

    def send(queue_ids: range) -> None:
        for queue_id in queue_ids:
            bodies = [b"%d in %d" % (len(sent) + n, queue_id) for n in range(2)]
            _send_as(cluster.master.address, topic, 0, bodies, queue_id)
            sent.extend(bodies)

    def land_all() -> None:
        land(follow_topic(spark, cluster.namesrv, topic, columns="body"), lake)
        assert sorted(pq.read_table(lake)["body"].to_pylist()) == sorted(sent)

    send(range(0, queue_count, 20))
    land_all()
    forget_last_commit(lake / "_checkpoint")
    send(range(0, queue_count, 35))
    # Repeats the first batch, then reads the new messages.
    land_all()
    for file in (lake / "_checkpoint" / "offsets").glob("[0-9]*"):
        offset = json.loads(file.read_text().splitlines()[-1])
        assert offset["v"] == PACKED_VERSION
        assert len(decode_offset(offset).positions) == queue_count


def _has_topic(namesrv: str, topic: str) -> bool:
    with BlockingAdmin(namesrv) as admin:
        return topic in admin.topics()


def _count_batches(
    spark: Any, namesrv: str, topics: str, checkpoint: Path, counts: list[int] | None = None, **options: str
) -> list[int]:
    """Reads the topics up to their ends; returns `counts` with the number of rows of each batch added."""
    found: list[int] = [] if counts is None else counts
    stream = follow_topic(spark, namesrv, topics, columns="queueId", **options)
    writer = stream.writeStream.foreachBatch(lambda frame, _: found.append(frame.count()))
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()
    return found


def _set_queues(address: str, topic: str, count: int) -> None:
    """Creates the topic on one broker, or changes the number of its queues like an operator with force."""
    header = CreateTopicRequest(
        topic=topic,
        default_topic="TBW102",
        read_queue_count=count,
        write_queue_count=count,
        permission=6,
        is_forced=True,
    )
    with POOL.borrow(address) as connection:
        command = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert connection.request(command, 30.0).code == ResponseCode.SUCCESS


def test_options_columns_and_aliases(spark: Any, cluster: Any) -> None:
    cluster.send("SparkOptions", 300)
    tagged = _read(spark, cluster, "SparkOptions", tags="b", columns="queueId,tags").load()
    assert tagged.columns == ["queueId", "tags"]
    assert tagged.groupBy("tags").count().collect() == [("b", 150)]
    judged = _read(
        spark, cluster, "SparkOptions", filter="TAGS = 'b' AND KEYS <> 'k7'", columns="tags"
    ).load()
    assert judged.groupBy("tags").count().collect() == [("b", 149)]
    text = _read(spark, cluster, "SparkOptions").schema("body string, queueOffset bigint").load()
    assert text.selectExpr("sum(get_json_object(body, '$.n')) AS total").first().total == sum(range(300))
    rocket = spark.read.format("rocketmq").options(endpoints=cluster.namesrv, subscribe="SparkOptions").load()
    assert rocket.count() == 300
    with pytest.raises(Exception, match="a batch query that begins at latest"):
        _read(spark, cluster, "SparkOptions", startingOffsets="latest").load().count()
    with pytest.raises(Exception, match=r"names SparkOptions@c:0, .* there are SparkOptions@b:0"):
        _read(spark, cluster, "SparkOptions", startingOffsets='{"SparkOptions":{"c":{"0":1}}}').load().count()


def test_options_that_cut_and_divide_a_read(spark: Any, cluster: Any) -> None:
    topic = "SparkDivided"
    early = cluster.send(topic, 120)
    sent_by = time.time()
    until_blocking(lambda: time.time() > sent_by + 0.002, "the clock has passed the last store time")
    late = cluster.send(topic, 80, first=120)

    def bodies(**options: str) -> list[bytes]:
        rows = _read(spark, cluster, topic, columns="body", **options).load().collect()
        return sorted(bytes(row.body) for row in rows)

    at = json.dumps({topic: {"b": {str(queue): int(sent_by * 1000) + 1 for queue in range(4)}}})
    assert bodies(endingOffsetsByTimestamp=at) == sorted(early)
    assert bodies(startingOffsetsByTimestamp=at) == sorted(late)
    assert bodies(subExpression="b") == sorted((early + late)[1::2])
    assert bodies(verifyCrc="true", arrowBytes="1k") == sorted(early + late)
    assert len(bodies(limit="10")) == 10
    divided = _read(spark, cluster, topic, minPartitions="10").load()
    assert divided.rdd.getNumPartitions() >= 10
    assert divided.count() == 200
    assert _read(spark, cluster, topic).load().rdd.getNumPartitions() == 1


@pytest.mark.long
def test_progress_is_committed_for_a_group_unless_it_is_not_wanted(
    spark: Any, cluster: Any, tmp_path: Path
) -> None:
    topic = "SparkProgress"
    cluster.send(topic, 60)
    for group, options in (("progress-on", {}), ("progress-off", {"commitProgress": "false"})):
        stream = follow_topic(spark, cluster.namesrv, topic, group=group, **options)
        land(stream, tmp_path / group)
        assert pq.read_table(tmp_path / group).num_rows == 60
    with BlockingAdmin(cluster.namesrv) as admin:
        assert admin.lag("progress-on", topic) == 0
        with pytest.raises(GroupNotFound):
            admin.lag("progress-off", topic)


def test_conditions_are_pushed_down_in_sessions_that_allow_it(spark: Any, cluster: Any) -> None:
    cluster.send("SparkPushed", 200)
    setting = "spark.sql.python.filterPushdown.enabled"
    conditions = (
        "queueId IN (0, 1, 2, 3) AND queueOffset >= 10",
        "tags = 'b' AND brokerName IN ('b', 'c') AND storeTimestamp > timestamp '2020-01-01 00:00:00'",
        "keys = 'k7'",
        "storeTimestamp < timestamp '2020-01-01 00:00:00'",
    )
    found = {}
    for is_on in ("true", "false"):
        spark.conf.set(setting, is_on)
        table = _read(
            spark, cluster, "SparkPushed", columns="brokerName,queueId,queueOffset,tags,keys,storeTimestamp"
        )
        found[is_on] = [sorted(table.load().where(condition).collect()) for condition in conditions]
        plan = table.load().where("queueId = 1")._jdf.queryExecution().executedPlan().toString()
        assert ("Filter (" in plan) == (is_on == "false"), plan
    spark.conf.set(setting, "true")
    assert found["true"] == found["false"]
    assert [len(rows) > 0 for rows in found["true"]] == [True, True, True, False]


def test_a_misspelt_option_fails_with_the_right_name(spark: Any, cluster: Any) -> None:
    with pytest.raises(Exception, match=r"did you mean readFrom\?"):
        _read(spark, cluster, "Any", readForm="master").load()


def test_rows_pass_between_java_and_python_over_private_sockets(spark: Any) -> None:
    directory = Path(spark.conf.get("spark.python.unix.domain.socket.dir"))
    assert spark.range(3, numPartitions=1).mapInArrow(lambda batches: batches, "id long").count() == 3
    assert list(directory.glob(".*.sock"))
    assert directory.stat().st_mode & 0o077 == 0


def test_a_stream_lands_each_message_once_and_goes_on_where_it_was(
    spark: Any, cluster: Any, tmp_path: Path
) -> None:
    out, options = tmp_path / "lake", {"maxOffsetsPerTrigger": "400", "readFrom": "prefer-slave"}
    stream = follow_topic(spark, cluster.namesrv, "SparkStream", **options)
    first = cluster.send("SparkStream", 900)
    land(stream, out)
    manager = spark.conf.get("spark.sql.streaming.checkpointFileManagerClass")
    assert manager.endswith(".FileSystemBasedCheckpointFileManager")
    second = cluster.send("SparkStream", 100, first=900)
    land(stream, out)
    by_arrow = pq.read_table(out)
    assert sorted(by_arrow["body"].to_pylist()) == sorted(first + second)
    assert sorted(pd.read_parquet(out)["queueOffset"]) == sorted(by_arrow["queueOffset"].to_pylist())
    by_spark = spark.read.parquet(str(out))
    assert by_spark.count() == by_spark.select("queueId", "queueOffset").distinct().count() == 1000
    assert {row.batch for row in by_spark.select("batch").distinct().collect()} == {0, 1, 2, 3}


def test_named_sources_are_added_moved_and_removed_between_runs(
    spark: Any, cluster: Any, tmp_path: Path
) -> None:
    if not hasattr(spark.readStream, "name"):
        pytest.skip("sources have names since Spark 4.2")

    def run(*topics: str) -> set[bytes]:
        streams = [
            spark.readStream.format("tandemmq")
            .options(nameServer=cluster.namesrv, topic=topic, startingOffsets="earliest", columns="body")
            .name(topic.lower())
            .load()
            for topic in topics
        ]
        united = functools.reduce(lambda left, right: left.union(right), streams)
        query = (
            united.writeStream.format("parquet")
            .options(checkpointLocation=str(tmp_path / "checkpoint"), path=str(tmp_path / "rows"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        rows = [bytes(row.body) for row in spark.read.parquet(str(tmp_path / "rows")).collect()]
        assert len(rows) == len(set(rows))
        return set(rows)

    setting = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    spark.conf.set(setting, "true")
    try:
        wanted = set(cluster.send("NamedOne", 20))
        assert run("NamedOne") == wanted
        wanted |= {*cluster.send("NamedOne", 5, first=20), *cluster.send("NamedTwo", 9, first=100)}
        assert run("NamedTwo", "NamedOne") == wanted
        wanted |= set(cluster.send("NamedTwo", 3, first=200))
        assert run("NamedTwo") == wanted
    finally:
        spark.conf.unset(setting)


@pytest.mark.long
def test_a_topic_made_again_is_not_taken_for_the_old_one(
    spark: Any, cluster: Any, spark_log: Path, tmp_path: Path
) -> None:
    topic, out = "SparkAgain", tmp_path / "lake"
    stream = follow_topic(spark, cluster.namesrv, topic)
    lossy = follow_topic(spark, cluster.namesrv, topic, failOnDataLoss="false")
    with BlockingAdmin(cluster.namesrv) as admin:
        admin.create_topic(topic, queue_count=1)
        first = cluster.send(topic, 40)
        land(stream, out)
        admin.delete_topic(topic)
        with pytest.raises(Exception, match="the queue is gone: its topic was deleted"):
            land(stream, out)
        admin.create_topic(topic, queue_count=1)
    second = cluster.send(topic, 60, first=1000)
    with pytest.raises(Exception, match="the message before it is not the one that was read"):
        land(stream, out)
    land(lossy, out)
    assert sorted(pq.read_table(out)["body"].to_pylist()) == sorted(first + second)
    assert f"messages.lost queue={topic}@b:0 from_offset=40 to_offset=0 " in spark_log.read_text()


@pytest.mark.long
def test_a_new_checkpoint_on_an_old_lake_is_refused(spark: Any, cluster: Any, tmp_path: Path) -> None:
    cluster.send("SparkOwner", 10)
    stream = follow_topic(spark, cluster.namesrv, "SparkOwner")
    land(stream, tmp_path)
    (tmp_path / "_checkpoint").rename(tmp_path / "_lost")
    with pytest.raises(Exception, match=r"Writing job failed|was written by query"):
        land(stream, tmp_path)
    assert pq.read_table(tmp_path).num_rows == 10
