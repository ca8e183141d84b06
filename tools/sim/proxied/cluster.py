"""A cluster with one or two gRPC proxies, their clients, and their faults. Its master is chosen by an
operator or by controllers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from sim.cluster.cluster import Cluster
from sim.cluster.faults import Fault, FaultInjector, Kind
from sim.cluster.nodes import Node
from sim.cluster.settings import Group, Settings, draw_faults, draw_settings
from sim.cluster.work.node import WorkNode
from sim.cluster.world import World
from sim.dice import Dice
from sim.elected.cluster import ElectedCluster
from sim.elected.faults import ElectedFaultInjector
from sim.elected.settings import FAULTS as ELECTED_FAULTS
from sim.elected.settings import draw_elected
from sim.proxied.kinds import KINDS
from sim.proxied.nodes import ProxyNode

ELECTED_PERCENT = 30
WORK_COUNT = 2
EMPTY_S_MAX = 100.0
"""The time until the last lease has ended: that of a cancelled receive is the longest."""
LOSE_PROXY = {"lose proxy": 12}
FAULTS = {
    **LOSE_PROXY,
    "lose master": 8,
    "lose master for good": 3,
    "restart broker": 4,
    "lose name server": 2,
    "lose producer": 5,
    "partition": 5,
    "cut a port": 4,
    "break connections": 8,
    "stall": 6,
}
"""The faults, with their relative frequencies."""
LEFT_OUT = (
    "swap controllers",
    "foreign disk",
    "restore one of all",
    "old record of a lone master",
    "step a clock",
)
FAULTS_OF_ELECTED = {
    **LOSE_PROXY,
    **{name: 0 if name in LEFT_OUT else weight for name, weight in ELECTED_FAULTS.items()},
}
"""The same with controllers, without some faults of `make elected`."""


def draw_proxied(dice: Dice) -> Settings:
    """Draws settings with little other load."""
    is_elected = dice.happens(ELECTED_PERCENT)
    settings = draw_elected(dice) if is_elected else draw_settings(dice)
    names = list(KINDS)
    work = tuple(names.pop(dice.below(len(names))) for _ in range(WORK_COUNT))
    return replace(
        settings,
        work=work,
        producer_count=1,
        worker_count=1,
        groups=(Group(name="all", member_count=1, tags="*"),),
        fault_names=draw_faults(dice, FAULTS_OF_ELECTED if is_elected else FAULTS),
    )


class WithProxies(Cluster):
    """The part of a cluster whose work is done through proxies."""

    proxies: list[ProxyNode]

    def make_workers(self, namesrv: str) -> list[WorkNode]:
        world = self.world
        self.proxies = [
            ProxyNode(f"proxy{n}", world, namesrv, self.watch.brokers)
            for n in range(world.dice.between(1, 2))
        ]
        shared = (world, namesrv, self.ledger, self.watch, self.proxies)
        return [KINDS[name](name.replace(" ", "-"), *shared) for name in world.settings.work]

    @property
    def nodes(self) -> list[Node]:
        return [*super().nodes, *self.proxies]

    async def start(self) -> None:
        for proxy in self.proxies:
            proxy.start()
        await super().start()

    async def settle(self) -> None:
        await super().settle()
        if not self.world.findings:
            await self._expect_soon(self._leased, EMPTY_S_MAX)

    async def _expect_soon(self, left: Callable[[], str], seconds: float) -> None:
        """Waits until `left` reports nothing."""
        if not await self.world.until(lambda: not left(), seconds, 0.5):
            self.world.findings.broken.append(f"everything is acknowledged, but {left()}")

    def _leased(self) -> str:
        """Returns the proxies that still renew, and the leases of the master; empty if there are none."""
        found = [
            f"{proxy.process} renews {count}" for proxy in self.proxies if (count := proxy.renewed_count)
        ]
        broker = self.master.broker
        parts = None if broker is None else broker._parts
        if parts is not None and len(parts.pop.leases):
            found.append(f"{self.master.process} holds {[lease.key for lease in parts.pop.leases.all()]}")
        return ", ".join(found)

    async def stop(self) -> None:
        for node in (*self.workers, *self.proxies):
            await node.stop_cleanly()
        await super().stop()


class ProxiedCluster(WithProxies):
    """An operator chooses the master."""


class ProxiedElectedCluster(WithProxies, ElectedCluster):
    """Controllers choose the master."""


class WithProxyFaults(FaultInjector):
    """The faults of proxies."""

    _cluster: WithProxies

    def faults(self) -> tuple[Fault, ...]:
        known = tuple(fault for fault in super().faults() if fault.name in self.weights)
        return (*known, Fault("lose proxy", Kind.OTHER, self._lose_proxy))

    async def _lose_proxy(self) -> None:
        """Loses a proxy by a kill, a power cut or a stop; it comes back."""
        await self._lose(self._dice.pick(self._cluster.proxies))


class ProxiedFaultInjector(WithProxyFaults):
    """Random faults of the cluster and its proxies."""

    weights: ClassVar[Mapping[str, int]] = FAULTS


class ProxiedElectedFaultInjector(WithProxyFaults, ElectedFaultInjector):
    """Random faults of proxies, elected brokers and controllers."""

    weights: ClassVar[Mapping[str, int]] = FAULTS_OF_ELECTED
    _cluster: ProxiedElectedCluster


def make_cluster(world: World) -> WithProxies:
    """Returns the cluster of the drawn settings."""
    return (ProxiedElectedCluster if world.settings.controller_count else ProxiedCluster)(world)


def make_injector(cluster: WithProxies) -> FaultInjector:
    """Returns the faults for the cluster."""
    if isinstance(cluster, ProxiedElectedCluster):
        return ProxiedElectedFaultInjector(cluster)
    return ProxiedFaultInjector(cluster)
