"""A broker process that is killed under load loses nothing that it acknowledged.

TANDEMMQ_KILL_ROUNDS=50 kills it so often in each flush mode; the default keeps the test run short.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest
from crash_rig import Load, make_broker, new_client

from tandemmq.launcher import stopping

pytestmark = [pytest.mark.process, pytest.mark.timeout(1800)]

ROUNDS = int(os.environ.get("TANDEMMQ_KILL_ROUNDS", "2"))
SENDERS = 64


@pytest.mark.parametrize("flush_mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path, flush_mode: str) -> None:
    server = make_broker(tmp_path, tmp_path / "store", flushDiskType=flush_mode)
    load = Load(seed=ROUNDS)
    chance = random.Random(flush_mode)
    with stopping([server]):
        await asyncio.to_thread(server.start)
        for _ in range(ROUNDS):
            async with new_client() as client:
                promised = chance.randrange(100, 3_000)
                await load.run(client, server.address, senders=SENDERS, stop_after=promised)
                server.kill()
                await load.abandon()
            await asyncio.to_thread(server.start)
            async with new_client() as client:
                count = await load.check(client, server.address)
            assert count == len(load.promised)
        assert (tmp_path / "store" / "abort").exists()
        server.stop()
    assert not (tmp_path / "store" / "abort").exists()


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
            # The moment is what is varied here: before, in and after the recovery.
            await asyncio.sleep(delay_s)
            server.kill()
            await asyncio.gather(starting, return_exceptions=True)
        await asyncio.to_thread(server.start)
        async with new_client() as client:
            await load.check(client, server.address)
