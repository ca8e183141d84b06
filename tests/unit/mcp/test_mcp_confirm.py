"""Tokens of confirmation: one change, once, for a while."""

from __future__ import annotations

import pytest

from tandemmq.errors import BadRequest
from tandemmq.mcp.confirm import LIFETIME_S, PENDING_MAX, Confirmations


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


CHANGE = {"topic": "Orders", "cluster": ""}


def test_a_token_confirms_its_change_once() -> None:
    tokens = Confirmations(Clock())
    token = tokens.issue("delete_topic", CHANGE)
    # The order of the arguments does not matter.
    tokens.redeem(token, "delete_topic", {"cluster": "", "topic": "Orders"})
    with pytest.raises(BadRequest, match="unknown confirmation token"):
        tokens.redeem(token, "delete_topic", CHANGE)


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("delete_group", CHANGE), ("delete_topic", {**CHANGE, "topic": "Payments"}), ("delete_topic", {})],
)
def test_a_token_confirms_no_other_change_and_is_used_up_by_the_attempt(
    tool: str, arguments: dict[str, str]
) -> None:
    tokens = Confirmations(Clock())
    token = tokens.issue("delete_topic", CHANGE)
    with pytest.raises(BadRequest, match="other arguments"):
        tokens.redeem(token, tool, arguments)
    with pytest.raises(BadRequest, match="unknown"):
        tokens.redeem(token, "delete_topic", CHANGE)


def test_a_token_expires() -> None:
    clock = Clock()
    tokens = Confirmations(clock)
    token = tokens.issue("delete_topic", CHANGE)
    clock.seconds += LIFETIME_S
    with pytest.raises(BadRequest, match="expired after 300 s"):
        tokens.redeem(token, "delete_topic", CHANGE)


def test_the_oldest_token_is_dropped_at_the_bound() -> None:
    tokens = Confirmations(Clock())
    issued = [tokens.issue("delete_topic", CHANGE) for _ in range(PENDING_MAX + 1)]
    with pytest.raises(BadRequest, match="unknown"):
        tokens.redeem(issued[0], "delete_topic", CHANGE)
    tokens.redeem(issued[1], "delete_topic", CHANGE)
    tokens.redeem(issued[-1], "delete_topic", CHANGE)
