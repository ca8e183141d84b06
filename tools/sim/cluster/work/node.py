"""An application that does one kind of work, and the book in which it keeps what it was promised.

Owns:       the book: it outlives the application's process, as the notes of a witness.
Strategy:   the load ends when the faults do (`rest`); consumers go on until everything owed has come, and the
            process is stopped only then.
Invariants: a kind owes its groups only what was acknowledged and what no fault since may have taken.
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
from tandemmq.client import (
    Admin,
    Consumer,
    ConsumerOptions,
    Message,
    Producer,
    ProducerOptions,
    ReceivedMessage,
    SendResult,
    StartFrom,
)
from tandemmq.errors import TandemError
from tandemmq.runtime.tasks import TaskScope

RETRY_S = 0.5
STOP_S_MAX = 30.0


@dataclass(slots=True, eq=False)
class Item:
    """One message of a kind of work.

    `place`: queue and queue offset of its acknowledgement. `finished`: group -> when it last worked on it.
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
    """What one kind has sent."""

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
        """The message with exactly this body."""
        digits = body.removeprefix(self._head).partition(b"|")[0]
        number = int(digits) if digits.isdigit() else -1
        item = self.items[number] if 0 <= number < len(self.items) else None
        return item if item is not None and item.body == body else None


class Subscribe(Protocol):
    """Tells a consumer what it is to get."""

    def __call__(self, consumer: Consumer) -> None: ...


class OnMessage(Protocol):
    """The application's work on a message."""

    def __call__(self, item: Item, message: ReceivedMessage) -> None: ...


class WorkNode(ClientNode):
    """Base of all kinds. `load` runs while things go wrong, all of `serve` until the process ends."""

    kind: ClassVar[str]
    topic: ClassVar[str]
    queue_count: ClassVar[int] = 2
    pause_ms: ClassVar[tuple[int, int]] = (50, 600)

    def __init__(self, name: str, world: World, namesrv: str, ledger: Ledger, watch: Watch) -> None:
        super().__init__(name, world, namesrv, ledger, watch)
        self.book = Book(self.topic)
        self.is_resting = False
        """The load is to end."""
        self.is_load_over = False
        self._open: list[Consumer | Producer] = []
        self._scope: TaskScope | None = None

    # Life.

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
        """No more load."""
        self.is_resting = True

    # What a kind says of itself.

    async def prepare(self) -> None:
        """What must be there before the work begins; called again until it does not fail."""
        await self.admin.ensure_topic(self.topic, queue_count=self.queue_count)

    async def load(self) -> None:
        """Returns soon after `is_resting`."""
        raise NotImplementedError

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Each returns soon after `is_ending`."""
        raise NotImplementedError

    def missing(self, master: BrokerNode) -> list[str]:
        """What is owed and has not come."""
        raise NotImplementedError

    def check(self, master: BrokerNode) -> None:
        """What else must hold at the end."""

    # Tools.

    async def insist(self, action: Any) -> None:
        """Again and again until it succeeds, or the process is to end."""
        while not self.is_ending:
            try:
                await action()
                return
            except TandemError as error:
                self.world.note(f"{self.life} tries again: {type(error).__name__}: {error}")
                await self.clock.sleep(RETRY_S)

    async def pause(self) -> None:
        await self.clock.sleep(self.world.dice.between(*self.pause_ms) / 1000)

    async def producer(self) -> Producer:
        """A producer of this process."""
        producer = Producer(
            f"producers-{self.name}", options=ProducerOptions(timeout_s=4.0), instance=self.instance
        )
        await producer.start()
        self._open.append(producer)
        return producer

    def new_item(self) -> Item:
        filling = self.world.dice.between(0, min(200, self.world.settings.body_bytes_max))
        return self.book.new(self.world.loop.time(), filling)

    async def send(self, producer: Producer, item: Item, message: Message) -> SendResult | None:
        """None when it failed; what became of it is then not known."""
        try:
            result = await producer.send(message)
        except TandemError as error:
            self.world.note(f"{self.life} {item} fails: {type(error).__name__}")
            return None
        self.settle(item, result)
        return result

    def settle(self, item: Item, result: SendResult) -> None:
        """The answer to its send is here."""
        item.end_s = self.world.loop.time()
        item.is_acknowledged = result.is_ok
        item.place = result.queue.queue_id, result.queue_offset
        self.count("sent")
        self.world.note(f"{self.life} {self.kind} {item} {result.status.name}")

    def count(self, what: str) -> None:
        self._ledger.counts[f"{self.kind}: {what}"] += 1

    async def consume(self, group: str, subscribe: Subscribe, on_message: OnMessage, **options: Any) -> None:
        """As a member of the group, until the process ends."""
        consumer = await self.open_consumer(group, subscribe, **options)
        while not self.is_ending:
            await self.poll(consumer, on_message)

    async def open_consumer(self, group: str, subscribe: Subscribe, **options: Any) -> Consumer:
        """Started; closed with the process."""
        dice = self.world.dice
        chosen = ConsumerOptions(
            start_from=StartFrom.FIRST,
            commit_s=0.5,
            rebalance_s=2.0,
            suspend_s=float(dice.between(1, 5)),
            pull_error_delay_s=0.5,
            pull_count_max=dice.pick((1, 8, 256)),
            **options,
        )
        while True:
            consumer = Consumer(group, options=chosen, instance=self.instance)
            subscribe(consumer)
            try:
                await consumer.start()
            except TandemError:  # a filter is asked about before the start
                await self.clock.sleep(RETRY_S)
                continue
            self._open.append(consumer)
            return consumer

    async def poll(self, consumer: Consumer, on_message: OnMessage) -> None:
        """Work on what is there; a message is finished here before the consumer knows it."""
        for message in await consumer.poll(self.world.dice.between(1, 40), 0.5):
            item = self.finish(consumer.group, message)
            if item is not None:
                on_message(item, message)

    def finish(self, group: str, message: ReceivedMessage) -> Item | None:
        """The group has worked on it. None, and a finding, for what nobody has sent."""
        world = self.world
        item = self.book.find(message.body)
        where = f"{self.life} got {message.record.topic}/{message.queue_id}:{message.queue_offset}"
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
        """A message may come twice only when something went wrong since it was sent, or shortly before."""
        return self.world.had_trouble(min(item.begin_s, before_s) - EXCUSE_S, now_s)

    def is_owed(self, item: Item) -> bool:
        """Acknowledged, and on a copy that no fault since may have taken."""
        return item.is_acknowledged and self._watch.promises.is_kept_since(item.begin_s)

    def unfinished(self, group: str, items: Iterable[Item]) -> list[str]:
        """What is owed of these to the group."""
        return [
            f"{group} never got {self.kind} {item}"
            for item in items
            if group not in item.finished and self.is_owed(item)
        ]
