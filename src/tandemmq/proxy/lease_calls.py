"""Requests to brokers about messages that a client holds: ack, change, renewal, dead letter.

Every request goes to the broker that the handle names. A handle that the broker no longer knows becomes
INVALID_RECEIPT_HANDLE, because clients repeat a request for ever that failed in another way.

Source: spec proxy 5.12 to 5.14, spec semantics 14.3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, ParamSpec, TypeVar

from tandemmq.api import broker_admin, broker_consume, broker_send
from tandemmq.api.calls import Call
from tandemmq.errors import RequestRejected
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.pop_receipts import Handle, parse_handle, real_topic
from tandemmq.protocol.record import Record
from tandemmq.protocol.requests.send import SendBackRequest
from tandemmq.proxy.brokers import Brokers
from tandemmq.proxy.handles import UNKNOWN, Receipt, invalid_handle
from tandemmq.runtime.ports import Clock

P = ParamSpec("P")
T = TypeVar("T")

_NOT_HELD: Final = (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER)
_TO_DEAD_LETTERS: Final = -1


@dataclass(frozen=True, slots=True)
class LeaseCalls:
    """The requests of one group about a message of a topic.

    Each raises RpcRefused INVALID_RECEIPT_HANDLE when the message is no longer held under the handle, and
    the errors of `Brokers.call_master`.

    Handles expire by the clock of their broker, which each pop shows: the clock of this machine may be wrong.
    """

    brokers: Brokers
    clock: Clock
    _ahead_ms: dict[str, int] = field(default_factory=dict, init=False)

    def note_pop(self, handle: Handle) -> None:
        """Reads the broker's clock from a handle that the broker has just made."""
        self._ahead_ms[handle.broker_name] = handle.pop_time_ms - self.clock.now_ms()

    def check_alive(self, receipt: Receipt) -> None:
        """Raises RpcRefused INVALID_RECEIPT_HANDLE if the handle has expired."""
        receipt.check_alive(self.clock.now_ms() + self._ahead_ms.get(receipt.handle.broker_name, 0))

    async def ack(self, group: str, topic: str, receipt: Receipt) -> None:
        """Acknowledges the message."""
        await self._ask(broker_consume.ack, topic, receipt, group, topic, receipt.broker_text, is_strict=True)

    async def change(
        self, group: str, topic: str, receipt: Receipt, invisible_ms: int, *, is_suspended: bool = False
    ) -> Receipt:
        """Ends the message's lease `invisible_ms` from now; returns the receipt that is valid from now on.

        `is_suspended`: no consumer has seen the message, so its next delivery does not count.
        """
        text, call = receipt.broker_text, broker_consume.change_lease
        new = await self._ask(
            call, topic, receipt, group, topic, text, invisible_ms, is_suspended=is_suspended
        )
        return Receipt(parse_handle(broker_consume.changed_handle(text, new)), receipt.log_offset)

    async def renew(self, group: str, topic: str, receipt: Receipt, invisible_ms: int) -> None:
        """Ends the lease of a renewable receipt `invisible_ms` from now, for all its open messages."""
        text, call = receipt.broker_text, broker_consume.change_lease
        await self._ask(call, topic, receipt, group, topic, text, invisible_ms, is_renewal=True)

    async def bury(self, group: str, topic: str, receipt: Receipt) -> None:
        """Stores a copy of the message in the group's dead letter topic, then acknowledges the message."""
        if receipt.log_offset == UNKNOWN:
            raise invalid_handle("it has no ninth field, the position of the message in the log")
        record = await self._view(group, topic, receipt)
        header = SendBackRequest(
            log_offset=receipt.log_offset,
            group=group,
            delay_level=_TO_DEAD_LETTERS,
            original_message_id=record.unique_key or record.message_id,
            original_topic=topic,
            retry_count_max=0,
            broker_name=receipt.handle.broker_name,
        )
        await self._ask(broker_send.send_back, topic, receipt, header)
        await self.ack(group, topic, receipt)

    async def _view(self, group: str, topic: str, receipt: Receipt) -> Record:
        """Returns the message of the receipt, which must be at its ninth field: that comes from the client,
        and the broker would copy whatever message is there, of any topic.
        """
        record = await self._ask(broker_admin.view_message, topic, receipt, receipt.log_offset)
        handle = receipt.handle
        named = real_topic(handle.flag, group, topic), handle.queue_id, handle.offset
        if record is None or (record.topic, record.queue_id, record.queue_offset) != named:
            raise invalid_handle("its ninth field is the position of another message")
        return record

    async def _ask(
        self, call: Call[P, T], topic: str, receipt: Receipt, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        broker_name = receipt.handle.broker_name
        if not await self.brokers.has_broker(topic, broker_name):
            raise invalid_handle(f"broker {broker_name!r} has no queue of topic {topic}")
        try:
            return await self.brokers.ask_master(call, topic, broker_name, *args, **kwargs)
        except RequestRejected as error:
            if error.code in _NOT_HELD:
                raise invalid_handle(error.remark) from None
            raise
