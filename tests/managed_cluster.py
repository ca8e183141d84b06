"""A cluster in this process, with the connections of an operator's tools."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tandemmq.api import nameserver
from tandemmq.client import Message
from tandemmq.errors import TopicNotFound
from tandemmq.manage.tools import Target, Tools, open_tools
from tandemmq.protocol.bodies.register import RegisterBrokerBody
from tandemmq.protocol.bodies.tables import TopicConfig, TopicConfigTable
from tandemmq.protocol.topic_names import retry_topic
from tandemmq.testing import Cluster
from waits import until


@dataclass(frozen=True, slots=True)
class ManagedCluster:
    """The cluster, and the connections to it."""

    cluster: Cluster
    tools: Tools

    async def send(self, topic: str, count: int) -> None:
        async with self.cluster.producer() as producer:
            for number in range(count):
                await producer.send(Message(topic=topic, body=b"%d" % number))
        await self.wait_for_route(topic)

    async def consume(self, topic: str, group: str, count: int) -> None:
        """Consumes and commits `count` messages of the topic."""
        async with self.cluster.consumer(topic, group) as consumer:
            taken = 0
            async for message in consumer:
                consumer.ack(message)
                taken += 1
                if taken == count:
                    break
            await consumer.commit()
        await self.wait_for_route(retry_topic(group))  # by which tools find the group

    async def wait_for_route(self, topic: str) -> None:
        """Waits until the name server knows the topic: a broker answers the send, or the heartbeat, that
        creates a topic before it has registered the topic.
        """
        ask = self.tools.cluster_admin.topic_route
        await until(lambda: ask(topic), f"{topic} has a route", not_yet=(TopicNotFound,))

    async def register(self, target: Target, *topics: str) -> None:
        """Registers a broker that does not run."""
        identity = nameserver.BrokerIdentity(
            cluster_name=target.cluster,
            broker_name=target.broker_name,
            broker_id=target.broker_id or 0,
            broker_address=target.address,
            ha_address=target.address,
        )
        body = RegisterBrokerBody(
            topics=TopicConfigTable(
                topics={
                    name: TopicConfig(name=name) for name in (target.broker_name, target.cluster, *topics)
                }
            )
        )
        for address in self.tools.cluster_admin.name_servers:
            await nameserver.register_broker(self.tools.remoting, address, identity, body)


@asynccontextmanager
async def managed_cluster(**options: object) -> AsyncIterator[ManagedCluster]:
    """Starts a cluster with these options of `Cluster`, and opens the connections to it."""
    async with Cluster(**options) as cluster, open_tools(cluster.name_servers) as tools:  # type: ignore[arg-type]  # real options
        yield ManagedCluster(cluster, tools)
