"""The middlewares of the FastStream broker for OpenTelemetry and Prometheus."""

from faststream import AckPolicy
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from tandemmq.integrations.faststream import RocketMQBroker, TestRocketMQBroker
from tandemmq.integrations.faststream.metrics import RocketMQPrometheusMiddleware
from tandemmq.integrations.faststream.telemetry import RocketMQTelemetryMiddleware


async def test_spans_of_publishing_and_handling_are_one_trace() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    broker = RocketMQBroker(middlewares=[RocketMQTelemetryMiddleware(tracer_provider=provider)])

    @broker.subscriber("Orders")
    async def handle(number: int) -> None: ...

    async with TestRocketMQBroker(broker):
        await broker.publish(1, "Orders", tag="paid", key="k", ordering_key="c7", correlation_id="77")
    spans: dict[str, ReadableSpan] = {span.name: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"Orders create", "Orders publish", "Orders process"}
    assert len({span.context.trace_id for span in spans.values() if span.context}) == 1
    published, handled = spans["Orders publish"].attributes, spans["Orders process"].attributes
    assert published is not None
    assert handled is not None
    expected = {
        "messaging.system": "rocketmq",
        "messaging.destination.name": "Orders",
        "messaging.message.conversation_id": "77",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.group": "c7",
        "messaging.operation": "publish",
    }
    assert dict(published) == expected
    assert handled["messaging.system"] == "rocketmq"
    assert handled["messaging.destination_publish.name"] == "Orders"
    assert handled["messaging.rocketmq.message.tag"] == "paid"
    assert handled["messaging.rocketmq.message.keys"] == ("k",)
    assert handled["messaging.message.payload_size_bytes"] == 1


async def test_the_span_of_a_batch_tells_its_number_of_messages() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    broker = RocketMQBroker(middlewares=[RocketMQTelemetryMiddleware(tracer_provider=provider)])

    @broker.subscriber("Orders", batch=True)
    async def handle(numbers: list[int]) -> None: ...

    async with TestRocketMQBroker(broker):
        await broker.publish_batch(1, 22, topic="Orders")
    (process,) = (one for one in exporter.get_finished_spans() if one.name == "Orders process")
    assert process.attributes is not None
    assert process.attributes["messaging.batch.message_count"] == 2
    assert process.attributes["messaging.message.payload_size_bytes"] == 3


async def test_metrics_count_messages_by_topic_and_status() -> None:
    registry = CollectorRegistry()
    middleware = RocketMQPrometheusMiddleware(registry=registry, app_name="shop")
    broker = RocketMQBroker(middlewares=[middleware], ack_policy=AckPolicy.REJECT_ON_ERROR)

    @broker.subscriber("Orders", batch=True)
    async def handle(numbers: list[int]) -> None: ...

    async with TestRocketMQBroker(broker):
        await broker.publish_batch(1, 22, topic="Orders")
    labels = {"app_name": "shop", "broker": "rocketmq"}
    received = registry.get_sample_value(
        "faststream_received_messages_total", {**labels, "handler": "Orders"}
    )
    sent = registry.get_sample_value(
        "faststream_published_messages_total", {**labels, "destination": "Orders", "status": "success"}
    )
    assert (received, sent) == (2.0, 2.0)
