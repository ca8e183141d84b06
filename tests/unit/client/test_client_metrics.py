"""Metrics of clients, as Prometheus and OpenTelemetry read them."""

from __future__ import annotations

from typing import Any

import pytest
from client_fakes import FakeCluster, running_cluster
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from test_push_consumer import push

from tandemmq.client import (
    ClientMetrics,
    ConsumeResult,
    Message,
    Producer,
    ProducerOptions,
    PushOptions,
    ReceivedMessage,
)
from tandemmq.client import metrics as module
from tandemmq.errors import ConfigError, TandemError
from tandemmq.protocol.codes import ResponseCode
from waits import until


async def use(cluster: FakeCluster, metrics: ClientMetrics) -> None:
    """Stores three messages, one at the second try, refuses one, and handles all; one of them fails."""

    async def handle(message: ReceivedMessage) -> ConsumeResult | None:
        return ConsumeResult.RETRY if message.body == b"1" else None

    refusals = [ResponseCode.SYSTEM_BUSY]
    cluster[0].refuse = lambda header: refusals.pop() if refusals else 0
    async with Producer("P", cluster.namesrv, options=ProducerOptions(metrics=metrics)) as producer:
        for number in range(3):
            await producer.send(Message("T", b"%d" % number))
        cluster[0].refuse = lambda header: ResponseCode.MESSAGE_ILLEGAL
        with pytest.raises(TandemError):
            await producer.send(Message("T", b"3"))
        async with push(cluster, handle, metrics=metrics) as consumer:
            await until(lambda: sum(consumer.positions.values()) == 3)
        assert metrics.in_flight == metrics.unfinished_count == 0
        assert metrics.retried_count == 1


@pytest.mark.parametrize("options", [ProducerOptions, PushOptions])
def test_the_options_need_an_object(options: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{options.__name__}.metrics .* must be ClientMetrics\(\)"):
        options(metrics=ClientMetrics)


async def test_prometheus_reads_counts_and_times() -> None:
    metrics = ClientMetrics()
    registry = CollectorRegistry()
    registry.register(metrics)
    async with running_cluster(T=1) as cluster:
        await use(cluster, metrics)
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        'tandemmq_client_sent_messages_total{outcome="success",topic="T"} 3.0',
        'tandemmq_client_sent_messages_total{outcome="failure",topic="T"} 1.0',
        'tandemmq_client_sent_seconds_bucket{le="+Inf",topic="T"} 4.0',
        'tandemmq_client_handled_messages_total{outcome="success",topic="T"} 2.0',
        'tandemmq_client_handled_messages_total{outcome="failure",topic="T"} 1.0',
        'tandemmq_client_handled_seconds_count{topic="T"} 3.0',
        "tandemmq_client_sends_in_flight 0.0",
        "tandemmq_client_unfinished_messages 0.0",
    ):
        assert line in lines


async def test_opentelemetry_reads_the_same() -> None:
    metrics, reader = ClientMetrics(), InMemoryMetricReader()
    metrics.observe(MeterProvider([reader]).get_meter("test"))
    async with running_cluster(T=1) as cluster:
        await use(cluster, metrics)
    data = reader.get_metrics_data()
    assert data is not None
    found = {
        (metric.name, *sorted(dict(point.attributes or {}).values())): point.value  # type: ignore[union-attr, arg-type]
        for metric in data.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.data.data_points
    }
    assert found["tandemmq.client.sent.messages", "T", "success"] == 3
    assert found["tandemmq.client.sent.messages", "T", "failure"] == 1
    assert found["tandemmq.client.handled.messages", "T", "failure"] == 1
    assert found["tandemmq.client.handled.time", "T"] > 0
    assert found[("tandemmq.client.sends_in_flight",)] == 0


def test_the_number_of_topics_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPICS_MAX", 2)
    metrics = ClientMetrics()
    for topic in "abcda":
        module._of(metrics.sent, topic).add(0.1, is_good=True)
    assert {topic: row.good_count for topic, row in metrics.sent.items()} == {"a": 2, "b": 1, "other": 2}
