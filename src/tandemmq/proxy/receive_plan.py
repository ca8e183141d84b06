"""The admission of a ReceiveMessage: checks of the request, and the plan of what to pop. Pure.

Source: spec proxy 5.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tandemmq.client.consumer.subscription import Subscription, parse_sql, parse_subscription
from tandemmq.errors import BadRequest
from tandemmq.proxy.brokers import TopicAccess
from tandemmq.proxy.options import ProxyOptions
from tandemmq.proxy.renewal import LeaseOwner
from tandemmq.proxy.rpc import Message
from tandemmq.proxy.schema import enum_number
from tandemmq.proxy.statuses import Code, RpcRefused, check_bound
from tandemmq.proxy.values import milliseconds
from tandemmq.runtime.ports import Random

ANSWER_MS: Final = 300
"""The part of the caller's time that is kept for the answer."""
REQUEST_MS: Final = 3_000
"""The request timeout of all clients, part of the deadline of a receive."""
EXPRESSION_CHARS_MAX: Final = 16_384
"""A longer filter is refused before it is parsed: millions of tags would block the loop for seconds, and no
header of a request to a broker would hold them.
"""
ATTEMPT_ID_CHARS_MAX: Final = 512
"""Brokers keep the attempt id of the last pop of each ordered queue."""
_SQL: Final = enum_number("FilterType", "SQL")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivePlan:
    """An admitted receive."""

    owner: LeaseOwner
    namespace: str
    broker_name: str
    subscription: Subscription
    batch_size: int
    invisible_ms: int
    poll_ms: int
    is_renewed: bool
    is_ordered: bool
    attempts_max: int
    attempt_id: str


def make_subscription(topic: str, expression: Message, now_ms: int) -> Subscription:
    """Returns the filter of a request; an empty expression accepts everything.

    Raises:  RpcRefused ILLEGAL_FILTER_EXPRESSION.
    """
    parse = parse_sql if expression.type == _SQL else parse_subscription
    text = expression.expression
    illegal = Code.ILLEGAL_FILTER_EXPRESSION
    check_bound(illegal, "the filter", len(text), EXPRESSION_CHARS_MAX, "characters")
    try:
        return parse(topic, text, now_ms)
    except BadRequest as error:
        raise RpcRefused(illegal, error.remark) from None


def poll_time_ms(request: Message, remaining_ms: float, options: ProxyOptions) -> int:
    """Returns the time for which the broker may hold the pop (spec proxy 5.9). `remaining_ms`: the time until
    the caller's deadline, infinite without one.

    Raises:  RpcRefused ILLEGAL_POLLING_TIME for a deadline too near for the shortest poll.
    """
    if request.HasField("long_polling_timeout"):
        asked_ms: float = milliseconds(request.long_polling_timeout)
    else:
        asked_ms = remaining_ms - REQUEST_MS / 2
    poll_ms = min(max(asked_ms, options.poll_ms_min), options.poll_ms_max)
    if poll_ms > remaining_ms and remaining_ms < options.poll_ms_min:
        raise RpcRefused(
            Code.ILLEGAL_POLLING_TIME,
            f"the call ends in {int(remaining_ms)} ms; the shortest poll is {options.poll_ms_min} ms",
        )
    return round(min(poll_ms, remaining_ms - ANSWER_MS))


def pick_broker(asked: str, access: TopicAccess, chance: Random) -> str:
    """Returns the broker to pop at: the one that the request names, else any readable one with a master.

    Raises:  RpcRefused FORBIDDEN when no broker has a readable queue.
    """
    names = sorted({queue.broker_name for queue in access.view.subscribe_queues})
    if not names:
        raise RpcRefused(Code.FORBIDDEN, f"no readable queue of topic {access.view.topic}")
    if asked in names:
        return asked
    served = [name for name in names if access.view.master_address(name) is not None] or names
    return served[chance.below(len(served))]


def check_invisible(invisible_ms: int, low_ms: int, high_ms: int) -> None:
    """Checks an invisible time. Raises RpcRefused ILLEGAL_INVISIBLE_TIME with the texts of Java's proxy."""
    if invisible_ms < low_ms:
        fault = "the invisibleTime is too small"
    elif invisible_ms > high_ms:
        fault = "the invisibleTime is too large"
    else:
        return
    raise RpcRefused(
        Code.ILLEGAL_INVISIBLE_TIME, f"{fault}: {invisible_ms} ms, {low_ms} to {high_ms} ms are allowed"
    )
