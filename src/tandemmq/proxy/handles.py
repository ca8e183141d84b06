"""Receipt handles: the text with which a client acknowledges a message. Pure.

A handle has everything that an acknowledgement needs, so any proxy serves it, also after a restart:

    startOffset popTime invisibleTime reviveQid flag brokerName queueId offset commitLogOffset [life]

The first eight fields are the broker's, the ninth finds the message for a dead letter. The tenth is ours: the
lease may be renewed in place for `life` milliseconds, so the invisible time does not say when it ends, and
the broker is asked. Java's proxies ignore a tenth field.

Source: spec proxy 5.12, spec semantics 14.2; decision 027.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tandemmq.errors import BadRequest
from tandemmq.protocol import pop_receipts
from tandemmq.proxy.statuses import Code, RpcRefused
from tandemmq.proxy.values import natural_number

HANDLE_CHARS_MAX: Final = 512
_BROKER_NAME_CHARS_MAX: Final = 255
_INT32_END: Final = 2**31
_INT64_END: Final = 2**63
_FLAGS: Final = (pop_receipts.FLAG_NORMAL, pop_receipts.FLAG_RETRY_V1, pop_receipts.FLAG_RETRY_V2)
_FIELDS_OF_BROKER: Final = 8
UNKNOWN: Final = -1


class Receipt(NamedTuple):
    """A parsed handle.

    log_offset  the position of the message in the broker's log; -1 if the handle does not have it
    life_ms     the time after the pop for which the lease may be renewed in place; 0 if it is not
    """

    handle: pop_receipts.Handle
    log_offset: int = UNKNOWN
    life_ms: int = 0

    @property
    def text(self) -> str:
        """The handle as clients get it."""
        if self.log_offset == UNKNOWN:
            return self.broker_text
        life = f" {self.life_ms}" if self.life_ms else ""
        return f"{self.broker_text} {self.log_offset}{life}"

    @property
    def broker_text(self) -> str:
        """The handle as brokers get it."""
        return pop_receipts.render_handle(self.handle)

    @property
    def is_renewable(self) -> bool:
        return self.life_ms > 0

    def ends_at_ms(self) -> int:
        """Returns the time at which the handle is void, whatever the broker says."""
        return self.handle.pop_time_ms + max(self.handle.invisible_ms, self.life_ms)

    def check_alive(self, now_ms: int) -> None:
        """Raises RpcRefused INVALID_RECEIPT_HANDLE for a handle that has expired."""
        late_ms = now_ms - self.ends_at_ms()
        if late_ms >= 0:
            raise invalid_handle(f"it expired {late_ms} ms ago; the message is delivered again")


def parse_receipt(text: str) -> Receipt:
    """Parses a handle of a client, which may be anything. Raises RpcRefused INVALID_RECEIPT_HANDLE."""
    if len(text) > HANDLE_CHARS_MAX:
        raise invalid_handle(f"it has {len(text)} characters, at most {HANDLE_CHARS_MAX} are allowed")
    try:
        handle = pop_receipts.parse_handle(text)
    except BadRequest as error:
        raise invalid_handle(error.remark) from None
    extra = text.split(" ")[_FIELDS_OF_BROKER:]
    numbers = [*handle[:4], handle.queue_id, handle.offset]
    if any(not 0 <= number < _INT64_END for number in numbers) or handle.queue_id >= _INT32_END:
        raise invalid_handle(f"{text!r} has a number that is negative or too large")
    if handle.flag not in _FLAGS or not 0 < len(handle.broker_name) <= _BROKER_NAME_CHARS_MAX:
        raise invalid_handle(f"{text!r} has an unknown flag or no name of a broker")
    log_offset, life_ms = (natural_number(extra[place]) if len(extra) > place else None for place in (0, 1))
    if log_offset is None:
        return Receipt(handle)
    return Receipt(handle, log_offset, life_ms or 0)


def invalid_handle(fault: str) -> RpcRefused:
    """Returns the refusal of a handle; clients give up the message then, and it is delivered again."""
    return RpcRefused(Code.INVALID_RECEIPT_HANDLE, f"the receipt handle is invalid: {fault}")
