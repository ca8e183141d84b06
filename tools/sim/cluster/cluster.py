"""A whole cluster: builds its nodes, starts them, acts as the operator, brings it to rest and checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from sim.cluster import checkers
from sim.cluster.clients import ClientNode, ConsumerNode, ProducerNode
from sim.cluster.ledger import Fate, Ledger, Place
from sim.cluster.nodes import BrokerNode, NameServerNode, Node
from sim.cluster.outside import render_alias
from sim.cluster.promises import Promises
from sim.cluster.settings import TOPIC
from sim.cluster.table_history import TableHistory
from sim.cluster.watch import Watch
from sim.cluster.wire import ReplicationWire
from sim.cluster.work.kinds import make_workers
from sim.cluster.work.node import WorkNode
from sim.cluster.world import World
from tandemmq.api.broker_admin import change_broker_config
from tandemmq.client import Admin
from tandemmq.errors import TandemError
from tandemmq.protocol.record import Record
from tandemmq.replication.core.effects import HaltReason
from tandemmq.store import MessageStore
from tandemmq.store.retention import RECORDS_READ

START_TIMEOUT_S = 60.0
SETTLE_TIMEOUT_S = 400.0
REST_TIMEOUT_S = 30.0
OPERATOR_S_MAX = 10.0
AGED_PERCENT = 40
AGED_MS = 80 * 3_600_000
"""More than fileReservedTime."""
FLUSHED_S = 61.0
"""The time within which every queue is completely flushed; until then the files of its records stay."""
CLEANED_S = 25.0
"""Two rounds of cleaning."""
DIVERGENCES = (HaltReason.SLAVE_AHEAD, HaltReason.DIVERGED)
"""The reasons for which a slave may halt: its master lost bytes that neither a flush nor a second copy had
promised.
"""


class AdminNode(ClientNode):
    """A client that creates the topic."""

    async def run(self) -> None:
        instance = await self.connect()
        admin = Admin(instance=instance)
        while True:
            try:
                await admin.ensure_topic(TOPIC, queue_count=self.world.settings.queue_count)
                break
            except TandemError:
                await self.clock.sleep(0.5)
        self.is_done = True

    async def stop_server(self) -> None:
        if self._instance is not None:
            await self._instance.close()


class OperatorNode(ClientNode):
    """An operator who changes the address that a broker advertises to outside clients."""

    address = text = ""
    is_answered = False

    async def run(self) -> None:
        instance = await self.connect()
        self.is_answered = False
        try:
            await change_broker_config(instance.remoting, self.address, "advertisedAddresses", self.text)
            self.is_answered = True
        except TandemError as error:
            self.world.note(f"{self.process}: no answer about {self.text}: {error}")
        self.is_done = True

    async def stop_server(self) -> None:
        if self._instance is not None:
            await self._instance.close()


class Cluster:
    """The nodes, by function."""

    def __init__(self, world: World) -> None:
        settings = world.settings
        self.world = world
        self.ledger = Ledger()
        self.promises = self.make_promises()
        self.watch = self.make_watch()
        self.name_servers = [NameServerNode(f"ns{n}", world) for n in range(settings.name_server_count)]
        addresses = tuple(node.address for node in self.name_servers)
        self.master, *self.slaves = self.make_brokers(addresses)
        self.watch.brokers += [self.master, *self.slaves]
        for broker in self.watch.brokers:
            broker.on_lost = self._on_broker_lost
            broker.on_open = self._on_broker_open
        shared = (world, ";".join(addresses), self.ledger, self.watch)
        self.admin = AdminNode("admin", *shared)
        self.producers = [ProducerNode(f"producer{n}", *shared) for n in range(settings.producer_count)]
        self.consumers = [
            ConsumerNode(f"consumer-{group.name}{n}", *shared, group)
            for group in settings.groups
            for n in range(group.member_count)
        ]
        self.workers = self.make_workers(";".join(addresses))
        self.has_operator = True
        """True while an operator replaces slaves that halt."""
        self._flushed: dict[BrokerNode, int] = {}
        """The end of a node's log that survives a power cut, as of its last run that was open."""
        self._emptied_at: dict[BrokerNode, float] = {}
        """The time since when a node's log is not the previous one."""
        self._tables = TableHistory()
        self._read: dict[Place, tuple[int, list[Record]]] = {}

    def make_promises(self) -> Promises:
        """Returns the promises that clients may rely on."""
        return Promises(self.world.settings)

    def make_watch(self) -> Watch:
        """Returns the watch that checks everything."""
        return Watch(self.world, self.ledger, self.promises)

    def make_brokers(self, name_servers: tuple[str, ...]) -> list[BrokerNode]:
        """Returns the brokers, the master first."""
        world, settings = self.world, self.world.settings
        brokers = [BrokerNode("master", world, broker_id=0, name_servers=name_servers)]
        for n in range(1, settings.slave_count + 1):
            beside = brokers[1] if len(brokers) > 1 and settings.is_host_shared else None
            slave = BrokerNode(f"slave{n}", world, broker_id=n, name_servers=name_servers, beside=beside)
            brokers.append(slave)
        wire = ReplicationWire(world, brokers)
        for broker in brokers:
            world.fabric.watchers[broker.ha_port] = wire.watch
        return brokers

    def make_workers(self, namesrv: str) -> list[WorkNode]:
        """Returns the applications that do the drawn kinds of work."""
        return make_workers(self.world.settings.work, self.world, namesrv, self.ledger, self.watch)

    @property
    def brokers(self) -> list[BrokerNode]:
        return [self.master, *self.slaves]

    @property
    def nodes(self) -> list[Node]:
        return [*self.name_servers, *self.brokers, *self.producers, *self.consumers, *self.workers]

    # The start.

    async def start(self) -> None:
        """Starts the servers, creates the topic, then starts the clients. Slaves may start before their
        master.
        """
        for name_server in self.name_servers:
            name_server.start()
        brokers = self.brokers if self.world.dice.happens(70) else self.brokers[::-1]
        for broker in brokers:
            broker.start()
            await self.world.clock.sleep(self.world.dice.between(0, 300) / 1000)
        self.admin.start()
        await self._expect(lambda: self.admin.is_done, START_TIMEOUT_S, "the topic is not created")
        await self._expect(self.is_caught_up, START_TIMEOUT_S, "the slaves do not get level")
        await self.admin.stop_cleanly()
        for client in (*self.producers, *self.consumers, *self.workers):
            client.start()
        self.world.trouble()

    async def _expect(self, is_met: Callable[[], bool], timeout_s: float, what: str) -> bool:
        if await self.world.until(is_met, timeout_s):
            return True
        self.world.findings.broken.append(f"{what} within {timeout_s:g} s")
        return False

    def is_caught_up(self) -> bool:
        """Returns True if all brokers run and every slave holds the master's whole current log."""
        master = self.master.store
        if master is None:
            return False
        end = master.max_log_offset
        return all(
            slave.store is not None
            and slave.store.dispatched.value >= end
            and checkers.is_following(slave, self.brokers)
            and slave.broker is not None
            and slave.broker._tables.topics.get(TOPIC) is not None
            for slave in self.slaves
        )

    def is_copied_whole(self) -> bool:
        """Returns True if every slave has the log from its beginning: an empty one may have started at the
        last file.
        """
        return all(slave.store is not None and slave.store.min_log_offset == 0 for slave in self.slaves)

    # The operator's work.

    def _on_broker_lost(self, node: BrokerNode, is_power_cut: bool) -> None:
        store = None if node.broker is None else node.broker.store
        if store is not None:
            self._flushed[node] = store.flushed.value
        if node is self.master and node not in self._emptied_at:
            now_s = self.world.loop.time()
            if is_power_cut:
                self.promises.on_power_cut(now_s, self._flushed.get(node, 0))
            elif store is not None:
                self.promises.on_killed(now_s, store.appended.value)
        self.watch.on_broker_lost(node, is_power_cut=is_power_cut)

    def _on_broker_open(self, node: BrokerNode) -> None:
        assert node.store is not None
        self._flushed[node] = node.store.flushed.value
        if node is self.master:
            self.world.master_opened_s = self.world.loop.time()
            self.watch.on_master_open(node)
            if node not in self._emptied_at:
                checkers.check_stored(self.world, self.ledger, self.promises, node)
            self.world.findings.broken += self._tables.check_promoted(
                node, self.world.moved_s, self.world.stepped_s
            )
        if not node.has_flipped_bit:  # otherwise it is being repaired; the end of the run checks again
            checkers.check_queues(self.world, self.ledger, node)

    async def tend(self) -> None:
        """Checks replicas and offsets, and replaces slaves that need an operator. Never returns."""
        while True:
            await self.world.clock.sleep(1.0)
            checkers.check_replicas(self.world, self.master, self.slaves)
            if self.master.store is not None:
                self.watch.check_committed(self.master)
                self._tables.note(self.master, self.slaves, self.world.loop.time())
            await self._replace_halted()

    async def move_aliases(self) -> None:
        """Changes advertised addresses of brokers while there is load, if the seed wants that."""
        world, outside = self.world, self.world.outside
        if outside is None or not outside.moves:
            return
        operator = OperatorNode(
            "operator", world, ";".join(node.address for node in self.name_servers), self.ledger, self.watch
        )
        while True:
            await world.clock.sleep(outside.dice.between(2_000, 10_000) / 1_000)
            if any(producer.is_ending for producer in self.producers):
                return
            node = outside.dice.pick(self.brokers)
            old = node.alias
            if not node.is_open or not node.is_running or old is None:
                continue
            operator.address = node.address_for(operator.host)
            node.alias = outside.add_alias(node.host.ip, node.port)
            operator.text = render_alias(node.alias)
            operator.start()
            await world.until(lambda: operator.is_done, OPERATOR_S_MAX)
            await operator.end()
            if operator.is_answered:
                outside.remove_alias(old)
                world.trouble()
                self.ledger.counts["advertised addresses changed"] += 1

    async def _replace_halted(self) -> None:
        for slave in self.slaves:
            if self.has_operator and slave.is_running and checkers.is_halted(slave):
                await self._replace(slave)

    def check_survivors(self) -> None:
        """Checks after the loss of the master under synchronous double write that a slave has every
        acknowledged message.
        """
        if self.world.settings.is_sync_double_write and self.is_copied_whole():
            checkers.check_promised(self.world, self.ledger, self.slaves)

    def lose_disk(self, node: BrokerNode) -> None:
        """Replaces the disk of a node by an empty one."""
        assert not node.is_running
        self.ledger.counts["disks of the master lost"] += node is self.master
        self._emptied_at[node] = self.world.loop.time()
        if node is self.master:
            self.promises.on_emptied()
        self._flushed.pop(node, None)
        self.watch.on_copy_lost(node)
        node.wipe()

    async def promote(self) -> None:
        """Promotes the slave that holds most, after the permanent loss of the master; the old master comes
        back empty.
        """
        lost = self.master
        assert not lost.is_running
        chosen = max(self.slaves, key=lambda slave: slave.store.max_log_offset if slave.store else -1)
        now_s = self.world.loop.time()
        emptied_at_s = self._emptied_at.pop(lost, None)
        if emptied_at_s is not None:
            self.promises.on_discarded(emptied_at_s, now_s)
        self.world.discards.append((now_s if emptied_at_s is None else emptied_at_s, now_s))
        self.promises.on_replaced(now_s, 0 if chosen.store is None else chosen.store.max_log_offset)
        will_be_killed = self.world.dice.happens(50)
        saves_now = not will_be_killed and not chosen.disk.is_full
        self._tables.record_promotion(lost, chosen, now_s=now_s, saves_now=saves_now)
        self.world.note(f"{chosen.name} becomes master")
        self.ledger.counts["promotions"] += 1
        if will_be_killed:
            chosen.kill()
        else:
            await chosen.stop_cleanly()
        self.slaves[self.slaves.index(chosen)] = lost
        self.master = chosen
        lost.broker_id, chosen.broker_id = chosen.broker_id, lost.broker_id
        lost.role, chosen.role = chosen.role, lost.role
        chosen.start()
        await self.world.clock.sleep(self.world.dice.between(0, 5_000) / 1_000)
        self.watch.on_copy_lost(lost)
        lost.wipe()
        lost.start()

    async def _replace(self, slave: BrokerNode) -> None:
        assert slave.broker is not None
        assert slave.broker._replica is not None
        halt = slave.broker._replica.slave.status().halt
        assert halt is not None
        self.world.note(f"{slave.process} has halted: {halt.reason.value}, {halt.detail}")
        self.ledger.counts["slaves replaced"] += 1
        may_diverge = self.ledger.counts["power cuts of the master"] and not self.promises.spares_power_cut
        if halt.reason not in DIVERGENCES or not (may_diverge or self._emptied_at):
            self.world.findings.broken.append(f"{slave.process} has halted: {halt}")
        self.watch.on_copy_lost(slave)
        slave.kill()
        slave.wipe()
        slave.start()

    # The end of the run.

    async def settle(self) -> None:
        """Waits until everything is copied and consumed: all nodes run and no more faults occur."""
        world = self.world
        for node in self.nodes:
            if not node.is_running:
                node.start()
        for producer in self.producers:
            producer.is_ending = True
        for worker in self.workers:
            worker.rest()
        await self._expect(lambda: all(p.is_done for p in self.producers), 60.0, "producers do not end")
        await self._expect(lambda: all(w.is_load_over for w in self.workers), 60.0, "work does not end")
        if not await self._expect(self.is_caught_up, SETTLE_TIMEOUT_S, "the slaves do not get level"):
            return
        await world.until(lambda: next(self._unfinished(), None) is None, SETTLE_TIMEOUT_S, 0.5)
        world.findings.skipped += islice(self._unfinished(), checkers.SHOWN_MAX)
        for group in world.settings.groups:
            await self._expect_empty(partial(checkers.behind_in, group, self.master), "progress")
        for slave in self.slaves:
            with_keys = self.master.has_all_keys and slave.has_all_keys
            checks = (checkers.check_tables_equal, *(checkers.first_unequal_key,) * with_keys)
            for check in checks:
                await self._expect_empty(
                    partial(check, self.master, slave), f"{slave.process} is not its master's"
                )

    async def _expect_empty(self, check: Callable[[], str], what: str) -> None:
        """Waits for a short time until the check reports nothing."""
        if not await self.world.until(lambda: not check(), REST_TIMEOUT_S, 0.5):
            self.world.findings.broken.append(f"{what}: {check()}")

    def _unfinished(self) -> Iterator[str]:
        store = self.master.store
        assert store is not None
        for place in sorted(store.queue_keys()):
            end = store.queue_max(*place)
            if place[0] == TOPIC and self._read.get(place, (-1, []))[0] != end:
                self._read[place] = end, checkers.read_queue(store, place)
        queues = {place: records for place, (_, records) in self._read.items()}
        for group in self.world.settings.groups:
            yield from checkers.unfinished(self.ledger, group, queues)
        for (name, number), at_s in self.ledger.owed.items():
            if self.promises.is_kept_since(at_s):
                yield f"{name} gave back {self.ledger.sent[number]} at {at_s:.3f} and never got it again"
        for worker in self.workers:
            yield from worker.missing(self.master)

    async def check(self) -> None:
        """Checks a cluster at rest."""
        if self.master.store is None:
            return
        checkers.check_replicas(self.world, self.master, self.slaves)
        queues = checkers.check_queues(self.world, self.ledger, self.master)
        checkers.check_copies(self.world, self.ledger, queues)
        checkers.check_stored(self.world, self.ledger, self.promises, self.master)
        for slave in self.slaves:
            theirs = checkers.check_queues(self.world, self.ledger, slave)
            for place, held in theirs.items():
                ours = queues.get(place, [])  # one of them may not know a queue that is empty
                if held != ours[len(ours) - len(held) :]:
                    self.world.findings.broken.append(f"{slave.process} has another queue {place}")
        for worker in self.workers:
            worker.check(self.master)

    async def age(self) -> None:
        """Sometimes: days pass, all brokers delete their old files, and one is lost meanwhile."""
        world, master = self.world, self.master
        file_bytes = world.settings.commit_log_file_bytes
        if not world.dice.happens(AGED_PERCENT):
            return
        if master.store is None:
            return
        end = master.store.max_log_offset
        kept_from = max(end - 1, 0) // file_bytes * file_bytes
        is_few = sum(sent.log_offset >= kept_from for sent in self.ledger.sent.values()) < RECORDS_READ
        safe_end = end
        lost = world.dice.pick(self.brokers) if world.dice.happens(50) else None
        if lost is not None:
            is_power_cut = world.dice.happens(50)
            self.ledger.counts["power cuts of the master"] += is_power_cut and lost is master
            lost.arm_crash(world.dice.between(0, 30), is_power_cut=is_power_cut)
            if is_power_cut and lost is master:
                # With ASYNC_FLUSH unflushed records may be lost.
                safe_end = master.store.flushed.value
        ends = self._queue_ends(master.store, safe_end)
        late_ms = max(node.clock.skew_ms for node in self.nodes) + AGED_MS
        for node in self.nodes:
            node.clock.set_skew(late_ms)
        self.ledger.counts["aged"] += 1
        world.note(f"{AGED_MS // 3_600_000} hours pass, nothing before {kept_from} is kept")
        for sent in self.ledger.sent.values():
            if sent.log_offset < kept_from and sent.fate in (Fate.ACKNOWLEDGED, Fate.STORED):
                sent.fate = Fate.EXPIRED
        if lost is not None:
            await world.until(lambda: not lost.is_running, CLEANED_S)
            lost.disarm_crash()
            if not lost.is_running:
                lost.start()

        def is_clean(begin: int) -> bool:
            stores = [node.store for node in self.brokers]
            return all(store is not None and store.min_log_offset >= begin for store in stores)

        is_in_time = await world.until(lambda: is_clean(kept_from), FLUSHED_S + CLEANED_S + START_TIMEOUT_S)
        # A file is as old as the second of three records behind it, which may have been stored after these
        # days.
        if not is_in_time and not (is_few and is_clean(kept_from - file_bytes)):
            world.findings.broken.append("old files are not deleted in time")
        for _ in self.slaves:  # each may halt on its own, after another one was replaced
            await world.until(
                lambda: self.is_caught_up() or any(map(checkers.is_halted, self.slaves)), START_TIMEOUT_S
            )
            await self._replace_halted()
        await self._expect(
            self.is_caught_up, START_TIMEOUT_S, "the slaves do not get level after old files went"
        )
        for node in self.brokers:
            checkers.check_queues(world, self.ledger, node)
        for place, queue_end in ends.items():
            now = 0 if master.store is None else master.store.queue_max(*place)
            if now < queue_end:
                world.findings.broken.append(
                    f"{master.process} {place} ends at {now}, before it was {queue_end}"
                )

    @staticmethod
    def _queue_ends(store: MessageStore, safe_end: int) -> dict[Place, int]:
        """Returns the end of each queue, without the messages that are beyond `safe_end` in the log."""
        ends = {}
        for place in store.queue_keys():
            records = checkers.read_queue(store, place) if safe_end < store.max_log_offset else []
            ends[place] = store.queue_max(*place) - sum(record.log_offset >= safe_end for record in records)
        return ends

    async def stop(self) -> None:
        """Stops all nodes cleanly; anything left is a leak."""
        for node in (
            *self.workers,
            *self.consumers,
            *self.producers,
            *self.slaves,
            self.master,
            *self.name_servers,
        ):
            await node.stop_cleanly()

    async def restart_alone(self) -> None:
        """Starts each broker once more from its disk, without the others: everything promised must still be
        there.
        """
        for node in self.brokers:
            node.start()
            await self._expect(partial(_is_open, node), START_TIMEOUT_S, f"{node.name} does not open again")
            if node.is_open and node is not self.master:
                checkers.check_queues(self.world, self.ledger, node)
            await node.stop_cleanly()


def _is_open(node: BrokerNode) -> bool:
    return node.is_open
