"""The topics of a cluster: their settings, their load, their queues and readers, and changes of them.

`read_topics` sends one request to each broker and returns all topics; `read_load` and `read_topic` ask for
the details of the topics that are shown. Used by commands and by pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from tandemmq.api import broker_admin
from tandemmq.client import admin_topics
from tandemmq.client.changes import change_each
from tandemmq.client.groups import read_members
from tandemmq.errors import BadRequest, BrokersAway
from tandemmq.manage.changes import answering_masters
from tandemmq.manage.progress import find_behind_s, read_lags, sum_lag
from tandemmq.manage.reach import READ_TIMEOUT_S, answers_of, ask_each, ask_tables, errors_of, list_silent
from tandemmq.manage.tools import Place, Target, Tools, serving, targets_of
from tandemmq.protocol import topic_names
from tandemmq.protocol.bodies.route import ClusterInfo
from tandemmq.protocol.bodies.stats import BrokerStatsAnswer
from tandemmq.protocol.bodies.tables import PERMISSION_DEFAULT, Permission, TopicConfig

MESSAGE_TYPE: Final = "message.type"
MESSAGE_TYPES: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED")
CONSUMERS_MAX: Final = 100
"""The most groups whose progress is read for one topic; the others are only counted."""


class TopicKind(StrEnum):
    """The use of a topic, by its name."""

    USER = "user"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic with its settings at each broker that has it, by broker name."""

    name: str
    kind: TopicKind
    configs: Mapping[str, TopicConfig]

    @property
    def read_queue_count(self) -> int:
        return sum(config.read_queue_count for config in self.configs.values())

    @property
    def write_queue_count(self) -> int:
        return sum(config.write_queue_count for config in self.configs.values())

    @property
    def permissions(self) -> tuple[int, ...]:
        """The permissions at the brokers, each once: one where all brokers agree."""
        return tuple(sorted({config.permission for config in self.configs.values()}))

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes at any broker."""
        return {key: text for config in self.configs.values() for key, text in config.attributes.items()}

    @property
    def message_type(self) -> str:
        """The kind of messages that the topic accepts; an empty text where none is set."""
        return self.attributes.get(MESSAGE_TYPE, "")


@dataclass(frozen=True, slots=True)
class ClusterTopics:
    """All topics, by name, the brokers that reported them, and the errors of the others."""

    topics: dict[str, Topic]
    targets: list[Target]
    failed: dict[Target, str]


@dataclass(frozen=True, slots=True)
class QueueEnds:
    """The stored messages of one queue, `[min_offset, max_offset)`, and the time of the newest one."""

    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    newest_at_ms: int

    @property
    def count(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class Load:
    """The stored messages of a topic, and its incoming messages per second and in the last 24 hours."""

    count: int
    newest_at_ms: int
    in_tps: float
    in_day: int


@dataclass(frozen=True, slots=True)
class TopicConsumer:
    """One group that reads a topic: its members, its lag, and the traffic to it. `problem` is the reason why
    members or lag may be incomplete.
    """

    group: str
    member_count: int
    lag: int
    behind_s: int | None
    out_tps: float
    out_day: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TopicDetails:
    """One topic in full. `consumers` are the first CONSUMERS_MAX of `consumer_count` groups; `failed` are the
    brokers that did not answer.
    """

    topic: Topic
    clusters: tuple[str, ...]
    load: Load
    queues: tuple[QueueEnds, ...]
    consumers: tuple[TopicConsumer, ...]
    consumer_count: int
    failed: Mapping[Target, str]

    @property
    def skew(self) -> float:
        """The messages of the fullest queue, as a multiple of the average; 1.0 without messages."""
        counts = [queue.count for queue in self.queues]
        return max(counts) * len(counts) / sum(counts) if sum(counts) else 1.0


# Reads


def system_names(info: ClusterInfo) -> frozenset[str]:
    """Returns the topics that brokers create for themselves under names of this cluster: each broker has one
    of its own name, one of its cluster's name, and one for replies.
    """
    return frozenset({*info.brokers, *info.clusters, *map(topic_names.reply_topic, info.clusters)})


def topic_kind(name: str, system: frozenset[str]) -> TopicKind:
    """Returns the use of a topic; `system` are the names that `system_names` returns."""
    if name in system or topic_names.is_system_topic(name):
        return TopicKind.SYSTEM
    if topic_names.is_retry_topic(name):
        return TopicKind.RETRY
    return TopicKind.DEAD_LETTER if topic_names.is_dlq_topic(name) else TopicKind.USER


def permission_text(bits: int) -> str:
    """Returns the name of a permission."""
    names = [name for name, bit in (("read", Permission.READ), ("write", Permission.WRITE)) if bits & bit]
    return " and ".join(names) or "none"


async def read_topics(tools: Tools, targets: Iterable[Target] | None = None) -> ClusterTopics:
    """Returns all topics, with one request to one replica of each of these brokers, or of all brokers."""
    info = await tools.cluster_admin.cluster_info()

    async def ask(target: Target) -> Mapping[str, TopicConfig]:
        return (await broker_admin.query_topic_configs(tools.remoting, target.address)).topics

    asked = serving(targets_of(info) if targets is None else targets)
    configs, answered, failed = await ask_tables(asked, ask, timeout_s=READ_TIMEOUT_S)
    system = system_names(info)
    topics = {name: Topic(name, topic_kind(name, system), held) for name, held in configs.items()}
    return ClusterTopics(topics, answered, failed)


async def read_load(tools: Tools, table: ClusterTopics, names: Iterable[str]) -> dict[str, Load]:
    """Returns the load of some topics of the table, as far as their brokers answer."""
    shown = [table.topics[name] for name in names]

    async def load(topic: Topic) -> Load:
        asked = [target for target in table.targets if target.broker_name in topic.configs]
        queues = await _read_ends(tools, asked, topic.name)
        return await _read_load(tools, asked, topic.name, queues)

    loads = await asyncio.gather(*map(load, shown))
    return {topic.name: one for topic, one in zip(shown, loads, strict=True)}


async def read_topic(tools: Tools, name: str, now_ms: int) -> TopicDetails:
    """Returns one topic in full, as far as its brokers answer. Raises TopicNotFound."""
    route = await tools.cluster_admin.topic_route(name)
    asked = [
        Target(one.cluster, one.broker_name, *min(one.addresses.items()))
        for one in route.brokers
        if one.addresses
    ]

    held = await ask_each(asked, lambda one: admin_topics.read_config(tools.remoting, one.address, name))
    configs = {target.broker_name: config for target, config in answers_of(held) if config is not None}
    clusters = tuple(sorted({target.cluster for target in asked}))
    failed = errors_of(held)
    asked = [target for target in asked if target not in failed]
    queues = await _read_ends(tools, asked, name)
    found = await ask_each(
        asked, lambda one: broker_admin.query_groups_of_topic(tools.remoting, one.address, name)
    )
    names = sorted({group for _, groups in answers_of(found) for group in groups})
    addresses = [target.address for target in asked]
    shown = names[:CONSUMERS_MAX]
    consumers = await asyncio.gather(*(_read_consumer(tools, addresses, one, name, now_ms) for one in shown))
    system = system_names(await tools.cluster_admin.cluster_info())
    return TopicDetails(
        topic=Topic(name, topic_kind(name, system), configs),
        clusters=clusters,
        load=await _read_load(tools, asked, name, queues),
        queues=tuple(queues),
        consumers=tuple(consumers),
        consumer_count=len(names),
        failed=failed,
    )


async def read_ends(tools: Tools, address: str, topic: str) -> list[QueueEnds]:
    """Returns the ends of the topic's queues at one broker, in queue order. Raises TopicNotFound."""
    stats = await broker_admin.query_topic_stats(tools.remoting, address, topic)
    return [
        QueueEnds(queue.broker_name, queue.queue_id, one.min_offset, one.max_offset, one.updated_at_ms)
        for queue, one in sorted(stats.queues.items())
    ]


async def read_series(tools: Tools, addresses: Iterable[str], name: str, key: str) -> tuple[float, int]:
    """Returns the rate per second and the count of a day of one series, summed over these brokers."""
    return _sum_series([one for _, one in await tools.ask(addresses, broker_admin.query_stats, name, key)])


# Changes


async def create_topic(
    tools: Tools,
    topic: str,
    *,
    cluster: str = "",
    queue_count: int = admin_topics.NEW_QUEUE_COUNT,
    permission: int = PERMISSION_DEFAULT,
    attributes: Mapping[str, str] | None = None,
    exist_ok: bool = False,
) -> bool:
    """Creates a topic at each master of a cluster, as `Admin.create_topic` does; the name may be empty if
    there is only one. Returns True if a master lacked it.

    Raises:  BrokersAway before anything is created; the errors of `Admin.create_topic`.
    """
    await answering_masters(tools, Place(cluster=cluster))
    return await tools.cluster_admin.create_topic(
        topic,
        queue_count=queue_count,
        permission=permission,
        cluster=cluster or None,
        attributes=attributes,
        exist_ok=exist_ok,
    )


async def change_topic(
    tools: Tools,
    targets: Iterable[Target],
    topic: str,
    changes: Mapping[str, Any],
    *,
    force: bool = False,
    creates: bool = False,
) -> dict[Target, TopicConfig]:
    """Changes a topic at these brokers as `admin_topics.change` does."""
    topic_names.check_topic(topic)
    addresses = {target: target.address for target in targets}
    return await admin_topics.change(tools.remoting, addresses, topic, changes, force=force, creates=creates)


async def find_topic_masters(tools: Tools, details: TopicDetails, cluster: str = "") -> list[Target]:
    """Returns the masters that have the topic, in one cluster or in all.

    Raises:  BrokersAway when a broker cannot be asked whether it has the topic.
    """
    clusters = [cluster] if cluster else details.clusters
    failed = {target: error for target, error in details.failed.items() if target.cluster in clusters}
    if away := list_silent(failed):
        raise BrokersAway(f"nothing is changed: {'; '.join(away)}")
    masters = [target for one in clusters for target in await answering_masters(tools, Place(cluster=one))]
    return [target for target in masters if target.broker_name in details.topic.configs]


async def delete_in_clusters(tools: Tools, topic: str, clusters: Iterable[str]) -> None:
    """Deletes a topic at each master of these clusters and at the name servers.

    Raises:  BrokersAway before anything is deleted; the errors of `change_each`.
    """
    names = list(clusters)
    for name in names:
        await answering_masters(tools, Place(cluster=name))

    await change_each(names, lambda cluster: tools.cluster_admin.delete_topic(topic, cluster=cluster or None))


async def delete_topic(tools: Tools, details: TopicDetails) -> None:
    """Deletes a topic in each cluster that has it. Raises BadRequest for a topic of the brokers themselves;
    the errors of `delete_in_clusters`.
    """
    name = details.topic.name
    if details.topic.kind is TopicKind.SYSTEM:
        raise BadRequest(f"{name} is a topic of the brokers themselves")
    await delete_in_clusters(tools, name, details.clusters)


# Inside


async def _read_ends(tools: Tools, asked: list[Target], topic: str) -> list[QueueEnds]:
    found = await ask_each(asked, lambda one: read_ends(tools, one.address, topic))
    return [queue for _, queues in answers_of(found) for queue in queues]


async def _read_load(tools: Tools, asked: list[Target], topic: str, queues: list[QueueEnds]) -> Load:
    found = await ask_each(
        asked, lambda one: broker_admin.query_stats(tools.remoting, one.address, "TOPIC_PUT_NUMS", topic)
    )
    return Load(
        sum(queue.count for queue in queues),
        max((queue.newest_at_ms for queue in queues), default=0),
        *_sum_series([answer for _, answer in answers_of(found)]),
    )


async def _read_consumer(
    tools: Tools, addresses: list[str], group: str, topic: str, now_ms: int
) -> TopicConsumer:
    members = await read_members(tools.remoting, addresses, group)
    lags = await read_lags(tools, addresses, group, topic, members=members)
    tps, day = await read_series(tools, addresses, "GROUP_GET_NUMS", f"{topic}@{group}")
    return TopicConsumer(
        group,
        len(members.members),
        sum_lag(lags),
        find_behind_s(lags, now_ms),
        tps,
        day,
        "; ".join(f"{address}: {reason}" for address, reason in members.refused.items()),
    )


def _sum_series(found: list[BrokerStatsAnswer]) -> tuple[float, int]:
    # In its first hour a series has only a minute's sum, and in its first day no day's sum.
    counts = (one.day.sum or one.hour.sum or one.minute.sum for one in found)
    return sum(one.minute.tps for one in found), sum(counts)
