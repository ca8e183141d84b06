"""The messages that a topic has, for assertions on what an application has sent."""

from __future__ import annotations

from tandemmq.client import Admin, ClientOptions, Consumer, ConsumerOptions, ReceivedMessage, StartFrom
from tandemmq.errors import TopicNotFound
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.runtime.machine import unpredictable_bytes


async def read_published(name_servers: str, topic: str, client: ClientOptions) -> list[ReceivedMessage]:
    """Returns the messages that the topic has now, in the order in which they were stored; none if it does
    not exist. No group is changed.
    """
    async with Admin(name_servers, options=client) as admin:
        try:
            ranges = await admin.topic_offsets(topic)
        except TopicNotFound:
            return []
    left = {queue: one.max_offset - 1 for queue, one in ranges.items() if one.max_offset > one.min_offset}
    if not left:
        return []
    options = ConsumerOptions(client=client, start_from=StartFrom.FIRST, auto_ack=False)
    found: list[ReceivedMessage] = []
    async with Consumer(f"published-{unpredictable_bytes(8).hex()}", name_servers, options=options) as reader:
        reader.assign(*left)
        while left:
            for message in await reader.poll(timeout_s=1.0):
                queue = MessageQueue(topic, message.broker_name, message.queue_id)
                if message.queue_offset <= ranges[queue].max_offset - 1:
                    found.append(message)
                if message.queue_offset >= left.get(queue, message.queue_offset + 1):
                    del left[queue]
    return sorted(found, key=lambda one: (one.stored_at_ms, one.queue_id, one.queue_offset))


__all__ = ["read_published"]
