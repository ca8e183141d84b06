"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue: requests about received messages.

Each handle has everything that the request needs, so any proxy serves it. `renewal` is asked first: it has a
newer handle if this proxy renews the message at a broker that replaces handles.

Source: spec proxy 5.12 to 5.14, 2.11.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from tandemmq.errors import TandemError
from tandemmq.proxy.callers import group_name, topic_name
from tandemmq.proxy.core import ProxyCore
from tandemmq.proxy.lease_calls import LeaseCalls
from tandemmq.proxy.limited_lines import LimitedLines
from tandemmq.proxy.receive_plan import check_invisible
from tandemmq.proxy.renewal import Renewal
from tandemmq.proxy.rpc import OK, Caller, Message, failed_status
from tandemmq.proxy.schema import message_class
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.proxy.values import milliseconds

AckMessageResponse = message_class("AckMessageResponse")
ChangeInvisibleDurationResponse = message_class("ChangeInvisibleDurationResponse")
ForwardResponse = message_class("ForwardMessageToDeadLetterQueueResponse")

ENTRIES_MAX: Final = 1_024
ACKS_AT_ONCE: Final = 64


@dataclass(slots=True)
class ReceiptHandlers:
    """Serves the requests that present a receipt handle."""

    core: ProxyCore
    calls: LeaseCalls
    renewal: Renewal
    lines: LimitedLines = field(init=False)

    def __post_init__(self) -> None:
        self.lines = LimitedLines(self.core.clock)

    async def handle_ack(self, caller: Caller, request: Message) -> Message:
        """Handles AckMessage: one status per entry, in the order of the entries."""
        group, topic = group_name(request.group), topic_name(request.topic)
        entries = list(request.entries)
        if not 1 <= len(entries) <= ENTRIES_MAX:
            raise RpcRefused(Code.BAD_REQUEST, f"{len(entries)} entries, 1 to {ENTRIES_MAX} are allowed")
        statuses: list[dict[str, object]] = []
        for first in range(0, len(entries), ACKS_AT_ONCE):
            some = entries[first : first + ACKS_AT_ONCE]
            statuses += await asyncio.gather(*(self._ack(group, topic, entry) for entry in some))
        return AckMessageResponse(
            status=_common_status(statuses),
            entries=[
                {"message_id": entry.message_id, "receipt_handle": entry.receipt_handle, "status": status}
                for entry, status in zip(entries, statuses, strict=True)
            ],
        )

    async def handle_change(self, caller: Caller, request: Message) -> Message:
        """Handles ChangeInvisibleDuration. A failed one returns the handle of the request as well, because
        clients adopt whatever handle an answer has.
        """
        try:
            handle = await self._change(request)
        except TandemError as error:
            status = failed_status("ChangeInvisibleDuration", error, self.lines)
            return ChangeInvisibleDurationResponse(status=status, receipt_handle=request.receipt_handle)
        return ChangeInvisibleDurationResponse(status=OK, receipt_handle=handle)

    async def handle_forward(self, caller: Caller, request: Message) -> Message:
        """Handles ForwardMessageToDeadLetterQueue; the handle names the message, and its id is not read."""
        group, topic = group_name(request.group), topic_name(request.topic)
        async with self.renewal.newest(request.receipt_handle) as receipt:
            self.calls.check_alive(receipt)
            await self.calls.bury(group, topic, receipt)
            self.renewal.forget(request.receipt_handle)
        return ForwardResponse(status=OK)

    async def _ack(self, group: str, topic: str, entry: Message) -> dict[str, object]:
        """Acknowledges one message; returns its status."""
        try:
            async with self.renewal.newest(entry.receipt_handle) as receipt:
                self.calls.check_alive(receipt)
                await self.calls.ack(group, topic, receipt)
                self.renewal.forget(entry.receipt_handle)
        except TandemError as error:
            return failed_status("AckMessage", error, self.lines)
        return OK

    async def _change(self, request: Message) -> str:
        """Changes the invisible time; returns the new handle. The client has chosen the time, so the message
        is no longer renewed.
        """
        group, topic = group_name(request.group), topic_name(request.topic)
        invisible_ms = milliseconds(request.invisible_duration)
        check_invisible(invisible_ms, 0, self.core.options.invisible_ms_max)
        async with self.renewal.newest(request.receipt_handle) as receipt:
            self.calls.check_alive(receipt)
            new = await self.calls.change(group, topic, receipt, invisible_ms, is_suspended=request.suspend)
            self.renewal.forget(request.receipt_handle)
        return new.text


def _common_status(statuses: list[dict[str, object]]) -> dict[str, object]:
    """Returns the status of all entries if they have one code, else MULTIPLE_RESULTS."""
    if len({status["code"] for status in statuses}) == 1:
        return statuses[0]
    return {"code": int(Code.MULTIPLE_RESULTS), "message": "the entries have different results"}
