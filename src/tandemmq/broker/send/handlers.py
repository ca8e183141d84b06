"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: from a frame to the store's append.

This is the broker's hot path: decode the header, look up the topic, complete the properties, append. Nothing
awaits; `SendReply.done` builds the answer when the store confirms. `RetryRule` decides where a send to a
retry topic goes, `SendHandlers` handles every form of a send.
Every rejection carries the region and trace fields, because Java's clients read them without a null check.
Order of the checks: spec semantics 5; the store's own checks (sizes, role, disk) come last, in `append`. A
send that created its topic waits until the topic is on disk (`UnsavedTopics`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tandemmq.broker.clients.queue_locks import QueueLocks
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.delay.recall import encode_recall_handle
from tandemmq.broker.guards import require_group
from tandemmq.broker.send.assembly import (
    UNIQ_KEY_MARK,
    DelayRule,
    RecordBuilder,
    SendHeader,
    SendTarget,
    SendTargets,
    find_value,
    inspect,
    is_unusual,
    make_room_in_dead_letter,
    with_pair,
)
from tandemmq.broker.send.batch import make_batch
from tandemmq.broker.send.numbered import NumberedSends, parse_claim
from tandemmq.broker.send.reply import ReplyForm, SendReply, ignore_outcome
from tandemmq.broker.transaction.half import make_half
from tandemmq.errors import BadRequest, Busy, MessageIllegal, NotPermitted, RequestRejected
from tandemmq.protocol import properties as names
from tandemmq.protocol.codes import FLAG_ONEWAY, VERSION_MAX_RETRY_HONOURED, RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.properties import CLAIM_PROPERTY
from tandemmq.protocol.record import NewBatch, NewRecord
from tandemmq.protocol.requests.send import SendRequest, SendRequestV2
from tandemmq.protocol.topic_names import RETRY_PREFIX
from tandemmq.remoting.channel import Channel
from tandemmq.store.confirm import OnDone
from tandemmq.store.outcomes import Appended


@dataclass(slots=True)
class RetryRule:
    """Decides whether a send to a retry topic is retried or becomes a dead letter (spec semantics 7.2)."""

    core: BrokerCore
    locks: QueueLocks

    def redirect(self, header: SendHeader, version: int, now_ms: int, host: str) -> SendTarget | None:
        """Returns the group's dead letter topic, or None when the message is to be retried.

        A group that holds queue locks consumes in order and has already retried the message itself.

        Raises:  the errors of `require_group`.
        """
        group = header.topic.removeprefix(RETRY_PREFIX)
        config = require_group(self.core.groups, group, now_ms, host)
        retry_count_max = config.retry_count_max
        if header.retry_count_max is not None and version >= VERSION_MAX_RETRY_HONOURED:
            retry_count_max = header.retry_count_max
        if (header.retry_count or 0) <= retry_count_max and not self.locks.has_lock(group):
            return None
        return SendTarget(self.core.creator.create_dlq_topic(group))


_CLAIM_MARK = CLAIM_PROPERTY + "\x01"
_SEND_MESSAGE = int(RequestCode.SEND_MESSAGE)

Records = TypeVar("Records", NewBatch, Sequence[NewRecord])


@dataclass(slots=True)
class SendHandlers:
    """Handles every form of a send."""

    core: BrokerCore
    targets: SendTargets
    records: RecordBuilder
    retry: RetryRule
    delay: DelayRule
    form: ReplyForm
    numbered: NumberedSends

    def handle_send(self, channel: Channel, command: Command) -> Command | None:
        """Handles SEND_MESSAGE (10) with long header names, SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE
        (320).
        """
        try:
            header: SendHeader
            if command.code == _SEND_MESSAGE:
                header = command.decode(SendRequest)
            else:
                header = command.decode(SendRequestV2)
            target = self.targets.get(header.topic)
            if target is None:
                target = self._admit(channel, header)
                if header.topic in self.targets.unsaved:
                    self.targets.unsaved.hold(header.topic, partial(self._resume, channel, command))
                    return None
            queue_id = header.queue_id
            if not 0 <= queue_id < target.queue_count:
                queue_id = self._choose_queue(target, queue_id)
            text = header.properties or ""
            if header.is_batch:
                self._send_batch(channel, command, header, target, queue_id)
            elif target.is_retry or is_unusual(text, header.sys_flag):
                self._send_unusual(channel, command, header, target, queue_id)
            else:
                record = self.records.make(channel, command, header, target, queue_id, text)
                append = self.core.store.appender.append
                self._append(channel, command, append, (record,), queue_id, record.unique_key)
        except RequestRejected as error:
            return self._refuse(command, error)
        return None

    def _resume(self, channel: Channel, command: Command, error: OSError | None) -> None:
        """Handles a send again, after its new topic was written to disk or the write failed."""
        if error is None:
            answer = self.handle_send(channel, command)
        else:
            refusal = RequestRejected(
                f"the topic is new and topics.json cannot be written: {error}", code=ResponseCode.SYSTEM_ERROR
            )
            answer = self._refuse(command, refusal)
        if answer is not None and not command.is_oneway:
            channel.send(answer)

    def _append(
        self,
        channel: Channel,
        command: Command,
        append: Callable[[Records, OnDone], Appended],
        records: Records,
        queue_id: int,
        unique_key: str,
        recall_handle: str | None = None,
    ) -> None:
        """Appends records with `append`. The sender is answered once they are stored, unless the send is
        oneway.
        """
        if command.flag & FLAG_ONEWAY:
            append(records, ignore_outcome)
        else:
            reply = SendReply(
                self.form,
                channel,
                command.opaque,
                command.serialize_type,
                queue_id,
                unique_key,
                recall_handle,
            )
            reply.appended = append(records, reply.done)
        stats = self.core.stats
        stats.put_count += len(records)
        stats.put_bytes += len(command.body)

    def _admit(self, channel: Channel, header: SendHeader) -> SendTarget:
        """Checks a send whose target is not cached; the result is valid until the topic table changes."""
        options = self.core.options
        if options.is_slave:
            raise Busy(
                f"[REJECTREQUEST] {options.broker_name} with id {options.broker_id} is a slave:"
                " send to the master of this broker group"
            )
        if self.core.clock.now_ms() < options.accept_sends_from_ms:
            raise RequestRejected(
                f"startAcceptSendRequestTimeStamp is {options.accept_sends_from_ms}: not yet reached",
                code=ResponseCode.SYSTEM_ERROR,
            )
        return self.targets.admit(header, channel.peer[0])

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
        return self.core.chance.below(target.write_queue_count)

    def _send_unusual(
        self, channel: Channel, command: Command, header: SendHeader, target: SendTarget, queue_id: int
    ) -> None:
        """Sends a retry, a delayed or half message, or one with names that only the broker may set."""
        text = header.properties or ""
        claim_text = find_value(text, _CLAIM_MARK)
        stored_queue_id, is_dead = queue_id, False
        if target.is_retry:
            dlq = self.retry.redirect(header, command.version, self.core.clock.now_ms(), channel.peer[0])
            is_dead = dlq is not None
            if dlq is not None:
                target, stored_queue_id = dlq, 0
                text = with_pair(text, names.DELAY, "-1")
        text, delay_level, timer_properties, is_half = inspect(
            text,
            header.sys_flag,
            delay_level_max=self.delay.level_max,
            is_retry=bool(header.retry_count and header.retry_count > 0),
            recall_topic=target.topic if self.core.options.recall_enable else None,
        )
        if is_half and self.core.options.transactions_refused:
            raise NotPermitted(
                f"transactional messages are refused by the broker {self.core.options.broker_name}"
                " (rejectTransactionMessage is true)"
            )
        record = self.records.make(channel, command, header, target, stored_queue_id, text)
        recall_handle = None
        if is_dead:
            record.properties = make_room_in_dead_letter(record.properties)
        if is_half:
            make_half(record)
        elif delay_level > 0 and target.is_retry:
            self.delay.postpone_retry(record, delay_level, self.core.clock.now_ms())
        elif delay_level > 0:
            self.delay.postpone(record, delay_level, self.core.clock.now_ms())
        elif timer_properties:
            slot_ms = self.delay.plan_timer(timer_properties, self.core.clock.now_ms())
            if slot_ms is not None:
                if not claim_text:
                    recall_handle = encode_recall_handle(
                        record.topic, self.core.options.broker_name, slot_ms + 1, record.unique_key
                    )
                self.delay.postpone_until(record, slot_ms)
        if claim_text:
            if is_half or target.is_retry:
                raise MessageIllegal("a numbered send is neither transactional nor a retry")
            self._append_once(channel, command, target.topic, [record], queue_id, claim_text)
        else:
            append, key = self.core.store.appender.append, record.unique_key
            self._append(channel, command, append, (record,), queue_id, key, recall_handle)

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
            self.form, channel, command.opaque, command.serialize_type, queue_id, records[0].unique_key
        )
        if self.numbered.append(parse_claim(claim_text), topic, queue_id, records, reply):
            self.core.stats.put_count += len(records)
            self.core.stats.put_bytes += len(command.body)

    def _send_batch(
        self, channel: Channel, command: Command, header: SendHeader, target: SendTarget, queue_id: int
    ) -> None:
        batch = make_batch(
            command.body,
            header,
            target,
            queue_id,
            born_host=encode_host(*channel.peer),
            body_bytes_max=self.core.store.options.message_bytes_max,
        )
        self.records.complete(batch)
        text = header.properties or ""
        if _CLAIM_MARK in text:
            claim_text = find_value(text, _CLAIM_MARK)
            self._append_once(channel, command, target.topic, batch.records(), queue_id, claim_text)
        else:
            unique_key = find_value(text, UNIQ_KEY_MARK)
            self._append(channel, command, self.core.store.appender.append_batch, batch, queue_id, unique_key)

    def _refuse(self, command: Command, error: RequestRejected) -> Command:
        self.core.stats.count_send_refusal(error.code)
        return command.reply(error.code, remark=error.remark, fields=self.form.fields)
