"""What brokers ask of producers: how a transaction ended, and to take a reply (spec semantics 15).

Both are handled inside the read of a socket; the work that they cause is done by whoever registered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tandemmq.errors import Busy, RemoteProtocolError
from tandemmq.protocol import properties as names
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.protocol.properties import append_property, find_property
from tandemmq.protocol.record import Record, decode_record
from tandemmq.protocol.requests.send import CheckTransactionRequest, PushReplyRequest
from tandemmq.remoting.channel import Channel
from tandemmq.runtime.ports import Clock

ARRIVE_TIME = "ARRIVE_TIME"
REQUESTS_MAX = 16_384
"""Requests of one client that wait for their reply; one more is refused."""

OnCheck = Callable[[Channel, CheckTransactionRequest, ReceivedMessage], None]
Reply = asyncio.Future[ReceivedMessage]


class ProducerQuestions:
    """What brokers ask one client: its producers that answer checks; the replies that it waits for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.checks: dict[str, OnCheck] = {}
        self._replies: dict[str, Reply] = {}

    def handle(self, channel: Channel, command: Command) -> Command | None:
        """The answer; None for a check, which is answered later by END_TRANSACTION."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self._handle_check(channel, command)
            return None
        return self._handle_reply(command)

    def expect_reply(self, correlation_id: str) -> Reply:
        """The reply, once it comes; `forget_reply` must follow.

        Raises:  Busy at the bound.
        """
        if len(self._replies) >= REQUESTS_MAX:
            raise Busy(f"{REQUESTS_MAX} requests of this client wait for their reply")
        future: Reply = asyncio.get_running_loop().create_future()
        self._replies[correlation_id] = future
        return future

    def forget_reply(self, correlation_id: str) -> None:
        self._replies.pop(correlation_id, None)

    def _handle_check(self, channel: Channel, command: Command) -> None:
        try:
            message = ReceivedMessage(decode_record(command.body))
        except RemoteProtocolError:
            return  # the broker asks again, and gives up some day
        on_check = self.checks.get(message.properties.get(names.PGROUP, ""))
        if on_check is not None:
            on_check(channel, command.decode(CheckTransactionRequest), message)

    def _handle_reply(self, command: Command) -> Command:
        header = command.decode(PushReplyRequest)
        raw = (header.properties or "").encode("utf-8", "replace")
        correlation_id = find_property(raw, names.CORRELATION_ID.encode())
        future = self._replies.pop(str(correlation_id or b"", "utf-8", "replace"), None)
        if future is not None and not future.done():
            try:
                future.set_result(self._make_message(header, raw, command))
            except RemoteProtocolError as error:
                future.set_exception(error)
                return command.reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        return command.reply()

    def _make_message(self, header: PushReplyRequest, raw: bytes, command: Command) -> ReceivedMessage:
        body = bytes(command.body)
        record = Record(
            topic=header.topic,
            queue_id=header.queue_id,
            queue_offset=0,
            log_offset=0,
            size=len(body),
            body=body,
            body_crc=0,
            flag=header.flag,
            sys_flag=header.sys_flag,
            born_at_ms=header.born_at_ms,
            born_host=bytes(8),
            stored_at_ms=header.stored_at_ms,
            store_host=bytes(8),
            retry_count=header.retry_count or 0,
            prepared_offset=0,
            raw_properties=append_property(raw, ARRIVE_TIME, str(self._clock.now_ms())),
        )
        return ReceivedMessage(record)
