"""Dead letters: the messages whose retries a group has used up; listed, sent again, edited, exported.

A resend of all letters keeps its progress as a committed offset of a separate group, so the broker stores it,
and every machine sees it. The offset is committed after the sends: of an interrupted run, the letters sent
after the last commit, at most `RESEND_COUNT`, are sent twice by the next run. A resend of chosen letters has
no progress: to repeat it sends them twice. A letter keeps its unique key, so a consumer that remembers keys
recognizes the second one.
Source: spec semantics 7.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tandemmq import errors
from tandemmq.api import broker_admin, broker_send
from tandemmq.api.broker_send import SendStatus
from tandemmq.client import MessageQueue, ReceivedMessage
from tandemmq.client.changes import change_each
from tandemmq.client.route_cache import RouteView, build_view
from tandemmq.manage.changes import answering_masters
from tandemmq.manage.messages import find_by_position
from tandemmq.manage.reach import map_each
from tandemmq.manage.reading import TopicPuller
from tandemmq.manage.tools import Place, Tools
from tandemmq.protocol import properties as names
from tandemmq.protocol import topic_names
from tandemmq.protocol.bodies.route import TopicRoute
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.requests.send import SendRequestV2
from tandemmq.units import MIB

RESEND_COUNT: Final = 256
"""The number of messages that are sent before the progress is saved."""
ORIGIN: Final = "*origin*"
"""The target that stands for the topic from which each letter came."""
GROUPS_MAX: Final = 1_000
EXPORT_MAX: Final = 10_000
EXPORT_BYTES_MAX: Final = 32 * MIB

_DELIVERY_PROPERTIES: Final = frozenset(
    {
        names.RECONSUME_TIME,
        names.MAX_RECONSUME_TIMES,
        names.DELAY,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
        names.REAL_TOPIC,
        names.REAL_QID,
        names.TRAN_MSG,
        names.TIMER_DELAY_SEC,
        # The broker adds these again. Without WAIT it waits for its disk and slaves.
        names.WAIT,
        names.MSG_REGION,
        names.TRACE_ON,
        names.CLUSTER,
    }
)


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """The dead letters of a group: all that are kept, and those not sent again by a resend of all. `error`
    explains missing numbers.
    """

    group: str
    kept: int | None
    left: int | None
    error: str = ""


async def read_dead_letter_groups(tools: Tools) -> list[str]:
    """Returns the groups that ever had a dead letter, by name; the first `GROUPS_MAX` of them."""
    topics = [one for one in await tools.cluster_admin.topics() if topic_names.is_dlq_topic(one)]
    return sorted(one.removeprefix(topic_names.DLQ_PREFIX) for one in topics)[:GROUPS_MAX]


async def read_dead_letter_counts(tools: Tools, groups: Sequence[str]) -> dict[str, DeadLetterCount]:
    """Returns the numbers of these groups; each costs some requests."""
    counts = await map_each(groups, partial(read_dead_letter_count, tools))
    return {one.group: one for one in counts}


async def read_dead_letter_count(tools: Tools, group: str) -> DeadLetterCount:
    """Returns the numbers of one group."""
    admin, topic = tools.cluster_admin, topic_names.dlq_topic(group)
    try:
        ends = await admin.topic_offsets(topic)
        marks = await admin.committed_offsets(_mark_group(group), topic)
    except errors.TandemError as error:
        return DeadLetterCount(group, None, None, str(error))
    kept = sum(one.count for one in ends.values())
    left = sum(
        max(0, one.max_offset - max(one.min_offset, marks.get(queue) or 0)) for queue, one in ends.items()
    )
    return DeadLetterCount(group, kept, left)


def _mark_group(group: str) -> str:
    return f"TANDEMMQ_RESEND_{group}"


def origin_of(message: ReceivedMessage) -> str:
    """Returns the topic from which a dead letter came; empty if the letter does not name it."""
    properties = message.properties
    return properties.get(names.RETRY_TOPIC) or properties.get(names.DLQ_ORIGIN_TOPIC) or ""


@dataclass(frozen=True, slots=True)
class LetterEdit:
    """Changes to a dead letter before it is sent; None keeps a part as it is."""

    body: bytes | None = None
    tags: str | None = None
    keys: str | None = None
    properties: dict[str, str] | None = None

    def pairs(self, held: dict[str, str]) -> dict[str, str]:
        """Returns the properties of a letter with these changes. Raises BadRequest for a reserved name."""
        pairs = dict(held)
        if self.properties is not None:
            reserved = [name for name in self.properties if names.is_reserved(name)]
            if reserved:
                raise errors.BadRequest(f"the property name {reserved[0]!r} is reserved")
            pairs = {name: text for name, text in pairs.items() if names.is_reserved(name)}
            pairs |= self.properties
        for name, text in ((names.TAGS, self.tags), (names.KEYS, self.keys)):
            if text is not None:
                pairs[name] = text.strip()
        return {name: text for name, text in pairs.items() if text}


UNCHANGED: Final = LetterEdit()


def _ignore(_: str) -> None:
    """Drops a remark."""


@dataclass(slots=True)
class DeadLetterSender:
    """Sends dead letters of a group to a topic: `to`, else the group's retry topic, where only this group
    receives them; `ORIGIN` is the topic of each letter. `on_note` receives remarks for the user.
    """

    tools: Tools
    group: str
    to: str = ""
    on_note: Callable[[str], None] = _ignore
    sent_count: int = 0
    _views: dict[str, RouteView] = field(default_factory=dict)

    def target_of(self, message: ReceivedMessage) -> str:
        """Returns the topic for this letter. Raises BadRequest if it does not name its origin."""
        if self.to != ORIGIN:
            return self.to or topic_names.retry_topic(self.group)
        origin = origin_of(message)
        if not origin:
            raise errors.BadRequest(
                f"dead letter {message.message_id} does not name the topic from which it came"
            )
        return origin

    async def send(self, messages: Iterable[ReceivedMessage], edit: LetterEdit = UNCHANGED) -> None:
        """Sends the messages one after the other, to keep their order. Raises the first error."""
        self._views.clear()  # masters may have moved since the last part
        for message in messages:
            target = self.target_of(message)
            view = await self._view(target)
            masters = [view.master_address(name) for name in (message.broker_name, *view.addresses)]
            address = next(filter(None, masters), None)
            if address is None:
                raise errors.NoRoute(f"no broker of {target} has a master at the moment")
            answer = await self._send_one(message, target, address, edit)
            self.sent_count += 1
            if answer.status is not SendStatus.SEND_OK:
                self.on_note(f"{message.message_id} is not replicated yet: {answer.status.value}")

    async def _send_one(
        self, message: ReceivedMessage, target: str, address: str, edit: LetterEdit
    ) -> broker_send.SendAnswer:
        """Sends one message; if the broker has no room for its properties, without its origin, as the dead
        letter itself may be stored.
        """
        body = bytes(message.body) if edit.body is None else edit.body
        pairs = edit.pairs(message.properties)
        flag = message.body_sys_flag if edit.body is None else 0
        header = _make_header(message, target, pairs, _DELIVERY_PROPERTIES, flag)
        try:
            return await broker_send.send(self.tools.remoting, address, header, body)
        except errors.MessageIllegal:
            dropped = _DELIVERY_PROPERTIES | {names.ORIGIN_MESSAGE_ID, names.RETRY_TOPIC}
            header = _make_header(message, target, pairs, dropped, flag)
            return await broker_send.send(self.tools.remoting, address, header, body)

    async def _view(self, target: str) -> RouteView:
        if target not in self._views:
            self._views[target] = build_view(target, await self._route(target))
        return self._views[target]

    async def _route(self, target: str) -> TopicRoute:
        """Returns the route of the target; if the retry topic has none, that of the dead letters: their
        brokers accept the group's retries, too.
        """
        admin = self.tools.cluster_admin
        try:
            return await admin.topic_route(target)
        except errors.TopicNotFound:
            if not topic_names.is_retry_topic(target):
                raise
            return await admin.topic_route(topic_names.dlq_topic(self.group))


def _make_header(
    message: ReceivedMessage, target: str, properties: dict[str, str], dropped: frozenset[str], sys_flag: int
) -> SendRequestV2:
    """Returns the header for the message with its original content and a new retry count."""
    pairs = {name: text for name, text in properties.items() if name not in dropped}
    if not topic_names.is_retry_topic(target):
        pairs.pop(names.RETRY_TOPIC, None)
    return SendRequestV2(
        producer_group="TANDEMMQ_RESEND",
        topic=target,
        default_topic=topic_names.AUTO_CREATE_TOPIC,
        default_topic_queue_count=4,
        queue_id=-1,
        sys_flag=sys_flag,
        born_at_ms=message.born_at_ms,
        flag=message.record.flag,
        properties=encode_properties(pairs).decode(),
        broker_name=message.broker_name,
    )


# All letters of a group


@dataclass(slots=True)
class DeadLetterReader:
    """The dead letters of a group from the progress of earlier resends on, or all of them."""

    tools: Tools
    group: str
    on_note: Callable[[str], None] = _ignore
    ends: dict[MessageQueue, tuple[int, int]] = field(default_factory=dict)
    _puller: TopicPuller | None = None

    async def open(self, *, again: bool) -> None:
        """Finds the dead letters to read now; `again` includes those that an earlier resend has sent.

        Raises:  NotPermitted if the topic cannot be read.
        """
        admin, topic = self.tools.cluster_admin, topic_names.dlq_topic(self.group)
        self._puller = TopicPuller(self.tools, topic)
        try:
            queues = await self._puller.queues()
        except errors.TopicNotFound:
            self.on_note(f"topic {topic} does not exist: the group never had a dead letter")
            return
        if not queues:
            raise errors.NotPermitted(
                f"{topic} is not readable; `tandemmq admin updateTopic -t {topic} -p 6` allows it"
            )
        marks = {} if again else await admin.committed_offsets(_mark_group(self.group), topic)
        for queue, ends in (await admin.topic_offsets(topic)).items():
            begin = max(ends.min_offset, marks.get(queue) or 0)
            self.ends[queue] = begin, ends.max_offset

    async def prepare(self) -> None:
        """Makes sure that the progress can be saved, before anything is sent: Java's brokers from 5.0 on
        accept offsets only of groups that exist.
        """
        assert self._puller is not None, "not open"
        mark, admin = _mark_group(self.group), self.tools.cluster_admin
        for queue, (begin, _) in self.ends.items():
            try:
                await admin.set_offset(mark, queue, begin)
            except errors.GroupNotFound:
                address = self._puller.replica(queue).address
                await broker_admin.create_group(
                    self.tools.remoting, address, SubscriptionGroupConfig(name=mark)
                )
                await admin.set_offset(mark, queue, begin)

    async def read(self) -> AsyncIterator[tuple[MessageQueue, list[ReceivedMessage]]]:
        """Yields the dead letters by queue, at most `RESEND_COUNT` at once."""
        assert self._puller is not None, "not open"
        for queue, (begin, end) in self.ends.items():
            while begin < end:
                found = await self._puller.read(queue, begin, min(RESEND_COUNT, end - begin))
                if not found:
                    break
                begin = found[-1].queue_offset + 1
                yield queue, found

    async def save(self, queue: MessageQueue, last: ReceivedMessage) -> None:
        """Saves that all letters of the queue up to this one are sent."""
        mark = _mark_group(self.group)
        await self.tools.cluster_admin.set_offset(mark, queue, last.queue_offset + 1)


@dataclass(frozen=True, slots=True)
class Resent:
    """The outcome of a resend: letters sent now, letters left for the next run, remarks, and the error that
    ended it early.
    """

    sent: int
    left: int
    notes: tuple[str, ...] = ()
    error: str = ""


async def send_part(
    reader: DeadLetterReader,
    sender: DeadLetterSender,
    queue: MessageQueue,
    part: Sequence[ReceivedMessage],
) -> None:
    """Sends the next part of a queue's letters, and saves the progress. A letter that cannot be sent does not
    make the next run repeat those before it.
    """
    before = sender.sent_count
    try:
        await sender.send(part)
    finally:
        if count := sender.sent_count - before:
            await reader.save(queue, part[count - 1])


async def resend_all(tools: Tools, group: str, to: str, *, count_max: int) -> Resent:
    """Sends the dead letters that no earlier run has sent, until `count_max` are sent; the next run continues
    behind the last saved one.

    Raises:  BadRequest for an invalid target; NotPermitted if the letters cannot be read, or the progress
             cannot be saved; nothing is sent then.
    """
    _check_target(to)
    notes: list[str] = []
    reader = DeadLetterReader(tools, group, notes.append)
    sender = DeadLetterSender(tools, group, to, notes.append)
    await reader.open(again=False)
    await reader.prepare()
    failure = ""
    try:
        async for queue, messages in reader.read():
            await send_part(reader, sender, queue, messages[: count_max - sender.sent_count])
            if sender.sent_count >= count_max:
                break
    except errors.TandemError as error:
        failure = str(error)
    left = sum(end - begin for begin, end in reader.ends.values()) - sender.sent_count
    return Resent(sender.sent_count, max(0, left), tuple(notes), failure)


async def resend_chosen(
    tools: Tools, group: str, to: str, letters: Sequence[ReceivedMessage], edit: LetterEdit = UNCHANGED
) -> Resent:
    """Sends these dead letters, each once per call. Raises BadRequest for an invalid target."""
    _check_target(to)
    notes: list[str] = []
    sender = DeadLetterSender(tools, group, to, notes.append)
    failure = ""
    try:
        await sender.send(letters, edit)
    except errors.TandemError as error:
        failure = str(error)
    return Resent(sender.sent_count, len(letters) - sender.sent_count, tuple(notes), failure)


def _check_target(to: str) -> None:
    if to and to != ORIGIN:
        topic_names.check_topic(to)


async def find_letter(
    tools: Tools, group: str, broker_name: str, queue_id: int, offset: int
) -> ReceivedMessage | None:
    """Returns the dead letter at this position; None if there is none."""
    record = await find_by_position(tools, topic_names.dlq_topic(group), broker_name, queue_id, offset)
    return None if record is None else ReceivedMessage(record, broker_name=broker_name)


async def count_resent(tools: Tools, letter: ReceivedMessage, target: str) -> int:
    """Returns the number of messages in the target that have the letter's unique key and are newer than the
    letter: it was sent there already.
    """
    key = letter.record.unique_key
    if not key:
        return 0
    try:
        found = await tools.cluster_admin.find_by_unique_key(target, key)
    except errors.TopicNotFound:
        return 0
    return sum(one.stored_at_ms >= letter.stored_at_ms for one in found)


async def purge_letters(tools: Tools, group: str) -> None:
    """Deletes all dead letters of a group with their topic, also those that arrive meanwhile. The
    group's next dead letter creates the topic again.

    Raises:  BrokersAway before anything is deleted; the errors of `change_each`.
    """
    topic, mark = topic_names.dlq_topic(group), _mark_group(group)
    route = await tools.cluster_admin.topic_route(topic)
    clusters = sorted({one.cluster for one in route.brokers})
    masters = [target for one in clusters for target in await answering_masters(tools, Place(cluster=one))]
    for cluster in clusters:
        await tools.cluster_admin.delete_topic(topic, cluster=cluster)
    # A progress of the old topic would hide the first letters of the new one.
    await change_each(
        masters,
        lambda target: broker_admin.delete_group(tools.remoting, target.address, mark, removes_offsets=True),
    )


async def export_letters(tools: Tools, group: str) -> tuple[bytes, bool]:
    """Returns the dead letters as JSON lines, oldest first in each queue, and True if `EXPORT_MAX` letters or
    `EXPORT_BYTES_MAX` bytes were not enough for all.
    """
    reader = DeadLetterReader(tools, group)
    await reader.open(again=True)
    lines = bytearray()
    count = 0
    async for _, messages in reader.read():
        for message in messages:
            if count >= EXPORT_MAX or len(lines) > EXPORT_BYTES_MAX:
                return bytes(lines), True
            lines += json.dumps(message.as_object(), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            count += 1
    return bytes(lines), False
