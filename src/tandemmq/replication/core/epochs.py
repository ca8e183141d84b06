"""The list of terms, which records which master wrote which bytes of a log, and the point where two logs
diverge. Then the bytes of the AutoSwitch channel, which carries that list and the log. Pure.

A term is the period in which one broker is master. Its entry holds the offset of its first byte; it ends
where the next term begins. If two logs share an entry (same epoch, start and random id), they are equal up to
the point where the first of them leaves that term: one master wrote those bytes, and every slave copied them.
The epoch number alone proves nothing: controllers whose disk was rolled back assign the same number twice. An
id that one side does not know matches any id.
Invariants:   epochs and starts strictly rise. A term without a byte is replaced by its successor, so that no
              two masters ever write under one (epoch, start). RocketMQ keeps the older number in that case,
              and two logs that differ then look alike.
At the bound: the oldest entry is dropped. A copy that ends below the remaining entries has nothing in common.
Source:       spec controller 4.2, 4.4, 4.5, 10.9; spec replication 12.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.hashes import crc32
from tandemmq.replication.core.frames import BODY_BYTES_MAX, HEAD_BYTES, TANDEM_BODY_BYTES_MAX

EPOCH_COUNT_MAX: Final = 1_000
"""The most entries that a RocketMQ master can send to its slaves."""
EPOCH_BEFORE_TERMS: Final = 0
"""The epoch of the bytes that a log held before it had terms; no controller assigns it to a master."""
_CRC_MASK: Final = 0x7FFFFFFF
_ENTRY: Final = re.compile(r"(\d{1,10})-(\d{1,19})")
_ID: Final = re.compile(r"(\d{1,10})-(\d{1,19})-(\d{1,19})")
UNKNOWN_ID: Final = 0
"""The id of a term that began under RocketMQ controllers, or under an older release."""
TERM_ID_MAX: Final = 2**63 - 1


class EpochEntry(NamedTuple):
    """The term `epoch` begins at byte `start` of the log."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class EpochList:
    """Entries, oldest first, and the random ids of their terms as far as they are known. Immutable: each
    change returns a new list.
    """

    entries: tuple[EpochEntry, ...] = ()
    ids: Mapping[EpochEntry, int] = field(default_factory=dict)
    """The id of each term; ids of entries that are not in the list are dropped."""

    def __post_init__(self) -> None:
        for before, after in pairwise(self.entries):
            assert before.epoch < after.epoch, self.entries
            assert before.start < after.start, self.entries
        kept = {entry: self.ids[entry] for entry in self.entries if self.ids.get(entry, UNKNOWN_ID)}
        object.__setattr__(self, "ids", kept)

    def __bool__(self) -> bool:
        return bool(self.entries)

    @property
    def last(self) -> EpochEntry | None:
        return self.entries[-1] if self.entries else None

    @property
    def last_epoch(self) -> int:
        """The epoch of the last entry; -1 without an entry."""
        return self.entries[-1].epoch if self.entries else -1

    @property
    def has_terms(self) -> bool:
        """True if any part of the log was written under a controller."""
        return self.last_epoch > EPOCH_BEFORE_TERMS

    @property
    def last_id(self) -> int:
        """The id of the last term; UNKNOWN_ID without an entry."""
        return self.ids.get(self.entries[-1], UNKNOWN_ID) if self.entries else UNKNOWN_ID

    def id_of(self, epoch: int) -> int:
        """Returns the id of the term with this number, or UNKNOWN_ID if the list does not know it."""
        return next((self.ids.get(one, UNKNOWN_ID) for one in self.entries if one.epoch == epoch), UNKNOWN_ID)

    def with_ids(self, ids: Mapping[EpochEntry, int]) -> EpochList:
        """Returns the same entries; ids that are unknown are filled in from `ids`."""
        return EpochList(self.entries, {**ids, **self.ids})

    def append(self, epoch: int, start: int, term_id: int = UNKNOWN_ID) -> EpochList:
        """Adds a term. Drops the entries that it contradicts, and an entry that it leaves without a byte."""
        assert epoch >= EPOCH_BEFORE_TERMS, epoch
        assert start >= 0, start
        kept = [entry for entry in self.entries if entry.epoch < epoch and entry.start < start]
        assert self.entries[: len(kept)] == tuple(kept), "what a new term contradicts is the end of the list"
        entry = EpochEntry(epoch, start)
        return EpochList((*kept, entry)[-EPOCH_COUNT_MAX:], {**self.ids, entry: term_id})

    def cut_suffix(self, log_end: int) -> EpochList:
        """Returns the list for the log after its truncation at `log_end`."""
        assert log_end >= 0, log_end
        kept = tuple(entry for entry in self.entries if entry.start < log_end)
        assert kept == self.entries[: len(kept)], (kept, log_end)
        return EpochList(kept, self.ids)

    def cut_prefix(self, log_begin: int) -> EpochList:
        """Returns the list for a log that now begins at `log_begin`; the entry that covers its first byte
        stays.
        """
        assert log_begin >= 0, log_begin
        ends = [entry.start for entry in self.entries[1:]]
        gone = sum(end < log_begin for end in ends)
        assert not gone or self.entries[gone - 1] != self.find(log_begin), (gone, log_begin)
        return EpochList(self.entries[gone:], self.ids) if gone else self

    def find(self, log_offset: int) -> EpochEntry | None:
        """Returns the entry of the term that wrote, or will write, the byte at `log_offset`; None before the
        first.
        """
        for entry in reversed(self.entries):
            if entry.start <= log_offset:
                return entry
        return None

    def end_of(self, entry: EpochEntry, log_end: int) -> int:
        """Returns the end of an entry of this list in a log that ends at `log_end`."""
        index = self.entries.index(entry)
        if index + 1 < len(self.entries):
            return min(self.entries[index + 1].start, log_end)
        return log_end

    def follow(self, master: EpochList) -> EpochList:
        """Returns the list of a copy that was truncated at the consistent point and continues with the
        master's log.

        The list includes terms whose bytes are still to come: no byte may be stored without its entry. If
        only the master knows the id of a common term, the copy adopts it.
        """
        last = self.last_epoch
        newer = [entry for entry in master.entries if entry.epoch > last]
        if self.entries and newer and newer[0].start <= self.entries[-1].start:
            return master
        followed = EpochList((*self.entries, *newer)[-EPOCH_COUNT_MAX:], {**master.ids, **self.ids})
        assert followed.last_epoch == max(last, master.last_epoch), (followed.last_epoch, last)
        return followed


def consistent_point(ours: EpochList, our_end: int, theirs: EpochList, their_end: int) -> int | None:
    """Returns the end of the common prefix of our log and theirs; None if it cannot be determined.

    Bytes that were written before there were terms count as common, but are never truncated: no term shows
    which log is right. Two logs that begin at 0 in different terms have nothing in common: the first master
    was replaced before any slave had copied a byte.
    """
    assert our_end >= 0, our_end
    assert their_end >= 0, their_end
    if our_end == 0:
        return 0
    if not ours.has_terms and (not theirs or theirs.entries[0].epoch != EPOCH_BEFORE_TERMS):
        first = theirs.entries[0].start if theirs else their_end
        return our_end if our_end <= first else None
    known = {entry.epoch: entry for entry in theirs.entries}
    for entry in reversed(ours.entries):
        other = known.get(entry.epoch)
        if other is None or (other.start != entry.start and entry.epoch != EPOCH_BEFORE_TERMS):
            continue
        if not _may_be_one(ours.id_of(entry.epoch), theirs.id_of(entry.epoch)):
            continue
        point = min(ours.end_of(entry, our_end), theirs.end_of(other, their_end))
        assert 0 <= point <= our_end, (point, our_end)
        if entry.epoch == EPOCH_BEFORE_TERMS and point < ours.end_of(entry, our_end):
            return None
        return point
    if ours and theirs and ours.entries[0].start == theirs.entries[0].start == 0:
        epochs = {entry.epoch for entry in ours.entries}
        both = epochs & known.keys()
        is_apart = not any(_may_be_one(ours.id_of(epoch), theirs.id_of(epoch)) for epoch in both)
        if is_apart and EPOCH_BEFORE_TERMS not in epochs | known.keys():
            return 0
    return None


def conflicting_term(ours: EpochList, theirs: EpochList) -> EpochEntry | None:
    """Returns our first term whose number and start match a term of theirs with a different id: one number
    for two histories, which correct controllers never assign.
    """
    for entry in ours.entries:
        if not _may_be_one(ours.ids.get(entry, UNKNOWN_ID), theirs.ids.get(entry, UNKNOWN_ID)):
            return entry
    return None


def _may_be_one(own_id: int, other_id: int) -> bool:
    """Returns True if two terms with the same number may be the same term."""
    return UNKNOWN_ID in (own_id, other_id) or own_id == other_id


def encode_epochs(epochs: EpochList) -> bytes:
    """Returns the content of `epochFileCheckpoint`."""
    assert epochs, "a file without an entry cannot be read again"
    lines = b"".join(b"%d-%d\n" % entry for entry in epochs.entries)
    return b"%d\n%d\n" % (len(epochs.entries), crc32(lines) & _CRC_MASK) + lines


def encode_ids(ids: Mapping[EpochEntry, int]) -> bytes:
    """Returns the content of `epochFileCheckpoint.ids`, in the same format as the epoch file."""
    lines = b"".join(b"%d-%d-%d\n" % (*entry, ids[entry]) for entry in sorted(ids))
    return b"%d\n%d\n" % (len(ids), crc32(lines) & _CRC_MASK) + lines


def decode_ids(data: bytes) -> dict[EpochEntry, int]:
    """Returns the ids in the file content `data`. Raises ValueError with the reason if it is damaged."""
    try:
        count, checksum, *_ = map(int, data.split(b"\n", 2)[:2])
        body = data.split(b"\n", 2)[2]
    except (ValueError, IndexError):
        raise ValueError("it lacks the count and the checksum") from None
    if crc32(body) & _CRC_MASK != checksum:
        raise ValueError("its checksum does not match")
    matches = [_ID.fullmatch(line) for line in body.decode("ascii", "replace").splitlines()]
    ids = {EpochEntry(int(one[1]), int(one[2])): int(one[3]) for one in matches if one is not None}
    if len(ids) != count or not all(0 < one <= TERM_ID_MAX for one in ids.values()):
        raise ValueError(f"it has {len(ids)} ids, its count is {count}")
    return ids


def decode_epochs(data: bytes) -> EpochList:
    """Returns the terms in the file content `data`.

    Raises:  ValueError with the reason if it is damaged; also for a file without an entry, as in RocketMQ.
    """
    try:
        lines = data.decode("ascii").split("\n")
        count, checksum = int(lines[0]), int(lines[1])
    except (UnicodeDecodeError, ValueError, IndexError):
        raise ValueError("it lacks the count and the checksum") from None
    body = data.split(b"\n", 2)[2] if data.count(b"\n") >= 2 else b""
    if checksum and crc32(body) & _CRC_MASK != checksum:
        raise ValueError("its checksum does not match")
    pairs = []
    for line in body.decode("ascii").splitlines():
        match = _ENTRY.fullmatch(line.strip())
        if match is None:
            raise ValueError(f"{line[:64]!r} is not an entry")
        pairs.append((int(match[1]), int(match[2])))
    if len(pairs) != count or not pairs:
        raise ValueError(f"it has {len(pairs)} entries, its count is {count}")
    if not _rises(pairs):
        raise ValueError("its epochs and starts do not rise")
    return EpochList(tuple(EpochEntry(*pair) for pair in pairs))


def received_epochs(pairs: Iterable[tuple[int, int]]) -> EpochList:
    """Returns the list of terms that a peer sent. Raises RemoteProtocolError if it is invalid."""
    entries = list(pairs)
    if not _rises(entries) or (entries and min(entries[0]) < 0):
        raise RemoteProtocolError(f"the master's list of terms does not rise: {entries[:8]}")
    return EpochList(tuple(EpochEntry(*pair) for pair in entries))


def received_terms(terms: Iterable[tuple[int, int, int]]) -> EpochList:
    """Returns the list of terms with ids that a peer sent. Raises RemoteProtocolError if it is invalid."""
    entries = list(terms)
    epochs = received_epochs((epoch, start) for epoch, start, _ in entries)
    return epochs.with_ids({entry: one[2] for entry, one in zip(epochs.entries, entries, strict=True)})


def _rises(pairs: list[tuple[int, int]]) -> bool:
    return all(before[0] < after[0] and before[1] < after[1] for before, after in pairwise(pairs))


# The AutoSwitch channel, both directions, as incremental decoders.
#
# Slave to master: a handshake with the slave's id, then reports. Between two TandemMQ brokers the id of the
# group comes first, once the master has shown by TANDEM_HISTORY that it knows that frame. Master to slave:
# the answer to a handshake, with all terms of the master's log, and frames of the log, each with its term and
# confirmOffset. Every frame begins with the state of its sender. As in frames.py, the decoded values do not
# depend on how the stream is cut into reads, body bytes are delivered as views, and a decoder that has raised
# must not be used again.

_HANDSHAKING: Final = 1
_TRANSFERRING: Final = 2
_PROVING: Final = 3
"""Ours: RocketMQ has no such state."""
_STATE: Final = Struct(">i")
_HANDSHAKE: Final = Struct(">ihhq")
_REPORT: Final = Struct(">iq")
_GROUP: Final = Struct(">i16s")
_ANSWER: Final = Struct(">iiqi")
_TERM_ENTRY: Final = Struct(">iq")
_HEAD: Final = Struct(">iiqiqq")

TERM_HEAD_BYTES: Final = _HEAD.size
TERM_BODY_BYTES_MAX: Final = BODY_BYTES_MAX + HEAD_BYTES - TERM_HEAD_BYTES
"""The most body bytes that the receive buffer of a RocketMQ slave can hold."""
NO_FILE: Final = -1
"""The offset in heartbeats of a RocketMQ master whose log has no file yet."""
assert _STATE.size < _REPORT.size < _HANDSHAKE.size < _GROUP.size, "a slave's decoder holds less than a frame"
assert TANDEM_BODY_BYTES_MAX <= TERM_BODY_BYTES_MAX < BODY_BYTES_MAX, "the longer head takes room"


class Handshake(NamedTuple):
    """The identity of a slave. `from_last_file`: if empty, it requests the last file only. `is_learner`: it
    is never elected.
    """

    slave_id: int
    from_last_file: bool = False
    is_learner: bool = False


class GroupProof(NamedTuple):
    """The random id of the slave's group, as 32 hexadecimal digits."""

    group_id: str


class Report(NamedTuple):
    """The slave holds every byte below `log_offset`."""

    log_offset: int


class EpochsAnswer(NamedTuple):
    """The terms of the master's log, and its end."""

    log_end: int
    epochs: EpochList


class TermHead(NamedTuple):
    """The head of a frame: `size_bytes` bytes from `log_offset` on follow, written in the term of `entry`; 0
    bytes make a heartbeat.
    """

    log_offset: int
    size_bytes: int
    entry: EpochEntry
    confirm_offset: int


def encode_handshake(handshake: Handshake) -> bytes:
    assert handshake.slave_id >= 0, handshake
    return _HANDSHAKE.pack(_HANDSHAKING, handshake.from_last_file, handshake.is_learner, handshake.slave_id)


def encode_group(group_id: str) -> bytes:
    return _GROUP.pack(_PROVING, bytes.fromhex(group_id))


def encode_term_report(log_offset: int) -> bytes:
    assert log_offset >= 0, log_offset
    return _REPORT.pack(_TRANSFERRING, log_offset)


def encode_answer(answer: EpochsAnswer) -> bytes:
    entries = answer.epochs.entries
    assert len(entries) <= EPOCH_COUNT_MAX, len(entries)
    assert answer.log_end >= 0, answer.log_end
    assert not entries or entries[-1].start <= answer.log_end, (entries[-1], answer.log_end)
    head = _ANSWER.pack(
        _HANDSHAKING, _TERM_ENTRY.size * len(entries), answer.log_end, answer.epochs.last_epoch
    )
    return head + b"".join(_TERM_ENTRY.pack(*entry) for entry in entries)


def encode_term_head(head: TermHead) -> bytes:
    assert 0 <= head.size_bytes <= TERM_BODY_BYTES_MAX
    assert head.confirm_offset >= 0, head
    assert not head.size_bytes or head.entry.start <= head.log_offset, "a byte belongs to its term"
    return _HEAD.pack(_TRANSFERRING, head.size_bytes, head.log_offset, *head.entry, head.confirm_offset)


class SlaveFrameDecoder:
    """Decodes a slave's bytes into group proofs, handshakes and reports. Holds less than one of them."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes | bytearray | memoryview) -> list[GroupProof | Handshake | Report]:
        """Returns every frame completed by `data`, oldest first.

        Raises:  RemoteProtocolError for an unknown state, a negative id or a negative report.
        """
        data = self._rest + bytes(data)
        frames: list[GroupProof | Handshake | Report] = []
        at = 0
        while len(data) - at >= _STATE.size:
            state = _STATE.unpack_from(data, at)[0]
            shape = _SLAVE_FRAMES.get(state)
            if shape is None:
                raise RemoteProtocolError(f"a slave sent a frame of state {state}")
            if len(data) - at < shape.size:
                break
            _, *fields, number = shape.unpack_from(data, at)
            at += shape.size
            if state == _PROVING:
                frames.append(GroupProof(number.hex()))
                continue
            if number < 0:
                raise RemoteProtocolError(f"a slave sent {number} as its id or its end")
            if state == _HANDSHAKING:
                frames.append(Handshake(number, fields[0] == 1, fields[1] == 1))
            else:
                frames.append(Report(number))
        self._rest = data[at:]
        assert len(self._rest) < _GROUP.size, len(self._rest)
        return frames


_SLAVE_FRAMES: Final = {_HANDSHAKING: _HANDSHAKE, _TRANSFERRING: _REPORT, _PROVING: _GROUP}


class MasterFrameDecoder:
    """Decodes a master's bytes into answers, heads and pieces of bodies, in order.

    Holds an incomplete head, or an answer of at most EPOCH_COUNT_MAX entries.
    """

    __slots__ = ("_body_left", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._body_left = 0

    @property
    def buffered_bytes(self) -> int:
        return len(self._rest)

    @property
    def body_left(self) -> int:
        """The number of bytes that the current body still lacks; 0 if a frame comes next."""
        return self._body_left

    def feed(self, data: bytes | bytearray | memoryview) -> list[EpochsAnswer | TermHead | memoryview]:
        """Returns frames; a head is followed by the pieces of its body that have arrived, never empty ones.

        Raises:  RemoteProtocolError for an unknown state, and for invalid sizes and offsets.
        """
        view = memoryview(data)
        events: list[EpochsAnswer | TermHead | memoryview] = []
        while view:
            if self._body_left:
                piece, view = view[: self._body_left], view[self._body_left :]
                events.append(piece)
                self._body_left -= len(piece)
                continue
            wanted = _frame_bytes(self._rest)
            taken = wanted - len(self._rest)
            assert taken > 0, "a frame that is whole is taken out at once"
            self._rest += bytes(view[:taken])
            view = view[taken:]
            if len(self._rest) < wanted or _frame_bytes(self._rest) > wanted:
                continue
            frame, self._rest = self._rest, b""
            event = _decode(frame)
            events.append(event)
            if isinstance(event, TermHead):
                self._body_left = event.size_bytes
        assert 0 <= self._body_left <= TERM_BODY_BYTES_MAX, self._body_left
        assert not self._rest or not self._body_left, "a frame comes behind a body"
        return events


def _frame_bytes(begun: bytes) -> int:
    """Returns the size of the frame that begins with `begun`, as far as it is known yet."""
    if len(begun) < _STATE.size:
        return _STATE.size
    state = _STATE.unpack_from(begun)[0]
    if state == _TRANSFERRING:
        return TERM_HEAD_BYTES
    if state != _HANDSHAKING:
        raise RemoteProtocolError(f"the master sent a frame of state {state}")
    if len(begun) < _ANSWER.size:
        return _ANSWER.size
    size = _ANSWER.unpack_from(begun)[1]
    if size % _TERM_ENTRY.size or not 0 <= size <= EPOCH_COUNT_MAX * _TERM_ENTRY.size:
        raise RemoteProtocolError(f"the master's list of terms has {size} bytes")
    return int(_ANSWER.size + size)


def _decode(frame: bytes) -> EpochsAnswer | TermHead:
    if _STATE.unpack_from(frame)[0] == _HANDSHAKING:
        log_end = _ANSWER.unpack_from(frame)[2]
        if log_end < 0:
            raise RemoteProtocolError(f"the master's log ends at {log_end}")
        return EpochsAnswer(log_end, received_epochs(_TERM_ENTRY.iter_unpack(frame[_ANSWER.size :])))
    _, size, log_offset, epoch, start, confirm_offset = _HEAD.unpack(frame)
    if not 0 <= size <= TERM_BODY_BYTES_MAX:
        raise RemoteProtocolError(
            f"a frame of {size} bytes at {log_offset}; allowed are 0..{TERM_BODY_BYTES_MAX}"
        )
    if log_offset < (0 if size else NO_FILE):
        raise RemoteProtocolError(f"the master sent the negative offset {log_offset}")
    return TermHead(log_offset, size, EpochEntry(epoch, start), confirm_offset)
