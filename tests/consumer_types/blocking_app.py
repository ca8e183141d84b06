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
    Message,
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
    with BlockingProducer("shop", NAME_SERVERS) as producer:
        result: SendResult = producer.send(Message(topic="Orders", body=b"order 1", tags="paid", keys=["1"]))
        print(result.status.name, result.queue_offset)
    options = ConsumerOptions(start_from=StartFrom.FIRST)
    with BlockingConsumer("billing", NAME_SERVERS, options=options) as consumer:
        consumer.subscribe("Orders", "paid || refunded")
        bodies: list[bytes] = [message.body for message in consumer.poll(timeout_s=5)]
        print(bodies)
    with BlockingPushConsumer("billing", NAME_SERVERS, bill) as pushed:
        pushed.subscribe("Orders")
    with BlockingPopConsumer("billing", NAME_SERVERS) as popped:
        popped.subscribe("Orders")
        for message in popped.receive():
            popped.ack(message)
    with BlockingTransactionProducer("shop", NAME_SERVERS, check=unknown) as transactions:
        told = transactions.send(Message(topic="Orders", body=b"order 2"), commit)
        print(told.state)


if __name__ == "__main__":
    work()
