"""What goes wrong: nodes are lost one at a time, ways are blocked, connections break, processes stall."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tandemmq.sim.cluster.cluster import Cluster
from tandemmq.sim.cluster.nodes import BrokerNode, Node
from tandemmq.sim.image import Tear

LEVEL_TIMEOUT_S = 30.0


class Trouble:
    """Random faults for as long as `run` runs; then what lasts is taken back."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._dice = cluster.world.dice
        self._stalled: list[Node] = []
        self._blocked: list[tuple[str, str]] = []
        faults: tuple[tuple[int, str, Callable[[], Awaitable[None]]], ...] = (
            (10, "lose master", self._lose_master),
            (10, "lose slave", self._lose_slave),
            (4, "lose master for good", self._lose_master_for_good),
            (3, "restart broker", self._restart_broker),
            (3, "lose name server", self._lose_name_server),
            (5, "lose consumer", self._lose_consumer),
            (2, "lose producer", self._lose_producer),
            (8, "partition", self._partition),
            (8, "break connections", self._break_connections),
            (6, "stall", self._stall),
        )
        wanted = cluster.world.settings.fault_names
        self._faults = [(weight, fault) for weight, name, fault in faults if not wanted or name in wanted]

    async def run(self, seconds: float) -> None:
        """Throw faults; between them there is time to get into the next one's way."""
        end = self._world.loop.time() + seconds
        while self._world.loop.time() < end:
            await self._pause(200, 5_000)
            fault = self._dice.pick_weighted(self._faults)
            self._world.trouble()
            await fault()
            self._world.trouble()
        self._heal()

    def _heal(self) -> None:
        """All ways are open, all processes run on."""
        for source, target in self._blocked:
            self._world.fabric.unblock(source, target)
        self._blocked.clear()
        for node in self._stalled:
            if node.life is not None:
                self._world.loop.resume(node.life)
        self._stalled.clear()
        self._world.trouble()

    async def _pause(self, low_ms: int, high_ms: int) -> None:
        await self._world.clock.sleep(self._dice.between(low_ms, high_ms) / 1000)

    # Nodes.

    async def _lose_master(self) -> None:
        """By a kill; by a power cut only where every acknowledged message is on its disk."""
        cluster, settings = self._cluster, self._world.settings
        is_power_cut = settings.is_sync_flush and self._dice.happens(50)
        await self._lose_broker(cluster.master, is_power_cut=is_power_cut)

    async def _lose_slave(self) -> None:
        await self._lose_broker(self._dice.pick(self._cluster.slaves), is_power_cut=self._dice.happens(50))

    async def _lose_broker(self, node: BrokerNode, *, is_power_cut: bool) -> None:
        """One at a time: the others are level before, and again after."""
        world, cluster = self._world, self._cluster
        if not await world.until(cluster.is_level, LEVEL_TIMEOUT_S) or not node.is_running:
            return
        if is_power_cut and node is cluster.master and self._dice.happens(60):
            # The worst moment: a slave has what the master has not flushed.
            await world.until(self._is_slave_ahead_of_flush, 3.0, 0.001)
            node.cut_power(Tear.NOTHING if self._dice.happens(50) else None)
        elif self._dice.happens(50):
            node.arm_crash(self._dice.between(0, 40), is_power_cut=is_power_cut)
            await world.until(lambda: not node.is_running, 5.0, 0.05)
            node.disarm_crash()
        if node.is_running:
            node.cut_power() if is_power_cut else node.kill()
        if node is cluster.master:
            cluster.ledger.counts["power cuts of the master" if is_power_cut else "kills of the master"] += 1
            cluster.check_survivors()
        else:
            cluster.ledger.counts["losses of slaves"] += 1
        await self._pause(0, 8_000)
        node.start()
        if self._dice.happens(20):
            await self._lose_again(node, is_power_cut=is_power_cut)
        if is_power_cut:
            # The next loss must find every copy again.
            await world.until(cluster.is_level, LEVEL_TIMEOUT_S)

    async def _lose_again(self, node: BrokerNode, *, is_power_cut: bool) -> None:
        """While it starts."""
        node.arm_crash(self._dice.between(0, 30), is_power_cut=is_power_cut)
        await self._pause(0, 1_000)
        node.disarm_crash()
        if not node.is_running:
            await self._pause(0, 2_000)
            node.start()

    async def _lose_master_for_good(self) -> None:
        """What it had not flushed is gone, though acknowledged: under synchronous double write a slave has
        it.
        """
        world, cluster = self._world, self._cluster
        if world.settings.is_sync_flush or not world.settings.is_sync_double_write:
            return
        if not await world.until(cluster.is_level, LEVEL_TIMEOUT_S) or not cluster.is_copied_whole():
            return
        await world.until(self._is_slave_ahead_of_flush, 3.0, 0.001)
        cluster.master.cut_power()
        cluster.ledger.counts["power cuts of the master"] += 1
        cluster.check_survivors()
        await self._pause(0, 3_000)
        await cluster.promote()
        await world.until(cluster.is_level, LEVEL_TIMEOUT_S)

    def _is_slave_ahead_of_flush(self) -> bool:
        master = self._cluster.master.store
        return master is None or any(
            slave.store is not None and slave.store.appended.value > master.flushed.value
            for slave in self._cluster.slaves
        )

    async def _restart_broker(self) -> None:
        if not await self._world.until(self._cluster.is_level, LEVEL_TIMEOUT_S):
            return
        node = self._dice.pick(self._cluster.brokers)
        await node.end_in_order()
        await self._pause(0, 3_000)
        node.start()

    async def _lose_name_server(self) -> None:
        await self._lose(self._dice.pick(self._cluster.name_servers))

    async def _lose_consumer(self) -> None:
        await self._lose(self._dice.pick(self._cluster.consumers))

    async def _lose_producer(self) -> None:
        await self._lose(self._dice.pick([*self._cluster.producers, *self._cluster.workers]))

    async def _lose(self, node: Node) -> None:
        how = self._dice.pick_weighted(((2, "kill"), (1, "power"), (2, "stop")))
        if how == "kill":
            node.kill()
        elif how == "power":
            node.cut_power()
        else:
            await node.end_in_order()
        await self._pause(0, 10_000)
        node.start()

    # The network.

    async def _partition(self) -> None:
        """One host, or one way, cut off; both directions or one."""
        one, other = self._two_nodes()
        is_alone = self._dice.happens(30)
        others = [node for node in self._cluster.nodes if node is not one] if is_alone else [other]
        directions = self._dice.pick(((True, True), (True, False), (False, True)))
        for peer in others:
            if directions[0]:
                self._block(one, peer)
            if directions[1]:
                self._block(peer, one)
        names = "all" if is_alone else other.name
        self._world.note(f"blocked: {one.name} and {names}, {directions}")
        await self._pause(100, self._dice.pick((1_000, 5_000, 20_000)))
        for source, target in self._blocked:
            self._world.fabric.unblock(source, target)
        self._blocked.clear()
        self._world.note("unblocked")

    def _block(self, source: Node, target: Node) -> None:
        self._blocked.append((source.host.ip, target.host.ip))
        self._world.fabric.block(source.host.ip, target.host.ip)

    def _two_nodes(self) -> tuple[Node, Node]:
        nodes = self._cluster.nodes
        brokers = self._cluster.brokers
        one: Node = self._dice.pick(brokers) if self._dice.happens(60) else self._dice.pick(nodes)
        rest = [node for node in nodes if node is not one]
        others = [node for node in brokers if node is not one]
        return one, self._dice.pick(others if others and self._dice.happens(50) else rest)

    async def _break_connections(self) -> None:
        ends = list(self._world.fabric.ends)
        for _ in range(self._dice.between(1, 5)):
            if ends:
                end = self._dice.pick(ends)
                self._world.note(
                    f"broken: a connection of {end.host.name} with {end.get_extra_info('peername')}"
                )
                self._world.fabric.break_connection(end)

    async def _stall(self) -> None:
        running = [node for node in self._cluster.nodes if node.is_running]
        if not running:
            return
        node = self._dice.pick(running)
        life = node.life
        assert life is not None
        self._world.note(f"{life} stalls")
        self._stalled.append(node)
        self._world.loop.stall(life)
        await self._pause(50, self._dice.pick((500, 3_000, 12_000)))
        self._world.loop.resume(life)
        self._stalled.clear()
        self._world.note(f"{life} goes on")
