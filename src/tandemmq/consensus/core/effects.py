"""What a server wants done, as values; the shell carries them out in list order.

Order is the guarantee: `Persist` comes first and must have reached the disk before anything behind it is
carried out, so no vote and no answer leaves that a crash could take back. A shell that cannot persist must
stop the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from tandemmq.consensus.core.messages import Message
from tandemmq.consensus.core.values import Entry, Snapshot, Vote


class Role(Enum):
    """What a server is in its group."""

    FOLLOWER = "follower"
    TRIAL = "trial"  # asks whether an election would be won
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Make durable what is not None, in this order. `entries` replace everything from the first of them on;
    with a snapshot they are all that is left behind it."""

    vote: Vote | None = None
    snapshot: Snapshot | None = None
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """To another server; it may be lost."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Restore:
    """The machine's state is replaced by the snapshot's."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Apply:
    """These entries are confirmed: they are in the log of every future leader at these places."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class ReadReady:
    """What the machine shows now is at least as new as it was when the read was asked for."""

    token: int


@dataclass(frozen=True, slots=True)
class ReadRefused:
    """This server is not the leader any more; ask the next one."""

    token: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """Who leads now, as far as this server knows."""

    role: Role
    term: int
    leader: str | None
    reason: str


Effect: TypeAlias = Persist | Send | Restore | Apply | ReadReady | ReadRefused | RoleChanged
