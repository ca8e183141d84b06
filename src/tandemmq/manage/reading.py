"""Reading a topic without a group: `TopicPuller` pulls under the group of RocketMQ's tools, which commits
nothing, so that the commands that print messages leave no trace.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from tandemmq.api import broker_consume
from tandemmq.api.broker_consume import Pulled
from tandemmq.client import MessageQueue, ReceivedMessage
from tandemmq.client.consumer.replica_choice import ReadReplica, choose_replica
from tandemmq.client.consumer.subscription import ALL, Subscription, parse_subscription
from tandemmq.client.route_cache import build_view
from tandemmq.errors import NoRoute
from tandemmq.manage.tools import Target, Tools
from tandemmq.protocol.compression import CONTENT_BYTES_MAX, decode_content
from tandemmq.protocol.properties import REAL_TOPIC
from tandemmq.protocol.record import Record, decode_records
from tandemmq.protocol.requests.consume import PullRequest
from tandemmq.protocol.sys_flag import COMPRESSED, PULL_SUBSCRIPTION, PULL_SUSPEND
from tandemmq.protocol.topic_names import TOOLS_GROUP
from tandemmq.remoting.client import RemotingClient
from tandemmq.units import MASTER_ID

END_OFFSET: Final = 2**63 - 1
PULL_COUNT_MAX: Final = 32
"""The most messages that RocketMQ's brokers return in one answer from memory, by default."""


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message that a broker keeps in a topic of its own until it is delivered to `topic`."""

    broker_name: str
    topic: str
    message_id: str
    unique_key: str
    keys: str
    tags: str
    stored_at_ms: int


def held_facts(record: Record, broker_name: str) -> tuple[str, str, str, str, str, str, int]:
    """Returns the fields of a `HeldMessage`, in their order."""
    topic = record.properties.get(REAL_TOPIC, "")
    place = (broker_name, topic, record.message_id, record.unique_key)
    return (*place, record.keys, record.tags, record.stored_at_ms)


@dataclass(slots=True)
class TopicPuller:
    """Pulls a topic's queues; uses a slave while a master is away. `tags` selects messages, as consumers
    subscribe; bodies that inflate to more than `content_bytes_max` stay as they are stored.

    Raises:  BadRequest for invalid tags.
    """

    tools: Tools
    topic: str
    tags: str = ALL
    content_bytes_max: int = CONTENT_BYTES_MAX
    addresses: Mapping[str, Mapping[int, str]] = field(init=False, default_factory=dict)
    subscription: Subscription = field(init=False)

    def __post_init__(self) -> None:
        self.subscription = parse_subscription(self.topic, self.tags, 0)

    async def queues(self) -> tuple[MessageQueue, ...]:
        """Returns the queues that can be read now. Raises TopicNotFound."""
        view = build_view(self.topic, await self.tools.cluster_admin.topic_route(self.topic))
        self.addresses = view.addresses
        return view.subscribe_queues

    async def queues_at(self, broker_name: str, queue_id: int | None) -> list[MessageQueue]:
        """Returns those of the queues that this broker has and that have this id; an empty name and None
        select all.
        """
        return [
            one
            for one in await self.queues()
            if broker_name in ("", one.broker_name) and queue_id in (None, one.queue_id)
        ]

    def replica(self, queue: MessageQueue) -> ReadReplica:
        """Returns the replica to ask. Raises NoRoute."""
        replica = choose_replica(self.addresses.get(queue.broker_name, {}), MASTER_ID)
        if replica is None:
            raise NoRoute(f"no address is known for broker {queue.broker_name!r}")
        return replica

    async def ends(self, queue: MessageQueue) -> tuple[int, int]:
        """Returns the first offset of a queue, and the one behind its last message."""
        where = self._where(queue)
        return await broker_consume.query_min_offset(*where), await broker_consume.query_max_offset(*where)

    async def search(self, queue: MessageQueue, time_ms: int) -> int:
        """Returns the offset of the first message of a queue that was stored at this time or later."""
        return await broker_consume.search_offset(*self._where(queue), time_ms)

    def _where(self, queue: MessageQueue) -> tuple[RemotingClient, str, str, int]:
        return self.tools.remoting, self.replica(queue).address, queue.topic, queue.queue_id

    async def pull(
        self, queue: MessageQueue, offset: int, *, count_max: int = PULL_COUNT_MAX, suspend_ms: int = 0
    ) -> tuple[Pulled, list[ReceivedMessage], int]:
        """Returns one answer, its messages that match the subscription, and the id of the answering
        broker.
        """
        replica = self.replica(queue)
        header = PullRequest(
            consumer_group=TOOLS_GROUP,
            topic=self.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            count_max=count_max,
            sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if suspend_ms else 0),
            committed_offset=0,
            suspend_timeout_ms=suspend_ms,
            subscription_version=self.subscription.version,
            subscription=self.subscription.expression,
            expression_type=self.subscription.expression_type,
            broker_name=queue.broker_name,
        )
        pulled = await broker_consume.pull(self.tools.remoting, replica.address, header)
        found = [
            make_message(record, queue.broker_name, self.content_bytes_max)
            for record in decode_records(pulled.body)
            if record.queue_offset >= offset and self.subscription.matches(record.tags)
        ]
        return pulled, found, replica.broker_id

    async def walk(
        self, queue: MessageQueue, begin: int, end: int
    ) -> AsyncIterator[tuple[int, list[ReceivedMessage]]]:
        """Yields the messages `[begin, end)` of a queue up to its current end, a part at a time, each behind
        the bytes that were transferred.
        """
        while begin < end:
            pulled, found, _ = await self.pull(queue, begin, count_max=min(PULL_COUNT_MAX, end - begin))
            yield len(pulled.body), [one for one in found if one.queue_offset < end]
            if pulled.next_offset <= begin:
                break
            begin = pulled.next_offset  # behind a hole in the queue, too

    async def read(self, queue: MessageQueue, offset: int, count: int) -> list[ReceivedMessage]:
        """Returns up to `count` messages from the offset on, up to the current end of the queue."""
        messages: list[ReceivedMessage] = []
        async for _, found in self.walk(queue, offset, END_OFFSET if count else offset):
            messages += found
            if len(messages) >= count:
                break
        return messages[:count]

    async def read_range(
        self, queue: MessageQueue, begin: int, end: int
    ) -> tuple[list[ReceivedMessage], int]:
        """Returns the messages of a part of a queue, and the bytes that were transferred."""
        parts = [part async for part in self.walk(queue, begin, end)]
        return [one for _, found in parts for one in found], sum(size for size, _ in parts)


def open_queue(
    tools: Tools, target: Target, topic: str, queue_id: int = 0
) -> tuple[TopicPuller, MessageQueue]:
    """Returns a reader of one queue of this broker alone, whatever the topic's route says."""
    reader = TopicPuller(tools, topic)
    reader.addresses = {target.broker_name: {MASTER_ID: target.address}}
    return reader, MessageQueue(topic, target.broker_name, queue_id)


def make_message(record: Record, broker_name: str, content_bytes_max: int) -> ReceivedMessage:
    """Returns the message of a record; a body that inflates to more than this stays as it is stored."""
    if not record.sys_flag & COMPRESSED:
        return ReceivedMessage(record, broker_name=broker_name)
    stored = msgspec.structs.replace(record, sys_flag=record.sys_flag & ~COMPRESSED)
    message = ReceivedMessage(stored, broker_name=broker_name)
    message.record = record
    message.body, message.body_fault = decode_content(
        record.body, record.sys_flag, bytes_max=content_bytes_max
    )
    return message
