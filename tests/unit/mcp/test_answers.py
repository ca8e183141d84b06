"""The columns of an answer, read from plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tandemmq.mcp.answers import facts, rows_of


@dataclass
class Place:
    broker_name: str = "broker-a"


@dataclass
class Shown:
    group: str = "billing"
    lag: int = 3
    sent_at_ms: int = 1_000
    last_ms: int = 0
    place: Place = field(default_factory=Place)


def test_a_column_is_an_attribute_or_has_another_name_for_it() -> None:
    assert facts(Shown(), "group messages=lag broker=place.broker_name") == {
        "group": "billing",
        "messages": 3,
        "broker": "broker-a",
    }
    assert rows_of([Shown(lag=1), Shown(lag=2)], "lag") == [{"lag": 1}, {"lag": 2}]


def test_a_name_in_at_is_a_time() -> None:
    found = facts(Shown(), "sent_at newest_at=last_ms")
    assert found == {"sent_at": "1970-01-01T00:00:01.000+00:00", "newest_at": None}


def test_a_column_that_the_value_lacks_is_an_error() -> None:
    with pytest.raises(AttributeError, match="size"):
        facts(Shown(), "size")
