"""Brokers of one name with their name server, for the scenarios of replication with whole brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from broker_rig import MESSAGE_BYTES_MAX, running_name_server

from tandemmq.broker.broker import Broker
from tandemmq.broker.options import BrokerOptions
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, SystemRandom, TcpNetwork
from tandemmq.runtime.ports import Machine
from tandemmq.store import BrokerRole, StoreOptions
from waits import until

REPLICATION = ReplicationOptions(
    heartbeat_interval_ms=200, silence_ms_max=20_000, reconnect_delay_ms=20, config_sync_interval_ms=50
)


class Group:
    """The brokers of one name, and their name server."""

    def __init__(self, root: Path, name_server: str) -> None:
        self.root = root
        self.name_server = name_server
        self.brokers: dict[int, Broker] = {}
        self.replication = REPLICATION

    async def start(
        self,
        broker_id: int,
        *,
        ports: tuple[int, int] = (0, 0),
        directory: str | None = None,
        broker: dict[str, object] | None = None,
        **store: object,
    ) -> Broker:
        """Starts a broker with this id; its store is in a directory of the same name, or of another id's."""
        settings: dict[str, object] = {
            "commit_log_file_bytes": 1 << 20,
            "consume_queue_file_bytes": 20_000,
            "key_index_slot_count": 1_000,
            "key_index_entry_count": 4_000,
            "message_bytes_max": MESSAGE_BYTES_MAX,
            "role": BrokerRole.SLAVE if broker_id else BrokerRole.ASYNC_MASTER,
            **store,
        }
        of_broker: dict[str, object] = {
            "broker_name": "group",
            "broker_id": broker_id,
            "listen_host": "127.0.0.1",
            "listen_port": ports[0],
            "ha_listen_port": ports[1],
            "fast_listen": False,
            "name_servers": (self.name_server,),
            "slave_read_enable": True,
            **(broker or {}),
        }
        one = Broker(
            BrokerOptions(**of_broker),  # type: ignore[arg-type]  # real fields
            StoreOptions(root=self.root / (directory or str(broker_id)), **settings),  # type: ignore[arg-type]  # real fields
            self.replication,
            machine=Machine(TcpNetwork(), RealDisk(), LoopClock(), SystemRandom()),
        )
        self.brokers[broker_id] = one
        await one.start()
        return one

    async def stop(self, broker_id: int) -> None:
        await self.brokers.pop(broker_id).stop()

    async def caught_up(self, broker_id: int = 1) -> None:
        master, slave = self.brokers[0].store, self.brokers[broker_id].store
        assert master is not None
        assert slave is not None
        await until(lambda: slave.dispatched.value == master.appended.value, "caught up")


@asynccontextmanager
async def running_group(root: Path) -> AsyncIterator[Group]:
    """Runs a group without brokers; all started brokers are stopped at the end, slaves first."""
    async with running_name_server(root) as name_server:
        group = Group(root, name_server)
        try:
            yield group
        finally:
            for broker_id in sorted(group.brokers, reverse=True):
                await group.stop(broker_id)


def rows_at(master: Broker) -> list[tuple[str | None, str | None, str | None]]:
    """Returns name, state and reported reason of each slave in the master's status."""
    assert master._replica is not None
    return [(one.slave, one.state, one.halt_reason) for one in master._replica.status().connections]
