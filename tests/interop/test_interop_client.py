"""Our Python client, all of it, against our servers and against RocketMQ's: the same cases, one after the
other. `make client-both` runs only these and ends with a line of their counts.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections import defaultdict
from dataclasses import replace

import pytest
from client_place import CASES, FAST, SENDING, Place, bodies, calls, numbers, only_5, take
from clusters import Cluster

from tandemmq.api.calls import call
from tandemmq.client import (
    Admin,
    BlockingPopConsumer,
    BlockingPushConsumer,
    ClientInstance,
    ConsumeEvent,
    ConsumeResult,
    Message,
    MessageModel,
    PopOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    SendEvent,
    StartFrom,
    TransactionProducer,
    TransactionState,
    allocate_by_circle,
)
from tandemmq.client.consumer.workers import Handler
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.requests.admin import ConsumeDirectlyRequest
from tandemmq.protocol.topic_names import TRACE_TOPIC, dlq_topic
from waits import PATIENCE_S, until

pytestmark = CASES


@calls(
    "Producer.send",
    "Producer.send_batch",
    "Producer.send_many",
    "Producer.send_oneway",
    "ProducerOptions.batch_linger_ms",
    "Message.tags",
    "Message.keys",
)
async def test_every_way_to_send(place: Place) -> None:
    large = zlib.compress(b"x") * 2_000
    async with place.producer(batch_linger_ms=0) as producer, place.consumer() as consumer:
        message = Message(topic=place.topic, body=b"a", tags="t", keys=["k"], properties={"p": "v"})
        single = await producer.send(message)
        batch = await producer.send_batch([Message(topic=place.topic, body=b"b%d" % n) for n in range(3)])
        summary = await producer.send_many(Message(topic=place.topic, body=b"m%d" % n) for n in range(50))
        await producer.send_oneway(Message(topic=place.topic, body=b"o"))
        await producer.send(Message(topic=place.topic, body=large))
        assert single.is_ok
        assert all(result.is_ok for result in batch)
        assert summary.stored_count == 50
        found = {message.body: message for message in await take(consumer, 1 + 3 + 50 + 1 + 1)}
        assert large in found
        got = found[b"a"]
        assert (got.tags, got.keys, got.properties["p"]) == ("t", ("k",), "v")
        assert got.message_id == single.unique_key
        assert got.queue_offset == single.queue_offset


@calls("ConsumerOptions.auto_ack")
async def test_unacknowledged_messages_are_redelivered(place: Place) -> None:
    await place.fill(20)
    async with place.consumer(auto_ack=False) as consumer:
        messages = await take(consumer, 20)
        left = [message for message in messages if message.queue_offset >= 5]
        consumer.ack(*(message for message in messages if message.queue_offset < 5))
    async with place.consumer(auto_ack=False) as consumer:
        assert bodies(await take(consumer, len(left))) == bodies(left)


@calls("Message.delay_level")
async def test_tags_and_delay_levels(place: Place) -> None:
    async with place.producer() as producer, place.consumer(tags="Aa || c") as consumer:
        for tag in ("BB", "Aa", "c", "d"):
            await producer.send(Message(topic=place.topic, body=tag.encode(), tags=tag))
        late = await producer.send(Message(topic=place.topic, body=b"level", tags="c", delay_level=1))
        messages = await take(consumer, 3)
        assert bodies(messages) == [b"Aa", b"c", b"level"]
        (delayed,) = [message for message in messages if message.body == b"level"]
        assert delayed.message_id == late.unique_key
        assert delayed.stored_at_ms - delayed.born_at_ms >= 900


@only_5
@calls("Message.delay_ms")
async def test_a_message_for_later_to_the_second(place: Place) -> None:
    async with place.producer() as producer, place.consumer() as consumer:
        await producer.send(Message(topic=place.topic, body=b"timer", delay_ms=1_500))
        (message,) = await take(consumer, 1)
        assert message.body == b"timer"
        assert message.stored_at_ms - message.born_at_ms >= 1_000


@calls("GroupConsumer.retry_later")
async def test_handed_back_messages_come_again_and_die(place: Place) -> None:
    await place.fill(3)
    async with place.consumer() as consumer:
        for message in await take(consumer, 3):
            await consumer.retry_later(message, delay_level=1)
        again = await take(consumer, 3)
        assert [(message.retry_count, message.topic) for message in again] == [(1, place.topic)] * 3
        for message in again:
            await consumer.retry_later(message, delay_level=-1)
        async with place.consumer(dlq_topic(place.group), group=f"D{place.group}") as dead:
            assert bodies(await take(dead, 3)) == numbers(3)


@calls("ConsumerOptions.model", "ConsumerOptions.offsets_dir")
async def test_broadcasting_gives_everything_to_everybody(
    place: Place, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = str(tmp_path_factory.mktemp("offsets"))
    settings: dict[str, object] = {"model": MessageModel.BROADCASTING, "offsets_dir": directory}
    async with place.consumer(**settings) as one, place.consumer(**settings) as two:  # type: ignore[arg-type]
        await place.fill(10)
        assert bodies(await take(one, 10)) == bodies(await take(two, 10)) == numbers(10)


@calls("Consumer.suspend", "ConsumerOptions.orderly")
async def test_orderly_queues_wait_for_what_was_suspended(place: Place) -> None:
    await place.fill(12)
    handled: dict[int, list[int]] = defaultdict(list)
    failed: set[int] = set()
    async with place.consumer(orderly=True) as consumer, asyncio.timeout(PATIENCE_S):
        async for message in consumer:
            if message.queue_offset == 2 and message.queue_id not in failed:
                failed.add(message.queue_id)
                await consumer.suspend(message, delay_s=0.1)
                continue
            handled[message.queue_id].append(int(message.queue_offset))
            if sum(map(len, handled.values())) == 12:
                break
    assert all(offsets == sorted(offsets) for offsets in handled.values())
    assert len(failed) == 2


@calls("Consumer.poll", "Consumer.assign", "Consumer.seek", "GroupConsumer.pause", "GroupConsumer.resume")
async def test_chosen_queues_pause_and_seek(place: Place) -> None:
    await place.fill(10)
    consumer = place.consumer("-", auto_ack=False)
    async with consumer:
        queue = (await consumer.queues(place.topic))[0]
        consumer.assign(queue)
        first = await take(consumer, 1)
        first += await consumer.poll(timeout_s=1)
        assert {message.queue_id for message in first} == {queue.queue_id}
        consumer.pause(queue)
        assert await consumer.seek(queue, StartFrom.FIRST) == 0
        assert await consumer.poll(timeout_s=0.3) == []
        consumer.resume(queue)
        assert (await take(consumer, 1))[0].queue_offset == 0


@calls("ConsumerOptions.allocate", "allocate_by_circle")
async def test_members_share_queues_by_circle(place: Place) -> None:
    async with place.consumer(allocate=allocate_by_circle) as one:
        async with place.consumer(allocate=allocate_by_circle) as two:

            def shares() -> list[int]:
                return [sum(queue.topic == place.topic for queue in c.assigned) for c in (one, two)]

            await until(lambda: shares() == [1, 1])
        await until(lambda: sum(queue.topic == place.topic for queue in one.assigned) == 2)


@calls("ConsumerOptions.server_assignment")
async def test_members_share_queues_as_the_broker_says(place: Place) -> None:
    await place.fill(20)
    async with place.consumer(server_assignment=True) as one:
        assert bodies(await take(one, 20)) == numbers(20)
        async with place.consumer(server_assignment=True) as two:

            def shares() -> list[int]:
                return [sum(queue.topic == place.topic for queue in c.assigned) for c in (one, two)]

            await until(lambda: shares() == [1, 1])
        await until(lambda: shares()[0] == 2)


@pytest.mark.parametrize("is_async", [True, False])
@calls("PushOptions.retry_delay_level", "ConsumerOptions.retry_count_max")
async def test_push_tries_again_and_gives_up(place: Place, is_async: bool) -> None:
    tried: dict[bytes, list[int]] = defaultdict(list)

    def handle(message: ReceivedMessage) -> ConsumeResult:
        tried[message.body].append(message.retry_count)
        if message.body == b"1":
            raise ValueError("never")
        is_late = message.body == b"2" and not message.retry_count
        return ConsumeResult.RETRY if is_late else ConsumeResult.SUCCESS

    async def handle_async(message: ReceivedMessage) -> ConsumeResult:
        await asyncio.sleep(0)
        return handle(message)

    await place.fill(10)
    handler: Handler = handle_async if is_async else handle
    async with place.push(handler, retry_delay_level=1, retry_count_max=1):
        async with place.consumer(dlq_topic(place.group), group=f"D{place.group}") as dead:
            assert bodies(await take(dead, 1)) == [b"1"]
        await until(lambda: len(tried) == 10 and tried[b"1"] == tried[b"2"] == [0, 1])
    async with Admin(place.namesrv) as admin:
        await until(lambda: _is_done(admin, place), "all is committed")


async def _is_done(admin: Admin, place: Place) -> bool:
    return await admin.lag(place.group, place.topic) == 0


async def test_push_in_order(place: Place) -> None:
    await place.fill(20)
    handled: dict[int, list[int]] = defaultdict(list)

    async def handle(message: ReceivedMessage) -> None:
        if message.queue_offset == 3 and message.retry_count < 2:
            raise ValueError("not now")
        handled[message.queue_id].append(int(message.queue_offset))

    async with place.push(handle, orderly=True, orderly_suspend_s=0.05, orderly_batch_count_max=4):
        await until(lambda: sum(map(len, handled.values())) >= 20)
    assert all(offsets == list(range(len(offsets))) for offsets in handled.values())


async def test_two_push_members_take_over_from_each_other(place: Place) -> None:
    seen: set[bytes] = set()

    async def handle(message: ReceivedMessage) -> None:
        seen.add(message.body)

    async with place.push(handle) as one:
        async with place.push(handle) as two:
            await until(lambda: any(queue.topic == place.topic for queue in two.assigned))
            await place.fill(50)
            await until(lambda: len(seen) == 50)
        await until(lambda: sum(queue.topic == place.topic for queue in one.assigned) == 2)


async def test_an_administrator_calls_the_handler(place: Place, cluster: Cluster) -> None:
    seen: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message)

    instance = ClientInstance(place.namesrv, FAST)
    await instance.start()
    consumer = PushConsumer(
        place.group, "", handle, options=PushOptions(start_from=StartFrom.FIRST), instance=instance
    )
    consumer.subscribe(place.topic)
    try:
        async with consumer, place.producer() as producer:
            result = await producer.send(Message(topic=place.topic, body=b"again"))
            await until(lambda: len(seen) == 1)
            header = ConsumeDirectlyRequest(
                consumer_group=place.group, client_id=instance.client_id, message_id=result.message_id
            )
            address = cluster.brokers["broker-a"].address
            answer = await call(
                instance.remoting, address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_s=20.0
            )
            assert b'"CR_SUCCESS"' in answer.body
            assert bodies(seen) == [b"again", b"again"]
    finally:
        await instance.close()


@only_5
@calls("PopConsumer.receive", "PopConsumer.change_invisible")
async def test_pop_gives_each_message_once_and_what_is_let_go_again(place: Place) -> None:
    await place.fill(20)
    async with place.pop() as consumer, asyncio.timeout(PATIENCE_S):
        messages = []
        while len(messages) < 20:
            messages += await consumer.receive(8, timeout_s=2.0)
        assert bodies(messages) == numbers(20)
        *done, last = messages
        await consumer.ack(*done)
        await consumer.change_invisible(last, 1.0)
        again = []
        while not again:
            again = await consumer.receive(timeout_s=5.0)
        assert [(message.body, message.topic, message.retry_count) for message in again] == [
            (last.body, place.topic, 1)
        ]
        await consumer.ack(*again)


@pytest.mark.usefixtures("rests_after_transactions")
@calls("TransactionProducer.send")
async def test_transactions(place: Place) -> None:
    async with (
        TransactionProducer(
            f"X{place.group}", place.namesrv, check=lambda _: TransactionState.COMMIT, options=SENDING
        ) as producer,
        place.consumer() as consumer,
    ):
        for name, state in ((b"yes", TransactionState.COMMIT), (b"no", TransactionState.ROLLBACK)):
            message = Message(topic=place.topic, body=name)
            assert (await producer.send(message, lambda _, state=state: state)).state is state  # type: ignore[misc]
        assert bodies(await take(consumer, 1)) == [b"yes"]
        assert await consumer.poll(timeout_s=0.3) == []


@calls("ReplyingConsumer.reply", "Producer.request")
async def test_a_push_consumer_replies(place: Place) -> None:
    consumers: list[PushConsumer] = []

    async def handle(message: ReceivedMessage) -> None:
        await consumers[0].reply(message, b"re: " + message.body)

    async with place.push(handle) as consumer, place.producer() as producer:
        consumers.append(consumer)
        await until(lambda: any(queue.topic == place.topic for queue in consumer.assigned))
        reply = await producer.request(Message(topic=place.topic, body=b"ping"), timeout_s=PATIENCE_S)
        assert reply.body == b"re: ping"


@calls("ProducerOptions.on_send", "ProducerOptions.trace", "PushOptions.on_consume", "PushOptions.trace")
async def test_hooks_and_traces(place: Place) -> None:
    sent: list[SendEvent] = []
    handled: list[ConsumeEvent] = []

    async def handle(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)

    async with place.producer(trace=True, on_send=sent.append) as producer:
        result = await producer.send(Message(topic=place.topic, body=b"a", keys=["k"]))
    async with place.push(handle, trace=True, on_consume=handled.append):
        await until(lambda: handled)
    assert [event.result for event in sent] == [result]
    kinds: set[bytes] = set()
    async with place.consumer(TRACE_TOPIC) as consumer, asyncio.timeout(PATIENCE_S):
        async for message in consumer:
            if result.unique_key in message.keys:
                kinds |= {record.split(b"\x01")[0] for record in message.body.split(b"\x02") if record}
            if kinds == {b"Pub", b"SubBefore", b"SubAfter"}:
                break


async def test_admin_reads_counts_lag_and_messages(place: Place) -> None:
    async with place.producer() as producer, Admin(place.namesrv) as admin:
        result = await producer.send(Message(topic=place.topic, body=b"a", keys=[f"k{place.topic}"]))
        async with place.consumer() as consumer:
            await take(consumer, 1)
            await consumer.poll(timeout_s=0)
            assert await consumer.commit()
        assert await admin.message_count(place.topic) == 1
        assert await admin.lag(place.group, place.topic) == 0
        record = await admin.find_by_id(result.message_id)
        assert record is not None
        assert record.content == b"a"

        async def is_found() -> bool:
            return bool(await admin.find_by_key(place.topic, f"k{place.topic}"))

        await until(is_found)


@calls("ClientOptions.namespace")
async def test_a_namespace_is_a_prefix_that_only_others_see(place: Place) -> None:
    inside = replace(FAST, namespace="shop")
    full = f"shop%{place.topic}"
    tries: list[tuple[str, int]] = []

    async def handle(message: ReceivedMessage) -> ConsumeResult:
        tries.append((message.topic, message.retry_count))
        return ConsumeResult.SUCCESS if message.retry_count else ConsumeResult.RETRY

    async with Admin(place.namesrv) as admin:
        await admin.create_topic(full, queue_count=2)
    async with place.producer(client=inside) as producer:
        result = await producer.send(Message(topic=place.topic, body=b"a"))
        assert result.queue.topic == place.topic
    async with place.push(handle, client=inside, retry_delay_level=1):
        await until(lambda: len(tries) == 2)
    assert tries == [(place.topic, 0), (place.topic, 1)]
    async with place.consumer(full, group=f"O{place.group}") as outside:
        (message,) = await take(outside, 1)
        assert (message.topic, message.properties["INSTANCE_ID"]) == (full, "shop")


@calls("ClientOptions.namespace_v2")
async def test_requests_may_name_the_newer_kind_of_namespace(place: Place) -> None:
    newer = replace(FAST, namespace_v2="shop")
    async with place.producer(client=newer) as producer, place.consumer(client=newer) as consumer:
        await producer.send(Message(topic=place.topic, body=b"a"))
        assert bodies(await take(consumer, 1)) == [b"a"]


@only_5
async def test_the_blocking_twins(place: Place) -> None:
    await place.fill(5)
    done = threading.Event()
    seen: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.body)
        if len(seen) == 5:
            done.set()

    def run() -> list[bytes]:
        options = PushOptions(start_from=StartFrom.FIRST)
        push = BlockingPushConsumer(place.group, place.namesrv, handle, options=options)
        push.subscribe(place.topic)
        with push:
            assert done.wait(PATIENCE_S)
        pop = BlockingPopConsumer(
            f"O{place.group}", place.namesrv, options=PopOptions(start_from=StartFrom.FIRST)
        )
        pop.subscribe(place.topic)
        popped: list[bytes] = []
        with pop:
            while len(popped) < 5:
                messages = pop.receive(timeout_s=5.0)
                pop.ack(*messages)
                popped += [message.body for message in messages]
        return sorted(popped)

    assert await asyncio.to_thread(run) == numbers(5)
    assert sorted(seen) == numbers(5)
