"""Topics that exist when an application creates them: none of their messages is lost, hidden or reset.

Source: spec semantics 3.1.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from client_rig import Rig, numbers, running_cluster, running_rig, take

from tandemmq.api import broker_admin
from tandemmq.client import Admin, BlockingAdmin, Message, Producer
from tandemmq.errors import (
    BadRequest,
    NotNameServer,
    QueueNotFound,
    TopicExists,
    TopicHasUnread,
    TopicNotFound,
)
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import render_address
from waits import until


async def counts(admin: Admin, topic: str = "T") -> list[tuple[int, int, int]]:
    """Returns read queues, write queues and permission at each broker."""
    route = await admin.topic_route(topic)
    return [(one.read_queue_count, one.write_queue_count, one.permission) for one in route.queues]


async def shows(admin: Admin, *wanted: tuple[int, int, int]) -> None:
    async def is_shown() -> bool:
        return await counts(admin) == list(wanted)

    await until(is_shown, f"the route has {wanted}")


async def fill_each_queue(rig: Rig, count: int, *, first: int = 0) -> None:
    async with Producer("P", rig.namesrv) as producer:
        for number in range(count):
            message = Message(topic="T", body=b"%d" % (first + number))
            await producer.send(message, queue=MessageQueue("T", "broker-a", number))


async def test_creating_what_exists_changes_nothing(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=8) as rig, Admin(rig.namesrv) as admin:
        await fill_each_queue(rig, 8)
        await admin.update_topic("T", permission=4)
        await shows(admin, (8, 8, 4))
        for wanted in ({"queue_count": 2, "permission": 4}, {"queue_count": 8}, {"queue_count": 9}):
            with pytest.raises(TopicExists, match="broker-a"):
                await admin.create_topic("T", **wanted)  # type: ignore[arg-type]  # whole numbers
            assert await admin.create_topic("T", **wanted, exist_ok=True) is False  # type: ignore[arg-type]
        assert await admin.create_topic("T", queue_count=8, permission=4) is False
        assert await admin.ensure_topic("T", queue_count=2) is False
        assert await counts(admin) == [(8, 8, 4)]
        assert await admin.ensure_topic("T", queue_count=9) is True
        await shows(admin, (9, 9, 4))
        async with rig.consumer() as consumer:
            assert numbers(await take(consumer, 8)) == list(range(8))


async def test_a_topic_is_made_at_the_masters_that_lack_it(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=4) as rig, Admin(rig.namesrv) as admin:
        await rig.start_broker("broker-b")
        assert await admin.create_topic("T", queue_count=4) is True
        await shows(admin, (4, 4, 6), (4, 4, 6))
        assert await admin.ensure_topic("U", queue_count=2) is True
        assert await counts(admin, "U") == [(2, 2, 6), (2, 2, 6)]
        await admin.update_topic("U", permission=4)
        assert await counts(admin, "U") == [(2, 2, 4), (2, 2, 4)]
        with pytest.raises(BadRequest, match="queue_count 0"):
            await admin.update_topic("T", queue_count=0)
        with pytest.raises(TopicNotFound):
            await admin.update_topic("Missing", queue_count=1)


async def test_fewer_queues_wait_until_the_others_are_read(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=4) as rig, Admin(rig.namesrv) as admin:
        await admin.update_topic("T", attributes={"message.type": "NORMAL"})
        await fill_each_queue(rig, 4)
        with pytest.raises(TopicHasUnread, match="queues 1, 2, 3: 3 messages, and no group"):
            await admin.update_topic("T", queue_count=1)
        await shows(admin, (4, 1, 6))
        async with rig.consumer(commit_s=60.0) as consumer:
            assert numbers(await take(consumer, 4)) == [0, 1, 2, 3]
            assert await admin.lag("CG", "T") == 4
            with pytest.raises(TopicHasUnread, match="group CG has 3 messages left"):
                await admin.update_topic("T", queue_count=1)
            assert await consumer.poll(timeout_s=0) == []
            await consumer.commit()
            await admin.update_topic("T", queue_count=1)
            await shows(admin, (1, 1, 6))
        held = await attributes_of(rig, "T")
        assert held == {"message.type": "NORMAL"}, "what a change does not name stays"


async def test_force_takes_read_queues_away(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=4) as rig, Admin(rig.namesrv) as admin:
        await fill_each_queue(rig, 4)
        await admin.update_topic("T", queue_count=1, force=True)
        await shows(admin, (1, 1, 6))


async def attributes_of(rig: Rig, topic: str) -> dict[str, str]:
    """Returns the attributes of a topic at broker-a."""
    async with Admin(rig.namesrv) as admin:
        address = (await admin.topic_route(topic)).brokers[0].addresses[0]
        config = await broker_admin.query_topic_config(admin._remoting, address, topic)
        assert config is not None
        return dict(config.attributes)


async def test_the_blocking_facade_does_the_same(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        await rig.start_broker()

        def work() -> None:
            with BlockingAdmin(rig.namesrv) as admin:
                assert admin.create_topic("T", queue_count=2) is True
                assert admin.ensure_topic("T", queue_count=3) is True
                with pytest.raises(TopicExists):
                    admin.create_topic("T", queue_count=2)
                admin.update_topic("T", queue_count=1)
                assert admin.topic_route("T").queues[0].read_queue_count == 1

        await asyncio.to_thread(work)


async def test_the_address_of_a_broker_is_no_name_servers(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        address = render_address((await rig.start_broker()).address)
        told = f"{address} is a broker, not a name server"
        async with Admin(address) as admin, Producer("P", address) as producer:
            with pytest.raises(NotNameServer, match=told):
                await admin.cluster_info()
            with pytest.raises(NotNameServer, match=told):
                await admin.topic_route("T")
            with pytest.raises(NotNameServer, match=told):
                await producer.send(Message(topic="T", body=b"x"))
        async with Producer("P", f"{address};{rig.namesrv}") as producer:
            assert (await producer.send(Message(topic="T", body=b"x"))).is_ok


def let_changes_cross(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the next two requests that change a topic cross: both callers have looked before either writes,
    and the request with more queues arrives first.
    """
    real = broker_admin.create_topic
    seen: list[TopicConfig] = []
    both, first_is_done = asyncio.Event(), asyncio.Event()

    async def create_topic(client: RemotingClient, address: str, config: TopicConfig, **more: Any) -> None:
        seen.append(config)
        if len(seen) >= 2:
            both.set()
        await both.wait()
        if config.write_queue_count < max(one.write_queue_count for one in seen):
            await first_is_done.wait()
        await real(client, address, config, **more)
        first_is_done.set()

    monkeypatch.setattr(broker_admin, "create_topic", create_topic)


async def test_two_callers_that_create_a_topic_at_once_remove_no_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running_cluster(tmp_path, queue_count=4) as rig,
        Admin(rig.namesrv) as one,
        Admin(rig.namesrv) as two,
    ):
        let_changes_cross(monkeypatch)
        done = await asyncio.gather(
            one.create_topic("U", queue_count=8),
            two.create_topic("U", queue_count=2),
            return_exceptions=True,
        )
        assert done[0] is True
        assert isinstance(done[1], TopicExists)
        assert await counts(one, "U") == [(8, 8, 6)]


async def test_two_callers_that_ensure_a_topic_at_once_remove_no_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running_cluster(tmp_path, queue_count=4) as rig,
        Admin(rig.namesrv) as one,
        Admin(rig.namesrv) as two,
    ):
        let_changes_cross(monkeypatch)
        done = await asyncio.gather(
            one.ensure_topic("T", queue_count=8), two.ensure_topic("T", queue_count=6)
        )
        assert done == [True, True]
        await shows(one, (8, 8, 6))


async def test_a_changed_permission_removes_no_queue_that_another_caller_adds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running_cluster(tmp_path, queue_count=4) as rig,
        Admin(rig.namesrv) as one,
        Admin(rig.namesrv) as two,
    ):
        let_changes_cross(monkeypatch)
        await asyncio.gather(one.ensure_topic("T", queue_count=8), two.update_topic("T", permission=4))
        await shows(one, (8, 8, 4))


async def test_sends_by_the_route_of_a_topic_that_was_made_again_with_fewer_queues_arrive(
    tmp_path: Path,
) -> None:
    async with (
        running_cluster(tmp_path, queue_count=8) as rig,
        Admin(rig.namesrv) as admin,
        Producer("P", rig.namesrv) as producer,
    ):
        await producer.send(Message(topic="T", body=b"old"))
        await admin.delete_topic("T")
        await admin.create_topic("T", queue_count=1)
        # Only a send to a queue that is gone refreshes the route. The queues take turns, and one is left.
        for body in (b"new", b"newer"):
            await producer.send(Message(topic="T", body=body))
        await until(lambda: is_known_to_have(producer, 1))
        # A queue that the caller names is never replaced by another queue.
        await admin.update_topic("T", queue_count=4)
        await shows(admin, (4, 4, 6))
        with pytest.raises(QueueNotFound, match="queueId 7"):
            await producer.send(Message(topic="T", body=b"x"), queue=MessageQueue("T", "broker-a", 7))
        await until(lambda: is_known_to_have(producer, 4))


async def is_known_to_have(producer: Producer, count: int) -> bool:
    return len(await producer.queues("T")) == count
