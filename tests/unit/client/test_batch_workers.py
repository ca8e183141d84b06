"""Handlers of several messages at a time."""

from __future__ import annotations

import asyncio
import threading

import pytest
from client_fakes import running_cluster
from test_push_consumer import QUEUE, fill, push, push_options

from tandemmq.client import ConsumeResult, PushConsumer, ReceivedMessage
from tandemmq.client.consumer import workers
from tandemmq.errors import ConfigError
from waits import PATIENCE_S, until


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_gets_the_available_messages_of_its_topic(is_async: bool) -> None:
    batches: list[list[bytes]] = []

    def handle(messages: list[ReceivedMessage]) -> ConsumeResult | None:
        batches.append([message.body for message in messages])
        return ConsumeResult.RETRY if messages[0].body == b"0" else None

    async def handle_async(messages: list[ReceivedMessage]) -> ConsumeResult | None:
        return handle(messages)

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 25)
        handler = handle_async if is_async else handle
        async with push(cluster, handler, batch_count_max=10, worker_count=1) as consumer:
            await until(lambda: consumer.positions.get(QUEUE) == 25)
        assert [body for batch in batches for body in batch] == [b"%d" % number for number in range(25)]
        assert max(map(len, batches)) == 10
        assert len(cluster[0].handed_back) == len(batches[0]), "the whole batch is sent back"


async def test_a_worker_waits_for_more_messages() -> None:
    sizes: list[int] = []

    async def handle(messages: list[ReceivedMessage]) -> None:
        sizes.append(len(messages))

    async with running_cluster(T=2) as cluster:
        options = push_options(batch_count_max=40, batch_linger_s=0.3, worker_count=1)
        consumer = PushConsumer("g", cluster.namesrv, handle, options=options)
        consumer.subscribe("T")
        async with consumer:
            fill(cluster[0], 5)
            await until(lambda: sum(sizes) == 5)
    assert sizes == [5]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_batch_that_takes_too_long_is_sent_back(is_async: bool) -> None:
    release = threading.Event()
    handled: list[int] = []

    def handle(messages: list[ReceivedMessage]) -> None:
        if messages[0].body == b"0":
            release.wait(PATIENCE_S)
        handled.append(len(messages))

    async def handle_async(messages: list[ReceivedMessage]) -> None:
        if messages[0].body == b"0":
            await asyncio.Event().wait()
        handled.append(len(messages))

    async with running_cluster(T=1) as cluster:
        fill(cluster[0], 6)
        handler = handle_async if is_async else handle
        try:
            async with push(cluster, handler, batch_count_max=3, worker_count=2, consume_timeout_s=0.5):
                await until(lambda: cluster[0].offsets.get(("g", "T", 0)) == 6)
                release.set()
        finally:
            release.set()
        back = cluster[0].handed_back
        assert [one.log_offset for one in back] == [0, 1000, 2000]
        assert {one.delay_level for one in back} == {workers.TIMED_OUT_LEVEL}


def test_the_size_of_a_batch_is_checked() -> None:
    with pytest.raises(ConfigError, match="batch_count_max = 0"):
        push_options(batch_count_max=0)
