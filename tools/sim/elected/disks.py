"""Disks other than those that the machines left: of an earlier moment, or of another cluster.

`Backups` keeps images of earlier moments. `ForeignGroup` is a second group of brokers with the same names and
ids, which runs before the load begins; its disks are later put into machines of the cluster under test.
"""

from __future__ import annotations

from sim.cluster.clients import ClientNode
from sim.cluster.ledger import Ledger
from sim.cluster.nodes import TEARS, DiskNode, NameServerNode
from sim.cluster.settings import TOPIC
from sim.cluster.watch import Watch
from sim.cluster.world import World
from sim.dice import Dice
from sim.elected.nodes import ControllerNode, ElectedNode
from sim.image import Image
from tandemmq.client import Admin, Message, Producer
from tandemmq.errors import TandemError

FOREIGN_MESSAGES = 40
FOREIGN_TIMEOUT_S = 120.0


class Backups:
    """The latest saved image of each machine."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._images: dict[DiskNode, Image] = {}
        self._ends: dict[DiskNode, int] = {}

    def take(self, node: DiskNode) -> None:
        """Saves a copy of a machine's files. A running machine is copied with its page cache or
        without it.
        """
        image = node.image.clone()
        if node.is_running and self._dice.happens(50):
            image.power_cut(self._dice, self._dice.pick_weighted(TEARS))
        self._images[node] = image
        store = node.store if isinstance(node, ElectedNode) else None
        self._ends[node] = 0 if store is None else store.max_log_offset

    def log_end(self, node: DiskNode) -> int:
        """Returns the highest log offset that the saved image of a broker may have; 0 if it was not open."""
        return self._ends.get(node, 0)

    def find(self, node: DiskNode) -> Image | None:
        """Returns a copy of the saved image; None if there is none."""
        image = self._images.get(node)
        return None if image is None else image.clone()


class ForeignWriter(ClientNode):
    """A client that fills the topic of the foreign group."""

    async def run(self) -> None:
        instance = await self.connect()
        admin = Admin(instance=instance)
        while not self.is_done:
            try:
                await admin.ensure_topic(TOPIC, queue_count=self.world.settings.queue_count)
                self.is_done = True
            except TandemError:
                await self.clock.sleep(0.5)
        producer = Producer("foreign", instance=instance)
        await producer.start()
        count = 0
        while count < FOREIGN_MESSAGES:
            size = self.world.dice.between(1, self.world.settings.body_bytes_max)
            try:
                await producer.send(Message(TOPIC, b"x" * size))
                count += 1
            except TandemError as error:
                self.world.note(f"{self.process}: {error}")
                await self.clock.sleep(0.5)
        await producer.close()
        await instance.close()
        self._instance = None
        self.has_written = True

    has_written = False

    async def stop_server(self) -> None:
        """Does nothing: `run` closes what it opened."""


class ForeignGroup:
    """A group with as many brokers as the cluster, elected by a controller of its own."""

    def __init__(self, world: World, ledger: Ledger, watch: Watch, broker_count: int) -> None:
        self._world = world
        self._name_server = NameServerNode("foreignns", world)
        self._controller = ControllerNode("foreign0", world)
        self._brokers = [
            ElectedNode(
                f"foreign-broker{number}",
                world,
                number=number,
                name_servers=(self._name_server.address,),
                controllers=(self._controller.address,),
            )
            for number in range(1, broker_count + 1)
        ]
        self._writer = ForeignWriter("foreignwriter", world, self._name_server.address, ledger, watch)
        self._images: dict[int, Image] = {}

    async def live(self) -> None:
        """Runs the group from its first start to its last stop, and keeps the disks."""
        world = self._world
        self._name_server.start()
        self._controller.start()
        for broker in self._brokers:
            broker.start()
            # One after the other, so that each gets the id that equals its number.
            await world.until(lambda one=broker: one.is_open, FOREIGN_TIMEOUT_S)  # type: ignore[misc]
        self._writer.start()
        if not await world.until(lambda: self._writer.has_written, FOREIGN_TIMEOUT_S):
            world.findings.broken.append("the foreign group takes no messages")
        for node in (self._writer, *self._brokers, self._controller, self._name_server):
            await node.stop_cleanly()
        for broker in self._brokers:
            if broker.server is not None:
                self._images[broker.server.broker_id] = broker.image

    def find(self, broker_id: int) -> Image | None:
        """Returns a copy of the disk of the broker with this id; None if there is none."""
        image = self._images.get(broker_id)
        return None if image is None else image.clone()
