"""Held pops: each kind of request is tried, and one that finds nothing does not hide another kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sim.memory import ManualClock
from tandemmq.broker.pop import reading
from tandemmq.broker.pop.reading import HeldPop, PopPolls

KEY = ("T", "G")


class FakeChannel:
    def __init__(self) -> None:
        self.is_closed = False
        self.on_close: list[Callable[[Any], None]] = []


class TurningClock(ManualClock):
    """A clock whose `call_soon` calls can run turn by turn."""

    def turn(self) -> None:
        for _ in range(len(self._soon)):
            fn, args = self._soon.popleft()
            fn(*args)


class Table:
    """The table under test, the messages that can be found, and the attempts."""

    def __init__(self, count_max: int = 100, count_per_group_max: int = 100) -> None:
        self.clock = TurningClock()
        self.attempts: set[str] = set()
        self.polls = PopPolls(
            clock=self.clock,
            count_max=count_max,
            count_per_group_max=count_per_group_max,
            attempts_of=lambda _key: self.attempts,
        )
        self.found: dict[str, int] = {}  # the number of times that each kind of request finds something
        self.looks: list[str] = []
        self.served: list[str] = []
        self.expired: list[str] = []

    def hold(
        self, name: str, kind: str = "", *, queue_id: int = -1, attempt_id: str = "", group: str = "G"
    ) -> bool:
        def on_wake(held: HeldPop, is_over: bool) -> bool:
            if is_over:
                self.expired.append(name)
                return True
            self.looks.append(name)
            wanted = attempt_id if attempt_id in self.attempts else kind
            if not self.found.get(wanted):
                return False
            self.found[wanted] -= 1
            self.served.append(name)
            return True

        held = HeldPop(
            channel=FakeChannel(),
            key=("T", group),
            queue_id=queue_id,
            deadline_s=self.clock.monotonic() + 15,
            request=name,
            on_wake=on_wake,
            kind=kind,
            attempt_id=attempt_id,
        )
        return self.polls.hold(held, ["%RETRY%G_T"])

    def touch(self, queue_id: int = -1, **found: int) -> None:
        self.found.update(found)
        self.polls.touch(KEY, queue_id)
        self.clock.run_soon()


def test_a_request_that_finds_nothing_hides_only_its_equals() -> None:
    table = Table()
    for name, kind in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b"), ("c1", "c")):
        table.hold(name, kind)
    table.touch(b=1, c=1)
    assert table.served == ["b1", "c1"]
    assert table.looks == ["a1", "b1", "b2", "c1"]
    assert len(table.polls) == 3


def test_requests_of_one_kind_are_served_in_the_order_of_their_arrival() -> None:
    table = Table()
    for name in ("1", "2", "3"):
        table.hold(name)
    table.touch(**{"": 2})
    assert table.served == ["1", "2"]


def test_a_request_for_one_queue_hides_none_for_another() -> None:
    table = Table()
    table.hold("q0", "other", queue_id=0)
    table.hold("q1", queue_id=1)
    table.touch(1, **{"": 1})
    assert table.served == ["q1"]
    assert table.looks == ["q1"]  # queue 0 was not touched
    table.hold("again", queue_id=1)
    table.touch(-1, **{"": 1})
    assert table.served == ["q1", "again"]


def test_an_attempt_that_has_messages_in_order_is_looked_at_behind_one_that_finds_nothing() -> None:
    table = Table()
    for name in ("x", "y", "z", "x"):
        table.hold(name, "ordered", attempt_id=name)
    table.attempts = {"x"}
    table.touch(x=2)
    assert table.served == ["x", "x"]
    assert table.looks == ["x", "y", "x"]  # z would find the same as y


def test_a_turn_has_a_bound_and_the_next_one_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "TRIES_MAX", 2)
    table = Table()
    for name in "abcde":
        table.hold(name, name)
    table.found["e"] = 1
    table.polls.touch(KEY, -1)
    table.clock.turn()
    assert table.looks == ["a", "b"]
    table.polls.touch(KEY, -1)  # waits for the end of the current round
    table.clock.turn()
    table.clock.turn()
    assert table.looks == ["a", "b", "c", "d", "e"]
    assert table.served == ["e"]
    table.clock.run_soon()
    assert table.looks == ["a", "b", "c", "d", "e", "a", "b", "c", "d"]


def test_queue_touched_during_a_scan_is_scanned_in_the_next_turn() -> None:
    table = Table()
    left = [3]

    def on_wake(held: HeldPop, is_over: bool) -> bool:
        left[0] -= 1
        if left[0]:
            table.polls.touch(KEY, 0)
        return not left[0]

    held = HeldPop(channel=FakeChannel(), key=KEY, queue_id=0, deadline_s=15.0, request="", on_wake=on_wake)
    assert table.polls.hold(held, [])
    table.polls.touch(KEY, 0)
    table.clock.turn()
    assert left == [2]
    table.clock.run_soon()
    assert left == [0]
    assert len(table.polls) == 0


def test_bounds_expiry_and_closing() -> None:
    table = Table(count_per_group_max=2)
    assert table.hold("1", "a")
    assert table.hold("2", "b", queue_id=3)
    assert not table.hold("3")
    assert table.polls.count(KEY, 3) == 1
    table.clock.advance(16)
    assert table.expired == ["1", "2"]
    assert len(table.polls) == 0
    assert table.hold("4")
    table.polls.close()
    assert table.expired == ["1", "2", "4"]
    assert not table.hold("5")


def test_the_requests_of_one_group_and_of_all_have_bounds() -> None:
    table = Table(count_max=3, count_per_group_max=2)
    assert [table.hold(f"a{number}", group="A") for number in range(3)] == [True, True, False]
    assert [table.hold(f"b{number}", group="B") for number in range(2)] == [True, False]
    table.clock.advance(16)
    assert (len(table.polls), table.expired) == (0, ["a0", "a1", "b0"])
    assert table.hold("b2", group="B")
