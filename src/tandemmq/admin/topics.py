"""Commands for topics: topicList, topicRoute, topicClusterList, topicStatus, statsAll, updateTopic,
updateTopicList, updateTopicPerm, updateOrderConf, allocateMQ, deleteTopic, exportMetadata, exportMetrics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final

import typer
from msgspec import to_builtins

from tandemmq.admin import options as opt
from tandemmq.admin.options import option
from tandemmq.admin.render import CommandAnswer, Row, Table, rows_of, write_json
from tandemmq.api import broker_admin, nameserver
from tandemmq.client import admin_topics
from tandemmq.client.consumer.rebalance import allocate_averagely
from tandemmq.client.route_cache import build_view
from tandemmq.errors import NoRoute, TopicHasUnread
from tandemmq.manage.cluster import counted_between, first_rate, sent_rates
from tandemmq.manage.tools import Place, Tools, find_targets
from tandemmq.manage.topics import change_topic, delete_in_clusters, read_ends, read_series
from tandemmq.protocol import topic_names
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig, TopicConfig
from tandemmq.protocol.codes import render_version
from tandemmq.runtime.machine import LoopClock
from tandemmq.units import MASTER_ID

app = typer.Typer()

Force = Annotated[bool, option("--force", "Remove read queues even if they hold unread messages.")]
Permission = Annotated[int, option("-p --perm", "2: write, 4: read, 6: both.", min=0, max=7)]


END_COLUMNS: Final = ("broker", "queue", "min_offset", "max_offset", "messages", "newest_at")
QUEUE_ENDS: Final = "broker_name queue_id min_offset max_offset count newest_at_ms"
"""The ends of a queue, and their columns."""


@opt.command(app, "topicList")
async def topic_list(
    tools: Tools,
    with_clusters: Annotated[
        bool, option("-c --clusterModel", "Show their clusters and groups, too.")
    ] = False,
) -> CommandAnswer:
    """List the names of all topics."""
    names = await tools.cluster_admin.topics()
    if not with_clusters:
        return CommandAnswer.of_rows("topics", "topic", [(name,) for name in names])
    rows: list[Row] = []
    for name in names:
        if topic_names.is_derived(name):
            continue
        route = await tools.cluster_admin.topic_route(name)
        groups = await tools.groups_of(route, name)
        clusters = sorted({one.cluster for one in route.brokers})
        rows += [(cluster, name, group) for cluster in clusters for group in groups or [""]]
    return CommandAnswer.of_rows("topics", "cluster topic group", rows)


@opt.command(app, "topicRoute")
async def topic_route(
    tools: Tools,
    topic: opt.Topic,
    as_list: Annotated[bool, option("-l --list", "Accepted for mqadmin's scripts; has no effect.")] = False,
) -> CommandAnswer:
    """Show the queues and brokers of a topic."""
    route = await tools.cluster_admin.topic_route(topic)
    queues = Table("queues", ("broker", "read_queues", "write_queues", "permission"))
    for queue in sorted(route.queues, key=lambda one: one.broker_name):
        counts = queue.read_queue_count, queue.write_queue_count
        queues.rows.append((queue.broker_name, *counts, queue.permission))
    addresses = Table("addresses", ("cluster", "broker", "id", "address"))
    for broker in sorted(route.brokers, key=lambda one: one.broker_name):
        for broker_id, address in sorted(broker.addresses.items()):
            addresses.rows.append((broker.cluster, broker.broker_name, broker_id, address))
    return CommandAnswer([queues, addresses])


@opt.command(app, "topicClusterList")
async def topic_cluster_list(tools: Tools, topic: opt.Topic) -> CommandAnswer:
    """Show the clusters of a topic."""
    route = await tools.cluster_admin.topic_route(topic)
    names = sorted({broker.cluster for broker in route.brokers})
    return CommandAnswer.of_rows("clusters", "cluster", [(name,) for name in names])


@opt.command(app, "topicStatus")
async def topic_status(tools: Tools, topic: opt.Topic) -> CommandAnswer:
    """Show the first and last offset of each queue of a topic."""
    route = await tools.cluster_admin.topic_route(topic)
    table = Table("queues", END_COLUMNS)
    for broker in sorted(route.brokers, key=lambda one: one.broker_name):
        address = _master_or_slave(broker.addresses, broker.broker_name)
        table.rows += rows_of(await read_ends(tools, address, topic), QUEUE_ENDS)
    return CommandAnswer([table])


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The options of updateTopic: fields of a topic's configuration, and bits of its flags; None keeps the
    value.
    """

    read_queue_count: Annotated[
        int | None,
        option(
            "-r --readQueueNums", "Number of read queues.", min=1, max=65535, show_default="8 for a new topic"
        ),
    ] = None
    write_queue_count: Annotated[
        int | None,
        option(
            "-w --writeQueueNums",
            "Number of write queues.",
            min=1,
            max=65535,
            show_default="8 for a new topic",
        ),
    ] = None
    permission: Annotated[
        int | None,
        option("-p --perm", "2: write, 4: read, 6: both.", min=0, max=7, show_default="6 for a new topic"),
    ] = None
    is_ordered: Annotated[bool | None, option("-o --order", "Ordered topic: true or false."), opt.FLAG] = None
    attributes: Annotated[
        dict[str, str] | None, option("-a --attributes", "Attribute changes: +a=b,+c=d,-e."), opt.ATTRIBUTES
    ] = None
    is_unit: Annotated[bool | None, option("-u --unit", "Unit topic: true or false."), opt.FLAG] = None
    has_unit_subscription: Annotated[
        bool | None, option("-s --hasUnitSub", "Has subscribers in units: true or false."), opt.FLAG
    ] = None


@opt.command(app, "updateTopic")
async def update_topic(
    tools: Tools, topic: opt.Topic, place: Place, settings: TopicSettings, force: Force = False
) -> CommandAnswer:
    """Create a topic, or change its given settings, at one broker or at every master of a cluster."""
    table = Table("changed", ("broker", "topic", "read_queues", "write_queues", "permission"))
    targets = await find_targets(tools, place, masters_only=True)
    changes = opt.given(settings)
    changed = await change_topic(tools, targets, topic, changes, force=force, creates=True)
    for target, config in changed.items():
        counts = config.read_queue_count, config.write_queue_count
        table.rows.append((target.address, topic, *counts, config.permission))
    unreadable = [row for row in table.rows if row[3] > row[2]]
    notes = [f"{row[0]}: {row[3] - row[2]} write queues have no readers" for row in unreadable]
    return CommandAnswer([table], notes)


@opt.command(app, "updateTopicList")
def update_topic_list(file: opt.ListFile, place: Place, force: Force = False) -> opt.Work:
    """Create or change all topics of a file, or none, at one broker or at every master of a cluster."""
    configs = opt.read_list(file, TopicConfig)

    async def work(tools: Tools) -> CommandAnswer:
        addresses = await tools.masters(place)
        for address in () if force else addresses:
            for config in configs:
                await _require_read(tools, address, config)
        changed = await tools.change(addresses, broker_admin.create_topics, configs)
        rows = [(at, config.name) for at, _ in changed for config in configs]
        return CommandAnswer.of_rows("changed", "broker topic", rows)

    return work


async def _require_read(tools: Tools, address: str, config: TopicConfig) -> None:
    """Raises TopicHasUnread if the broker's topic would lose read queues with unread messages."""
    existing = await admin_topics.read_config(tools.remoting, address, config.name)
    if existing is None or existing.read_queue_count <= config.read_queue_count:
        return
    found = await admin_topics.find_unread(tools.remoting, address, existing, config.read_queue_count)
    if found:
        raise TopicHasUnread(f"nothing was changed: topic {config.name!r} would lose {found}")


@opt.command(app, "updateOrderConf")
def update_order_conf(
    topic: opt.Topic,
    value: Annotated[
        str, option("-v --orderConf", "With put: the queue counts, such as broker-a:8;broker-b:8.")
    ] = "",
    method: Annotated[str, option("-m --method", "put, get or delete.")] = "put",
) -> opt.Work:
    """Set, show or delete the queues per broker of an ordered topic, at all name servers."""
    if method not in ("put", "get", "delete"):
        raise typer.BadParameter(f"-m {method}: must be put, get or delete")
    if (method == "put") != bool(value):
        raise typer.BadParameter(
            "-v, such as broker-a:8;broker-b:8, must be given with -m put, and only then"
        )

    async def work(tools: Tools) -> CommandAnswer:
        servers = tools.cluster_admin.name_servers
        if method == "put":
            await tools.change(servers, nameserver.put_kv, topic_names.ORDER_TOPICS, topic, value)
        elif method == "delete":
            await tools.change(servers, nameserver.delete_kv, topic_names.ORDER_TOPICS, topic)
        known = await tools.ask(servers, nameserver.get_kv, topic_names.ORDER_TOPICS, topic)
        rows = [(at, topic, order) for at, order in known]
        return CommandAnswer.of_rows("orders", "name_server topic order", rows)

    return work


def _members(text: str, option: str) -> tuple[str, ...]:
    ids = opt.parts(text)
    if not ids:
        raise typer.BadParameter(f"{option} {text!r}: must be consumer ids, separated by commas")
    return ids


@opt.command(app, "allocateMQ")
async def allocate_queues(
    tools: Tools,
    topic: opt.Topic,
    members: Annotated[
        tuple[str, ...], option("-i --ipList", "The consumers' ids, separated by commas."), opt.Text(_members)
    ],
) -> CommandAnswer:
    """Preview how queues would be divided among consumers, by the average strategy."""
    view = build_view(topic, await tools.cluster_admin.topic_route(topic))
    rows = [
        (member, queue.broker_name, queue.queue_id)
        for member in members
        for queue in allocate_averagely(view.subscribe_queues, members, member)
    ]
    return CommandAnswer.of_rows("shares", "member broker queue", rows)


@opt.command(app, "statsAll")
async def stats_all(
    tools: Tools,
    topic: Annotated[str, option("-t --topic", "Only this topic.")] = "",
    only_active: Annotated[
        bool, option("-a --activeTopic", "Only topics with traffic in the last 24 hours.")
    ] = False,
) -> CommandAnswer:
    """Show the traffic of each topic and of its groups, and their lag."""
    rows: list[Row] = []
    for name in sorted(await tools.cluster_admin.topics()):
        if topic not in ("", name) or topic_names.is_derived(name):
            continue
        route = await tools.cluster_admin.topic_route(name)
        masters = route.masters
        in_tps, in_day = await read_series(tools, masters, "TOPIC_PUT_NUMS", name)
        groups = await tools.groups_of(route, name)
        for group in groups or [""]:
            out_tps, out_day, lag = 0.0, 0, None
            if group:
                out_tps, out_day = await read_series(tools, masters, "GROUP_GET_NUMS", f"{name}@{group}")
                lag = await tools.cluster_admin.lag(group, name)
            if not only_active or in_day or out_day:
                rows.append((name, group, lag, round(in_tps, 2), round(out_tps, 2), in_day, out_day))
    return CommandAnswer.of_rows("topics", "topic group lag in_tps out_tps in_24h out_24h", rows)


@opt.command(app, "exportMetadata")
def export_metadata(
    place: Place,
    directory: opt.ExportDirectory = opt.EXPORT_DIRECTORY,
    only_topics: Annotated[bool, option("-t --topic", "Export only topics, to topic.json.")] = False,
    only_groups: Annotated[
        bool, option("-g --subscriptionGroup", "Export only groups, to subscriptionGroup.json.")
    ] = False,
    has_special: Annotated[
        bool, option("-s --specialTopic", "Include retry and dead-letter topics.")
    ] = False,
) -> opt.Work:
    """Write the topics and groups that users created to metadata.json, from a broker or a cluster."""
    if only_topics and only_groups:
        raise typer.BadParameter(
            "-t exports only topics and -g only groups: give one of them, or neither for both"
        )

    async def work(tools: Tools) -> CommandAnswer:
        topics: dict[str, object] = {}
        groups: dict[str, object] = {}
        for address in await tools.masters(place):
            held_topics, held_groups = await _user_tables(tools, address, has_special=has_special)
            topics |= {name: to_builtins(config) for name, config in held_topics.items()}
            groups |= {name: to_builtins(config) for name, config in held_groups.items()}
        values: dict[str, object] = {"exportTime": LoopClock().now_ms()}
        values |= {} if only_groups else {"topicConfigTable": topics}
        values |= {} if only_topics else {"subscriptionGroupTable": groups}
        name = "topic" if only_topics else "subscriptionGroup" if only_groups else "metadata"
        path = write_json(directory / f"{name}.json", values)
        counts = (None if only_groups else len(topics), None if only_topics else len(groups))
        return CommandAnswer.of_rows("exported", "path topics groups", [(str(path), *counts)])

    return work


@opt.command(app, "exportMetrics")
async def export_metrics(
    tools: Tools,
    cluster: Annotated[str, option("-c --clusterName", "The cluster.")],
    directory: opt.ExportDirectory = opt.EXPORT_DIRECTORY,
) -> CommandAnswer:
    """Write the content and load of a cluster's masters to metrics.json."""
    report: dict[str, object] = {}
    rates: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for target in await find_targets(tools, Place(cluster=cluster), masters_only=True):
        facts = await broker_admin.query_runtime_info(tools.remoting, target.address)
        settings = await broker_admin.query_broker_config(tools.remoting, target.address)
        topics, groups = await _user_tables(tools, target.address, has_special=False)
        tps, day = await _traffic(tools, target.address, facts)
        rates.update({f"total{name[0].upper()}{name[1:]}": value for name, value in tps.items()})
        counts.update(day)
        clients = await _client_versions(tools, target.address, groups)
        report[target.broker_name] = {
            "runtimeEnv": {
                "cpuNum": settings.get("clientCallbackExecutorThreads"),
                "totalMemKBytes": facts.get("totalMemKBytes"),
            },
            "runtimeQuota": {
                "diskRatio": {
                    name: facts.get(name) for name in ("commitLogDiskRatio", "consumeQueueDiskRatio")
                },
                "tps": tps,
                "oneDayNum": day,
                "messageAverageSize": facts.get("putMessageAverageSize"),
                "topicSize": len(topics),
                "groupSize": len(groups),
            },
            "runtimeVersion": {"rocketmqVersion": facts.get("brokerVersionDesc"), "clientInfo": clients},
        }
    totals = {"totalTps": dict(rates), "totalOneDayNum": dict(counts)}
    path = write_json(directory / "metrics.json", {"evaluateReport": report, "totalData": totals})
    return CommandAnswer.of_rows("exported", "path masters", [(str(path), len(report))])


@opt.command(app, "updateTopicPerm")
async def update_topic_permission(
    tools: Tools, topic: opt.Topic, permission: Permission, place: Place
) -> CommandAnswer:
    """Change the permission of a topic, at one broker or at every master of a cluster."""
    masters = await find_targets(tools, place, masters_only=True)
    asked = await tools.ask([one.address for one in masters], broker_admin.query_topic_config, topic)
    held = {at: config.permission for at, config in asked if config is not None}
    changed = await change_topic(tools, masters, topic, {"permission": permission})
    rows = [(one.address, topic, held.get(one.address), permission) for one in changed]
    return CommandAnswer.of_rows("changed", "broker topic old_permission permission", rows)


@opt.command(app, "deleteTopic")
async def delete_topic(tools: Tools, topic: opt.Topic, cluster: opt.Cluster) -> CommandAnswer:
    """Delete a topic at all brokers of a cluster and at the name servers."""
    await delete_in_clusters(tools, topic, [cluster])
    return CommandAnswer.of_rows("deleted", "topic", [(topic,)])


# Facts of brokers


def _master_or_slave(addresses: Mapping[int, str], broker_name: str) -> str:
    if not addresses:
        raise NoRoute(f"no address is known for broker {broker_name!r}")
    return addresses.get(MASTER_ID) or addresses[min(addresses)]


async def _user_tables(
    tools: Tools, address: str, *, has_special: bool
) -> tuple[dict[str, TopicConfig], dict[str, SubscriptionGroupConfig]]:
    """Returns the topics and groups of a broker that users created; `has_special` adds retry and dead-letter
    topics.
    """
    topics = (await broker_admin.query_topic_configs(tools.remoting, address)).topics
    system = await broker_admin.query_system_topics(tools.remoting, address)
    groups = (await broker_admin.query_group_configs(tools.remoting, address)).groups
    return (
        {
            name: config
            for name, config in topics.items()
            if name not in system and (has_special or not topic_names.is_derived(name))
        },
        {name: config for name, config in groups.items() if not topic_names.is_system_group(name)},
    )


async def _traffic(
    tools: Tools, address: str, facts: Mapping[str, str]
) -> tuple[dict[str, float], dict[str, int]]:
    """Returns the current rates per second and the counts of a day by mqadmin's names; transactions and
    delayed messages are separate.
    """
    half_tps, half_day = await read_series(tools, [address], "TOPIC_PUT_NUMS", topic_names.HALF_TOPIC)
    late_tps, late_day = await read_series(tools, [address], "TOPIC_PUT_NUMS", topic_names.SCHEDULE_TOPIC)
    tps = {
        "normalInTps": first_rate(facts.get("putTps")) or 0.0,
        "normalOutTps": first_rate(sent_rates(facts)) or 0.0,
        "transInTps": half_tps,
        "scheduleInTps": late_tps,
    }
    day = {
        f"normalOneDay{word}Num": counted_between(facts, way, "YesterdayMorning", "TodayMorning") or 0
        for word, way in (("In", "Put"), ("Out", "Get"))
    }
    return tps, day | {"transOneDayInNum": half_day, "scheduleOneDayInNum": late_day}


async def _client_versions(tools: Tools, address: str, groups: Iterable[str]) -> list[str]:
    """Returns the languages and versions of the consumers that are connected to this broker."""
    found: set[str] = set()
    for group in groups:
        answer = await broker_admin.query_consumer_connections(tools.remoting, address, group)
        members = () if answer is None else answer.connections
        found |= {f"{one.language}%{render_version(one.version)}" for one in members}
    return sorted(found)
