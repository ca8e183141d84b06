"""Held pulls: woken by their queue only, expired by one timer, dropped with their connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sim.memory import ManualClock
from tandemmq.broker.pull.long_poll import HeldPull, LongPolls, WakeReason


class FakeChannel:
    def __init__(self) -> None:
        self.is_closed = False
        self.on_close: list[Callable[[Any], None]] = []

    def close(self) -> None:
        self.is_closed = True
        for callback in self.on_close:
            callback(self)


class Table:
    """The table under test, with a record of the woken pulls and the reasons."""

    def __init__(self, count_max: int = 100, count_per_queue_max: int = 100) -> None:
        self.clock = ManualClock()
        self.polls = LongPolls(clock=self.clock, count_max=count_max, count_per_queue_max=count_per_queue_max)
        self.woken: list[tuple[object, WakeReason]] = []

    def hold(
        self,
        name: str,
        *,
        queue: tuple[str, int] = ("T", 0),
        offset: int = 5,
        after_s: float = 15.0,
        channel: FakeChannel | None = None,
    ) -> bool:
        return self.polls.hold(
            HeldPull(
                channel=channel or FakeChannel(),
                queue=queue,
                offset=offset,
                deadline_s=self.clock.monotonic() + after_s,
                request=name,
                on_wake=lambda held, reason: self.woken.append((held.request, reason)),
            )
        )

    def dispatch(self, queue: tuple[str, int], max_offset: int) -> None:
        self.polls.on_dispatch([(queue, max_offset)])
        self.clock.run_soon()


def test_only_pulls_of_the_touched_queue_that_miss_messages_are_woken() -> None:
    table = Table()
    table.hold("other queue", queue=("T", 1))
    table.hold("has seen it", offset=6)
    table.hold("waits for it", offset=5)
    table.dispatch(("T", 0), 6)
    assert table.woken == [("waits for it", WakeReason.NEW_MESSAGES)]
    assert len(table.polls) == 2


def test_waking_happens_in_the_next_turn_and_once_for_many_dispatches() -> None:
    table = Table()
    table.hold("a")
    table.polls.on_dispatch([(("T", 0), 6)])
    table.polls.on_dispatch([(("T", 0), 7)])
    assert table.woken == []
    table.clock.run_soon()
    assert table.woken == [("a", WakeReason.NEW_MESSAGES)]


def test_pulls_expire_in_the_order_of_their_deadlines() -> None:
    table = Table()
    table.hold("late", after_s=20.0)
    table.hold("early", after_s=1.0)
    table.clock.advance(0.9)
    assert table.woken == []
    table.clock.advance(0.3)
    assert table.woken == [("early", WakeReason.EXPIRED)]
    table.clock.advance(20.0)
    assert table.woken == [("early", WakeReason.EXPIRED), ("late", WakeReason.EXPIRED)]
    assert len(table.polls) == 0


def test_woken_pull_does_not_expire_again() -> None:
    table = Table()
    table.hold("a", after_s=1.0)
    table.dispatch(("T", 0), 6)
    table.clock.advance(5.0)
    assert table.woken == [("a", WakeReason.NEW_MESSAGES)]


def test_pull_held_on_keeps_its_deadline() -> None:
    table = Table()
    held: list[HeldPull[str]] = []

    def on_wake(pull: HeldPull[str], reason: WakeReason) -> None:
        table.woken.append((pull.request, reason))
        if reason is WakeReason.NEW_MESSAGES:
            pull.offset = 9
            assert table.polls.hold(pull)

    held.append(
        HeldPull(
            channel=FakeChannel(), queue=("T", 0), offset=5, deadline_s=1.0, request="a", on_wake=on_wake
        )
    )
    table.polls.hold(held[0])
    table.dispatch(("T", 0), 9)
    table.dispatch(("T", 0), 9)
    assert [reason for _, reason in table.woken] == [WakeReason.NEW_MESSAGES]
    table.clock.advance(1.2)
    assert [reason for _, reason in table.woken] == [WakeReason.NEW_MESSAGES, WakeReason.EXPIRED]


def test_closed_connection_takes_its_pulls_with_it() -> None:
    table = Table()
    channel = FakeChannel()
    table.hold("a", channel=channel)
    table.hold("b", queue=("T", 1), channel=channel)
    table.hold("c")
    channel.close()
    assert len(table.polls) == 1
    assert len(channel.on_close) == 1
    table.clock.advance(60.0)
    assert [name for name, _ in table.woken] == ["c"]


def test_answer_that_closes_a_connection_does_not_confuse_the_round() -> None:
    table = Table()
    channel = FakeChannel()

    def on_wake(held: HeldPull[str], reason: WakeReason) -> None:
        table.woken.append((held.request, reason))
        channel.close()

    for name in ("a", "b"):
        table.polls.hold(
            HeldPull(channel=channel, queue=("T", 0), offset=5, deadline_s=1.0, request=name, on_wake=on_wake)
        )
    table.clock.advance(2.0)
    assert [name for name, _ in table.woken] == ["a"]
    assert len(table.polls) == 0


@pytest.mark.parametrize(("bounds", "second_queue"), [((1, 9), 1), ((9, 1), 0)])
def test_bounds_refuse_one_more(bounds: tuple[int, int], second_queue: int) -> None:
    table = Table(*bounds)
    assert table.hold("a")
    assert not table.hold("b", queue=("T", second_queue))
    table.dispatch(("T", 0), 6)
    assert table.hold("c")


def test_close_answers_all_and_holds_no_more() -> None:
    table = Table()
    table.hold("a")
    table.hold("b", queue=("T", 1))
    table.polls.close()
    assert [reason for _, reason in table.woken] == [WakeReason.EXPIRED] * 2
    assert not table.hold("c")


def test_the_pulls_of_a_deleted_topic_are_looked_at_at_once() -> None:
    table = Table()
    for topic in ("T", "U"):
        for queue_id in (0, 1):
            table.hold(f"{topic}{queue_id}", queue=(topic, queue_id))
    table.polls.wake_topic("T")
    assert sorted(table.woken, key=str) == [("T0", WakeReason.EXPIRED), ("T1", WakeReason.EXPIRED)]
    assert len(table.polls) == 2
