"""Brokers' logs with their AutoSwitch channels, without the rest of a broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from replica_pair import FAST, SEGMENT

from no_history import NoHistory
from tandemmq.protocol.record import NewRecord
from tandemmq.replication.core.options import SetOptions
from tandemmq.replication.shell import AutoSwitchReplication
from tandemmq.replication.shell.autoswitch import HistoryComparer
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.runtime.ports import Network
from tandemmq.store import BrokerRole, MessageStore, PutStatus, StoreOptions


class Node:
    """One broker's log and its channel; proposals are committed at once unless `decides` is False."""

    def __init__(self, root: Path, broker_id: int, **changes: Any) -> None:
        self.root = root
        self.changes = changes
        self.id = broker_id
        self.decides = True
        self.copy_count_min = 1
        self.replication = FAST
        self.disk = RealDisk()
        self.network: Network = TcpNetwork()
        self.proposals: list[frozenset[int]] = []

    def comparer(self) -> HistoryComparer:
        return NoHistory()

    async def start(self) -> None:
        options = StoreOptions(
            root=self.root,
            role=BrokerRole.SLAVE,
            commit_log_file_bytes=SEGMENT,
            slave_timeout_ms=300,
            **self.changes,
        )
        clock = LoopClock()
        self.store = await MessageStore.open(options, disk=self.disk, clock=clock, has_terms=True)
        self.channel = AutoSwitchReplication(
            self.store,
            self.id,
            self.replication,
            SetOptions(lag_ms_max=15_000, copy_count_min=self.copy_count_min),
            self.comparer(),
            network=self.network,
            clock=clock,
        )
        self.channel.on_propose = self._on_propose
        host, port = await self.channel.start("127.0.0.1", 0)
        self.address = f"{host}:{port}"

    def _on_propose(self, members: frozenset[int], set_epoch: int) -> None:
        self.proposals.append(members)
        if self.decides:
            asyncio.get_running_loop().call_soon(self.channel.set_committed, members, set_epoch + 1)

    async def lead(self, epoch: int, *members: int, term_id: int = 0) -> None:
        await self.channel.begin_term(epoch, frozenset(members), epoch * 100, term_id)
        self.store.become(BrokerRole.SYNC_MASTER)

    async def follow(self, master: Node, epoch: int) -> None:
        self.store.become(BrokerRole.SLAVE)
        await self.channel.follow(master.address, epoch, master.id)

    async def send(self, *bodies: bytes) -> list[PutStatus]:
        done = asyncio.get_running_loop().create_future()
        statuses: list[PutStatus] = []

        def note(status: PutStatus) -> None:
            statuses.append(status)
            if len(statuses) == len(bodies):
                done.set_result(None)

        for body in bodies:
            self.store.appender.append([record(body)], note)
        await done
        return statuses

    async def stop(self) -> None:
        await self.channel.stop()
        await self.store.close()


def record(body: bytes) -> NewRecord:
    return NewRecord(
        topic="T",
        queue_id=0,
        body=body,
        properties=b"",
        born_at_ms=1,
        born_host=bytes(8),
        tag_hash=0,
        keys="",
        unique_key="",
        sys_flag=0,
        wait_stored=True,
    )
