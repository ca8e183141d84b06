"""Waiting for the states of a cluster of processes, which have no events that a test could wait for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from client_ledger import ClientLedger, consuming, sending
from fault_cluster import FaultCluster

from tandemmq.api import broker_admin, broker_consume
from tandemmq.client import Admin
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies.replica import HaStatus
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from waits import until

NOT_YET = (TandemError,)
"""The errors of requests while a broker is away or about to change its role."""


@asynccontextmanager
async def asking() -> AsyncIterator[RemotingClient]:
    """Opens a separate client for requests to single brokers."""
    client = RemotingClient(network=TcpNetwork(), clock=LoopClock())
    try:
        yield client
    finally:
        await client.close()


async def ha_status(address: str) -> HaStatus:
    async with asking() as client:
        return await broker_admin.query_ha_status(client, address)


async def committed(address: str, topic: str, queue_id: int, group: str = "G") -> int:
    """Returns the group's offset at one broker; -1 if there is none."""
    async with asking() as client:
        found = await broker_consume.query_committed_offset.within(
            2.0, client, address, group, topic, queue_id, zero_if_missing=False
        )
        return -1 if found is None else found


async def until_in_sync(cluster: FaultCluster) -> None:
    """Waits until the slave holds what the master holds, except for data in transit."""

    async def is_in_sync() -> bool:
        return (await ha_status(cluster.master_address)).in_sync_count == 1

    await until(is_in_sync, "the slave is in sync", not_yet=NOT_YET)


async def create_topic(cluster: FaultCluster, topic: str, queue_count: int = 2) -> None:
    """Creates the topic, and waits until the slave knows it."""
    async with Admin(cluster.namesrv.address) as admin:
        await admin.create_topic(topic, queue_count=queue_count)

    async def is_at_slave() -> bool:
        async with asking() as client:
            return await broker_consume.query_max_offset(client, cluster.slave_address, topic, 0) >= 0

    await until(is_at_slave, f"the slave knows {topic}", not_yet=NOT_YET)


async def until_more(ledger: ClientLedger, status: str, count: int = 5) -> None:
    """Waits until `count` more sends end with `status`."""
    goal = ledger.statuses[status] + count
    await until(lambda: ledger.statuses[status] >= goal, f"{count} more sends end with {status}")


async def until_delivered(ledger: ClientLedger) -> None:
    """Waits until everything promised so far was delivered."""
    await until(lambda: not ledger.missing, f"delivery of {len(ledger.missing)} messages")


@asynccontextmanager
async def traffic(cluster: FaultCluster, ledger: ClientLedger, topic: str) -> AsyncIterator[None]:
    """Sends and consumes until the block ends, and then consumes what was promised."""
    async with consuming(cluster.namesrv.address, ledger, topic):
        async with sending(cluster.namesrv.address, ledger, topic):
            yield
        await until_delivered(ledger)
