"""Spans and metrics of the instrumented client library in front of a real broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from client_rig import FAST, Rig, running_rig

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tandemmq.client import (
    Admin,
    BlockingConsumer,
    BlockingProducer,
    ConsumeResult,
    ConsumerOptions,
    Message,
    PopConsumer,
    PopOptions,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartFrom,
    TransactionProducer,
    TransactionState,
    otel,
)
from tandemmq.client.blocking import in_worker
from tandemmq.client.otel_instrumentor import TandemMQInstrumentor
from tandemmq.errors import MessageIllegal, TandemError
from tandemmq.units import MIB
from waits import until


class Recorded:
    """The spans and the metrics of the instrumented clients."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    async def span(self, name: str) -> ReadableSpan:
        await until(lambda: len(self.spans(name)) == 1, f"one span {name}")
        (found,) = self.spans(name)
        return found

    def points(self, name: str) -> list[Any]:
        found = self.reader.get_metrics_data()
        return [
            point
            for of_resource in (found.resource_metrics if found is not None else ())
            for of_scope in of_resource.scope_metrics
            for metric in of_scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    found = Recorded()
    instrumentor = TandemMQInstrumentor()
    instrumentor.instrument(tracer_provider=found.tracers, meter_provider=found.meters)
    yield found
    instrumentor.uninstrument()
    found.tracers.shutdown()
    found.meters.shutdown()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running_rig(tmp_path) as found, Admin(found.namesrv) as admin:
        await found.start_broker()
        await admin.create_topic("T", queue_count=1)
        yield found


async def test_one_trace_leads_from_the_producer_to_the_handler(rig: Rig, recorded: Recorded) -> None:
    seen: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message)

    options = PushOptions(client=FAST, start_from=StartFrom.FIRST)
    tracer = recorded.tracers.get_tracer("application")
    consumer = PushConsumer("CG", rig.namesrv, handle, options=options)
    consumer.subscribe("T")
    async with Producer("PG", rig.namesrv) as producer, consumer:
        with tracer.start_as_current_span("checkout") as parent:
            message = Message(topic="T", body=b"x", tags="new", keys=("k1", "k2"), properties={"own": "kept"})
            result = await producer.send(message)
        process = await recorded.span("process T")
        send = await recorded.span("send T")
        client_id = producer.instance.client_id
    assert seen[0].properties["own"] == "kept"
    assert parent.get_span_context().trace_id == send.context.trace_id == process.context.trace_id
    assert send.parent is not None
    assert send.parent.span_id == parent.get_span_context().span_id
    assert process.parent is not None
    assert process.parent.span_id == send.context.span_id
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    host, port = rig._brokers["broker-a", 0].address
    assert dict(send.attributes or {}) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "T",
        "messaging.destination.partition.id": "0",
        "messaging.client.id": client_id,
        "messaging.message.id": result.unique_key,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "new",
        "messaging.rocketmq.message.keys": ("k1", "k2"),
        "server.address": host,
        "server.port": port,
    }
    found = dict(process.attributes or {})
    assert found["messaging.consumer.group.name"] == "CG"
    assert found["messaging.rocketmq.consumption_model"] == "clustering"
    assert found["messaging.message.id"] == result.unique_key
    (sent,) = recorded.points("messaging.client.sent.messages")
    (consumed,) = recorded.points("messaging.client.consumed.messages")
    assert (sent.value, consumed.value) == (1, 1)
    (took,) = recorded.points("messaging.process.duration")
    assert (took.count, took.explicit_bounds[0]) == (1, 0.005)
    assert dict(took.attributes)["messaging.consumer.group.name"] == "CG"


async def test_batches_one_way_sends_and_messages_with_a_context(rig: Rig, recorded: Recorded) -> None:
    async with Producer("PG", rig.namesrv) as producer:
        await producer.send_batch([Message(topic="T", body=b"1"), Message(topic="T", body=b"2")])
        batch = await recorded.span("send T")
        assert (batch.kind, (batch.attributes or {})["messaging.batch.message_count"]) == (
            SpanKind.PRODUCER,
            2,
        )
        recorded.exporter.clear()
        await producer.send_oneway(Message(topic="T", body=b"3"))
        assert (await recorded.span("send T")).kind is SpanKind.PRODUCER
        recorded.exporter.clear()
        with recorded.tracers.get_tracer("application").start_as_current_span("create") as created:
            made = otel.inject(Message(topic="T", body=b"4", delay_level=1))
        await producer.send(made)
        sent = await recorded.span("send T")
    assert sent.kind is SpanKind.CLIENT
    assert [link.context.span_id for link in sent.links] == [created.get_span_context().span_id]
    assert (sent.attributes or {})["messaging.rocketmq.message.type"] == "delay"
    assert (sent.attributes or {})["messaging.rocketmq.message.delay_time_level"] == 1


async def test_a_send_that_is_refused_here_has_a_span_with_the_error(rig: Rig, recorded: Recorded) -> None:
    async with Producer("PG", rig.namesrv) as producer:
        message = Message(topic="T", body=bytes(5 * MIB))
        for send in (producer.send, producer.send_oneway, lambda one: producer.send_batch([one, one])):
            with pytest.raises(MessageIllegal):
                await send(message)
            span = await recorded.span("send T")
            assert (span.attributes or {})["error.type"] == "MessageIllegal"
            assert span.status.status_code is StatusCode.ERROR
            recorded.exporter.clear()


async def test_received_messages_are_linked_and_settled(rig: Rig, recorded: Recorded) -> None:
    options = PopOptions(client=FAST, start_from=StartFrom.FIRST)
    pop = PopConsumer("POP", rig.namesrv, options=options)
    pop.subscribe("T")
    async with Producer("PG", rig.namesrv) as producer, pop, rig.consumer("PULL") as consumer:
        await producer.send(Message(topic="T", body=b"1"))
        sent = await recorded.span("send T")
        (polled,) = await consumer.poll(timeout_s=10)
        pulled = await recorded.span("receive T")
        consumer.ack(polled)
        assert await consumer.commit()
        await recorded.span("commit")
        recorded.exporter.clear()
        assert await pop.receive(1, timeout_s=10) != []
        popped = await recorded.span("receive T")
        assert await consumer.poll(timeout_s=0) == []
        assert len(recorded.spans("receive T")) == 1, "an empty poll is not worth a span"
    for receive, group in ((pulled, "PULL"), (popped, "POP")):
        assert receive.kind is SpanKind.CLIENT
        assert [link.context.span_id for link in receive.links] == [sent.context.span_id]
        assert (receive.attributes or {})["messaging.consumer.group.name"] == group
        assert (receive.attributes or {})["messaging.operation.type"] == "receive"


async def test_pops_are_acknowledged_and_given_back_once(rig: Rig, recorded: Recorded) -> None:
    pop = PopConsumer("POP", rig.namesrv, options=PopOptions(client=FAST, start_from=StartFrom.FIRST))
    pop.subscribe("T")
    async with Producer("PG", rig.namesrv) as producer, pop:
        for body in (b"1", b"2"):
            await producer.send(Message(topic="T", body=body))
        found: list[Any] = []

        async def all_came() -> bool:
            found.extend(await pop.receive(2, timeout_s=1))
            return len(found) == 2

        await until(all_came)
        await pop.ack(found[0])
        await pop.nack(found[1])
        ack, nack = await recorded.span("ack T"), await recorded.span("nack T")
    assert recorded.spans("change_invisible T") == [], "it is a part of nack"
    assert [(span.attributes or {})["messaging.operation.type"] for span in (ack, nack)] == ["settle"] * 2
    assert ack.links


async def test_handlers_of_lists_and_messages_that_settle_themselves(rig: Rig, recorded: Recorded) -> None:
    options = PushOptions(client=FAST, start_from=StartFrom.FIRST)
    consumer = PushConsumer("lists", rig.namesrv, options=options)

    @consumer.subscriber("T", batch_count_max=8, worker_count=1, batch_linger_s=0.2)
    async def handle(messages: list[ReceivedMessage]) -> None:
        await messages[0].dead_letter(reason="the test")

    async with Producer("P", rig.namesrv) as producer, consumer:
        await producer.send_batch([Message("T", b"one"), Message("T", b"two")])
        process, dead_letter = await recorded.span("process T"), await recorded.span("dead_letter T")
    assert (process.kind, dead_letter.kind) == (SpanKind.CONSUMER, SpanKind.CLIENT)
    assert process.attributes is not None
    assert process.attributes["messaging.batch.message_count"] == 2
    assert len(process.links) == 2
    assert dead_letter.parent is not None
    assert dead_letter.parent.span_id == process.context.span_id


async def test_a_transaction_has_a_send_and_an_end(rig: Rig, recorded: Recorded) -> None:
    async def commit(_: Message) -> TransactionState:
        return TransactionState.COMMIT

    async with TransactionProducer("TG", rig.namesrv, check=commit) as producer:
        await producer.send(Message(topic="T", body=b"1"), commit)
        send = await recorded.span("send T")
        await recorded.span("commit T")
    assert (send.attributes or {})["messaging.rocketmq.message.type"] == "transaction"


async def test_failures_have_a_type(rig: Rig, recorded: Recorded) -> None:
    def handle(message: ReceivedMessage) -> ConsumeResult | None:
        if message.body == b"retry":
            return ConsumeResult.RETRY
        raise ValueError("broken")

    consumer = PushConsumer(
        "CG", rig.namesrv, handler=handle, options=PushOptions(client=FAST, start_from=StartFrom.FIRST)
    )
    consumer.subscribe("T")
    async with Producer("PG", rig.namesrv, options=ProducerOptions(timeout_s=0.5)) as producer, consumer:
        await producer.send_batch([Message(topic="T", body=body) for body in (b"retry", b"raise")])
        await until(lambda: len(recorded.spans("process T")) == 2)
        await rig.stop_broker()
        with pytest.raises(TandemError):
            await producer.send(Message(topic="T", body=b"x"))
        await until(lambda: len(recorded.spans("send T")) == 2)
    kinds = {(span.attributes or {})["error.type"] for span in recorded.spans("process T")}
    assert kinds == {"RETRY", "ValueError"}
    failed = recorded.spans("send T")[1]
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] in ("BrokerUnreachable", "RequestTimeout", "NoRoute")
    counted = {
        dict(point.attributes).get("error.type")
        for point in recorded.points("messaging.client.sent.messages")
    }
    assert len(counted) == 2


@pytest.mark.parametrize("opt_in", ["messaging", "messaging/dup"])
async def test_the_names_of_the_present_registry(
    rig: Rig, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, opt_in: str
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", f"http,{opt_in}")
    async with Producer("PG", rig.namesrv) as producer:
        await producer.send(Message(topic="T", body=b"1", tags="a"))
        names = (await recorded.span("send T")).attributes or {}
    assert (names["messaging.system.name"], names["rocketmq.message.tag"]) == ("rocketmq", "a")
    assert ("messaging.system" in names, "messaging.rocketmq.message.tag" in names) == (
        (opt_in == "messaging/dup"),
    ) * 2


async def test_blocking_clients_keep_the_callers_context(rig: Rig, recorded: Recorded) -> None:
    tracer = recorded.tracers.get_tracer("application")

    def work() -> int:
        with tracer.start_as_current_span("checkout") as parent:
            with BlockingProducer("PG", rig.namesrv) as producer:
                producer.send(Message(topic="T", body=b"1"))
            options = ConsumerOptions(client=FAST, start_from=StartFrom.FIRST)
            with BlockingConsumer("CG", rig.namesrv, options=options) as consumer:
                consumer.subscribe("T")
                while not consumer.poll(timeout_s=1):
                    pass
            return int(parent.get_span_context().trace_id)

    trace_id = await in_worker(work)
    for name in ("send T", "receive T"):
        assert (await recorded.span(name)).context.trace_id == trace_id


async def test_nothing_is_recorded_without_the_instrumentation(rig: Rig, recorded: Recorded) -> None:
    TandemMQInstrumentor().uninstrument()
    async with Producer("PG", rig.namesrv) as producer:
        await producer.send(Message(topic="T", body=b"1"))
    assert recorded.exporter.get_finished_spans() == ()


SCRIPT = """
import asyncio, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from tandemmq.client import Message, Producer

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)

async def main():
    async with Producer("PG", sys.argv[1]) as producer:
        await producer.send(Message(topic="T", body=b"1"))

asyncio.run(main())
"""


async def test_opentelemetry_instrument_needs_no_change_to_a_program(rig: Rig, tmp_path: Path) -> None:
    if not entry_points(group="opentelemetry_instrumentor", name="tandemmq"):
        pytest.skip("the package was installed before it had an instrumentation: scripts/setup")
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    command = Path(sys.executable).with_name("opentelemetry-instrument")

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, sys.executable, path, rig.namesrv],
            capture_output=True,
            text=True,
            check=True,
        )

    done = await in_worker(run)
    assert '"name": "send T"' in done.stdout, done.stderr
