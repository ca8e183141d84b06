"""Consumer groups through `Admin`: created, described, changed, moved and deleted at every master."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from client_rig import Rig, numbers, running_cluster, running_rig, take

from tandemmq.api.broker_admin import create_group
from tandemmq.client import Admin, BlockingAdmin
from tandemmq.errors import (
    BadRequest,
    BrokerUnreachable,
    GroupExists,
    GroupNotFound,
    QueueNotFound,
    TopicNotFound,
)
from tandemmq.manage.tools import open_tools
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.protocol.requests.admin import IfExists
from waits import until


async def test_of_two_creators_at_the_same_moment_one_is_told(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig, Admin(rig.namesrv) as admin:
        counts = (3, 4)
        answers = await asyncio.gather(
            *(admin.create_group("billing", retry_count_max=count) for count in counts),
            return_exceptions=True,
        )
        (held,) = (await admin.group_config("billing")).values()
        for count, answer in zip(counts, answers, strict=True):
            if held.retry_count_max == count:
                assert answer is True
            else:
                assert isinstance(answer, GroupExists), answer
        equal = [admin.create_group("stock", retry_count_max=3) for _ in range(2)]
        assert True in await asyncio.gather(*equal)

        (address,) = (one.addresses[0] for one in (await admin.cluster_info()).brokers.values())
        other = SubscriptionGroupConfig(name="billing", retry_count_max=9)
        async with open_tools("") as tools:
            await create_group(tools.remoting, address, other, if_exists=IfExists.KEEP)
            with pytest.raises(BadRequest, match="tmIfExists 'grow' must be keep for a group"):
                await create_group(tools.remoting, address, other, if_exists=IfExists.GROW)
        assert await admin.group_config("billing") == {"broker-a": held}


async def lacks(admin: Admin, group: str) -> bool:
    return group not in await admin.groups()


async def test_a_group_is_created_changed_and_deleted_at_every_master(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig, Admin(rig.namesrv) as admin:
        await admin.create_group("billing", retry_count_max=3)
        await rig.start_broker("broker-b")
        with pytest.raises(GroupExists, match="at broker-a it has retry_count_max=3, not 4:"):
            await admin.create_group("billing", retry_count_max=4)
        assert set(await admin.group_config("billing")) == {"broker-a"}, "nothing is created then"
        assert await admin.create_group("billing", retry_count_max=4, exist_ok=True) is True
        held = await admin.group_config("billing")
        assert {name: one.retry_count_max for name, one in held.items()} == {"broker-a": 3, "broker-b": 4}
        assert await admin.create_group("billing") is False
        assert await admin.groups() == ["billing"]

        await admin.update_group("billing", is_orderly=True, attributes={"priority.factor": "50"})
        await admin.update_group("billing", is_consume_enabled=False)
        for name, one in (await admin.group_config("billing")).items():
            flags = (one.is_orderly, one.is_consume_enabled, one.attributes)
            assert flags == (True, False, {"priority.factor": "50"}), "what a change does not name stays"
            assert one.retry_count_max == held[name].retry_count_max
        for held_already in ({"priority.factor": "50"}, {"+priority.factor": "50"}, {"-lite.sub.model": ""}):
            assert await admin.create_group("billing", attributes=held_already) is False
        with pytest.raises(GroupExists, match=r"priority\.factor=50, not 60"):
            await admin.create_group("billing", attributes={"priority.factor": "60"})

        await admin.ensure_topic("Orders", queue_count=1)
        at_end = {MessageQueue("Orders", name, 0): 0 for name in ("broker-a", "broker-b")}
        assert (
            await admin.set_offsets("billing", at_end)
            == await admin.skip_to_end("billing", "Orders")
            == at_end
        )

        await admin.delete_group("billing")
        assert await admin.groups() == []
        await admin.delete_group("billing")


async def test_what_does_not_exist_or_is_not_allowed_is_refused(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig, Admin(rig.namesrv) as admin:
        for call in (
            admin.describe_group("billing"),
            admin.group_config("billing"),
            admin.update_group("billing", is_orderly=True),
        ):
            with pytest.raises(GroupNotFound, match="'billing'"):
                await call
        assert await lacks(admin, "billing"), "a question creates no group"
        with pytest.raises(TopicNotFound):
            await admin.topic_config("Missing")
        with pytest.raises(BadRequest, match="unknown setting 'retries'"):
            await admin.create_group("billing", retries=3)  # type: ignore[call-arg]  # on purpose
        with pytest.raises(BadRequest, match="unknown cluster 'other'"):
            await admin.create_group("billing", cluster="other")
        with pytest.raises(BadRequest):
            await admin.create_group("no good name")
        with pytest.raises(BadRequest, match="group of the brokers or of tools"):
            await admin.delete_group("TOOLS_CONSUMER")
        assert await lacks(admin, "billing")


async def test_a_group_is_described_with_its_members(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path) as rig,
        Admin(rig.namesrv) as admin,
        rig.consumer("billing", tags="paid") as consumer,
    ):

        async def is_online() -> bool:
            return not await lacks(admin, "billing") and bool((await admin.describe_group("billing")).members)

        await until(is_online)
        found = await admin.describe_group("billing")
        (member,) = found.members.values()
        assert member.client_id == consumer.instance.client_id
        assert member.address.startswith("127.0.0.1:")
        assert found.subscriptions["T"].expression == "paid"
        assert set(found.settings) == {"broker-a"}
        assert found.problems == {}


async def test_offsets_are_set_also_while_members_run(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig, Admin(rig.namesrv) as admin:
        await rig.fill("T", 6)
        queue = MessageQueue("T", "broker-a", 0)
        async with rig.consumer("CG") as consumer:
            assert numbers(await take(consumer, 6)) == list(range(6))
            await consumer.commit()
            assert await admin.set_offsets("CG", {queue: 4}) == {queue: 4}
            assert numbers(await take(consumer, 2)) == [4, 5]
        assert await admin.skip_to_end("CG", "T") == {queue: 6}
        assert await admin.lag("CG", "T") == 0
        beyond = MessageQueue("T", "broker-a", 9)
        with pytest.raises(BadRequest, match=r"offset 7 .* must be from 0 to 6"):
            await admin.set_offsets("CG", {queue: 7})
        with pytest.raises(QueueNotFound):
            await admin.set_offsets("CG", {queue: 1, beyond: 0})
        assert await admin.committed_offsets("CG", "T") == {queue: 6}, "nothing is moved then"
        assert await admin.set_offsets("CG", {}) == {}


async def test_the_offsets_of_a_deleted_group_stay_if_asked(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig, Admin(rig.namesrv) as admin:
        await rig.fill("T", 3)
        queue = MessageQueue("T", "broker-a", 0)
        await admin.create_group("CG")
        await admin.set_offsets("CG", {queue: 2})
        await admin.delete_group("CG", keep_offsets=True)
        assert await admin.committed_offsets("CG", "T") == {queue: 2}
        await admin.create_group("CG")
        await admin.delete_group("CG")
        assert await admin.committed_offsets("CG", "T") == {queue: None}


async def test_a_broker_that_is_away_is_named(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig, Admin(rig.namesrv) as admin:
        await admin.create_group("billing")
        await rig.stop_broker()

        async def is_refused() -> bool:
            try:
                await admin.describe_group("billing")
            except (BrokerUnreachable, GroupNotFound):  # the latter once the name server has dropped it
                return True
            return False

        await until(is_refused)


async def test_the_blocking_facade_does_the_same(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        await rig.start_broker()
        await asyncio.to_thread(use_blocking_admin, rig)


def use_blocking_admin(rig: Rig) -> None:
    with BlockingAdmin(rig.namesrv) as admin:
        admin.create_topic("T", queue_count=2)
        assert {one.read_queue_count for one in admin.topic_config("T").values()} == {2}
        assert admin.create_group("CG", retry_count_max=2) is True
        admin.update_group("CG", retry_count_max=5)
        assert {one.retry_count_max for one in admin.group_config("CG").values()} == {5}
        assert admin.describe_group("CG").members == {}
        assert admin.groups() == ["CG"]
        queues = list(admin.topic_offsets("T"))
        assert admin.set_offsets("CG", dict.fromkeys(queues, 0)) == dict.fromkeys(queues, 0)
        assert admin.skip_to_end("CG", "T") == dict.fromkeys(queues, 0)
        admin.delete_group("CG")
        with pytest.raises(GroupNotFound):
            admin.group_config("CG")
