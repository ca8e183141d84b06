"""One broker of a test cluster across restarts: at the same address, with the same files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tandemmq.broker.autoswitch.elected import ElectedBroker
from tandemmq.broker.broker import Broker
from tandemmq.broker.options import BrokerConfig
from tandemmq.runtime.machine import LoopClock, SystemRandom
from tandemmq.runtime.ports import Address, Machine
from tandemmq.testing.faults import SwitchedDisk, SwitchedNetwork

HOST: Final = "127.0.0.1"
POLL_S: Final = 0.002
COPY_TRIES: Final = 100


class ClusterMember:
    """One broker across restarts: at the same address, with the same files."""

    def __init__(self, config: BrokerConfig, on_fatal: Callable[[BaseException], None]) -> None:
        self.network = SwitchedNetwork()
        self._config = config
        self._disk = SwitchedDisk()
        self._on_fatal = on_fatal
        self._broker: Broker | ElectedBroker | None = None

    @property
    def is_running(self) -> bool:
        return self._broker is not None

    @property
    def leads(self) -> bool:
        """True if this is an elected broker that is the active master and accepts sends."""
        broker = self._broker
        return isinstance(broker, ElectedBroker) and broker.is_master and broker.may_write()

    @property
    def elected_id(self) -> int:
        """The id that the controllers assigned. Only for a running elected broker."""
        assert isinstance(self._broker, ElectedBroker)
        return self._broker.broker_id

    @property
    def address(self) -> Address:
        return HOST, self._config.broker.listen_port

    @property
    def ha_address(self) -> Address:
        return HOST, self._config.broker.ha_listen_port

    async def start(self) -> None:
        """Starts the broker; returns once it is in the routes, if a name server is reachable. An elected
        broker serves reads then.
        """
        config = self._config
        self.network.restore()
        broker = self._broker = self._make()
        try:
            await broker.start()
        except BaseException:
            await self.stop()
            raise
        ports = replace(config.broker, listen_port=broker.address[1], ha_listen_port=broker.ha_address[1])
        self._config = replace(config, broker=ports)

    def _make(self) -> Broker | ElectedBroker:
        config = self._config
        if config.election.is_enabled:
            return ElectedBroker(
                config,
                network=self.network,
                disk=self._disk,
                clock=LoopClock(),
                chance=SystemRandom(),
                on_fatal=self._on_fatal,
            )
        return Broker(
            config.broker,
            config.store,
            config.replication,
            machine=Machine(self.network, self._disk, LoopClock(), SystemRandom()),
            on_fatal=self._on_fatal,
            access=config.access,
            tls=config.tls,
        )

    async def stop(self) -> None:
        """Stops the broker in an orderly way; does nothing when it is not running."""
        broker, self._broker = self._broker, None
        if broker is not None:
            await broker.stop()

    async def kill(self) -> None:
        """Stops the broker so that its files stay as they are now, whatever the end of the process writes."""
        root = self._config.store.root
        snapshot = root.with_name(f"{root.name}.left")
        await self.network.sever()
        await _copy(root, snapshot)
        await self.stop()
        shutil.rmtree(root)
        snapshot.rename(root)

    def set_disk_full(self, *, is_full: bool) -> None:
        self._disk.is_full = is_full
        if self._broker is not None and self._broker.store is not None:
            self._broker.store.cleaner.clean()

    def has_all_of(self, master: ClusterMember) -> bool:
        """Returns True if the broker has everything of the master's log, has reported that to the master, and
        serves it to readers.
        """
        assert self._broker is not None
        assert master._broker is not None
        own, other = self._broker.store, master._broker.store
        assert own is not None
        assert other is not None
        end = other.max_log_offset
        is_reported = end in other.replies.acks.positions().values()
        return is_reported and own.dispatched.value >= end


async def _copy(root: Path, snapshot: Path) -> None:
    """Copies the files of a running server, whose threads may replace or delete one meanwhile."""
    for tries_left in reversed(range(COPY_TRIES)):
        try:
            shutil.copytree(root, snapshot, ignore=shutil.ignore_patterns("*.tmp"))
        except shutil.Error:
            shutil.rmtree(snapshot)
            if not tries_left:
                raise
            await LoopClock().sleep(POLL_S)
        else:
            return
