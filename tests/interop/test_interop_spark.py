"""The Spark source against Java's brokers: their limits, their answers about time, their SQL92 filter."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster, JavaBroker, java_cluster
from java_peers import LINE_4, LINES, Line, run_program

from bench.spark_read import fill_topic
from tandemmq.client import BlockingAdmin, BlockingProducer
from tandemmq.errors import ConfigError
from tandemmq.protocol.message import Message
from tandemmq.protocol.sys_flag import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)
from tandemmq.spark.java import find_java
from tandemmq.spark.session import build_session
from tandemmq.spark.wire import Security
from waits import until_blocking

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(300)]

TOPIC = "SparkReads"
COUNT = 700


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    try:
        find_java()
    except ConfigError as error:
        pytest.skip(str(error))
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    session = build_session("interop", "local[2]", log_file=log)
    yield session
    session.stop()


@pytest.fixture(scope="module", params=list(LINES))
def line(request: pytest.FixtureRequest) -> Line:
    return LINES[request.param]


@pytest.fixture(scope="module")
def java(line: Line, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Java cluster with the property filter on, and messages in two parts stored at different times."""
    with java_cluster(line, tmp_path_factory.mktemp(f"java-{line.name}")) as cluster:
        cluster.start_java(line, "broker-a", {"enablePropertyFilter": "true"})
        _send(cluster, 0, COUNT - 100)
        sent_by_ms = time.time() * 1000
        until_blocking(
            lambda: time.time() * 1000 > sent_by_ms + 2, "the clock has passed the last store time"
        )
        _send(cluster, COUNT - 100, COUNT)
        yield cluster


def _send(cluster: Cluster, begin: int, end: int) -> None:
    messages = [
        Message(
            topic=TOPIC, body=b"%d" % n, tags="ab"[n % 2], keys=(f"k{n}",), properties={"size": str(n % 10)}
        )
        for n in range(begin, end)
    ]
    with BlockingProducer("spark-interop", cluster.name_server) as producer:
        producer.send(messages[0])
        assert producer.send_many(messages[1:]).failed_count == 0
    with BlockingAdmin(cluster.name_server) as admin:  # Java answers a send before it can be read
        until_blocking(lambda: admin.message_count(TOPIC) == end, "all that was sent can be read")


def _read(spark: Any, cluster: Cluster, **options: str) -> Any:
    return (
        spark.read.format("rocketmq")
        .options(nameServer=cluster.name_server, topic=TOPIC, **options)
        .schema(
            "body string, tags string, keys string, queueId int, queueOffset bigint, storeTimestamp timestamp"
        )
        .load()
    )


def _numbers(frame: Any) -> list[int]:
    return sorted(int(row.body) for row in frame.select("body").collect())


def test_a_topic_of_a_java_broker_is_a_table(spark: Any, java: Cluster) -> None:
    assert _numbers(_read(spark, java)) == list(range(COUNT))
    assert _numbers(_read(spark, java, tags="b")) == list(range(1, COUNT, 2))
    assert _numbers(_read(spark, java, filter="size >= 8")) == [n for n in range(COUNT) if n % 10 >= 8]
    assert _numbers(_read(spark, java).where("keys = 'k7'")) == [7]
    assert _numbers(_read(spark, java).where("tags = 'a' AND queueOffset >= 0")) == list(range(0, COUNT, 2))


def test_bodies_that_java_clients_compressed_are_read_whole(
    spark: Any, java: Cluster, line: Line, tmp_path: Path
) -> None:
    topic = "SparkCompressed"
    kinds = {"ZLIB": {0, COMPRESSION_ZLIB}, "LZ4": {COMPRESSION_LZ4}, "ZSTD": {COMPRESSION_ZSTD}}
    if line is LINE_4:  # knows no other
        kinds = {"ZLIB": {0, COMPRESSION_ZLIB}}
    for kind in kinds:
        flags = [f"-Drocketmq.message.compressType={kind}"]
        run_program(line, "Compresses", java.name_server, topic, kind, home=tmp_path / kind, flags=flags)
    large = {n: 500 * (1 + n) for n in range(0, 20, 2)}
    copies = {**dict.fromkeys(range(20), 1), **large, **dict.fromkeys(range(20, 25), 500)}
    expected = {f"{kind}-{n} é漢;" * copies[n]: (kind, n) for kind in kinds for n in copies}
    table = (
        spark.read.format("tandemmq")
        .options(nameServer=java.name_server, topic=topic)
        .schema("body string, sysFlag int")
    )
    rows = table.load().collect()
    assert sorted(expected[row.body] for row in rows) == sorted(expected.values())
    packed = [(*expected[row.body], row.sysFlag) for row in rows if row.sysFlag & COMPRESSED]
    assert {(kind, n) for kind, n, _ in packed} == {(kind, n) for kind in kinds for n in large}
    assert all(flag & COMPRESSION_MASK in kinds[kind] for kind, _, flag in packed)


def test_times_are_cut_exactly(spark: Any, java: Cluster) -> None:
    rows = _read(spark, java).selectExpr("body", "unix_millis(storeTimestamp) AS at").collect()
    late = [row.at for row in rows if int(row.body) >= COUNT - 100]
    middle = (min(late) + max(row.at for row in rows if int(row.body) < COUNT - 100)) // 2
    for at in (middle, max(late) + 1, min(row.at for row in rows) - 1):
        early = sorted(int(row.body) for row in rows if row.at < at)
        rest = sorted(int(row.body) for row in rows if row.at >= at)
        assert _numbers(_read(spark, java, endingTimestamp=str(at))) == early
        assert _numbers(_read(spark, java, startingTimestamp=str(at))) == rest


def test_a_stream_reads_a_java_broker_once_and_commits_progress(
    spark: Any, java: Cluster, tmp_path: Path
) -> None:
    stream = (
        spark.readStream.format("tandemmq")
        .options(nameServer=java.name_server, topic=TOPIC, startingOffsets="earliest")
        .options(maxOffsetsPerTrigger="400", group="spark-interop")
        .schema("body string")
        .load()
    )
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination()
    assert _numbers(spark.read.parquet(str(tmp_path / "out"))) == list(range(COUNT))
    assert _numbers(_read(spark, java, startingOffsets="group", group="spark-interop")) == []


def test_a_topic_made_again_is_not_taken_for_the_old_one(spark: Any, java: Cluster, tmp_path: Path) -> None:
    topic = "SparkAgain"

    def send(begin: int, end: int) -> None:
        with BlockingProducer("spark-interop", java.name_server) as producer:
            for number in range(begin, end):
                producer.send(Message(topic=topic, body=b"%d" % number))

    def follow(**options: str) -> list[int]:
        stream = spark.readStream.format("tandemmq").options(nameServer=java.name_server, topic=topic)
        frame = stream.options(startingOffsets="earliest", **options).schema("body string").load()
        writer = frame.writeStream.format("parquet").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        )
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
        return _numbers(spark.read.parquet(str(tmp_path / "out")))

    with BlockingAdmin(java.name_server) as admin:
        admin.create_topic(topic, queue_count=1)
        send(0, 20)
        assert follow() == list(range(20))
        admin.delete_topic(topic)
        with pytest.raises(Exception, match="the queue is gone: its topic was deleted"):
            follow()
        admin.create_topic(topic, queue_count=1)
    send(20, 50)
    with pytest.raises(Exception, match="the message before it is not the one that was read"):
        follow()
    assert follow(failOnDataLoss="false") == list(range(50))


def test_frames_and_streams_become_messages_of_a_java_broker(
    spark: Any, java: Cluster, tmp_path: Path
) -> None:
    def read(topic: str) -> Any:
        return spark.read.format("tandemmq").options(nameServer=java.name_server, topic=topic).load()

    frame = spark.range(COUNT, numPartitions=2).selectExpr(
        "cast(id AS string) AS body",
        "if(id % 2 = 0, 'a', 'b') AS tags",
        "concat('k', id) AS keys",
        "map('size', cast(id % 10 AS string)) AS properties",
    )
    sink = {"nameServer": java.name_server, "topic": "SparkWrites"}
    frame.write.format("tandemmq").options(**sink, batchBytes="16k").mode("append").save()
    rows = read("SparkWrites").collect()
    assert sorted(int(row.body) for row in rows) == list(range(COUNT))
    assert len({row.msgId for row in rows}) == COUNT
    for row in rows:
        number = int(row.body)
        assert (row.tags, row["keys"]) == ("ab"[number % 2], f"k{number}")
        assert row.properties["size"] == str(number % 10)

    def copy() -> None:
        query = (
            spark.readStream.format("tandemmq")
            .options(nameServer=java.name_server, topic="SparkWrites", startingOffsets="earliest")
            .option("columns", "body,tags,properties")
            .load()
            .writeStream.format("tandemmq")
            .options(nameServer=java.name_server, topic="SparkCopies")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    copy()
    # As if the process had been killed after the sends and before Spark wrote the batch down.
    (last,) = (tmp_path / "checkpoint" / "commits").glob("[0-9]*")
    last.unlink()
    (tmp_path / "checkpoint" / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    copy()
    copies = read("SparkCopies").collect()
    assert len(copies) == 2 * COUNT
    assert sorted(int(body) for body in {row.msgId: bytes(row.body) for row in copies}.values()) == list(
        range(COUNT)
    )


ACCOUNTS = """
accounts:
- accessKey: sparkuser
  secretKey: sparksecret
  admin: true
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Java 4.9 broker with ACL on."""
    line = LINES["4.9"]
    with java_cluster(line, tmp_path_factory.mktemp("java-acl")) as cluster:
        broker = JavaBroker(cluster, line, "broker-acl", {"aclEnable": "true"})
        conf = cluster.directory / f"{broker.store.name}-home-{broker.settings['listenPort']}" / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "plain_acl.yml").write_text(ACCOUNTS)
        try:
            broker.start()
            known = Security(access_key="sparkuser", secret_key="sparksecret")
            fill_topic(broker.address, TOPIC, rows=40, body_bytes=10, queue_count=4, security=known)
            yield cluster
        finally:
            broker.kill()


@pytest.mark.interop_case(row="java-4.9")
def test_a_broker_with_acl_knows_our_signature(spark: Any, guarded: Cluster) -> None:
    frame = _read(spark, guarded, accessKey="sparkuser", secretKey="sparksecret")
    assert frame.count() == 40
    with pytest.raises(Exception, match=r"signature|Signature"):
        _read(spark, guarded, accessKey="sparkuser", secretKey="other").count()
