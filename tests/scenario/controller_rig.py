"""Controllers over an in-memory network, and brokers that consist of nothing but heartbeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sim.memory import MemoryDisk, MemoryNetwork
from tandemmq.controller.controller import Controller
from tandemmq.controller.options import ControllerConfig, ControllerOptions
from tandemmq.protocol.bodies.codec import decode_body, encode_body
from tandemmq.protocol.bodies.replica import SyncStateSetAnswer
from tandemmq.protocol.codes import RequestCode as Code
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command, Header
from tandemmq.protocol.requests import controller as headers
from tandemmq.protocol.requests.route import BrokerHeartbeatRequest
from tandemmq.protocol.signature import Credentials
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.server import RemotingServer
from tandemmq.runtime.descriptors import CONNECTIONS_MAX
from tandemmq.runtime.machine import LoopClock, SeededRandom
from waits import until

GROUP = "broker-a"
CLUSTER = "C"


class Rig:
    """One to three controllers, n0 on port 9870 and so on, with short times."""

    def __init__(
        self, count: int = 1, *, seed: int = 0, connections_max: int = CONNECTIONS_MAX, **options: Any
    ) -> None:
        self.seed = seed
        self.connections_max = connections_max
        self._start_count = 0
        self.clock = LoopClock()
        self.network = MemoryNetwork(self.clock)
        self.names = [f"n{number}" for number in range(count)]
        self.disks = {name: MemoryDisk() for name in self.names}
        self.controllers: dict[str, Controller] = {}
        self.fatal: list[BaseException] = []
        self.options = options
        self.credentials: Credentials | None = None
        self.brokers: list[FakeBroker] = []
        self.client = RemotingClient(network=self.network, clock=self.clock)

    def address(self, name: str) -> str:
        return f"127.0.0.1:987{name[1:]}"

    async def start(self, *names: str, joins: bool = False) -> None:
        """Starts controllers; `joins` marks controllers that the group does not know yet."""
        for name in names or self.names:
            if joins:
                self.names.append(name)
                self.disks[name] = MemoryDisk()
            options = ControllerOptions(
                group="g",
                peers=";".join(f"{one}-{self.address(one)}" for one in self.names),
                self_id=name,
                joins=joins,
                listen_host="127.0.0.1",
                store_path=Path("/controller"),
                config_store_path=Path("/controller/controller.properties"),
                raft_heartbeat_ms=20,
                raft_election_timeout_ms=80,
                scan_inactive_master_ms=30,
                **self.options,
            )
            self._start_count += 1  # another seed for each start
            self.controllers[name] = Controller(
                ControllerConfig(options=options, credentials=self.credentials),
                network=self.network,
                disk=self.disks[name],
                clock=self.clock,
                chance=SeededRandom(self.seed + self._start_count),
                on_fatal=self.fatal.append,
                connections_max=self.connections_max,
            )
            await self.controllers[name].start()

    async def leader(self) -> str:
        await until(lambda: any(one.raft.is_leader for one in self.controllers.values()))
        return next(name for name, one in self.controllers.items() if one.raft.is_leader)

    async def stop(self, *names: str) -> None:
        for name in names or list(self.controllers):
            await self.controllers.pop(name).stop()

    async def close(self) -> None:
        for broker in self.brokers:
            await broker.close()
        await self.client.close()
        await self.stop()
        assert self.fatal == []

    async def ask(
        self, code: Code, header: Header | None = None, *, body: bytes = b"", to: str | None = None
    ) -> Command:
        """Returns the answer of `to`, or of the leader; on a busy machine another controller may lead a
        moment later.
        """
        while True:
            name = to or await self.leader()
            answer = await self.client.request(
                self.address(name), Command.request(code, header, body=body), 8
            )
            if to is not None or answer.code != ResponseCode.CONTROLLER_NOT_LEADER:
                return answer

    async def beat_all(self) -> None:
        for broker in self.brokers:
            await broker.beat()

    async def broker(self, broker_id: int, **facts: Any) -> FakeBroker:
        broker = FakeBroker(self, broker_id, **facts)
        self.brokers.append(broker)
        await broker.start()
        return broker


class FakeBroker:
    """One broker of the group: it applies for its id, registers, and stays alive by heartbeats."""

    def __init__(self, rig: Rig, broker_id: int, *, max_offset: int = 100, is_ours: bool = False) -> None:
        self.rig = rig
        self.broker_id = broker_id
        self.max_offset = max_offset
        self.is_ours = is_ours
        self.timeout_ms = 60_000  # a busy machine pauses everything for seconds
        self.takes_office = True
        """True if its heartbeats report its term once it was elected."""
        self.history: dict[str, Any] = {}
        """The facts of its history, by the names of `HistoryFacts`."""
        self.log_epoch: int | None = None
        self.notices: list[tuple[headers.MasterResponse, SyncStateSetAnswer]] = []
        self.address = f"127.0.0.1:1{broker_id}911"
        self._client = RemotingClient(network=rig.network, clock=rig.clock)
        self._server = RemotingServer(
            {Code.NOTIFY_BROKER_ROLE_CHANGED: self._on_notice}, network=rig.network, clock=rig.clock
        )

    def _on_notice(self, channel: Channel, command: Command) -> None:
        self.notices.append(
            (command.decode(headers.MasterResponse), decode_body(command.body, SyncStateSetAnswer))
        )

    async def start(self) -> None:
        await self._server.start("127.0.0.1", int(self.address.rpartition(":")[2]))
        applied = await self.rig.ask(Code.CONTROLLER_APPLY_BROKER_ID, self.application())
        assert applied.code == 0, applied.remark
        registered = await self.register()
        assert registered.code == 0, registered.remark
        await self.beat()

    def application(self, check: str = "1700000000000") -> headers.ApplyBrokerIdRequest:
        return headers.ApplyBrokerIdRequest(
            cluster_name=CLUSTER,
            broker_name=GROUP,
            broker_id=self.broker_id,
            check_code=f"{self.address};{check}",
        )

    async def register(self) -> Command:
        return await self.rig.ask(
            Code.CONTROLLER_REGISTER_BROKER,
            headers.RegisterReplicaRequest(
                cluster_name=CLUSTER,
                broker_name=GROUP,
                broker_id=self.broker_id,
                broker_address=self.address,
                epoch=self.log_epoch,
                max_log_offset=None if self.log_epoch is None else self.max_offset,
                **self.history,
            ),
        )

    async def beat(self) -> Command:
        """Sends a heartbeat to all controllers; returns the answer of the leader."""
        leader = await self.rig.leader()
        group = self.rig.controllers[leader].groups.get(GROUP)
        is_master = group is not None and group.master_id == self.broker_id
        epoch = group.master_epoch if group is not None and is_master and self.takes_office else 0
        header = BrokerHeartbeatRequest(
            cluster_name=CLUSTER,
            broker_address=self.address,
            broker_name=GROUP,
            broker_id=self.broker_id,
            epoch=epoch if self.log_epoch is None else self.log_epoch,
            max_log_offset=self.max_offset,
            heartbeat_timeout_ms=self.timeout_ms,
            **self.history,
        )
        answers = {}
        for name in self.rig.controllers:
            command = Command.request(
                Code.BROKER_HEARTBEAT, header, fields={"tmCaps": "lease"} if self.is_ours else None
            )
            answers[name] = await self._client.request(self.rig.address(name), command, 5)
        return answers[leader]

    async def elect(self, *, is_designated: bool = False) -> Command:
        return await self.rig.ask(
            Code.CONTROLLER_ELECT_MASTER,
            headers.ElectMasterRequest(
                broker_name=GROUP, broker_id=self.broker_id, is_designated=is_designated
            ),
        )

    async def alter_set(self, *ids: int, set_epoch: int, master_epoch: int) -> Command:
        return await self.rig.ask(
            Code.CONTROLLER_ALTER_SYNC_STATE_SET,
            headers.AlterSyncStateSetRequest(
                broker_name=GROUP, master_id=self.broker_id, master_epoch=master_epoch
            ),
            body=encode_body(SyncStateSetAnswer(ids=ids, epoch=set_epoch)),
        )

    async def cut_connections(self) -> None:
        """Cuts the connections, as the end of its process does."""
        await self._client.close()
        self._client = RemotingClient(network=self.rig.network, clock=self.rig.clock)

    async def close(self) -> None:
        await self._client.close()
        await self._server.stop()


def master_of(answer: Command) -> tuple[int | None, int | None]:
    header = answer.decode(headers.MasterResponse)
    return header.master_id, header.master_epoch
