"""The handlers of one push consumer: one for each topic, and one for all other topics.

Each handler has its own workers and its own part of the inbox, so that a slow handler delays no other. The
bounds of the inbox hold for all parts together.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from typing import Unpack

from tandemmq.client.consumer.batch_workers import BatchWorkers
from tandemmq.client.consumer.inbox import Inbox, MessageSource, Received
from tandemmq.client.consumer.key_workers import KeyWorkers
from tandemmq.client.consumer.membership import DirectResult, Membership, TopicStatus
from tandemmq.client.consumer.workers import AnyHandler, Workers
from tandemmq.client.options import HandlerChanges, PushOptions
from tandemmq.errors import ClientError, TandemError
from tandemmq.protocol.message import ReceivedMessage


class SortingInbox(Inbox):
    """The inbox of a push consumer. Messages of a topic with a part of its own wait in that part; this object
    holds the other messages, and counts the bytes of all.
    """

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self._parts: dict[str, Inbox] = {}

    def add_part(self, topic: str) -> Inbox:
        """Adds the part for the messages of a topic."""
        part = self._parts[topic] = Inbox(0)
        return part

    def put(self, deliveries: Iterable[Received], size_bytes: int) -> None:
        """Adds messages as `Inbox.put`."""
        if not self._parts:
            super().put(deliveries, size_bytes)
            return
        others: list[Received] = []
        for topic, some in groupby(deliveries, _topic_of):
            part = self._parts.get(topic)
            if part is None:
                others += some
            else:
                part.put(some, 0)
        super().put(others, size_bytes)

    def put_back(self, deliveries: Iterable[Received]) -> None:
        """Returns delivered messages as `Inbox.put_back`."""
        found: defaultdict[str, list[Received]] = defaultdict(list)
        for delivery in deliveries:
            found[_topic_of(delivery)].append(delivery)
        for topic, some in found.items():
            part = self._parts.get(topic)
            if part is None:
                super().put_back(some)
            else:
                part.put_back(some)

    def put_error(self, error: TandemError) -> None:
        """Does nothing: no application waits for it. The reader has logged the error, and continues."""

    def requeue(self, source: MessageSource) -> list[Received]:
        """Removes and returns messages as `Inbox.requeue`."""
        taken = super().requeue(source)
        for part in self._parts.values():
            taken += part.requeue(source)
        return taken

    def close(self) -> None:
        """Ends all waiting."""
        super().close()
        for part in self._parts.values():
            part.close()


def _topic_of(delivery: Received) -> str:
    return delivery.message.topic


class HandlerSet:
    """The handlers of one push consumer, and their workers."""

    def __init__(self, options: PushOptions, other: AnyHandler | None) -> None:
        """Creates the set; `other` is the handler of all topics without their own."""
        self.inbox = SortingInbox(options.cached_bytes_max)
        self._options = options
        self._by_topic: dict[str, Workers] = {}
        self._other = None if other is None else make_workers(other, options)
        self._inboxes: dict[Workers, Inbox] = {} if self._other is None else {self._other: self.inbox}
        self._member: Membership | None = None

    def has_handler(self, topic: str) -> bool:
        """Returns True if messages of the topic have a handler."""
        return topic in self._by_topic or self._other is not None

    def add(self, topic: str, handler: AnyHandler, **changes: Unpack[HandlerChanges]) -> None:
        """Adds the handler of a topic, with the consumer's options except `changes`.

        Raises:  ClientError if the topic already has a handler, or `handler` is not a function; ConfigError.
        """
        if topic in self._by_topic:
            raise ClientError(f"topic {topic!r} already has a handler: a consumer has one for each topic")
        workers = make_workers(handler, replace(self._options, **changes))
        self._by_topic[topic] = workers
        inbox = self._inboxes[workers] = self.inbox.add_part(topic)
        if self._member is not None:
            workers.start(self._member, inbox)

    def start(self, member: Membership) -> None:
        """Handles messages until `drain`."""
        if self._other is None:
            self._inboxes[make_workers(_refuse, replace(self._options, worker_count=1))] = self.inbox
        self._member = member
        for workers, inbox in self._inboxes.items():
            workers.start(member, inbox)

    async def drain(self, timeout_s: float) -> None:
        """Stops starting handlers, and waits for the running ones.

        Raises:  ClientError when a handler calls this: it would wait for itself.
        """
        tasks = [task for workers in self._inboxes for task in workers.tasks]
        if asyncio.current_task() in tasks:
            raise ClientError("a handler cannot close its own consumer: close it from another task")
        if not tasks:
            return  # never started
        self.inbox.close()
        await asyncio.wait(tasks, timeout=timeout_s)

    async def close_trace(self) -> None:
        """Sends the waiting trace records; the client must still be running."""
        for workers in self._inboxes:
            await workers.close_trace()

    def close(self) -> None:
        """Lets the threads end when their handlers do."""
        for workers in self._inboxes:
            workers.close()

    # Called for requests of brokers

    @property
    def worker_count(self) -> int:
        """The number of handlers that run at the same time."""
        return sum(workers.worker_count for workers in self._inboxes)

    async def consume_directly(self, message: ReceivedMessage) -> DirectResult:
        """Calls the handler for one message that an administrator has chosen; nothing is committed."""
        workers = self._by_topic.get(message.topic, self._other)
        if workers is None:
            raise ClientError(f"no handler for topic {message.topic!r}")
        return await workers.consume_directly(message)

    def status(self) -> dict[str, TopicStatus]:
        """Returns the rates per topic, over the last minute."""
        return {topic: status for workers in self._inboxes for topic, status in workers.status().items()}


def make_workers(handler: AnyHandler, options: PushOptions) -> Workers:
    """Returns the workers for a handler. Raises ClientError if it is not a function."""
    if not callable(handler):
        raise ClientError(f"the handler must be a function of one message, not {handler!r:.64}")
    if options.batch_count_max is not None:
        return BatchWorkers(handler, options)
    return Workers(handler, options) if options.order_key is None else KeyWorkers(handler, options)


async def _refuse(message: ReceivedMessage) -> None:
    raise ClientError(f"no handler for topic {message.topic!r}: an earlier run of the group subscribed to it")
