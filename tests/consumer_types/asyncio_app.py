"""An order service on asyncio: sends, reads, pushes, transactions, administration."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tandemmq.client import (
    Admin,
    AllocateByConsistentHash,
    ClientInstance,
    ClientMetrics,
    ClientOptions,
    Compression,
    ConsumeEvent,
    Consumer,
    ConsumeResult,
    ConsumerOptions,
    GroupDescription,
    Json,
    Message,
    MessageModel,
    MessageQueue,
    PopConsumer,
    PopOptions,
    PoppedMessage,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    QueueLag,
    QueueRange,
    ReadFrom,
    ReceivedMessage,
    SendEvent,
    SendResult,
    SendStatus,
    SendSummary,
    StartFrom,
    TlsClientOptions,
    TransactionProducer,
    TransactionResult,
    TransactionState,
    allocate_averagely,
    message_key,
)
from tandemmq.errors import (
    BrokerUnreachable,
    ConfigError,
    NoRoute,
    RequestRejected,
    RequestTimeout,
    SendNotConfirmed,
    TandemError,
)

NAME_SERVERS = "127.0.0.1:9876"
CLIENT = ClientOptions(access_key="shop", secret_key="secret", tls=TlsClientOptions(), route_refresh_s=5.0)


def note_send(event: SendEvent) -> None:
    print(event)


def note_consume(event: ConsumeEvent) -> None:
    print(event)


def stamp(message: Message) -> Message:
    return message


async def send(bodies: Sequence[bytes]) -> list[int]:
    options = ProducerOptions(
        client=CLIENT,
        compression=Compression.ZLIB,
        batch_linger_ms=0,
        before_send=stamp,
        on_send=note_send,
    )
    offsets: list[int] = []
    async with Producer("shop", NAME_SERVERS, options=options) as producer:
        for body in bodies:
            try:
                result: SendResult = await producer.send(
                    Message(topic="Orders", body=body, tags="paid", keys=["1"])
                )
            except (NoRoute, BrokerUnreachable, RequestTimeout) as error:
                print(type(error).retriable, error)
            except SendNotConfirmed as error:
                print(error.status)
            except RequestRejected as error:
                print(error.code, error.remark)
            else:
                if result.is_ok and result.status is SendStatus.SEND_OK:
                    offsets.append(result.queue_offset)
        batch = await producer.send_batch([Message(topic="Orders", body=body) for body in bodies])
        print([one.is_ok for one in batch], batch[0].message_id)
        started: asyncio.Future[SendResult] = await producer.start_send(
            Message(topic="Orders", body=b"later")
        )
        print((await started).queue_offset)
        queues: list[MessageQueue] = list(await producer.queues("Orders"))
        print(queues[0].broker_name, queues[0].queue_id)
    return offsets


def summarise(summary: SendSummary) -> str:
    return repr(summary)


async def read() -> int:
    options = ConsumerOptions(client=CLIENT, start_from=StartFrom.FIRST, model=MessageModel.CLUSTERING)
    seen = 0
    async with Consumer("billing", NAME_SERVERS, options=options) as consumer:
        consumer.subscribe("Orders", "paid || refunded")
        messages: list[ReceivedMessage] = await consumer.poll(100, 5.0)
        for message in messages:
            key: str | None = message.properties.get("KEYS")
            print(message.body.decode(), message.tags, message.queue_offset, key)
            seen += 1
        await consumer.commit()
    return seen


async def bill(message: ReceivedMessage) -> ConsumeResult:
    print(message.message_id)
    return ConsumeResult.SUCCESS


async def push() -> None:
    options = PushOptions(allocate=allocate_averagely, on_consume=note_consume)
    async with PushConsumer("billing", NAME_SERVERS, bill, options=options) as consumer:
        consumer.subscribe("Orders")
        await asyncio.Event().wait()  # until the task is cancelled


@dataclass
class Order:
    number: int


ORDERS = Json(Order)


async def send_values() -> None:
    options = ProducerOptions(client=CLIENT, serializer=ORDERS, metrics=ClientMetrics())
    async with Producer("shop", NAME_SERVERS, options=options) as producer:
        await producer.send(Message(topic="Orders", value=Order(1)))
        answer: ReceivedMessage = await producer.request(Message(topic="Prices", value=Order(1)), timeout_s=3)
        order: Order = ORDERS.decode(answer.body)
        print(order.number, producer.in_flight, producer.is_connected)
        trips: dict[str, float] = await producer.ping()
        print(trips)
        await producer.flush(timeout_s=1)


handlers = PushConsumer("billing", NAME_SERVERS, options=PushOptions(client=CLIENT))


@handlers.subscriber("Orders", tags=["paid", "refunded"], serializer=ORDERS, order_key=message_key)
async def handle_order(message: ReceivedMessage) -> ConsumeResult:
    await message.reply(b"done")
    return ConsumeResult.SUCCESS


@handlers.subscriber("Visits", batch_count_max=100)
def handle_visits(messages: list[ReceivedMessage]) -> None:
    for message in messages:
        message.dead_letter(reason="an example")


async def run() -> None:
    await handlers.run()


async def measure(consumer: Consumer) -> int:
    lags: dict[MessageQueue, QueueLag] = await consumer.lag()
    return sum(one.messages for one in lags.values())


async def pop() -> None:
    async with PopConsumer("billing", NAME_SERVERS, options=PopOptions(invisible_s=30)) as consumer:
        consumer.subscribe("Orders")
        messages: list[PoppedMessage] = await consumer.receive()
        for message in messages:
            await consumer.ack(message)


def decide(message: Message) -> TransactionState:
    return TransactionState.COMMIT


def check(message: ReceivedMessage) -> TransactionState:
    return TransactionState.UNKNOWN


async def transact() -> TransactionResult:
    async with TransactionProducer("shop", NAME_SERVERS, check=check) as producer:
        return await producer.send(Message(topic="Orders", body=b"order 1"), decide)


async def administer() -> dict[MessageQueue, QueueRange]:
    async with Admin(NAME_SERVERS, options=CLIENT) as admin:
        is_new: bool = await admin.create_topic("Orders", queue_count=4, exist_ok=True)
        await admin.update_topic("Orders", queue_count=8)
        names: list[str] = await admin.topics()
        print(is_new, names)
        await admin.create_group("billing", retry_count_max=3, exist_ok=True)
        description: GroupDescription = await admin.describe_group("billing")
        groups: list[str] = await admin.groups()
        left: int = await admin.lag("billing", "Orders")
        moved: dict[MessageQueue, int] = await admin.skip_to_end("billing", "Orders")
        print(description, groups, left, moved)
        await admin.delete_group("billing")
        return dict(await admin.topic_offsets("Orders"))


async def main() -> None:
    try:
        print(await send([b"1", b"2"]), await read())
    except ConfigError as error:
        print(error)
    except TandemError as error:
        print(error.retriable)


print(AllocateByConsistentHash, ClientInstance, ReadFrom)
if __name__ == "__main__":
    asyncio.run(main())
