"""Hooks, and the message trace in RocketMQ's format (spec semantics 3.12)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from client_rig import FAST, Rig, running_cluster, take

from tandemmq.client import (
    ConsumeEvent,
    ConsumeResult,
    Message,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    SendEvent,
    StartFrom,
    TransactionProducer,
    TransactionState,
    tracing,
)
from tandemmq.errors import NoRoute, TandemError
from tandemmq.protocol.topic_names import TRACE_TOPIC
from waits import until

Records = dict[str, list[list[str]]]


async def records_of(rig: Rig, count: int) -> tuple[Records, list[ReceivedMessage]]:
    """Returns the records of the trace topic, by kind, and the messages that contained them."""
    found: Records = {}
    messages: list[ReceivedMessage] = []
    async with rig.consumer("reader", TRACE_TOPIC) as consumer:
        while sum(map(len, found.values())) < count:
            (message,) = await take(consumer, 1)
            messages.append(message)
            text = message.body.decode()
            assert text.endswith(tracing.END)
            for record in text.removesuffix(tracing.END).split(tracing.END):
                kind, *fields = record.split(tracing.FIELD)
                found.setdefault(kind, []).append(fields)
    return found, messages


async def test_the_trace_tells_who_sent_and_who_handled(tmp_path: Path) -> None:
    async def handle(message: ReceivedMessage) -> ConsumeResult:
        await asyncio.sleep(0)
        return ConsumeResult.RETRY if message.body == b"bad" else ConsumeResult.SUCCESS

    async with running_cluster(tmp_path, queue_count=1) as rig:
        options = ProducerOptions(client=FAST, trace=True)
        async with Producer("PG", rig.namesrv, options=options) as producer:
            single = await producer.send(Message(topic="T", body=b"good", tags="a", keys=["k1", "k2"]))
            batch = await producer.send_batch([Message(topic="T", body=b"b%d" % n) for n in range(2)])
            late = await producer.send(Message(topic="T", body=b"bad", delay_level=1))
        async with TransactionProducer(
            "TG", rig.namesrv, options=options, check=lambda _: TransactionState.COMMIT
        ) as producer:
            half = await producer.send(Message(topic="T", body=b"half"), lambda _: TransactionState.COMMIT)
        settings = PushOptions(client=FAST, start_from=StartFrom.FIRST, trace=True)
        consumer = PushConsumer("CG", rig.namesrv, handle, options=settings)
        consumer.subscribe("T")
        async with consumer:
            await until(lambda: sum(consumer.positions.values()) >= 5)
        found, messages = await records_of(rig, 5 + 2 * 5)

    sent = [single, *batch, late, half.sent]
    published = {fields[4]: fields for fields in found["Pub"]}
    assert published.keys() == {one.unique_key for one in sent}
    timestamp, region, group, topic, _, tags, keys, host, size, cost, kind, offset_id, is_ok = published[
        single.unique_key
    ]
    assert (region, group, topic, tags, keys, size) == ("DefaultRegion", "PG", "T", "a", "k1 k2", "4")
    assert (kind, offset_id, is_ok) == ("0", single.message_id, "true")
    assert int(timestamp) > 1_600_000_000_000
    assert int(cost) >= 0
    assert host.startswith("127.0.0.1:")
    assert [published[one.unique_key][10] for one in sent] == ["0", "0", "0", "3", "1"]
    assert published[late.unique_key][5:7] == ["null", "null"]

    before = {fields[3]: fields for fields in found["SubBefore"]}
    after = {fields[0]: fields for fields in found["SubAfter"]}
    assert before.keys() == after.keys()
    assert {fields[4] for fields in before.values()} == {one.unique_key for one in sent}
    (bad,) = [fields for fields in after.values() if fields[1] == late.unique_key]
    assert (bad[3], bad[5], bad[7]) == ("false", tracing.FAILED, "CG")
    (good,) = [fields for fields in after.values() if fields[1] == single.unique_key]
    assert (good[3], good[4], good[5]) == ("true", "k1 k2", tracing.SUCCESS)
    assert {"k1", "k2", single.unique_key} <= {key for message in messages for key in message.keys}


async def test_hooks_hear_of_every_outcome_and_may_fail(tmp_path: Path) -> None:
    sent: list[SendEvent] = []
    handled: list[ConsumeEvent] = []

    def on_send(event: SendEvent) -> None:
        sent.append(event)
        raise ValueError("a hook must not matter")

    def handle(message: ReceivedMessage) -> None:
        if message.body == b"1":
            raise ValueError("not now")

    async with running_cluster(tmp_path, queue_count=1) as rig:
        options = ProducerOptions(client=FAST, on_send=on_send, batch_linger_ms=0, retry_count_max=0)
        async with Producer("PG", rig.namesrv, options=options) as producer:
            await asyncio.gather(*(producer.send(Message(topic="T", body=b"%d" % n)) for n in range(3)))
            queue = (await producer.queues("T"))[0]
            with pytest.raises(TandemError):
                await producer.send(Message(topic="T", body=b"x"), queue=queue.__class__("T", "nobody", 0))
        settings = PushOptions(client=FAST, start_from=StartFrom.FIRST, on_consume=handled.append)
        consumer = PushConsumer("CG", rig.namesrv, handle, options=settings)
        consumer.subscribe("T")
        async with consumer:
            await until(lambda: len(handled) == 3)
    assert [event.message.body for event in sent] == [b"0", b"1", b"2", b"x"]
    assert all(event.result is not None and event.result.is_ok for event in sent[:3])
    assert isinstance(sent[3].error, NoRoute)
    outcomes = {event.message.body: (event.is_success, repr(event.error)) for event in handled}
    assert outcomes == {
        b"0": (True, "None"),
        b"1": (False, "ValueError('not now')"),
        b"2": (True, "None"),
    }


def test_trace_messages_stay_below_their_bounds() -> None:
    record = tracing.UnsentRecord("T", "R", ("k" * 1000,), "r" * 1000 + tracing.END)
    waiting = [record._replace(keys=(f"{number:01000d}",)) for number in range(40)]
    waiting.append(record._replace(topic="U", record="r" * tracing.BODY_BYTES_MAX))
    messages = list(tracing._messages(waiting, "X"))
    assert sum(len(message.keys) for message in messages) == 41
    assert all(sum(len(key) + 1 for key in message.keys) <= tracing.KEYS_CHARS_MAX for message in messages)
    assert all(len(message.body) <= tracing.BODY_BYTES_MAX for message in messages)


async def test_a_trace_that_cannot_leave_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_cluster(tmp_path) as rig:
        async with Producer("PG", rig.namesrv, options=ProducerOptions(client=FAST, trace=True)) as producer:
            tracer = producer._tracer
            assert tracer is not None
            for _ in range(tracing.WAITING_MAX + 5):
                tracer.add("T", "R", ("k",), ("Pub",))
            assert (await producer.send(Message(topic="T", body=b"1"))).is_ok
            assert len(tracer._waiting) <= tracing.WAITING_MAX
        assert any(getattr(line, "dropped_count", 0) >= 5 for line in caplog.records)
