"""The properties of a message carry the sender's trace context to its handler."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from client_fakes import running_cluster
from test_inbox_orderly import message_at

from tandemmq.client import (
    BlockingProducer,
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.client.blocking import in_worker
from tandemmq.client.consumer.workers import ConsumeResult
from tandemmq.errors import TandemError
from tandemmq.protocol.record import decode_record
from waits import PATIENCE_S, until

trace = pytest.importorskip("opentelemetry.trace")
otel = pytest.importorskip("tandemmq.client.otel")


@contextmanager
def span_of(trace_id: int) -> Iterator[None]:
    """Simulates a caller inside a span of this trace, which is recorded elsewhere."""
    context = trace.SpanContext(trace_id, span_id=7, is_remote=False, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(context)):
        yield


def current_trace() -> int:
    return int(trace.get_current_span().get_span_context().trace_id)


@pytest.mark.parametrize("linger_ms", [None, 0])
async def test_every_way_of_sending_carries_the_callers_context(linger_ms: float | None) -> None:
    options = ProducerOptions(before_send=otel.inject, batch_linger_ms=linger_ms)
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        with span_of(1):
            await producer.send(Message(topic="T", body=b"1", properties={"own": "kept"}))
        with span_of(2):
            await producer.send_batch([Message(topic="T", body=b"2") for _ in range(2)])
        with span_of(3):
            await producer.send_oneway(Message(topic="T", body=b"3"))
        with span_of(4):
            await producer.send(Message(topic="T", body=b"4", properties={"traceparent": "own"}))
        await producer.send(Message(topic="T", body=b"0"))

        def send_blocking() -> None:
            with span_of(5), BlockingProducer("h", cluster.namesrv, options=options) as blocking:
                blocking.send(Message(topic="T", body=b"5"))

        await in_worker(send_blocking)
        await until(lambda: len(cluster[0].queue("T", 0).records) == 7)
        records = [decode_record(raw) for raw, *_ in cluster[0].queue("T", 0).records]
    told = {record.body: record.properties.get("traceparent") for record in records}
    for number in (1, 2, 3, 5):
        assert told[b"%d" % number] == f"00-{number:032x}-0000000000000007-01"
    assert told[b"4"] == "own"
    assert told[b"0"] is None
    assert records[0].properties["own"] == "kept"


@pytest.mark.parametrize("kind", ["async", "plain", "object", "awaitable"])
async def test_a_handler_runs_in_the_context_of_its_message(kind: str) -> None:
    seen: dict[bytes, int] = {}

    async def handle(message: ReceivedMessage) -> None:
        seen[message.body] = current_trace()

    def handle_plain(message: ReceivedMessage) -> None:
        seen[message.body] = current_trace()

    class Handling:
        async def __call__(self, message: ReceivedMessage) -> None:
            seen[message.body] = current_trace()

    handlers: dict[str, Any] = {"async": handle, "plain": handle_plain, "object": Handling()}
    handlers["awaitable"] = lambda message: handle(message)
    sending = ProducerOptions(before_send=otel.inject)
    reading = PushOptions(start_from=StartFrom.FIRST)
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=sending) as producer:
        consumer = PushConsumer("c", cluster.namesrv, otel.traced(handlers[kind]), options=reading)
        consumer.subscribe("T")
        async with consumer:
            for number in (1, 2):
                with span_of(number):
                    await producer.send(Message(topic="T", body=b"%d" % number))
            await until(lambda: len(seen) == 2)
    assert seen == {b"1": 1, b"2": 2}


async def test_the_span_of_a_plain_handler_ends_after_the_awaitable_that_it_returns() -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    exported = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter, provider = exported.InMemorySpanExporter(), sdk.TracerProvider()
    processors = pytest.importorskip("opentelemetry.sdk.trace.export")
    provider.add_span_processor(processors.SimpleSpanProcessor(exporter))
    telemetry = otel.ClientTelemetry(provider)

    async def fail(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        assert current_trace()
        raise KeyError(message.topic)

    async def ask_again(message: ReceivedMessage) -> ConsumeResult:
        return ConsumeResult.RETRY

    for handler, error in ((fail, "KeyError"), (ask_again, "RETRY")):
        running = telemetry.traced(lambda message, call=handler: call(message))(message_at(0))
        assert exporter.get_finished_spans() == (), "the processing goes on"
        with suppress(KeyError):
            await running
        (span,) = exporter.get_finished_spans()
        assert span.attributes["error.type"] == error
        exporter.clear()
        assert current_trace() == 0


async def test_a_polled_message_is_worked_on_in_its_context() -> None:
    sending = ProducerOptions(before_send=otel.inject)
    reading = ConsumerOptions(start_from=StartFrom.FIRST)
    async with (
        running_cluster(T=1) as cluster,
        Producer("g", cluster.namesrv, options=sending) as producer,
        Consumer("c", cluster.namesrv, options=reading) as consumer,
    ):
        consumer.subscribe("T")
        with span_of(9):
            await producer.send(Message(topic="T", body=b"x"))
        (message,) = await consumer.poll(timeout_s=10)
        with otel.processing(message):
            assert current_trace() == 9
        assert current_trace() == 0


async def test_before_send_exception_reaches_the_caller_and_frees_its_slot() -> None:
    def refuse(message: Message) -> Message:
        raise KeyError(message.topic)

    options = ProducerOptions(before_send=refuse, in_flight_count_max=1)
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=options) as producer:
        for _ in range(3):
            with pytest.raises(KeyError):
                await producer.send(Message(topic="T", body=b"x"))
        with pytest.raises(KeyError):
            await producer.send_batch([Message(topic="T", body=b"x")] * 2)


@pytest.mark.parametrize("wrong", [{"keys": None}, {"keys": 5}, {"properties": {"traceparent": 5}}])
async def test_an_instrumented_producer_releases_the_room_of_a_message_that_is_refused(
    wrong: dict[str, Any],
) -> None:
    instrumentor = pytest.importorskip("tandemmq.client.otel_instrumentor").TandemMQInstrumentor()
    options = ProducerOptions(in_flight_count_max=1)
    instrumentor.instrument()
    try:
        async with (
            running_cluster(T=1) as cluster,
            Producer("g", cluster.namesrv, options=options) as producer,
        ):
            for _ in range(2):
                async with asyncio.timeout(PATIENCE_S):
                    with pytest.raises((TypeError, AttributeError, TandemError)):
                        await producer.send(Message(topic="T", body=b"x", **wrong))
                    with pytest.raises((TypeError, AttributeError, TandemError)):
                        await producer.send_oneway(Message(topic="T", body=b"x", **wrong))
            async with asyncio.timeout(PATIENCE_S):
                await producer.send(Message(topic="T", body=b"x"))
                await producer.flush()
    finally:
        instrumentor.uninstrument()


def test_the_extra_is_named_when_it_is_missing() -> None:
    script = "import sys; sys.modules['opentelemetry'] = None; import tandemmq.client.otel"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "ImportError: tandemmq.client.otel needs the extra otel: run `pip install" in run.stderr
