"""Faults of elected brokers and their controllers, in addition to the common ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sim.cluster.clients import ClientNode
from sim.cluster.faults import LEVEL_TIMEOUT_S, Fault, FaultInjector, Kind
from sim.cluster.nodes import Node
from sim.elected.cluster import ElectedCluster
from sim.elected.disks import Backups
from sim.elected.nodes import ControllerNode
from sim.elected.settings import FAULTS
from tandemmq.api.controller import hand_over
from tandemmq.errors import RequestRejected, TandemError

HAND_OVER_S_MAX = 15.0
BACKUP_PERCENT = 30
REFUSAL_S_MAX = 10.0
ADOPTED_S_MAX = 30.0


class OperatorNode(ClientNode):
    """An operator who asks a master to hand over to another broker."""

    address = ""
    target = 0

    async def run(self) -> None:
        instance = await self.connect()
        try:
            facts = await hand_over(instance.remoting, self.address, self.target)
        except RequestRejected as error:
            self.world.note(f"{self.process}: no hand-over to {self.target}: {error}")
            self._ledger.counts["hand-overs refused"] += 1
        except TandemError as error:
            # The old master closes its connections when its role changes.
            self.world.note(f"{self.process}: no answer about {self.target}: {error}")
            self._ledger.counts["hand-overs without an answer"] += 1
        else:
            self.world.note(f"{self.process}: handed over to {facts.master_id} in term {facts.master_epoch}")
            self._ledger.counts["hand-overs"] += 1
        self.is_done = True

    async def stop_server(self) -> None:
        if self._instance is not None:
            await self._instance.close()


class ElectedFaultInjector(FaultInjector):
    """Random faults for elected brokers and their controllers."""

    weights: ClassVar[Mapping[str, int]] = FAULTS
    _cluster: ElectedCluster

    def __init__(self, cluster: ElectedCluster) -> None:
        super().__init__(cluster)
        self._backups = Backups(self._dice)
        namesrv = cluster.admin._namesrv
        self._operator = OperatorNode("operator", cluster.world, namesrv, cluster.ledger, cluster.watch)

    def faults(self) -> tuple[Fault, ...]:
        common = tuple(fault for fault in super().faults() if fault.name in FAULTS)
        return (
            *common,
            Fault("hand over", Kind.COPY, self._hand_over),
            Fault("lose controller", Kind.OTHER, self._lose_controller),
            Fault("lose controller and master", Kind.COPY, self._lose_controller_and_master),
            Fault("restore controller", Kind.OTHER, self._restore_controller),
            Fault("empty controller", Kind.COPY, self._empty_controller),
            Fault("swap controllers", Kind.OTHER, self._swap_controllers),
            Fault("old record of a lone master", Kind.COPY, self._old_record_of_lone_master),
            Fault("restore broker", Kind.COPY, self._restore_broker),
            Fault("restore one of all", Kind.COPY, self._restore_one_of_all),
            Fault("foreign disk", Kind.COPY, self._foreign_disk),
        )

    async def _inject_alone(self, fault: Fault) -> None:
        for node in (*self._cluster.controllers, *self._cluster.brokers_made):
            if self._dice.happens(BACKUP_PERCENT):
                self._backups.take(node)
        await super()._inject_alone(fault)

    async def _hand_over(self) -> None:
        leader, operator = self._cluster.leader, self._operator
        others = sorted(leader.members - {0 if leader.server is None else leader.server.broker_id})
        if not leader.leads or not others:
            return
        operator.address = leader.address_for(operator.host)
        operator.target = self._dice.pick(others)
        operator.start()
        await self._world.until(lambda: operator.is_done, HAND_OVER_S_MAX)
        await operator.end()
        await self._pause(100, 3_000)
        if leader.server is not None:
            self._cluster.ledger.counts["forwarded sends"] += leader.server._forwarding.count

    async def _lose_controller(self) -> None:
        controllers = self._cluster.controllers
        leaders = [one for one in controllers if one.is_leader]
        node = leaders[0] if leaders and self._dice.happens(60) else self._dice.pick(controllers)
        await self._lose(node)

    async def _lose_controller_and_master(self) -> None:
        """Loses the master together with the controller that would replace it."""
        leaders: list[ControllerNode] = [one for one in self._cluster.controllers if one.is_leader]
        node = leaders[0] if leaders else self._cluster.controllers[0]
        node.kill() if self._dice.happens(50) else node.cut_power()
        await self._lose_broker(self._cluster.master, is_power_cut=self._dice.happens(50))
        if not node.is_running:  # another fault was quicker
            node.start()

    # Disks that are restored, lost or swapped.

    async def _restore_controller(self) -> None:
        """Restores the directory of a controller from an earlier moment."""
        node = self._dice.pick(self._cluster.controllers)
        image = self._backups.find(node)
        if image is None:
            return
        await self._end(node)
        await self._pause(0, 5_000)
        if node.is_running:
            return  # another fault was quicker
        node.insert_disk(image)
        self._world.note(f"{node.name} has an earlier copy of its disk")
        self._cluster.on_record_rolled_back()
        await self._pause(0, 2_000)
        node.start()

    async def _old_record_of_lone_master(self) -> None:
        """Restores a record that says that all were in the set, after the master has acknowledged messages
        alone. Then the others come back, or the master is lost first.
        """
        cluster, world = self._cluster, self._world
        leader, controllers = cluster.leader, cluster.controllers
        if len(controllers) > 1 or not leader.leads:
            return
        images = [controller.image.clone() for controller in controllers]
        slaves = [one for one in cluster.brokers_made if one is not leader]
        for one in slaves:
            await self._end(one)
        if not await world.until(lambda: leader.may_write and len(leader.members) == 1, LEVEL_TIMEOUT_S):
            return
        await self._pause(200, 3_000)
        for controller, image in zip(controllers, images, strict=True):
            await self._end(controller)
            controller.insert_disk(image)
            cluster.on_record_rolled_back()
            controller.start()
        await self._pause(0, self._dice.pick((1_000, 8_000)))
        if self._dice.happens(40):
            await self._end(leader)
        await self._pause(0, 5_000)
        for node in (*slaves, leader):
            if not node.is_running:
                node.start()
                await self._pause(0, 3_000)

    async def _empty_controller(self) -> None:
        node = self._dice.pick(self._cluster.controllers)
        await self._end(node)
        await self._pause(0, 3_000)
        if node.is_running:
            return
        node.wipe()
        self._cluster.on_record_rolled_back()
        node.start()
        # A group that the controllers do not know and that has no master waits for an operator.
        await self._world.until(lambda: not self._cluster.is_record_rolled_back, ADOPTED_S_MAX)

    async def _swap_controllers(self) -> None:
        """Starts a controller with the directory of another one, which it must refuse; then restores
        its own.
        """
        controllers = self._cluster.controllers
        if len(controllers) < 2:
            return
        node = self._dice.pick(controllers)
        other = self._dice.pick([one for one in controllers if one is not node])
        await self._end(node)
        own = node.image.clone()
        node.insert_disk(other.image.clone())
        node.has_foreign_disk, node.refusal = True, ""
        self._world.note(f"{node.name} has the disk of {other.name}")
        node.start()
        if not await self._world.until(lambda: node.refusal, REFUSAL_S_MAX):
            self._world.findings.broken.append(f"{node.process} runs with the disk of {other.name}")
        node.kill()
        node.has_foreign_disk = False
        node.insert_disk(own)
        node.start()

    async def _restore_broker(self) -> None:
        """Restores a broker's log and tables from an earlier moment; the others have everything."""
        node = self._dice.pick(self._cluster.brokers_made)
        image = self._backups.find(node)
        if image is None or not node.is_running:
            return
        await self._end(node)
        self._cluster.check_survivors()
        await self._pause(0, self._dice.pick((0, 1_000, 8_000)))
        self._cluster.put_back(node, image)
        node.start()

    async def _restore_one_of_all(self) -> None:
        """Stops all brokers, and starts the one with an old disk first.

        The broker starts with its own disk if the old one reaches the confirmed offset that the controllers
        know, and more was confirmed since: that is the limit of one heartbeat in docs/durability.md. It also
        starts with its own disk if it was the last to end, led, and confirmed messages that no other holds.
        """
        brokers = self._cluster.brokers_made
        node = self._dice.pick(brokers)
        image = self._backups.find(node)
        if image is None or len(brokers) < 2 or not all(one.is_running for one in brokers):
            return
        stores, own = [one.store for one in brokers if one.store is not None], node.store
        for one in brokers if self._dice.happens(50) else brokers[::-1]:
            one.kill() if self._dice.happens(70) else await one.stop_cleanly()
        confirmed = max((store.confirmed_log_offset for store in stores), default=0)
        is_sole_copy = confirmed > max(
            (store.appended.value for store in stores if store is not own), default=0
        )
        is_unreported = self._cluster.reported_offset() <= self._backups.log_end(node) < confirmed
        if not is_sole_copy and not is_unreported:
            self._cluster.put_back(node, image)
        node.start()
        await self._pause(0, self._dice.pick((1_000, 20_000)))
        for one in brokers:
            if not one.is_running:
                one.start()

    async def _foreign_disk(self) -> None:
        """Starts a broker with the disk of the broker with its id in another cluster: no broker may accept
        it. Then restores its own disk.
        """
        cluster, world = self._cluster, self._world
        node = self._dice.pick(cluster.brokers_made)
        image = None if node.server is None else cluster.find_foreign(node.server.broker_id)
        if image is None or not node.is_running:
            return
        await self._end(node)
        own = node.image.clone()
        cluster.put_back(node, image)
        world.note(f"{node.name} has a disk of another cluster")
        node.has_foreign_disk = True
        node.start()
        end_s = world.loop.time() + self._dice.between(500, 15_000) / 1000
        while world.loop.time() < end_s and not world.findings:
            await self._pause(100, 100)
            if node.copy_connection is not None:
                world.findings.broken.append(f"{node.process} copies with the disk of another cluster")
            if node.leads:
                world.findings.broken.append(f"{node.process} leads with the disk of another cluster")
        node.kill()
        node.has_foreign_disk = False
        cluster.put_back(node, own)
        node.start()

    async def _end(self, node: Node) -> None:
        node.kill() if self._dice.happens(50) else await node.stop_cleanly()
