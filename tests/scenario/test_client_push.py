"""Push consumers against real brokers: what fails comes again, dies in the end, and keeps its order.

Source: spec semantics 7, 10.4, 10.5.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from pathlib import Path

import pytest
from client_rig import FAST, Rig, running_cluster, take
from test_client_orderly import fill_queues

from tandemmq.client import ConsumeResult, PushConsumer, PushOptions, ReceivedMessage, StartFrom
from tandemmq.client.consumer.workers import Handler
from tandemmq.protocol.topic_names import dlq_topic
from waits import until


def push(rig: Rig, handler: Handler, **changes: object) -> PushConsumer:
    settings: dict[str, object] = {
        "client": FAST,
        "start_from": StartFrom.FIRST,
        "commit_s": 0.2,
        **changes,
    }
    consumer = PushConsumer("CG", rig.namesrv, handler, options=PushOptions(**settings))  # type: ignore[arg-type]  # real fields
    consumer.subscribe("T")
    return consumer


async def test_what_fails_comes_again_and_dies_after_its_limit(tmp_path: Path) -> None:
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
