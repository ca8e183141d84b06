"""Topics that appear and grow under running consumers of every kind, and a ledger of what each consumer got.

The consumers have the default options, so they begin at the end of what existed before them; nothing did. A
message that was acknowledged is owed to each of them. The ledger has its whole size from the beginning, so
that it does not count as growth of the client's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from tandemmq.client import (
    Admin,
    ClientOptions,
    Consumer,
    ConsumerOptions,
    Message,
    MessageModel,
    PopConsumer,
    PopOptions,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    ReceivedMessage,
)
from tandemmq.errors import TandemError
from tandemmq.protocol.bodies import MessageQueue
from waits import until

TOPICS: Final = tuple(f"Growing{number}" for number in range(4))
KINDS: Final = ("pull", "orderly", "broadcasting", "push", "pop")
QUEUE_COUNT_MAX: Final = 32
STEPS: Final = len(TOPICS) * (QUEUE_COUNT_MAX.bit_length() - 1)
"""The steps after which no topic grows any more."""
RETRY_S: Final = 0.2
RESTART_S_MAX: Final = 300.0
"""The time within which a killed broker answers again, on a busy machine."""


class GrowingTopics:
    """The ledger, and the operator that creates topics and adds queues. `grow` may run under faults.

    A message is a number, and `sent` and `got[kind]` have a byte for each, which is 1 if it was acknowledged
    or received.
    """

    def __init__(self, admin: Admin, producer: Producer, steps_max: int) -> None:
        self._admin = admin
        self._producer = producer
        self._round = 0
        size = steps_max * (QUEUE_COUNT_MAX + 1)
        self.sent = bytearray(size)
        self.got = {kind: bytearray(size) for kind in KINDS}

    async def grow(self, steps: int) -> None:
        """Creates topics, or doubles their queues, one after the other, and sends to each of their queues."""
        for _ in range(steps):
            await self._grow_next()

    async def _grow_next(self) -> None:
        number, self._round = self._round, self._round + 1
        topic, is_new = TOPICS[number % len(TOPICS)], number < len(TOPICS)
        if is_new and number % 2:
            await self._send(topic, None)  # the first send creates the topic
        old = 0 if is_new else await self._insist(lambda: self._queue_count(topic))
        if old < QUEUE_COUNT_MAX:
            await self._insist(lambda: self._admin.ensure_topic(topic, queue_count=max(2, 2 * old)))
        for queue_id in range(await self._insist(lambda: self._queue_count(topic))):
            await self._send(topic, queue_id)

    async def check(self) -> None:
        """Waits until every consumer has every acknowledged message."""
        await until(
            lambda: not any(self.missing(kind) for kind in KINDS),
            "consumers of all kinds have all messages of topics that appeared and grew",
        )

    def missing(self, kind: str) -> list[int]:
        """Returns the numbers of the acknowledged messages that the consumer of this kind lacks."""
        pairs = zip(self.sent, self.got[kind], strict=True)
        return [number for number, (is_sent, is_got) in enumerate(pairs) if is_sent > is_got]

    async def _queue_count(self, topic: str) -> int:
        return len(await self._admin.topic_offsets(topic))

    async def _send(self, topic: str, queue_id: int | None) -> None:
        place = QUEUE_COUNT_MAX if queue_id is None else queue_id
        number = (self._round - 1) * (QUEUE_COUNT_MAX + 1) + place
        queue = None if queue_id is None else MessageQueue(topic, "soak", queue_id)
        message = Message(topic, b"%d" % number)
        await self._insist(lambda: self._producer.send(message, queue=queue))
        self.sent[number] = 1

    async def _insist(self, action: Callable[[], Awaitable[Any]]) -> Any:
        found: list[Any] = []

        async def is_done() -> bool:
            found.append(await action())
            return True

        await until(is_done, "the broker answers", RESTART_S_MAX, not_yet=(TandemError,))
        return found[-1]

    def note(self, kind: str, message: ReceivedMessage) -> None:
        """Records that the consumer of this kind got the message."""
        self.got[kind][int(message.body)] = 1


@asynccontextmanager
async def growing_topics(
    name_server: str, client: ClientOptions, root: Path, steps_max: int
) -> AsyncIterator[GrowingTopics]:
    """Runs one consumer of each kind, which waits for all topics, before any of them exists. The topics grow
    in at most `steps_max` steps.
    """
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(name_server))
        options = ProducerOptions(client=client, timeout_s=10.0)
        producer = await stack.enter_async_context(Producer("growing", name_server, options=options))
        topics = GrowingTopics(admin, producer, steps_max)
        changes: dict[str, dict[str, Any]] = {
            "pull": {},
            "orderly": {"orderly": True},
            "broadcasting": {"model": MessageModel.BROADCASTING, "offsets_dir": str(root / "offsets")},
        }
        tasks: list[asyncio.Task[None]] = []
        for kind, change in changes.items():
            pull = Consumer(f"growing-{kind}", name_server, options=ConsumerOptions(client=client, **change))
            for topic in TOPICS:
                pull.subscribe(topic)
            await stack.enter_async_context(pull)
            tasks.append(asyncio.create_task(_poll(pull, kind, topics)))

        async def handle(message: ReceivedMessage) -> None:
            topics.note("push", message)

        push = PushConsumer("growing-push", name_server, handle, options=PushOptions(client=client))
        pop = PopConsumer("growing-pop", name_server, options=PopOptions(client=client))
        for topic in TOPICS:
            push.subscribe(topic)
            pop.subscribe(topic)
        await stack.enter_async_context(push)
        await stack.enter_async_context(pop)
        tasks.append(asyncio.create_task(_pop(pop, topics)))
        try:
            yield topics
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _poll(consumer: Consumer, kind: str, topics: GrowingTopics) -> None:
    while True:
        for message in await consumer.poll(timeout_s=1.0):
            topics.note(kind, message)


async def _pop(consumer: PopConsumer, topics: GrowingTopics) -> None:
    while True:
        try:
            found = await consumer.receive(timeout_s=1.0)
            for message in found:
                topics.note("pop", message)
            await consumer.ack(*found)
        except TandemError:
            await asyncio.sleep(RETRY_S)
