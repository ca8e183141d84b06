"""A broker process that is killed under load loses no acknowledged message; with the pool, only a tail.

It is killed TANDEMMQ_KILL_ROUNDS times in each mode.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crash_rig import TOPIC, Load, make_broker, new_client, read_queue, send_header

from tandemmq.api import broker_send
from tandemmq.api.broker_admin import create_topic, delete_topic, query_runtime_info
from tandemmq.launcher import stopping
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.remoting.client import RemotingClient
from waits import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("TANDEMMQ_KILL_ROUNDS", "50"))
SENDERS = 64
FLOOD: dict[str, Any] = {"senders": SENDERS}
TRICKLE: dict[str, Any] = {"senders": 1, "pause_s": 0.02}


@pytest.mark.parametrize("flush_mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path, flush_mode: str) -> None:
    server = make_broker(tmp_path, tmp_path / "store", flushDiskType=flush_mode)
    load = Load(seed=ROUNDS)
    chance = random.Random(flush_mode)
    with stopping([server]):
        await asyncio.to_thread(server.start)
        for _ in range(ROUNDS):
            async with new_client() as client:
                promised = chance.randrange(50, 800)
                await load.run(client, server.address, senders=SENDERS, stop_after=promised)
                server.kill()
                await load.abandon()
            await asyncio.to_thread(server.start)
            async with new_client() as client:
                await load.check(client, server.address, is_thorough=False)
        async with new_client() as client:
            await load.check(client, server.address)
        assert (tmp_path / "store" / "abort").exists()
        server.stop()
    assert not (tmp_path / "store" / "abort").exists()


async def test_with_the_pool_kill_9_takes_the_end_of_what_was_not_committed(tmp_path: Path) -> None:
    """Everything that the broker reports as committed is kept (spec store 11)."""
    server = make_broker(tmp_path, tmp_path / "store", transientStorePoolEnable=True)
    load = Load(seed=ROUNDS)
    chance = random.Random("pool")
    windows_ms, lost_counts = [0], [0]
    with stopping([server]):
        await asyncio.to_thread(server.start)
        for _ in range(ROUNDS):
            async with new_client() as client:
                # Under load full pages are committed at once; a trickle of messages waits for the interval.
                settings = chance.choice((FLOOD, TRICKLE))
                await load.run(client, server.address, **settings, stop_after=chance.randrange(10, 60))
                await load.pause()
                await until(partial(is_all_committed, client, server.address), "all is committed")
                committed = set(load.promised)
                await load.run(client, server.address, **settings, stop_after=chance.randrange(10, 60))
                killed_at = time.monotonic()
                server.kill()
                await load.abandon()
            await asyncio.to_thread(server.start)
            async with new_client() as client:
                lost = await load.check_prefix(client, server.address)
            assert committed.isdisjoint(lost)
            windows_ms += [round((killed_at - load.answered_at.pop(place)) * 1000) for place in lost]
            lost_counts.append(len(lost))
        async with new_client() as client:
            await load.check(client, server.address)
    print(
        f"pool: {ROUNDS} kills, {len(load.promised)} messages kept, at most {max(lost_counts)} lost at once, "
        f"the oldest answered {max(windows_ms)} ms before"
    )


async def is_all_committed(client: RemotingClient, address: str) -> bool:
    return (await query_runtime_info(client, address))["remainHowManyDataToCommit"] == "0 B"


async def test_a_broker_killed_while_it_recovers_recovers(tmp_path: Path) -> None:
    server = make_broker(tmp_path, tmp_path / "store", flushDiskType="SYNC_FLUSH")
    load = Load(seed=1)
    with stopping([server]):
        await asyncio.to_thread(server.start)
        async with new_client() as client:
            await load.run(client, server.address, senders=SENDERS, stop_after=1_000)
            server.kill()
            await load.abandon()
        for delay_s in (0.3, 0.4, 0.5, 0.6):
            starting = asyncio.create_task(asyncio.to_thread(server.start))
            # The moment of the kill varies: before, during and after the recovery.
            await asyncio.sleep(delay_s)
            server.kill()
            await asyncio.gather(starting, return_exceptions=True)
        await asyncio.to_thread(server.start)
        async with new_client() as client:
            await load.check(client, server.address)


async def test_a_topic_made_again_keeps_its_messages_through_kill_9(tmp_path: Path) -> None:
    server = make_broker(tmp_path, tmp_path / "store", flushDiskType="SYNC_FLUSH")
    new = [b"new %d" % number for number in range(3)]

    async def send(client: RemotingClient, topic: str, bodies: list[bytes]) -> None:
        for number, body in enumerate(bodies):
            header = msgspec.structs.replace(send_header(0, number), topic=topic)
            await broker_send.send(client, server.address, header, body)

    with stopping([server]):
        await asyncio.to_thread(server.start)
        async with new_client() as client:
            for topic in (TOPIC, "Gone"):
                await create_topic(client, server.address, TopicConfig(name=topic))
                await send(client, topic, [b"old"] * 5)
                await delete_topic(client, server.address, topic)
            await create_topic(client, server.address, TopicConfig(name=TOPIC))
            await send(client, TOPIC, new)
        server.kill()
        for _ in range(2):
            await asyncio.to_thread(server.start)
            async with new_client() as client:
                records = await read_queue(client, server.address, 0)
            assert [(record.queue_offset, record.body) for record in records] == list(enumerate(new))
            assert not (tmp_path / "store" / "consumequeue" / "Gone").exists()
            server.stop()
