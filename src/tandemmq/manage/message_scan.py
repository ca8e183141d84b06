"""Messages of a topic in the order of their store times, newest or oldest first, by reading its queues.

No index leads from a time, a tag or a property to messages, so a scan reads queues in blocks and merges them.
Invariants: a scan commits nothing. `resume` continues exactly behind the last message that was returned.
At a bound: a scan ends after `count_max` messages, `SCAN_MAX` positions of queues or `SCAN_BYTES_MAX` bytes,
            and reports how far it came.
Source: spec semantics 8, 19. Brokers older than 5.0 return the nearest message of a time, on either side, so
the ends of a time are checked message by message.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tandemmq.client import MessageQueue, ReceivedMessage
from tandemmq.client.consumer.subscription import ALL
from tandemmq.errors import BadRequest, ClientError, NoRoute
from tandemmq.manage.reach import WORKS_AT_ONCE_MAX, map_each
from tandemmq.manage.reading import PULL_COUNT_MAX, TopicPuller
from tandemmq.manage.tools import Tools
from tandemmq.protocol.compression import CONTENT_BYTES_MAX
from tandemmq.units import MIB

SCAN_MAX: Final = 2_000
SCAN_BYTES_MAX: Final = 64 * MIB
QUEUES_MAX: Final = 512
"""The most queues of one scan; for a topic with more, a broker or queue must be named."""
_RESUME: Final = re.compile(r"(?:([^\s:@]+):(\d{1,9})@(\d{1,18})-(\d{1,18})(?:\s|$))+")
_RANGE: Final = re.compile(r"([^\s:@]+):(\d+)@(\d+)-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """The messages to find. Times are store times, both included. An empty `property_value` selects every
    message that has the property.
    """

    begin_ms: int | None = None
    end_ms: int | None = None
    broker_name: str = ""
    queue_id: int | None = None
    first_offset: int | None = None
    tags: str = ALL
    key: str = ""
    property_name: str = ""
    property_value: str = ""

    def matches(self, message: ReceivedMessage) -> bool:
        """Returns True for a message to show. The reader has already compared tags."""
        if not (self.begin_ms or 0) <= message.stored_at_ms <= (self.end_ms or 2**63):
            return False
        if self.key and self.key not in message.keys:
            return False
        if not self.property_name:
            return True
        value = message.properties.get(self.property_name)
        return value is not None and self.property_value in ("", value)


EVERYTHING: Final = MessageFilter()


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """One page of a scan. `scanned` of `total` positions of queues were read; `resume` is empty at the end of
    the scan. `silent`: brokers that did not answer, whose messages are missing.
    """

    messages: tuple[ReceivedMessage, ...]
    scanned: int
    total: int
    resume: str
    silent: tuple[str, ...] = ()


@dataclass(slots=True)
class _QueueScan:
    """The part `[begin, end)` of one queue that is not read yet, and the messages that were read but not
    returned.
    """

    queue: MessageQueue
    begin: int
    end: int
    waiting: list[ReceivedMessage] = field(default_factory=list)

    @property
    def is_due(self) -> bool:
        """True if the queue must be read before the next message of the topic is known."""
        return not self.waiting and self.begin < self.end

    def render(self, *, newest_first: bool) -> str:
        """Returns the part of the queue that a later scan has to read; empty if there is none."""
        begin, end = self.begin, self.end
        if self.waiting and newest_first:
            end = self.waiting[0].queue_offset + 1
        elif self.waiting:
            begin = self.waiting[0].queue_offset
        name = f"{self.queue.broker_name}:{self.queue.queue_id}"
        return f"{name}@{begin}-{end}" if begin < end or self.waiting else ""


@dataclass(slots=True)
class MessageScan:
    """One scan of a topic."""

    reader: TopicPuller
    wanted: MessageFilter
    newest_first: bool
    scanned: int = 0
    bytes_read: int = 0
    parts: list[_QueueScan] = field(default_factory=list)
    silent: set[str] = field(default_factory=set)

    async def open(self, resume: str) -> None:
        """Finds the queues and their parts to read. Raises TopicNotFound, NoRoute, BadRequest."""
        queues = await self.reader.queues_at(self.wanted.broker_name, self.wanted.queue_id)
        if not queues:
            raise NoRoute(f"topic {self.reader.topic!r} has no readable queue with this broker and id")
        if len(queues) > QUEUES_MAX:
            raise BadRequest(
                f"the topic has {len(queues)} queues, at most {QUEUES_MAX} are scanned: name a broker"
            )
        if resume:
            self.parts = _parse_resume(resume, queues)
            return
        self.parts = await map_each(queues, self._find_ends)

    async def _find_ends(self, queue: MessageQueue) -> _QueueScan:
        """Returns the part of the queue that holds all messages of the wanted times."""
        wanted = self.wanted
        try:
            begin, end = await self.reader.ends(queue)
            if wanted.begin_ms is not None and begin < end:
                begin = max(begin, await self.reader.search(queue, wanted.begin_ms - 1))
            if wanted.end_ms is not None and begin < end:
                end = min(end, await self.reader.search(queue, wanted.end_ms + 1) + 1)
        except ClientError:
            self.silent.add(queue.broker_name)
            return _QueueScan(queue, 0, 0)
        return _QueueScan(queue, max(begin, wanted.first_offset or 0), end)

    async def run(self, count_max: int) -> FoundMessages:
        """Returns the next messages, at most `count_max`."""
        total = sum(max(0, one.end - one.begin) for one in self.parts)
        block = max(8, min(PULL_COUNT_MAX, 2 * count_max // max(1, len(self.parts))))
        # Each page gets beyond the blocks with which the queues are compared.
        scan_max = max(SCAN_MAX, 4 * block * len(self.parts))
        found: list[ReceivedMessage] = []
        while len(found) < count_max:
            due = [one for one in self.parts if one.is_due][:WORKS_AT_ONCE_MAX]
            if due:
                if self.scanned >= scan_max or self.bytes_read >= SCAN_BYTES_MAX:
                    break
                await asyncio.gather(*(self._read_block(one, block) for one in due))
                continue
            part = self._next_part()
            if part is None:
                break
            found.append(part.waiting.pop(0))
        rests = (one.render(newest_first=self.newest_first) for one in self.parts)
        resume = " ".join(filter(None, rests))
        return FoundMessages(tuple(found), self.scanned, total, resume, tuple(sorted(self.silent)))

    def _next_part(self) -> _QueueScan | None:
        """Returns the queue with the next message; None at the end."""
        waiting = [one for one in self.parts if one.waiting]
        if not waiting:
            return None
        choose = max if self.newest_first else min
        return choose(
            waiting, key=lambda one: (one.waiting[0].stored_at_ms, one.queue.broker_name, one.queue.queue_id)
        )

    async def _read_block(self, part: _QueueScan, block: int) -> None:
        """Reads the next block of a queue; newest first, the last block of its part."""
        begin = max(part.begin, part.end - block) if self.newest_first else part.begin
        end = part.end if self.newest_first else min(part.end, part.begin + block)
        try:
            found, size = await self.reader.read_range(part.queue, begin, end)
        except ClientError:
            self.silent.add(part.queue.broker_name)
            part.begin = part.end
            return
        self.bytes_read += size
        self.scanned += end - begin
        part.waiting = [one for one in found if self.wanted.matches(one)]
        if self.newest_first:
            part.waiting.reverse()
            part.end = begin
        else:
            part.begin = end


def _parse_resume(resume: str, queues: Sequence[MessageQueue]) -> list[_QueueScan]:
    """Returns the parts of queues that a text of `FoundMessages.resume` names; queues that are gone are left
    out. Raises BadRequest.
    """
    if not _RESUME.fullmatch(resume) or len(resume.split()) > QUEUES_MAX:
        raise BadRequest("the position from which the scan is to continue is invalid")
    known = {(one.broker_name, one.queue_id): one for one in queues}
    parts = []
    for broker_name, queue_id, begin, end in _RANGE.findall(resume):
        queue = known.get((broker_name, int(queue_id)))
        if queue is not None:
            parts.append(_QueueScan(queue, int(begin), int(end)))
    return parts


async def scan_messages(
    tools: Tools,
    topic: str,
    wanted: MessageFilter = EVERYTHING,
    *,
    newest_first: bool = True,
    count_max: int = 50,
    resume: str = "",
    content_bytes_max: int = CONTENT_BYTES_MAX,
) -> FoundMessages:
    """Returns messages of a topic in the order of their store times. `resume`: the text of the page before.
    Bodies that inflate to more than `content_bytes_max` stay as they are stored.

    Raises:  TopicNotFound; NoRoute if no queue fits; BadRequest for an invalid `resume`, or too many queues.
    """
    reader = TopicPuller(tools, topic, wanted.tags or ALL, content_bytes_max)
    scan = MessageScan(reader, wanted, newest_first)
    await scan.open(resume)
    return await scan.run(count_max)
