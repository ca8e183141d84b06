"""Pops against a model: any sequence of sends, pops, acks, changes, waits, restarts, kills and power cuts.

With SYNC_FLUSH, whatever happens in between: an acknowledged message is not delivered again; one held under
an answered handle is not delivered to others before its time; all others are delivered eventually (spec
semantics 14).
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from sim.memory import ManualClock, MemoryDisk, MemoryNetwork, NoFault
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.durable import DutyTasks
from tandemmq.broker.options import AccessOptions, BrokerOptions
from tandemmq.broker.parts import Parts
from tandemmq.broker.tables import Tables
from tandemmq.errors import Busy, ServiceNotAvailable
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, decode_records
from tandemmq.protocol.requests.consume import AckRequest, ChangeInvisibleRequest, PopRequest, PopResponse
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import SeededRandom
from tandemmq.runtime.ports import Machine
from tandemmq.runtime.tasks import TaskScope
from tandemmq.store import FlushMode, MessageStore, StoreOptions

ROOT = Path("/broker")
QUEUES = 3
INVISIBLE_MS = (1_000, 5_000, 30_000)


class FakeChannel:
    """A channel that collects answers."""

    peer = "test"
    is_closed = False

    def __init__(self) -> None:
        self.on_close: list[Any] = []
        self.answers: dict[int, tuple[Command, bytes]] = {}

    def send(self, reply: Command) -> None:
        self.answers[reply.opaque] = (reply, bytes(reply.body))

    def send_frame(self, *parts: Any) -> None:
        self.frame = b"".join(map(bytes, parts))


@dataclass
class Held:
    """A message that a client has popped."""

    name: str
    topic: str
    queue_id: int
    offset: int
    handle: str
    until_ms: int


@dataclass
class World:
    """A broker's parts on a disk that can lose them, and what the clients know. `attributes` of the topic."""

    seed: int
    attributes: dict[str, str] = field(default_factory=dict)
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    clock: ManualClock = field(default_factory=ManualClock)
    sent: list[str] = field(default_factory=list)
    acked: set[str] = field(default_factory=set)
    held: list[Held] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = Random(self.seed)

    async def start(self) -> None:
        options = BrokerOptions(cluster_name="C", broker_name="b", pop_retry_percent=50)
        store_options = StoreOptions(
            root=ROOT,
            flush_mode=FlushMode.SYNC_FLUSH,
            commit_log_file_bytes=256 * 1024,
            consume_queue_file_bytes=20_000,
            key_index_enable=False,
        )
        self.store = await MessageStore.open(store_options, disk=self.disk, clock=self.clock)
        self.tables = Tables(options, ROOT / "config", disk=self.disk, clock=self.clock)
        self.tables.load(delay_level_count=18)
        self.tables.topics.add_missing(
            [
                TopicConfig(
                    name="T",
                    read_queue_count=QUEUES,
                    write_queue_count=QUEUES,
                    permission=6,
                    attributes=self.attributes,
                )
            ],
            self.clock.now_ms(),
        )
        self.scope = TaskScope("test")
        self.scope.start("saver", self.tables.saver.run())
        network = MemoryNetwork(self.clock)
        core = BrokerCore.build(
            options,
            store=self.store,
            tables=self.tables,
            own_address=lambda: "127.0.0.1:10911",
            may_commit=lambda: True,
            client=RemotingClient(network=network, clock=self.clock),
            machine=Machine(network, self.disk, self.clock, SeededRandom(self.seed)),
        )
        alone: Any = SimpleNamespace(
            is_master_known=True, is_copied=None, forward_deletion=None, wait_registered=None
        )
        self.parts = Parts(core, AccessOptions(), alone, alone, dict)
        self.duties = DutyTasks(self.store, lambda: [self.parts.pop.revive])
        self.duties.start()
        await self.clock.pass_time(0)

    async def stop(self) -> None:
        """Stops the parts as `Broker.stop` does."""
        await self.duties.stop()
        await self.tables.saver.close()
        await self.scope.close()
        await self.store.close()
        self.duties.settle()
        await self.tables.saver.close()
        self._new_clock()

    async def kill(self, *, is_power_cut: bool) -> None:
        await self.duties._scope.close()
        await self.scope.close()
        await self.store._core.tasks.close()
        self.disk._locks.clear()
        if is_power_cut:
            self.disk.power_cut()
        self._new_clock()

    def _new_clock(self) -> None:
        self.clock = ManualClock(now_ms=self.clock.now_ms())

    async def send(self, count: int) -> None:
        done: list[object] = []
        for _ in range(count):
            name = f"m{len(self.sent)}"
            self.sent.append(name)
            record = NewRecord(
                topic="T",
                queue_id=self.dice.randrange(QUEUES),
                body=name.encode(),
                properties=encode_properties({"UNIQ_KEY": name}),
                born_at_ms=0,
                born_host=bytes(8),
                unique_key=name,
            )
            self.store.appender.append([record], done.append)
        await self.clock.pass_time(0.05)
        assert len(done) == count

    async def pop(self, count: int, invisible_ms: int) -> list[Held]:
        now_ms = self.clock.now_ms()
        header = PopRequest(
            consumer_group="G",
            topic="T",
            queue_id=-1,
            count_max=count,
            invisible_ms=invisible_ms,
            born_at_ms=now_ms,
        )
        channel = FakeChannel()
        answer = self.parts.pop.pops.handle_pop(channel, Command.request(RequestCode.POP_MESSAGE, header))  # type: ignore[arg-type]
        if answer is not None:
            assert answer.code == ResponseCode.POLLING_TIMEOUT
            return []
        await self.clock.pass_time(0.05)
        return self._take(channel.frame, now_ms)

    async def pop_refused(self, *, settles: bool) -> int:
        """Returns the code of a pop that cannot be stored; `settles`: a revive round runs before its
        write.
        """
        header = PopRequest(
            consumer_group="G",
            topic="T",
            queue_id=-1,
            count_max=32,
            invisible_ms=5_000,
            born_at_ms=self.clock.now_ms(),
        )
        channel = FakeChannel()
        command = Command.request(RequestCode.POP_MESSAGE, header)
        assert self.parts.pop.pops.handle_pop(channel, command) is None  # type: ignore[arg-type]
        if settles:
            self.parts.pop.pops.lease_log.settle()
        assert not any(self.tables.offsets.committed("G", "T", queue_id) for queue_id in range(QUEUES))
        await self.clock.pass_time(0.5)
        [(reply, _)] = channel.answers.values()
        return reply.code

    def _take(self, frame: bytes, now_ms: int) -> list[Held]:
        from tandemmq.protocol.frame import FrameDecoder

        decoder = FrameDecoder()
        [command] = list(decoder.feed(frame))
        response = command.decode(PopResponse)
        starts = dict(item.rsplit(" ", 1) for item in (response.start_offset_info or "").split(";"))
        found = []
        for record in decode_records(command.body):
            handle = record.properties.get("POP_CK") or (
                f"{starts[f'0 {record.queue_id}']} {response.pop_time_ms} {response.invisible_ms}"
                f" {response.revive_queue_id} 0 b {record.queue_id} {record.queue_offset}"
            )
            topic = "%RETRY%G_T" if handle.split(" ")[4] == "1" else "T"
            until_ms = response.pop_time_ms + response.invisible_ms
            name = record.body.decode()
            found.append(Held(name, topic, record.queue_id, record.queue_offset, handle, until_ms))
        for new in found:
            assert new.name not in self.acked, f"{new.name} came again after its ack"
            others = [held for held in self.held if held.name == new.name and held.until_ms > now_ms]
            assert not others, f"{new.name} is shown to two: {others} {new} at {now_ms}"
        self.held = [held for held in self.held if held.until_ms > now_ms] + found
        return found

    async def ack(self, held: Held) -> bool:
        """Returns True if the ack counted: the handle was valid."""
        header = AckRequest(
            consumer_group="G",
            topic=held.topic,
            queue_id=held.queue_id,
            extra_info=held.handle,
            offset=held.offset,
        )
        before = self.parts.pop.acks.acked_count
        channel = FakeChannel()
        command = Command.request(RequestCode.ACK_MESSAGE, header)
        answer = self.parts.pop.acks.handle_ack(channel, command)  # type: ignore[arg-type]
        self.held.remove(held)
        if answer is not None:
            return False
        await self.clock.pass_time(0.05)
        [(reply, _)] = channel.answers.values()
        assert reply.code == ResponseCode.SUCCESS
        is_good = self.parts.pop.acks.acked_count > before
        if is_good:
            self.acked.add(held.name)
        return is_good

    async def change(self, held: Held, invisible_ms: int) -> None:
        header = ChangeInvisibleRequest(
            consumer_group="G",
            topic=held.topic,
            queue_id=held.queue_id,
            extra_info=held.handle,
            offset=held.offset,
            invisible_ms=invisible_ms,
        )
        channel = FakeChannel()
        command = Command.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        self.held.remove(held)
        self.parts.pop.acks.handle_change(channel, command)  # type: ignore[arg-type]
        await self.clock.pass_time(0.05)
        [(reply, _)] = channel.answers.values()
        assert reply.code == ResponseCode.SUCCESS
        response = reply.header
        parts = held.handle.split(" ")
        parts[:4] = [
            str(held.offset),
            str(response.pop_time_ms),  # type: ignore[union-attr]  # its header
            str(response.invisible_ms),  # type: ignore[union-attr]
            str(response.revive_queue_id),  # type: ignore[union-attr]
        ]
        until_ms = response.pop_time_ms + invisible_ms  # type: ignore[union-attr]
        self.held.append(Held(held.name, held.topic, held.queue_id, held.offset, " ".join(parts), until_ms))

    def good(self) -> list[Held]:
        """Returns the handles whose time is not nearly over."""
        return [held for held in self.held if held.until_ms > self.clock.now_ms() + 100]

    async def step(self) -> None:
        dice = self.dice
        match dice.choices(range(8), (20, 25, 25, 8, 12, 3, 4, 3))[0]:
            case 0:
                await self.send(dice.randrange(1, 12))
            case 1:
                await self.pop(dice.choice((1, 3, 32)), dice.choice(INVISIBLE_MS))
            case 2:
                for held in dice.sample(self.good(), min(len(self.good()), dice.randrange(1, 9))):
                    if held.until_ms > self.clock.now_ms() + 100:
                        assert await self.ack(held), f"the ack of {held} was not counted"
            case 3:
                if self.good():
                    await self.change(dice.choice(self.good()), dice.choice((0, *INVISIBLE_MS)))
            case 4:
                await self.clock.pass_time(dice.choice((0.1, 1.5, 8.0)))
            case 5:
                await self.stop()
                await self.start()
            case 6:
                await self.kill(is_power_cut=False)
                await self.start()
            case 7:
                await self.kill(is_power_cut=True)
                await self.start()

    async def drain(self) -> None:
        """Checks that every message without an ack is delivered eventually."""
        for _ in range(40):
            await self.clock.pass_time(max(INVISIBLE_MS) / 1000 + 2)
            while got := await self.pop(32, 60_000):
                for held in got:
                    assert await self.ack(held)
            if self.acked == set(self.sent):
                return
        raise AssertionError(f"lost: {sorted(set(self.sent) - self.acked)}")


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_lost_and_nothing_acknowledged_comes_again(seed: int) -> None:
    """Odd seeds have a topic of priorities, whose retries are in several queues."""

    async def run() -> None:
        world = World(seed, attributes={"message.type": "PRIORITY"} if seed % 2 else {})
        await world.start()
        for _ in range(60):
            await world.step()
        await world.drain()
        assert len(world.parts.pop.leases) == 0
        await world.clock.pass_time(3)
        await world.stop()

    asyncio.run(run())


async def put_record(world: World, record: NewRecord) -> None:
    world.store.appender.append([record], lambda _status: None)
    await world.clock.pass_time(0.05)


def javas_record(world: World, tag: str, body: dict[str, object]) -> NewRecord:
    """Returns the record that RocketMQ's timer writes to the revive topic."""
    return NewRecord(
        topic="rmq_sys_REVIVE_LOG_C",
        queue_id=1,
        body=json.dumps(body).encode(),
        properties=f"TAGS\x01{tag}\x02TIMER_OUT_MS\x01{world.clock.now_ms()}\x02".encode(),
        born_at_ms=0,
        born_host=bytes(8),
    )


@pytest.mark.parametrize("is_restarted", [False, True])
def test_check_points_of_a_directory_from_rocketmq_are_revived_unless_their_acks_come(
    is_restarted: bool,
) -> None:
    async def run() -> None:
        world = World(0)
        await world.start()
        world.tables.groups.find_or_create("G", world.clock.now_ms())
        await world.send(6)
        queue_id, count = max(
            ((q, world.store.queue_max("T", q)) for q in range(QUEUES)), key=lambda row: row[1]
        )
        assert count >= 2
        world.tables.offsets.commit("G", "T", queue_id, count, 0)  # RocketMQ had popped all of it
        pop_time_ms = world.clock.now_ms()
        named = {"t": "T", "c": "G", "q": queue_id, "so": 0, "pt": pop_time_ms, "bn": "b"}
        point = {**named, "bm": 0, "it": 1_000, "n": count, "ro": 0, "d": list(range(count)), "rp": "0"}
        await put_record(world, javas_record(world, "ck", point))
        await put_record(world, javas_record(world, "ack", {**named, "ao": 0}))
        if is_restarted:
            await world.clock.pass_time(0.5)
            await world.stop()
            await world.start()
        assert len(world.parts.pop.leases) == 1
        await world.clock.pass_time(6)
        assert world.store.queue_max("%RETRY%G_T", 0) == count - 1
        assert len(world.parts.pop.leases) == 0
        await world.stop()

    asyncio.run(run())


def test_a_long_lease_does_not_keep_the_start_long() -> None:
    """Its check point is written again; the committed offset of the revive topic advances."""

    async def run() -> None:
        world = World(1)
        await world.start()
        log = world.parts.pop.pops.lease_log
        log._roll_after_count = 4
        await world.send(1)
        [kept] = await world.pop(1, 3_600_000)
        for _ in range(80):
            await world.send(1)
            for held in await world.pop(1, 30_000):
                await world.ack(held)
        await world.clock.pass_time(5)
        revive = log.records.topic
        behind = [
            world.store.queue_max(revive, q)
            - (world.tables.offsets.committed("CID_RMQ_SYS_REVIVE_GROUP", revive, q) or 0)
            for q in range(8)
        ]
        assert max(behind) <= 6, behind
        await world.kill(is_power_cut=True)
        await world.start()
        assert len(world.parts.pop.leases) == 1
        assert await world.ack(kept)
        assert len(world.parts.pop.leases) == 0
        await world.stop()

    asyncio.run(run())


@pytest.mark.parametrize("settles", [False, True])
def test_a_refused_check_point_gives_the_messages_back(settles: bool) -> None:
    """The write fails and the messages were not delivered, so the next pop returns them."""

    async def run() -> None:
        world = World(2)
        await world.start()
        await world.send(3)
        lease_log = world.parts.pop.pops.lease_log
        before = {q: lease_log.position(("T", "G", q)) for q in range(QUEUES)}
        assert set(before.values()) == {None}
        world.disk.fault = _FullDisk()
        assert await world.pop_refused(settles=settles) == ResponseCode.SYSTEM_ERROR
        world.disk.fault = NoFault()
        got: list[Held] = []
        while not got:
            try:
                got = await world.pop(32, 5_000)
            except ServiceNotAvailable:  # the store has not tried the disk again
                await world.clock.pass_time(2)
        assert len(got) == 3
        await world.stop()

    asyncio.run(run())


def test_a_lease_waits_while_its_retry_topic_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        world = World(3)
        await world.start()
        await world.send(2)
        assert len(await world.pop(32, 1_000)) == 2

        def refuse(*_: object) -> None:
            raise Busy("too many topics")

        creator = world.parts.core.creator
        with monkeypatch.context() as patch:
            patch.setattr(creator, "create_pop_retry_topic", refuse)
            await world.clock.pass_time(5)
            assert world.store.queue_max("%RETRY%G_T", 0) == 0
        await world.clock.pass_time(15)
        assert world.store.queue_max("%RETRY%G_T", 0) == 2
        await world.stop()

    asyncio.run(run())


class _FullDisk(NoFault):
    def on_write(self, path: Path, offset: int, size: int) -> int:
        return 0 if path.parent.name == "commitlog" else size
