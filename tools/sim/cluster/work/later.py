"""Messages that a broker holds back: for some time, until a transaction ends, or by a filter."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

from sim.cluster.nodes import BrokerNode
from sim.cluster.work.node import Item, WorkNode
from tandemmq.client import (
    Consumer,
    Message,
    ProducerOptions,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from tandemmq.errors import TandemError
from tandemmq.protocol.topic_names import HALF_TOPIC

LEVEL_MS = {1: 1_000, 2: 5_000, 3: 10_000}
TIMED_MS_MAX = 30_000
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"


class TimedWork(WorkNode):
    """Delay levels and timers: never early, never lost."""

    kind = "timed"
    topic = "Timed"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._due: dict[int, int] = {}
        """Message number -> the earliest time at which a broker may store it for its consumers."""

    async def load(self) -> None:
        producer = await self.producer()
        while not self.is_resting:
            item = self.new_item()
            await self.send(producer, item, self._message(item))
            await self.pause()

    def _message(self, item: Item) -> Message:
        dice = self.world.dice
        # The broker uses its own clock; which broker it was is known only afterwards.
        earliest_ms = min(node.clock.now_ms() for node in self._watch.brokers)
        how = dice.pick(("level", "delay", "time"))
        if how == "level":
            level = dice.between(1, 3)
            self._due[item.number] = earliest_ms + LEVEL_MS[level]
            return Message(topic=self.topic, body=item.body, delay_level=level)
        wait_ms = dice.between(1, dice.pick((1_500, 8_000, TIMED_MS_MAX)))
        if how == "delay":
            self._due[item.number] = earliest_ms + wait_ms
            return Message(topic=self.topic, body=item.body, delay_ms=wait_ms)
        at_ms = self._due[item.number] = self.clock.now_ms() + wait_ms
        return Message(topic=self.topic, body=item.body, deliver_at_ms=at_ms)

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self.consume("timely", lambda consumer: consumer.subscribe(self.topic), self._on_message),)

    def _on_message(self, item: Item, message: ReceivedMessage) -> None:
        due_ms, stored_ms = self._due[item.number], message.record.stored_at_ms
        if stored_ms < due_ms and not self.world.is_clock_set:
            self.world.findings.broken.append(
                f"timed {item} was due at {due_ms} and stored for its consumers at {stored_ms}"
            )

    def missing(self, master: BrokerNode) -> list[str]:
        return self.unfinished("timely", self.book.items)


class TransactionWork(WorkNode):
    """Half messages: committed ones are delivered, rolled back ones never, and undecided ones are checked."""

    kind = "transaction"
    topic = "Paid"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._is_booked: dict[int, bool] = {}
        """The application's own data, which cannot be lost: message number -> True if its work was done,
        False if undone.
        """
        self._doubts: dict[int, int] = {}
        """The number of checks that are still to be answered with "unknown"."""
        self._under_way: set[int] = set()
        """Half messages whose send has no answer yet."""

    def forget(self) -> None:
        super().forget()
        self._under_way = set()

    async def load(self) -> None:
        producer = TransactionProducer(
            "payers",
            check=self._on_check,
            options=ProducerOptions(timeout_s=4.0),
            instance=self.instance,
        )
        await producer.start()
        self._open.append(producer.producer)
        while not self.is_resting:
            item = self.new_item()
            self._under_way.add(item.number)
            try:
                result = await producer.send(Message(topic=self.topic, body=item.body), self._book)
            except TandemError as error:
                self.world.note(f"{self.process} {item} fails: {type(error).__name__}")
            else:
                self.world.note(f"{self.process} {item} {result.sent.status.name} {result.state.name}")
            self._under_way.discard(item.number)
            self.count("sent")
            await self.pause()

    def _book(self, message: Message) -> TransactionState:
        """Handles a half message that is stored as safely as promised: does the work, or does not."""
        dice = self.world.dice
        item = self.book.find(bytes(message.body))
        assert item is not None
        item.end_s = self.world.loop.time()
        is_booked = self._is_booked[item.number] = dice.happens(60)
        item.is_acknowledged = is_booked
        if dice.happens(40):
            self._doubts[item.number] = dice.between(0, 2)
            self.count("left open")
            return TransactionState.UNKNOWN
        return TransactionState.COMMIT if is_booked else TransactionState.ROLLBACK

    def _on_check(self, message: ReceivedMessage) -> TransactionState:
        item = self.book.find(message.body)
        if item is None:
            self.world.findings.broken.append(f"asked about what was never sent: {message.body[:40]!r}")
            return TransactionState.ROLLBACK
        self.count("checks")
        self.world.note(f"{self.process} is asked to check {item}")
        if item.number in self._under_way:
            return TransactionState.UNKNOWN  # its work is still to come
        doubts = self._doubts.get(item.number, 0)
        if doubts:
            self._doubts[item.number] = doubts - 1
            return TransactionState.UNKNOWN
        return TransactionState.COMMIT if self._is_booked.get(item.number) else TransactionState.ROLLBACK

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        return (self.consume("paid", lambda consumer: consumer.subscribe(self.topic), self._on_message),)

    def _on_message(self, item: Item, message: ReceivedMessage) -> None:
        if not self._is_booked.get(item.number):
            self.world.findings.broken.append(f"{self.process} got {item}, which was not committed")

    def missing(self, master: BrokerNode) -> list[str]:
        """Returns also undecided messages: the scan of the half topic must reach its end."""
        missing = self.unfinished("paid", self.book.items)
        assert master.broker is not None
        assert master.store is not None
        end = master.store.queue_max(HALF_TOPIC, 0)
        settled = master.broker._tables.offsets.committed(TRANSACTION_GROUP, HALF_TOPIC, 0) or 0
        return missing if settled >= end else [*missing, f"half messages {settled}..{end} are not settled"]


class FilterWork(WorkNode):
    """Groups with filters: exactly the matching messages are delivered."""

    kind = "filter"
    topic = "Sorted"
    groups = ("dear", "tagged", "both")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._facts: dict[int, tuple[str, int, str]] = {}
        """The tag, price and region of each message; a region may be missing."""

    async def load(self) -> None:
        producer = await self.producer()
        dice = self.world.dice
        while not self.is_resting:
            item = self.new_item()
            tag, price, region = (
                dice.pick(("red", "blue", "")),
                dice.between(0, 20),
                dice.pick(("EU", "US", "")),
            )
            self._facts[item.number] = tag, price, region
            properties = {"price": str(price)} | ({"region": region} if region else {})
            await self.send(
                producer, item, Message(topic=self.topic, body=item.body, tags=tag, properties=properties)
            )
            await self.pause()

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        def dear(consumer: Consumer) -> None:
            consumer.subscribe(self.topic, sql="price > 10 AND (region = 'EU' OR region IS NULL)")

        def tagged(consumer: Consumer) -> None:
            consumer.subscribe(self.topic, "red || blue")

        def both(consumer: Consumer) -> None:
            consumer.subscribe(self.topic, sql="TAGS IS NOT NULL AND price BETWEEN 5 AND 15")

        return [
            self.consume(group, subscribe, self._check_group(group))
            for group, subscribe in zip(self.groups, (dear, tagged, both), strict=True)
        ]

    def _is_selected(self, group: str, item: Item) -> bool:
        tag, price, region = self._facts[item.number]
        match group:
            case "dear":
                return price > 10 and region in ("EU", "")
            case "tagged":
                return tag != ""
            case _:
                return tag != "" and 5 <= price <= 15

    def _check_group(self, group: str) -> Any:
        def on_message(item: Item, message: ReceivedMessage) -> None:
            if not self._is_selected(group, item):
                facts = self._facts[item.number]
                self.world.findings.broken.append(f"{group} got {item} with {facts}, which it does not want")

        return on_message

    def missing(self, master: BrokerNode) -> list[str]:
        return [
            text
            for group in self.groups
            for text in self.unfinished(
                group, (item for item in self.book.items if self._is_selected(group, item))
            )
        ]
