"""Changes of topics and groups while a registered broker does not answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from managed_cluster import ManagedCluster
from tandemmq.errors import BrokersAway, PartlyChanged
from tandemmq.manage.changes import answering_masters
from tandemmq.manage.groups import change_group, delete_group, find_group_masters, read_groups
from tandemmq.manage.resets import clone_offsets
from tandemmq.manage.settings import change_setting
from tandemmq.manage.tools import Place, Target
from tandemmq.manage.topics import change_topic, create_topic, delete_in_clusters

AWAY = Target("DefaultCluster", "broker-b", 0, "127.0.0.1:1")


async def test_the_masters_answer(managed: ManagedCluster) -> None:
    (master,) = await answering_masters(managed.tools)
    assert str(master) == f"broker-a ({managed.cluster.master_address})"
    assert await answering_masters(managed.tools, Place(address="127.0.0.1:1")) == [
        Target("", "", None, "127.0.0.1:1")
    ]


async def test_nothing_is_changed_while_a_master_is_silent(managed: ManagedCluster) -> None:
    (master,) = await answering_masters(managed.tools)
    assert await create_topic(managed.tools, "Orders", queue_count=1)
    await change_group(managed.tools, [master], "billing", {})
    await managed.register(AWAY)
    changes: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: answering_masters(managed.tools),
        lambda: create_topic(managed.tools, "Paid"),
        lambda: find_group_masters(managed.tools, "billing"),
        lambda: delete_in_clusters(managed.tools, "Orders", ["DefaultCluster"]),
    )
    for change in changes:
        with pytest.raises(BrokersAway, match=r"nothing is changed: broker-b \(127.0.0.1:1\)"):
            await change()
    known = await managed.tools.cluster_admin.topics()
    assert "Orders" in known
    assert "Paid" not in known


async def test_nothing_is_changed_while_a_broker_has_no_master(managed: ManagedCluster) -> None:
    await managed.register(Target("DefaultCluster", "broker-b", 1, "127.0.0.1:1"))
    with pytest.raises(BrokersAway, match="broker-b has no master now"):
        await answering_masters(managed.tools)


async def test_a_half_done_change_names_the_brokers(managed: ManagedCluster) -> None:
    (master,) = await answering_masters(managed.tools)
    both = [AWAY, master]
    changes: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: change_topic(managed.tools, both, "Orders", {"permission": 4}, creates=True),
        lambda: change_group(managed.tools, both, "billing", {"retry_count_max": 3}),
        lambda: change_setting(managed.tools, [one.address for one in both], "fileReservedTime", "71"),
    )
    for change in changes:
        with pytest.raises(PartlyChanged) as caught:
            await change()
        done, _, failed = str(caught.value).partition("; failed at ")
        assert master.address in done
        assert AWAY.address in failed
    group = (await read_groups(managed.tools, [master])).groups["billing"]
    assert group.configs["broker-a"].retry_count_max == 3
    with pytest.raises(PartlyChanged):
        await delete_group(managed.tools, both, "billing", removes_offsets=True)
    assert "billing" not in (await read_groups(managed.tools, [master])).groups


async def test_offsets_are_cloned_where_it_is_possible(managed: ManagedCluster) -> None:
    (master,) = await answering_masters(managed.tools)
    await managed.cluster.create_topic("Orders", queue_count=1)
    await managed.send("Orders", 3)
    await managed.consume("Orders", "billing", 2)
    await change_group(managed.tools, [master], "audit", {})
    await managed.register(AWAY, "Orders")
    with pytest.raises(PartlyChanged, match=r"changed at broker-a; failed at broker-b: "):
        await clone_offsets(managed.tools, "billing", "audit", "Orders")
