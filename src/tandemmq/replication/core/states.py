"""The states of both ends of the channel and every transition between them, as data (spec replication 4.5).

All transitions live here; a cause that is absent for a state is our own fault and stops the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import TypeVar


class MasterState(Enum):
    """One slave's connection, seen from the master."""

    SUBSCRIBING = "waits for the first report"
    TRANSFERRING = "sends the log"
    AHEAD = "the slave holds more than we do: heartbeats only"
    TOO_OLD = "the slave's next byte is no longer kept: heartbeats only"
    CLOSED = "the connection has ended"


class MasterCause(Enum):
    """What moves a master's session."""

    STARTED = "the first report named a place in our log"
    FOUND_AHEAD = "the first report lies behind our end"
    FOUND_TOO_OLD = "the next byte to send lies before our start"
    ENDED = "either side closed, or the slave fell silent or broke a rule"


class SlaveState(Enum):
    """The slave's only connection. RocketMQ's READY is DIALING or PAUSED."""

    UNASSIGNED = "knows no master"
    DIALING = "connects"
    CHECKING = "compares its end with the master's log"
    TRANSFERRING = "stores what arrives"
    PAUSED = "waits before the next attempt"
    HALTED = "a person must act: see the reason"
    STOPPED = "ended for good"


class SlaveCause(Enum):
    """What moves a slave's session."""

    ASSIGNED = "a master's address became known"
    CLEARED = "the address was taken away"
    CONNECTED = "the connection is up, and there is nothing to compare"
    CONNECTED_UNCHECKED = "the connection is up"
    CHECKED = "the end is the master's, or could not be compared"
    FAILED = "connecting failed, the connection broke, or a frame did not fit"
    SILENT = "the master sent nothing for too long"
    RESUMED = "the pause is over"
    REFUSED = "going on would damage the copy"
    STOPPED = "the owner stops"


_M = MasterState
_MC = MasterCause
MASTER_TRANSITIONS: Mapping[MasterState, Mapping[MasterCause, MasterState]] = MappingProxyType(
    {
        _M.SUBSCRIBING: {
            _MC.STARTED: _M.TRANSFERRING,
            _MC.FOUND_AHEAD: _M.AHEAD,
            _MC.FOUND_TOO_OLD: _M.TOO_OLD,
            _MC.ENDED: _M.CLOSED,
        },
        _M.TRANSFERRING: {_MC.FOUND_TOO_OLD: _M.TOO_OLD, _MC.ENDED: _M.CLOSED},
        _M.AHEAD: {_MC.ENDED: _M.CLOSED},
        _M.TOO_OLD: {_MC.ENDED: _M.CLOSED},
        _M.CLOSED: {_MC.ENDED: _M.CLOSED},
    }
)

_S = SlaveState
_SC = SlaveCause
SLAVE_TRANSITIONS: Mapping[SlaveState, Mapping[SlaveCause, SlaveState]] = MappingProxyType(
    {
        _S.UNASSIGNED: {_SC.ASSIGNED: _S.DIALING, _SC.STOPPED: _S.STOPPED},
        _S.DIALING: {
            _SC.CONNECTED: _S.TRANSFERRING,
            _SC.CONNECTED_UNCHECKED: _S.CHECKING,
            _SC.FAILED: _S.PAUSED,
            _SC.CLEARED: _S.UNASSIGNED,
            _SC.STOPPED: _S.STOPPED,
        },
        _S.CHECKING: {
            _SC.CHECKED: _S.TRANSFERRING,
            _SC.FAILED: _S.PAUSED,
            _SC.REFUSED: _S.HALTED,
            _SC.CLEARED: _S.UNASSIGNED,
            _SC.STOPPED: _S.STOPPED,
        },
        _S.TRANSFERRING: {
            _SC.FAILED: _S.PAUSED,
            _SC.SILENT: _S.DIALING,
            _SC.REFUSED: _S.HALTED,
            _SC.CLEARED: _S.UNASSIGNED,
            _SC.STOPPED: _S.STOPPED,
        },
        _S.PAUSED: {
            _SC.RESUMED: _S.DIALING,
            _SC.ASSIGNED: _S.DIALING,
            _SC.CLEARED: _S.UNASSIGNED,
            _SC.STOPPED: _S.STOPPED,
        },
        _S.HALTED: {
            _SC.ASSIGNED: _S.DIALING,
            _SC.CLEARED: _S.UNASSIGNED,
            _SC.STOPPED: _S.STOPPED,
        },
        _S.STOPPED: {_SC.STOPPED: _S.STOPPED},
    }
)

State = TypeVar("State", MasterState, SlaveState)
Cause = TypeVar("Cause", MasterCause, SlaveCause)


def next_state(table: Mapping[State, Mapping[Cause, State]], state: State, cause: Cause) -> State:
    """The state that `cause` leads to. A pair outside the table is a fault of ours."""
    following = table[state].get(cause)
    assert following is not None, f"{cause} cannot happen in {state}"
    return following
