"""The values of one server of a Raft group: the state that it must keep, the messages between servers with
their encoding, and the effects that its shell carries out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TypeAlias

import msgspec

from tandemmq.errors import RemoteProtocolError

# State that a server must keep.


class EntryKind(IntEnum):
    """The purpose of an entry."""

    EMPTY = 0
    """A leader's first entry: once it is confirmed, everything before it is confirmed too."""
    COMMAND = 1
    MEMBERS = 2


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the log. Two entries with the same index and term are identical on all servers."""

    index: int
    term: int
    kind: EntryKind
    data: bytes = b""


class Members(msgspec.Struct, frozen=True):
    """The servers of a group by name, each with its address. Only voters count for a majority."""

    voters: dict[str, str] = {}
    learners: dict[str, str] = {}

    def is_majority(self, names: set[str]) -> bool:
        """True if these servers are more than half of the voters."""
        return 2 * len(names & self.voters.keys()) > len(self.voters)

    def address(self, name: str) -> str | None:
        return self.voters.get(name) or self.learners.get(name)

    def others(self, name: str) -> list[str]:
        """Returns the names of all other servers, sorted."""
        return sorted((self.voters.keys() | self.learners.keys()) - {name})

    def encode(self) -> bytes:
        return msgspec.json.encode(self, order="deterministic")


def decode_members(data: bytes) -> Members:
    """Raises msgspec.MsgspecError for bytes that `Members.encode` did not produce."""
    return msgspec.json.decode(data, type=Members)


SPENT = ""
"""A name that no server has."""


class Vote(msgspec.Struct, frozen=True):
    """The newest term that a server knows and its vote in that term. They form one value, so that a crash
    cannot separate them. The vote `SPENT` means that the server may have voted in this term and no longer
    knows it.
    """

    term: int = 0
    voted_for: str | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """The state of the machine after the entry `index` of `term`, and the group's members at that index."""

    index: int
    term: int
    members: Members
    data: bytes = b""


class Saved(msgspec.Struct, frozen=True):
    """The state on a server's disk: `entries` follow the snapshot without a gap."""

    vote: Vote
    snapshot: Snapshot
    entries: tuple[LogEntry, ...] = ()


def new_group(members: Members) -> Saved:
    """Returns the initial state of every server of a new group. A server that joins later starts without
    members.
    """
    return Saved(vote=Vote(), snapshot=Snapshot(index=0, term=0, members=members))


# Messages between servers. Any message may be lost, duplicated, delayed or reordered. A message names its
# sender; the transport decides whether the sender is allowed. A `run_id` is the random number of one run of a
# server. Fields with a default are unknown to older servers, which ignore and do not send them.


class VoteRequest(msgspec.Struct, frozen=True, tag="vote?"):
    """A request for a vote. With `is_trial` it only asks whether the receiver would vote for the sender in
    `term`; the receiver changes no state. A server that has just started uses trials to learn what the others
    know. `is_handover`: the leader itself asked the sender to succeed it.
    """

    sender: str
    term: int
    last_index: int
    last_term: int
    is_trial: bool = False
    is_handover: bool = False
    run_id: int = msgspec.field(name="life", default=0)


class VoteAnswer(msgspec.Struct, frozen=True, tag="vote"):
    """The answer to a `VoteRequest`. `term`, `last_index`, `last_term` and `voters` describe its sender;
    `asked_term` and `request_run_id` are copied from the request.
    """

    sender: str
    term: int
    asked_term: int
    is_trial: bool
    is_granted: bool
    request_run_id: int = msgspec.field(name="asked_life", default=0)
    last_index: int = 0
    last_term: int = 0
    voters: tuple[str, ...] = ()


class AppendRequest(msgspec.Struct, frozen=True, tag="append?"):
    """Entries after the one at `previous_index`; a heartbeat if there are none. The answer repeats `number`
    and `sent_ms`, which show the leader the request that was answered. `last_index` is the end of the
    leader's log. `previous_checksum` is the checksum of the previous entry's content; -1 if unknown.
    """

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
    """A snapshot for a follower that needs entries which the leader no longer has."""

    sender: str
    term: int
    snapshot: Snapshot
    number: int
    sent_ms: int


class AppendAnswer(msgspec.Struct, frozen=True, tag="append"):
    """The answer to an `AppendRequest` or a `SnapshotRequest`. Accepted: the log matches the leader's up to
    `index` and is on disk. Refused: `previous_index` is that of the request, and the logs can agree up to
    `index` at most.
    """

    sender: str
    term: int
    is_accepted: bool
    index: int
    number: int
    sent_ms: int
    previous_index: int = 0
    run_id: int = msgspec.field(name="life", default=0)


class TakeOver(msgspec.Struct, frozen=True, tag="take over"):
    """An order of a leader that hands over: the receiver asks for votes at once."""

    sender: str
    term: int


Message: TypeAlias = VoteRequest | VoteAnswer | AppendRequest | SnapshotRequest | AppendAnswer | TakeOver

_DECODER = msgspec.msgpack.Decoder(Message)


def encode_message(message: Message) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_message(data: bytes | bytearray | memoryview) -> Message:
    """Raises RemoteProtocolError for bytes that are not a message, and for messages that no server of ours
    sends.
    """
    try:
        message: Message = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"not a controller message: {error}") from None
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
                raise RemoteProtocolError(f"invalid members of a controller group: {error}") from None


# Effects: the actions that a server requests. The shell carries them out in list order.
#
# The order is the guarantee. `Persist` comes first and must have reached the disk before any later effect is
# carried out, so no vote and no answer is sent that a crash could undo. A shell that cannot persist must stop
# the server.


class RaftRole(Enum):
    """The role of a server in its group."""

    FOLLOWER = "follower"
    TRIAL = "trial"  # asks whether it would win an election
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Persists all fields that are not None, in this order. `entries` replace everything from the first of
    them on; with a snapshot they are all entries after it.
    """

    vote: Vote | None = None
    snapshot: Snapshot | None = None
    entries: tuple[LogEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class SendToServer:
    """Sends a message to another server; it may be lost."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Restore:
    """Replaces the machine's state by that of the snapshot. Without data this is the state before the first
    command.
    """

    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Apply:
    """Applies entries that are confirmed: every future leader has them at the same indexes."""

    entries: tuple[LogEntry, ...]


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """Reports the role of this server and the leader that it knows."""

    role: RaftRole
    term: int
    leader: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Contradicted:
    """Reports that another server's messages and this server's disk cannot both be correct: the disk of one
    server was replaced by an older one or by one of another group. `is_reset`: this server has dropped its
    log and state.
    """

    by: str
    term: int
    reason: str
    is_reset: bool


Effect: TypeAlias = Persist | SendToServer | Restore | Apply | RoleChanged | Contradicted
