"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: from a frame to the store's append.

This is the broker's hot path: decode the header, look up the topic, complete the properties, append. Nothing
awaits; `SendReply.done` builds the answer when the store confirms.
Every rejection carries the region and trace fields, because Java's clients read them without a null check.
Order of the checks: spec semantics 5; the store's own checks (sizes, role, disk) come last, in `append`. A
send that created its topic waits until the topic is on disk (`UnsavedTopics`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tandemmq.broker.core import BrokerCore
from tandemmq.broker.send.assembly import RecordBuilder, is_unusual
from tandemmq.broker.send.numbered import NumberedSends, parse_claim
from tandemmq.broker.send.reply import ReplyForm, SendReply, ignore_outcome
from tandemmq.broker.send.targets import SendShape, SendTargets
from tandemmq.errors import MessageIllegal, RequestRejected
from tandemmq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.record import NewBatch, NewRecord
from tandemmq.protocol.requests.send import SendRequest, SendRequestV2
from tandemmq.remoting.channel import Channel

_SEND_MESSAGE = int(RequestCode.SEND_MESSAGE)


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
            text, claim, recall_handle = header.properties or "", "", None
            records: NewBatch | tuple[NewRecord]
            if header.is_batch:
                records, unique_key, claim, _ = self.records.make_batch(
                    channel, command, header, target, queue_id
                )
            elif target.is_retry or is_unusual(text, header.sys_flag):
                records, unique_key, claim, recall_handle = self.records.make_unusual(
                    channel, command, header, target, queue_id
                )
            else:
                record = self.records.make(channel, command, header, target, queue_id, text)
                records, unique_key = (record,), record.unique_key
            reply = SendReply(
                self.form,
                channel,
                command.opaque,
                command.serialize_type,
                queue_id,
                unique_key,
                recall_handle,
            )
            if claim:
                self._append_once(command, target.topic, records, reply, claim)
            else:
                self._append(command, records, reply)
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

    def _append(self, command: Command, records: NewBatch | tuple[NewRecord], reply: SendReply) -> None:
        """Appends records. The sender is answered once they are stored, unless the send is oneway."""
        appender = self.core.store.appender
        on_done = ignore_outcome if command.flag & FLAG_ONEWAY else reply.done
        if isinstance(records, NewBatch):
            reply.appended = appender.append_batch(records, on_done)
        else:
            reply.appended = appender.append(records, on_done)
        stats = self.core.stats
        stats.put_count += len(records)
        stats.put_bytes += len(command.body)

    def _append_once(
        self, command: Command, topic: str, records: NewBatch | tuple[NewRecord], reply: SendReply, claim: str
    ) -> None:
        """Appends the part of a numbered send that is not yet stored (decision 010)."""
        if command.flag & FLAG_ONEWAY:
            raise MessageIllegal("a numbered send needs an answer, it cannot be oneway")
        single = records.records() if isinstance(records, NewBatch) else records
        if self.numbered.append(parse_claim(claim), topic, reply.queue_id, single, reply):
            self.core.stats.put_count += len(records)
            self.core.stats.put_bytes += len(command.body)

    def _refuse(self, command: Command, error: RequestRejected) -> Command:
        self.core.stats.count_send_refusal(error.code)
        return command.reply(error.code, remark=error.remark, fields=self.form.fields)
