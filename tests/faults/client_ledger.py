"""The promises to producers and the deliveries to consumers, recorded outside the cluster, and their checks.

`lost`       a message answered with SEND_OK was not delivered, or another one was at its place
`order`      promised messages of one queue are in another order than they were sent in
`skipped`    a delivery skipped an offset below it that was never delivered before
`duplicates` an offset was delivered again; allowed, counted
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tandemmq.client import (
    ClientOptions,
    Consumer,
    ConsumerOptions,
    Message,
    MessageQueue,
    Producer,
    ProducerOptions,
    SendStatus,
    StartFrom,
)
from tandemmq.errors import TandemError
from tandemmq.protocol.message import ReceivedMessage

QUICK = ClientOptions(heartbeat_s=1.0, route_refresh_s=0.5, call_timeout_s=1.0)

QueuePosition = tuple[str, int, int]
"""Topic, queue id, queue offset."""


@dataclass(slots=True)
class Findings:
    """The faults found, one text each; the lists are empty if there are none."""

    lost: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    duplicates: int = 0

    def check(self) -> None:
        assert (self.lost, self.order, self.skipped) == ([], [], []), self


class ClientLedger:
    """One topic's history as seen from outside."""

    def __init__(self) -> None:
        self.promised: dict[QueuePosition, bytes] = {}
        self.statuses: Counter[str] = Counter()
        self.findings = Findings()
        self._delivered: dict[QueuePosition, bytes] = {}
        self.delivered_s: dict[QueuePosition, float] = {}
        """The time of the first delivery of each place, by the monotonic clock."""
        self._next: dict[tuple[str, int], int] = {}
        self._last_promised: dict[tuple[str, int], int] = {}

    def record_send(self, queue: MessageQueue, queue_offset: int, body: bytes) -> None:
        """Records a send answered with SEND_OK; the previous send to the same queue had been answered
        before.
        """
        key = (queue.topic, queue.queue_id)
        place = (*key, queue_offset)
        if place in self.promised:
            self.findings.lost.append(f"{place} was promised to {self.promised[place]!r} and {body!r}")
        if queue_offset <= self._last_promised.get(key, -1):
            self.findings.order.append(f"{place}: an earlier send is at {self._last_promised[key]}")
        self._last_promised[key] = queue_offset
        self.promised[place] = body

    def record_delivery(self, message: ReceivedMessage) -> None:
        key = (message.topic, message.queue_id)
        offset = message.queue_offset
        place = (*key, offset)
        expected = self._next.get(key, 0)
        if offset > expected:
            self.findings.skipped.append(f"{key}: {expected} to {offset} were not delivered")
        if place in self._delivered:
            self.findings.duplicates += 1
            if self._delivered[place] != message.body:
                self.findings.lost.append(f"{place} was {self._delivered[place]!r}, now {message.body!r}")
        self._delivered[place] = message.body
        self.delivered_s.setdefault(place, time.monotonic())
        self._next[key] = max(expected, offset + 1)

    @property
    def missing(self) -> list[QueuePosition]:
        """The places that were promised and not delivered yet."""
        return [place for place in self.promised if place not in self._delivered]

    def delivered(self) -> dict[QueuePosition, bytes]:
        """Returns the last delivered message of each place."""
        return dict(self._delivered)

    def check(self) -> Findings:
        """Returns all findings at the end."""
        for place, body in self.promised.items():
            if self._delivered.get(place) != body:
                self.findings.lost.append(f"{place}: promised {body!r}, got {self._delivered.get(place)!r}")
        return self.findings


class Load:
    """Sends one message at a time to each queue while its context is open."""

    def __init__(self, producer: Producer, ledger: ClientLedger, topic: str, *, body_bytes: int) -> None:
        self._producer = producer
        self._ledger = ledger
        self._topic = topic
        self._filler = b"x" * body_bytes
        self._numbers = itertools.count()
        self.pause_s = 0.002

    async def run(self, queue: MessageQueue) -> None:
        """Sends messages. Never returns."""
        while True:
            body = b"%d/%d " % (queue.queue_id, next(self._numbers)) + self._filler
            try:
                result = await self._producer.send(Message(topic=self._topic, body=body), queue=queue)
            except TandemError as error:
                self._ledger.statuses[type(error).__name__] += 1
                await asyncio.sleep(0.05)
                continue
            self._ledger.statuses[result.status.name] += 1
            if result.status is SendStatus.SEND_OK:
                self._ledger.record_send(queue, result.queue_offset, body)
            await asyncio.sleep(self.pause_s)


@asynccontextmanager
async def sending(
    namesrv: str, ledger: ClientLedger, topic: str, *, queue_count: int = 2, body_bytes: int = 100
) -> AsyncIterator[Load]:
    """Opens a producer that sends until the block ends. It does not retry, so it stores no message twice."""
    options = ProducerOptions(client=QUICK, timeout_s=2.0, retry_count_max=0, compress_from_bytes=0)
    async with Producer("P", namesrv, options=options) as producer:
        load = Load(producer, ledger, topic, body_bytes=body_bytes)
        queues = [MessageQueue(topic, "b0", queue_id) for queue_id in range(queue_count)]
        tasks = [asyncio.create_task(load.run(queue)) for queue in queues]
        try:
            yield load
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, asyncio.CancelledError), result


def consumer_of(namesrv: str, topic: str, group: str = "G", **changes: object) -> Consumer:
    """Returns a consumer from the first message on; it commits often, so that offsets nearly match its
    progress.
    """
    settings: dict[str, object] = {
        "client": QUICK,
        "start_from": StartFrom.FIRST,
        "commit_s": 0.3,
        "suspend_s": 2.0,
        "pull_error_delay_s": 0.2,
        **changes,
    }
    consumer = Consumer(group, namesrv, options=ConsumerOptions(**settings))  # type: ignore[arg-type]  # real fields
    consumer.subscribe(topic)
    return consumer


@asynccontextmanager
async def consuming(
    namesrv: str, ledger: ClientLedger, topic: str, group: str = "G", **changes: object
) -> AsyncIterator[Consumer]:
    """Opens a consumer that records its messages until the block ends."""

    async def run() -> None:
        while True:
            for message in await consumer.poll(256, 0.5):
                if message.topic == topic:
                    ledger.record_delivery(message)

    async with consumer_of(namesrv, topic, group, **changes) as consumer:
        task = asyncio.create_task(run())
        try:
            yield consumer
        finally:
            task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(result, asyncio.CancelledError), result
