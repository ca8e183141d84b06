"""The state table of an elected broker, and its page."""

from __future__ import annotations

from pathlib import Path

import pytest

import states_page
from tandemmq.broker.autoswitch.roles import (
    MASTER_STATES,
    ROLE_TRANSITIONS,
    RoleEffect,
    RoleEvent,
    RoleState,
    next_role,
)

TERMS = (RoleEvent.SELF_ELECTED, RoleEvent.OTHER_ELECTED)


def test_every_state_event_and_effect_is_used() -> None:
    steps = [
        (event, step)
        for state in RoleState
        for event, step in ROLE_TRANSITIONS[state].items()
        if state is not RoleState.STOPPED
    ]
    assert {step.state for _, step in steps} == set(RoleState)
    assert {event for event, _ in steps} == set(RoleEvent)
    assert {effect for _, step in steps for effect in step.effects} == set(RoleEffect)


def test_a_newer_term_ends_every_state_and_its_lease() -> None:
    for state in set(RoleState) - {RoleState.STOPPED}:
        for event in TERMS:
            after, effects = next_role(state, event)
            assert after is RoleState.SWITCHING
            assert {RoleEffect.END_LEASE, RoleEffect.UNFOLLOW, RoleEffect.REPORT} <= set(effects)


def test_a_master_that_is_replaced_forwards_and_any_other_broker_does_not() -> None:
    for state in set(RoleState) - {RoleState.STOPPED}:
        effects = next_role(state, RoleEvent.OTHER_ELECTED).effects
        assert (RoleEffect.FORWARD_SENDS in effects) is (state in MASTER_STATES)
        assert (RoleEffect.KEEP_CLIENTS in effects) is (state is RoleState.DRAINED)


def test_writes_are_accepted_in_a_term_that_has_begun_and_after_a_hand_over_that_failed() -> None:
    into = {
        (state, event)
        for state, row in ROLE_TRANSITIONS.items()
        for event, step in row.items()
        if step.state is RoleState.LEADING
    }
    assert into == {
        (RoleState.SWITCHING, RoleEvent.LED),
        (RoleState.DRAINING, RoleEvent.HAND_OVER_FAILED),
        (RoleState.DRAINED, RoleEvent.HAND_OVER_FAILED),
    }


def test_a_lease_from_before_the_controllers_were_asked_for_a_successor_is_given_up() -> None:
    for state in (RoleState.DRAINING, RoleState.DRAINED):
        effects = next_role(state, RoleEvent.HAND_OVER_FAILED).effects
        assert (RoleEffect.END_LEASE in effects) is (state is RoleState.DRAINED)


def test_a_stop_is_final_and_any_other_missing_event_is_a_bug() -> None:
    for state in RoleState:
        assert next_role(state, RoleEvent.STOPPED).state is RoleState.STOPPED
    for event in RoleEvent:
        assert next_role(RoleState.STOPPED, event) == (RoleState.STOPPED, ())
    with pytest.raises(AssertionError, match="HAND_OVER in the state FOLLOWING"):
        next_role(RoleState.FOLLOWING, RoleEvent.HAND_OVER)


def test_the_page_is_up_to_date() -> None:
    page = Path(__file__).parents[3] / "docs" / "states.md"
    text = "\n".join(states_page.render()).rstrip() + "\n"
    assert page.read_text(encoding="utf-8") == text, "run: python -m states_page > docs/states.md"
