"""One load for a broker of either maker whose metrics are compared: every number in it is fixed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from tandemmq.api import broker_admin, broker_consume, broker_send
from tandemmq.client import (
    Admin,
    ClientInstance,
    ClientOptions,
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
)
from tandemmq.protocol.bodies import tables
from tandemmq.protocol.properties import SHARDING_KEY, encode_properties
from tandemmq.protocol.record import decode_records
from tandemmq.protocol.requests.consume import PullRequest
from tandemmq.protocol.requests.send import SendBackRequest, SendRequestV2
from waits import until

TOPIC: Final = "Metered"
"""One queue, so that the batches and pulls of both brokers are the same."""
SINGLE_COUNT: Final = 300
BATCHES: Final = 20
BATCH_COUNT: Final = 8
ONEWAY_COUNT: Final = 10
ORDERED_COUNT: Final = 15
LEVEL_COUNT: Final = 12
TIMER_COUNT: Final = 10
FAR_TIMER_COUNT: Final = 6
FAR_DELAY_MS: Final = 2 * 3_600_000
PULLED_COUNT: Final = 32
COMMITTED: Final = 20
POPPED: Final = 16
ACKED: Final = 10
BACK_COUNT: Final = 3
FAST: Final = ClientOptions(heartbeat_s=1.0, route_refresh_s=1.0)
SENDING: Final = ProducerOptions(client=FAST, timeout_s=20.0)


@dataclass
class Clients:
    """The clients that stay connected until the scrape."""

    instance: ClientInstance
    pop: PopConsumer
    push: PushConsumer
    transactions: TransactionProducer

    async def close(self) -> None:
        for client in (self.pop, self.push, self.transactions, self.instance):
            await client.close()


async def run_load(name_server: str, address: str) -> Clients:
    """Runs the load against the broker; returns once all of its effects can be seen."""
    async with Admin(name_server) as admin:
        await admin.create_topic(TOPIC, queue_count=1)
        await admin.create_topic("Waited", queue_count=1, attributes={"message.type": "DELAY"})
        await admin.create_topic("Decided", queue_count=1, attributes={"message.type": "TRANSACTION"})
        await admin.create_topic("Ordered", queue_count=1, attributes={"message.type": "FIFO"})
    instance = ClientInstance(name_server, FAST)
    await instance.start()
    for group in ("PullGroup", "PopGroup", "PushGroup"):
        config = tables.SubscriptionGroupConfig(name=group)
        await broker_admin.create_group(instance.remoting, address, config)
    async with Producer("LoadGroup", name_server, options=SENDING) as producer:
        await _send(producer)
        await _send_in_order(instance, address)
        await _send_delayed(producer)
    transactions = await _decide(name_server)
    await _pull(instance, address)
    pop = await _pop(name_server)
    push = await _push(name_server)
    return Clients(instance, pop, push, transactions)


async def _send(producer: Producer) -> None:
    for number in range(SINGLE_COUNT):
        body = b"x" * (100 if number % 10 else 5_000)
        assert (await producer.send(Message(topic=TOPIC, body=body, tags="t"))).is_ok
    for _ in range(BATCHES):
        batch = [Message(topic=TOPIC, body=b"b" * 200) for _ in range(BATCH_COUNT)]
        assert all(result.is_ok for result in await producer.send_batch(batch))
    for _ in range(ONEWAY_COUNT):
        await producer.send_oneway(Message(topic=TOPIC, body=b"o" * 50))


async def _send_in_order(instance: ClientInstance, address: str) -> None:
    for number in range(ORDERED_COUNT):
        key = f"00000000000000000000000000{number:06X}"
        pairs = {"UNIQ_KEY": key, SHARDING_KEY: "one", "WAIT": "true"}
        header = SendRequestV2(
            producer_group="LoadGroup",
            topic="Ordered",
            default_topic="TBW102",
            default_topic_queue_count=4,
            queue_id=0,
            sys_flag=0,
            born_at_ms=int(time.time() * 1000),
            flag=0,
            properties=encode_properties(pairs).decode(),
        )
        await broker_send.send(instance.remoting, address, header, b"in order")


async def _send_delayed(producer: Producer) -> None:
    for _ in range(LEVEL_COUNT):
        await producer.send(Message(topic="Waited", body=b"level", delay_level=1))
    for _ in range(TIMER_COUNT):
        await producer.send(Message(topic="Waited", body=b"timer", delay_ms=2_000))
    for _ in range(FAR_TIMER_COUNT):
        await producer.send(Message(topic="Waited", body=b"far", delay_ms=FAR_DELAY_MS))


async def _decide(name_server: str) -> TransactionProducer:
    states = [
        *[TransactionState.COMMIT] * 7,
        *[TransactionState.ROLLBACK] * 4,
        *[TransactionState.UNKNOWN] * 2,
    ]
    producer = TransactionProducer(
        "DecidingGroup", name_server, check=lambda _: TransactionState.UNKNOWN, options=SENDING
    )
    await producer.start()
    for state in states:
        await producer.send(Message(topic="Decided", body=b"half"), lambda _, state=state: state)  # type: ignore[misc]
    return producer


async def _pull(instance: ClientInstance, address: str) -> None:
    header = PullRequest(
        consumer_group="PullGroup",
        topic=TOPIC,
        queue_id=0,
        queue_offset=0,
        count_max=PULLED_COUNT,
        sys_flag=4,
        committed_offset=0,
        suspend_timeout_ms=0,
        subscription_version=0,
        subscription="*",
        expression_type="TAG",
    )
    pulled = await broker_consume.pull(instance.remoting, address, header)
    for record in list(decode_records(pulled.body))[:BACK_COUNT]:
        back = SendBackRequest(
            log_offset=record.log_offset,
            group="PullGroup",
            delay_level=-1,  # a dead letter at once
            original_message_id=record.message_id,
            original_topic=TOPIC,
            retry_count_max=16,
        )
        await broker_send.send_back(instance.remoting, address, back)
    await broker_consume.commit_offset(
        instance.remoting,
        address,
        consumer_group="PullGroup",
        topic=TOPIC,
        queue_id=0,
        committed_offset=COMMITTED,
    )


async def _pop(name_server: str) -> PopConsumer:
    consumer = PopConsumer(
        "PopGroup", name_server, options=PopOptions(client=FAST, start_from=StartFrom.FIRST)
    )
    consumer.subscribe(TOPIC)
    await consumer.start()
    messages = await consumer.receive(POPPED, invisible_s=600.0, timeout_s=20.0)
    assert len(messages) == POPPED
    await consumer.ack(*messages[:ACKED])
    return consumer


async def _push(name_server: str) -> PushConsumer:
    """All of the messages that waited, all that were sent in order."""
    expected = LEVEL_COUNT + TIMER_COUNT + ORDERED_COUNT
    handled: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        handled.append(message.body)

    options = PushOptions(client=FAST, start_from=StartFrom.FIRST, rebalance_s=1.0, commit_s=0.5)
    consumer = PushConsumer("PushGroup", name_server, handle, options=options)
    consumer.subscribe("Waited")
    consumer.subscribe("Ordered")
    await consumer.start()
    await until(lambda: len(handled) >= expected, f"{expected} messages are handled")
    async with Admin(name_server) as admin:

        async def is_committed() -> bool:
            return not await admin.lag("PushGroup", "Waited") + await admin.lag("PushGroup", "Ordered")

        await until(is_committed, "the group has committed all offsets")
    return consumer
