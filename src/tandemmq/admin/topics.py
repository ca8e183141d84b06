"""Commands about topics: topicList, topicRoute, topicClusterList, topicStatus, updateTopic,
updateTopicPerm, deleteTopic.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tandemmq.admin.render import Answer, Table
from tandemmq.admin.targets import MASTER_ID, Tools, find_targets
from tandemmq.api import broker_topic
from tandemmq.errors import NoRoute, TopicNotFound
from tandemmq.protocol.bodies.topic import TopicConfig
from tandemmq.protocol.topic_names import check_topic


async def list_topics(tools: Tools) -> Answer:
    """The names of all topics."""
    names = await tools.cluster_admin.topics()
    return Answer([Table("topics", ("topic",), [(name,) for name in names])])


async def show_route(tools: Tools, topic: str) -> Answer:
    """Where a topic's queues are."""
    route = await tools.cluster_admin.topic_route(topic)
    queues = Table("queues", ("broker", "read_queues", "write_queues", "permission"))
    for queue in sorted(route.queues, key=lambda one: one.broker_name):
        counts = queue.read_queue_count, queue.write_queue_count
        queues.rows.append((queue.broker_name, *counts, queue.permission))
    addresses = Table("addresses", ("cluster", "broker", "id", "address"))
    for broker in sorted(route.brokers, key=lambda one: one.broker_name):
        for broker_id, address in sorted(broker.addresses.items()):
            addresses.rows.append((broker.cluster, broker.broker_name, broker_id, address))
    return Answer([queues, addresses])


async def show_clusters(tools: Tools, topic: str) -> Answer:
    """The clusters that have queues of a topic."""
    route = await tools.cluster_admin.topic_route(topic)
    names = sorted({broker.cluster for broker in route.brokers})
    return Answer([Table("clusters", ("cluster",), [(name,) for name in names])])


async def show_ends(tools: Tools, topic: str) -> Answer:
    """The ends of each queue, at the masters, or at a slave where there is no master."""
    route = await tools.cluster_admin.topic_route(topic)
    table = Table("queues", ("broker", "queue", "min_offset", "max_offset", "messages", "newest_at"))
    for broker in sorted(route.brokers, key=lambda one: one.broker_name):
        address = _master_or_slave(broker.addresses, broker.broker_name)
        stats = await broker_topic.query_topic_stats(tools.remoting, address, topic)
        for queue, ends in sorted(stats.queues.items()):
            count = ends.max_offset - ends.min_offset
            row = (queue.broker_name, queue.queue_id, ends.min_offset, ends.max_offset, count)
            table.rows.append((*row, ends.updated_at_ms))
    return Answer([table])


async def change_topic(tools: Tools, config: TopicConfig, address: str, cluster: str) -> Answer:
    """Create the topic at the broker or at every master of the cluster, or change it."""
    check_topic(config.name)
    table = Table("changed", ("broker", "topic", "read_queues", "write_queues", "permission"))
    for target in await find_targets(tools, address=address, cluster=cluster, masters_only=True):
        await broker_topic.create_topic(tools.remoting, target.address, config)
        counts = config.read_queue_count, config.write_queue_count
        table.rows.append((target.address, config.name, *counts, config.permission))
    return Answer([table])


async def change_permission(tools: Tools, topic: str, permission: int, address: str, cluster: str) -> Answer:
    """Change only the permission of a topic where it exists. Raises TopicNotFound when that is nowhere."""
    table = Table("changed", ("broker", "topic", "old_permission", "permission"))
    for target in await find_targets(tools, address=address, cluster=cluster, masters_only=True):
        held = await broker_topic.query_topic_config(tools.remoting, target.address, topic)
        if held is None:
            continue
        config = msgspec.structs.replace(held, permission=permission)
        await broker_topic.create_topic(tools.remoting, target.address, config)
        table.rows.append((target.address, topic, held.permission, permission))
    if not table.rows:
        raise TopicNotFound(f"no broker that was asked has the topic {topic!r}")
    return Answer([table])


async def remove_topic(tools: Tools, topic: str, cluster: str) -> Answer:
    """Delete the topic at every master of the cluster and at the name servers."""
    await tools.cluster_admin.delete_topic(topic, cluster=cluster or None)
    return Answer([Table("deleted", ("topic",), [(topic,)])])


def _master_or_slave(addresses: Mapping[int, str], broker_name: str) -> str:
    if not addresses:
        raise NoRoute(f"no address of broker {broker_name!r} is known")
    return addresses.get(MASTER_ID) or addresses[min(addresses)]
