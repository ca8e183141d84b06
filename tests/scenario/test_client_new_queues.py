"""Queues that appear while a group runs, with default options: no acknowledged message is skipped.

Source: spec semantics 11.2, 12.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client_rig import FAST, Rig, numbers, running_cluster, running_rig, take

from tandemmq.client import (
    Admin,
    ConsumerOptions,
    Message,
    MessageModel,
    PopConsumer,
    PopOptions,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.errors import GroupNotFound
from waits import until

KINDS = {
    "plain": {},
    "orderly": {"orderly": True},
    "broadcasting": {"model": MessageModel.BROADCASTING},
}


def kind(name: str, tmp_path: Path) -> dict[str, Any]:
    changes: dict[str, Any] = {"start_from": StartFrom.LAST, **KINDS[name]}
    return {**changes, "offsets_dir": str(tmp_path / "offsets")} if name == "broadcasting" else changes


async def send_to_each_queue(rig: Rig, topic: str, count: int, *, first: int = 0) -> None:
    """Sends message `first + n` to queue n."""
    async with Producer("P", rig.namesrv, options=ProducerOptions(client=FAST)) as producer:
        for number in range(count):
            queue = await producer.queue_for(topic, str(number))
            queue = type(queue)(queue.topic, queue.broker_name, number)
            assert (
                await producer.send(Message(topic=topic, body=b"%d" % (first + number)), queue=queue)
            ).is_ok


@pytest.mark.parametrize("name", KINDS)
async def test_a_topic_that_grows_is_read_whole(name: str, tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=2) as rig, Admin(rig.namesrv) as admin:
        await send_to_each_queue(rig, "T", 2)
        async with rig.consumer(**kind(name, tmp_path)) as consumer:
            await until(lambda: len([one for one in consumer.assigned if one.topic == "T"]) == 2)
            await admin.ensure_topic("T", queue_count=4)
            await send_to_each_queue(rig, "T", 4, first=10)
            assert numbers(await take(consumer, 4)) == [10, 11, 12, 13]


@pytest.mark.parametrize("name", KINDS)
async def test_a_topic_that_the_first_send_makes_is_read_whole(name: str, tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        await rig.start_broker()
        async with (
            rig.consumer(topic="Fresh", **kind(name, tmp_path)) as consumer,
            Producer("P", rig.namesrv) as producer,
        ):
            for number in range(40):
                await producer.send(Message(topic="Fresh", body=b"%d" % number))
            assert numbers(await take(consumer, 40)) == list(range(40))


async def test_a_topic_that_is_made_again_is_read_whole(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, queue_count=2) as rig,
        Admin(rig.namesrv) as admin,
        rig.consumer(start_from=StartFrom.LAST) as consumer,
    ):
        await until(lambda: len([one for one in consumer.assigned if one.topic == "T"]) == 2)
        await send_to_each_queue(rig, "T", 2)
        await take(consumer, 2)
        await admin.delete_topic("T")
        await admin.ensure_topic("T", queue_count=4)
        await send_to_each_queue(rig, "T", 4, first=10)
        await rig.fill("T", 40, first=20)
        assert numbers(await take(consumer, 44)) == [10, 11, 12, 13, *range(20, 60)]


async def test_a_group_that_was_away_reads_what_came_in_new_queues(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=2) as rig, Admin(rig.namesrv) as admin:
        await send_to_each_queue(rig, "T", 2)
        async with rig.consumer(start_from=StartFrom.LAST):
            pass
        await admin.ensure_topic("T", queue_count=4)
        await send_to_each_queue(rig, "T", 4, first=10)
        assert await admin.lag("CG", "T") == 4
        async with rig.consumer(start_from=StartFrom.LAST) as consumer:
            assert numbers(await take(consumer, 4)) == [10, 11, 12, 13]
            assert await consumer.poll(timeout_s=0) == []
            await consumer.commit()
            assert await admin.lag("CG", "T") == 0


async def test_a_new_group_begins_at_the_end_and_says_so_at_once(tmp_path: Path) -> None:
    """Also in queues without messages: the lag of a new group counts messages since it began."""
    async with running_cluster(tmp_path, queue_count=4) as rig, Admin(rig.namesrv) as admin:
        await send_to_each_queue(rig, "T", 4)
        async with rig.consumer(start_from=StartFrom.LAST, commit_s=3600):
            offsets = await admin.committed_offsets("CG", "T")
            assert list(offsets.values()) == [1, 1, 1, 1]
            assert await admin.lag("CG", "T") == 0
        with pytest.raises(GroupNotFound, match="'typo' has no offset in topic 'T'"):
            await admin.lag("typo", "T")


def pusher(rig: Rig, handle: Callable[[Any], Any]) -> PushConsumer:
    consumer = PushConsumer("CG", rig.namesrv, handle, options=PushOptions(client=FAST))
    consumer.subscribe("T")
    return consumer


def popper(rig: Rig) -> PopConsumer:
    """Returns a consumer of another group, because the members of one group share the queues."""
    consumer = PopConsumer("PG", rig.namesrv, options=PopOptions(client=FAST))
    consumer.subscribe("T")
    return consumer


async def test_push_and_pop_read_new_topics_and_new_queues_whole(tmp_path: Path) -> None:
    assert ConsumerOptions().start_from is PopOptions().start_from is StartFrom.LAST
    got: list[int] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(int(message.body))

    async with running_rig(tmp_path) as rig, Admin(rig.namesrv) as admin:
        await rig.start_broker()
        async with pusher(rig, handle), popper(rig) as popping:
            popped: list[int] = []

            async def pop(count: int) -> bool:
                messages = await popping.receive(timeout_s=0.5)
                await popping.ack(*messages)
                popped.extend(int(one.body) for one in messages)
                return len(popped) == count

            await asyncio.sleep(0)
            async with Producer("P", rig.namesrv) as producer:
                for number in range(4):
                    await producer.send(Message(topic="T", body=b"%d" % number))
            await until(lambda: sorted(got) == [0, 1, 2, 3])
            await until(lambda: pop(4))
            await admin.ensure_topic("T", queue_count=8)
            await send_to_each_queue(rig, "T", 8, first=10)
            await until(lambda: sorted(got) == [0, 1, 2, 3, *range(10, 18)])
            await until(lambda: pop(12))
            assert sorted(popped) == sorted(got)
