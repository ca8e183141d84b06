"""The records of a send, made from its header and body.

`RecordBuilder` makes them: of an ordinary message, of a batch, and of a message with properties that affect
the broker (a retry, a delay, a transaction). The pure functions read those properties and remove those that a
client may not set.
The header's text is searched as it is; only a message that carries one of the rare names is decoded
(measured: seven `in` tests on a str cost 0.25 us, on bytes 1.1 us, a dict of the pairs 1.1 us).
Source: spec semantics 5, 6.1 and 18; spec store 4, 15 and 16; spec remoting 12.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from tandemmq.broker.arrivals import DELAY, FIFO, NORMAL
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.delay.postpone import DelayRule, make_room_in_dead_letter
from tandemmq.broker.delay.recall import encode_recall_handle
from tandemmq.broker.delay.timers import (
    DELIVERY_TIME_NAMES,
    TIMER_DEL_UNIQKEY,
    has_delivery_time,
    may_cancel,
    plan_timer,
)
from tandemmq.broker.send.batch import make_batch
from tandemmq.broker.send.reply import ReplyForm
from tandemmq.broker.send.targets import RetryRule, SendHeader, SendTarget
from tandemmq.broker.transaction.half import make_half
from tandemmq.errors import MessageIllegal, NotPermitted
from tandemmq.protocol import properties as names
from tandemmq.protocol.command import Command
from tandemmq.protocol.hashes import tag_hash
from tandemmq.protocol.message_id import UniqueKeys, encode_host
from tandemmq.protocol.properties import CLAIM_PROPERTY, decode_properties, encode_properties
from tandemmq.protocol.record import NewBatch, NewRecord
from tandemmq.protocol.sys_flag import (
    INNER_BATCH,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC, TIMER_TOPIC
from tandemmq.remoting.channel import Channel

UNIQ_KEY_MARK = names.UNIQ_KEY + "\x01"
TAGS_MARK = names.TAGS + "\x01"
KEYS_MARK = names.KEYS + "\x01"
_CLAIM_MARK = CLAIM_PROPERTY + "\x01"

_DROPPED_NAMES = ("POP_CK", names.CRC32)
_OTHER_KIND_NAMES = frozenset((names.DELAY, *DELIVERY_TIME_NAMES, names.SHARDING_KEY))
"""The names that make a message a delayed or an ordered one, with or without a priority."""
_DELAY_LEVEL_DIGITS_MAX = 9


def is_unusual(text: str, sys_flag: int) -> bool:
    """Returns True if `inspect` must see the message; a false positive costs only time."""
    return (
        "DELAY" in text
        or "_MSG" in text  # TRAN_MSG and _SYS_MSG_PRIORITY_: a test of its own would cost every send
        or "POP_CK\x01" in text
        or "TIMER_DELIVER" in text
        or "INNER_" in text
        or ("__" in text and ("__CRC32#" in text or "__RMQ.TRANSIENT." in text))
        or sys_flag & (TRANSACTION_MASK | INNER_BATCH) != 0
    )


SHARDING_MARK = names.SHARDING_KEY + "\x01"


def type_of_stored(topic: str, text: str) -> str:
    """Returns the type of a message with these properties that is stored in this topic and is not a half
    message, as RocketMQ's metrics name it.
    """
    if SHARDING_MARK in text:
        return FIFO
    return DELAY if topic in (SCHEDULE_TOPIC, TIMER_TOPIC) else NORMAL


class Inspected(NamedTuple):
    """The result of `inspect`: cleaned properties, delay level (0: none), timer properties, and priority.

    A half message keeps its delay and timer properties: they count from its commit on.
    """

    text: str
    delay_level: int
    timer_properties: Mapping[str, str] = {}
    is_half: bool = False
    priority: int | None = None


def inspect(
    text: str, sys_flag: int, *, delay_level_max: int, is_retry: bool, recall_topic: str | None
) -> Inspected:
    """Returns the properties without those a client may not set, and the delay that the message asks for.

    `is_retry`: the message was consumed before (retry count above 0); with a delay level it is not a half
    message. `recall_topic`: the topic whose timer messages this one may cancel; None while recalls are off.

    Raises:  MessageIllegal for a message that can never be stored.
    """
    pairs = decode_properties(text.encode("utf-8", "replace"))
    level = _delay_level(pairs.get(names.DELAY), delay_level_max)
    is_half = pairs.get(names.TRAN_MSG, "").lower() == "true" and not (is_retry and level > 0)
    if not is_half and sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
        raise MessageIllegal(
            f"sysFlag {sys_flag:#x} marks a prepared or rolled back message, but TRAN_MSG is not true"
        )
    if sys_flag & INNER_BATCH or names.INNER_NUM in pairs or names.INNER_BASE in pairs:
        raise MessageIllegal(
            "inner batches (sysFlag 0x80, INNER_NUM, INNER_BASE) need a BatchCQ topic; none exists here"
        )
    target = pairs.get(TIMER_DEL_UNIQKEY)
    if target is not None and (recall_topic is None or not may_cancel(recall_topic, target)):
        del pairs[TIMER_DEL_UNIQKEY]  # its name makes `_is_clean` False, so the text is encoded again
    priority = names.parse_priority(pairs.get(names.PRIORITY))
    if priority is not None and (is_half or not _OTHER_KIND_NAMES.isdisjoint(pairs)):
        priority = None  # a message has one kind, and these come first (spec rocketmq55 4.2)
        del pairs[names.PRIORITY]
    timer_properties: dict[str, str] = {}
    if level == 0 and has_delivery_time(pairs):
        timer_properties = {
            name: pairs[name] for name in (*DELIVERY_TIME_NAMES, TIMER_DEL_UNIQKEY) if name in pairs
        }
    if not _is_clean(text, len(pairs)):
        kept = {
            name: value
            for name, value in pairs.items()
            if name not in _DROPPED_NAMES and not name.startswith(names.TRANSIENT_PREFIX)
        }
        if level > 0:
            for name in DELIVERY_TIME_NAMES:
                kept.pop(name, None)
        text = encode_properties(kept).decode()
    if is_half:
        return Inspected(text, 0, is_half=True)
    return Inspected(text, level, timer_properties, priority=priority)


def _is_clean(text: str, count: int) -> bool:
    """Returns True if properties of `count` pairs may stay as received: no name has to be dropped, no pair is
    duplicated or malformed. A false negative only costs time.
    """
    return (
        text.count("\x01") == text.count("\x02") == count
        and text.endswith("\x02")
        and "TIMER_" not in text
        and "POP_CK" not in text
        and names.CRC32 not in text
        and names.TRANSIENT_PREFIX not in text
        and text.isascii()
    )


def find_value(text: str, mark: str) -> str:
    """Returns the value of the last pair whose name is `mark` without its 0x01, or "" if there is none. A
    pair without a value is ignored, as by all readers; otherwise a queue entry would name other tags than its
    record.
    """
    start = text.rfind(mark)
    while start >= 0:
        if start == 0 or text[start - 1] == "\x02":
            begin = start + len(mark)
            end = text.find("\x02", begin)
            value = text[begin:end] if end >= 0 else text[begin:]
            if value:
                return value
        start = text.rfind(mark, 0, start)
    return ""


def with_pair(text: str, name: str, value: str) -> str:
    """Returns `text` with a pair appended, which takes precedence over earlier pairs of the same name; adds a
    missing last separator.
    """
    if text and text[-1] != "\x02":
        return f"{text}\x02{name}\x01{value}\x02"
    return f"{text}{name}\x01{value}\x02"


def _delay_level(value: str | None, level_max: int) -> int:
    """Returns the delay level, 0 for none; levels above the highest count as the highest (spec semantics
    18.1).

    Raises:  MessageIllegal if it is not a number: delivering at once would be worse than rejecting the send.
    """
    if value is None:
        return 0
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise MessageIllegal(f"DELAY {value[:32]!r} is not a delay level: it must be a whole number")
    if value.startswith("-") or not digits.strip("0"):
        return 0
    if len(digits) > _DELAY_LEVEL_DIGITS_MAX:
        return level_max
    return min(int(digits), level_max)


class Prepared(msgspec.Struct, gc=False, frozen=True):
    """The records of a send, the queue, key and handle of its answer, and its claim: the sequence property of
    a numbered send, "" for any other.
    """

    records: NewBatch | tuple[NewRecord]
    queue_id: int
    unique_key: str
    claim: str
    recall_handle: str | None = None


class RecordBuilder:
    """Makes the records of sends: assigns missing unique keys and adds the broker's own properties."""

    def __init__(self, core: BrokerCore, form: ReplyForm, retry: RetryRule, delay: DelayRule) -> None:
        options, chance = core.options, core.chance
        self.core, self.retry, self.delay = core, retry, delay
        self._now_ms = core.clock.now_ms
        self._unique_keys = UniqueKeys(
            options.store_ip or options.advertised_host,
            chance.below(1 << 16),
            int.from_bytes(chance.token_bytes(4), "big"),
        )
        pairs = {**form.fields, names.CLUSTER: options.cluster_name}
        self.added = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())
        """The properties that the broker adds to each message, as text."""

    def make(
        self,
        channel: Channel,
        command: Command,
        header: SendHeader,
        target: SendTarget,
        queue_id: int,
        text: str,
    ) -> NewRecord:
        """Returns the record of one message: completes the properties, finds tags and keys (spec semantics
        6.1).
        """
        body = command.body
        if not body:
            raise MessageIllegal("the message has no body: at least one byte is needed")
        unique_key = find_value(text, UNIQ_KEY_MARK)
        if not unique_key:
            unique_key = self._unique_keys.next(self._now_ms())
            text = with_pair(text, names.UNIQ_KEY, unique_key)
        elif text[-1] != "\x02":
            text += "\x02"
        tags = find_value(text, TAGS_MARK)
        return NewRecord(
            topic=target.topic,
            queue_id=queue_id,
            body=body,
            properties=(text + self.added).encode("utf-8", "replace"),
            born_at_ms=header.born_at_ms,
            born_host=encode_host(*channel.peer),
            tag_hash=tag_hash(tags) if tags else 0,
            flag=header.flag,
            sys_flag=header.sys_flag | target.sys_flag,
            retry_count=header.retry_count or 0,
            keys=find_value(text, KEYS_MARK) if KEYS_MARK in text else "",
            unique_key=unique_key,
            wait_stored="WAIT\x01f" not in text or find_value(text, "WAIT\x01").lower() != "false",
        )

    def make_batch(
        self, channel: Channel, command: Command, header: SendHeader, target: SendTarget, queue_id: int
    ) -> Prepared:
        """Returns the records of a batch; the properties of its header only name the batch and its claim.

        Raises:  MessageIllegal.
        """
        text = header.properties or ""
        batch = make_batch(
            command.body,
            header,
            target,
            queue_id,
            born_host=encode_host(*channel.peer),
            body_bytes_max=self.core.store.options.message_bytes_max,
            next_key=lambda: self._unique_keys.next(self._now_ms()),
            wait_stored=find_value(text, "WAIT\x01").lower() != "false",
        )
        return Prepared(batch, queue_id, find_value(text, UNIQ_KEY_MARK), find_value(text, _CLAIM_MARK))

    def make_unusual(
        self, channel: Channel, command: Command, header: SendHeader, target: SendTarget, queue_id: int
    ) -> Prepared:
        """Returns the record of a retry, of a delayed or half message, of one with a priority, or of one with
        names that only the broker may set.

        Raises:  RequestRejected.
        """
        text, now_ms, options = header.properties or "", self._now_ms(), self.core.options
        claim, dlq = find_value(text, _CLAIM_MARK), None
        if target.is_retry:
            dlq = self.retry.redirect(header, command.version, now_ms, channel.peer[0])
            if dlq is not None:
                target, queue_id = dlq, 0
                text = with_pair(text, names.DELAY, "-1")
        text, delay_level, timer_properties, is_half, priority = inspect(
            text,
            header.sys_flag,
            delay_level_max=self.delay.level_max,
            is_retry=bool(header.retry_count and header.retry_count > 0),
            recall_topic=target.topic if options.recall_enable else None,
        )
        if is_half and options.transactions_refused:
            raise NotPermitted(
                f"transactional messages are refused by the broker {options.broker_name}"
                " (rejectTransactionMessage is true)"
            )
        if claim and (is_half or target.is_retry or priority is not None):
            raise MessageIllegal("a numbered send is neither transactional nor a retry, and has no priority")
        if priority is not None:
            queue_id = min(priority, max(target.write_queue_count, 1) - 1)
        record = self.make(channel, command, header, target, queue_id, text)
        recall_handle = None
        if dlq is not None:
            record.properties = make_room_in_dead_letter(record.properties)
        if is_half:
            make_half(record)
        elif delay_level > 0 and target.is_retry:
            self.delay.postpone_retry(record, delay_level, now_ms)
        elif delay_level > 0:
            self.delay.postpone(record, delay_level, now_ms)
        elif timer_properties:
            slot_ms = plan_timer(timer_properties, now_ms, self.delay.timers)
            if slot_ms is not None:
                if not claim:
                    recall_handle = encode_recall_handle(
                        record.topic, options.broker_name, slot_ms + 1, record.unique_key
                    )
                self.delay.postpone_until(record, slot_ms)
        return Prepared((record,), queue_id, record.unique_key, claim, recall_handle)
