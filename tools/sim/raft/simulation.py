"""One run of a Raft group: servers crash, links fail, clients send requests; and the invariants are checked.

Strategy:   a queue of events in virtual time. Each server has the real core and the real files on a simulated
            disk; its shell is simulated: one step at a time, persisting takes time, and events that arrive
            meanwhile wait. At the end all faults are removed and the group has to agree again.
Checked:    one leader per term; a vote is not changed; equal indexes and terms mean equal entries; every
            leader has all confirmed entries; all servers apply the same entries; a server that grants leases
            is not outdated; the healed group makes progress; no server is contradicted by another one. All of
            this also holds if the disk of one server is restored from an earlier moment or lost, if the
            others run until that server has caught up. Its own votes are then the only promise that it may
            forget.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from sim.dice import Dice
from sim.disk import Crash, SimDisk
from sim.image import Image, Tear
from sim.manual_clock import ManualClock
from tandemmq.consensus.core.messages import (
    SPENT,
    Apply,
    Contradicted,
    Effect,
    EntryKind,
    LogEntry,
    Members,
    Message,
    Persist,
    RaftRole,
    Restore,
    RoleChanged,
    Saved,
    SendToServer,
    decode_message,
    encode_message,
    new_group,
)
from tandemmq.consensus.core.node import ProposalRefusal, RaftNode
from tandemmq.consensus.core.options import RaftOptions
from tandemmq.consensus.shell.files import RaftFiles
from tandemmq.errors import FlushFailed, TandemError
from tandemmq.protocol.hashes import crc32

FAULTY_MS = 7_000
HEALED_MS = 6_000
"""The time within which the healed group must have agreed on something new."""
LEASE_MS = 400
"""The lease that the controllers grant; their election timeout is 500."""
SERVERS_MAX = 7
BACKUPS_MAX = 4
CATCH_UP_MS = 5_000
"""The time within which a server with an old disk must take part again; no other fault occurs meanwhile."""
DIRECTORY = Path("/controller")
OPTIONS = RaftOptions(entries_per_request_max=8, unconfirmed_entries_max=64)


class State(msgspec.Struct, frozen=True):
    """The state machine of a server: the last applied index, and a checksum over all entries so far."""

    index: int = 0
    checksum: int = 0


@dataclass(slots=True)
class SeedResult:
    """The actions and findings of one run."""

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


class Broken(Exception):
    """An invariant was violated; the run ends here."""


@dataclass(slots=True)
class _Link:
    """One direction between two servers."""

    is_cut: bool = False
    delay_ms_max: int = 3
    lost_percent: int = 0
    doubled_percent: int = 0


class Server:
    """One server, over all its processes."""

    def __init__(self, name: str, world: World, first: Saved) -> None:
        self.name = name
        self.is_replaced = False
        """True if its disk was replaced since it last ran."""
        self._backups: list[Image] = []
        self.node: RaftNode | None = None
        self.state = State()
        self.paused_until_ms = 0.0
        self.disk_ms_max = 4
        self.writes: dict[int, tuple[int, int]] = {}
        """Index -> (term, number of the write) of waiting clients."""
        self._world = world
        self._first = first
        self._image = Image()
        self._disk: SimDisk | None = None
        self._files: RaftFiles | None = None
        self._inbox: deque[Callable[[RaftNode], list[Effect]]] = deque()
        self._is_busy = False
        self._start_count = 0
        self._tick_at = 0.0
        self._rate = 0.95 + world.dice.below(101) / 1000
        self._offset_ms = world.dice.below(10_000_000)

    @property
    def is_up(self) -> bool:
        return self.node is not None

    def local_ms(self) -> int:
        return int(self._offset_ms + self._world.now_ms * self._rate)

    def start(self) -> None:
        world = self._world
        self._start_count += 1
        self._inbox.clear()
        self._is_busy = False
        self._disk = SimDisk(
            self._image, dice=world.dice, clock=world.clock, note=world.note, on_lost=lambda: None
        )
        self._files = RaftFiles(DIRECTORY, group="g", name=self.name, disk=self._disk, log_bytes=4096)
        saved = self._files.open(self._first)
        world.on_open(self, saved)
        self.state = msgspec.json.decode(saved.snapshot.data, type=State) if saved.snapshot.data else State()
        self.node = RaftNode(
            self.name,
            saved,
            options=OPTIONS,
            now_ms=self.local_ms(),
            below=world.dice.below,
            peers=frozenset(world.servers),
        )
        self.paused_until_ms = 0.0
        self._plan_tick()

    def crash(self, *, is_power_cut: bool, back_in_ms: int | None = None) -> None:
        """Ends the process now."""
        assert self._disk is not None
        self._disk.lose(Crash(0, is_power_cut, self._world.dice.pick(tuple(Tear))))
        self._die(back_in_ms)

    def crash_soon(self, *, is_power_cut: bool) -> None:
        """Arranges a crash in the middle of a write."""
        assert self._disk is not None
        dice = self._world.dice
        self._disk.crash = Crash(dice.below(3), is_power_cut, dice.pick(tuple(Tear)))

    def back_up(self) -> None:
        """Saves a copy of the current disk."""
        if self._disk is not None and not self._disk.is_lost:
            self._backups.append(self._disk.image.clone())
            del self._backups[:-BACKUPS_MAX]

    def replace_disk(self, *, is_lost: bool) -> None:
        """Ends the process; the next one starts with an earlier disk, or an empty one."""
        dice = self._world.dice
        self.crash(is_power_cut=False, back_in_ms=dice.between(1, 800))
        self._image = Image() if is_lost or not self._backups else dice.pick(self._backups).clone()
        self._backups.clear()
        self.is_replaced = True

    def cancel_planned_faults(self) -> None:
        """Cancels the faults that were planned for it."""
        self.paused_until_ms = min(self.paused_until_ms, self._world.now_ms)
        if self._disk is not None:
            self._disk.crash = None
            self._disk.faults.sync_errors = 0

    def fail_sync(self, *, drops_pages: bool) -> None:
        """Makes the next fsync fail, which ends the process."""
        assert self._disk is not None
        self._disk.faults.sync_errors = 1
        self._disk.faults.is_dropping_pages = drops_pages

    def _die(self, back_in_ms: int | None = None) -> None:
        assert self._disk is not None
        self._image = self._disk.left or self._image
        self._disk = self._files = self.node = None
        self._start_count += 1
        self.writes.clear()
        self._world.note(f"{self.name} is down")
        self._world.later(back_in_ms or self._world.dice.between(5, 1500), self._start_again)

    def _start_again(self) -> None:
        if self.node is None:
            self._world.note(f"{self.name} starts")
            self.start()

    def do(self, step: Callable[[RaftNode], list[Effect]]) -> None:
        """Runs the step, or queues it while the server is not ready."""
        if self.node is None:
            return
        self._inbox.append(step)
        self._work()

    def _work(self) -> None:
        world = self._world
        while self._inbox and not self._is_busy and self.node is not None:
            if world.now_ms < self.paused_until_ms:
                self._is_busy = True
                self._after(self.paused_until_ms - world.now_ms, self._resume)
                return
            effects = self._inbox.popleft()(self.node)
            world.after_step(self)
            if effects and isinstance(effects[0], Persist):
                persist, rest = effects[0], effects[1:]
                self._is_busy = True
                delay_ms = world.dice.below(self.disk_ms_max * 1000) / 1000
                self._after(delay_ms, partial(self._persisted, persist, rest))
                return
            self._carry_out(effects)
        self._plan_tick()

    def _after(self, delay_ms: float, fn: Callable[[], None]) -> None:
        started = self._start_count

        def run() -> None:
            if started == self._start_count:
                fn()

        self._world.later(delay_ms, run)

    def _resume(self) -> None:
        self._is_busy = False
        self._work()

    def _persisted(self, persist: Persist, rest: list[Effect]) -> None:
        assert self._files is not None
        assert self._disk is not None
        try:
            self._files.save(persist)
        except FlushFailed:
            self._world.counts["failed fsyncs"] += 1
            self._die()
            return
        if self._disk.is_lost:
            self._world.counts["crashes in writes"] += 1
            self._die()
            return
        self._world.on_persisted(self, persist)
        self._is_busy = False
        self._carry_out(rest)
        self._work()

    def _carry_out(self, effects: list[Effect]) -> None:
        world = self._world
        for effect in effects:
            if isinstance(effect, SendToServer):
                world.send(self.name, effect.to, effect.message)
            elif isinstance(effect, Apply):
                for entry in effect.entries:
                    self._apply(entry)
            elif isinstance(effect, Restore):
                data = effect.snapshot.data
                self.state = msgspec.json.decode(data, type=State) if data else State()
                world.on_restored(self)
            elif isinstance(effect, Contradicted):
                raise Broken(f"{self.name}: contradicted by {effect.by}: {effect.reason}")
            elif isinstance(effect, RoleChanged):
                world.on_role(self, effect)
        if self.node is not None and self.state.index - self.node.log.snapshot.index >= world.compact_every:
            world.counts["snapshots"] += 1
            index, data = self.state.index, msgspec.json.encode(self.state)
            self._inbox.appendleft(lambda node: node.compact(index, data))

    def _apply(self, entry: LogEntry) -> None:
        assert entry.index == self.state.index + 1, (entry.index, self.state.index)
        self.state = State(entry.index, crc32(entry.data, self.state.checksum))
        self._world.on_applied(self, entry)

    def _plan_tick(self) -> None:
        """Arms one timer for the node's current deadline."""
        if self.node is None or self._is_busy:
            return
        world = self._world
        due = world.now_ms + max(0.5, (self.node.deadline_ms - self.local_ms()) / self._rate)
        if world.now_ms < self._tick_at <= due + 0.5:
            return
        self._tick_at = due
        self._after(due - world.now_ms, self._tick)

    def _tick(self) -> None:
        self._tick_at = 0.0
        if self.node is not None:
            if self.local_ms() >= self.node.deadline_ms:
                self.do(lambda node: node.on_tick(self.local_ms()))
            else:
                self._plan_tick()


class World:
    """Virtual time, the links, the clients and the checks."""

    def __init__(self, seed: int) -> None:
        self.dice = Dice(seed)
        self.result = SeedResult(seed)
        self.counts = self.result.counts
        self.clock = ManualClock()
        self.now_ms = 0.0
        self.compact_every = self.dice.between(4, 60)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_count = 0
        self._links: dict[tuple[str, str], _Link] = {}
        self._client_ms_max = self.dice.pick((120, 120, 2500))
        self._writes_sent = 0
        self._acknowledged_index = 0  # the highest index that any client was answered
        self._confirmed: list[tuple[int, int]] = [(0, 0)]  # by index: term, checksum so far
        self._confirmed_in: list[int] = [0]  # by index: a term in which it was known to be confirmed
        self._entries: dict[tuple[int, int], tuple[int, int]] = {}
        self._votes: dict[tuple[str, int], str] = {}
        self._leaders: dict[int, str] = {}
        self._newest_term = 0
        self._catching_up: Server | None = None
        self._fault_round = 0
        self._catch_up_ends_ms = 0.0
        names = [f"n{number}" for number in range(self.dice.pick((1, 3, 3, 3, 5, 5)))]
        first = new_group(Members({name: f"{name}:9878" for name in names}))
        self.servers = {name: Server(name, self, first) for name in names}

    # Time.

    def later(self, delay_ms: float, fn: Callable[[], None]) -> None:
        self._event_count += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._event_count, fn))

    def note(self, text: str) -> None:
        self.result.trace.append(f"{self.now_ms:9.1f} {text}")

    def run(self) -> SeedResult:
        try:
            for server in self.servers.values():
                server.start()
            self._plan_faults()
            self._client()
            self._run_until(FAULTY_MS, lambda: False)
            self._heal()
            self._run_until(FAULTY_MS + 2 * HEALED_MS, self._has_agreed)
        except (Broken, AssertionError, TandemError) as error:
            self.result.findings.append(f"{self.now_ms:.1f} ms: {type(error).__name__}: {error}")
        self.counts["leaders"] = len(self._leaders)
        self.counts["confirmed entries"] = len(self._confirmed) - 1
        return self.result

    def _run_until(self, end_ms: float, is_done: Callable[[], bool]) -> None:
        while self._events and self._events[0][0] <= end_ms and not is_done():
            self.now_ms, _, fn = heapq.heappop(self._events)
            fn()
        if not is_done():
            self.now_ms = end_ms

    # Links.

    def link(self, source: str, target: str) -> _Link:
        return self._links.setdefault((source, target), _Link())

    def send(self, source: str, target: str, message: Message) -> None:
        link = self.link(source, target)
        dice = self.dice
        if target not in self.servers or link.is_cut or dice.happens(link.lost_percent):
            return
        if dice.happens(2):
            message = decode_message(encode_message(message))
        for _ in range(1 + dice.happens(link.doubled_percent)):
            delay_ms = 0.1 + dice.below(link.delay_ms_max * 1000) / 1000
            self.later(delay_ms, lambda: self._arrive(source, target, message))

    def _arrive(self, source: str, target: str, message: Message) -> None:
        server = self.servers[target]
        if not self.link(source, target).is_cut:
            server.do(lambda node: node.on_message(message, server.local_ms()))

    # Faults.

    def _plan_faults(self) -> None:
        kinds = self.dice.between(1, 4)
        chosen = [self.dice.pick(_FAULTS) for _ in range(kinds)]
        for _ in range(self.dice.between(0, 16)):
            fault = self.dice.pick(chosen)
            self.later(self.dice.between(0, FAULTY_MS), partial(self._strike, fault))
        if World._replace_disk in chosen:
            for at_ms in range(200, FAULTY_MS, 400):
                self.later(at_ms + self.dice.below(300), self._back_up_one)

    def _strike(self, fault: Callable[[World], None]) -> None:
        """Injects the fault now, or once the server with an old disk rejoins."""
        if self._catching_up is None:
            fault(self)
        elif self.now_ms < FAULTY_MS:
            self.later(100, partial(self._strike, fault))

    def _later_fault(self, delay_ms: float, fault: Callable[[], None]) -> None:
        """Schedules a fault that follows an earlier one; it is dropped if a disk is replaced before."""
        fault_round = self._fault_round

        def strike() -> None:
            if fault_round == self._fault_round:
                fault()

        self.later(delay_ms, strike)

    def _back_up_one(self) -> None:
        self.dice.pick(list(self.servers.values())).back_up()

    def _replace_disk(self) -> None:
        """Gives one server an earlier disk, or an empty one, while all others run."""
        server = self._pick_server()
        others = [one for one in self.servers.values() if one is not server]
        is_spared = not server.is_up or any(not one.is_up for one in others)
        node = server.node
        if node is None or is_spared or len(node.members.voters) < 2:
            return
        self._links.clear()
        for one in others:
            one.cancel_planned_faults()
        self._fault_round += 1
        is_lost = self.dice.happens(30)
        self.counts["lost disks" if is_lost else "restored disks"] += 1
        self.note(f"{server.name} gets {'an empty' if is_lost else 'an older'} disk")
        server.replace_disk(is_lost=is_lost)
        self._catching_up, self._catch_up_ends_ms = server, self.now_ms + CATCH_UP_MS
        self.later(20, self._track_catch_up)

    def _track_catch_up(self) -> None:
        server = self._catching_up
        assert server is not None
        if server.node is not None and server.node.is_proven:
            server.is_replaced = False
            self.note(f"{server.name} rejoins")
            self._catching_up = None
        elif self.now_ms > self._catch_up_ends_ms:
            raise Broken(f"{server.name} does not take part again with its older disk")
        else:
            self.later(20, self._track_catch_up)

    def _pick_server(self) -> Server:
        """Returns any server, more often the leader."""
        servers = list(self.servers.values())
        leaders = [server for server in servers if server.node and server.node.role is RaftRole.LEADER]
        return self.dice.pick(leaders if leaders and self.dice.happens(50) else servers)

    def _crash_one(self) -> None:
        server = self._pick_server()
        is_power_cut = self.dice.happens(60)
        if server.is_up and self.dice.happens(50):
            self.note(f"{server.name} will crash in a write")
            server.crash_soon(is_power_cut=is_power_cut)
        elif server.is_up:
            self.counts["crashes"] += 1
            server.crash(is_power_cut=is_power_cut)

    def _crash_all(self) -> None:
        for server in self.servers.values():
            if server.is_up:
                self.counts["crashes"] += 1
                server.crash(is_power_cut=True)

    def _fail_sync(self) -> None:
        server = self._pick_server()
        if server.is_up:
            server.fail_sync(drops_pages=self.dice.happens(50))

    def _slow_disk(self) -> None:
        self._pick_server().disk_ms_max = self.dice.pick((4, 60, 600))

    def _pause(self) -> None:
        server = self._pick_server()
        pause_ms = self.dice.between(50, 2500)
        self.note(f"{server.name} pauses for {pause_ms} ms")
        server.paused_until_ms = self.now_ms + pause_ms

    def _split(self) -> None:
        side = {name for name in self.servers if self.dice.happens(50)}
        one_way = self.dice.happens(30)
        self.note(f"cut off: {sorted(side)}{', one way' if one_way else ''}")
        for source in self.servers:
            for target in self.servers:
                if source in side and target not in side:
                    self.link(source, target).is_cut = True
                    self.link(target, source).is_cut = not one_way
        self.later(self.dice.between(50, 4000), self._join)

    def _join(self) -> None:
        self.note("all links work")
        for link in self._links.values():
            link.is_cut = False

    def _depose(self) -> None:
        """Cuts off the leader with writes that no other server gets; it returns when its successor goes."""
        leader = self._leader()
        if leader is None:
            return
        old = self.servers[leader.name]
        self.note(f"cut off: {old.name} and its writes")
        for name in self.servers.keys() - {old.name}:
            self.link(old.name, name).is_cut = self.link(name, old.name).is_cut = True
        for _ in range(self.dice.between(1, 12)):
            self._write(old)
        self._later_fault(self.dice.between(600, 2500), self._undo_depose)

    def _undo_depose(self) -> None:
        self._join()
        leader = self._leader()
        if leader is not None and self.dice.happens(80):
            self.counts["crashes"] += 1
            self.servers[leader.name].crash(is_power_cut=self.dice.happens(50))

    def _bad_links(self) -> None:
        lost, doubled = self.dice.pick((0, 10, 40)), self.dice.pick((0, 30))
        delay = self.dice.pick((3, 40, 400))
        self.note(f"links drop {lost} %, duplicate {doubled} %, up to {delay} ms")
        for source in self.servers:
            for target in self.servers:
                link = self.link(source, target)
                link.lost_percent, link.doubled_percent, link.delay_ms_max = lost, doubled, delay

    def _blind_hand_over(self) -> None:
        """Hands over in such a way that the leader does not learn of its successor, and continues to
        answer.
        """
        leader = self._leader()
        if leader is not None:
            old = self.servers[leader.name]
            self._hand_over(old)
            self._later_fault(self.dice.between(1, 12), partial(self._cut_off, old, to_it_only=True))
            for at_ms in range(20, 700, 40):
                self.later(at_ms, partial(self._write, old))

    def _cut_off(self, server: Server, *, to_it_only: bool) -> None:
        self.note(f"cut off: {server.name}{', inbound only' if to_it_only else ''}")
        for name in self.servers.keys() - {server.name}:
            self.link(name, server.name).is_cut = True
            self.link(server.name, name).is_cut = not to_it_only
        self.later(self.dice.between(600, 2500), self._join)

    def _isolate_voters(self) -> None:
        """Cuts one server off from the leader, and restarts others that are cut off, too."""
        leader = self._leader()
        if leader is None:
            return
        names = sorted(self.servers.keys() - {leader.name})
        if names:
            self.link(leader.name, names[0]).is_cut = True
            for name in names[1:]:
                self._later_fault(1000, partial(self._isolate_voter, leader.name, name))
            self.later(2500, self._join)

    def _isolate_voter(self, leader: str, name: str) -> None:
        if self.servers[name].is_up:
            self.link(leader, name).is_cut = True
            self.counts["crashes"] += 1
            self.servers[name].crash(is_power_cut=False, back_in_ms=1)

    def _hand_over(self, server: Server | None = None) -> None:
        server, target = server or self._pick_server(), self.dice.pick(list(self.servers))

        def step(node: RaftNode) -> list[Effect]:
            refusal, effects = node.hand_over(target, server.local_ms())
            if refusal is None:
                self.counts["hand-overs"] += 1
                self.note(f"{server.name} hands over to {target}")
            return effects

        server.do(step)

    def _change_members(self) -> None:
        server = self._pick_server()
        node = server.node
        if node is None:
            return
        members, now_ms = node.members, server.local_ms
        if members.learners and self.dice.happens(70):
            name = self.dice.pick(sorted(members.learners))
            self._change(server, f"promote {name}", lambda node: node.promote(name, now_ms()))
        elif len(self.servers) < SERVERS_MAX and self.dice.happens(50):
            name = f"n{len(self.servers)}"
            self.servers[name] = Server(name, self, new_group(Members()))
            self.servers[name].start()
            self._change(server, f"add {name}", lambda node: node.add_learner(name, f"{name}:9878", now_ms()))
        elif self.dice.happens(50):
            name = self.dice.pick(sorted(self.servers))
            self._change(server, f"add {name}", lambda node: node.add_learner(name, f"{name}:9878", now_ms()))
        elif len(members.voters) > 1:
            name = self.dice.pick(sorted(members.voters))
            self._change(server, f"remove {name}", lambda node: node.remove(name, now_ms()))

    def _change(
        self,
        server: Server,
        text: str,
        change: Callable[[RaftNode], tuple[ProposalRefusal | None, list[Effect]]],
    ) -> None:
        def step(node: RaftNode) -> list[Effect]:
            refusal, effects = change(node)
            if refusal is None:
                self.counts["changes of members"] += 1
                self.note(f"{server.name}: {text}")
            return effects

        server.do(step)

    def _heal(self) -> None:
        self.note("healed")
        for server in self.servers.values():
            server.paused_until_ms = min(server.paused_until_ms, self.now_ms)
            server.disk_ms_max = 4
        self._links.clear()
        self._client_ms_max = 60
        self._client()
        self._goal = len(self._confirmed)
        self._healed_ms = self.now_ms

    def _has_agreed(self) -> bool:
        """Returns True if, after healing, a client got an answer and every voter has applied it."""
        if self.now_ms > self._healed_ms + HEALED_MS:
            raise Broken("the healed group makes no progress")
        if self._acknowledged_index < self._goal:
            return False
        leader = self._leader()
        return leader is not None and all(
            self.servers[name].state.index >= self._goal for name in leader.members.voters
        )

    def _leader(self) -> RaftNode | None:
        nodes = [server.node for server in self.servers.values() if server.node is not None]
        leaders = [node for node in nodes if node.role is RaftRole.LEADER]
        return max(leaders, key=lambda node: node.term, default=None)

    # Clients.

    def _client(self) -> None:
        """Sends requests to a server, which need not be the leader."""
        self._write(self._pick_server())
        self.later(self.dice.between(1, self._client_ms_max), self._client)

    def _write(self, server: Server) -> None:
        self._writes_sent += 1
        number = self._writes_sent

        def step(node: RaftNode) -> list[Effect]:
            index, effects = node.propose(b"%d" % number, server.local_ms())
            if isinstance(index, int):
                server.writes[index] = node.term, number
            return effects

        server.do(step)

    # Invariants.

    def after_step(self, server: Server) -> None:
        """Checks that a server which grants leases is not outdated."""
        node = server.node
        assert node is not None
        if (
            node.role is RaftRole.LEADER
            and node.term < self._newest_term
            and node.grants(server.local_ms(), LEASE_MS)
        ):
            raise Broken(f"{server.name} grants leases in term {node.term}, term {self._newest_term} leads")

    def on_open(self, server: Server, saved: Saved) -> None:
        if server.is_replaced or saved.vote.voted_for == SPENT:
            return
        for (name, term), voted_for in self._votes.items():
            if name != server.name or saved.vote.term > term:
                continue
            if (saved.vote.term, saved.vote.voted_for) != (term, voted_for):
                raise Broken(f"{name} forgot that it voted for {voted_for} in term {term}: {saved.vote}")

    def on_persisted(self, server: Server, persist: Persist) -> None:
        if persist.vote is not None and persist.vote.voted_for not in (None, SPENT):
            key = server.name, persist.vote.term
            if self._votes.setdefault(key, persist.vote.voted_for) != persist.vote.voted_for:
                raise Broken(f"{server.name} voted twice in term {persist.vote.term}")
        assert server.node is not None
        for entry in persist.entries:
            previous = server.node.log.term_at(entry.index - 1)
            place = entry.index, entry.term
            content = previous or 0, crc32(entry.data, entry.kind)
            if self._entries.setdefault(place, content) != content:
                raise Broken(f"entry {place} is not the same everywhere")

    def on_role(self, server: Server, change: RoleChanged) -> None:
        self.note(f"{server.name}: {change.role.value} in term {change.term}: {change.reason}")
        if change.role is not RaftRole.LEADER:
            server.writes.clear()
            return
        if self._leaders.setdefault(change.term, server.name) != server.name:
            raise Broken(f"two leaders in term {change.term}: {self._leaders[change.term]}, {server.name}")
        self._newest_term = max(self._newest_term, change.term)
        for other in self.servers.values():
            if other.node is not None:
                self.after_step(other)
        node = server.node
        assert node is not None
        for index in range(node.log.snapshot.index, len(self._confirmed)):
            # A delayed server may still win an older term: it only needs the entries confirmed before that
            # term.
            is_owed = self._confirmed_in[index] < change.term
            if is_owed and node.log.term_at(index) != self._confirmed[index][0]:
                raise Broken(f"{server.name} leads term {change.term} without the confirmed entry {index}")

    def on_applied(self, server: Server, entry: LogEntry) -> None:
        found = entry.term, server.state.checksum
        if entry.index == len(self._confirmed):
            self._confirmed.append(found)
            assert server.node is not None
            self._confirmed_in.append(server.node.term)
        elif self._confirmed[entry.index] != found:
            raise Broken(
                f"{server.name} applies {found} at {entry.index}, not {self._confirmed[entry.index]}"
            )
        waiting = server.writes.pop(entry.index, None)
        if waiting is not None and waiting[0] == entry.term:
            if entry.kind is not EntryKind.COMMAND or entry.data != b"%d" % waiting[1]:
                raise Broken(f"write {waiting[1]} was answered for another one")
            self.counts["writes"] += 1
            self._acknowledged_index = max(self._acknowledged_index, entry.index)

    def on_restored(self, server: Server) -> None:
        state = server.state
        if state.index >= len(self._confirmed) or self._confirmed[state.index][1] != state.checksum:
            raise Broken(f"{server.name} took a snapshot of another history: {state}")


_FAULTS: tuple[Callable[[World], None], ...] = (
    World._crash_one,
    World._crash_one,
    World._crash_all,
    World._fail_sync,
    World._slow_disk,
    World._pause,
    World._split,
    World._split,
    World._depose,
    World._depose,
    World._bad_links,
    World._blind_hand_over,
    World._isolate_voters,
    World._hand_over,
    World._change_members,
    World._change_members,
    World._replace_disk,
    World._replace_disk,
)


def run_seed(seed: int) -> SeedResult:
    """Runs one seed; the same seed yields the same run."""
    return World(seed).run()
