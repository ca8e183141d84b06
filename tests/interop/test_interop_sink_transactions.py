"""Transactional writes of the Spark sink on Java's brokers: what a task and a driver do, without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from clusters import Cluster, java_cluster, our_cluster
from java_peers import LINES

from tandemmq.client import BlockingAdmin, BlockingConsumer, ConsumerOptions, StartFrom
from tandemmq.errors import TandemError
from tandemmq.protocol.topic_names import DISCARD_TOPIC
from tandemmq.spark.metadata import QueriedCluster as Brokers
from tandemmq.spark.options import parse_options
from tandemmq.spark.sink import transaction
from tandemmq.spark.sink.columns import find_sink_columns
from tandemmq.spark.sink.halves import Decision, DecisionFiles, HalfLog, HalfPart, decode_part
from tandemmq.spark.sink.options import SinkOptions, parse_sink_options
from tandemmq.spark.sink.transaction import Ender, TaskHalves
from tandemmq.spark.sink.writer import send_rows
from waits import until_blocking

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

NAME = "stream\0q\0T"
COUNT = 300
HASTY = {
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 500,
    "transactionCheckMax": 1,
    "transactionOpBatchInterval": 100,
}
"""A broker that gives half messages up while they are still being sent."""


@pytest.fixture(scope="module", params=["ours", *LINES])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp(f"sink-{request.param}")
    if request.param == "ours":
        with our_cluster(directory) as cluster:
            cluster.start_ours("broker-a", {"metricsExporterType": "DISABLE", **HASTY})
            yield cluster
    else:
        line = LINES[request.param]
        with java_cluster(line, directory) as cluster:
            cluster.start_java(line, "broker-a", HASTY)
            yield cluster


def make_options(cluster: Cluster, topic: str, state_dir: Path, **more: str) -> SinkOptions:
    raw = {"nameServer": cluster.name_server, "topic": topic, "semantics": "transactional"}
    return parse_sink_options({**raw, "stateDir": str(state_dir), **more})


def send_task(options: SinkOptions) -> TaskHalves:
    halves = HalfLog(options.group, options.transaction_rows_max)
    columns = find_sink_columns([("body", "string"), ("tags", "string")], has_topic_option=True)
    rows = pa.record_batch({"body": [str(n) for n in range(COUNT)], "tags": ["t"] * COUNT})
    send_rows(iter([rows]), options, columns, (options.topic,), 0, halves=halves)
    return TaskHalves(name=NAME, parts=tuple(part.encode() for part in halves.parts()))


def count_visible(cluster: Cluster, topic: str) -> int:
    metadata = Brokers(parse_options({"nameserver": cluster.name_server, "topic": topic}, is_streaming=False))
    bounds = metadata.read_bounds(metadata.describe())
    return sum(bound.end - bound.begin for bound in bounds.values())


def check_each_once(cluster: Cluster, topic: str) -> None:
    """The queues hold as many messages as were sent, and a consumer gets each of them."""
    until_blocking(lambda: count_visible(cluster, topic) >= COUNT, "all rows are visible")
    assert count_visible(cluster, topic) == COUNT
    seen = []
    options = ConsumerOptions(start_from=StartFrom.FIRST, rebalance_s=1.0)
    with BlockingConsumer(f"readers-{topic}", cluster.name_server, options=options) as consumer:
        consumer.subscribe(topic)

        def is_all() -> bool:
            seen.extend(consumer.poll(timeout_s=1.0))
            return len(seen) >= COUNT

        until_blocking(is_all, "all rows are read")
    assert sorted(int(message.body) for message in seen) == list(range(COUNT))
    assert {message.tags for message in seen} == {"t"}


def wait_until_found(cluster: Cluster, parts: list[HalfPart]) -> None:
    """Returns once the key index has the committed messages; it is made after the queues."""
    with BlockingAdmin(cluster.name_server) as admin:
        for part in parts:
            for half in part.read(0, len(part)):
                key = half.key
                until_blocking(
                    lambda topic=part.topic, key=key: admin.find_by_unique_key(topic, key), "it is indexed"
                )


def test_a_commit_that_was_cut_off_is_finished_without_doubles(servers: Cluster, tmp_path: Path) -> None:
    options = make_options(servers, "SinkCommits", tmp_path)
    task = send_task(options)
    parts = [decode_part(raw) for raw in task.parts]
    assert count_visible(servers, "SinkCommits") == 0
    files = DecisionFiles(str(tmp_path), NAME)
    decision = Decision(
        name=NAME,
        batch_id=5,
        group=options.group,
        rows=COUNT,
        decided_at_ms=int(time.time() * 1000),
        file="halves-5.bin",
    )
    with files.locked():
        files.write(decision, parts)
    some = [HalfPart(part.topic, part.broker_name, part.rows.slice(0, 100)) for part in parts]
    Ender(options, options.group, decision.decided_at_ms).commit(some, is_repeat=False)
    wait_until_found(servers, some)
    assert count_visible(servers, "SinkCommits") == 100
    transaction.abort(options, 5, [task])
    for _ in range(2):
        transaction.commit(options, 5, [TaskHalves(name=NAME, parts=(), is_decided=True)])
    check_each_once(servers, "SinkCommits")


def test_what_was_taken_back_is_never_visible(servers: Cluster, tmp_path: Path) -> None:
    options = make_options(servers, "SinkAborts", tmp_path)
    transaction.abort(options, 0, [send_task(options)])
    transaction.commit(options, 0, [send_task(options)])
    check_each_once(servers, "SinkAborts")


def test_a_batch_that_the_broker_gave_up_is_committed_all_the_same(servers: Cluster, tmp_path: Path) -> None:
    options = make_options(servers, "SinkWaits", tmp_path)

    def count_given_up() -> int:
        try:
            return count_visible(servers, DISCARD_TOPIC)
        except TandemError:  # it is made with the first one
            return 0

    before = count_given_up()
    task = send_task(options)
    until_blocking(lambda: count_given_up() >= before + COUNT, "the broker gave all rows up")
    assert count_visible(servers, "SinkWaits") == 0
    transaction.commit(options, 0, [task])
    check_each_once(servers, "SinkWaits")
