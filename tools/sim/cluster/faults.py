"""The faults: brokers are lost, disks fail, routes are blocked, processes stall, clocks step.

Strategy: a fault has a kind. Two may occur at once if their kinds differ, so that never more than one copy of
          the log is at risk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from sim.cluster.checkers import is_halted
from sim.cluster.cluster import Cluster
from sim.cluster.network import Way
from sim.cluster.nodes import STOP_TIMEOUT_S, BrokerNode, Node
from sim.cluster.settings import FAULTS
from sim.image import Tear
from tandemmq.protocol.record import decode_record
from tandemmq.protocol.record_layout import HEAD_V4_BYTES

LEVEL_TIMEOUT_S = 30.0
WORST_MOMENT_S = 3.0
"""The time for which a fault waits for the most critical moment."""
DISK_STALLS_MS = (500, 2_000, 6_000)
STEPS_MS = (1_000, 60_000, 600_000, 3 * 3_600_000)


class Kind(Enum):
    """The subject of a fault."""

    COPY = "a copy of the log"
    DISK = "a disk that refuses"
    WAY = "a way between hosts"
    PROCESS = "a process that is late"
    CLOCK = "a wall clock"
    OTHER = "a process that holds no log"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that may occur."""

    name: str
    kind: Kind
    inject: Callable[[], Awaitable[None]]


class FaultInjector:
    """Random faults for as long as `run` runs; afterwards lasting ones are reverted."""

    weights: ClassVar[Mapping[str, int]] = FAULTS

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._dice = cluster.world.dice
        self._stalled: list[Node] = []
        self._blocked: list[Way] = []
        self._lead_ms: int | None = None
        """The furthest that a clock was ever set ahead; None before one was set."""
        faults = self.faults()
        weights = self.weights
        assert {fault.name for fault in faults} == set(weights)
        wanted = cluster.world.settings.fault_names or tuple(name for name in weights if weights[name])
        self._faults = [(weights[fault.name] or 1, fault) for fault in faults if fault.name in wanted]

    def faults(self) -> tuple[Fault, ...]:
        """Returns all possible faults."""
        return (
            Fault("lose master", Kind.COPY, self._lose_master),
            Fault("lose slave", Kind.COPY, self._lose_slave),
            Fault("lose master for good", Kind.COPY, self._lose_master_for_good),
            Fault("empty master", Kind.COPY, self._empty_master),
            Fault("restart broker", Kind.COPY, self._restart_broker),
            Fault("fail a sync", Kind.COPY, self._fail_sync),
            Fault("rot on a slave", Kind.COPY, self._flip_bit_on_slave),
            Fault("stall a disk", Kind.DISK, self._stall_disk),
            Fault("fail writes", Kind.DISK, self._fail_writes),
            Fault("fill a disk", Kind.DISK, self._fill_disk),
            Fault("lose name server", Kind.OTHER, self._lose_name_server),
            Fault("lose consumer", Kind.OTHER, self._lose_consumer),
            Fault("lose producer", Kind.OTHER, self._lose_producer),
            Fault("partition", Kind.WAY, self._partition),
            Fault("cut a port", Kind.WAY, self._cut_port),
            Fault("break connections", Kind.WAY, self._break_connections),
            Fault("stall", Kind.PROCESS, self._stall),
            Fault("step a clock", Kind.CLOCK, self._step_clock),
        )

    async def run(self, seconds: float) -> None:
        """Injects faults, with pauses in which the next one may still meet the effects of the last."""
        end = self._world.loop.time() + seconds
        while self._world.loop.time() < end and not self._world.findings:
            await self._pause(200, 5_000)
            fault = self._dice.pick_weighted(self._faults)
            others = [(weight, other) for weight, other in self._faults if other.kind is not fault.kind]
            both = [fault]
            if others and self._dice.happens(self._world.settings.pair_percent):
                both.append(self._dice.pick_weighted(others))
            await self._inject(both)
        self._heal()

    async def _inject(self, faults: list[Fault]) -> None:
        """Injects one fault, or two that overlap. A copy is put at risk only while the others are
        complete.
        """
        if any(fault.kind is Kind.COPY for fault in faults) and not await self._is_levelled():
            return
        self._world.trouble()
        self._world.note(f"fault: {' and '.join(fault.name for fault in faults)}")
        async with asyncio.TaskGroup() as tasks:
            for index, fault in enumerate(faults):
                if index:
                    await self._pause(0, 3_000)
                tasks.create_task(self._inject_alone(fault))
        self._world.trouble()

    async def _inject_alone(self, fault: Fault) -> None:
        self._cluster.ledger.counts[f"fault: {fault.name}"] += 1
        await fault.inject()
        self._world.trouble()

    async def _is_levelled(self) -> bool:
        return await self._world.until(self._cluster.is_caught_up, LEVEL_TIMEOUT_S)

    def _heal(self) -> None:
        """Opens all routes, resumes all processes, and sets no clock behind the furthest that one has
        been.
        """
        self._unblock(self._blocked[:])
        for node in self._stalled:
            if node.process is not None:
                self._world.loop.resume(node.process)
        self._stalled.clear()
        if self._lead_ms is not None:
            for node in self._cluster.nodes:
                node.clock.set_skew(max(node.clock.skew_ms, self._lead_ms))
        self._world.trouble()

    async def _pause(self, low_ms: int, high_ms: int) -> None:
        await self._world.clock.sleep(self._dice.between(low_ms, high_ms) / 1000)

    # Copies of the log.

    async def _lose_master(self) -> None:
        """Loses the master by a kill or a power cut; the same machine comes back."""
        await self._lose_broker(self._cluster.master, is_power_cut=self._dice.happens(50))

    async def _lose_slave(self) -> None:
        await self._lose_broker(self._dice.pick(self._cluster.slaves), is_power_cut=self._dice.happens(50))

    async def _lose_broker(self, node: BrokerNode, *, is_power_cut: bool) -> None:
        world, cluster = self._world, self._cluster
        if not node.is_running:
            return
        if node is cluster.master and self._dice.happens(60):
            await self._await_worst_moment()
            node.cut_power(Tear.NOTHING if self._dice.happens(50) else None) if is_power_cut else node.kill()
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

    async def _lose_again(self, node: BrokerNode, *, is_power_cut: bool) -> None:
        """Loses the broker again while it starts."""
        node.arm_crash(self._dice.between(0, 30), is_power_cut=is_power_cut)
        await self._pause(0, 1_000)
        node.disarm_crash()
        if not node.is_running:
            await self._pause(0, 2_000)
            node.start()

    async def _lose_master_for_good(self) -> None:
        """Loses the master's host for good; a slave replaces it."""
        cluster = self._cluster
        if not cluster.is_copied_whole() or not cluster.master.is_running:
            return
        if self._dice.happens(50):
            # The slaves have since copied its tables twice: their earlier content must be there.
            await self._pause(3_000, 6_000)
        await self._await_worst_moment()
        cluster.master.cut_power()
        cluster.ledger.counts["power cuts of the master"] += 1
        cluster.check_survivors()
        await self._pause(0, 3_000)
        await cluster.promote()

    async def _empty_master(self) -> None:
        """Loses the master's disk; it starts with an empty one before an operator notices and promotes a
        slave.

        Only where no promise depends on a single copy: what the empty master accepts is discarded.
        """
        world, cluster = self._world, self._cluster
        master = cluster.master
        if not world.settings.is_sync_double_write or not cluster.is_copied_whole() or not master.is_running:
            return
        cluster.has_operator = False
        master.kill() if self._dice.happens(50) else master.cut_power()
        cluster.check_survivors()
        cluster.lose_disk(master)
        await self._pause(0, 3_000)
        master.start()
        await self._pause(0, 15_000)
        master.kill()
        await cluster.promote()
        for slave in cluster.slaves:
            if slave.is_running and is_halted(slave):
                # It refused the empty master, as it must; the new master is a different one.
                slave.kill()
                slave.start()
        cluster.has_operator = True

    async def _await_worst_moment(self) -> None:
        """Waits for a moment at which one more or less copy matters: a slave holds bytes that the master has
        not flushed, or the master has acknowledged a message that it has not flushed, or that a slave does
        not hold.
        """
        moments = (self._is_slave_ahead_of_flush, self._is_promise_unflushed, self._is_promise_not_everywhere)
        await self._world.until(self._dice.pick(moments), WORST_MOMENT_S, 0.001)

    def _is_slave_ahead_of_flush(self) -> bool:
        master = self._cluster.master.store
        return master is None or any(
            slave.store is not None and slave.store.appended.value > master.flushed.value
            for slave in self._cluster.slaves
        )

    def _is_promise_unflushed(self) -> bool:
        master = self._cluster.master.store
        return master is None or self._newest_promise() >= master.flushed.value

    def _is_promise_not_everywhere(self) -> bool:
        return any(
            slave.store is None or self._newest_promise() >= slave.store.appended.value
            for slave in self._cluster.slaves
        )

    def _newest_promise(self) -> int:
        """Returns the start of the message that was acknowledged last."""
        acknowledged = self._cluster.ledger.acknowledged
        return acknowledged[-1].log_offset if acknowledged else -1

    async def _restart_broker(self) -> None:
        node = self._dice.pick(self._cluster.brokers)
        await node.stop_cleanly()
        await self._pause(0, 3_000)
        node.start()

    # Disks.

    async def _fail_sync(self) -> None:
        """Makes the next fsyncs fail, possibly dropping pages of the file; the broker ends itself."""
        node = self._dice.pick(self._cluster.brokers)
        if not node.is_running:
            return
        faults = node.disk.faults
        faults.sync_errors, faults.is_dropping_pages = self._dice.between(1, 3), self._dice.happens(50)
        self._world.note(f"{node.process} has {faults.sync_errors} fsyncs that fail")
        await self._world.until(lambda: not node.is_running, 15.0)
        faults.sync_errors = 0
        if node.is_ending:
            await self._world.until(lambda: not node.is_running, STOP_TIMEOUT_S)
        await self._start_again(node)

    async def _stall_disk(self) -> None:
        """Makes fsyncs of a broker take seconds; its writes meanwhile are in its page cache."""
        node = self._dice.pick(self._cluster.brokers)
        if not node.is_running:
            return
        stall_ms = self._dice.between(100, self._dice.pick(DISK_STALLS_MS))
        node.disk.faults.stalled_until_s = node.clock.monotonic() + stall_ms / 1000
        self._world.note(f"the disk of {node.process} stalls for {stall_ms} ms")
        await self._pause(stall_ms, stall_ms)

    async def _start_again(self, node: Node) -> None:
        """Starts the node if it is down."""
        await self._pause(0, 3_000)
        if not node.is_running:
            node.start()

    async def _flip_bit_on_slave(self) -> None:
        """Flips one bit of a body on a slave's disk while it is down.

        The other parts of a record are not covered by a checksum: there the slave would find that its log
        differs.
        """
        node = self._dice.pick(self._cluster.slaves)
        store = node.store
        if store is None:
            return
        places = [place for place in sorted(store.queue_keys()) if store.queue_max(*place)]
        if not places:
            return
        place = self._dice.pick(places)
        entries = store.queue_entries(*place, store.queue_min(*place), 1_000)
        flushed = [at for at, size, _ in entries if at + size <= store.flushed.value]
        if not flushed:
            return
        record = decode_record(store.log.valid_view(at := self._dice.pick(flushed), 1 << 20))
        if not record.body:
            return
        self._cluster.watch.on_copy_lost(node)
        node.kill() if self._dice.happens(50) else await node.stop_cleanly()
        node.flip_bit(at + HEAD_V4_BYTES + self._dice.below(len(record.body)), self._dice.below(8))
        await self._start_again(node)

    async def _fail_writes(self) -> None:
        """Makes some writes fail after a part of their bytes."""
        node = self._dice.pick(self._cluster.brokers)
        if not node.is_running:
            return
        faults = node.disk.faults
        faults.write_error_percent = self._dice.pick((2, 20, 100))
        self._world.note(f"{node.process}: {faults.write_error_percent} % of its writes fail")
        await self._pause(500, 8_000)
        faults.write_error_percent = 0
        self._world.note(f"the disk of {node.name} accepts writes again")
        await self._start_if_failed(node)

    async def _fill_disk(self) -> None:
        """Fills the disk: no file can be created."""
        node = self._dice.pick(self._cluster.brokers)
        if not node.is_running:
            return
        disk = node.disk
        disk.is_full = True
        self._world.note(f"the disk of {node.process} is full")
        await self._pause(500, 8_000)
        disk.is_full = False
        self._world.note(f"the disk of {node.name} has room again")
        await self._start_if_failed(node)

    async def _start_if_failed(self, node: BrokerNode) -> None:
        """Starts a broker, as an operator would, that could not start on its failing disk."""
        if node.has_given_up:
            await self._world.until(lambda: not node.is_ending, STOP_TIMEOUT_S)
            await self._start_again(node)

    # Processes without a log.

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
            await node.stop_cleanly()
        await self._pause(0, 10_000)
        if not node.is_running:  # another fault may have lost and restarted it, too
            node.start()

    # The network.

    async def _partition(self) -> None:
        """Cuts off one host, or one route; in both directions or one."""
        one, other = self._two_nodes()
        is_alone = self._dice.happens(30)
        others = [node for node in self._cluster.nodes if node.host is not one.host] if is_alone else [other]
        await self._block_for_a_while(one, others, "all" if is_alone else other.name, None)

    async def _cut_port(self) -> None:
        """Blocks a broker's replication but not its clients, or the other way round."""
        one = self._dice.pick(self._cluster.brokers)
        is_replication = self._dice.happens(60)
        port = one.ha_port if is_replication else one.port
        candidates = self._cluster.brokers if is_replication else self._cluster.nodes
        others = [node for node in candidates if node.host is not one.host]
        if not others:
            return
        if self._dice.happens(50):
            others = [self._dice.pick(others)]
        names = ", ".join(node.name for node in others)
        await self._block_for_a_while(one, others, f"{names}, port {port}", port)

    async def _block_for_a_while(self, one: Node, others: list[Node], names: str, port: int | None) -> None:
        directions = self._dice.pick(((True, True), (True, False), (False, True)))
        ways: list[Way] = []
        for peer in others:
            if directions[0]:
                ways.append((one.host.ip, peer.host.ip, port))
            if directions[1]:
                ways.append((peer.host.ip, one.host.ip, port))
        for way in ways:
            self._world.fabric.block(*way)
        self._blocked += ways
        self._world.note(f"blocked: {one.name} and {names}, {directions}")
        await self._pause(100, self._dice.pick((1_000, 5_000, 20_000)))
        self._unblock(ways)
        self._world.note("unblocked")

    def _unblock(self, ways: list[Way]) -> None:
        for way in ways:
            self._world.fabric.unblock(*way)
            self._blocked.remove(way)

    def _two_nodes(self) -> tuple[Node, Node]:
        nodes = self._cluster.nodes
        brokers = self._cluster.brokers
        one: Node = self._dice.pick(brokers) if self._dice.happens(60) else self._dice.pick(nodes)
        rest = [node for node in nodes if node.host is not one.host]
        others = [node for node in brokers if node.host is not one.host]
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
        process = node.process
        assert process is not None
        self._world.note(f"{process} stalls")
        self._stalled.append(node)
        self._world.loop.stall(process)
        await self._pause(50, self._dice.pick((500, 3_000, 12_000)))
        self._world.loop.resume(process)
        self._stalled.clear()
        self._world.note(f"{process} resumes")

    async def _step_clock(self) -> None:
        """Steps the wall clock of a host, ahead or back, and sometimes corrects it later."""
        node = self._dice.pick(self._cluster.brokers if self._dice.happens(60) else self._cluster.nodes)
        clock = node.clock
        step_ms = self._dice.between(1, self._dice.pick(STEPS_MS)) * self._dice.pick((1, -1))
        before_ms = clock.skew_ms
        self._world.is_clock_set = True
        clock.set_skew(before_ms + step_ms)
        self._lead_ms = max(self._lead_ms or 0, clock.skew_ms)
        self._world.note(f"the clock of {node.name} steps by {step_ms} ms")
        if self._dice.happens(50):
            await self._pause(100, 10_000)
            clock.set_skew(before_ms)
            self._world.note(f"the clock of {node.name} is corrected")
