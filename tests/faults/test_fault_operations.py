"""The reports to operators during faults: `tandemmq admin haStatus`, metrics, log events."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from client_ledger import ClientLedger, sending
from fault_cluster import FaultCluster
from fault_waits import NOT_YET, asking, create_topic, ha_status, traffic, until_in_sync, until_more

from tandemmq.api.replica import HeldTable, fetch_topics
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies.codec import DataVersion
from waits import until

pytestmark = pytest.mark.process


async def ha_command(
    cluster: FaultCluster, option: str, address: str
) -> tuple[int, dict[str, list[dict[str, object]]]]:
    """Returns the exit code and tables of `tandemmq admin haStatus`, of one broker (-b) or all (-n)."""
    command = [sys.executable, "-m", "tandemmq", "admin", "haStatus", option, address, "--json"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise TandemError(done.stderr)
    return done.returncode, json.loads(done.stdout)


async def test_a_lost_slave_and_a_slave_that_is_ahead_stay_visible(tmp_path: Path) -> None:
    cluster = FaultCluster(tmp_path)
    try:
        await create_topic(cluster, "T")
        await until_in_sync(cluster)
        ledger = ClientLedger()
        names = cluster.namesrv.address
        async with sending(names, ledger, "T"):
            await until_more(ledger, "SEND_OK", 20)
            # A slave that never came into sync cannot fall out of it.
            await until(lambda: "slave.in_sync" in cluster.log_text("master"), "the slave is in sync")
            cluster.slave.kill()
            await until_more(ledger, "FLUSH_SLAVE_TIMEOUT", 3)
        code, tables = await ha_command(cluster, "-b", cluster.master_address)
        (row,) = tables["slaves_of_masters"]
        assert code == 0
        assert (row["state"], row["in_sync"]) == ("CLOSED", False)
        assert str(row["reason"]).startswith("not connected: ")
        assert row["lag_bytes"] > 0  # type: ignore[operator]  # a number
        assert row["lag_seconds"] > 0  # type: ignore[operator]  # a number
        assert row["away_seconds"] > 0  # type: ignore[operator]  # a number
        await asyncio.to_thread(cluster.slave.start)
        await until_in_sync(cluster)
        (row,) = (await ha_command(cluster, "-b", cluster.master_address))[1]["slaves_of_masters"]
        assert (row["state"], row["reason"], row["lag_seconds"]) == ("TRANSFERRING", None, 0.0)

        # The master loses its disk: the slave holds more than it.
        cluster.master.kill()
        shutil.rmtree(tmp_path / "master")
        await asyncio.to_thread(cluster.master.start)

        async def is_refused() -> bool:
            return (await ha_status(cluster.slave_address)).client.halt_reason is not None

        await until(is_refused, "the slave halts", not_yet=NOT_YET)

        async def is_reported() -> bool:
            reported = (await ha_status(cluster.master_address)).connections
            return [(one.state, one.halt_reason) for one in reported if one.slave] == [
                ("AHEAD", "SLAVE_AHEAD")
            ]

        await until(is_reported, "its master reports the reason", not_yet=NOT_YET)
        # Its tables are not those of an empty master: at the promotion no others are left.
        async with asking() as client:
            held = HeldTable(data_version=DataVersion(), entry_count=0)
            assert "T" in (await fetch_topics(client, cluster.slave_address, held)).entries
            assert "T" not in (await fetch_topics(client, cluster.master_address, held)).entries
        code, tables = await ha_command(cluster, "-n", cluster.namesrv.address)
        assert code == 1
        (copy,) = tables["copies"]
        assert copy["state"] == "HALTED"
        assert str(copy["halt"]).startswith("SLAVE_AHEAD at ")
        for event in ("slave.in_sync", "slave.out_of_sync"):
            assert event in cluster.log_text("master"), event
        for event in ("master.lost", "replica.halted"):
            assert event in cluster.log_text("slave"), event
    finally:
        cluster.close()


async def test_a_slave_learns_at_once_where_its_master_is_now(tmp_path: Path) -> None:
    """Not only after registerNameServerPeriod: the master comes back on another port."""
    cluster = FaultCluster(tmp_path, registerNameServerPeriod=60_000)
    try:
        await create_topic(cluster, "T")
        await until_in_sync(cluster)
        await cluster_moves(cluster)
        ledger = ClientLedger()
        async with traffic(cluster, ledger, "T"):
            await until_more(ledger, "SEND_OK", 20)
        ledger.check().check()
    finally:
        cluster.close()


async def cluster_moves(cluster: FaultCluster) -> None:
    cluster.master.kill()
    cluster.move_master()
    await asyncio.to_thread(cluster.master.start)

    async def is_in_sync() -> bool:
        return (await ha_status(cluster.master_address)).in_sync_count == 1

    await until(is_in_sync, "the slave follows the master at its new place", 40, not_yet=NOT_YET)
