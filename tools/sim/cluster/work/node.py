"""An application that does one kind of work, and the book that records its promises.

Owns:       the book, which outlives the application's process, like the notes of an observer.
Strategy:   the load ends when the faults do (`rest`); consumers continue until everything owed has arrived,
            and only then the process is stopped.
Invariants: a kind owes its groups only messages that were acknowledged and that no later fault may have lost.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from sim.cluster.clients import ClientNode
from sim.cluster.ledger import Ledger
from sim.cluster.nodes import BrokerNode
from sim.cluster.watch import EXCUSE_S, Watch
from sim.cluster.world import World
from sim.memory import MemoryDisk
from tandemmq.client import (
    Admin,
    Consumer,
    ConsumerOptions,
    Message,
    PopConsumer,
    Producer,
    ProducerOptions,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    StartFrom,
)
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.runtime.tasks import TaskScope

RETRY_S = 0.5
STOP_S_MAX = 30.0


@dataclass(slots=True, eq=False)
class Item:
    """One message of a kind of work.

    `place`: queue and queue offset of its acknowledgement. `finished`: group -> the time at which it last
    processed the message.
    """

    number: int
    body: bytes
    begin_s: float
    end_s: float = 0.0
    is_acknowledged: bool = False
    place: tuple[int, int] = (-1, -1)
    finished: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        state = f"acknowledged {self.end_s:.3f}" if self.is_acknowledged else "not acknowledged"
        return f"#{self.number} ({self.place[0]}:{self.place[1]}, sent {self.begin_s:.3f}, {state})"


class Book:
    """The messages sent by one kind."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.items: list[Item] = []
        self._head = f"{topic}-".encode()

    def new(self, now_s: float, filling: int = 0) -> Item:
        number = len(self.items)
        item = Item(number, b"%s%06d|" % (self._head, number) + b"y" * filling, now_s)
        self.items.append(item)
        return item

    def find(self, body: bytes) -> Item | None:
        """Returns the message with exactly this body."""
        digits = body.removeprefix(self._head).partition(b"|")[0]
        number = int(digits) if digits.isdigit() else -1
        item = self.items[number] if 0 <= number < len(self.items) else None
        return item if item is not None and item.body == body else None


class Subscribe(Protocol):
    """Subscribes a consumer."""

    def __call__(self, consumer: Consumer) -> None: ...


class OnMessage(Protocol):
    """The application's work on a message."""

    def __call__(self, item: Item, message: ReceivedMessage) -> None: ...


class WorkNode(ClientNode):
    """The base of all kinds. `load` runs while faults occur, `serve` until the process ends."""

    kind: ClassVar[str]
    topic: ClassVar[str]
    queue_count: ClassVar[int] = 2
    pause_ms: ClassVar[tuple[int, int]] = (50, 600)

    def __init__(self, name: str, world: World, namesrv: str, ledger: Ledger, watch: Watch) -> None:
        super().__init__(name, world, namesrv, ledger, watch)
        self.book = Book(self.topic)
        self.is_resting = False
        """True once the load is to end."""
        self.is_load_over = False
        self._open: list[Consumer | Producer | PushConsumer | PopConsumer] = []
        self._scope: TaskScope | None = None
        self._disk = MemoryDisk()

    # The process.

    def forget(self) -> None:
        self.is_load_over = False
        self._open = []

    async def run(self) -> None:
        self.instance = await self.connect()
        self.admin = Admin(instance=self.instance)
        self._scope = TaskScope(f"work-{self.name}", lambda _name, error: self.on_fatal(error))
        await self.insist(self.prepare)
        tasks = [self._scope.start(f"serve-{n}", part) for n, part in enumerate(self.serve())]
        await self.load()
        self.is_load_over = True
        for task in tasks:
            await task
        self.is_done = True

    async def stop_server(self) -> None:
        self.is_resting = self.is_ending = True
        await self.world.until(lambda: self.is_done, STOP_S_MAX)
        for member in self._open:
            await member.close()
        if self._instance is not None:
            await self._instance.close()

    def rest(self) -> None:
        """Ends the load."""
        self.is_resting = True

    # Overridden by the kinds.

    async def prepare(self) -> None:
        """Prepares what the work needs; called again until it succeeds."""
        await self.admin.ensure_topic(self.topic, queue_count=self.queue_count)

    async def load(self) -> None:
        """Runs the load; returns soon after `is_resting`."""
        raise NotImplementedError

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Returns coroutines; each returns soon after `is_ending`."""
        raise NotImplementedError

    def missing(self, master: BrokerNode) -> list[str]:
        """Returns the messages that are owed and have not arrived."""
        raise NotImplementedError

    def check(self, master: BrokerNode) -> None:
        """Checks further conditions at the end."""

    # Helpers.

    async def insist(self, action: Any) -> None:
        """Repeats the action until it succeeds, or the process is to end."""
        while not self.is_ending:
            try:
                await action()
                return
            except TandemError as error:
                self.world.note(f"{self.process} retries: {type(error).__name__}: {error}")
                await self.clock.sleep(RETRY_S)

    async def pause(self) -> None:
        await self.clock.sleep(self.world.dice.between(*self.pause_ms) / 1000)

    async def producer(self) -> Producer:
        """Returns a producer of this process."""
        producer = Producer(
            f"producers-{self.name}", options=ProducerOptions(timeout_s=4.0), instance=self.instance
        )
        await producer.start()
        self._open.append(producer)
        return producer

    def new_item(self) -> Item:
        filling = self.world.dice.between(0, min(200, self.world.settings.body_bytes_max))
        return self.book.new(self.world.loop.time(), filling)

    async def send(
        self, producer: Producer, item: Item, message: Message, *, queue: MessageQueue | None = None
    ) -> SendResult | None:
        """Sends a message; returns None if that failed, in which case the outcome is unknown."""
        try:
            result = await producer.send(message, queue=queue)
        except TandemError as error:
            self.world.note(f"{self.process} {item} fails: {type(error).__name__}")
            return None
        self.settle(item, result)
        return result

    def settle(self, item: Item, result: SendResult) -> None:
        """Records the answer to a send."""
        item.end_s = self.world.loop.time()
        item.is_acknowledged = result.is_ok
        item.place = result.queue.queue_id, result.queue_offset
        self.count("sent")
        self.world.note(f"{self.process} {self.kind} {item} {result.status.name}")

    def count(self, what: str) -> None:
        self._ledger.counts[f"{self.kind}: {what}"] += 1

    async def consume(self, group: str, subscribe: Subscribe, on_message: OnMessage, **options: Any) -> None:
        """Consumes as a member of the group, until the process ends."""
        consumer = await self.open_consumer(group, subscribe, **options)
        while not self.is_ending:
            await self.poll(consumer, on_message)

    async def open_consumer(self, group: str, subscribe: Subscribe, **options: Any) -> Consumer:
        """Returns a started consumer, which is closed with the process."""
        dice = self.world.dice
        chosen = ConsumerOptions(
            commit_s=0.5,
            rebalance_s=2.0,
            suspend_s=float(dice.between(1, 5)),
            pull_error_delay_s=0.5,
            pull_count_max=dice.pick((1, 8, 256)),
            **{"start_from": StartFrom.FIRST, **options},
        )
        while True:
            consumer = Consumer(group, options=chosen, instance=self.instance, disk=self._disk)
            subscribe(consumer)
            try:
                await consumer.start()
            except TandemError:  # a filter is checked before the start
                await self.clock.sleep(RETRY_S)
                continue
            self._open.append(consumer)
            return consumer

    async def poll(self, consumer: Consumer, on_message: OnMessage) -> None:
        """Processes available messages; a message is finished here before the consumer acknowledges it."""
        for message in await consumer.poll(self.world.dice.between(1, 40), 0.5):
            item = self.finish(consumer.group, message)
            if item is not None:
                on_message(item, message)

    def finish(self, group: str, message: ReceivedMessage) -> Item | None:
        """Records that the group has processed a message. Adds a finding and returns None for an unknown
        message.
        """
        world = self.world
        item = self.book.find(message.body)
        where = f"{self.process} got {message.record.topic}/{message.queue_id}:{message.queue_offset}"
        if item is None:
            world.findings.broken.append(f"{where}, which was never sent: {message.body[:40]!r}")
            return None
        now_s = world.loop.time()
        before_s = item.finished.get(group)
        if before_s is not None:
            self.count("duplicates")
            if not self.may_repeat(item, before_s, now_s):
                world.findings.broken.append(f"{where}: {item} at {before_s:.3f} and again without a reason")
        item.finished[group] = now_s
        world.note(f"{where}: {item} for {group}")
        return item

    def may_repeat(self, item: Item, before_s: float, now_s: float) -> bool:
        """Returns True if a repeated delivery has a reason: a fault since it was sent, or shortly before."""
        return self.world.had_fault(min(item.begin_s, before_s) - EXCUSE_S, now_s)

    def is_owed(self, item: Item) -> bool:
        """Returns True if the message was acknowledged and is on a copy that no later fault may have lost."""
        return item.is_acknowledged and self._watch.promises.is_kept_since(item.begin_s)

    def unfinished(self, group: str, items: Iterable[Item]) -> list[str]:
        """Returns those of the items that are owed to the group and were not processed."""
        return [
            f"{group} never got {self.kind} {item}"
            for item in items
            if group not in item.finished and self.is_owed(item)
        ]
