"""The same for plain threads."""

from __future__ import annotations

from tandemmq.client import (
    BlockingAdmin,
    BlockingConsumer,
    BlockingPopConsumer,
    BlockingProducer,
    BlockingPushConsumer,
    BlockingTransactionProducer,
    ConsumeResult,
    ConsumerOptions,
    Json,
    Message,
    MessageQueue,
    ProducerOptions,
    QueueLag,
    ReceivedMessage,
    SendResult,
    StartFrom,
    TransactionState,
)

NAME_SERVERS = "127.0.0.1:9876"


def bill(message: ReceivedMessage) -> ConsumeResult:
    print(message.queue_offset)
    return ConsumeResult.SUCCESS


def unknown(message: ReceivedMessage) -> TransactionState:
    return TransactionState.UNKNOWN


def commit(message: Message) -> TransactionState:
    return TransactionState.COMMIT


def work() -> None:
    with BlockingAdmin(NAME_SERVERS) as admin:
        admin.create_topic("Orders", queue_count=4)
        names: list[str] = admin.topics()
        print(names)
        left: int = admin.lag("billing", "Orders")
        groups: list[str] = admin.groups()
        print(left, groups)
    numbers = ProducerOptions(serializer=Json(list[int]))
    with BlockingProducer("shop", NAME_SERVERS, options=numbers) as producer:
        producer.send(Message(topic="Orders", value=[1, 2]))
        print(producer.in_flight, producer.retried_count)
        result: SendResult = producer.send(Message(topic="Orders", body=b"order 1", tags="paid", keys=["1"]))
        print(result.status.name, result.queue_offset)
    options = ConsumerOptions(start_from=StartFrom.FIRST)
    with BlockingConsumer("billing", NAME_SERVERS, options=options) as consumer:
        consumer.subscribe("Orders", "paid || refunded")
        bodies: list[bytes] = [message.body for message in consumer.poll(timeout_s=5)]
        print(bodies)
    with BlockingPushConsumer("billing", NAME_SERVERS, bill) as pushed:
        pushed.subscribe("Orders")
        lags: dict[MessageQueue, QueueLag] = pushed.lag()
        print(lags, pushed.positions, pushed.unfinished_count)
    with BlockingPopConsumer("billing", NAME_SERVERS) as popped:
        popped.subscribe("Orders")
        if popped.wait_for_message(timeout_s=1):
            for message in popped.receive():
                popped.ack(message)
    handlers = BlockingPushConsumer("billing", NAME_SERVERS)

    @handlers.subscriber("Orders", batch_count_max=10)
    def bill_all(messages: list[ReceivedMessage]) -> None:
        for message in messages:
            handlers.dead_letter(message, reason="an example")

    print(bill_all)
    handlers.run()
    with BlockingTransactionProducer("shop", NAME_SERVERS, check=unknown) as transactions:
        told = transactions.send(Message(topic="Orders", body=b"order 2"), commit)
        print(told.state)


if __name__ == "__main__":
    work()
