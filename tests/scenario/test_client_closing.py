"""Clients whose `close` is cancelled: none of their tasks continues, and no group counts them any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from client_rig import FAST, running_cluster

from tandemmq.client import (
    Consumer,
    ConsumerOptions,
    Message,
    PopConsumer,
    PopOptions,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
)
from tandemmq.client.instance import Client
from waits import PATIENCE_S, until

STEPS = 40
"""The numbers of loop turns before the cancellation: from the first await of a close to beyond its last."""


def producer(namesrv: str) -> Client:
    return Producer("P", namesrv, options=ProducerOptions(client=FAST, trace=True))


def consumer(namesrv: str) -> Client:
    client = Consumer("C", namesrv, options=ConsumerOptions(client=FAST))
    client.subscribe("T")
    return client


def push(namesrv: str) -> Client:
    client = PushConsumer("C", namesrv, lambda _: None, options=PushOptions(client=FAST, trace=True))
    client.subscribe("T")
    return client


def pop(namesrv: str) -> Client:
    client = PopConsumer("C", namesrv, options=PopOptions(client=FAST))
    client.subscribe("T")
    return client


async def use(client: Client) -> None:
    """Uses the client, so that there is something to close."""
    if isinstance(client, Producer):
        await client.send(Message("T", b"1"))
    elif isinstance(client, PopConsumer):
        await client.receive(timeout_s=0.01)
    elif isinstance(client, Consumer | PushConsumer):
        await until(lambda: len(client.assigned) > 0)


def tasks_of_clients() -> set[str]:
    names = {task.get_name() for task in asyncio.all_tasks()}
    return {name for name in names if name.startswith(("client.", "consumer-", "pop-consumer-", "trac"))}


@pytest.mark.parametrize("make", [producer, consumer, push, pop])
async def test_two_may_close_at_once(tmp_path: Path, make: Callable[[str], Client]) -> None:
    async with running_cluster(tmp_path, queue_count=2) as rig:
        client = make(rig.namesrv)
        await client.start()
        await rig.fill("T", 1)
        await use(client)
        await asyncio.gather(client.close(), client.close())
        await until(lambda: not tasks_of_clients())


@pytest.mark.parametrize("make", [producer, consumer, push, pop])
async def test_a_close_that_is_cancelled_leaves_nothing(
    tmp_path: Path, make: Callable[[str], Client]
) -> None:
    async with running_cluster(tmp_path, queue_count=2) as rig:
        await rig.fill("T", 1)
        assert not tasks_of_clients()
        for steps in range(1, STEPS, 3):
            client = make(rig.namesrv)
            await client.start()
            await use(client)
            assert tasks_of_clients()
            closing = asyncio.ensure_future(client.close())
            for _ in range(steps):
                await asyncio.sleep(0)
            closing.cancel()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.wait([closing])
                await client.close()
            await until(lambda: not tasks_of_clients(), f"all tasks have ended, cancelled after {steps}")
