"""Reads and changes of topics, against a cluster in this process."""

from __future__ import annotations

import pytest

from managed_cluster import ManagedCluster
from tandemmq.errors import TopicHasUnread, TopicNotFound
from tandemmq.manage.tools import Place, Target, find_targets, serving, targets_of
from tandemmq.manage.topics import (
    Load,
    QueueEnds,
    Topic,
    TopicDetails,
    TopicKind,
    _sum_series,
    change_topic,
    read_load,
    read_topic,
    read_topics,
)
from tandemmq.protocol.bodies.route import BrokerData, ClusterInfo
from tandemmq.protocol.bodies.stats import BrokerStatsAnswer, BrokerStatsItem

NOW_MS = 1_900_000_000_000


async def test_all_topics_have_their_kind_and_settings(managed: ManagedCluster) -> None:
    place = await find_targets(managed.tools, Place(address=managed.cluster.master_address))
    changes = {"read_queue_count": 3, "write_queue_count": 2}
    await change_topic(managed.tools, place, "Orders", changes, creates=True)
    for name in ("%RETRY%G", "%DLQ%G"):
        await managed.cluster.create_topic(name)
    table = await read_topics(managed.tools)
    orders = table.topics["Orders"]
    assert (orders.kind, orders.read_queue_count, orders.write_queue_count) == (TopicKind.USER, 3, 2)
    assert orders.permissions == (6,)
    assert table.topics["%RETRY%G"].kind is TopicKind.RETRY
    assert table.topics["%DLQ%G"].kind is TopicKind.DEAD_LETTER
    assert {table.topics[name].kind for name in ("TBW102", "broker-a", "DefaultCluster")} == {
        TopicKind.SYSTEM
    }
    assert list(table.topics) == sorted(table.topics)
    assert not table.failed


async def test_loads_and_details_count_what_is_stored(managed: ManagedCluster) -> None:
    await managed.cluster.create_topic("Orders", queue_count=2)
    await managed.send("Orders", 5)
    await managed.consume("Orders", "billing", 3)
    loads = await read_load(managed.tools, await read_topics(managed.tools), ["Orders"])
    assert loads["Orders"].count == 5
    details = await read_topic(managed.tools, "Orders", NOW_MS)
    assert sum(queue.count for queue in details.queues) == 5
    assert details.clusters == ("DefaultCluster",)
    (reader,) = details.consumers
    assert (reader.group, reader.lag, reader.member_count) == ("billing", 2, 0)
    assert details.consumer_count == 1
    with pytest.raises(TopicNotFound):
        await read_topic(managed.tools, "Missing", NOW_MS)


async def test_a_topic_keeps_queues_with_unread_messages(managed: ManagedCluster) -> None:
    place = await find_targets(managed.tools, Place(cluster="DefaultCluster"))
    await managed.cluster.create_topic("Orders", queue_count=4)
    await managed.send("Orders", 8)
    fewer = {"read_queue_count": 1, "write_queue_count": 1}
    with pytest.raises(TopicNotFound):
        await change_topic(managed.tools, place, "Missing", fewer)
    with pytest.raises(TopicHasUnread):
        await change_topic(managed.tools, place, "Orders", fewer)
    (config,) = (await change_topic(managed.tools, place, "Orders", fewer, force=True)).values()
    assert config.read_queue_count == 1


async def test_flags_are_bits_of_the_settings(managed: ManagedCluster) -> None:
    place = await find_targets(managed.tools, Place(cluster="DefaultCluster"))
    changes = {"is_unit": True, "has_unit_subscription": True}
    (config,) = (await change_topic(managed.tools, place, "Units", changes, creates=True)).values()
    assert config.sys_flag == 3
    (config,) = (await change_topic(managed.tools, place, "Units", {"is_unit": False})).values()
    assert config.sys_flag == 2


async def test_a_broker_without_an_answer_is_named(managed: ManagedCluster) -> None:
    (master,) = targets_of(await managed.tools.cluster_admin.cluster_info())
    away = Target("DefaultCluster", "broker-b", 0, "127.0.0.1:1")
    table = await read_topics(managed.tools, [master, away])
    assert table.targets == [master]
    assert set(table.failed) == {away}


def test_a_slave_is_asked_while_there_is_no_master() -> None:
    info = ClusterInfo(
        brokers={
            "a": BrokerData(addresses={0: "a:0", 1: "a:1"}),
            "b": BrokerData(addresses={2: "b:2", 1: "b:1"}),
        },
        clusters={"C": ("a", "b")},
    )
    assert [target.address for target in serving(targets_of(info))] == ["a:0", "b:1"]
    assert len(targets_of(info)) == 4


def test_skew_compares_the_fullest_queue_with_the_average() -> None:
    def skew(*counts: int) -> float:
        queues = tuple(QueueEnds("a", number, 0, count, 0) for number, count in enumerate(counts))
        return TopicDetails(topic, (), load, queues, (), 0, {}).skew

    topic, load = Topic("T", TopicKind.USER, {}), Load(0, 0, 0.0, 0)
    assert skew(4, 4) == 1.0
    assert skew(6, 2) == 1.5
    assert skew(0, 0) == skew() == 1.0


def test_a_young_series_counts_with_its_longest_time_span() -> None:
    of_minute = BrokerStatsItem(sum=3, tps=0.5)
    old = BrokerStatsAnswer(day=BrokerStatsItem(sum=500), hour=BrokerStatsItem(sum=40), minute=of_minute)
    in_first_day = BrokerStatsAnswer(hour=BrokerStatsItem(sum=40), minute=of_minute)
    in_first_hour = BrokerStatsAnswer(minute=of_minute)
    assert _sum_series([old, in_first_day, in_first_hour]) == (1.5, 543)
