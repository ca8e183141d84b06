"""Moves of a group's committed offsets: a preview of each move, the move itself, and copies of another
group's offsets. Used by commands and by pages.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tandemmq.api import broker_consume
from tandemmq.api.broker_admin import END_OF_QUEUE_MS
from tandemmq.client.admin_base import require_inside
from tandemmq.client.changes import change_each
from tandemmq.errors import NoRoute
from tandemmq.manage.changes import answering_masters
from tandemmq.manage.groups import change_group
from tandemmq.manage.tools import Tools
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.units import MASTER_ID


@dataclass(frozen=True, slots=True)
class NewPosition:
    """The position to which a group is moved: in each queue the first message stored at or after `time_ms`
    (END_OF_QUEUE_MS: the end), or the offset of one queue.
    """

    time_ms: int = END_OF_QUEUE_MS
    queue: MessageQueue | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class QueueMove:
    """The move of a group in one queue, which holds the messages `[min_offset, max_offset)`. `committed` is
    None if the group has no offset there; then it counts as one that has read nothing.
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int
    committed: int | None
    new_offset: int

    @property
    def skipped(self) -> int:
        """The number of stored messages that the group will not consume any more."""
        return max(0, min(self.new_offset, self.max_offset) - max(self.committed or 0, self.min_offset))

    @property
    def repeated(self) -> int:
        """The number of stored messages that the group will consume once more."""
        return max(0, min(self.committed or 0, self.max_offset) - max(self.new_offset, self.min_offset))


async def preview_reset(tools: Tools, group: str, topic: str, position: NewPosition) -> list[QueueMove]:
    """Returns what `reset_group` would do in each queue now; changes nothing.

    Raises:  TopicNotFound; QueueNotFound; BadRequest for an offset outside the queue; NoRoute for a broker
             that cannot be asked.
    """
    admin = tools.cluster_admin
    ends, committed = await asyncio.gather(admin.topic_offsets(topic), admin.committed_offsets(group, topic))
    if position.queue is not None:
        require_inside(ends, position.queue, position.offset)
        ends = {position.queue: ends[position.queue]}
    found = {} if position.time_ms == END_OF_QUEUE_MS else await admin.offsets_at(topic, position.time_ms)
    return [
        QueueMove(
            queue,
            one.min_offset,
            one.max_offset,
            committed.get(queue),
            found.get(queue, one.max_offset) if position.offset is None else position.offset,
        )
        for queue, one in ends.items()
    ]


async def reset_group(tools: Tools, group: str, topic: str, position: NewPosition) -> dict[MessageQueue, int]:
    """Moves a group, running or not; returns the new offset of each moved queue.

    Raises:  TopicNotFound; NoRoute for a broker without a master; the errors of `Admin.set_offsets`.
    """
    if position.queue is None:
        return await tools.cluster_admin.reset_offsets(group, topic, position.time_ms)
    (move,) = await preview_reset(tools, group, topic, position)
    return await tools.cluster_admin.set_offsets(group, {move.queue: move.new_offset})


async def start_group(tools: Tools, group: str, topic: str, offset: int) -> None:
    """Commits an offset in each queue of the topic for a new group: this one, or the nearest that the queue
    has. Creates the group, because RocketMQ's brokers from 5.0 on accept offsets only of groups that exist.
    """
    await change_group(tools, await answering_masters(tools), group, {})
    for queue, ends in (await tools.cluster_admin.topic_offsets(topic)).items():
        at = min(max(offset, ends.min_offset), ends.max_offset)
        await tools.cluster_admin.set_offset(group, queue, at)


async def clone_offsets(tools: Tools, source: str, target: str, topic: str) -> list[str]:
    """Copies another group's offsets in a topic to a group that is not running. Returns the addresses of the
    brokers.

    Raises:  NoRoute for a broker without a master, before anything is copied; the errors of `change_each`.
    """
    route = await tools.cluster_admin.topic_route(topic)
    masters: dict[str, str] = {}
    for broker in sorted(route.brokers, key=lambda one: one.broker_name):
        address = broker.addresses.get(MASTER_ID)
        if address is None:
            raise NoRoute(f"broker {broker.broker_name!r} has no master: offsets cannot be cloned there")
        masters[broker.broker_name] = address
    await change_each(
        masters,
        lambda name: broker_consume.clone_offsets(tools.remoting, masters[name], source, target, topic),
    )
    return list(masters.values())
