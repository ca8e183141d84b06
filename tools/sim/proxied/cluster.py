"""A cluster with one or two gRPC proxies, their clients, and their faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from sim.cluster.cluster import Cluster
from sim.cluster.faults import Fault, FaultInjector, Kind
from sim.cluster.nodes import Node
from sim.cluster.settings import Group, Settings, draw_faults, draw_settings
from sim.cluster.world import World
from sim.dice import Dice
from sim.proxied.nodes import ProxyNode
from sim.proxied.work import ProxiedOrderWork, ProxiedWork

FAULTS = {
    "lose proxy": 12,
    "lose master": 8,
    "lose master for good": 3,
    "restart broker": 4,
    "lose name server": 2,
    "lose producer": 3,
    "partition": 5,
    "cut a port": 4,
    "break connections": 8,
    "stall": 6,
}
"""The faults, with their relative frequencies."""


def draw_proxied(dice: Dice) -> Settings:
    """Draws settings with little other load."""
    return replace(
        draw_settings(dice),
        work=(),
        producer_count=1,
        worker_count=1,
        groups=(Group(name="all", member_count=1, tags="*"),),
        fault_names=draw_faults(dice, FAULTS),
    )


class ProxiedCluster(Cluster):
    """A cluster whose work is done through proxies."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        names = ";".join(node.address for node in self.name_servers)
        self.proxies = [ProxyNode(f"proxy{n}", world, names) for n in range(world.dice.between(1, 2))]
        shared = (world, names, self.ledger, self.watch, self.proxies)
        self.workers += [ProxiedWork("viewer", *shared), ProxiedOrderWork("orderly", *shared)]

    @property
    def nodes(self) -> list[Node]:
        return [*super().nodes, *self.proxies]

    async def start(self) -> None:
        for proxy in self.proxies:
            proxy.start()
        await super().start()

    async def stop(self) -> None:
        for node in (*self.workers, *self.proxies):
            await node.stop_cleanly()
        await super().stop()


class ProxiedFaultInjector(FaultInjector):
    """Random faults of the cluster and its proxies."""

    weights: ClassVar[Mapping[str, int]] = FAULTS
    _cluster: ProxiedCluster

    def faults(self) -> tuple[Fault, ...]:
        common = tuple(fault for fault in super().faults() if fault.name in FAULTS)
        return (*common, Fault("lose proxy", Kind.OTHER, self._lose_proxy))

    async def _lose_proxy(self) -> None:
        """Loses a proxy by a kill, a power cut or a stop; it comes back."""
        await self._lose(self._dice.pick(self._cluster.proxies))
