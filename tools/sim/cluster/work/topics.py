"""Operators' work under load: topics that are deleted and created again, groups that are reset and
deleted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from sim.cluster.checkers import is_halted, read_queue
from sim.cluster.nodes import BrokerNode
from sim.cluster.settings import BROKER_NAME, PASSING_TOPIC
from sim.cluster.watch import EXCUSE_S
from sim.cluster.work.node import Item, WorkNode
from tandemmq.api import broker_admin
from tandemmq.client import Consumer, Message, Producer, ReceivedMessage
from tandemmq.errors import GroupNotFound, NoRoute
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.units import MASTER_ID

TABLES_S = 15.0
"""The time before its loss in which a master may have changed tables without a slave or its own disk having
the change.
"""
IN_FLIGHT_S = 0.1
IN_FLIGHT_TIMES = 5
"""The time after its loss within which a master's last answer may arrive: this, or this many times the
longest latency.
"""
ROUTE_UPDATE_S = 3.0
"""The time after a master's return within which its slaves have its tables."""


class OperatedWork(WorkNode):
    """The base: a load, one consumer of a group, and an operator who acts from time to time."""

    group = ""
    between_s = (2, 8)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._consumer: Consumer | None = None

    def forget(self) -> None:
        super().forget()
        self._consumer = None

    async def load(self) -> None:
        assert self._scope is not None
        producer = await self.producer()
        sending = self._scope.start("send", self._send_on(producer))
        while not self.is_resting:
            await self._wait_for_turn()
            await self.operate()
        await self.operate_last()
        await sending

    async def _wait_for_turn(self) -> None:
        seconds = self.world.dice.between(*self.between_s)
        await self.world.until(lambda: self.is_resting, seconds, 0.5)

    async def _send_on(self, producer: Producer) -> None:
        while not self.is_resting:
            item = self.new_item()
            self.on_send(item)
            await self.send(producer, item, Message(topic=self.topic, body=item.body))
            self.on_sent(item)
            await self.pause()

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self._consume_on(),)

    async def _consume_on(self) -> None:
        while not self.is_ending:
            if self._consumer is None:
                await self.clock.sleep(0.1)
            else:
                await self.poll(self._consumer, self.on_message)

    async def start_consumer(self) -> None:
        """Starts the group's consumer."""
        if self._consumer is None and not self.is_ending:
            self._consumer = await self.open_consumer(
                self.group, lambda consumer: consumer.subscribe(self.topic)
            )

    async def stop_consumer(self) -> None:
        """Stops the group's only member."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._open.remove(consumer)
            await consumer.close()

    def on_send(self, item: Item) -> None:
        """Handles the start of a send."""

    def on_sent(self, item: Item) -> None:
        """Handles the end of a send."""

    def on_message(self, item: Item, message: ReceivedMessage) -> None:
        """Handles a message delivered to the group."""

    async def operate(self) -> None:
        """Performs one operator action."""
        raise NotImplementedError

    async def operate_last(self) -> None:
        """Acts once more after the last fault."""

    async def master_address(self) -> str:
        """Returns the master's address. Raises NoRoute while there is none."""
        info = await self.admin.cluster_info()
        broker = info.brokers.get(BROKER_NAME)
        address = None if broker is None else broker.addresses.get(MASTER_ID)
        if address is None:
            raise NoRoute("no master is elected")
        return address

    def had_loss(self, begin_s: float, end_s: float) -> bool:
        """Returns True if a broker was lost within that time, with everything that it had not written."""
        return any(begin_s <= at_s <= end_s for at_s in self.world.broker_losses) or self.is_discarded(
            begin_s
        )

    def is_discarded(self, at_s: float) -> bool:
        """Returns True if a master's changes of its tables at that time may have been discarded with it."""
        way_s = max(IN_FLIGHT_S, IN_FLIGHT_TIMES * self.world.settings.latency_ms[1] / 1000)
        return any(begin_s - TABLES_S <= at_s <= end_s + way_s for begin_s, end_s in self.world.discards)


class RenewedWork(OperatedWork):
    """A topic that gets more queues, and that is deleted and created again while it receives messages."""

    kind = "renewed"
    topic = PASSING_TOPIC
    group = "renewers"
    queue_count = 4

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._turn = 0
        """Even: the topic's incarnations 0, 2, 4, ...; odd: it is being deleted."""
        self._queue_count = self.queue_count
        self._turns: dict[int, tuple[int, int]] = {}
        """Message number -> the turns in which its send began and ended."""
        self._deleted_s: dict[int, float] = {}
        """Turn -> the time at which its deletion was answered."""
        self._subscribed_turn = 0

    async def prepare(self) -> None:
        if self._turn % 2 == 0:
            await self.admin.ensure_topic(self.topic, queue_count=self._queue_count)

    def on_send(self, item: Item) -> None:
        self._turns[item.number] = self._turn, -1

    def on_sent(self, item: Item) -> None:
        self._turns[item.number] = self._turns[item.number][0], self._turn

    async def load(self) -> None:
        if self._turn % 2:
            await self._renew()
        await self.start_consumer()
        await super().load()

    async def operate(self) -> None:
        if self.world.dice.happens(30):
            self._queue_count += 1
            await self.insist(self.prepare)
            self.count("queues added")
        else:
            await self._renew()

    async def _renew(self) -> None:
        """Recreates the topic. Its consumers stop before: one that continued would apply its old offset to
        the new topic.
        """
        dice, world = self.world.dice, self.world
        await self.stop_consumer()
        self._turn |= 1
        world.note(f"{self.process} deletes {self.topic}")
        await self.insist(lambda: self.admin.delete_topic(self.topic))
        if self.is_ending:
            return
        self._deleted_s[self._turn] = world.loop.time()
        self._turn += 1
        world.note(f"{self.process} has deleted {self.topic}")
        self.count("deleted")
        if dice.happens(50):
            await self.clock.sleep(dice.between(0, 3_000) / 1000)
        self._queue_count = dice.between(4, 6)
        await self.insist(self.prepare)
        world.note(f"{self.process} has made {self.topic} with {self._queue_count} queues")
        self._subscribed_turn = self._turn
        await self.start_consumer()

    def _turn_of(self, item: Item) -> int | None:
        """Returns the turn to which a message belongs; None if its send overlapped with a deletion."""
        begin, end = self._turns[item.number]
        return begin if begin == end and begin % 2 == 0 else None

    def _is_gone(self, item: Item) -> bool:
        """Returns True if it was sent and answered before a deletion that was not undone."""
        process = self._turn_of(item)
        return process is not None and any(
            turn > process and not self.is_discarded(at_s) for turn, at_s in self._deleted_s.items()
        )

    def on_message(self, item: Item, message: ReceivedMessage) -> None:
        process = self._turn_of(item)
        if (
            process is not None
            and process < self._subscribed_turn
            and self._is_gone(item)
            and not self._is_before_route_update(self._deleted_s[process + 1])
        ):
            self.world.findings.broken.append(
                f"{self.process} got {item} of a topic that was deleted at {self._deleted_s[process + 1]:.3f}"
            )

    def _is_before_route_update(self, at_s: float) -> bool:
        """Returns True if slaves may serve reads without knowing the deletion: the master was lost before
        they could learn it, and is away or just back; or a slave has halted, or has an older disk.
        """
        world = self.world
        if world.has_old_copies:
            return True
        if any(is_halted(node) for node in self._watch.brokers if node.store is not None and node.broker_id):
            return True
        is_away = all(node.store is None for node in self._watch.brokers if node.broker_id == 0)
        is_new = world.loop.time() < world.master_opened_s + ROUTE_UPDATE_S
        is_lost = any(at_s <= loss_s <= at_s + TABLES_S for loss_s in world.broker_losses)
        return is_lost and (is_away or is_new)

    def missing(self, master: BrokerNode) -> list[str]:
        # Progress in a topic whose deletion was lost still exists.
        if any(map(self.is_discarded, self._deleted_s.values())):
            return []
        items = [item for item in self.book.items if self._turn_of(item) == self._turn]
        return self.unfinished(self.group, items)

    def check(self, master: BrokerNode) -> None:
        """Checks that replicas hold the last incarnation of the topic, and nothing of earlier ones."""
        for node in self._watch.brokers:
            store = node.store
            for place in [] if store is None else sorted(store.queue_keys()):
                assert store is not None
                if place[0] != self.topic:
                    continue
                for record in read_queue(store, place):
                    item = self.book.find(record.content)
                    where = f"{node.process} {place}:{record.queue_offset}"
                    if item is None:
                        self.world.findings.broken.append(f"{where} was never sent")
                    elif self._is_gone(item):
                        self.world.findings.broken.append(f"{where} holds {item}, which was deleted")


@dataclass(slots=True)
class Move:
    """An operator's reset of a group to these offsets. `begin_s`, `end_s`: times of the request."""

    begin_s: float
    end_s: float
    offsets: dict[int, int]
    is_last: bool


class MovedWork(OperatedWork):
    """A group that is reset back and forth, running and stopped, and deleted and created again."""

    kind = "moved"
    topic = "Moved"
    group = "movers"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._moves: list[Move] = []
        self._is_deleted = False  # and not recreated, except by use

    async def load(self) -> None:
        if self._moves and not self._moves[-1].offsets:
            # The request of the previous process may have succeeded, even the deletion of the group.
            await self.insist(self._create_group)
            await self._move(lambda: self._reset(0))
        await self.start_consumer()
        await super().load()

    async def operate(self) -> None:
        dice = self.world.dice
        how: Callable[[], Coroutine[Any, Any, None]] = dice.pick(
            (self._move_running, self._move_running, self._move_stopped, self._set_stopped, self._delete)
        )
        await how()

    async def operate_last(self) -> None:
        """Resets once more, when no fault can excuse a missing message."""
        await self._move_running(is_last=True)

    async def _move_running(self, *, is_last: bool = False) -> None:
        dice = self.world.dice
        back_ms = dice.between(0, 20_000)
        # By the master's clock, which is the one in the messages.
        time_ms = -1 if dice.happens(20) and not is_last else self._broker_now_ms() - back_ms
        await self._move(lambda: self._reset(time_ms), is_last=is_last)

    async def _move_stopped(self) -> None:
        await self.stop_consumer()
        await self._move_running()
        await self.start_consumer()

    async def _set_stopped(self) -> None:
        await self.stop_consumer()
        queue_id = self.world.dice.below(self.queue_count)
        acknowledged = [item.place[1] for item in self.book.items if item.place[0] == queue_id]
        offset = self.world.dice.pick(acknowledged) if acknowledged else 0
        queue = MessageQueue(topic=self.topic, broker_name=BROKER_NAME, queue_id=queue_id)

        async def move() -> dict[int, int]:
            await self.admin.set_offset(self.group, queue, offset)
            return {queue_id: offset}

        await self._move(move)
        await self.start_consumer()

    async def _delete(self) -> None:
        dice = self.world.dice
        await self.stop_consumer()

        async def delete() -> dict[int, int]:
            address = await self.master_address()
            await broker_admin.delete_group(self.instance.remoting, address, self.group, removes_offsets=True)
            return dict.fromkeys(range(self.queue_count), 0)

        self._is_deleted = True
        await self._move(delete)
        self.count("deleted")
        if dice.happens(50):
            await self.insist(self._create_group)
        await self.start_consumer()

    async def _create_group(self) -> None:
        config = SubscriptionGroupConfig(name=self.group, retry_count_max=self.world.dice.between(1, 20))
        await broker_admin.create_group(self.instance.remoting, await self.master_address(), config)
        self._is_deleted = False

    async def _reset(self, time_ms: int) -> dict[int, int]:
        try:
            offsets = await self.admin.reset_offsets(self.group, self.topic, time_ms)
        except GroupNotFound:
            if self._is_deleted:  # it was created by use, at a master that was lost before it saved it
                await self._create_group()
            raise
        return {queue.queue_id: offset for queue, offset in offsets.items()}

    async def _move(
        self, move: Callable[[], Coroutine[Any, Any, dict[int, int]]], *, is_last: bool = False
    ) -> None:
        async def once() -> None:
            begin_s = self.world.loop.time()
            offsets = await move()
            self._moves.append(Move(begin_s, self.world.loop.time(), offsets, is_last))
            self.world.note(f"{self.process} has moved {self.group} to {offsets}")

        # The offsets of an unanswered attempt may apply all the same.
        unknown = Move(self.world.loop.time(), self.world.loop.time(), {}, is_last)
        self._moves.append(unknown)
        self.world.moved_s[self.group] = math.inf
        await self.insist(once)
        self.world.moved_s[self.group] = unknown.end_s = self.world.loop.time()
        self.count("moved")

    def _broker_now_ms(self) -> int:
        return next(node.clock.now_ms() for node in self._watch.brokers if not node.broker_id)

    def may_repeat(self, item: Item, before_s: float, now_s: float) -> bool:
        return super().may_repeat(item, before_s, now_s) or any(
            before_s - EXCUSE_S <= move.end_s for move in self._moves
        )

    def _is_done(self, item: Item) -> bool:
        """Returns True if the group has processed it since it was last reset to before it, or was reset to
        after it.
        """
        queue_id, offset = item.place
        since_s, is_passed = 0.0, False
        for move in self._moves:
            target = move.offsets.get(queue_id)
            if target is None:
                continue
            if offset < target:
                is_passed = True
            elif move.is_last or not self.had_loss(move.begin_s, move.end_s + TABLES_S):
                since_s, is_passed = move.begin_s, False
        return is_passed or item.finished.get(self.group, -1.0) >= since_s

    def missing(self, master: BrokerNode) -> list[str]:
        return [
            f"{self.group} did not get {self.kind} {item} after it was moved before it"
            for item in self.book.items
            if self.is_owed(item) and not self._is_done(item)
        ]
