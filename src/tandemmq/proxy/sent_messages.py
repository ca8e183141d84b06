"""EndTransaction and RecallMessage: requests about messages that were sent before, by any proxy.

The id and the handle that clients return name the broker, so nothing is looked up in this process.

Source: spec proxy 5.8, 5.15.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from tandemmq.api import broker_send
from tandemmq.client.producer.results import broker_of_handle
from tandemmq.errors import ClientError, RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.requests.send import EndTransactionRequest
from tandemmq.protocol.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from tandemmq.proxy.brokers import CALL_S
from tandemmq.proxy.callers import topic_name
from tandemmq.proxy.core import ProxyCore
from tandemmq.proxy.kinds import MessageKind, check_kind
from tandemmq.proxy.rpc import OK, Caller, Message
from tandemmq.proxy.schema import enum_number, message_class
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.proxy.transaction_ids import parse_transaction_id

T = TypeVar("T")

EndTransactionResponse = message_class("EndTransactionResponse")
RecallMessageResponse = message_class("RecallMessageResponse")

_DECISION_OF_RESOLUTION: Final = {
    enum_number("TransactionResolution", "COMMIT"): TRANSACTION_COMMIT,
    enum_number("TransactionResolution", "ROLLBACK"): TRANSACTION_ROLLBACK,
}
_SERVER_CHECK: Final = enum_number("TransactionSource", "SOURCE_SERVER_CHECK")


HANDLE_CHARS_MAX: Final = 65_536
"""A longer recall handle is refused before it is decoded."""


@dataclass(slots=True)
class SentMessageHandlers:
    """Handles EndTransaction and RecallMessage."""

    core: ProxyCore

    async def handle_end_transaction(self, caller: Caller, request: Message) -> Message:
        """Forwards the outcome to the broker of the half message. OK means that it was handed over; the
        broker does not answer, and checks again if the outcome was lost.
        """
        topic = topic_name(request.topic)
        transaction = parse_transaction_id(request.transaction_id)
        decision = _DECISION_OF_RESOLUTION.get(request.resolution)
        if decision is None:
            raise RpcRefused(
                Code.BAD_REQUEST, f"the resolution {request.resolution} is neither COMMIT nor ROLLBACK"
            )
        header = EndTransactionRequest(
            producer_group=topic,
            half_queue_offset=transaction.half_offset,
            log_offset=transaction.log_offset,
            decision=decision,
            unique_key=transaction.unique_key,
            topic=topic,
            is_from_check=request.source == _SERVER_CHECK,
            transaction_id=transaction.unique_key,
            broker_name=transaction.broker_name,
        )
        await self._call(
            caller,
            topic,
            transaction.broker_name,
            Code.INVALID_TRANSACTION_ID,
            lambda address, _: broker_send.end_transaction(self.core.brokers.remoting, address, header),
        )
        return EndTransactionResponse(status=OK)

    async def handle_recall(self, caller: Caller, request: Message) -> Message:
        """Recalls a timed message; returns its id."""
        topic, handle = topic_name(request.topic), request.recall_handle
        if self.core.options.checks_message_type:
            check_kind(topic, await self.core.brokers.known_kind(topic), MessageKind.DELAY)
        broker_name = _broker_of(handle)
        try:
            message_id = await self._call(
                caller,
                topic,
                broker_name,
                Code.BAD_REQUEST,
                lambda address, left_s: broker_send.recall.within(
                    left_s,
                    self.core.brokers.remoting,
                    address,
                    topic=topic,
                    recall_handle=handle,
                    producer_group=topic,
                ),
            )
        except RequestRejected as error:
            if error.code == ResponseCode.ILLEGAL_OPERATION:
                raise RpcRefused(Code.BAD_REQUEST, error.remark) from None
            raise
        return RecallMessageResponse(status=OK, message_id=message_id)

    async def _call(
        self,
        caller: Caller,
        topic: str,
        broker_name: str,
        unknown: Code,
        ask: Callable[[str, float], Awaitable[T]],
    ) -> T:
        """Calls the master. Raises RpcRefused `unknown` if no broker of the name has the topic."""
        if not await self.core.brokers.has_broker(topic, broker_name):
            raise RpcRefused(unknown, f"no broker {broker_name[:64]!r} has topic {topic}")
        timeout_s = min(CALL_S, max(0.0, caller.deadline_s - self.core.clock.monotonic()))
        return await self.core.brokers.call_master(topic, broker_name, ask, timeout_s=timeout_s)


def _broker_of(recall_handle: str) -> str:
    """Returns the name of the broker that issued the handle. Raises RpcRefused BAD_REQUEST."""
    if len(recall_handle) <= HANDLE_CHARS_MAX:
        with suppress(ClientError):
            return broker_of_handle(recall_handle)
    raise RpcRefused(Code.BAD_REQUEST, "recall_handle is not a handle of a send result: return it unchanged")
