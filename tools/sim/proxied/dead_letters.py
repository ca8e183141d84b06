"""Messages that become dead letters: by request of the client, or because they were tried too often.

Invariants: a message is acknowledged or a dead letter in the end; none is delivered more often than its group
            allows; none is a dead letter before, unless its client has asked for it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from sim.cluster.checkers import read_queue
from sim.cluster.nodes import BrokerNode
from sim.cluster.work.node import Item
from sim.proxied.deliveries import Held
from sim.proxied.nodes import ProxyNode
from sim.proxied.work import ProxiedWork
from tandemmq.protocol.topic_names import dlq_topic
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code

ForwardRequest = message_class("ForwardMessageToDeadLetterQueueRequest")
ForwardResponse = message_class("ForwardMessageToDeadLetterQueueResponse")


class BuriedWork(ProxiedWork):
    """Simple consumers that fail often."""

    kind = "buried"
    topic = "Buried"
    group = "diggers"
    retry_count_max = 2

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._attempts: Counter[int] = Counter()
        """Message number -> the highest attempt that a client has seen."""
        self._asked: set[int] = set()
        """The messages whose clients asked for a dead letter."""
        self._forwarded: set[int] = set()
        """The messages that were reported as dead letters to their clients."""
        self._unsure: set[int] = set()
        """The messages that may be acknowledged or dead letters: the last request has no answer, or one that
        leaves it open.
        """
        self._unsure_before: set[int] = set()
        """The messages for which that held when the last request was sent."""

    async def process_some(self, some: list[Held]) -> bool:
        dice = self.world.dice
        one = some[0]
        if dice.happens(20):
            return await self._forward(one)
        if self.is_resting or dice.happens(40):
            return await self.acknowledge(some)
        await self.postpone(one, dice.between(1, 3))
        return False

    async def acknowledge(self, some: list[Held], proxy: ProxyNode | None = None) -> bool:
        self._begin({one.item.number for one in some})
        return await super().acknowledge(some, proxy)

    def _begin(self, numbers: set[int]) -> None:
        self._unsure_before |= numbers & self._unsure
        self._unsure |= numbers

    def on_refused(self, held: Held, code: int) -> None:
        super().on_refused(held, code)
        number = held.item.number
        if code == Code.INVALID_RECEIPT_HANDLE and number not in self._unsure_before:
            self._unsure.discard(number)

    async def _forward(self, one: Held) -> bool:
        """Asks for a dead letter; returns True if the message is one."""
        self._asked.add(one.item.number)
        self._begin({one.item.number})
        request = ForwardRequest(
            group={"name": self.group},
            topic={"name": self.topic},
            receipt_handle=one.handle,
            message_id=one.message_id,
            delivery_attempt=one.attempt,
            max_delivery_attempts=self.retry_count_max + 1,
        )
        answer = await self.ask("ForwardMessageToDeadLetterQueue", request, ForwardResponse)
        if answer is None:
            return False
        if answer.status.code != Code.OK:
            self.on_refused(one, answer.status.code)
            return False
        self._forwarded.add(one.item.number)
        self.world.note(f"{self.process} has buried {one.item}")
        self.count("forwarded")
        self.on_done(one)
        return True

    def on_delivery(self, item: Item, where: str, attempt: int) -> None:
        super().on_delivery(item, where, attempt)
        self._unsure.discard(item.number)
        self._unsure_before.discard(item.number)
        self._attempts[item.number] = max(self._attempts[item.number], attempt)

    def dead(self, master: BrokerNode) -> set[int]:
        """Returns the numbers of the messages that are dead letters at the master."""
        assert master.store is not None
        name = dlq_topic(self.group)
        found = set[int]()
        for topic, queue_id in master.store.queue_keys():
            if topic == name:
                items = (
                    self.book.find(record.content) for record in read_queue(master.store, (topic, queue_id))
                )
                found |= {item.number for item in items if item is not None}
        return found

    def missing(self, master: BrokerNode) -> list[str]:
        """Returns the messages that are owed to the group, and neither acknowledged nor dead letters."""
        dead = self.dead(master)
        return [
            f"{self.group} has not finished {self.kind} {item}"
            for item in self.book.items
            if not (self.has_acknowledged(item) or item.number in dead | self._unsure) and self.is_owed(item)
        ]

    def check(self, master: BrokerNode) -> None:
        """Checks that each dead letter has a reason, and that none is lost."""
        dead, findings = self.dead(master), self.world.findings
        self._ledger.counts[f"{self.kind}: dead letters"] += len(dead)
        for item in self.book.items:
            number = item.number
            attempts = self._attempts[number]
            is_early = attempts <= self.retry_count_max or self.has_acknowledged(item)
            if number in dead - self._asked and is_early and not self.is_disturbed(item):
                findings.broken.append(f"{item} is a dead letter after {attempts} attempts")
            done_s, _ = self._done_at.get(number, (0.0, None))
            if number in self._forwarded and number not in dead and self.is_kept(done_s):
                findings.lost.append(f"{item} was to be a dead letter at {done_s:.3f}, and is not one")


class BuriedOrderWork(BuriedWork):
    """The same in an ordered group, whose proxies move a message away that was tried too often."""

    kind = "buried order"
    topic = "BuriedOrder"
    group = "orderly-diggers"
    message_type = "FIFO"
    is_ordered = True
