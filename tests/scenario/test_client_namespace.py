"""A client of a namespace uses the short names of its topics and groups; other clients see the full ones."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from client_rig import FAST, Rig, numbers, running_cluster, take

from tandemmq.client import (
    Admin,
    BlockingConsumer,
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
    SendEvent,
    StartFrom,
    TransactionProducer,
    TransactionState,
    tracing,
)
from tandemmq.errors import TopicNotFound
from tandemmq.protocol.topic_names import TRACE_TOPIC
from waits import PATIENCE_S, until

SHOP = replace(FAST, namespace="shop")
SENDING = ProducerOptions(client=SHOP)
FULL = "shop%T"


async def fill(rig: Rig, count: int) -> None:
    """Sends the numbers from 0 on to the topic of the namespace, and one message to the other topic T."""
    async with Producer("P", rig.namesrv, options=SENDING) as producer:
        for number in range(count):
            await producer.send(Message(topic="T", body=b"%d" % number))
    await rig.fill("T", 1, first=100)


async def add_topic(rig: Rig) -> None:
    async with Admin(rig.namesrv) as admin:
        await admin.create_topic(FULL, queue_count=2)


async def test_a_namespace_sees_its_own_topic_by_its_short_name(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig:
        await add_topic(rig)
        await fill(rig, 6)
        async with rig.consumer(client=SHOP, auto_ack=False) as inside, rig.consumer("CG", FULL) as outside:
            messages = await take(inside, 6)
            assert numbers(messages) == numbers(await take(outside, 6)) == list(range(6))
            assert {message.topic for message in messages} == {"T"}
            assert messages[0].properties["INSTANCE_ID"] == "shop"
            assert inside.group == "shop%CG"
            queues = await inside.queues("T")
            assert {queue.topic for queue in queues} == {"T"}
            assert set(queues) <= set(inside.assigned) == inside.positions.keys()
            inside.pause(*queues)
            inside.resume(*queues)
            inside.ack(*messages)
            assert await inside.commit()
            assert await inside.seek(queues[0], StartFrom.FIRST) == 0
            again = await take(inside, 1)
            assert again[0].queue_id == queues[0].queue_id
            await inside.retry_later(again[0], delay_level=1)
            async with asyncio.timeout(PATIENCE_S):
                while not (found := [one for one in await inside.poll() if one.retry_count]):
                    pass
            assert [(one.topic, one.body) for one in found] == [("T", again[0].body)]
            await inside.retry_later(found[0], delay_level=-1)
            inside.unsubscribe("T")
            await until(lambda: not any(queue.topic == "T" for queue in inside.assigned))
        async with rig.consumer("dead", "%DLQ%CG", client=SHOP) as dead:
            (message,) = await take(dead, 1)
            assert (message.topic, message.body) == ("%DLQ%CG", again[0].body)
        async with Admin(rig.namesrv) as admin:

            async def is_counted() -> bool:
                return await admin.message_count("%DLQ%shop%CG") == 1

            known = "the name server knows the topic of dead letters"
            await until(is_counted, known, not_yet=(TopicNotFound,))
            assert await admin.lag("shop%CG", FULL) < 6


async def test_chosen_queues_and_the_blocking_twin(tmp_path: Path) -> None:
    def run(namesrv: str) -> list[int]:
        options = ConsumerOptions(client=SHOP, start_from=StartFrom.FIRST)
        consumer = BlockingConsumer("CG", namesrv, options=options)
        with consumer:
            queues = consumer.queues("T")
            consumer.assign(*queues)
            found = [next(consumer) for _ in range(6)]
            for queue in queues:
                assert consumer.seek(queue, StartFrom.FIRST) == 0
            return numbers(found + [next(consumer) for _ in range(6)])

    async with running_cluster(tmp_path) as rig:
        await add_topic(rig)
        await fill(rig, 6)
        assert await asyncio.to_thread(run, rig.namesrv) == sorted([*range(6), *range(6)])


async def test_push_consumers_hooks_and_traces(tmp_path: Path) -> None:
    tries: list[tuple[str, bytes, int]] = []
    sent: list[SendEvent] = []

    async def handle(message: ReceivedMessage) -> ConsumeResult:
        tries.append((message.topic, message.body, message.retry_count))
        return ConsumeResult.SUCCESS if message.retry_count else ConsumeResult.RETRY

    async with running_cluster(tmp_path) as rig:
        await add_topic(rig)
        sending = replace(SENDING, trace=True, on_send=sent.append)
        async with Producer("P", rig.namesrv, options=sending) as producer:
            result = await producer.send(Message(topic="T", body=b"a"))
        options = PushOptions(client=SHOP, start_from=StartFrom.FIRST, retry_delay_level=1, trace=True)
        consumer = PushConsumer("CG", rig.namesrv, handle, options=options)
        consumer.subscribe("T")
        async with consumer:
            await until(lambda: len(tries) == 2)
        assert tries == [("T", b"a", 0), ("T", b"a", 1)]
        assert [(event.message.topic, event.result) for event in sent] == [("T", result)]
        records: list[list[str]] = []
        async with rig.consumer("reader", TRACE_TOPIC) as reader:
            while len(records) < 5:
                for message in await take(reader, 1):
                    records += tracing.split_records(message.body)
        published = [fields[3:5] for fields in records if fields[0] == "Pub"]
        assert published == [["P", "T"]]
        assert {fields[3] for fields in records if fields[0] == "SubBefore"} == {"CG"}


async def test_pop_consumers(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig:
        await add_topic(rig)
        consumer = PopConsumer("PG", rig.namesrv, options=PopOptions(client=SHOP, start_from=StartFrom.FIRST))
        consumer.subscribe("T")
        async with consumer, asyncio.timeout(PATIENCE_S):
            await fill(rig, 3)
            found = []
            while len(found) < 3:
                found += await consumer.receive()
            assert numbers(found) == [0, 1, 2]  # type: ignore[arg-type]  # a list of its subclass
            *done, last = found
            await consumer.ack(*done)
            await consumer.change_invisible(last, 0.5)
            while not (again := await consumer.receive()):
                pass
            assert [(one.topic, one.body, one.retry_count) for one in again] == [("T", last.body, 1)]
            await consumer.ack(*again)
            consumer.unsubscribe("T")
            assert await consumer.receive(timeout_s=0.1) == []


async def test_transactions_checks_requests_and_recalls(tmp_path: Path) -> None:
    asked: list[str] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.topic)
        return TransactionState.COMMIT

    async with running_cluster(tmp_path) as rig:
        await rig.stop_broker()
        await rig.start_broker(
            transaction_timeout_ms=300, transaction_check_period_ms=200, recall_enable=True
        )
        await add_topic(rig)
        async with (
            rig.consumer(client=SHOP) as consumer,
            TransactionProducer("TG", rig.namesrv, check=check, options=SENDING) as transactions,
            Producer("P", rig.namesrv, options=SENDING) as producer,
        ):
            for state in (TransactionState.COMMIT, TransactionState.UNKNOWN):
                message = Message(topic="T", body=state.name.encode())
                await transactions.send(message, lambda _, state=state: state)  # type: ignore[misc]
            found = await take(consumer, 2)
            assert sorted(one.body for one in found) == [b"COMMIT", b"UNKNOWN"]
            assert set(asked) == {"T"}  # a busy machine is asked again before the broker has the answer
            request = asyncio.ensure_future(
                producer.request(Message(topic="T", body=b"ping"), timeout_s=PATIENCE_S)
            )
            (asking,) = await take(consumer, 1)
            await consumer.reply(asking, b"pong")
            assert (await request).body == b"pong"
            later = await producer.send(Message(topic="T", body=b"later", delay_ms=60_000))
            assert later.recall_handle is not None
            assert await producer.recall("T", later.recall_handle) == later.unique_key


async def test_the_newer_kind_leaves_names_as_they_are(tmp_path: Path) -> None:
    newer = replace(FAST, namespace_v2="shop")
    async with running_cluster(tmp_path) as rig:
        async with Producer("P", rig.namesrv, options=ProducerOptions(client=newer)) as producer:
            await producer.send(Message(topic="T", body=b"1"))
        async with rig.consumer(client=newer) as consumer:
            assert numbers(await take(consumer, 1)) == [1]
