"""SEND_REPLY_MESSAGE (324) and its V2 (325): a reply to a request, pushed to the client that waits for it.

The push uses the requester's own connection, found by the client id of its heartbeats. Storing a reply
notifies no client. The reply is stored after the push only so that it can be inspected
(storeReplyMessageEnable). The sender gets the result of the push: SUCCESS or SYSTEM_ERROR.
Source: spec semantics 15 and 3.10, spec remoting 9.10.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tandemmq.broker.arrivals import NORMAL
from tandemmq.broker.core import BrokerCore
from tandemmq.broker.send.assembly import RecordBuilder, find_value, with_pair
from tandemmq.broker.send.reply import ReplyForm
from tandemmq.broker.send.targets import SendHeader, SendShape, SendTargets
from tandemmq.errors import Busy, RequestRejected, TandemError
from tandemmq.protocol import properties as names
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message_id import decode_host
from tandemmq.protocol.record import NewRecord
from tandemmq.protocol.requests.send import PushReplyRequest, SendRequest, SendRequestV2, SendResponse
from tandemmq.remoting.channel import Channel
from tandemmq.remoting.options import render_address
from tandemmq.store.outcomes import NOT_STORED, PutStatus

PUSH_TIMEOUT_S = 10.0
_PUSHED = [name for name in PushReplyRequest.__struct_fields__ if name in SendRequest.__struct_fields__]
"""The fields of the sender's header that the push repeats."""


@dataclass(slots=True)
class ReplyHandlers:
    """Forwards replies to their requesters."""

    core: BrokerCore
    targets: SendTargets
    records: RecordBuilder
    form: ReplyForm

    def handle_reply(self, channel: Channel, command: Command) -> Command | None:
        """Forwards a reply. The answer is sent once the requester has accepted the reply, or after 10 s."""
        is_long = command.code == RequestCode.SEND_REPLY_MESSAGE
        shape: SendShape = SendRequest if is_long else SendRequestV2
        header = command.decode(shape)
        try:
            if self.core.options.is_slave:
                raise Busy(
                    "[REJECTREQUEST] this broker is a slave and delivers no replies: send to the master"
                )
            target = self.targets.get(header.topic) or self.targets.admit(header, channel.peer[0])
            queue_id = header.queue_id if 0 <= header.queue_id < target.queue_count else 0
            text = header.properties or ""
            record = self.records.make(channel, command, header, target, queue_id, text)
            self._push(channel, command, header, record)
        except RequestRejected as error:
            return command.reply(error.code, remark=error.remark, fields=self.form.fields)
        return None

    def _push(self, channel: Channel, command: Command, header: SendHeader, record: NewRecord) -> None:
        """Pushes the reply to its requester; `_on_pushed` is called once, whatever the outcome."""
        on_answer = partial(self._on_pushed, channel, command, record)
        client_id = find_value(header.properties or "", f"{names.REPLY_TO_CLIENT}\x01")
        requester = self.core.producers.find_client(client_id) if client_id else None
        if requester is None:
            missing = f"the client {client_id[:160]!r} is not connected here"
            on_answer(missing if client_id else "the reply has no property REPLY_TO_CLIENT")
            return
        question = Command.request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._push_header(header, record), body=command.body
        )
        try:
            requester.start_request(question, on_answer, PUSH_TIMEOUT_S)
        except TandemError as error:
            on_answer(error)

    def _push_header(self, header: SendHeader, record: NewRecord) -> PushReplyRequest:
        now_ms = self.core.clock.now_ms()
        fields = {name: getattr(header, name) for name in _PUSHED}
        fields["properties"] = with_pair(header.properties or "", names.PUSH_REPLY_TIME, str(now_ms))
        return PushReplyRequest(
            **fields,
            born_host=render_address(decode_host(record.born_host)),
            store_host=render_address(decode_host(self.core.store.appender.store_host)),
            stored_at_ms=now_ms,
        )

    def _on_pushed(
        self, channel: Channel, command: Command, record: NewRecord, answer: Command | TandemError | str
    ) -> None:
        """Stores the reply, then reports the requester's response to the sender."""
        fault = ""
        if not isinstance(answer, Command):
            fault = f"the reply was not delivered: {answer}"
        elif answer.code != ResponseCode.SUCCESS:
            fault = f"the requester refused the reply with code {answer.code}: {answer.remark}"
        if not self.core.options.reply_store_enable:
            self._answer(channel, command, record, fault, None)
            return
        place: list[tuple[str, int]] = []

        def on_stored(status: PutStatus) -> None:
            self._answer(channel, command, record, fault, None if status in NOT_STORED else place[0])

        try:
            appended = self.core.store.appender.append([record], on_stored)
        except RequestRejected:
            self._answer(channel, command, record, fault, None)
        else:
            arrivals = self.core.stats.arrivals
            arrivals.row(record.topic, NORMAL).record(appended.end_offset - appended.log_offsets[0])
            arrivals.not_sent += 1
            place.append((self.form.message_ids(appended.log_offsets), appended.queue_offset))

    def _answer(
        self,
        channel: Channel,
        command: Command,
        record: NewRecord,
        fault: str,
        place: tuple[str, int] | None,
    ) -> None:
        if command.is_oneway or channel.is_closed:
            return
        message_id, queue_offset = place or ("0", 0)
        header = SendResponse(
            message_id=message_id,
            queue_id=record.queue_id,
            queue_offset=queue_offset,
            transaction_id=record.unique_key,
            region=self.form.region,
            is_traced=self.form.is_traced,
        )
        code = ResponseCode.SYSTEM_ERROR if fault else ResponseCode.SUCCESS
        channel.send(command.reply(code, header, remark=fault or None))
