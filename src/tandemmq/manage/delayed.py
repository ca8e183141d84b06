"""Messages that wait: on delay levels, and for a time of their own in the timer topic.

A broker reports how far it has delivered each level, and everything behind that waits. No request reports the
waiting timer messages, so the newest part of the timer topic is read: whatever waits was stored, or stored
again, within `TIMER_SPAN_MS`. Java's brokers from 5.0 on also count them by topic.
At a bound: `LEVEL_COUNT_MAX` messages of a level, `TIMER_COUNT_MAX` messages or `TIMER_BYTES_MAX` bytes of
            the timer topic are read, and `is_cut` is set.
Source: spec semantics 18, spec store 15 and 16.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tandemmq.api import broker_admin, broker_send, replica
from tandemmq.broker.delay.recall import decode_recall_handle, encode_recall_handle
from tandemmq.broker.delay.timers import TIMER_DEL_UNIQKEY, TIMER_OUT_MS, cancel_name
from tandemmq.broker.transaction.half import number_of
from tandemmq.errors import BadRequest, ConfigError, NoRoute, RequestRejected, TopicNotFound
from tandemmq.manage.reach import answers_of, ask_each, errors_of
from tandemmq.manage.reading import HeldMessage, held_facts, open_queue
from tandemmq.manage.settings import read_settings_of
from tandemmq.manage.tools import Target, Tools
from tandemmq.manage.transactions import READ_TIMEOUT_S
from tandemmq.protocol import topic_names
from tandemmq.protocol.record import Record
from tandemmq.units import MASTER_ID, MIB

LEVEL_COUNT_MAX: Final = 100
TIMER_COUNT_MAX: Final = 4_096
TIMER_BYTES_MAX: Final = 64 * MIB
TIMER_SPAN_MS: Final = 3 * 24 * 3_600_000
"""The longest time for which a broker lets a timer message wait before it stores the message again."""
_BLOCK: Final = 256


@dataclass(frozen=True, slots=True)
class DelayLevel:
    """The waiting messages of one level of a broker; `next_at_ms` is the time of the first of them."""

    level: int
    delay_ms: int
    waiting: int
    next_at_ms: int | None


@dataclass(frozen=True, slots=True)
class WaitingMessage(HeldMessage):
    """A message that waits. `level` is None for a timer message; only these can be cancelled."""

    due_at_ms: int
    level: int | None


@dataclass(frozen=True, slots=True)
class WaitingMessages:
    """The waiting messages of a broker by due time. `timer_counts`: numbers of timer messages by topic, from
    brokers that count them.
    """

    levels: tuple[DelayLevel, ...]
    messages: tuple[WaitingMessage, ...]
    timer_counts: dict[str, int]
    is_cut: bool


@dataclass(frozen=True, slots=True)
class ClusterWaiting:
    """The levels and the waiting messages, by due time, of the masters that answered; the numbers of timer
    messages that brokers count, by topic; and the errors of the other masters.
    """

    levels: list[tuple[Target, DelayLevel]]
    messages: list[WaitingMessage]
    timer_counts: Counter[str]
    is_cut: bool
    failed: dict[Target, str]


async def read_all_waiting(tools: Tools, masters: Iterable[Target], now_ms: int) -> ClusterWaiting:
    """Returns the waiting messages of these masters."""
    reached = await ask_each(masters, lambda one: read_waiting(tools, one, now_ms), timeout_s=READ_TIMEOUT_S)
    found = answers_of(reached)
    counts: Counter[str] = Counter()
    for _, one in found:
        counts.update(one.timer_counts)
    return ClusterWaiting(
        levels=[(target, level) for target, one in found for level in one.levels],
        messages=sorted((row for _, one in found for row in one.messages), key=lambda row: row.due_at_ms),
        timer_counts=counts,
        is_cut=any(one.is_cut for _, one in found),
        failed=errors_of(reached),
    )


async def read_waiting(tools: Tools, target: Target, now_ms: int) -> WaitingMessages:
    """Returns what waits at a master. Raises NotPermitted, BrokerUnreachable."""
    levels, level_messages = await _read_levels(tools, target)
    timers, is_cut = await _read_timers(tools, target, now_ms)
    is_cut |= sum(one.waiting for one in levels) > len(level_messages)
    messages = sorted([*level_messages, *timers], key=lambda one: (one.due_at_ms, one.message_id))
    return WaitingMessages(tuple(levels), tuple(messages), await _read_timer_counts(tools, target), is_cut)


async def _read_levels(tools: Tools, target: Target) -> tuple[list[DelayLevel], list[WaitingMessage]]:
    """Returns the levels with waiting messages, and the first messages of each."""
    remoting, address = tools.remoting, target.address
    try:
        stats = await broker_admin.query_topic_stats(remoting, address, topic_names.SCHEDULE_TOPIC)
    except TopicNotFound:
        return [], []  # no message was ever delayed
    delivered = (await replica.fetch_delay_offsets(remoting, address)).offsets
    delays_ms = await _read_delays(tools, target)
    levels: list[DelayLevel] = []
    messages: list[WaitingMessage] = []
    for queue, ends in sorted(stats.queues.items(), key=lambda one: one[0].queue_id):
        level = queue.queue_id + 1
        begin = max(ends.min_offset, delivered.get(level, 0))
        if begin >= ends.max_offset:
            continue
        reader, place = open_queue(tools, target, topic_names.SCHEDULE_TOPIC, queue.queue_id)
        found, _ = await reader.read_range(place, begin, min(ends.max_offset, begin + LEVEL_COUNT_MAX))
        rows = [
            _describe(
                one.record, target, topic_names.delivered_at_ms(level, one.stored_at_ms, delays_ms), level
            )
            for one in found
        ]
        messages += rows
        delay_ms = delays_ms[min(level, len(delays_ms)) - 1]
        next_at_ms = rows[0].due_at_ms if rows else None
        levels.append(DelayLevel(level, delay_ms, ends.max_offset - begin, next_at_ms))
    return levels, messages


async def _read_delays(tools: Tools, target: Target) -> Sequence[int]:
    """Returns the broker's delay of each level; RocketMQ's defaults if the broker does not show its
    settings.
    """
    try:
        text = (await read_settings_of(tools, target.address)).get("messageDelayLevel", "")
        return topic_names.parse_delay_levels(text) if text else topic_names.DELAY_LEVELS_MS
    except (RequestRejected, ConfigError):
        return topic_names.DELAY_LEVELS_MS


async def _read_timers(tools: Tools, target: Target, now_ms: int) -> tuple[list[WaitingMessage], bool]:
    """Returns the waiting timer messages, and True if only the newest part of the topic was read."""
    reader, queue = open_queue(tools, target, topic_names.TIMER_TOPIC)
    try:
        begin, end = await reader.ends(queue)
        if begin < end:
            begin = max(begin, await reader.search(queue, now_ms - TIMER_SPAN_MS))
    except TopicNotFound:
        return [], False  # a broker without timers
    first = max(begin, end - TIMER_COUNT_MAX)
    found: dict[str, WaitingMessage] = {}
    cancelled: set[str] = set()
    bytes_read = 0
    while end > first and bytes_read < TIMER_BYTES_MAX:
        block, size = await reader.read_range(queue, max(first, end - _BLOCK), end)
        end = max(first, end - _BLOCK)
        bytes_read += size
        for message in reversed(block):
            record = message.record
            due_ms = number_of(record, TIMER_OUT_MS, 0)
            cancels = record.text(TIMER_DEL_UNIQKEY.encode())
            if cancels:
                cancelled.add(cancels)
            elif due_ms > now_ms:
                # The newest copy of a message that was stored again stands for all.
                found.setdefault(
                    record.unique_key or record.message_id, _describe(record, target, due_ms, None)
                )
    waiting = [one for one in found.values() if not is_cancelled(one, cancelled)]
    return waiting, end > begin


def is_cancelled(message: WaitingMessage, cancelled: Collection[str]) -> bool:
    """Returns True if one of the cancellations names the message: by topic and unique key, or, as the recalls
    of RocketMQ 5.5, by the unique key alone.
    """
    return message.unique_key in cancelled or cancel_name(message.topic, message.unique_key) in cancelled


def _describe(record: Record, target: Target, due_at_ms: int, level: int | None) -> WaitingMessage:
    return WaitingMessage(*held_facts(record, target.broker_name), due_at_ms, level)


async def _read_timer_counts(tools: Tools, target: Target) -> dict[str, int]:
    """Returns the broker's own counts; empty if it counts nothing or does not know the request."""
    try:
        found = await broker_admin.query_timer_metrics(tools.remoting, target.address)
    except RequestRejected:
        return {}
    return {topic: one.count for topic, one in found.topics.items() if one.count}


def handle_of(message: WaitingMessage) -> str:
    """Returns the recall handle of a timer message. Raises BadRequest for a message of a delay level."""
    if message.level is not None:
        raise BadRequest("a message on a delay level cannot be cancelled: brokers recall only timer messages")
    # A producer's handle names the time 1 ms after the slot, which is rounded down to the same slot.
    return encode_recall_handle(message.topic, message.broker_name, message.due_at_ms + 1, message.unique_key)


async def cancel(tools: Tools, handle_text: str) -> str:
    """Cancels the timer message of a recall handle; returns its unique key. Repeating it changes nothing.

    Raises:  BadRequest for an invalid handle; NoRoute; NotPermitted if recalls are off at the broker
             (recallMessageEnable); RequestRejected when it is too late.
    """
    handle = decode_recall_handle(handle_text.strip())
    if handle is None:
        raise BadRequest("this is not a recall handle: expected the text that the send returned")
    route = await tools.cluster_admin.topic_route(handle.topic)
    address = next(
        (one.addresses.get(MASTER_ID) for one in route.brokers if one.broker_name == handle.broker_name), None
    )
    if address is None:
        raise NoRoute(f"broker {handle.broker_name!r} of topic {handle.topic!r} has no master at the moment")
    return await broker_send.recall(tools.remoting, address, handle.topic, handle_text.strip())
