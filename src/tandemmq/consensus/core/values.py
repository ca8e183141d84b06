"""What a server of a Raft group knows and must not forget, as values."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class EntryKind(IntEnum):
    """What an entry of the log is for."""

    EMPTY = 0
    """The first one of a leader: by it everything before is confirmed."""
    COMMAND = 1
    MEMBERS = 2


class Entry(msgspec.Struct, frozen=True, array_like=True):
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


class Vote(msgspec.Struct, frozen=True):
    """The newest term that a server knows and whom it voted for in it: one value, so that no crash can
    separate them."""

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
    entries: tuple[Entry, ...] = ()


def new_group(members: Members) -> Saved:
    """What every server of a new group begins with; one that joins later begins with no members."""
    return Saved(vote=Vote(), snapshot=Snapshot(index=0, term=0, members=members))
