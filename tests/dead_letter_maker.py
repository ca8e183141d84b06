"""Messages that a consumer gave up."""

from __future__ import annotations

from tandemmq.client import BlockingConsumer, BlockingProducer, ConsumerOptions, ReceivedMessage, StartFrom
from tandemmq.protocol.message import Message
from waits import until_blocking

WAIT_S = 300.0


def make_dead_letters(namesrv: str, group: str, topic: str, count: int, *, key: str = "k{}") -> None:
    """Makes `count` dead letters of the group from a new topic, every second one with an error."""
    with BlockingProducer("spark-tests", namesrv) as producer:
        for n in range(count):
            properties = {"error": "out of stock"} if n % 2 else {}
            body = b"order %d" % n
            producer.send(
                Message(topic=topic, body=body, keys=(key.format(n),), tags="t", properties=properties)
            )
    options = ConsumerOptions(start_from=StartFrom.FIRST, auto_ack=False)
    with BlockingConsumer(group, namesrv, options=options) as consumer:
        consumer.subscribe(topic)
        given_up: list[ReceivedMessage] = []

        def give_up() -> bool:
            for message in consumer.poll():
                consumer.retry_later(message, delay_level=-1)
                given_up.append(message)
            return len(given_up) == count

        until_blocking(give_up, f"{count} messages of {topic} given up", WAIT_S)
