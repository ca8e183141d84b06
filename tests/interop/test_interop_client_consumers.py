"""Consumers of our Python client against our servers and RocketMQ's: handlers, settled messages, the lag,
queues that come and go, ordered pops.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace

import msgspec
import pytest
from client_place import CASES, FAST, Place, bodies, calls, numbers, only_5, take
from clusters import Cluster

from tandemmq.api import broker_consume
from tandemmq.client import (
    Admin,
    ClientMetrics,
    Json,
    Message,
    MessageQueue,
    PopConsumer,
    PoppedMessage,
    ReceivedMessage,
    RequestRejected,
    StartFrom,
    message_key,
)
from tandemmq.client.consumer import assignment
from tandemmq.protocol.bodies.client import LockRequest
from tandemmq.protocol.topic_names import dlq_topic
from waits import PATIENCE_S, until

pytestmark = CASES


class Order(msgspec.Struct):
    number: int


async def letters_of(place: Place, count: int) -> list[tuple[bytes, str]]:
    """The bodies of the group's dead letters, each with the reason that the application gave."""
    async with place.consumer(dlq_topic(place.group), group=f"D{place.group}") as dead:
        return sorted((one.body, one.properties["dead_letter_reason"]) for one in await take(dead, count))


@calls(
    *("GroupConsumer.ack", "GroupConsumer.retry_later", "GroupConsumer.dead_letter"),
    *("ReceivedMessage.ack", "ReceivedMessage.retry_later", "ReceivedMessage.dead_letter"),
    *(
        "GroupConsumer.lag",
        "GroupConsumer.positions",
        "GroupConsumer.ack_all",
        "Consumer.fetch",
        "Consumer.commit",
    ),
)
async def test_messages_settle_themselves_and_the_lag_counts_the_rest(place: Place) -> None:
    await place.fill(10)
    async with place.consumer(auto_ack=False) as consumer, asyncio.timeout(PATIENCE_S):
        messages: list[ReceivedMessage] = []
        while len(messages) < 10:
            messages += await consumer.fetch(10)
        found = {message.body: message for message in messages}
        await found[b"0"].retry_later(delay_s=1)
        await consumer.retry_later(found[b"1"], delay_s=1)
        await found[b"2"].dead_letter(reason="no such order")
        await consumer.dead_letter(found[b"3"], reason="too late")
        again = await take(consumer, 2)
        assert sorted((one.body, one.retry_count, one.topic) for one in again) == [
            (b"0", 1, place.topic),
            (b"1", 1, place.topic),
        ]
        await again[0].ack()
        consumer.ack_all(again[1:])
        await consumer.ack(found[b"4"], found[b"5"])
        assert await consumer.commit()
        lags = await consumer.lag()
        left = {queue: lag for queue, lag in lags.items() if lag.messages}
        assert {queue.topic for queue in left} == {place.topic}
        first, end = {}, {}
        for message in sorted(messages, key=lambda one: one.queue_offset, reverse=True):
            end.setdefault(message.queue_id, message.queue_offset + 1)
            if int(message.body) > 5:
                first[message.queue_id] = message.queue_offset
        assert {queue.queue_id: lag.messages for queue, lag in left.items()} == {
            number: end[number] - offset for number, offset in first.items()
        }
        assert all(0 <= lag.seconds < 3600 for lag in left.values())
        assert all(lag.seconds == 0 for queue, lag in lags.items() if queue not in left)
        assert all(
            consumer.positions[queue] + lag.messages == end[queue.queue_id] for queue, lag in left.items()
        )
    assert await letters_of(place, 2) == [(b"2", "no such order"), (b"3", "too late")]


@calls(
    *("GroupConsumer.subscribe", "GroupConsumer.unsubscribe", "Consumer.assign", "Consumer.queues"),
    *("Consumer.seek", "ConsumerOptions.start_from", "ConsumerOptions.start_time_ms"),
)
async def test_readers_choose_by_sql_by_time_and_by_queue(place: Place) -> None:
    async with place.producer() as producer:
        for price in (5, 50, 500):
            message = Message(topic=place.topic, body=b"%d" % price, properties={"price": str(price)})
            await producer.send(message)
    consumer = place.consumer("-")
    consumer.subscribe(place.topic, sql="price > 10 AND price < 100")
    async with consumer:
        assert bodies(await take(consumer, 1)) == [b"50"]
        consumer.unsubscribe(place.topic)
        await until(lambda: all(queue.topic != place.topic for queue in consumer.assigned))
    by_time = {"start_from": StartFrom.TIMESTAMP, "start_time_ms": 1_000}
    async with place.consumer(group=f"T{place.group}", **by_time) as consumer:
        assert bodies(await take(consumer, 3)) == [b"5", b"50", b"500"]
    async with place.consumer("-", group=f"A{place.group}", auto_ack=False) as consumer:
        queues = await consumer.queues(place.topic)
        consumer.assign(*queues)
        assert len(await take(consumer, 3)) == 3
        for queue in queues:
            assert await consumer.seek(queue, StartFrom.TIMESTAMP, time_ms=1_000) == 0
        assert len(await take(consumer, 3)) == 3


@calls(
    *("ConsumerOptions.on_assigned", "ConsumerOptions.on_revoked", "GroupConsumer.assigned"),
    *("ClientOptions.on_disconnected", "ClientOptions.on_reconnected", "Client.is_connected", "Client.ping"),
)
async def test_a_consumer_reports_queues_and_connections_that_come_and_go(
    place: Place, cluster: Cluster
) -> None:
    address = cluster.brokers["broker-a"].address
    events: list[tuple[str, object]] = []
    client = replace(
        FAST,
        on_disconnected=lambda at: events.append(("disconnected", at)),
        on_reconnected=lambda at: events.append(("reconnected", at)),
    )
    gained: list[MessageQueue] = []
    lost: list[MessageQueue] = []
    hooks = {"on_assigned": gained.extend, "on_revoked": lost.extend}
    async with place.consumer(client=client, **hooks) as one:
        await until(lambda: len(gained) == 2)
        async with place.consumer() as two:
            await until(lambda: lost)
            await until(lambda: any(queue.topic == place.topic for queue in two.assigned))
        await until(lambda: len(gained) == 3)
        assert gained[2:] == lost
        assert one.is_connected
        assert (await one.ping()).keys() == {place.namesrv, address}
        channel = one.instance.remoting.open_channel(address)
        assert channel is not None
        channel.abort("cut by the test")
        await until(lambda: events == [("disconnected", address), ("reconnected", address)])
        await place.fill(4)
        assert bodies(await take(one, 4)) == numbers(4)


@calls("ConsumerOptions.on_lost", "ConsumerOptions.orderly")
async def test_a_reader_in_order_reports_a_lock_that_another_member_has(
    place: Place, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "RENEW_S", 1.0)
    address = cluster.brokers["broker-a"].address
    lost: list[MessageQueue] = []
    async with place.consumer(orderly=True, on_lost=lost.extend) as consumer:
        await until(lambda: sum(queue.topic == place.topic for queue in consumer.assigned) == 2)
        queue = next(one for one in consumer.assigned if one.topic == place.topic)
        remoting, own = consumer.instance.remoting, consumer.instance.client_id

        def lock(client_id: str) -> LockRequest:
            return LockRequest(client_id=client_id, consumer_group=place.group, queues=(queue,))

        await broker_consume.unlock_queues(remoting, address, lock(own))
        held = await broker_consume.lock_queues(remoting, address, lock("another"))
        assert held == {queue}
        await until(lambda: lost == [queue])
        await broker_consume.unlock_queues(remoting, address, lock("another"))
        await place.fill(4)
        assert bodies(await take(consumer, 4)) == numbers(4)


@calls(
    *("PushConsumer.subscriber", "PushConsumer.add_handler", "PushConsumer.run", "PushConsumer.stop_soon"),
    *("PushConsumer.wait_stopped", "PushConsumer.wait_closed", "PushConsumer.unfinished_count"),
    *("PushOptions.order_key", "PushOptions.batch_count_max", "PushOptions.batch_linger_s"),
    *("PushOptions.retry_delays_s", "PushOptions.middleware", "PushOptions.metrics", "message_key"),
    *("ClientMetrics.collect", "ClientMetrics.unfinished_count"),
    *("ProducerOptions.serializer", "Message.value"),
    *("ConsumerOptions.serializer", "PushConsumer.subscribe"),
)
async def test_handlers_of_several_topics(place: Place) -> None:
    """A batch; an order by key, in which a message fails at first; typed bodies, of which one is invalid."""
    batches, keyed, typed = place.topic, f"K{place.topic}", f"V{place.topic}"
    metrics, orders = ClientMetrics(), Json(Order)
    consumer = place.push(metrics=metrics, retry_delays_s=(1,))
    sizes: list[int] = []
    in_order: dict[str, list[bytes]] = defaultdict(list)
    numbers_seen: list[int] = []
    called: list[str] = []

    async def note(argument: object, call_next: object) -> object:
        called.append(place.topic)
        return await call_next(argument)  # type: ignore[operator]

    @consumer.subscriber(batches, "t", batch_count_max=8, batch_linger_s=0.2, middleware=[note])
    async def handle_batch(messages: list[ReceivedMessage]) -> None:
        sizes.append(len(messages))

    async def handle_keyed(message: ReceivedMessage) -> None:
        if message.body == b"a0" and not message.retry_count:
            raise ValueError("not now")
        in_order[message.keys[0]].append(message.body)

    async def handle_typed(message: ReceivedMessage) -> None:
        numbers_seen.append(message.value.number)

    consumer.add_handler(keyed, handle_keyed, order_key=message_key, worker_count=4)
    consumer.subscribe(keyed)
    consumer.add_handler(typed, handle_typed, serializer=orders)
    consumer.subscribe(typed)
    async with Admin(place.namesrv) as admin, place.producer() as producer:
        for topic in (keyed, typed):
            await admin.ensure_topic(topic, queue_count=1)
        await place.fill(20)
        for step in range(4):
            for key in ("a", "b"):
                await producer.send(Message(topic=keyed, body=f"{key}{step}".encode(), keys=[key]))
        async with place.producer(serializer=orders) as typing:
            await typing.send(Message(topic=typed, value=Order(7)))
        await producer.send(Message(topic=typed, body=b"no order"))
    running = asyncio.create_task(consumer.run())
    try:
        await until(lambda: sum(sizes) == 20 and numbers_seen and sum(map(len, in_order.values())) == 8)
        assert in_order == {key: [f"{key}{step}".encode() for step in range(4)] for key in ("a", "b")}
        assert len(sizes) == len(called) < 20
        ((letter, reason),) = await letters_of(place, 1)
        assert letter == b"no order"
        assert "JSON" in reason
        await until(lambda: consumer.unfinished_count == metrics.unfinished_count == 0)
        handled = {one.name: one for one in metrics.collect()}["tandemmq_client_handled_messages"]
        counts = {(row.labels["topic"], row.labels["outcome"]): row.value for row in handled.samples}
        assert counts[batches, "success"] == 20
        assert counts[keyed, "failure"] == 1
    finally:
        consumer.stop_soon()
        await consumer.wait_stopped()
        await running
        await consumer.wait_closed()


@calls(
    *("GroupConsumer.pause", "GroupConsumer.resume", "ReceivedMessage.reply"),
    *("PushOptions.consume_timeout_s", "Producer.request", "Producer.reply"),
)
async def test_handlers_reply_pause_and_time_out(place: Place) -> None:
    tried: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"slow":
            tried.append(message.retry_count)
            if not message.retry_count:
                await asyncio.sleep(PATIENCE_S)
        elif message.body == b"ask":
            await producer.reply(message, b"by a producer")
        else:
            await message.reply(b"re: " + message.body, properties={"a": "b"})

    async with (
        place.push(handle, consume_timeout_s=0.5, rebalance_s=0.5) as consumer,
        place.producer() as producer,
    ):
        await until(lambda: sum(queue.topic == place.topic for queue in consumer.assigned) == 2)
        reply = await producer.request(Message(topic=place.topic, body=b"ping"), timeout_s=PATIENCE_S)
        assert (reply.body, reply.properties["a"]) == (b"re: ping", "b")
        reply = await producer.request(Message(topic=place.topic, body=b"ask"), timeout_s=PATIENCE_S)
        assert reply.body == b"by a producer"
        consumer.pause()
        await producer.send(Message(topic=place.topic, body=b"slow"))
        consumer.resume()
        await until(lambda: tried == [0, 1])


@only_5
@calls(
    *("PopConsumer.receive", "PopConsumer.nack", "PopConsumer.retry_later", "PopConsumer.dead_letter"),
    *(
        "ReplyingConsumer.reply",
        "PopConsumer.wait_for_message",
        "PopConsumer.unsubscribe",
        "PopConsumer.subscribe",
    ),
    *("PopConsumer.ack", "PoppedMessage.invisible_until_ms", "PopOptions.invisible_s"),
)
async def test_pops_of_one_topic_go_back_die_and_reply(place: Place) -> None:
    other = f"O{place.topic}"
    async with Admin(place.namesrv) as admin:
        await admin.ensure_topic(other, queue_count=1)
    async with place.pop(invisible_s=30.0) as consumer, place.producer() as producer:
        consumer.subscribe(other)
        await producer.send(Message(topic=place.topic, body=b"here"))
        assert await consumer.wait_for_message(PATIENCE_S)
        assert await consumer.receive(topic=other, timeout_s=0.2) == []
        (first,) = await pop(consumer, 1, place.topic)
        assert first.invisible_until_ms > first.stored_at_ms
        await consumer.nack(first, counts=False)
        (second,) = await pop(consumer, 1, place.topic)
        await second.retry_later(delay_s=0.5)
        (third,) = await pop(consumer, 1, place.topic)
        assert third.retry_count > first.retry_count
        await consumer.dead_letter(third, reason="never")
        asking = asyncio.create_task(
            producer.request(Message(topic=other, body=b"ping"), timeout_s=PATIENCE_S)
        )
        (request,) = await pop(consumer, 1, other)
        await consumer.reply(request, b"pong")
        assert (await asking).body == b"pong"
        await consumer.ack(request)
        consumer.unsubscribe(other)
    assert await letters_of(place, 1) == [(b"here", "never")]


@only_5
@calls("PopOptions.ordered", "PopConsumer.change_invisible", "PopOptions.serializer")
async def test_ordered_pops_wait_for_what_was_received(place: Place) -> None:
    async with place.producer() as producer:
        queue = await producer.queue_for(place.topic, "key")
        for number in range(6):
            await producer.send(Message(topic=place.topic, body=b'{"number":%d}' % number), queue=queue)
    seen: list[int] = []
    async with place.pop(ordered=True, serializer=Json(Order), invisible_s=30.0) as consumer:
        first = await pop(consumer, 2, place.topic)
        assert [message.value.number for message in first] == [0, 1]
        assert await consumer.receive(2, timeout_s=0.5) == [], "the queue waits for its received messages"
        await consumer.ack(first[0])
        await consumer.change_invisible(first[1], 0.5)
        while len(seen) < 5:
            for message in await pop(consumer, 1, place.topic):
                seen.append(message.value.number)
                await consumer.ack(message)
    assert seen == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("cluster", ["java_4"], indirect=True)
async def test_a_pop_at_version_4_is_refused_by_name(place: Place) -> None:
    async with place.pop(ordered=True) as consumer:

        async def receive() -> bool:
            return bool(await consumer.receive(timeout_s=1.0))

        with pytest.raises(
            RequestRejected, match="broker 'broker-a' does not serve pops: they need RocketMQ 5"
        ):
            await until(receive)


async def pop(consumer: PopConsumer, count: int, topic: str) -> list[PoppedMessage]:
    """The next messages of the topic, in one answer of its broker."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if found := await consumer.receive(count, topic=topic, timeout_s=5.0):
                return found
