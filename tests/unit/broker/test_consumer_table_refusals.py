"""The record of refusals: one line per kind, a bounded number of kinds, everything counted."""

from __future__ import annotations

import pytest

from sim.manual_clock import ManualClock
from tandemmq.broker.clients.consumer_table import REASON_LENGTH_MAX, REFUSALS_KEPT_MAX, Refusals


def lines(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.getMessage() == "consumer.refused" for record in caplog.records)


def test_the_longest_ago_is_forgotten_at_the_bound_and_told_again(caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(ManualClock())
    refusals.note("HEART_BEAT", "first", "c", 26, "r" * 10_000)
    refusals.note("HEART_BEAT", "again", "c", 26, "why")
    refusals.note("HEART_BEAT", "first", "c", 26, "r" * 10_000)
    assert (lines(caplog), len(refusals.of_group("first")[0].reason)) == (2, REASON_LENGTH_MAX)
    for number in range(REFUSALS_KEPT_MAX - 1):
        refusals.note("PULL_MESSAGE", f"g{number}", "c", 24, "why")
    assert [one.count for one in refusals.of_group("first")] == [2]  # added after the dropped one
    assert refusals.of_group("again") == ()
    assert lines(caplog) == REFUSALS_KEPT_MAX + 1
    refusals.note("HEART_BEAT", "again", "c", 26, "why")
    assert lines(caplog) == REFUSALS_KEPT_MAX + 2
    assert refusals.of_group("first") == ()
    assert refusals.count == REFUSALS_KEPT_MAX + 3
    assert refusals.counts == {("HEART_BEAT", 26): 4, ("PULL_MESSAGE", 24): REFUSALS_KEPT_MAX - 1}
