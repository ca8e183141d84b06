"""The table of pull answers, on a master and on a slave (spec semantics 8.3, spec replication 8.2 and
8.3)."""

from __future__ import annotations

import pytest

from tandemmq.broker.pull.handlers import AnsweringReplica, PullPlan, plan_pull
from tandemmq.store.outcomes import GetResult, GetStatus

FOUND, NOT_FOUND, RETRY, MOVED = 0, 19, 20, 21

MASTER = AnsweringReplica(broker_id=0, has_master=True, slave_read_enable=False, offset_check_in_slave=False)
READING_MASTER = MASTER._replace(slave_read_enable=True)
SLAVE = AnsweringReplica(broker_id=1, has_master=True, slave_read_enable=True, offset_check_in_slave=False)
ORPHAN = SLAVE._replace(has_master=False)


def plan(
    status: GetStatus, replica: AnsweringReplica = MASTER, *, offset: int = 5, is_slow: bool = False
) -> PullPlan:
    result = GetResult(status, next_offset=7, min_offset=2, max_offset=9, suggest_slave=is_slow)
    return plan_pull(result, offset, replica, normal_id=0, slow_id=1)


@pytest.mark.parametrize(
    ("status", "offset", "code", "can_hold"),
    [
        (GetStatus.FOUND, 5, FOUND, False),
        (GetStatus.NO_MATCHED_MESSAGE, 5, RETRY, False),
        (GetStatus.MESSAGE_WAS_REMOVING, 5, RETRY, False),
        (GetStatus.OFFSET_FOUND_NULL, 5, NOT_FOUND, True),
        (GetStatus.OFFSET_OVERFLOW_ONE, 5, NOT_FOUND, True),
        (GetStatus.OFFSET_OVERFLOW_BADLY, 5, MOVED, False),
        (GetStatus.OFFSET_TOO_SMALL, 5, MOVED, False),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 0, NOT_FOUND, True),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 5, MOVED, False),
    ],
)
def test_answers_of_a_master(status: GetStatus, offset: int, code: int, can_hold: bool) -> None:
    assert plan(status, offset=offset) == PullPlan(code, 7, 0, can_hold)


def test_every_outcome_of_the_store_has_an_answer() -> None:
    for status in GetStatus:
        for replica in (MASTER, READING_MASTER, SLAVE, ORPHAN):
            assert plan(status, replica).code in (FOUND, NOT_FOUND, RETRY, MOVED)


def test_slow_reader_is_sent_to_the_slave_only_when_slaves_serve_reads() -> None:
    assert plan(GetStatus.FOUND, READING_MASTER, is_slow=True).suggested_broker_id == 1
    assert plan(GetStatus.FOUND, READING_MASTER).suggested_broker_id == 0
    assert plan(GetStatus.FOUND, MASTER, is_slow=True).suggested_broker_id == 0


def test_slave_sends_a_reader_that_caught_up_back_to_the_master() -> None:
    assert plan(GetStatus.FOUND, SLAVE) == PullPlan(FOUND, 7, 0, False)
    assert plan(GetStatus.OFFSET_OVERFLOW_ONE, SLAVE) == PullPlan(RETRY, 7, 0, False)
    assert plan(GetStatus.FOUND, SLAVE, is_slow=True) == PullPlan(FOUND, 7, 1, False)


def test_slave_never_moves_an_offset_unless_told_to() -> None:
    moved = plan(GetStatus.OFFSET_TOO_SMALL, SLAVE, is_slow=True)
    assert moved == PullPlan(RETRY, 5, 0, False)
    checking = SLAVE._replace(offset_check_in_slave=True)
    assert plan(GetStatus.OFFSET_TOO_SMALL, checking, is_slow=True).code == MOVED


def test_slave_without_a_master_lets_readers_wait() -> None:
    assert plan(GetStatus.OFFSET_OVERFLOW_ONE, ORPHAN) == PullPlan(NOT_FOUND, 7, 0, True)
    ahead = plan(GetStatus.OFFSET_OVERFLOW_BADLY, ORPHAN, offset=50)
    assert ahead == PullPlan(RETRY, 50, 0, True)
    behind = plan(GetStatus.OFFSET_TOO_SMALL, ORPHAN, offset=1)
    assert not behind.can_hold
