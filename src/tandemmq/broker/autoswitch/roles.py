"""The states of a broker of an elected group, and all transitions between them, as data. Pure.

`ElectedBroker` reports events and carries out the effects of each transition, in order. An event that is
missing for a state is a bug and stops the broker. `python -m states_page` draws the table.
Invariants: only LEADING accepts writes. It is entered only after the list of terms with its own term is on
            disk, or from a hand-over that failed.
            - A newer term ends every state but STOPPED, which is final.
Source:     spec controller 10.5, 10.6, 10.11.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple


class RoleState(Enum):
    """The state of the broker in the newest term that it has accepted."""

    UNASSIGNED = "slave without a master: copies nothing"
    SWITCHING = "changes to its role in the newest term: parks or refuses writes"
    FOLLOWING = "slave: copies the log of the term's master"
    LEADING = "master: accepts writes while it has a lease, or the leases of its whole set"
    DRAINING = "master that hands over: parks writes until its set holds the log"
    DRAINED = "master whose set holds the log: has its successor elected"
    STOPPED = "stopped; never starts again"


class RoleEvent(Enum):
    """The cause of a transition."""

    SELF_ELECTED = "a newer term has this broker as its master"
    OTHER_ELECTED = "a newer term has another master"
    LED = "the term has begun, with this broker as its master"
    FOLLOWED = "the broker is a slave of the term's master"
    REFUSED = "the log contains a newer term, or another broker has this broker's id"
    POSTPONED = "the start of the term could not be written to disk"
    HAND_OVER = "an operator, or the stop of this broker, requested another master"
    COPIED = "every accepted write is confirmed"
    HAND_OVER_FAILED = "the hand-over ended, and this broker knows of no newer term"
    STOPPED = "the process stops the broker"


class RoleEffect(Enum):
    """An action of the broker."""

    PARK_SENDS = "park sends until a master accepts them"
    PARK_AGAIN = "stop forwarding: park the sends until another master is known"
    FORWARD_SENDS = "park sends, and forward them for as long as clients know only this broker"
    SERVE_PARKED = "serve the parked sends here"
    END_FORWARDING = "refuse the parked sends"
    KEEP_CLIENTS = "keep the connections of clients: all their requests have been answered"
    END_LEASE = "give up the lease; an answer to an earlier request grants none"
    UNFOLLOW = "stop looking for the previous master and reporting to it"
    REPORT = "send heartbeats at once"
    REGISTER = "register again"
    POLL = "ask the controllers for the master"


class Transition(NamedTuple):
    """The next state, and the effects on the way to it."""

    state: RoleState
    effects: tuple[RoleEffect, ...] = ()


_S, _E, _F = RoleState, RoleEvent, RoleEffect

_NEW_TERM: Final = (_F.END_LEASE, _F.REPORT, _F.UNFOLLOW)
_STOP: Final = Transition(_S.STOPPED, (_F.END_FORWARDING,))
_SELF_ELECTED: Final = Transition(_S.SWITCHING, (_F.PARK_SENDS, *_NEW_TERM))


def _slave(**more: Transition) -> dict[RoleEvent, Transition]:
    """Returns the row of a state in which the broker is not a master; `more` by the names of events."""
    return {
        _E.SELF_ELECTED: _SELF_ELECTED,
        _E.OTHER_ELECTED: Transition(_S.SWITCHING, (_F.PARK_AGAIN, *_NEW_TERM)),
        _E.STOPPED: _STOP,
        **{_E[name]: transition for name, transition in more.items()},
    }


def _master(*keeps: RoleEffect, **more: Transition) -> dict[RoleEvent, Transition]:
    """Returns the row of a state in which the broker is the master; `keeps` is done when another one is
    elected.
    """
    return {
        _E.SELF_ELECTED: _SELF_ELECTED,
        _E.OTHER_ELECTED: Transition(_S.SWITCHING, (_F.FORWARD_SENDS, *keeps, *_NEW_TERM)),
        _E.STOPPED: _STOP,
        **{_E[name]: transition for name, transition in more.items()},
    }


_RESUMED: Final = (_F.SERVE_PARKED, _F.REPORT, _F.POLL)

ROLE_TRANSITIONS: Final[Mapping[RoleState, Mapping[RoleEvent, Transition]]] = MappingProxyType(
    {
        _S.UNASSIGNED: _slave(),
        _S.SWITCHING: _slave(
            LED=Transition(_S.LEADING, (_F.SERVE_PARKED,)),
            FOLLOWED=Transition(_S.FOLLOWING),
            REFUSED=Transition(_S.UNASSIGNED, (_F.END_FORWARDING, _F.REGISTER)),
            POSTPONED=Transition(_S.UNASSIGNED),
        ),
        _S.FOLLOWING: _slave(),
        _S.LEADING: _master(HAND_OVER=Transition(_S.DRAINING, (_F.PARK_SENDS,))),
        _S.DRAINING: _master(
            COPIED=Transition(_S.DRAINED), HAND_OVER_FAILED=Transition(_S.LEADING, _RESUMED)
        ),
        # The controllers did not wait for the lease to end, and the outcome of their election may be unknown.
        _S.DRAINED: _master(
            _F.KEEP_CLIENTS, HAND_OVER_FAILED=Transition(_S.LEADING, (_F.END_LEASE, *_RESUMED))
        ),
        _S.STOPPED: {event: Transition(_S.STOPPED) for event in RoleEvent},
    }
)

MASTER_STATES: Final = frozenset({_S.LEADING, _S.DRAINING, _S.DRAINED})


def next_role(state: RoleState, event: RoleEvent) -> Transition:
    """Returns the transition for `event` in `state`."""
    transition = ROLE_TRANSITIONS[state].get(event)
    assert transition is not None, f"{event.name} in the state {state.name}"
    return transition
