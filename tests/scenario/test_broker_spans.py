"""A broker's spans of sends: children of the sender's span, only for sampled messages, and without effect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from broker_rig import Peer, running_broker, running_name_server

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tandemmq.broker.broker import Broker
from tandemmq.broker.send import spans
from tandemmq.client import Message, Producer, PushConsumer, PushOptions, StartFrom
from tandemmq.client.otel_instrumentor import TandemMQInstrumentor
from tandemmq.errors import ConfigError
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.properties import encode_properties
from tandemmq.telemetry import events
from tandemmq.telemetry.export_options import MetricsExporter
from waits import until

TRACES = {"traces_exporter": MetricsExporter.OTLP_GRPC, "traces_target": "http://127.0.0.1:1"}
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def parent(flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{TRACE}-{SPAN}-{flags}"}


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Receives the spans of brokers that start in the test."""
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(spans, "_new_tracer", lambda *_: provider.get_tracer("test"))
    return found


@asynccontextmanager
async def traced_broker(root: Path, **changes: object) -> AsyncIterator[tuple[Broker, Peer]]:
    async with running_broker(root, **TRACES, **changes) as broker, Peer(broker) as peer:
        yield broker, peer


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (found,) = exporter.get_finished_spans()
    exporter.clear()
    return found


async def test_only_sampled_sends_have_a_span(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    async with traced_broker(tmp_path) as (broker, peer):
        for properties in ({}, parent("00"), {"traceparent": "broken"}):
            await peer.send_ok("T", b"x", properties=properties)
        assert exporter.get_finished_spans() == ()
        await peer.send_ok("T", b"x", properties=parent())
        span = only(exporter)
        assert (span.name, span.kind) == ("store T", SpanKind.SERVER)
        assert f"{span.context.trace_id:032x}" == TRACE
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == SPAN
        assert (span.attributes or {})["tandemmq.broker"] == broker.options.broker_name
        batch = encode_batch([(0, b"a", b""), (0, b"b", encode_properties(parent()))])
        await peer.send_ok("T", batch, is_batch=True)
        only(exporter)
        refused = await peer.send("T", b"x" * 40_000, properties=parent())
        assert refused.code != ResponseCode.SUCCESS
        failed = only(exporter)
        assert failed.status.status_code is StatusCode.ERROR
        assert (failed.attributes or {})["error.type"] == "MESSAGE_ILLEGAL"


async def test_a_trace_goes_through_producer_broker_and_consumer(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = TandemMQInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    handled = asyncio.Event()

    async def handle(_: object) -> None:
        handled.set()

    try:
        async with (
            running_name_server(tmp_path) as namesrv,
            running_broker(tmp_path / "b", name_servers=(namesrv,), **TRACES),
            Producer("PG", namesrv) as producer,
        ):
            options = PushOptions(start_from=StartFrom.FIRST)
            consumer = PushConsumer("CG", namesrv, handle, options=options)
            consumer.subscribe("TopicTest")
            async with consumer:
                await producer.send(Message(topic="TopicTest", body=b"x"))
                await handled.wait()
                await until(lambda: len(exporter.get_finished_spans()) == 3)
    finally:
        instrumentor.uninstrument()
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert found.keys() == {"send TopicTest", "store TopicTest", "process TopicTest"}
    assert len({span.context.trace_id for span in found.values()}) == 1
    send = found["send TopicTest"]
    for name in ("store TopicTest", "process TopicTest"):
        own = found[name].parent
        assert own is not None
        assert own.span_id == send.context.span_id


async def test_a_dead_collector_costs_one_line_and_no_send(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # milliseconds between exports
    async with traced_broker(tmp_path, otlp_timeout_ms=200) as (_, peer):
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                await peer.send_ok("T", b"x", properties=parent())
            provider = spans._new_tracer(MetricsExporter.OTLP_GRPC, "http://127.0.0.1:1", "", 0.2)
            assert provider is not None
            await until(lambda: events.SPANS_EXPORT_FAILED in caplog.messages, "the outage is told")
    told = [record for record in caplog.records if record.name.startswith(("opentelemetry", "tandemmq"))]
    assert [record.msg for record in told].count(events.SPANS_EXPORT_FAILED) == 1
    assert not [record for record in told if record.name.startswith("opentelemetry")]


async def test_spans_need_a_target(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs tracesExporterTarget"):
        async with running_broker(tmp_path, traces_exporter=MetricsExporter.OTLP_HTTP):
            pass
