"""Time limits in buckets, and the bounds that all connections share."""

from __future__ import annotations

import pytest

from sim.manual_clock import ManualClock
from tandemmq.errors import ConfigError
from tandemmq.proxy.grpc_limits import TICK_S, Deadlines, GrpcLimits, SharedCalls
from tandemmq.proxy.limited_lines import LimitedLines


class Timed:
    """A call that records when its time came."""

    def __init__(self, clock: ManualClock) -> None:
        self.tick = 0
        self.clock = clock
        self.due_at_s: list[float] = []

    def on_due(self) -> None:
        self.due_at_s.append(self.clock.monotonic())


def test_calls_are_due_once_and_at_most_a_tick_late() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    limits = [0.0, 0.01, 0.1, 0.25, 1.0, 7.77, 100.0, 3e9]
    calls = [Timed(clock) for _ in limits]
    for call, at_s in zip(calls, limits, strict=True):
        deadlines.add(call, at_s)
    assert len(deadlines) == len(limits)
    clock.advance(200.0)
    for call, at_s in zip(calls[:-1], limits, strict=False):
        (due_at_s,) = call.due_at_s
        assert at_s - 1e-6 <= due_at_s <= at_s + 2 * TICK_S + 1e-6
    assert calls[-1].due_at_s == []
    assert len(deadlines) == 1


def test_removed_calls_are_not_due_and_others_still_are() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    kept, removed = Timed(clock), Timed(clock)
    for call in (kept, removed):
        deadlines.add(call, 1.0)
    deadlines.remove(removed)
    deadlines.remove(removed)
    clock.advance(5.0)
    assert (len(kept.due_at_s), removed.due_at_s) == (1, [])
    clock.advance(100.0)
    deadlines.add(removed, clock.monotonic() + 1.0)  # after a pause without any
    clock.advance(2.0)
    assert len(removed.due_at_s) == 1


def test_calls_and_bytes_are_counted_together() -> None:
    limits = GrpcLimits(calls_max=1, held_calls_max=2, request_bytes_max=10)
    shared = SharedCalls(LimitedLines(ManualClock()), limits)
    assert [shared.begin(is_held=False) for _ in range(2)] == [True, False]
    assert [shared.begin(is_held=True) for _ in range(3)] == [True, True, False]
    shared.end(is_held=False)
    shared.end(is_held=False)
    assert shared.begin(is_held=False)
    assert [shared.reserve(size) for size in (6, 5, 4)] == [True, False, True]
    shared.release(6)
    assert shared.reserve(6)


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="streams_max"):
        GrpcLimits(streams_max=0)
