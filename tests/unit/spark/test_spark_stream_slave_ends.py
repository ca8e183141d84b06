"""Tests the planned ends of a stream over slaves, with slaves that keep up and slaves that do not."""

from __future__ import annotations

from tandemmq.spark.offsets import QueueKey
from tandemmq.spark.stream import SlaveEnds

A, B = QueueKey("t", "b", 0), QueueKey("t", "b", 1)


def test_a_slave_that_keeps_up_sets_the_end() -> None:
    ends = SlaveEnds(patience_s=5)
    assert ends.choose(0, master={A: 100}, slave={A: 90}) == {A: 90}
    assert ends.choose(5, master={A: 200}, slave={A: 150}) == {A: 150}


def test_a_slave_that_stands_still_does_not_stop_the_stream() -> None:
    ends = SlaveEnds(patience_s=5)
    assert ends.choose(0, master={A: 100, B: 5}, slave={A: 90, B: 5}) == {A: 90, B: 5}
    assert ends.choose(4.9, master={A: 100, B: 5}, slave={A: 90, B: 5}) == {A: 90, B: 5}
    assert ends.choose(5, master={A: 100, B: 5}, slave={A: 90, B: 5}) == {A: 100, B: 5}


def test_without_a_master_the_slaves_end_counts() -> None:
    ends = SlaveEnds(patience_s=5)
    ends.choose(0, master={A: 100}, slave={A: 90})
    assert ends.choose(60, master={}, slave={A: 90}) == {A: 90}


def test_without_a_slave_the_masters_end_counts() -> None:
    assert SlaveEnds().choose(0, master={A: 100}, slave={}) == {A: 100}


def test_a_slave_ahead_of_what_the_master_said_is_cut_to_it() -> None:
    assert SlaveEnds().choose(0, master={A: 100}, slave={A: 101}) == {A: 100}
