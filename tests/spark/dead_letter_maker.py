"""Messages that a consumer gave up."""

from __future__ import annotations

from spark_cluster import Cluster

from tandemmq.client import BlockingConsumer, BlockingProducer, ConsumerOptions, StartFrom
from tandemmq.protocol.message import Message


def make_dead_letters(cluster: Cluster, group: str, topic: str, count: int, *, key: str = "k{}") -> None:
    """So many messages of a new topic become dead letters of the group, every second one with an error."""
    with BlockingProducer("spark-tests", cluster.namesrv) as producer:
        for n in range(count):
            properties = {"error": "out of stock"} if n % 2 else {}
            body = b"order %d" % n
            producer.send(
                Message(topic=topic, body=body, keys=(key.format(n),), tags="t", properties=properties)
            )
    left = count
    options = ConsumerOptions(start_from=StartFrom.FIRST, auto_ack=False)
    with BlockingConsumer(group, cluster.namesrv, options=options) as consumer:
        consumer.subscribe(topic)
        while left:
            for message in consumer.poll():
                consumer.retry_later(message, delay_level=-1)
                left -= 1
