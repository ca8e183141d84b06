"""Dead letters in a cluster of the test's process."""

from __future__ import annotations

from tandemmq.client import Consumer, Message
from tandemmq.testing import Cluster
from tandemmq.testing.cluster import consumer_options
from waits import until


async def make_letters(cluster: Cluster, count: int) -> None:
    """Makes dead letters of the group `readers` from the topic `orders`."""
    await cluster.create_topic("orders", queue_count=1)
    async with cluster.producer() as producer:
        for number in range(count):
            message = Message("orders", b"%d" % number, keys=[f"k{number}"], properties={"a": "b"})
            await producer.send(message)
    given_up = 0
    async with Consumer("readers", cluster.name_servers, options=consumer_options()) as consumer:
        consumer.subscribe("orders")

        async def are_given_up() -> bool:
            nonlocal given_up
            for message in await consumer.poll(32, timeout_s=0.1):
                await consumer.retry_later(message, delay_level=-1)
                given_up += 1
            return given_up == count

        await until(are_given_up)
