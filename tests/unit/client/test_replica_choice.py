"""The replica that each policy reads, over time."""

from __future__ import annotations

import pytest

from tandemmq.client.consumer.replica_choice import AVOID_SLAVE_S, ReadPolicy, ReadReplica
from tandemmq.client.options import ConsumerOptions, ReadFrom
from tandemmq.errors import ConfigError

ADDRESSES = {0: "m", 1: "s1", 2: "s2"}
MASTER, SLAVE = ReadReplica(0, "m"), ReadReplica(1, "s1")


def policy(read_from: ReadFrom, lag: int = 10, spread: int = 0) -> ReadPolicy:
    return ReadPolicy(read_from, lag_count_max=lag, spread=spread)


def test_suggested_follows_the_answers() -> None:
    subject = policy(ReadFrom.SUGGESTED)
    assert subject.choose(ADDRESSES, (), 0) == MASTER
    subject.on_answer(1)
    assert subject.choose(ADDRESSES, (), 0) == SLAVE
    assert subject.choose(ADDRESSES, {"s1", "s2"}, 0) == MASTER
    subject.on_answer(0)
    assert subject.choose(ADDRESSES, (), 0) == MASTER
    assert subject.choose(ADDRESSES, {"m"}, 0) == SLAVE
    assert not subject.on_rejected(SLAVE, 0)


def test_master_is_never_replaced() -> None:
    subject = policy(ReadFrom.MASTER)
    subject.on_answer(1)
    assert subject.choose(ADDRESSES, (), 0) == MASTER
    assert subject.choose(ADDRESSES, {"m"}, 0) == MASTER
    assert subject.choose({1: "s1"}, (), 0) is None


def test_slaves_are_preferred_whatever_the_answers_say() -> None:
    subject = policy(ReadFrom.PREFER_SLAVE)
    subject.on_answer(0)
    assert subject.choose(ADDRESSES, (), 0) == SLAVE
    assert subject.choose(ADDRESSES, {"s1"}, 0) == ReadReplica(2, "s2")
    assert subject.choose(ADDRESSES, {"s1", "s2"}, 0) == MASTER
    assert subject.choose({0: "m"}, (), 0) == MASTER
    assert subject.choose({}, (), 0) is None


def test_queues_spread_over_slaves() -> None:
    chosen = [policy(ReadFrom.PREFER_SLAVE, spread=queue).choose(ADDRESSES, (), 0) for queue in range(4)]
    assert [one.broker_id for one in chosen if one is not None] == [1, 2, 1, 2]


def test_ends_are_compared_only_where_the_slave_has_nothing_more() -> None:
    subject = policy(ReadFrom.PREFER_SLAVE)
    assert subject.must_compare(SLAVE, is_at_end=True)
    assert not subject.must_compare(SLAVE, is_at_end=False)
    assert not subject.must_compare(MASTER, is_at_end=True)
    assert not policy(ReadFrom.SUGGESTED).must_compare(SLAVE, is_at_end=True)


@pytest.mark.parametrize(("master_end", "leaves"), [(100, False), (110, False), (111, True)])
def test_slave_that_is_too_far_behind_is_left_for_a_while(master_end: int, leaves: bool) -> None:
    subject = policy(ReadFrom.PREFER_SLAVE, lag=10)
    assert subject.judge_ends(master_end, 100, 7.0) is leaves
    assert subject.choose(ADDRESSES, (), 7.1) == (MASTER if leaves else SLAVE)
    assert subject.choose(ADDRESSES, (), 7.0 + AVOID_SLAVE_S) == SLAVE


def test_slave_that_refuses_reads_is_left_for_a_while() -> None:
    subject = policy(ReadFrom.PREFER_SLAVE)
    assert subject.on_rejected(SLAVE, 1.0)
    assert not subject.on_rejected(MASTER, 1.0)
    assert subject.choose(ADDRESSES, (), 2.0) == MASTER
    assert subject.choose(ADDRESSES, {"m"}, 2.0) == SLAVE


def test_slave_that_cannot_judge_is_left_for_a_while() -> None:
    subject = policy(ReadFrom.PREFER_SLAVE)
    subject.on_unverified(1.0)
    assert subject.choose(ADDRESSES, (), 2.0) == MASTER
    assert subject.choose(ADDRESSES, {"m"}, 2.0) == SLAVE
    late = 1.0 + 2 * AVOID_SLAVE_S
    assert subject.choose(ADDRESSES, (), late) == MASTER  # no answer yet
    subject.on_verified()
    assert subject.choose(ADDRESSES, (), 2.0) == MASTER
    assert subject.choose(ADDRESSES, (), late) == SLAVE
    subject = policy(ReadFrom.SUGGESTED)
    subject.on_answer(1)
    subject.on_unverified(1.0)
    assert subject.choose(ADDRESSES, (), 2.0) == MASTER


def test_lag_bound_is_checked() -> None:
    with pytest.raises(ConfigError, match="read_lag_count_max"):
        ConsumerOptions(read_lag_count_max=-1)
