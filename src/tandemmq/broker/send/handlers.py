"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: from a frame to the store's append.

This is the broker's hot path: decode the header, look up the topic, complete the properties, append. Nothing
awaits; `SendReply.done` builds the answer when the store confirms. `RetryRule` decides where a send to a
retry topic goes, `make_batch` splits a batch, `SendHandlers` handles every form of a send.
Every rejection carries the region and trace fields, because Java's clients read them without a null check.
Order of the checks: spec semantics 5; the store's own checks (sizes, role, disk) come last, in `append`. A
send that created its topic waits until the topic is on disk (`UnsavedTopics`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import count, repeat
from typing import TypeAlias

from tandemmq.broker.clients.queue_locks import QueueLocks
from tandemmq.broker.delay.recall import encode_recall_handle
from tandemmq.broker.guards import require_group
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.send.assembly import (
    KEYS_MARK,
    TAGS_MARK,
    UNIQ_KEY_MARK,
    DelayRule,
    SendHeader,
    SendTarget,
    SendTargets,
    find_value,
    inspect,
    is_unusual,
    make_room_in_dead_letter,
    with_pair,
)
from tandemmq.broker.send.numbered import NumberedSends, parse_claim
from tandemmq.broker.send.reply import ReplyForm, SendReply, TimerReply, ignore_outcome
from tandemmq.broker.stats import BrokerStats
from tandemmq.broker.topics.auto_create import TopicCreator
from tandemmq.broker.topics.group_table import GroupTable
from tandemmq.broker.transaction.half import make_half
from tandemmq.errors import BadRequest, Busy, MessageIllegal, NotPermitted, RequestRejected
from tandemmq.protocol import properties as names
from tandemmq.protocol.batch import split_columns
from tandemmq.protocol.codes import FLAG_ONEWAY, VERSION_MAX_RETRY_HONOURED, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.hashes import tag_hash
from tandemmq.protocol.message_id import UniqueKeys, encode_host
from tandemmq.protocol.properties import CLAIM_PROPERTY, append_property, find_property, remove_property
from tandemmq.protocol.record import NewBatch, NewRecord, tag_hash_of
from tandemmq.protocol.requests.send import SendRequest, SendRequestV2
from tandemmq.protocol.sys_flag import INNER_BATCH, TRANSACTION_MASK
from tandemmq.protocol.topic_names import RETRY_PREFIX, TOPIC_CHARS_MAX
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock, Random
from tandemmq.store.message_store import MessageStore
from tandemmq.units import Buffer


class RetryRule:
    """Decides whether a send to a retry topic is retried or becomes a dead letter (spec semantics 7.2)."""

    def __init__(self, groups: GroupTable, locks: QueueLocks, creator: TopicCreator) -> None:
        self._groups = groups
        self._locks = locks
        self._creator = creator

    def redirect(self, header: SendHeader, version: int, now_ms: int, host: str) -> SendTarget | None:
        """Returns the group's dead letter topic, or None when the message is to be retried.

        A group that holds queue locks consumes in order and has already retried the message itself.

        Raises:  the errors of `require_group`.
        """
        group = header.topic.removeprefix(RETRY_PREFIX)
        config = require_group(self._groups, group, now_ms, host)
        retry_count_max = config.retry_count_max
        if header.retry_count_max is not None and version >= VERSION_MAX_RETRY_HONOURED:
            retry_count_max = header.retry_count_max
        if (header.retry_count or 0) <= retry_count_max and not self._locks.has_lock(group):
            return None
        return SendTarget(self._creator.create_dlq_topic(group))


# A batch send, split into its records; all of them are stored, or none. Pure.
#
# Each message keeps its own properties; those in the request's header only say whether to wait and what to
# answer (the form of 5.3.4; earlier brokers merged them in, which hid each message's own unique key).
# Source: spec store 4.1, spec remoting 12.6, spec semantics 5 (row 8).

_REFUSED_NAMES = (
    b"DELAY",
    b"TRAN_MSG",
    b"TIMER_DELAY_SEC",
    b"TIMER_DELAY_MS",
    b"TIMER_DELIVER_MS",
    b"INNER_NUM",
)
_REMOVED_NAMES = (b"POP_CK", b"__CRC32#")
_UNCLEAN_PARTS = (b"DEL", b"TRAN_MSG", b"INNER_NUM", b"POP_CK", b"__CRC32#")
"""Fragments of all rejected and removed names: properties without any fragment contain none of those
names.
"""
assert all(any(part in name for part in _UNCLEAN_PARTS) for name in (*_REFUSED_NAMES, *_REMOVED_NAMES))
_UNIQUE_MARK = b"UNIQ_KEY\x01"
_KNOWN_BYTES_MAX = 256
"""The longest properties, in bytes, whose parsed form is cached."""
_ALIKE_COUNT_MIN = 8
"""The batch size from which on checking for uniform properties pays off."""


def make_batch(
    body: Buffer,
    header: SendHeader,
    target: SendTarget,
    queue_id: int,
    *,
    born_host: bytes,
    body_bytes_max: int,
) -> NewBatch:
    """Returns the records of a batch, in order; a message without UNIQ_KEY gets an empty unique key.

    Raises:  MessageIllegal naming what a batch may not be.
    """
    topic = target.topic
    if len(topic) > TOPIC_CHARS_MAX:
        raise MessageIllegal(
            f"a batch's topic has {len(topic)} characters, at most {TOPIC_CHARS_MAX} are allowed"
        )
    if target.is_retry:
        raise MessageIllegal(f"a batch cannot be sent to the retry topic {topic}")
    if header.sys_flag & (TRANSACTION_MASK | INNER_BATCH):
        raise MessageIllegal(
            f"a batch cannot be transactional or an inner batch (sysFlag {header.sys_flag:#x})"
        )
    if len(body) > body_bytes_max:
        raise MessageIllegal(
            f"the batch has {len(body)} bytes, at most {body_bytes_max} are allowed (maxMessageSize)"
        )
    wait_stored = find_value(header.properties or "", "WAIT\x01").lower() != "false"
    flags, bodies, properties = split_columns(body)
    if not all(bodies):
        index = next(index for index, one in enumerate(bodies) if not one)
        raise MessageIllegal(f"message {index} of the batch has no body: at least one byte is needed")
    unique_keys, tag_hashes, keys = _read_alike(properties) or _read_each(properties)
    return NewBatch(
        topic=topic,
        queue_id=queue_id,
        bodies=bodies,
        properties=properties,
        born_at_ms=header.born_at_ms,
        born_host=born_host,
        tag_hashes=tag_hashes,
        flags=flags,
        sys_flag=header.sys_flag | target.sys_flag,
        retry_count=header.retry_count or 0,
        keys=keys,
        unique_keys=str(b"\x02".join(unique_keys), "utf-8", "replace").split("\x02"),
        wait_stored=wait_stored,
    )


_PartFacts: TypeAlias = "tuple[Sequence[bytes], Sequence[int], Sequence[str]]"
"""For each message of a batch: its unique key (empty without one), the hash of its tags, and its keys."""


def _read_alike(properties: list[bytes]) -> _PartFacts | None:
    """Reads the properties as `_read_each` does, but faster, for messages with a common beginning, unique
    keys of one length, and few distinct endings. Returns None for other messages.
    """
    if len(properties) < _ALIKE_COUNT_MIN:
        return None
    first = properties[0]
    begin = first.find(_UNIQUE_MARK) + len(_UNIQUE_MARK)
    end = first.find(b"\x02", begin)
    if end <= begin:
        return None
    head = first[:begin]
    unique_keys = [text[begin:end] for text in properties]
    if b"\x02" in b"".join(unique_keys) or not all(map(bytes.startswith, properties, repeat(head))):
        return None
    rests = [text[end:] for text in properties]
    ways = set(rests)
    if len(ways) > max(4, len(rests) // 4) or begin + max(map(len, ways)) > _KNOWN_BYTES_MAX:
        return None
    found = {rest: _read_around(head, rest) for rest in ways}
    if None in found.values():
        return None
    tag_hashes, keys = zip(*map(found.__getitem__, rests), strict=True)
    return unique_keys, tag_hashes, keys


@lru_cache(maxsize=1024)
def _read_around(head: bytes, rest: bytes) -> tuple[int, str] | None:
    """Reads properties as `_read_part` does, from the text before and after a unique key's value. Returns
    None if another unique key may count, or if a name may have to be rejected or removed.
    """
    is_pair = head == _UNIQUE_MARK or head.endswith(b"\x02" + _UNIQUE_MARK)
    if not is_pair or rest[:1] != b"\x02" or _UNIQUE_MARK in rest or _may_be_unclean(head + rest):
        return None
    return _read_part(head + rest)


def _read_each(properties: list[bytes]) -> _PartFacts:
    """Reads the properties of each message and strips the names in `_REMOVED_NAMES` from them.

    Raises:  MessageIllegal naming what a batch may not have.
    """
    if _may_be_unclean(b"".join(properties)):
        properties[:] = map(_clean_part, properties, count())
    unique_keys: list[bytes] = []
    tag_hashes: list[int] = []
    keys: list[str] = []
    for text in properties:
        unique_key, rest = _part_unique_key(text)
        read = _read_part if len(rest) <= _KNOWN_BYTES_MAX else _read_part.__wrapped__
        tag_hash, text_keys = read(rest)
        unique_keys.append(unique_key)
        tag_hashes.append(tag_hash)
        keys.append(text_keys)
    return unique_keys, tag_hashes, keys


def _part_unique_key(properties: bytes) -> tuple[bytes, bytes]:
    """Returns the unique key (empty without one) and the properties without that pair."""
    start = properties.rfind(_UNIQUE_MARK)
    if start == 0 or (start > 0 and properties[start - 1] == 2):
        begin = start + len(_UNIQUE_MARK)
        end = properties.find(b"\x02", begin)
        if end > begin:
            return properties[begin:end], properties[:start] + properties[end:]
    return find_property(properties, b"UNIQ_KEY") or b"", properties


def _may_be_unclean(properties: bytes) -> bool:
    return max(map(properties.find, _UNCLEAN_PARTS)) >= 0


@lru_cache(maxsize=1024)
def _read_part(properties: bytes) -> tuple[int, str]:
    """Returns the hash of the tags, and the keys."""
    return tag_hash_of(properties), str(find_property(properties, b"KEYS") or b"", "utf-8", "replace")


def _clean_part(properties: bytes, index: int) -> bytes:
    for name in _REFUSED_NAMES:
        if name in properties and _has_effect(find_property(properties, name)):
            raise MessageIllegal(f"message {index} of the batch: {name.decode()} is not allowed in a batch")
    for name in _REMOVED_NAMES:
        properties = remove_property(properties, name)
    return properties


def _has_effect(value: bytes | None) -> bool:
    return value is not None and value.lower() not in (b"0", b"-1", b"false")


_CLAIM_MARK = CLAIM_PROPERTY + "\x01"

Handle = Callable[[Channel, Command], Command | None]


class SendHandlers:
    """Handles every form of a send."""

    def __init__(
        self,
        options: BrokerOptions,
        *,
        store: MessageStore,
        targets: SendTargets,
        retry: RetryRule,
        delay: DelayRule,
        unique_keys: UniqueKeys,
        form: ReplyForm,
        stats: BrokerStats,
        clock: Clock,
        chance: Random,
    ) -> None:
        self._options = options
        self._store = store
        self._targets = targets
        self._retry = retry
        self._delay = delay
        self._unique_keys = unique_keys
        self._form = form
        self._stats = stats
        self._clock = clock
        self._chance = chance
        self._numbered = NumberedSends(store)
        pairs = {**form.fields, names.CLUSTER: options.cluster_name}
        self._added = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())

    def handle_send(self, channel: Channel, command: Command) -> Command | None:
        """Handles SEND_MESSAGE (10), with long header names."""
        try:
            self._send(channel, command, command.decode(SendRequest), self.handle_send)
        except RequestRejected as error:
            return self._refuse(command, error)
        return None

    def handle_send_v2(self, channel: Channel, command: Command) -> Command | None:
        """Handles SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320)."""
        try:
            self._send(channel, command, command.decode(SendRequestV2), self.handle_send_v2)
        except RequestRejected as error:
            return self._refuse(command, error)
        return None

    def _send(self, channel: Channel, command: Command, header: SendHeader, handle: Handle) -> None:
        target = self._targets.get(header.topic)
        if target is None:
            target = self._admit(channel, header)
            if header.topic in self._targets.unsaved:
                self._targets.unsaved.hold(header.topic, partial(self._resume, channel, command, handle))
                return
        queue_id = header.queue_id
        if not 0 <= queue_id < target.queue_count:
            queue_id = self._choose_queue(target, queue_id)
        text = header.properties or ""
        if header.is_batch:
            self._send_batch(channel, command, header, target, queue_id)
        elif target.is_retry or is_unusual(text, header.sys_flag):
            self._send_unusual(channel, command, header, target, queue_id)
        else:
            record = self.make_record(channel, command, header, target, queue_id, text)
            self._append(channel, command, record, queue_id)

    def _resume(self, channel: Channel, command: Command, handle: Handle, error: OSError | None) -> None:
        """Handles a send again, after its new topic was written to disk or the write failed."""
        if error is None:
            answer = handle(channel, command)
        else:
            refusal = RequestRejected(
                f"the topic is new and topics.json cannot be written: {error}", code=ResponseCode.SYSTEM_ERROR
            )
            answer = self._refuse(command, refusal)
        if answer is not None and not command.is_oneway:
            channel.send(answer)

    def make_record(
        self,
        channel: Channel,
        command: Command,
        header: SendHeader,
        target: SendTarget,
        queue_id: int,
        text: str,
    ) -> NewRecord:
        """Builds the record of one message: completes the properties, finds tags and keys (spec semantics
        6.1).
        """
        body = command.body
        if not body:
            raise MessageIllegal("the message has no body: at least one byte is needed")
        unique_key = find_value(text, UNIQ_KEY_MARK)
        if not unique_key:
            unique_key = self._unique_keys.next(self._clock.now_ms())
            text = with_pair(text, names.UNIQ_KEY, unique_key)
        elif text[-1] != "\x02":
            text += "\x02"
        tags = find_value(text, TAGS_MARK)
        return NewRecord(
            topic=target.topic,
            queue_id=queue_id,
            body=body,
            properties=(text + self._added).encode("utf-8", "replace"),
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

    def _append(self, channel: Channel, command: Command, record: NewRecord, queue_id: int) -> None:
        if command.flag & FLAG_ONEWAY:
            self._store.appender.append((record,), ignore_outcome)
        else:
            reply = SendReply(
                self._form, channel, command.opaque, command.serialize_type, queue_id, record.unique_key
            )
            reply.appended = self._store.appender.append((record,), reply.done)
        stats = self._stats
        stats.put_count += 1
        stats.put_bytes += len(command.body)

    def _admit(self, channel: Channel, header: SendHeader) -> SendTarget:
        """Checks a send whose target is not cached; the result is valid until the topic table changes."""
        options = self._options
        if options.is_slave:
            raise Busy(
                f"[REJECTREQUEST] {options.broker_name} with id {options.broker_id} is a slave:"
                " send to the master of this broker group"
            )
        if self._clock.now_ms() < options.accept_sends_from_ms:
            raise RequestRejected(
                f"startAcceptSendRequestTimeStamp is {options.accept_sends_from_ms}: not yet reached",
                code=ResponseCode.SYSTEM_ERROR,
            )
        return self._targets.admit(header, channel.peer[0])

    def _choose_queue(self, target: SendTarget, queue_id: int) -> int:
        """Returns a random write queue for a negative id.

        Raises:  BadRequest for an id beyond the topic's queues; NotPermitted if the topic has no write queue.
        """
        if queue_id >= 0:
            raise BadRequest(
                f"queueId {queue_id} is outside 0..{target.queue_count - 1} of the topic {target.topic}",
                code=ResponseCode.INVALID_PARAMETER,
            )
        if target.write_queue_count == 0:
            raise NotPermitted(f"the topic {target.topic} has no write queue")
        return self._chance.below(target.write_queue_count)

    def _send_unusual(
        self, channel: Channel, command: Command, header: SendHeader, target: SendTarget, queue_id: int
    ) -> None:
        """Sends a retry, a delayed or half message, or one with names that only the broker may set."""
        text = header.properties or ""
        claim_text = find_value(text, _CLAIM_MARK)
        stored_queue_id, is_dead = queue_id, False
        if target.is_retry:
            dlq = self._retry.redirect(header, command.version, self._clock.now_ms(), channel.peer[0])
            is_dead = dlq is not None
            if dlq is not None:
                target, stored_queue_id = dlq, 0
                text = with_pair(text, names.DELAY, "-1")
        text, delay_level, wishes, is_half = inspect(
            text,
            header.sys_flag,
            delay_level_max=self._delay.level_max,
            is_retry=bool(header.retry_count and header.retry_count > 0),
            recall_topic=target.topic if self._options.recall_enable else None,
        )
        if is_half and self._options.transactions_refused:
            raise NotPermitted(
                f"transactional messages are refused by the broker {self._options.broker_name}"
                " (rejectTransactionMessage is true)"
            )
        record = self.make_record(channel, command, header, target, stored_queue_id, text)
        if is_dead:
            record.properties = make_room_in_dead_letter(record.properties)
        if is_half:
            make_half(record)
        elif delay_level > 0 and target.is_retry:
            self._delay.postpone_retry(record, delay_level, self._clock.now_ms())
        elif delay_level > 0:
            self._delay.postpone(record, delay_level, self._clock.now_ms())
        elif wishes:
            slot_ms = self._delay.plan_timer(wishes, self._clock.now_ms())
            if slot_ms is not None and claim_text:
                self._delay.postpone_until(record, slot_ms)
            elif slot_ms is not None:
                self._send_timed(channel, command, record, queue_id, slot_ms)
                return
        if claim_text:
            if is_half or target.is_retry:
                raise MessageIllegal("a numbered send is neither transactional nor a retry")
            self._append_once(channel, command, target.topic, [record], queue_id, claim_text)
        else:
            self._append(channel, command, record, queue_id)

    def _append_once(
        self,
        channel: Channel,
        command: Command,
        topic: str,
        records: list[NewRecord],
        queue_id: int,
        claim_text: str,
    ) -> None:
        """Appends the part of a numbered send that is not yet stored (decision 010)."""
        if command.flag & FLAG_ONEWAY:
            raise MessageIllegal("a numbered send needs an answer, it cannot be oneway")
        reply = SendReply(
            self._form, channel, command.opaque, command.serialize_type, queue_id, records[0].unique_key
        )
        if self._numbered.append(parse_claim(claim_text), topic, queue_id, records, reply):
            self._stats.put_count += len(records)
            self._stats.put_bytes += len(command.body)

    def _send_timed(
        self, channel: Channel, command: Command, record: NewRecord, queue_id: int, slot_ms: int
    ) -> None:
        """Appends a message with its own delivery time; the answer holds its recall handle (spec semantics
        5.2).
        """
        handle = encode_recall_handle(record.topic, self._options.broker_name, slot_ms + 1, record.unique_key)
        self._delay.postpone_until(record, slot_ms)
        if command.flag & FLAG_ONEWAY:
            self._store.appender.append([record], ignore_outcome)
        else:
            reply = TimerReply(
                self._form,
                channel,
                command.opaque,
                command.serialize_type,
                queue_id,
                record.unique_key,
                recall_handle=handle,
            )
            reply.appended = self._store.appender.append([record], reply.done)
        self._stats.put_count += 1
        self._stats.put_bytes += len(command.body)

    def _send_batch(
        self, channel: Channel, command: Command, header: SendHeader, target: SendTarget, queue_id: int
    ) -> None:
        batch = make_batch(
            command.body,
            header,
            target,
            queue_id,
            born_host=encode_host(*channel.peer),
            body_bytes_max=self._store.options.message_bytes_max,
        )
        if not all(batch.unique_keys):
            self._complete(batch)
        text = header.properties or ""
        if _CLAIM_MARK in text:
            claim_text = find_value(text, _CLAIM_MARK)
            self._append_once(channel, command, target.topic, batch.records(), queue_id, claim_text)
            return
        if command.flag & FLAG_ONEWAY:
            self._store.appender.append_batch(batch, ignore_outcome)
        else:
            unique_key = find_value(text, UNIQ_KEY_MARK)
            reply = SendReply(
                self._form, channel, command.opaque, command.serialize_type, queue_id, unique_key
            )
            reply.appended = self._store.appender.append_batch(batch, reply.done)
        self._stats.put_count += len(batch)
        self._stats.put_bytes += len(command.body)

    def _complete(self, batch: NewBatch) -> None:
        """Assigns a unique key to each message of a batch that lacks one."""
        for index, key in enumerate(batch.unique_keys):
            if not key:
                key = batch.unique_keys[index] = self._unique_keys.next(self._clock.now_ms())
                properties = batch.properties[index]
                batch.properties[index] = append_property(properties, names.UNIQ_KEY, key)

    def _refuse(self, command: Command, error: RequestRejected) -> Command:
        self._stats.count_send_refusal(error.code)
        return command.reply(error.code, remark=error.remark, fields=self._form.fields)
