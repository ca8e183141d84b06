"""Producers of our Python client against our servers and RocketMQ's: sends in flight, code around each send,
metrics, spans, transactions in two steps, and what an old broker would ignore.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence

import msgspec
import pytest
from client_place import CASES, SENDING, Place, bodies, calls, numbers, only_5, take
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tandemmq.client import (
    Admin,
    ClientMetrics,
    Compression,
    Message,
    MessageIllegal,
    ReceivedMessage,
    RequestRejected,
    SendResult,
    TransactionProducer,
    TransactionState,
)
from tandemmq.client.hooks import CallSend
from tandemmq.client.otel_instrumentor import TandemMQInstrumentor
from waits import PATIENCE_S, until

pytestmark = CASES
HANDLE = base64.urlsafe_b64encode(b"v1 T broker-a 4000000000000 K").decode()


@calls(
    *("Producer.start_send", "Producer.start_batch", "Producer.flush", "Producer.in_flight"),
    *("Producer.queues", "Producer.queue_for", "Producer.retried_count", "Producer.send_system"),
    *("ProducerOptions.compression", "ProducerOptions.batch_linger_ms"),
)
async def test_sends_in_flight_keep_their_order_in_the_queue_of_a_key(place: Place) -> None:
    options = {"compression": Compression.ZSTD, "compress_from_bytes": 100, "batch_linger_ms": 5}
    async with place.producer(**options) as producer, place.consumer() as consumer:
        queue = await producer.queue_for(place.topic, "customer 17")
        assert queue in await producer.queues(place.topic)
        sends = [
            await producer.start_send(Message(topic=place.topic, body=b"%d" % number), queue=queue)
            for number in range(20)
        ]
        await producer.flush(timeout_s=PATIENCE_S)
        batch = [Message(topic=place.topic, body=b"%d" % number) for number in range(20, 23)]
        stored = await producer.start_batch(batch, queue=queue)
        await producer.flush(timeout_s=PATIENCE_S)
        assert producer.in_flight == 0
        assert producer.retried_count >= 0
        results = [send.result() for send in sends] + stored.result()
        assert {result.queue for result in results} == {queue}
        large = await producer.send_system(Message(topic=place.topic, body=b"z" * 10_000), {}, timeout_s=20.0)
        assert large.is_ok
        found = {message.body: message for message in await take(consumer, 24)}
        assert found[b"z" * 10_000].body_fault == ""
        assert [found[b"%d" % number].queue_offset for number in range(23)] == [
            result.queue_offset for result in results
        ]


@calls(
    *("ProducerOptions.middleware", "ProducerOptions.before_send", "ProducerOptions.metrics"),
    *("ClientMetrics.collect", "ClientMetrics.in_flight", "ClientMetrics.retried_count"),
)
async def test_code_around_each_send_and_its_metrics(place: Place) -> None:
    metrics = ClientMetrics()

    async def mark(messages: Sequence[Message], call_next: CallSend) -> list[SendResult]:
        return await call_next([msgspec.structs.replace(one, tags="marked") for one in messages])

    def name(message: Message) -> Message:
        return msgspec.structs.replace(message, properties={"sender": "shop"})

    async with place.producer(middleware=[mark], before_send=name, metrics=metrics) as producer:
        await producer.send(Message(topic=place.topic, body=b"0"))
        await producer.send_batch([Message(topic=place.topic, body=b"%d" % number) for number in (1, 2)])
        assert metrics.in_flight == 0
        assert metrics.retried_count == producer.retried_count
    async with place.consumer(tags="marked") as consumer:
        found = await take(consumer, 3)
        assert bodies(found) == numbers(3)
        assert {message.properties["sender"] for message in found} == {"shop"}
    sent = {one.name: one for one in metrics.collect()}["tandemmq_client_sent_messages"]
    assert sum(row.value for row in sent.samples if row.labels["outcome"] == "success") == 3


@calls("otel_instrumentor.TandemMQInstrumentor")
async def test_a_span_of_the_handler_is_the_child_of_the_span_of_the_send(place: Place) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = TandemMQInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:

        async def handle(message: ReceivedMessage) -> None: ...

        async with place.producer() as producer, place.push(handle):
            await producer.send(Message(topic=place.topic, body=b"a"))

            def spans() -> dict[str, object]:
                return {span.name.split()[0]: span for span in exporter.get_finished_spans()}

            await until(lambda: {"send", "process"} <= spans().keys())
    finally:
        instrumentor.uninstrument()
    send, process = (spans()[kind] for kind in ("send", "process"))
    assert process.parent.span_id == send.context.span_id  # type: ignore[attr-defined]
    assert process.context.trace_id == send.context.trace_id  # type: ignore[attr-defined]


@pytest.mark.usefixtures("rests_after_transactions")
@calls("TransactionProducer.send_half", "TransactionProducer.end")
async def test_transactions_in_two_steps(place: Place) -> None:
    async with (
        TransactionProducer(
            f"X{place.group}", place.namesrv, check=lambda _: TransactionState.UNKNOWN, options=SENDING
        ) as producer,
        place.consumer() as consumer,
    ):
        halves = {
            state: await producer.send_half(Message(topic=place.topic, body=state.name.encode()))
            for state in (TransactionState.ROLLBACK, TransactionState.COMMIT)
        }
        assert await consumer.poll(timeout_s=0.3) == []
        for state, half in halves.items():
            await producer.end(half, state)
        assert bodies(await take(consumer, 1)) == [b"COMMIT"]


@only_5
@calls("Producer.recall", "Message.deliver_at_ms", "Message.delay_ms")
async def test_a_timed_message_is_recalled(place: Place) -> None:
    async with place.producer() as producer, place.consumer() as consumer:
        at_ms = round(time.time() * 1000) + 4_000
        recalled = await producer.send(Message(topic=place.topic, body=b"recalled", deliver_at_ms=at_ms))
        assert recalled.recall_handle is not None
        assert await producer.recall(place.topic, recalled.recall_handle) == recalled.unique_key
        later = await producer.send(Message(topic=place.topic, body=b"kept", delay_ms=4_000))
        assert later.is_ok
        assert bodies(await take(consumer, 1)) == [b"kept"]


@only_5
@calls("Message.priority")
async def test_pops_get_the_highest_priority_first(place: Place) -> None:
    topic = f"P{place.topic}"
    async with Admin(place.namesrv) as admin, place.producer() as producer:
        await admin.create_topic(topic, queue_count=3, attributes={"+message.type": "PRIORITY"})
        for priority in (0, 2, 1):
            await producer.send(Message(topic=topic, body=b"%d" % priority, priority=priority))
    consumer = place.pop()
    consumer.subscribe(topic)
    async with consumer:
        found: list[bytes] = []
        while len(found) < 3:
            for message in await consumer.receive(1, topic=topic, timeout_s=5.0):
                found.append(message.body)
                await consumer.ack(message)
    assert found == [b"2", b"1", b"0"]


@pytest.mark.parametrize("cluster", ["java_4"], indirect=True)
@pytest.mark.parametrize(
    "fields", [{"delay_ms": 1_500}, {"deliver_at_ms": 4_000_000_000_000}, {"priority": 1}]
)
async def test_what_version_4_would_ignore_is_refused(place: Place, fields: dict[str, int]) -> None:
    async with place.producer() as producer:
        message = Message(topic=place.topic, body=b"a", **fields)  # type: ignore[arg-type]  # real fields
        for send in (producer.send, producer.send_oneway):
            with pytest.raises(MessageIllegal, match="broker 'broker-a' has RocketMQ V4_9_"):
                await send(message)
        with pytest.raises(RequestRejected, match="code 3"):
            await producer.recall(place.topic, HANDLE)
