"""What the servers of a group tell each other, and its bytes.

Any message may be lost, doubled, late or out of order. A message names its sender; whether the sender may
speak is for the transport to judge.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from tandemmq.consensus.core.values import Entry, EntryKind, Snapshot, decode_members
from tandemmq.errors import RemoteProtocolError


class VoteRequest(msgspec.Struct, frozen=True, tag="vote?"):
    """`is_trial`: would you vote for me in `term`? Nobody changes anything for that. `is_handover`: the
    leader itself asked the sender to follow it."""

    sender: str
    term: int
    last_index: int
    last_term: int
    is_trial: bool = False
    is_handover: bool = False


class VoteAnswer(msgspec.Struct, frozen=True, tag="vote"):
    """`term` is the sender's, `asked_term` that of the question."""

    sender: str
    term: int
    asked_term: int
    is_trial: bool
    is_granted: bool


class AppendRequest(msgspec.Struct, frozen=True, tag="append?"):
    """Entries behind the one at `previous_index`; without any a heartbeat. `number` and `sent_ms` come back
    with the answer: they tell the leader which of its requests was answered."""

    sender: str
    term: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit: int
    number: int
    sent_ms: int


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


def _check_members(entries: tuple[Entry, ...]) -> None:
    for entry in entries:
        if entry.kind is EntryKind.MEMBERS:
            try:
                decode_members(entry.data)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise RemoteProtocolError(f"no members of a controller group: {error}") from None
