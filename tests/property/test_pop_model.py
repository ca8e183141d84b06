"""Pops against a model: any sequence of sends, pops, acks, changes, renewals, waits, restarts, kills and
power cuts; for groups that pop in order also resets.

With SYNC_FLUSH, whatever happens in between: an acknowledged message is not delivered again; one held under
an answered handle is not delivered to others before its time; all others are delivered eventually (spec
semantics 14). A group that pops in order gets each queue from its first message without an ack on, or from
its last reset on.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lone_parts import make_lone_parts
from sim.memory import ManualClock, MemoryDisk, NoFault
from tandemmq.broker.durable import DutyTasks
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.tables import Tables
from tandemmq.errors import Busy, RequestRejected, ServiceNotAvailable
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, decode_records
from tandemmq.protocol.requests.consume import AckRequest, ChangeInvisibleRequest, PopRequest, PopResponse
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
    revive_queue_count: int = 8
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    clock: ManualClock = field(default_factory=ManualClock)
    sent: list[str] = field(default_factory=list)
    acked: set[str] = field(default_factory=set)
    held: list[Held] = field(default_factory=list)
    replaced: list[Held] = field(default_factory=list)  # handles of leases that the messages have left

    def __post_init__(self) -> None:
        self.dice = Random(self.seed)

    async def start(self) -> None:
        options = BrokerOptions(
            cluster_name="C",
            broker_name="b",
            pop_retry_percent=50,
            revive_queue_count=self.revive_queue_count,
        )
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
        self.parts = make_lone_parts(
            options, self.store, self.tables, clock=self.clock, disk=self.disk, seed=self.seed
        )
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
        return self._take(await self.receive(count, invisible_ms), now_ms)

    async def receive(
        self, count: int, invisible_ms: int, *, group: str = "G", queue_id: int = -1, is_ordered: bool = False
    ) -> list[Held]:
        header = PopRequest(
            consumer_group=group,
            topic="T",
            queue_id=queue_id,
            count_max=count,
            invisible_ms=invisible_ms,
            born_at_ms=self.clock.now_ms(),
            is_ordered=is_ordered,
        )
        channel = FakeChannel()
        answer = self.parts.pop.pops.handle_pop(channel, Command.request(RequestCode.POP_MESSAGE, header))  # type: ignore[arg-type]
        if answer is not None:
            assert answer.code == ResponseCode.POLLING_TIMEOUT
            return []
        await self.clock.pass_time(0.05)
        return _held_of(channel.frame)

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

    def _take(self, found: list[Held], now_ms: int) -> list[Held]:
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

    async def ack_strictly(self, held: Held, group: str = "G") -> bool:
        """Returns False if the broker refuses the ack because the message is no longer held."""
        header = AckRequest(
            consumer_group=group,
            topic=held.topic,
            queue_id=held.queue_id,
            extra_info=held.handle,
            offset=held.offset,
            is_strict=True,
        )
        command = Command.request(RequestCode.ACK_MESSAGE, header)
        return await self._is_held(self.parts.pop.acks.handle_ack, command)

    async def renew(
        self, held: Held, invisible_ms: int, group: str = "G", *, is_renewal: bool = True
    ) -> bool:
        """Renews the lease, or with `is_renewal` False changes the time of one message popped in order.
        Returns False if the broker refuses it because the message is no longer held.
        """
        header = ChangeInvisibleRequest(
            consumer_group=group,
            topic=held.topic,
            queue_id=held.queue_id,
            extra_info=held.handle,
            offset=held.offset,
            invisible_ms=invisible_ms,
            is_strict=True,
            is_renewal=is_renewal,
        )
        command = Command.request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        return await self._is_held(self.parts.pop.acks.handle_change, command)

    async def _is_held(self, handle: Any, command: Command) -> bool:
        channel = FakeChannel()
        try:
            answer = handle(channel, command)
        except RequestRejected as error:
            if error.code != ResponseCode.NO_MESSAGE:
                raise
            return False
        await self.clock.pass_time(0.05)
        [reply] = [reply for reply, _ in channel.answers.values()] if answer is None else [answer]
        assert reply.code == ResponseCode.SUCCESS, reply
        return True

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
        self.replaced.append(held)
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
        match dice.choices(range(10), (20, 25, 25, 8, 12, 3, 4, 3, 6, 4))[0]:
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
            case 8:
                if self.good():
                    named, invisible_ms = dice.choice(self.good()), dice.choice(INVISIBLE_MS)
                    until_ms = self.clock.now_ms() + invisible_ms
                    assert await self.renew(named, invisible_ms), named
                    for held in self.held:
                        if _lease_of(held) == _lease_of(named):
                            held.until_ms = until_ms
            case 9:
                for held in self.replaced[-3:]:
                    assert not await self.ack_strictly(held), f"{held} has left its lease"

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


def _held_of(frame: bytes) -> list[Held]:
    """Returns the messages in the answer to a pop."""
    [command] = list(FrameDecoder().feed(frame))
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
    return found


def _lease_of(held: Held) -> tuple[str, int, list[str]]:
    return held.topic, held.queue_id, held.handle.split(" ")[:2]


@dataclass
class Turn:
    """The last ordered pop of a queue: when its messages are visible again if no ack or change names them."""

    messages: dict[int, Held]
    until_ms: int
    acked: set[int] = field(default_factory=set)
    chosen: dict[int, int] = field(default_factory=dict)  # offset -> the time that a change set

    def free_at_ms(self) -> int:
        open_ = self.messages.keys() - self.acked
        return max((self.chosen.get(offset, self.until_ms) for offset in open_), default=0)


@dataclass
class OrderedModel:
    """A group that pops in order. Of each queue: the first offset without a stored ack, the last pop, and
    older handles.

    Acks beyond an open message are kept in a table that is saved every 10 s, so a kill may lose them
    (decision 027).
    """

    world: World
    begins: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(QUEUES), 0))
    beyond: dict[int, set[int]] = field(default_factory=lambda: {queue: set() for queue in range(QUEUES)})
    turns: dict[int, Turn] = field(default_factory=dict)
    old: list[Held] = field(default_factory=list)
    restored: list[Held] = field(default_factory=list)  # a start may have read their pops from the file

    async def pop(self, queue_id: int, count: int, invisible_ms: int) -> Turn | None:
        now_ms = self.world.clock.now_ms()
        found = await self.world.receive(count, invisible_ms, group="O", queue_id=queue_id, is_ordered=True)
        if not found:
            return None
        before = self.turns.get(queue_id)
        assert before is None or before.free_at_ms() <= now_ms, f"{found[0]} is held until {before}"
        begin = found[0].offset
        assert begin >= self.begins[queue_id], f"{found[0]} came again, of {self.begins[queue_id]}"
        skipped = set(range(self.begins[queue_id], begin)) - self.beyond[queue_id]
        assert not skipped, f"{skipped} of queue {queue_id} were skipped"
        self.begins[queue_id] = begin
        self._leave(queue_id)
        self.turns[queue_id] = turn = Turn({held.offset: held for held in found}, now_ms + invisible_ms)
        return turn

    async def ack(self, held: Held) -> None:
        queue_id, offset = held.queue_id, held.offset
        turn = self.turns.get(queue_id)
        is_good = await self.world.ack_strictly(held, "O")
        if turn is None or turn.messages.get(offset) is not held:
            if is_good and held in self.restored:
                self.beyond[queue_id].add(offset)
                self.begins[queue_id] += offset == self.begins[queue_id]
            assert not is_good or offset < self.begins[queue_id] or offset in self.beyond[queue_id], held
            return
        assert is_good, held
        turn.acked.add(offset)
        self.beyond[queue_id].add(offset)
        begin = min(turn.messages.keys() - turn.acked, default=max(turn.messages) + 1)
        self.begins[queue_id] = max(self.begins[queue_id], begin)

    def reset(self, queue_id: int, offset: int) -> None:
        self.world.tables.offsets.reset("O", "T", queue_id, offset, self.world.clock.now_ms())
        self._leave(queue_id)
        self.begins[queue_id] = offset
        self.beyond[queue_id].clear()
        self.restored = [held for held in self.restored if held.queue_id != queue_id]

    def forget(self) -> None:
        """Forgets what a kill may lose: the last pops, and acks beyond an open message."""
        for turn in self.turns.values():
            self.restored += turn.messages.values()
        for queue_id in range(QUEUES):
            self._leave(queue_id)

    def _leave(self, queue_id: int) -> None:
        turn = self.turns.pop(queue_id, None)
        if turn is not None:
            self.old += turn.messages.values()

    async def step(self) -> None:
        world, dice, queue_id = self.world, self.world.dice, self.world.dice.randrange(QUEUES)
        turn = self.turns.get(queue_id)
        open_ = [] if turn is None else sorted(turn.messages.keys() - turn.acked)
        match dice.choices(range(9), (15, 30, 30, 10, 8, 8, 3, 4, 6))[0]:
            case 0:
                await world.send(dice.randrange(1, 12))
            case 1:
                await self.pop(queue_id, dice.choice((1, 3, 8)), dice.choice(INVISIBLE_MS))
            case 2:
                for offset in open_[: dice.randrange(1, 4)] if dice.random() < 0.7 else open_[-1:]:
                    assert turn is not None
                    await self.ack(turn.messages[offset])
            case 3:
                if turn is not None and open_:
                    invisible_ms, is_renewal = dice.choice(INVISIBLE_MS), dice.random() < 0.6
                    until_ms = world.clock.now_ms() + invisible_ms
                    named = turn.messages[dice.choice(open_)]
                    assert await world.renew(named, invisible_ms, "O", is_renewal=is_renewal), named
                    if is_renewal:
                        turn.until_ms = until_ms
                    else:
                        turn.chosen[named.offset] = until_ms
            case 4:
                self.reset(queue_id, dice.randrange(world.store.queue_max("T", queue_id) + 1))
                for held in self.old[-4:]:
                    await self.ack(held)
                await world.clock.pass_time(11)  # the table of offsets is saved
            case 5:
                for held in self.old[-4:]:
                    await self.ack(held)
            case 6:
                await world.stop()
                await world.start()
            case 7:
                await world.kill(is_power_cut=dice.random() < 0.5)
                await world.start()
                self.forget()
            case 8:
                await world.clock.pass_time(dice.choice((0.1, 1.5, 8.0)))

    async def drain(self) -> None:
        """Checks that every message comes, in order."""
        for queue_id in range(QUEUES):
            end = self.world.store.queue_max("T", queue_id)
            for _ in range(100):
                turn = await self.pop(queue_id, 32, 60_000)
                for held in [] if turn is None else turn.messages.values():
                    await self.ack(held)
                if self.begins[queue_id] == end:
                    break
                await self.world.clock.pass_time(0 if turn else 10)
            assert self.begins[queue_id] == end


@pytest.mark.parametrize("seed", range(25))
async def test_a_group_gets_its_queues_in_order_from_its_last_ack_or_reset_on(seed: int) -> None:
    """Another group holds leases, so every start reads old positions of the first one again."""
    world = World(seed, revive_queue_count=1)
    await world.start()
    model = OrderedModel(world)
    for _ in range(80):
        await model.step()
        if world.dice.random() < 0.1:
            await world.receive(1, 600_000)
    await model.drain()
    await world.stop()


async def send_to(world: World, count: int, queue_id: int = 0) -> None:
    for number in range(count):
        record = NewRecord(
            topic="T",
            queue_id=queue_id,
            body=b"%d" % number,
            properties=b"",
            born_at_ms=0,
            born_host=bytes(8),
        )
        world.store.appender.append([record], lambda _status: None)
    await world.clock.pass_time(0.05)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_a_reset_outlives_a_restart_though_leases_are_open(is_killed: bool) -> None:
    """The start reads the check points of the open leases again; their positions are older than the reset."""
    world = World(0)
    await world.start()
    await send_to(world, 6)
    assert len(await world.pop(3, 60_000)) == 3
    await world.clock.pass_time(3)
    world.tables.offsets.reset("G", "T", 0, 1, world.clock.now_ms())
    await world.clock.pass_time(11)
    await (world.kill(is_power_cut=True) if is_killed else world.stop())
    await world.start()
    world.held.clear()
    assert [held.offset for held in await world.pop(32, 60_000)] == [1, 2, 3, 4, 5]
    await world.stop()


async def test_a_reset_does_not_return_a_group_that_pulls_at_a_later_restart() -> None:
    """Only a group that popped gets a record, because the start reads it whatever was committed since."""
    world = World(0, revive_queue_count=1)
    await world.start()
    await send_to(world, 6)
    await world.receive(1, 600_000, queue_id=0)
    world.tables.offsets.reset("P", "T", 0, 1, world.clock.now_ms())
    assert world.tables.offsets.consume_reset("P", "T", 0) == 1
    world.tables.offsets.commit("P", "T", 0, 5, world.clock.now_ms())
    await world.clock.pass_time(11)
    await world.stop()
    await world.start()
    assert world.tables.offsets.committed("P", "T", 0) == 5
    await world.stop()


async def test_a_reset_that_cannot_be_stored_is_refused_and_waits_for_the_next_pop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(0)
    await world.start()
    await send_to(world, 3)
    order: dict[str, Any] = {"group": "O", "queue_id": 0, "is_ordered": True}
    [first] = await world.receive(1, 60_000, **order)
    assert await world.ack_strictly(first, "O")
    [second] = await world.receive(1, 60_000, **order)

    def refuse(*_: object) -> None:
        raise Busy("no room")

    with monkeypatch.context() as patch:
        patch.setattr(world.parts.pop.pops.lease_log, "_append", refuse)
        with pytest.raises(Busy):
            world.tables.offsets.reset("O", "T", 0, 0, world.clock.now_ms())
        with pytest.raises(Busy):
            await world.receive(9, 1_000, **order)
    assert [await world.ack_strictly(held, "O") for held in (first, second)] == [False, False]
    assert world.tables.offsets.committed("O", "T", 0) == 0
    assert [held.offset for held in await world.receive(9, 1_000, **order)] == [0, 1, 2]
    await world.kill(is_power_cut=True)
    await world.start()
    await world.clock.pass_time(2)
    assert [held.offset for held in await world.receive(9, 1_000, **order)] == [0, 1, 2]
    await world.stop()


@pytest.mark.parametrize("is_ordered", [False, True])
async def test_a_pop_is_refused_while_the_table_of_offsets_is_full(is_ordered: bool) -> None:
    """Its position could not be committed later, and the task that commits it would end the broker."""
    world = World(0)
    await world.start()
    await send_to(world, 2)
    world.tables.offsets.commit("P", "T", 0, 1, 0)
    world.tables.offsets._key_count_max = len(world.tables.offsets.pairs())
    with pytest.raises(Busy):
        await world.receive(1, 1_000, group="N", queue_id=0, is_ordered=is_ordered)
    await world.clock.pass_time(20)
    world.tables.offsets._key_count_max = 1_000
    found = await world.receive(9, 1_000, group="N", queue_id=0, is_ordered=is_ordered)
    assert [held.offset for held in found] == [0, 1]
    await world.stop()


async def test_an_ordered_pop_is_held_for_its_time_though_the_clock_was_set_back() -> None:
    world = World(0)
    await world.start()
    await send_to(world, 2)
    order: dict[str, Any] = {"group": "O", "queue_id": 0, "is_ordered": True}
    [first] = await world.receive(1, 5_000, **order)
    assert await world.ack_strictly(first, "O")
    world.clock.skew_ms = -3_600_000
    assert await world.receive(1, 5_000, **order)
    await world.clock.pass_time(4)
    assert await world.receive(1, 5_000, **order) == []
    await world.clock.pass_time(1)
    assert await world.receive(1, 5_000, **order)
    await world.stop()


async def test_a_strict_ack_does_not_take_back_a_reset_that_waits() -> None:
    world = World(0)
    await world.start()
    await send_to(world, 3)
    popped = await world.receive(2, 60_000, group="O", queue_id=0, is_ordered=True)
    assert [await world.ack_strictly(held, "O") for held in popped] == [True, True]
    world.tables.offsets.reset("O", "T", 0, 0, world.clock.now_ms())
    assert [await world.ack_strictly(held, "O") for held in popped] == [False, False]
    assert world.tables.offsets.committed("O", "T", 0) == 0
    await world.stop()


async def test_a_reset_clears_an_ordered_pop_in_the_file_as_well() -> None:
    """After a kill an ack of the pop would move the group past the messages that the reset returned to."""
    world = World(0)
    await world.start()
    await send_to(world, 4)
    order: dict[str, Any] = {"group": "O", "queue_id": 0, "is_ordered": True}
    for held in await world.receive(2, 60_000, **order):
        assert await world.ack_strictly(held, "O")
    third, _ = await world.receive(2, 60_000, **order)
    await world.clock.pass_time(11)
    world.tables.offsets.reset("O", "T", 0, 0, world.clock.now_ms())
    await world.clock.pass_time(0.1)
    await world.kill(is_power_cut=True)
    await world.start()
    assert not await world.ack_strictly(third, "O")
    assert [held.offset for held in await world.receive(9, 1_000, **order)] == [0, 1, 2, 3]
    await world.stop()


async def test_an_ack_counts_though_a_kill_lost_the_earlier_acks_of_its_pop() -> None:
    """The table of ordered pops is saved every 10 s; the group's position has the acks that it lost."""
    world = World(0)
    await world.start()
    await send_to(world, 4)
    order: dict[str, Any] = {"group": "O", "queue_id": 0, "is_ordered": True}
    first, second, _ = await world.receive(3, 60_000, **order)
    await world.clock.pass_time(11)
    assert await world.ack_strictly(first, "O")
    await world.kill(is_power_cut=True)
    await world.start()
    assert await world.ack_strictly(second, "O")
    await world.clock.pass_time(60)
    assert [held.offset for held in await world.receive(9, 1_000, **order)] == [2, 3]
    await world.stop()


async def test_a_start_knows_which_messages_of_a_lease_were_moved() -> None:
    """Only the renewed check point is read again, not the record that moved the message."""
    world = World(0)
    await world.start()
    await send_to(world, 2)
    first, second = await world.pop(2, 30_000)
    await world.change(first, 1_000)
    assert await world.renew(second, 60_000)
    await world.clock.pass_time(11)
    assert world.store.queue_max("%RETRY%G_T", 0) == 1
    await world.stop()
    await world.start()
    assert not await world.ack_strictly(first)
    assert await world.ack_strictly(second)
    world.held.clear()
    [again] = await world.pop(2, 30_000)
    assert again.name == first.name
    await world.stop()


async def test_a_repeated_strict_ack_is_not_answered_while_its_lease_is_revived() -> None:
    """The first ack may still fail; then the message comes again."""
    world = World(0)
    await world.start()
    await send_to(world, 2)
    first, _ = await world.pop(2, 1_000)
    waiting = asyncio.create_task(world.ack_strictly(first))
    await asyncio.sleep(0)
    [lease] = world.parts.pop.leases.list_ended(world.clock.now_ms() + 1_000, 9)
    with pytest.raises(Busy):
        await world.ack_strictly(first)
    world.parts.pop.leases.put_back(lease, world.clock.now_ms() + 1_000)
    assert await waiting
    assert await world.ack_strictly(first)
    await world.stop()


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
