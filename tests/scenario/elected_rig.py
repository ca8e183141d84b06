"""Elected brokers over an in-memory network, with real controllers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from broker_rig import send_header
from controller_rig import CLUSTER, GROUP, Rig

from sim.memory import MemoryDisk
from tandemmq.broker.autoswitch.elected import ElectedBroker
from tandemmq.broker.options import AccessOptions, BrokerConfig, BrokerOptions, ElectionOptions
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.runtime.machine import SeededRandom
from tandemmq.store import StoreOptions
from waits import until


class Elected:
    """A group of elected brokers on ports 11911, 12911 and so on, under the controllers of `rig`."""

    def __init__(self, rig: Rig, name_servers: tuple[str, ...] = ()) -> None:
        self.rig = rig
        self.name_servers = name_servers
        self.access = AccessOptions()
        self.settings: dict[str, Any] = {}
        self.disks: dict[int, MemoryDisk] = {}
        self.brokers: dict[int, ElectedBroker] = {}

    def address(self, number: int) -> str:
        return f"127.0.0.1:1{number}911"

    async def start(self, number: int, **election: Any) -> ElectedBroker:
        """Starts a broker. `number` selects its port and disk; the controllers assign the id."""
        disk = self.disks.setdefault(number, MemoryDisk())
        broker = self.brokers[number] = ElectedBroker(
            BrokerConfig(
                broker=BrokerOptions(
                    cluster_name=CLUSTER,
                    broker_name=GROUP,
                    listen_host="127.0.0.1",
                    listen_port=int(self.address(number).rpartition(":")[2]),
                    fast_listen=False,
                    slave_read_enable=True,
                    name_servers=self.name_servers,
                    **self.settings,
                ),
                store=StoreOptions(
                    root=Path("/store"),
                    commit_log_file_bytes=1 << 20,
                    consume_queue_file_bytes=20_000,
                    key_index_slot_count=100,
                    key_index_entry_count=400,
                    message_bytes_max=32_768,
                ),
                replication=ReplicationOptions(config_sync_interval_ms=50),
                election=ElectionOptions(
                    is_enabled=True,
                    controllers=tuple(map(self.rig.address, self.rig.names)),
                    **{"heartbeat_ms": 50, "silence_ms_max": 600, "poll_ms": 200, **election},
                ),
                access=self.access,
            ),
            network=self.rig.network,
            disk=disk,
            clock=self.rig.clock,
            chance=SeededRandom(number),
            on_fatal=self.rig.fatal.append,
        )
        await broker.start()
        return broker

    async def start_pair(self) -> tuple[ElectedBroker, ElectedBroker]:
        """Starts broker 1 as the master and broker 2 as its slave, a member of the set."""
        first = await self.start(1)
        await self.master()
        second = await self.start(2)
        await self.in_set(1, 2)
        return first, second

    async def stop(self, *numbers: int) -> None:
        for number in numbers or list(self.brokers):
            await self.brokers.pop(number).stop()

    def masters(self) -> list[int]:
        return [number for number, broker in self.brokers.items() if broker.is_master]

    async def master(self) -> int:
        await until(lambda: len(self.masters()) == 1, "one master")
        return self.masters()[0]

    async def in_set(self, *numbers: int) -> None:
        ids = sorted(self.brokers[number].broker_id for number in numbers)

        def agreed() -> bool:
            group = next(iter(self.rig.controllers.values())).groups.get(GROUP)
            return group is not None and sorted(group.sync_set) == ids

        await until(agreed, f"the set is {ids}")

    async def send(self, number: int, body: bytes, topic: str = "TBW102") -> Command:
        command = Command.request(RequestCode.SEND_MESSAGE_V2, send_header(topic), body=body)
        return await self.rig.client.request(self.address(number), command, 5)

    async def caught_up(self) -> None:
        def ends() -> set[int]:
            return {
                broker.store.dispatched.value for broker in self.brokers.values() if broker.store is not None
            }

        await until(lambda: len(ends()) == 1, "all logs end alike")
