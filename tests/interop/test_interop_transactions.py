"""Transactions, request-reply and SQL92 filters: Java's clients on our broker, ours on Java's brokers.

The brokers here check half messages every second, so that a run takes no minutes.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from ahead import Ahead
from clusters import Cluster, java_cluster, our_cluster
from java_peers import LINE_4, LINE_5, LINES, run_program

from tandemmq.client import (
    BlockingConsumer,
    BlockingProducer,
    BlockingTransactionProducer,
    ClientOptions,
    ConsumerOptions,
    Message,
    ProducerOptions,
    StartFrom,
    TransactionState,
)
from waits import until_blocking

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

SETTINGS = {
    "enablePropertyFilter": "true",
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 2_000,
    # Until its marks are written, RocketMQ 5.x asks about transactions that have ended.
    "transactionOpBatchInterval": 100,
}
CASES = ["Transactions", "RequestReply", "SqlFilter"]
FAST = ClientOptions(heartbeat_s=1.0, route_refresh_s=1.0)
PRODUCING = ProducerOptions(client=FAST, timeout_s=20.0)
CONSUMING = ConsumerOptions(client=FAST, start_from=StartFrom.FIRST, rebalance_s=2.0)


@pytest.fixture(scope="module")
def quick_ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with our_cluster(tmp_path_factory.mktemp("quick-ours")) as cluster:
        cluster.start_ours("broker-a", {"metricsExporterType": "DISABLE", **SETTINGS})
        yield cluster


@pytest.fixture(scope="module")
def quick_java_4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with java_cluster(LINE_4, tmp_path_factory.mktemp("quick-java-4")) as cluster:
        cluster.start_java(LINE_4, "broker-a", SETTINGS)
        yield cluster


@pytest.fixture(scope="module")
def quick_java_5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with java_cluster(LINE_5, tmp_path_factory.mktemp("quick-java-5")) as cluster:
        cluster.start_java(LINE_5, "broker-a", SETTINGS)
        yield cluster


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("servers", ["ours", "java"])
@pytest.mark.parametrize("line", list(LINES))
def test_java_clients(
    line: str,
    servers: str,
    case: str,
    request: pytest.FixtureRequest,
    ahead: Ahead,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    fixture = "quick_ours" if servers == "ours" else f"quick_java_{line[0]}"
    cluster: Cluster = request.getfixturevalue(fixture)
    homes = tmp_path_factory.mktemp(f"{line}-on-{servers}")

    def run(program: str) -> str:
        topic = f"{program}-{line[0]}-{secrets.token_hex(3)}"
        return run_program(LINES[line], program, cluster.name_server, topic, home=homes / program)

    print(ahead.output(request, "case", run))


@pytest.fixture(params=["quick_ours", "quick_java_4", "quick_java_5"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    found: Cluster = request.getfixturevalue(request.param)
    return found


def topic_name(case: str) -> str:
    return f"{case}-py-{secrets.token_hex(3)}"


def bodies_of(consumer: BlockingConsumer, count: int) -> list[bytes]:
    bodies: list[bytes] = []

    def has_all() -> bool:
        bodies.extend(message.body for message in consumer.poll(timeout_s=1.0))
        return len(bodies) >= count

    until_blocking(has_all, f"{count} messages", 90)
    return sorted(bodies)


def test_our_transactions(cluster: Cluster) -> None:
    topic = topic_name("Tx")
    with (
        BlockingTransactionProducer(
            f"{topic}-p", cluster.name_server, check=lambda _: TransactionState.COMMIT, options=PRODUCING
        ) as producer,
        BlockingConsumer(f"{topic}-g", cluster.name_server, options=CONSUMING) as consumer,
    ):
        consumer.subscribe(topic)
        for state in TransactionState:
            body = state.name.encode()
            producer.send(Message(topic=topic, body=body), lambda _, state=state: state)  # type: ignore[misc]
        assert bodies_of(consumer, 2) == [b"COMMIT", b"UNKNOWN"]


def test_our_requests(cluster: Cluster) -> None:
    topic = topic_name("Ask")
    with (
        BlockingProducer(f"{topic}-p", cluster.name_server, options=PRODUCING) as producer,
        BlockingConsumer(f"{topic}-g", cluster.name_server, options=CONSUMING) as consumer,
    ):
        producer.send(Message(topic=topic, body=b"no request"))
        consumer.subscribe(topic)
        assert bodies_of(consumer, 1) == [b"no request"]
        is_over = threading.Event()

        def answer() -> None:
            while not is_over.is_set():
                for message in consumer.poll(timeout_s=0.5):
                    with suppress(Exception):
                        consumer.reply(message, b"re: " + message.body)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            for number in range(5):
                reply = producer.request(Message(topic=topic, body=b"%d" % number), 30.0)
                assert reply.body == b"re: %d" % number
        finally:
            is_over.set()
            thread.join()


def test_our_sql_subscription(cluster: Cluster) -> None:
    topic = topic_name("Sql")
    with BlockingProducer(f"{topic}-p", cluster.name_server, options=PRODUCING) as producer:
        for number in range(20):
            producer.send(Message(topic=topic, body=b"%02d" % number, properties={"n": str(number)}))
    consumer = BlockingConsumer(f"{topic}-g", cluster.name_server, options=CONSUMING)
    consumer.subscribe(topic, sql="n BETWEEN 5 AND 7 OR n >= 18")
    with consumer:
        assert bodies_of(consumer, 5) == [b"05", b"06", b"07", b"18", b"19"]
