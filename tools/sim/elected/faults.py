"""What goes wrong around elected brokers, besides what goes wrong everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sim.cluster.clients import ClientNode
from sim.cluster.faults import Fault, Kind, Trouble
from sim.elected.cluster import ElectedCluster
from sim.elected.nodes import ControllerNode
from sim.elected.settings import FAULTS
from tandemmq.api.controller import hand_over
from tandemmq.errors import RequestRejected, TandemError

HAND_OVER_S_MAX = 15.0


class OperatorNode(ClientNode):
    """Asks a master to give its office away."""

    address = ""
    target = 0

    async def run(self) -> None:
        instance = await self.connect()
        try:
            facts = await hand_over(instance.remoting, self.address, self.target)
        except RequestRejected as error:
            self.world.note(f"{self.life}: nothing is handed over to {self.target}: {error}")
            self._ledger.counts["hand-overs refused"] += 1
        except TandemError as error:
            # The old master closes its connections when it takes the other role.
            self.world.note(f"{self.life}: no answer about {self.target}: {error}")
            self._ledger.counts["hand-overs without an answer"] += 1
        else:
            self.world.note(f"{self.life}: handed over to {facts.master_id} in term {facts.master_epoch}")
            self._ledger.counts["hand-overs"] += 1
        self.is_done = True

    async def stop_server(self) -> None:
        if self._instance is not None:
            await self._instance.close()


class ElectedTrouble(Trouble):
    """Random faults for elected brokers and their controllers."""

    weights: ClassVar[Mapping[str, int]] = FAULTS
    _cluster: ElectedCluster

    def __init__(self, cluster: ElectedCluster) -> None:
        super().__init__(cluster)
        namesrv = cluster.admin._namesrv
        self._operator = OperatorNode("operator", cluster.world, namesrv, cluster.ledger, cluster.watch)

    def faults(self) -> tuple[Fault, ...]:
        common = tuple(fault for fault in super().faults() if fault.name in FAULTS)
        return (
            *common,
            Fault("hand over", Kind.COPY, self._hand_over),
            Fault("lose controller", Kind.OTHER, self._lose_controller),
            Fault("lose controller and master", Kind.COPY, self._lose_controller_and_master),
        )

    async def _hand_over(self) -> None:
        leader, operator = self._cluster.leader, self._operator
        others = sorted(leader.members - {0 if leader.server is None else leader.server.broker_id})
        if not leader.leads or not others:
            return
        operator.address = f"{leader.host.ip}:{leader.port}"
        operator.target = self._dice.pick(others)
        operator.start()
        await self._world.until(lambda: operator.is_done, HAND_OVER_S_MAX)
        await operator.end_in_order()
        await self._pause(100, 3_000)
        if leader.server is not None:
            self._cluster.ledger.counts["sends passed on"] += leader.server._forwarding.count

    async def _lose_controller(self) -> None:
        controllers = self._cluster.controllers
        leaders = [one for one in controllers if one.is_leader]
        node = leaders[0] if leaders and self._dice.happens(60) else self._dice.pick(controllers)
        await self._lose(node)

    async def _lose_controller_and_master(self) -> None:
        """The one that would replace the master is gone with it."""
        leaders: list[ControllerNode] = [one for one in self._cluster.controllers if one.is_leader]
        node = leaders[0] if leaders else self._cluster.controllers[0]
        node.kill() if self._dice.happens(50) else node.cut_power()
        await self._lose_broker(self._cluster.master, is_power_cut=self._dice.happens(50))
        if not node.is_running:  # another fault was quicker
            node.start()
