"""The machines of an elected group: controllers, and brokers whose roles they decide."""

from __future__ import annotations

from collections.abc import Callable

from sim.cluster.loop import SimProcess
from sim.cluster.nodes import ROOT, BrokerNode, DiskNode
from sim.cluster.world import World
from tandemmq.broker.autoswitch.elected import ElectedBroker
from tandemmq.broker.broker import Broker
from tandemmq.broker.options import BrokerConfig, ElectionOptions
from tandemmq.controller.controller import Controller
from tandemmq.controller.options import ControllerConfig, ControllerOptions
from tandemmq.errors import TandemError
from tandemmq.replication.core.progress import SlaveState

CONTROLLER_PORT = 9878


class ControllerNode(DiskNode):
    """One controller and its disk."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world)
        self.peers: tuple[ControllerNode, ...] = (self,)
        """All controllers of the group."""
        self.server: Controller | None = None
        self.has_foreign_disk = False
        """True if its disk is another controller's: it must refuse to start."""
        self.refusal = ""

    @property
    def address(self) -> str:
        return f"{self.host.ip}:{CONTROLLER_PORT}"

    @property
    def is_leader(self) -> bool:
        return self.is_running and self.server is not None and self.server.raft.is_leader

    def start(self) -> None:
        self._image = self.image
        process = self.begin_process()
        self.server = None
        self.world.note(f"{process} starts")
        self.begin_disk()
        self.world.spawn(process, self._boot(process), "boot")

    async def _boot(self, process: SimProcess) -> None:
        options = ControllerOptions(
            peers=";".join(f"{peer.name}-{peer.address}" for peer in self.peers),
            self_id=self.name,
            store_path=ROOT / "controller",
            config_store_path=ROOT / "controller.properties",
            snapshot_entries=20,
        )
        try:
            self.server = Controller(
                ControllerConfig(options=options),
                network=self.network,
                disk=self.disk,
                clock=self.clock,
                chance=self.chance,
                on_fatal=self.on_fatal,
            )
            await self.server.start()
        except TandemError as error:
            if process.is_alive and not self.has_foreign_disk:
                self.on_fatal(error)
            self.refusal = str(error)
            await self.stop_server()
        except Exception as error:  # noqa: BLE001 (any error is a finding)
            if process.is_alive:
                self.on_fatal(error)

    async def stop_server(self) -> None:
        if self.server is not None:
            await self.server.stop()


class ElectedNode(BrokerNode):
    """A broker whose role is decided by the controllers. `broker_id` is 0 while it leads, as far as is known
    here; else `number`, which may differ from the id that it was assigned.
    """

    def __init__(
        self,
        name: str,
        world: World,
        *,
        number: int,
        name_servers: tuple[str, ...],
        controllers: tuple[str, ...],
    ) -> None:
        super().__init__(name, world, broker_id=number, name_servers=name_servers)
        self.number = number
        self._controllers = controllers
        self.has_foreign_disk = False
        """True if its disk is of another cluster."""
        self.server: ElectedBroker | None = None
        self.on_stopped: Callable[[ElectedNode, int], None] = lambda _node, _member_count: None
        """Called after a clean stop, with the number of members that its set had before."""

    @property
    def broker(self) -> Broker | None:
        """The composition for its current role."""
        return None if self.server is None else self.server._broker

    @property
    def epoch(self) -> int:
        """The epoch of the term that it knows."""
        return 0 if self.server is None else self.server.epoch

    @property
    def leads(self) -> bool:
        """True if it considers itself the master of its term."""
        return self.is_running and self.server is not None and self.server.is_master

    @property
    def may_write(self) -> bool:
        """True if it would accept a message now."""
        return self.leads and self.server is not None and self.server.may_write()

    @property
    def members(self) -> frozenset[int]:
        """The ids of the SyncStateSet, as this master knows it; empty for a slave."""
        replication = None if self.server is None else self.server._replication
        members = None if replication is None else getattr(replication, "_set", None)
        return frozenset() if members is None else members.members

    @property
    def copy_connection(self) -> object:
        """The connection over which it currently copies its master's log; None if it copies nothing."""
        replication = None if self.server is None or not self.is_running else self.server._replication
        slave = getattr(replication, "_slave", None)
        if slave is None or slave._session.state is not SlaveState.TRANSFERRING:
            return None
        return slave._connection

    @property
    def halt_reason(self) -> str:
        """The reason why its copy is halted until an operator acts."""
        replication = None if self.server is None or not self.is_running else self.server._replication
        return "" if replication is None else replication.halt_reason

    def start(self) -> None:
        self.server = None
        super().start()

    async def _boot(self, process: SimProcess) -> None:
        try:
            server = self.server = ElectedBroker(
                BrokerConfig(
                    broker=self._broker_options(),
                    store=self._store_options(),
                    replication=self._replication_options(),
                    election=ElectionOptions(is_enabled=True, controllers=self._controllers),
                ),
                network=self.network,
                disk=self.disk,
                clock=self.clock,
                chance=self.chance,
                on_fatal=self.on_fatal,
            )
            await server.start()
        except Exception as error:  # noqa: BLE001 (any error is a finding)
            if process.is_alive:
                self.on_fatal(error)
            return
        if process.is_alive:
            self.is_open = True
            assert server.store is not None
            low, high = server.store.min_log_offset, server.store.max_log_offset
            self.world.note(f"{process} is open as id {server.broker_id}, log {low}..{high}")
            self.on_open(self)

    async def stop_server(self) -> None:
        self.is_open = False
        member_count = len(self.members)
        if self.server is not None:
            await self.server.stop()
        self.on_stopped(self, member_count)
