"""Commands about topics: topicList, topicRoute, topicClusterList, topicStatus, statsAll, updateTopic,
updateTopicPerm, deleteTopic, exportMetadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import to_builtins

from tandemmq.admin.render import Answer, Table
from tandemmq.admin.targets import MASTER_ID, Place, Tools, find_targets
from tandemmq.api import broker_topic
from tandemmq.api.broker_admin import query_groups_of_topic, query_stats
from tandemmq.errors import NoRoute, TopicNotFound
from tandemmq.protocol.bodies.topic import TopicConfig
from tandemmq.protocol.topic_names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    check_topic,
    is_dlq_topic,
    is_retry_topic,
    is_system_group,
)
from tandemmq.runtime.clock import LoopClock

_STATS_COLUMNS = ("topic", "group", "lag", "in_tps", "out_tps", "in_24h", "out_24h")


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


async def change_topic(tools: Tools, config: TopicConfig, place: Place) -> Answer:
    """Create the topic at the broker or at every master of the cluster, or change it."""
    check_topic(config.name)
    table = Table("changed", ("broker", "topic", "read_queues", "write_queues", "permission"))
    for target in await find_targets(tools, place, masters_only=True):
        await broker_topic.create_topic(tools.remoting, target.address, config)
        counts = config.read_queue_count, config.write_queue_count
        table.rows.append((target.address, config.name, *counts, config.permission))
    return Answer([table])


async def change_permission(tools: Tools, topic: str, permission: int, place: Place) -> Answer:
    """Change only the permission of a topic where it exists. Raises TopicNotFound when that is nowhere."""
    table = Table("changed", ("broker", "topic", "old_permission", "permission"))
    for target in await find_targets(tools, place, masters_only=True):
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


async def show_stats(tools: Tools, topic: str, *, only_active: bool) -> Answer:
    """What went into each topic and to each of its groups: a second on average of the last minute, in the
    last 24 hours; and what waits.
    """
    table = Table("topics", _STATS_COLUMNS)
    for name in sorted(await tools.cluster_admin.topics()):
        if topic not in ("", name) or name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            continue
        route = await tools.cluster_admin.topic_route(name)
        masters = [one.addresses[MASTER_ID] for one in route.brokers if MASTER_ID in one.addresses]
        in_tps, in_day = await _sum_stats(tools, masters, "TOPIC_PUT_NUMS", name)
        groups = sorted({g for at in masters for g in await query_groups_of_topic(tools.remoting, at, name)})
        for group in groups or [""]:
            out_tps, out_day, lag = 0.0, 0, None
            if group:
                out_tps, out_day = await _sum_stats(tools, masters, "GROUP_GET_NUMS", f"{name}@{group}")
                lag = await tools.cluster_admin.lag(group, name)
            if not only_active or in_day or out_day:
                table.rows.append((name, group, lag, round(in_tps, 2), round(out_tps, 2), in_day, out_day))
    return Answer([table])


async def _sum_stats(tools: Tools, addresses: list[str], name: str, key: str) -> tuple[float, int]:
    """A second and in a day, of all these brokers."""
    found = [await query_stats(tools.remoting, address, name, key) for address in addresses]
    return sum(one.minute.tps for one in found), sum(one.day.sum for one in found)


_EXPORTS: Final = {"": "metadata.json", "topics": "topic.json", "groups": "subscriptionGroup.json"}


async def export_tables(
    tools: Tools, place: Place, directory: Path, what: str, *, has_special: bool
) -> Answer:
    """The users' topics and groups of a broker, or of the masters of a cluster together, in a file; `what`:
    only "topics" or "groups".
    """
    topics: dict[str, object] = {}
    groups: dict[str, object] = {}
    targets = await find_targets(tools, place, masters_only=True)
    for target in targets:
        table = await broker_topic.query_topic_configs(tools.remoting, target.address)
        system = await broker_topic.query_system_topics(tools.remoting, target.address)
        topics |= {
            name: to_builtins(config)
            for name, config in table.topics.items()
            if name not in system and (has_special or not (is_retry_topic(name) or is_dlq_topic(name)))
        }
        held = await broker_topic.query_group_configs(tools.remoting, target.address)
        groups |= {
            name: to_builtins(config) for name, config in held.groups.items() if not is_system_group(name)
        }
    values: dict[str, object] = {"exportTime": LoopClock().now_ms()}
    values |= {"topicConfigTable": topics} if what != "groups" else {}
    values |= {"subscriptionGroupTable": groups} if what != "topics" else {}
    path = _write_json(directory / _EXPORTS[what], values)
    counts = (None if what == "groups" else len(topics), None if what == "topics" else len(groups))
    exported = Table("exported", ("path", "topics", "groups"), [(str(path), *counts)])
    return Answer([exported])


def _write_json(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")
    return path
