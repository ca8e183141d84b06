"""Elected brokers over an in-memory network, with real controllers; a stand-in copies their logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker_rig import send_header
from controller_rig import CLUSTER, GROUP, Rig

from sim.memory import MemoryDisk
from tandemmq.broker.autoswitch.elected import ElectedBroker
from tandemmq.broker.options import AccessOptions, BrokerConfig, BrokerOptions, ElectionOptions
from tandemmq.errors import StaleTerm
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.remoting.options import render_address
from tandemmq.replication.core.epochs import EpochList
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.runtime.machine import SeededRandom
from tandemmq.runtime.ports import Address
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store import StoreOptions
from tandemmq.store.message_store import MessageStore
from waits import until


class Copier:
    """Copies a master's log by reading its store, and maintains the set as the real copier does."""

    running: dict[str, Copier] = {}  # noqa: RUF012 (by address, of one test at a time)

    def __init__(self, store: MessageStore, broker_id: int, lists: dict[int, EpochList]) -> None:
        self.store, self.broker_id, self.lists = store, broker_id, lists
        self.on_propose: Callable[[frozenset[int], int], None] = lambda _members, _epoch: None
        self.may_join: Callable[[int], bool] = lambda _broker_id: True
        self.comparer: Any = None
        self.history_differed_count = 0
        self.on_halted: Callable[[], None] = lambda: None
        self.on_following: Callable[[], None] = lambda: None
        self.members: frozenset[int] = frozenset()
        self.set_epoch = -1
        self.epoch: int | None = None
        self.calls: list[str] = []
        self.halt_reason = ""
        self._proposed = -1
        self._scope = TaskScope("copier")
        self._copying: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int) -> Address:
        self.running[render_address((host, port))] = self
        return host, port

    async def stop(self) -> None:
        self.epoch = None
        await self._scope.close()

    async def begin_term(self, epoch: int, members: frozenset[int], set_epoch: int, term_id: int = 0) -> None:
        if epoch <= self.epochs.last_epoch:
            raise StaleTerm(f"term {epoch} after {self.epochs.last_epoch}")
        await self.end_term()
        self.lists[self.broker_id] = self.epochs.append(epoch, self.store.max_log_offset, term_id)
        self.epoch, self.members, self.set_epoch, self._proposed = epoch, members, set_epoch, -1
        self.calls.append(f"master of {epoch}")

    async def follow(self, master_ha_address: str, master_epoch: int, master_id: int) -> None:
        await self.end_term()
        self.calls.append(f"slave in {master_epoch}")
        self._copying = self._scope.start("copy", self._copy(self.running[master_ha_address], master_epoch))

    async def end_term(self) -> None:
        self.epoch = None
        if self._copying is not None:
            self._copying.cancel()
            self._copying = None

    async def _copy(self, master: Copier, epoch: int) -> None:
        while master.epoch == epoch:
            self.lists[self.broker_id] = self.epochs.follow(master.epochs)
            end = self.store.max_log_offset
            data = (
                bytes(master.store.log.valid_view(end, 1 << 20)) if end < master.store.max_log_offset else b""
            )
            if data:
                self.store.append_raw(end, data)
            if (
                self.store.max_log_offset == master.store.max_log_offset
                and self.broker_id not in master.members
                and master._proposed != master.set_epoch
                and master.may_join(self.broker_id)
            ):
                master._proposed = master.set_epoch
                master.on_propose(master.members | {self.broker_id}, master.set_epoch)
            await asyncio.sleep(0.005)

    def set_committed(self, members: frozenset[int], set_epoch: int) -> None:
        if set_epoch > self.set_epoch:
            self.members, self.set_epoch = members, set_epoch

    def set_refused(self, set_epoch: int) -> None:
        self._proposed = -1

    @property
    def required(self) -> frozenset[int] | None:
        return None if self.epoch is None else self.members - {self.broker_id}

    def master_status(self) -> None:
        return None

    def slave_status(self) -> None:
        return None

    @property
    def is_caught_up(self) -> bool:
        return True

    @property
    def epochs(self) -> EpochList:
        return self.lists.get(self.broker_id, EpochList())

    @property
    def confirm_offset(self) -> int:
        """The offset up to which all members of a master's set have the log."""
        others = [one for one in self.running.values() if self.epoch and one.broker_id in self.members]
        return min(one.store.max_log_offset for one in (self, *others))


class Elected:
    """A group of elected brokers on ports 11911, 12911 and so on, under the controllers of `rig`."""

    def __init__(self, rig: Rig, name_servers: tuple[str, ...] = ()) -> None:
        self.rig = rig
        self.name_servers = name_servers
        self.access = AccessOptions()
        self.settings: dict[str, Any] = {}
        Copier.running.clear()
        self.disks: dict[int, MemoryDisk] = {}
        self.lists: dict[int, dict[int, EpochList]] = {}
        self.brokers: dict[int, ElectedBroker] = {}

    def address(self, number: int) -> str:
        return f"127.0.0.1:1{number}911"

    async def start(self, number: int, **election: Any) -> ElectedBroker:
        """Starts a broker. `number` selects its port and disk; the controllers assign the id."""
        disk = self.disks.setdefault(number, MemoryDisk())
        lists = self.lists.setdefault(number, {})
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
            make_replication=lambda store, broker_id: Copier(store, broker_id, lists),
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
