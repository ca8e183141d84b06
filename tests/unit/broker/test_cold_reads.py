"""Counting the old messages that groups read (spec semantics 20.3)."""

from __future__ import annotations

import pytest

from sim.manual_clock import ManualClock
from tandemmq.broker.options import BrokerOptions
from tandemmq.broker.pull import cold_reads
from tandemmq.broker.pull.cold_reads import FORGOTTEN_AFTER_MS, WINDOW_S, ColdReads
from tandemmq.errors import BadRequest


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def reads(clock: ManualClock) -> ColdReads:
    return ColdReads(BrokerOptions(cold_bytes_per_group_max=100, cold_bytes_max=250), clock)


def test_group_is_over_from_its_threshold_on_until_the_window_ends(
    reads: ColdReads, clock: ManualClock
) -> None:
    reads.record("g", 99)
    assert not reads.is_over("g")
    reads.record("g", 1)
    assert reads.is_over("g")
    clock.advance(WINDOW_S)
    assert not reads.is_over("g")
    assert reads.info().groups["g"].bytes == 0


def test_all_groups_that_read_old_messages_are_over_when_their_sum_is(reads: ColdReads) -> None:
    for group in ("a", "b", "c"):
        reads.record(group, 90)
    assert [reads.is_over(group) for group in ("a", "b", "c", "reads nothing old")] == [True] * 3 + [False]


def test_group_with_a_threshold_of_its_own(reads: ColdReads) -> None:
    reads.set_thresholds({"a": 1_000, "b": 10})
    reads.record("a", 200)
    reads.record("b", 10)
    assert [reads.is_over(group) for group in ("a", "b")] == [False, True]
    reads.remove_threshold("b")
    reads.remove_threshold("never set")
    assert not reads.is_over("b")
    assert reads.info().thresholds == {"a": 1_000}


def test_group_that_reads_nothing_old_for_a_minute_is_forgotten(reads: ColdReads, clock: ManualClock) -> None:
    reads.record("g", 1)
    clock.advance(FORGOTTEN_AFTER_MS / 1000 - WINDOW_S)
    assert "g" in reads.info().groups
    clock.advance(WINDOW_S)
    assert reads.info().groups == {}


def test_bounds(reads: ColdReads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "GROUPS_MAX", 1)
    monkeypatch.setattr(cold_reads, "THRESHOLDS_MAX", 2)
    reads.record("a", 1)
    reads.record("b", 2)
    assert (set(reads.info().groups), reads.info().all_bytes) == ({"a"}, 3)
    reads.set_thresholds({"a": 1, "b": 2})
    reads.set_thresholds({"b": 3})
    with pytest.raises(BadRequest, match="at most 2"):
        reads.set_thresholds({"a": 5, "c": 1})
    assert reads.info().thresholds == {"a": 1, "b": 3}
