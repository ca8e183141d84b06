"""What one server of a Raft group works with, as values: what it must not forget, the messages between
servers with their bytes, and the effects that it wants from its shell.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TypeAlias

import msgspec

from tandemmq.errors import RemoteProtocolError

# What a server knows and must not forget.


class EntryKind(IntEnum):
    """What an entry of the log is for."""

    EMPTY = 0
    """The first one of a leader: by it everything before is confirmed."""
    COMMAND = 1
    MEMBERS = 2


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    """One place of the log. Two entries with the same index and term are the same everywhere."""

    index: int
    term: int
    kind: EntryKind
    data: bytes = b""


class Members(msgspec.Struct, frozen=True):
    """The servers of a group by name, each with its address. Only voters count for a majority."""

    voters: dict[str, str] = {}
    learners: dict[str, str] = {}

    def is_majority(self, names: set[str]) -> bool:
        """Whether these servers are more than half of the voters."""
        return 2 * len(names & self.voters.keys()) > len(self.voters)

    def address(self, name: str) -> str | None:
        return self.voters.get(name) or self.learners.get(name)

    def others(self, name: str) -> list[str]:
        """All servers but this one, in the order of their names."""
        return sorted((self.voters.keys() | self.learners.keys()) - {name})

    def encode(self) -> bytes:
        return msgspec.json.encode(self, order="deterministic")


def decode_members(data: bytes) -> Members:
    """Raises msgspec.MsgspecError for bytes that `Members.encode` did not make."""
    return msgspec.json.decode(data, type=Members)


SPENT = ""
"""No server has this name."""


class Vote(msgspec.Struct, frozen=True):
    """The newest term that a server knows and its vote in that term: one value, so that no crash can separate
    them. `SPENT` is a vote that the server may have given away and has forgotten."""

    term: int = 0
    voted_for: str | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """The state of the machine after the entry `index` of `term`, and the group's members there."""

    index: int
    term: int
    members: Members
    data: bytes = b""


class Saved(msgspec.Struct, frozen=True):
    """What a server finds on its disk: `entries` follow the snapshot without a gap."""

    vote: Vote
    snapshot: Snapshot
    entries: tuple[LogEntry, ...] = ()


def new_group(members: Members) -> Saved:
    """What every server of a new group begins with; one that joins later begins with no members."""
    return Saved(vote=Vote(), snapshot=Snapshot(index=0, term=0, members=members))


# Messages between servers. Any message may be lost, doubled, late or out of order. A message names its
# sender; the transport judges whether the sender may speak. A `life` is the random number of one start of a
# server; fields with a default are unknown to older servers, which ignore them and do not send them.


class VoteRequest(msgspec.Struct, frozen=True, tag="vote?"):
    """`is_trial`: would you vote for me in `term`? No server changes anything for that; a server that has
    just started asks so for what the others know. `is_handover`: the leader itself asked the sender to
    follow it."""

    sender: str
    term: int
    last_index: int
    last_term: int
    is_trial: bool = False
    is_handover: bool = False
    life: int = 0


class VoteAnswer(msgspec.Struct, frozen=True, tag="vote"):
    """`term`, the end of the log and the voters are the sender's; `asked_term` and `asked_life` are those of
    the question."""

    sender: str
    term: int
    asked_term: int
    is_trial: bool
    is_granted: bool
    asked_life: int = 0
    last_index: int = 0
    last_term: int = 0
    voters: tuple[str, ...] = ()


class AppendRequest(msgspec.Struct, frozen=True, tag="append?"):
    """Entries behind the one at `previous_index`; without any a heartbeat. `number` and `sent_ms` come back
    with the answer: they tell the leader which of its requests was answered. `last_index` is the end of the
    leader's log and `previous_checksum` that of the entry's content, -1 if unknown."""

    sender: str
    term: int
    previous_index: int
    previous_term: int
    entries: tuple[LogEntry, ...]
    commit: int
    number: int
    sent_ms: int
    last_index: int = -1
    previous_checksum: int = -1


class SnapshotRequest(msgspec.Struct, frozen=True, tag="snapshot?"):
    """For a follower that needs entries which the leader no longer has."""

    sender: str
    term: int
    snapshot: Snapshot
    number: int
    sent_ms: int


class AppendAnswer(msgspec.Struct, frozen=True, tag="append"):
    """To both. Accepted: the log is the leader's up to `index`, on disk. Refused: the request began behind
    `previous_index`, and the logs may agree at `index` at the latest."""

    sender: str
    term: int
    is_accepted: bool
    index: int
    number: int
    sent_ms: int
    previous_index: int = 0
    life: int = 0


class TakeOver(msgspec.Struct, frozen=True, tag="take over"):
    """From a leader that goes: ask for votes now."""

    sender: str
    term: int


Message: TypeAlias = VoteRequest | VoteAnswer | AppendRequest | SnapshotRequest | AppendAnswer | TakeOver

_DECODER = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_message(data: bytes | bytearray | memoryview) -> Message:
    """Raises RemoteProtocolError for bytes that are no message, or one that no server of ours sends."""
    try:
        message: Message = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"no message of a controller: {error}") from None
    if isinstance(message, AppendRequest):
        indexes = [entry.index for entry in message.entries]
        first = message.previous_index + 1
        if message.previous_index < 0 or indexes != list(range(first, first + len(indexes))):
            raise RemoteProtocolError("entries of a controller's log do not follow each other")
        _check_members(message.entries)
    return message


def _check_members(entries: tuple[LogEntry, ...]) -> None:
    for entry in entries:
        if entry.kind is EntryKind.MEMBERS:
            try:
                decode_members(entry.data)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise RemoteProtocolError(f"no members of a controller group: {error}") from None


# What a server wants done; the shell carries the effects out in list order.
#
# Order is the guarantee: `Persist` comes first and must have reached the disk before anything behind it is
# carried out, so no vote and no answer leaves that a crash could take back. A shell that cannot persist must
# stop the server.


class RaftRole(Enum):
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
    entries: tuple[LogEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class SendToServer:
    """To another server; it may be lost."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Restore:
    """The machine's state is replaced by the snapshot's; without data by that before the first command."""

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Apply:
    """These entries are confirmed: they are in the log of every future leader at these places."""

    entries: tuple[LogEntry, ...]


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

    role: RaftRole
    term: int
    leader: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Contradicted:
    """Another server's messages and this server's disk cannot both be true: the disk of one of the group was
    replaced by an older one or by another group's. `begins_anew`: this server has dropped what it held."""

    by: str
    term: int
    reason: str
    begins_anew: bool


Effect: TypeAlias = (
    Persist | SendToServer | Restore | Apply | ReadReady | ReadRefused | RoleChanged | Contradicted
)
