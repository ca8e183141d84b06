"""A cluster of elected brokers: no operator intervenes, and no acknowledged message may be lost.

Owns:       the current leader as seen from outside: the broker that became master in the newest term.
Invariants: no two brokers accept messages at the same time; the confirmed part of the log never changes, so a
            message that was acknowledged or delivered is never replaced by another one; a new master has
            every acknowledged message, without an operator's help; logs and lists of terms are equal in the
            end.
Source:     spec controller 11.
"""

from __future__ import annotations

import math

from sim.cluster import checkers
from sim.cluster.cluster import START_TIMEOUT_S, Cluster
from sim.cluster.ledger import Sent
from sim.cluster.loop import SimProcess
from sim.cluster.nodes import BrokerNode, Node
from sim.cluster.promises import Loss, Promises
from sim.cluster.settings import BROKER_NAME, TOPIC
from sim.cluster.watch import Watch, holds
from sim.elected.disks import ForeignGroup
from sim.elected.nodes import ControllerNode, ElectedNode
from sim.elected.settings import FAULTS
from sim.image import Image
from tandemmq.replication.core.progress import SlaveState
from tandemmq.store import MessageStore

SWITCH_S_STEPS = (1, 3, 10)
"""The limits, in seconds, by which failovers are counted: the time from the loss of a master to the next
acknowledged message.
"""


class ElectedPromises(Promises):
    """A new master has every acknowledged message. One loss is permitted: with ASYNC_FLUSH, a power cut of a
    master that was alone in its set.
    """

    def on_switched(self, now_s: float) -> None:
        """Handles a change of master: unacknowledged messages may have been cut."""
        self._losses.append(Loss(0.0, now_s, 0, spares_promised=True))

    def on_old_record(self, now_s: float) -> None:
        """Handles the loss of a master that was alone in its set, while the controllers have an older
        record.
        """
        self._losses.append(Loss(0.0, now_s, 0, spares_promised=False))

    def on_power_cut_alone(self, now_s: float, flushed: int) -> None:
        """Handles a power cut of a master that was alone in its set: the page cache is lost."""
        self._losses.append(Loss(0.0, now_s, flushed, spares_promised=self._settings.is_sync_flush))


class ElectedWatch(Watch):
    """Checks after each delivery which broker leads."""

    cluster: ElectedCluster

    def __init__(self, cluster: ElectedCluster) -> None:
        super().__init__(cluster.world, cluster.ledger, cluster.promises)
        self.cluster = cluster
        self._with_topic: set[SimProcess] = set()

    def _check_copies(self, sent: Sent) -> None:
        """Checks that every member of the set has the message, if no fault occurred since it was sent."""
        holders = [node.name for node in self.brokers if holds(node, sent)]
        is_quiet = self._world.is_quiet_since(sent.sent_at) and not self.cluster.is_record_rolled_back
        wanted = len(self.cluster.leader.members) if is_quiet and self.cluster.leader.leads else 1
        if len(holders) < wanted:
            self._world.findings.lost.append(
                f"{sent} was acknowledged with {wanted} copies wanted and {holders} holding one"
            )
        self.cluster.on_acknowledged()

    def _check_topics(self, node: BrokerNode) -> None:
        """Checks that a topic whose creation was answered stays. A topic that a lost master created by
        itself, such as that of a group's retries, may have reached this slave and not the next master, which
        creates it again.
        """
        assert node.process is not None
        assert node.broker is not None
        has_ours = node.broker._tables.topics.get(TOPIC) is not None
        if node.process in self._with_topic and not has_ours:
            self._world.findings.broken.append(f"{node.process} has no topic {TOPIC} any more")
        if has_ours:
            self._with_topic.add(node.process)

    def _after_delivery(self, host_name: str) -> None:
        self.cluster.check_roles()
        self.cluster.check_handshakes(host_name)
        for node in self.brokers:
            if node.name == host_name and node.store is not None:
                self._check_topics(node)
                if node.broker_id == 0:
                    self._record_steps_back(node)


class ElectedCluster(Cluster):
    """A cluster whose master is the last broker that became leader."""

    watch: ElectedWatch
    promises: ElectedPromises
    controllers: list[ControllerNode]
    brokers_made: list[ElectedNode]

    def make_promises(self) -> Promises:
        return ElectedPromises(self.world.settings)

    def make_watch(self) -> Watch:
        return ElectedWatch(self)

    def make_brokers(self, name_servers: tuple[str, ...]) -> list[BrokerNode]:
        world, settings = self.world, self.world.settings
        self.controllers = [ControllerNode(f"n{n}", world) for n in range(settings.controller_count)]
        for controller in self.controllers:
            controller.peers = tuple(self.controllers)
        addresses = tuple(controller.address for controller in self.controllers)
        self.brokers_made = [
            ElectedNode(f"broker{n}", world, number=n, name_servers=name_servers, controllers=addresses)
            for n in range(1, settings.slave_count + 2)
        ]
        for node in self.brokers_made:
            node.on_stopped = self._on_broker_stopped
        self._term = 0
        self._lost_at_s = math.nan
        self._was_alone = False
        self.is_record_rolled_back = False
        """True if the controllers may have reported an earlier set to the master."""
        self._may_part = False
        """True if two masters may have acknowledged messages alone: an operator discards the log of one."""
        self._handshakes: dict[ElectedNode, object] = {}
        wanted = settings.fault_names
        self._foreign: ForeignGroup | None = None
        if "foreign disk" in wanted or (not wanted and FAULTS["foreign disk"]):
            self._foreign = ForeignGroup(world, self.ledger, self.watch, settings.slave_count + 1)
        return list(self.brokers_made)

    @property
    def leader(self) -> ElectedNode:
        """The broker that became master last."""
        assert isinstance(self.master, ElectedNode)
        return self.master

    @property
    def nodes(self) -> list[Node]:
        return [*self.controllers, *super().nodes]

    async def start(self) -> None:
        if self._foreign is not None:
            await self._foreign.live()
        for controller in self.controllers:
            controller.start()
        await super().start()

    def is_caught_up(self) -> bool:
        """Returns True if a master writes and all brokers are in its set and hold its whole current log."""
        leader = self.leader
        store = leader.store
        if store is None or not leader.may_write or len(leader.members) != len(self.brokers):
            return False
        end = store.max_log_offset
        return all(
            node.store is not None
            and node.store.dispatched.value >= end
            and node.epoch == leader.epoch
            and node.broker is not None
            and node.broker._tables.topics.get(TOPIC) is not None
            for node in self.brokers_made
        )

    # The leader.

    def check_roles(self) -> None:
        """Checks the roles of all brokers; called after each delivery of the network."""
        writers = [node for node in self.brokers_made if node.may_write]
        if len(writers) > 1:
            names = " and ".join(f"{node.process} in term {node.epoch}" for node in writers)
            self.world.findings.broken.append(f"two masters: {names} take messages")
        for node in writers:
            if node.epoch > self._term and node.store is not None:
                self._check_new_master(node, node.store)

    def _check_new_master(self, node: ElectedNode, store: MessageStore) -> None:
        self._term = node.epoch
        now_s = self.world.loop.time()
        self.world.note(f"{node.process} leads in term {node.epoch}, log ends at {store.max_log_offset}")
        self.ledger.counts["terms"] += 1
        self.world.trouble()
        self.promises.on_switched(now_s)
        self.master = node
        self.slaves = [one for one in self.brokers_made if one is not node]
        for one in self.brokers_made:
            one.broker_id = 0 if one is node else one.number
        self.world.master_opened_s = now_s
        if self._was_alone:
            # Only then may offsets be reassigned that a client has seen.
            self._was_alone = False
            self.watch.on_master_open(node)
        checkers.check_stored(self.world, self.ledger, self.promises, node)

    def on_acknowledged(self) -> None:
        """Handles an accepted message: a lost master has been replaced."""
        lost_at_s, self._lost_at_s = self._lost_at_s, math.nan
        if math.isnan(lost_at_s):
            return
        took_s = self.world.loop.time() - lost_at_s
        step = next((step for step in SWITCH_S_STEPS if took_s <= step), None)
        self.ledger.counts["replaced later" if step is None else f"replaced within {step} s"] += 1

    # The disks.

    def find_foreign(self, broker_id: int) -> Image | None:
        """Returns the disk of the broker with this id in the other cluster."""
        return None if self._foreign is None else self._foreign.find(broker_id)

    def reported_offset(self) -> int:
        """Returns the confirmed offset that the controllers would hold an election to; -1 if none leads."""
        for controller in self.controllers:
            if controller.is_leader and controller.server is not None:
                group = controller.server.groups.get(BROKER_NAME)
                return -1 if group is None else controller.server.history.floor_of(group)[1]
        return -1

    def put_back(self, node: ElectedNode, image: Image) -> None:
        """Replaces the disk of a broker."""
        self.watch.on_copy_lost(node)
        self._flushed.pop(node, None)
        self.world.has_old_copies = True
        node.insert_disk(image)
        self.world.note(f"{node.name} has another disk")

    def on_record_rolled_back(self) -> None:
        """Handles a controller's disk that was rolled back or emptied."""
        self.is_record_rolled_back = True

    def _check_record(self) -> None:
        """Checks whether the controllers' record matches the brokers again."""
        for controller in self.controllers:
            if not controller.is_leader or controller.server is None:
                continue
            group = controller.server.groups.get(BROKER_NAME)
            if group is not None and (group.master_epoch, frozenset(group.sync_set)) == (
                self.leader.epoch,
                self.leader.members,
            ):
                self.is_record_rolled_back = False

    # Losses.

    def _on_broker_lost(self, node: BrokerNode, is_power_cut: bool) -> None:
        store = None if node.broker is None else node.broker.store
        if store is not None:
            self._flushed[node] = store.flushed.value
        if node is self.master:
            now_s = self.world.loop.time()
            self._lost_at_s = now_s
            self._check_record()
            self._check_lone_master(len(self.leader.members))
            if is_power_cut and len(self.leader.members) <= 1 and not self.world.settings.is_sync_flush:
                self.ledger.counts["power cuts of only the master"] += 1
                self.promises.on_power_cut_alone(now_s, self._flushed.get(node, 0))
                self._was_alone = True
        self.watch.on_broker_lost(node, is_power_cut=is_power_cut)

    def _on_broker_stopped(self, node: BrokerNode, member_count: int) -> None:
        if node is self.master:
            self._check_lone_master(member_count)

    def _check_lone_master(self, member_count: int) -> None:
        """Handles the end of the master. If it was alone and the controllers have an older record, a member
        of the older set may replace it: a limit of docs/durability.md.
        """
        if self.is_record_rolled_back and member_count <= 1:
            self.ledger.counts["losses of only the master with an outdated record"] += 1
            self.promises.on_old_record(self.world.loop.time())
            self._was_alone = self._may_part = True

    def _on_broker_open(self, node: BrokerNode) -> None:
        # Its queues are checked at the end: before it follows a master it shows only confirmed records.
        assert node.store is not None
        self._flushed[node] = node.store.flushed.value

    def check_survivors(self) -> None:
        """Checks that another broker has every acknowledged message, unless the master was alone."""
        if len(self.leader.members) > 1:
            checkers.check_promised(self.world, self.ledger, self.slaves)

    async def tend(self) -> None:
        while True:
            await self.world.clock.sleep(1.0)
            self._check_logs()
            self._check_record()
            for node in self.brokers_made:
                if node.halt_reason and self._may_part:
                    self.ledger.counts["slaves replaced"] += 1
                    self.watch.on_copy_lost(node)
                    node.kill()
                    node.wipe()
                    node.start()
                elif node.halt_reason and not node.has_foreign_disk:
                    self.world.findings.broken.append(f"{node.process} has halted: {node.halt_reason}")
            if self.leader.may_write:
                self.watch.check_committed(self.leader)

    def check_handshakes(self, host_name: str) -> None:
        """Checks that a slave that starts to copy, or enters the set, has its master's bytes at that
        moment.
        """
        leader = self.leader
        if leader.store is None or not leader.leads:
            return
        for node in self.brokers_made:
            if node is leader or host_name not in (node.name, leader.name) or node.server is None:
                continue
            connection = node.copy_connection
            if connection is None or node.store is None:
                continue
            met = (leader.process, node.process, connection, node.server.broker_id in leader.members)
            if self._handshakes.get(node) == met:
                continue
            self._handshakes[node] = met
            self.ledger.counts["histories compared"] += 1
            self._compare(leader.store, node)

    def _compare(self, store: MessageStore, node: ElectedNode) -> None:
        assert node.store is not None
        begin = max(store.min_log_offset, node.store.min_log_offset)
        end = min(store.max_log_offset, node.store.max_log_offset)
        difference = checkers.first_difference(store, node.store, begin, end)
        if difference is not None:
            self.world.findings.broken.append(
                f"{node.process} differs from {self.leader.process} at {difference}"
            )

    def _check_logs(self) -> None:
        """Checks that every copying slave has the bytes of its master."""
        store = self.leader.store
        if store is None or not self.leader.leads:
            return
        for node in self.brokers_made:
            if node.server is None or node.store is None or node.epoch != self.leader.epoch:
                continue
            status = node.server.replication.slave_status()
            if status is None or status.state is not SlaveState.TRANSFERRING:
                continue
            self._compare(store, node)

    # The end of the run.

    async def check(self) -> None:
        self._check_logs()
        epochs = {node.name: node.server.replication.epochs for node in self.brokers_made if node.server}
        if len({str(one.entries) for one in epochs.values()}) > 1:
            self.world.findings.broken.append(f"the lists of terms differ: {epochs}")
        await super().check()
        self._check_histories()

    def _check_histories(self) -> None:
        """Checks that each queue was one list for all clients, across masters. Skipped if its master was
        alone and lost power: it may have shown records that no other broker has.
        """
        alone = ("power cuts of only the master", "losses of only the master with an outdated record")
        if any(self.ledger.counts[name] for name in alone) or self.master.store is None:
            return
        for place in sorted(self.master.store.queue_keys()):
            if place[0] != TOPIC:
                continue
            records = checkers.read_queue(self.master.store, place)
            held = [sent for record in records if (sent := self.ledger.find(record.content)) is not None]
            why = checkers.check_history(self.ledger, place, self.watch.reads_of(place), held)
            self.ledger.counts["histories checked"] += 1
            if why:
                self.world.findings.order.append(f"{place} is not linearizable: {why}")

    async def age(self) -> None:
        """Does nothing: retention belongs to the store, and the other simulation covers it."""

    async def stop(self) -> None:
        clients: list[Node] = [*self.workers, *self.consumers, *self.producers]
        for node in (*clients, *self.slaves, self.master, *self.controllers, *self.name_servers):
            await node.stop_cleanly()

    async def restart_alone(self) -> None:
        """Starts everything once more, controllers first: the group must find a master that has
        everything.
        """
        self._term = 0
        for node in (*self.controllers, *self.brokers_made):
            node.start()
        await self._expect(self.is_caught_up, START_TIMEOUT_S, "the group has no whole set again")
        checkers.check_stored(self.world, self.ledger, self.promises, self.master)
        for node in (*self.slaves, self.master, *self.controllers):
            await node.stop_cleanly()
