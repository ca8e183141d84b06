"""Real broker processes lose power repeatedly under load: the promises of each flush mode hold.

Each mode loses power TANDEMMQ_POWER_CUTS times; `make power` does it 100 times.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

import pytest
from crash_rig import Load, make_broker, new_client
from power_rig import PowerLayer, build_library

from tandemmq.launcher import Server, stopping

pytestmark = [pytest.mark.process, pytest.mark.timeout(3600)]

CUTS = int(os.environ.get("TANDEMMQ_POWER_CUTS", "4"))
SENDERS = 32


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = build_library(tmp_path_factory.mktemp("layer"))
    if built is None:
        pytest.skip("there is no C compiler here: the layer that loses unsynced writes cannot be built")
    return built


async def _start(server: Server, layer: PowerLayer) -> None:
    server.environment = layer.environment()
    await asyncio.to_thread(server.start)


async def _make_topic(server: Server, layer: PowerLayer, load: Load) -> None:
    """Creates the topic in a run that ends cleanly: only later messages can be lost."""
    await _start(server, layer)
    async with new_client() as client:
        await load.run(client, server.address, senders=1, stop_after=1)
        await load.pause()
    server.stop()


async def _lose_power_under_load(
    server: Server, layer: PowerLayer, load: Load, chance: random.Random, **how: bool
) -> float:
    """Cuts the power of a busy broker."""
    async with new_client() as client:
        await load.run(
            client, server.address, senders=SENDERS, stop_after=chance.choice((20, 100, 400, 2_000))
        )
        # The moment varies: writes and fsyncs are in progress.
        await asyncio.sleep(chance.uniform(0, 0.02))
        server.kill()
        killed_at = time.monotonic()
        await load.abandon()
    report = layer.cut(chance, **how)
    print(f"taken back: {report.contents} writes, {report.names} names")
    return killed_at


async def test_sync_flush_loses_nothing_acknowledged(tmp_path: Path, library: Path) -> None:
    store = tmp_path / "store"
    server, layer = (
        make_broker(tmp_path, store, flushDiskType="SYNC_FLUSH"),
        PowerLayer(tmp_path, store, library),
    )
    load, chance = Load(seed=CUTS), random.Random("SYNC_FLUSH")
    with stopping([server]):
        await _start(server, layer)
        for _ in range(CUTS):
            await _lose_power_under_load(server, layer, load, chance)
            await _start(server, layer)
            async with new_client() as client:
                await load.check(client, server.address, is_thorough=False)
        async with new_client() as client:
            await load.check(client, server.address)


@pytest.mark.parametrize("has_pool", [False, True], ids=["page-cache", "pool"])
async def test_async_flush_loses_only_the_end(tmp_path: Path, library: Path, has_pool: bool) -> None:
    """Only the end of each queue is lost, and messages sent later reuse its offsets."""
    store = tmp_path / "store"
    server, layer = (
        make_broker(tmp_path, store, flushDiskType="ASYNC_FLUSH", transientStorePoolEnable=has_pool),
        PowerLayer(tmp_path, store, library),
    )
    load, chance = Load(seed=CUTS), random.Random(f"ASYNC_FLUSH {has_pool}")
    oldest_s, lost_count = 0.0, 0
    with stopping([server]):
        await _make_topic(server, layer, load)
        for _ in range(CUTS):
            await _start(server, layer)
            killed_at = await _lose_power_under_load(server, layer, load, chance)
            await _start(server, layer)
            async with new_client() as client:
                lost = await load.check_prefix(client, server.address)
            lost_count += len(lost)
            oldest_s = max([oldest_s, *(killed_at - load.answered_at.pop(place) for place in lost)])
            server.stop()
        await _start(server, layer)
        async with new_client() as client:
            await load.check(client, server.address)
    print(f"pool {has_pool}: {CUTS} cuts, {lost_count} lost, the oldest answered {oldest_s:.2f} s before")


async def test_a_disk_that_lies_is_noticed(tmp_path: Path, library: Path) -> None:
    """The proof above can fail: when fsyncs have no effect, it finds lost messages."""
    store = tmp_path / "store"
    server, layer = (
        make_broker(tmp_path, store, flushDiskType="SYNC_FLUSH"),
        PowerLayer(tmp_path, store, library),
    )
    load, chance = Load(seed=1), random.Random("a lie")
    with stopping([server]):
        await _make_topic(server, layer, load)
        await _start(server, layer)
        await _lose_power_under_load(server, layer, load, chance, trusts_fsync=False)
        await _start(server, layer)
        async with new_client() as client:
            with pytest.raises(AssertionError, match="promised messages are lost"):
                await load.check(client, server.address)
