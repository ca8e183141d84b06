"""The loop's time for unknown peers, and the limit of log lines."""

from __future__ import annotations

from sim.manual_clock import ManualClock
from tandemmq.remoting.shared_bounds import (
    LINES_MAX,
    LINES_PERIOD_S,
    UNKNOWN_BURST_S,
    UNKNOWN_SHARE,
    LineLimit,
    UnknownPeers,
)


def test_unknown_peers_have_a_tenth_of_the_time_whoever_they_are() -> None:
    clock = ManualClock()
    unknown, served = UnknownPeers(clock), list[int]()

    def serve(number: int, pieces: int) -> None:
        served.append(number)
        unknown.spend(0.01)
        if pieces > 1:
            unknown.wait(lambda: serve(number, pieces - 1))

    assert unknown.may_run()
    unknown.spend(UNKNOWN_BURST_S + 0.01)
    assert not unknown.may_run()
    for number, pieces in ((1, 1000), (2, 3), (3, 1)):
        unknown.wait(lambda number=number, pieces=pieces: serve(number, pieces))  # type: ignore[misc]
    for _ in range(100):
        clock.advance(0.01)
    assert served[:7] == [1, 2, 3, 1, 2, 1, 2]  # in turn, the newcomer like the others
    assert abs(len(served) * 0.01 - UNKNOWN_SHARE * 1.0) < 0.03
    unknown.spend(-1.0)
    assert not unknown.may_run()  # another one waits


def test_unused_time_is_kept_for_a_burst_only() -> None:
    clock = ManualClock()
    unknown = UnknownPeers(clock)
    clock.advance(3600)
    assert unknown.may_run()
    unknown.spend(UNKNOWN_BURST_S)
    assert not unknown.may_run()
    clock.advance(0.1)
    assert unknown.may_run()


def test_lines_that_are_left_out_are_counted_in_the_next_one() -> None:
    clock = ManualClock()
    lines = LineLimit(clock)
    assert [lines.admit() for _ in range(LINES_MAX + 7)] == [{}] * LINES_MAX + [None] * 7
    clock.advance(LINES_PERIOD_S)
    assert [lines.admit(), lines.admit()] == [{"suppressed_lines": 7}, {}]
