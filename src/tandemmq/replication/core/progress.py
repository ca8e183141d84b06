"""The progress of a copy, as values: where a transfer starts, whether a slave is in sync, and the transfer
rate. Also the states of both ends of the channel, and the notice that a TandemMQ slave sends about itself
outside the channel. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from tandemmq.replication.core.options import FirstTransfer
from tandemmq.units import align_down

SECOND_MS = 1_000


class LogRange(NamedTuple):
    """The range of bytes that a log holds: `[start, end)`."""

    start: int
    end: int


class StartRule(Enum):
    """The rule that set the start of a transfer."""

    RESUMED = "at the slave's end"
    LAST_FILE = "at the start of the last file, because the slave is empty"
    FIRST_FILE = "at the start of the first file, because the slave is empty"
    SLAVE_AHEAD = "nowhere: the slave holds more than the master"
    SLAVE_TOO_OLD = "nowhere: the master no longer keeps the slave's next byte"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferStart:
    """The answer to a slave's first report. `log_offset` is the slave's own end if nothing can be sent.

    `master_end`: the end of the master's log at the time of the answer. For a slave that is ahead: at the
    time when this was first detected.
    """

    reported: int
    log_offset: int
    rule: StartRule
    master_end: int


def plan_start(
    reported: int,
    log: LogRange,
    *,
    segment_bytes: int,
    first_transfer: FirstTransfer,
    is_tandem: bool = False,
    known_ahead: Mapping[int, int] = MappingProxyType({}),
) -> TransferStart:
    """Returns the start of the transfer for a slave whose first report is `reported`.

    `is_tandem`: the slave is a TandemMQ slave; an empty one then starts at the first file, unless configured
    otherwise. `known_ahead`: ends that this slave reported while they were beyond the master's end, each
    mapped to the master's end at that time. Such a copy differs from the master's log and stays refused after
    the log has grown past it.
    Source:  spec replication 4.4 (step 2), 4.10; spec decisions 2.
    """
    assert segment_bytes > 0, segment_bytes
    assert reported >= 0, reported
    assert log.start <= log.end, log
    master_end = known_ahead.get(reported, log.end)
    starts_at_first_file = first_transfer is FirstTransfer.FIRST_FILE or (
        is_tandem and first_transfer is FirstTransfer.NEGOTIATED
    )
    if reported > master_end:
        rule, start = StartRule.SLAVE_AHEAD, reported
    elif reported == 0 and not starts_at_first_file:
        rule, start = StartRule.LAST_FILE, align_down(log.end, segment_bytes)
    elif reported == 0:
        rule, start = StartRule.FIRST_FILE, log.start
    elif reported < log.start:
        rule, start = StartRule.SLAVE_TOO_OLD, reported
    else:
        rule, start = StartRule.RESUMED, reported
    is_refused = rule in (StartRule.SLAVE_AHEAD, StartRule.SLAVE_TOO_OLD)
    assert is_refused or log.start <= start <= log.end, (reported, start, log)
    return TransferStart(reported=reported, log_offset=start, rule=rule, master_end=master_end)


def is_in_sync(log: LogRange, acknowledged: int, *, gap_bytes_max: int) -> bool:
    """Returns True if a slave counts as in sync; the gap is strict (spec replication 4.8).

    A slave that holds more than the master, or ends before the master's first byte, is never in sync.
    """
    return log.start <= acknowledged <= log.end and log.end - acknowledged < gap_bytes_max


class RateMeter:
    """The transfer rate in bytes per second over the last complete second, as RocketMQ reports it (spec
    replication 4.8).
    """

    __slots__ = ("_count", "_last_count", "_second")

    def __init__(self) -> None:
        self._second = 0
        self._count = 0
        self._last_count = 0

    def add(self, count: int, now_ms: int) -> None:
        assert count >= 0, count
        self._advance(now_ms)
        self._count += count

    def this_second(self, now_ms: int) -> int:
        """Returns the number of bytes counted in the current second; flow control limits it."""
        self._advance(now_ms)
        return self._count

    def per_second(self, now_ms: int) -> int:
        self._advance(now_ms)
        return self._last_count

    def _advance(self, now_ms: int) -> None:
        second = now_ms // SECOND_MS
        assert second >= self._second, "monotonic time never falls"
        if second != self._second:
            self._last_count = self._count if second == self._second + 1 else 0
            self._count = 0
            self._second = second


# The states of both ends of the channel, and all transitions between them, as data (spec replication 4.5). A
# cause that is missing for a state is a bug and stops the node.


class MasterState(Enum):
    """The state of one slave's connection on the master."""

    SUBSCRIBING = "waits for the first report"
    TRANSFERRING = "sends the log"
    AHEAD = "the slave holds more than we do: heartbeats only"
    TOO_OLD = "the slave's next byte is no longer kept: heartbeats only"
    CLOSED = "the connection has ended"


class MasterCause(Enum):
    """The cause of a transition of a master's session."""

    STARTED = "the first report named an offset in our log"
    FOUND_AHEAD = "the first report is beyond our end"
    FOUND_TOO_OLD = "the first report is before our start"
    ENDED = "either side closed, or the slave fell silent or broke a rule"


class SlaveState(Enum):
    """The state of the slave's only connection. RocketMQ's READY corresponds to DIALING or PAUSED."""

    UNASSIGNED = "knows no master"
    DIALING = "connects"
    CHECKING = "compares its end with the master's log"
    TRANSFERRING = "stores what arrives"
    PAUSED = "waits before the next attempt"
    HALTED = "a person must act: see the reason"
    STOPPED = "ended for good"


class SlaveCause(Enum):
    """The cause of a transition of a slave's session."""

    ASSIGNED = "a master's address became known"
    CLEARED = "the master's address was removed"
    CONNECTED = "the connection is up"
    CHECKED = "the end equals the master's, or could not be compared"
    FAILED = "connecting failed, the connection broke, or a frame was rejected"
    SILENT = "the master sent nothing for too long"
    RESUMED = "the pause is over"
    REFUSED = "continuing would damage the copy"
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
        _M.TRANSFERRING: {_MC.ENDED: _M.CLOSED},
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
            _SC.CONNECTED: _S.CHECKING,
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

assert MASTER_TRANSITIONS.keys() == set(MasterState), MASTER_TRANSITIONS
assert all(row[_MC.ENDED] is _M.CLOSED for row in MASTER_TRANSITIONS.values()), "a connection may end always"
assert SLAVE_TRANSITIONS.keys() == set(SlaveState), SLAVE_TRANSITIONS
assert all(row[_SC.STOPPED] is _S.STOPPED for row in SLAVE_TRANSITIONS.values()), "a slave may stop always"

State = TypeVar("State", MasterState, SlaveState)
Cause = TypeVar("Cause", MasterCause, SlaveCause)


def next_state(table: Mapping[State, Mapping[Cause, State]], state: State, cause: Cause) -> State:
    """Returns the state that `cause` leads to. A pair that is missing from the table is a bug."""
    following = table[state].get(cause)
    assert following is not None, f"{cause} cannot happen in {state}"
    return following


# The notice that a TandemMQ slave sends to its master, in addition to the classic reports.
#
# The classic channel carries neither names nor reasons (spec replication 4.1, 4.2), and its bytes stay
# unchanged. A notice is therefore a separate request, which a RocketMQ master refuses. It is information for
# operators of the master: it acknowledges nothing, and no copy is counted because of it.
#
# Source:  spec decisions 4; our own.

NAME_CHARS_MAX: Final = 255
REASON_CHARS_MAX: Final = 64
DETAIL_CHARS_MAX: Final = 1_024
"""The most characters of a detail that the master stores; the full text is in the slave's log and state."""

Endpoint = tuple[str, int]
"""Host and port."""


class SlaveName(NamedTuple):
    """The name of a slave; it must be unique within a cluster (spec replication 7)."""

    broker_name: str
    broker_id: int

    def __str__(self) -> str:
        return f"{self.broker_name}:{self.broker_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedHalt:
    """The reason why a slave stopped copying. `reason`: a name of HaltReason, or a name that only newer
    slaves know.
    """

    reason: str
    log_offset: int
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveNotice:
    """`ha_address`: the slave's end of its last connection to the replication port. `halt`: None unless an
    operator must act. `log_end`: the end of its copy.
    """

    name: SlaveName
    ha_address: Endpoint
    log_end: int
    is_copying: bool
    halt: ReportedHalt | None = None
