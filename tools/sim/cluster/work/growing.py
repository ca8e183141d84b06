"""Topics that are created, and that get more queues, under running consumers of every kind.

The consumers have the default start: the end of what existed before them. Nothing did, so each of them is
owed every message; after a restart, those that were sent once it had begun again in all queues. The group
that pops begins in a topic at its first pop (spec semantics 14.1), and is owed what is sent from then on.
"""

from __future__ import annotations

import math
from collections.abc import Coroutine, Iterable
from functools import partial
from typing import Any, Final

import msgspec

from sim.cluster.nodes import BrokerNode
from sim.cluster.settings import BROKER_NAME
from sim.cluster.work.node import RETRY_S, Item
from sim.cluster.work.topics import OperatedWork
from tandemmq.api import broker_admin
from tandemmq.client import (
    Consumer,
    Message,
    MessageModel,
    PopConsumer,
    PopOptions,
    Producer,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
    StartFrom,
)
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies import MessageQueue

TOPICS: Final = tuple(f"Grown{number}" for number in range(4))
PULLED: Final[dict[str, dict[str, Any]]] = {
    "pull": {},
    "orderly": {"orderly": True},
    "broadcasting": {"model": MessageModel.BROADCASTING, "offsets_dir": "offsets"},
}
KINDS: Final = (*PULLED, "push", "pop")
QUEUE_COUNT_MAX: Final = 8
BEGIN_S_MAX: Final = 20.0
COUNTS: Final = ("read_queue_count", "write_queue_count")


class GrowingWork(OperatedWork):
    """One consumer of each kind, a producer, and an operator that lets topics grow."""

    kind = "growing"
    topic = "Grown"
    between_s = (0, 3)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._counts: dict[str, int] = {}
        """The number of queues of each topic that was created, as far as answers say."""
        self._begun_s: dict[str, float] = {}
        """The time since when a kind of consumer is owed every message."""
        self._highest: dict[tuple[str, str, int], int] = {}
        """Kind, topic, queue -> the last offset that was delivered."""
        self._got: dict[tuple[str, int, int], set[int]] = {}
        """Topic, queue, queue offset -> the messages that the broadcasting group got from there."""
        self._topics: list[str] = []
        """The topic of each message."""
        self._popped_s: dict[str, float] = {}
        """The time since when the master knows that the group pops the topic."""

    def forget(self) -> None:
        super().forget()
        self._begun_s = {}
        self._highest = {}

    async def prepare(self) -> None:
        """Does nothing: the consumers start before the topics exist."""

    # The operator and the producer.

    async def load(self) -> None:
        assert self._scope is not None
        producer = await self.producer()
        await self.world.until(lambda: self.is_resting or self._begun_s.keys() == set(KINDS), BEGIN_S_MAX)
        sending = self._scope.start("send", self._send_on(producer))
        while not self.is_resting:
            await self._wait_for_turn()
            await self._grow(producer)
        await self.insist(self._complete)
        await sending

    async def _send_on(self, producer: Producer) -> None:
        while not self.is_resting:
            if self._counts:
                await self._send_one(producer, self.world.dice.pick(sorted(self._counts)))
            await self.pause()

    async def _send_one(self, producer: Producer, topic: str, queue_id: int | None = None) -> None:
        item = self.new_item()
        self._topics.append(topic)
        queue = None if queue_id is None else MessageQueue(topic, BROKER_NAME, queue_id)
        await self.send(producer, item, Message(topic=topic, body=item.body), queue=queue)

    async def _send_to_each(self, producer: Producer, topic: str, begin: int, end: int) -> None:
        """Sends to queues before most consumers can know them."""
        for queue_id in range(begin, end):
            for _ in range(self.world.dice.between(1, 3)):
                await self._send_one(producer, topic, queue_id)
                self.count("sent to new queues")

    async def _grow(self, producer: Producer) -> None:
        """Creates a topic, or adds queues to one."""
        dice = self.world.dice
        new = [topic for topic in TOPICS if topic not in self._counts]
        small = [topic for topic, count in sorted(self._counts.items()) if count < QUEUE_COUNT_MAX]
        if new and (not small or dice.happens(40)):
            await self._create(producer, new[0])
        elif small:
            await self._add_queues(producer, dice.pick(small))

    async def _create(self, producer: Producer, topic: str) -> None:
        dice = self.world.dice
        self._counts[topic] = 0
        if dice.happens(40):
            await self._send_one(producer, topic)  # the first send creates the topic
            await self.insist(partial(self._learn_count, topic))
            self.count("topics created by a send")
        else:
            await self._ensure(topic, dice.between(1, 3))
            self.count("topics created")
        self.world.note(f"{self.process} has created {topic}")
        await self._send_to_each(producer, topic, 0, self._counts[topic])

    async def _add_queues(self, producer: Producer, topic: str) -> None:
        dice = self.world.dice
        old = self._counts[topic]
        new = old + dice.between(1, 3)
        if not old or dice.happens(50):
            await self._ensure(topic, new)
        else:
            first, second = dice.pick((COUNTS, COUNTS[::-1]))
            await self.insist(partial(self._set_count, topic, first, new))
            if first == "write_queue_count":
                await self._send_to_each(producer, topic, old, new)
            await self.clock.sleep(dice.between(0, 5_000) / 1000)
            await self.insist(partial(self._set_count, topic, second, new))
            self._counts[topic] = new
            self.count("queues added in two steps")
        self.count("queues added")
        self.world.note(f"{self.process} has added queues {old}..{new - 1} to {topic}")
        await self._send_to_each(producer, topic, old, new)

    async def _ensure(self, topic: str, count: int) -> None:
        await self.insist(partial(self.admin.ensure_topic, topic, queue_count=count))
        self._counts[topic] = count

    async def _learn_count(self, topic: str) -> None:
        address = await self.master_address()
        held = await broker_admin.query_topic_config(self.instance.remoting, address, topic)
        self._counts[topic] = 0 if held is None else held.write_queue_count

    async def _set_count(self, topic: str, name: str, count: int) -> None:
        remoting, address = self.instance.remoting, await self.master_address()
        held = await broker_admin.query_topic_config(remoting, address, topic)
        if held is None:  # lost with a master; an operator creates it again
            await self.admin.ensure_topic(topic, queue_count=count)
            return
        wanted = msgspec.structs.replace(held, **{name: max(count, getattr(held, name))})
        await broker_admin.create_topic(remoting, address, wanted)

    async def _complete(self) -> None:
        """Creates again whatever was lost with a master."""
        for topic, count in self._counts.items():
            await self.admin.ensure_topic(topic, queue_count=max(count, 1))

    # The consumers.

    def serve(self) -> Iterable[Coroutine[Any, Any, None]]:
        return [*map(self._pull_on, PULLED), self._push(), self._pop_on()]

    async def _pull_on(self, kind: str) -> None:
        def subscribe(consumer: Consumer) -> None:
            for topic in TOPICS:
                consumer.subscribe(topic)

        consumer = await self.open_consumer(kind, subscribe, start_from=StartFrom.LAST, **PULLED[kind])
        while not self.is_ending:
            self._note_begin(kind, consumer)
            await self.poll(consumer, partial(self._check_order, kind))

    async def _push(self) -> None:
        async def handle(message: ReceivedMessage) -> None:
            self.finish("push", message)

        consumer = PushConsumer(
            "push", handler=handle, options=PushOptions(commit_s=0.5, rebalance_s=2.0), instance=self.instance
        )
        await self._open_for_all(consumer)
        while not self.is_ending:
            self._note_begin("push", consumer)
            await self.clock.sleep(0.2)

    async def _pop_on(self) -> None:
        consumer = PopConsumer("pop", options=PopOptions(invisible_s=10.0), instance=self.instance)
        await self._open_for_all(consumer)
        self._begun_s["pop"] = self.world.loop.time()
        while not self.is_ending:
            try:
                found = await consumer.receive(self.world.dice.between(1, 32), timeout_s=0.5)
                for message in found:
                    self.finish("pop", message)
                await consumer.ack(*found)
                self._note_popped()
            except TandemError as error:
                self.world.note(f"{self.process} pop fails: {type(error).__name__}")
                await self.clock.sleep(RETRY_S)

    async def _open_for_all(self, consumer: PushConsumer | PopConsumer) -> None:
        for topic in TOPICS:
            consumer.subscribe(topic)
        await consumer.start()
        self._open.append(consumer)

    def _note_popped(self) -> None:
        for node in self._watch.brokers:
            if node.broker_id or node.broker is None:
                continue
            for topic in TOPICS:
                if node.broker._tables.offsets.committed_queues("pop", topic):
                    self._popped_s.setdefault(topic, self.world.loop.time())

    def _note_begin(self, kind: str, consumer: Consumer | PushConsumer) -> None:
        """Records that the consumer reads all queues that exist, and has seen which topics do not."""
        if kind in self._begun_s:
            return
        assignment = consumer._assignment
        read = {(queue.topic, queue.queue_id) for queue in assignment.readers}
        wanted = {(topic, queue_id) for topic, count in self._counts.items() for queue_id in range(count)}
        if wanted <= read and set(TOPICS) <= assignment._starts._first_route.keys():
            self._begun_s[kind] = self.world.loop.time()

    def finish(self, group: str, message: ReceivedMessage) -> Item | None:
        item = super().finish(group, message)
        if item is not None and group == "broadcasting":
            place = message.topic, message.queue_id, message.queue_offset
            self._got.setdefault(place, set()).add(item.number)
        return item

    def _check_order(self, kind: str, item: Item, message: ReceivedMessage) -> None:
        place = kind, message.topic, message.queue_id
        highest = self._highest.get(place, -1)
        if message.queue_offset < highest and not self.may_repeat(item, math.inf, self.world.loop.time()):
            self.world.findings.order.append(
                f"{self.process} {kind} got {message.topic}/{message.queue_id}:{message.queue_offset}"
                f" after {highest}: {item}"
            )
        self._highest[place] = message.queue_offset

    def _begun_at(self, kind: str, item: Item) -> float:
        begun_s = self._begun_s.get(kind, math.inf)
        if kind == "pop":
            return max(begun_s, self._popped_s.get(self._topics[item.number], math.inf))
        return begun_s

    def _is_owed_to(self, kind: str, item: Item) -> bool:
        """Returns True if the kind must get the message, once it is acknowledged and kept.

        A master that came back with an empty disk assigns queue offsets again. A broadcasting group that read
        its messages may continue behind them at the slave that replaces it, where older messages have these
        offsets: no broker knows what the group has read of which log (decision 015).
        """
        if item.begin_s < self._begun_at(kind, item):
            return False
        if kind != "broadcasting":
            return True
        others = self._got.get((self._topics[item.number], *item.place), set()) - {item.number}
        return not any(self._may_be_discarded(self.book.items[number]) for number in others)

    def _may_be_discarded(self, item: Item) -> bool:
        """Returns True if a master with an empty disk may have stored the message, whose log was discarded
        later.
        """
        return any(
            item.begin_s <= end_s and (item.end_s or end_s) >= begin_s
            for begin_s, end_s in self.world.discards
        )

    def missing(self, master: BrokerNode) -> list[str]:
        return [
            text
            for kind in KINDS
            for text in self.unfinished(
                kind, (item for item in self.book.items if self._is_owed_to(kind, item))
            )
        ]
