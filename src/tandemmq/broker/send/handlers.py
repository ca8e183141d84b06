"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: from a frame to the store's append.

This is the broker's hot path: decode the header, look up the topic, complete the properties, append. Nothing
awaits; `SendReply.done` builds the answer when the store confirms.
Every rejection carries the region and trace fields, because Java's clients read them without a null check.
Order of the checks: spec semantics 5; the store's own checks (sizes, role, disk) come last, in `append`. A
send that created its topic waits until the topic is on disk (`UnsavedTopics`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tandemmq.broker.arrivals import FIFO, TRANSACTION
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.send.assembly import (
    SHARDING_MARK,
    Prepared,
    RecordBuilder,
    is_unusual,
    type_of_stored,
)
from tandemmq.broker.send.numbered import NumberedSends, parse_claim
from tandemmq.broker.send.reply import ReplyForm, SendReply, ignore_outcome
from tandemmq.broker.send.targets import SendShape, SendTarget, SendTargets
from tandemmq.errors import MessageIllegal, RequestRejected
from tandemmq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.record import NewBatch, NewRecord
from tandemmq.protocol.requests.send import SendRequest, SendRequestV2
from tandemmq.protocol.topic_names import HALF_TOPIC
from tandemmq.remoting.channel import Channel
from tandemmq.store.confirm import OnDone
from tandemmq.store.outcomes import Appended

_SEND_MESSAGE = int(RequestCode.SEND_MESSAGE)

Records = TypeVar("Records", NewBatch, Sequence[NewRecord])


@dataclass(slots=True)
class SendHandlers:
    """Handles every form of a send."""

    core: BrokerCore
    targets: SendTargets
    records: RecordBuilder
    form: ReplyForm
    numbered: NumberedSends

    def handle_send(self, channel: Channel, command: Command) -> Command | None:
        """Handles SEND_MESSAGE (10) with long header names, SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE
        (320).
        """
        try:
            shape: SendShape = SendRequest if command.code == _SEND_MESSAGE else SendRequestV2
            header = command.decode(shape)
            target = self.targets.get(header.topic)
            if target is None:
                target = self.targets.admit(header, channel.peer[0])
                if header.topic in self.targets.unsaved:
                    self.targets.unsaved.hold(header.topic, partial(self._resume, channel, command))
                    return None
            queue_id = header.queue_id
            if not 0 <= queue_id < target.queue_count:
                queue_id = self.targets.choose_queue(target, queue_id)
            text = header.properties or ""
            if header.is_batch or target.is_retry or is_unusual(text, header.sys_flag):
                prepared = (
                    self.records.make_batch(channel, command, header, target, queue_id)
                    if header.is_batch
                    else self.records.make_unusual(channel, command, header, target, queue_id)
                )
                appended = self._append_prepared(channel, command, target.topic, prepared)
                if appended is not None:
                    self._count(target, prepared.records, appended, text)
            else:
                record = self.records.make(channel, command, header, target, queue_id, text)
                append = self.core.store.appender.append
                appended = self._append(channel, command, append, (record,), queue_id, record.unique_key)
                row = target.arrivals
                if SHARDING_MARK in text:
                    row = self.core.stats.arrivals.row(target.topic, FIFO)
                row.record(appended.end_offset - appended.log_offsets[0])
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
    ) -> Appended:
        """Appends records with `append`. The sender is answered once they are stored, unless the send is
        oneway.
        """
        if command.flag & FLAG_ONEWAY:
            appended = append(records, ignore_outcome)
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
            appended = reply.appended = append(records, reply.done)
        self.core.stats.put_bytes += len(command.body)
        return appended

    def _append_prepared(
        self, channel: Channel, command: Command, topic: str, send: Prepared
    ) -> Appended | None:
        """Appends the records, or the part of a numbered send that is not yet stored (decision 010). Returns
        None if all of them are.
        """
        appender, records, queue_id = self.core.store.appender, send.records, send.queue_id
        if send.claim:
            if command.flag & FLAG_ONEWAY:
                raise MessageIllegal("a numbered send needs an answer, it cannot be oneway")
            key = records.unique_keys[0] if isinstance(records, NewBatch) else records[0].unique_key
            reply = SendReply(self.form, channel, command.opaque, command.serialize_type, queue_id, key)
            if not self.numbered.append(parse_claim(send.claim), topic, queue_id, records, reply):
                return None
            self.core.stats.put_bytes += len(command.body)
            return reply.appended
        if isinstance(records, NewBatch):
            return self._append(channel, command, appender.append_batch, records, queue_id, send.unique_key)
        key, handle = send.unique_key, send.recall_handle
        return self._append(channel, command, appender.append, records, queue_id, key, handle)

    def _count(
        self,
        target: SendTarget,
        records: NewBatch | Sequence[NewRecord],
        appended: Appended,
        text: str,
    ) -> None:
        """Counts the stored messages of a batch, or of a send with properties that affect the broker."""
        begins = appended.log_offsets
        count, size = len(begins), appended.end_offset - begins[0]
        if isinstance(records, NewBatch):
            target.arrivals.record_batch(count, size)
            return
        stats, topic = self.core.stats, records[0].topic
        if topic == HALF_TOPIC:
            stats.transactions.begin(appended.queue_offset, target.topic)
            row = stats.arrivals.row(topic, TRANSACTION)
        else:
            row = stats.arrivals.row(topic, type_of_stored(topic, text))
        if count == 1:
            row.record(size)
        else:
            row.record_batch(count, size)

    def _refuse(self, command: Command, error: RequestRejected) -> Command:
        self.core.stats.count_send_refusal(error.code)
        return command.reply(error.code, remark=error.remark, fields=self.form.fields)
