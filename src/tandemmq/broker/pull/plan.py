"""What a pull answers, decided from what the store found. Pure.

Source: spec semantics 8.3, spec replication 8.2 and 8.3.
"""

from __future__ import annotations

from typing import NamedTuple

from tandemmq.protocol.codes import ResponseCode
from tandemmq.store.outcomes import GetResult, GetStatus

MASTER_ID = 0

_FOUND = int(ResponseCode.SUCCESS)
_NOT_FOUND = int(ResponseCode.PULL_NOT_FOUND)
_RETRY = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_MOVED = int(ResponseCode.PULL_OFFSET_MOVED)

_CODES = {
    GetStatus.FOUND: _FOUND,
    GetStatus.NO_MATCHED_MESSAGE: _RETRY,
    GetStatus.MESSAGE_WAS_REMOVING: _RETRY,
    GetStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
    GetStatus.OFFSET_TOO_SMALL: _MOVED,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: _NOT_FOUND,  # _MOVED for a requested offset other than 0
    GetStatus.NO_MESSAGE_IN_QUEUE: _NOT_FOUND,  # the same
}
_EMPTY_QUEUE = frozenset({GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE})


class Replica(NamedTuple):
    """Which replica answers, as far as a pull cares."""

    broker_id: int
    has_master: bool  # a live master is known (always true on the master itself)
    slave_read_enable: bool
    offset_check_in_slave: bool


class PullPlan(NamedTuple):
    """The answer: response code, where to pull next, whom to ask next, and whether waiting may help."""

    code: int
    next_offset: int
    suggested_broker_id: int
    can_hold: bool


def plan_pull(
    result: GetResult, requested_offset: int, replica: Replica, *, normal_id: int, slow_id: int
) -> PullPlan:
    """The answer to a pull at `requested_offset`.

    `normal_id` and `slow_id` are the group's brokerId and whichBrokerWhenConsumeSlowly.
    """
    code = _CODES[result.status]
    if result.status in _EMPTY_QUEUE and requested_offset != 0:
        code = _MOVED
    suggested = MASTER_ID
    if replica.slave_read_enable:
        suggested = slow_id if result.suggest_slave else normal_id
    plan = PullPlan(code, result.next_offset, suggested, code == _NOT_FOUND)
    if replica.broker_id != MASTER_ID:
        return _plan_on_slave(plan, result, requested_offset, replica, normal_id)
    return plan


def _plan_on_slave(
    plan: PullPlan, result: GetResult, requested_offset: int, replica: Replica, normal_id: int
) -> PullPlan:
    if replica.has_master and not result.suggest_slave:
        # The reader has caught up: it belongs to the master again, and must not wait here.
        if plan.code == _FOUND:
            return plan._replace(suggested_broker_id=MASTER_ID)
        return PullPlan(_RETRY, plan.next_offset, MASTER_ID, False)
    if plan.code == _MOVED and not replica.offset_check_in_slave:
        # A slave may simply not have these messages yet, so it does not move anyone's offset. Without a
        # master a reader that is ahead of us would come back at once and for ever: it may wait here
        # instead.
        is_ahead = not replica.has_master and requested_offset > result.max_offset
        return PullPlan(_RETRY, requested_offset, normal_id, is_ahead)
    return plan
