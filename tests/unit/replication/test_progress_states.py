import pytest

from tandemmq.replication.core.progress import (
    MASTER_TRANSITIONS,
    SLAVE_TRANSITIONS,
    MasterCause,
    MasterState,
    SlaveCause,
    SlaveState,
    next_state,
)


def test_every_state_has_a_row_and_every_state_but_the_first_can_be_reached() -> None:
    assert set(MASTER_TRANSITIONS) == set(MasterState)
    assert set(SLAVE_TRANSITIONS) == set(SlaveState)
    master_reached = {state for row in MASTER_TRANSITIONS.values() for state in row.values()}
    slave_reached = {state for row in SLAVE_TRANSITIONS.values() for state in row.values()}
    assert master_reached == set(MasterState) - {MasterState.SUBSCRIBING}
    assert slave_reached == set(SlaveState)


def test_every_cause_is_used() -> None:
    assert {cause for row in MASTER_TRANSITIONS.values() for cause in row} == set(MasterCause)
    assert {cause for row in SLAVE_TRANSITIONS.values() for cause in row} == set(SlaveCause)


def test_every_state_can_end() -> None:
    for state in MasterState:
        assert next_state(MASTER_TRANSITIONS, state, MasterCause.ENDED) is MasterState.CLOSED
    for slave_state in SlaveState:
        assert next_state(SLAVE_TRANSITIONS, slave_state, SlaveCause.STOPPED) is SlaveState.STOPPED


def test_pair_outside_the_table_is_our_own_fault() -> None:
    with pytest.raises(AssertionError, match="cannot happen"):
        next_state(MASTER_TRANSITIONS, MasterState.CLOSED, MasterCause.STARTED)
