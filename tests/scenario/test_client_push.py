"""Push consumers against real brokers: a failed message is retried, finally becomes a dead letter, and keeps
its order.

Source: spec semantics 7, 10.4, 10.5.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from client_rig import FAST, Rig, running_cluster, take
from test_client_orderly import fill_queues

from tandemmq.client import (
    Admin,
    BlockingPushConsumer,
    ConsumeResult,
    PopConsumer,
    PopOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.client.consumer.workers import Handler
from tandemmq.errors import BrokerUnreachable, TandemError
from tandemmq.protocol.topic_names import dlq_topic
from tandemmq.testing import Cluster
from waits import until


class ClusterPlace(NamedTuple):
    """The addresses for clients of a `tandemmq.testing` cluster."""

    namesrv: str


Place = Rig | ClusterPlace


def push(rig: Place, handler: Handler, *, group: str = "CG", **changes: object) -> PushConsumer:
    settings: dict[str, object] = {
        "client": FAST,
        "start_from": StartFrom.FIRST,
        "commit_s": 0.2,
        **changes,
    }
    consumer = PushConsumer(group, rig.namesrv, handler, options=PushOptions(**settings))  # type: ignore[arg-type]  # real fields
    consumer.subscribe("T")
    return consumer


async def test_failed_message_is_redelivered_until_it_becomes_a_dead_letter(tmp_path: Path) -> None:
    tried: dict[bytes, list[int]] = defaultdict(list)

    async def handle(message: ReceivedMessage) -> ConsumeResult:
        assert message.topic == "T"
        tried[message.body].append(message.retry_count)
        is_fine = message.body != b"3" and (message.body != b"5" or message.retry_count == 1)
        return ConsumeResult.SUCCESS if is_fine else ConsumeResult.RETRY

    async with running_cluster(tmp_path) as rig:
        await rig.fill("T", 20)
        async with push(rig, handle, retry_delay_level=1, retry_count_max=1):
            await until(lambda: len(tried) == 20 and tried[b"3"] == tried[b"5"] == [0, 1])
            async with rig.consumer("dead", dlq_topic("CG")) as dead:
                (letter,) = await take(dead, 1)
        assert letter.body == b"3"
        assert all(counts == [0] for body, counts in tried.items() if body not in (b"3", b"5"))


async def test_a_handler_in_a_thread_that_exits_is_one_that_fails(tmp_path: Path) -> None:
    """`sys.exit` in a thread does not end the program; it must not end the loop of all clients either."""
    tried: list[tuple[bytes, int]] = []

    def handle(message: ReceivedMessage) -> None:
        tried.append((message.body, message.retry_count))
        if message.retry_count == 0:
            sys.exit("enough")

    async with running_cluster(tmp_path) as rig:
        await rig.fill("T", 2)
        async with push(rig, handle, retry_delay_level=1):
            await until(lambda: len(tried) == 4)
    assert sorted(tried) == [(b"0", 0), (b"0", 1), (b"1", 0), (b"1", 1)]


async def test_a_consumer_that_never_started_is_closed() -> None:
    consumer = PushConsumer("CG", "127.0.0.1:1", print)
    await consumer.close()
    with pytest.raises(BrokerUnreachable):
        await PushConsumer("CG", "127.0.0.1:1", print).start()
    with pytest.raises(BrokerUnreachable):
        # Its facade closes a client that did not start, and must report why.
        await asyncio.to_thread(BlockingPushConsumer("CG", "127.0.0.1:1", print).start)


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("batch", [1, 8])
async def test_an_orderly_queue_waits_for_what_fails(tmp_path: Path, is_async: bool, batch: int) -> None:
    handled: dict[int, list[tuple[int, int]]] = defaultdict(list)
    busy: set[int] = set()
    lock = threading.Lock()

    def handle(message: ReceivedMessage) -> None:
        with lock:
            assert message.queue_id not in busy, "one handler of a queue at a time"
            busy.add(message.queue_id)
        try:
            number = int(message.body.split(b":")[1])
            handled[message.queue_id].append((number, message.retry_count))
            if number == 7 or (number == 3 and message.retry_count < 2):
                raise ValueError("not now")
        finally:
            busy.discard(message.queue_id)

    async def handle_async(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        handle(message)

    async with running_cluster(tmp_path) as rig:
        await fill_queues(rig, 10)
        async with push(
            rig,
            handle_async if is_async else handle,
            orderly=True,
            orderly_batch_count_max=batch,
            orderly_suspend_s=0.01,
            orderly_retry_count_max=2,
        ) as consumer:
            await until(lambda: len(handled) == 4 and all(one[-1:] == [(9, 0)] for one in handled.values()))
            await until(lambda: sum(consumer.positions.values()) == 40)
            async with rig.consumer("dead", dlq_topic("CG")) as dead:
                assert sorted(letter.body for letter in await take(dead, 4)) == [
                    b"%d:7" % queue for queue in range(4)
                ]
    expected = [(n, 0) for n in range(4)] + [(3, 1), (3, 2)] + [(n, 0) for n in range(4, 8)]
    expected += [(7, 1), (7, 2), (8, 0), (9, 0)]
    assert all(order == expected for order in handled.values())


def queues_of_t(consumer: PushConsumer) -> int:
    return sum(queue.topic == "T" for queue in consumer.assigned)


async def test_two_members_share_the_work_and_one_takes_over(tmp_path: Path) -> None:
    handled: dict[str, set[bytes]] = {"one": set(), "two": set()}

    def noting(name: str) -> Handler:
        async def handle(message: ReceivedMessage) -> None:
            handled[name].add(message.body)

        return handle

    async with running_cluster(tmp_path) as rig, push(rig, noting("one")) as one:
        async with push(rig, noting("two")) as two:
            await until(lambda: queues_of_t(one) == queues_of_t(two) == 2)
            await fill_queues(rig, 50)
            await until(lambda: sum(map(len, handled.values())) == 200)
            assert all(handled.values())
        await rig.fill("T", 100, first=200)
        await until(lambda: len(handled["one"] | handled["two"]) == 300)


async def members_come_and_go(place: Place, disturb: Callable[[], Awaitable[None]], seed: int) -> None:
    """Runs a push group, an orderly group and a pop group on one topic, whose handlers fail, while `disturb`
    changes the brokers. Finally each group has every message, and no message of an orderly queue was
    overtaken.
    """
    dice = random.Random(seed)
    pushed: set[bytes] = set()
    popped: set[bytes] = set()
    done_offsets: dict[int, int] = defaultdict(int)
    overtaken: list[bytes] = []
    is_over = False

    async def handle(message: ReceivedMessage) -> ConsumeResult:
        await asyncio.sleep(dice.random() * 0.002)
        if dice.random() < 0.05 and not message.retry_count:
            return ConsumeResult.RETRY
        pushed.add(message.body)
        return ConsumeResult.SUCCESS

    async def handle_in_order(message: ReceivedMessage) -> None:
        if message.queue_offset > done_offsets[message.queue_id]:
            overtaken.append(message.body)
        await asyncio.sleep(dice.random() * 0.002)
        if dice.random() < 0.1:
            raise ValueError("not now")
        done_offsets[message.queue_id] = max(done_offsets[message.queue_id], message.queue_offset + 1)

    async def pop_messages() -> None:
        options = PopOptions(client=FAST, start_from=StartFrom.FIRST, invisible_s=1.0)
        consumer = PopConsumer("POP", place.namesrv, options=options)
        consumer.subscribe("T")
        async with consumer:
            while not is_over:
                for message in await consumer.receive(8, timeout_s=0.2):
                    if dice.random() < 0.9:
                        popped.add(message.body)
                        with suppress(TandemError):
                            await consumer.ack(message)

    async def come_and_go(handler: Handler, group: str, **how: object) -> None:
        while not is_over:
            async with push(place, handler, group=group, rebalance_s=0.5, **how):
                with suppress(AssertionError):
                    await until(lambda: is_over, timeout_s=dice.uniform(0.3, 1.0))

    expected = {b"%d:%d" % (queue_id, number) for queue_id in range(4) for number in range(60)}
    work = [
        asyncio.ensure_future(each)
        for each in (
            *(come_and_go(handle, "CG", retry_delay_level=1) for _ in range(3)),
            *(come_and_go(handle_in_order, "OG", orderly=True, orderly_suspend_s=0.01) for _ in range(2)),
            *(pop_messages() for _ in range(2)),
        )
    ]
    try:
        await fill_queues(place, 30)
        await disturb()
        await fill_queues(place, 30, first=30)
        async with Admin(place.namesrv) as admin:
            stored = await admin.message_count("T")
        await until(lambda: pushed == expected, "the push group has all")
        await until(lambda: sum(done_offsets.values()) == stored, "the orderly group has all")
        await until(lambda: popped == expected, "the pop group has all")
    finally:
        is_over = True
        await asyncio.gather(*work)
    assert overtaken == [], "a queue goes on only when the message before is done"


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_left_out_when_the_broker_is_started_again(tmp_path: Path, seed: int) -> None:
    async with running_cluster(tmp_path) as rig:

        async def restart() -> None:
            await rig.stop_broker()
            await rig.start_broker()

        await members_come_and_go(rig, restart, seed)


@pytest.mark.parametrize("seed", [3, 4])
async def test_nothing_is_left_out_when_masters_are_replaced(seed: int) -> None:
    async with Cluster(elected=True) as cluster:
        await cluster.create_topic("T", queue_count=4)

        async def lose_masters() -> None:
            for _ in range(2):
                await cluster.lose_master()
                await fill_queues(place, 5)
                await cluster.start_slave()

        place = ClusterPlace(cluster.name_servers)
        await members_come_and_go(place, lose_masters, seed)
