"""The admission of a receive: the poll time, the broker (spec proxy 5.9)."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from consume_rig import TOPIC, route
from test_receiving import request

from tandemmq.proxy.brokers import TopicAccess
from tandemmq.proxy.options import ProxyOptions
from tandemmq.proxy.receive_plan import pick_broker, poll_time_ms
from tandemmq.proxy.statuses import Code, RpcRefused


@pytest.mark.parametrize(
    ("await_s", "remaining_s", "expected"),
    [
        (20, 23, 20_000),
        (10, 13, 10_000),
        (0, 10, 5_000),  # never less than the shortest poll
        (60, 63, 20_000),
        (20, 10, 9_700),  # the remaining time, less what the answer needs
        (5, 5, 4_700),
        (None, 23, 20_000),
        (None, 9, 7_500),
        (7, inf, 7_000),
        (None, inf, 20_000),
        (0, 4.9, None),
        (20, -1, None),
    ],
)
def test_the_poll_time_follows_from_the_request_and_its_deadline(
    await_s: int | None, remaining_s: float, expected: int | None
) -> None:
    asked = request(long_polling_timeout=None if await_s is None else {"seconds": await_s})
    remaining_ms = remaining_s * 1000
    if expected is None:
        with pytest.raises(RpcRefused) as refused:
            poll_time_ms(asked, remaining_ms, ProxyOptions())
        assert refused.value.code == Code.ILLEGAL_POLLING_TIME
    else:
        found = poll_time_ms(asked, remaining_ms, ProxyOptions())
        assert (found, type(found)) == (expected, int)


def test_a_deadline_just_too_near_is_not_rounded_up_to_the_shortest_poll() -> None:
    with pytest.raises(RpcRefused, match="the call ends in 4999 ms; the shortest poll is 5000 ms"):
        poll_time_ms(request(), 4_999.9, ProxyOptions())


def test_any_readable_broker_serves_a_request_for_an_unknown_one() -> None:
    class Second:
        def below(self, end: int) -> int:
            return end - 1

    access = TopicAccess(TOPIC, route("a", "b"))
    chance: Any = Second()
    assert pick_broker("a", access, chance) == "a"
    assert pick_broker("", access, chance) == pick_broker("x", access, chance) == "b"
    with pytest.raises(RpcRefused) as refused:
        pick_broker("a", TopicAccess(TOPIC, route()), chance)
    assert refused.value.code == Code.FORBIDDEN
