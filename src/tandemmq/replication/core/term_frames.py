"""The bytes of the AutoSwitch channel, both directions, as incremental decoders (spec controller 4.2).

Slave to master: a handshake with the slave's id, then reports. Master to slave: the answer to a handshake,
which tells all terms of the master's log, and frames of the log, each with its term and confirmOffset. Every
frame begins with the state of its sender. As in frames.py, any cut of the stream gives the same values, body
bytes are handed on as views, and a decoder that raised is spent.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from tandemmq.errors import RemoteProtocolError
from tandemmq.replication.core.epochs import EPOCH_COUNT_MAX, EpochEntry, EpochList, told_epochs
from tandemmq.replication.core.frames import BODY_BYTES_MAX, HEAD_BYTES

_HANDSHAKING: Final = 1
_TRANSFERRING: Final = 2
_STATE: Final = Struct(">i")
_HANDSHAKE: Final = Struct(">ihhq")
_REPORT: Final = Struct(">iq")
_ANSWER: Final = Struct(">iiqi")
_ENTRY: Final = Struct(">iq")
_HEAD: Final = Struct(">iiqiqq")

TERM_HEAD_BYTES: Final = _HEAD.size
TERM_BODY_BYTES_MAX: Final = BODY_BYTES_MAX + HEAD_BYTES - TERM_HEAD_BYTES
"""What the receive buffer of a RocketMQ slave can hold."""
NO_FILE: Final = -1
"""The offset in heartbeats of a RocketMQ master whose log has no file yet."""


class Handshake(NamedTuple):
    """Who the slave is. `from_last_file`: an empty one wants the last file only; no learner is elected."""

    slave_id: int
    from_last_file: bool = False
    is_learner: bool = False


class Report(NamedTuple):
    """The slave holds every byte below `log_offset`."""

    log_offset: int


class Answer(NamedTuple):
    """The terms of the master's log and where it ends."""

    log_end: int
    epochs: EpochList


class TermHead(NamedTuple):
    """A frame begins: `size_bytes` bytes from `log_offset` on, written in the term of `entry`; 0 bytes make a
    heartbeat.
    """

    log_offset: int
    size_bytes: int
    entry: EpochEntry
    confirm_offset: int


def encode_handshake(handshake: Handshake) -> bytes:
    return _HANDSHAKE.pack(_HANDSHAKING, handshake.from_last_file, handshake.is_learner, handshake.slave_id)


def encode_term_report(log_offset: int) -> bytes:
    return _REPORT.pack(_TRANSFERRING, log_offset)


def encode_answer(answer: Answer) -> bytes:
    entries = answer.epochs.entries
    head = _ANSWER.pack(_HANDSHAKING, _ENTRY.size * len(entries), answer.log_end, answer.epochs.last_epoch)
    return head + b"".join(_ENTRY.pack(*entry) for entry in entries)


def encode_term_head(head: TermHead) -> bytes:
    assert 0 <= head.size_bytes <= TERM_BODY_BYTES_MAX
    return _HEAD.pack(_TRANSFERRING, head.size_bytes, head.log_offset, *head.entry, head.confirm_offset)


class SlaveFrameDecoder:
    """A slave's bytes -> handshakes and reports. Holds less than one of them."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes | bytearray | memoryview) -> list[Handshake | Report]:
        """Every frame completed by `data`, oldest first.

        Raises:  RemoteProtocolError for an unknown state, a negative id or report.
        """
        data = self._rest + bytes(data)
        frames: list[Handshake | Report] = []
        at = 0
        while len(data) - at >= _STATE.size:
            state = _STATE.unpack_from(data, at)[0]
            shape = _SLAVE_FRAMES.get(state)
            if shape is None:
                raise RemoteProtocolError(f"a slave sent a frame of state {state}")
            if len(data) - at < shape.size:
                break
            _, *fields, number = shape.unpack_from(data, at)
            if number < 0:
                raise RemoteProtocolError(f"a slave sent {number} as its id or its end")
            if state == _HANDSHAKING:
                frames.append(Handshake(number, fields[0] == 1, fields[1] == 1))
            else:
                frames.append(Report(number))
            at += shape.size
        self._rest = data[at:]
        return frames


_SLAVE_FRAMES: Final = {_HANDSHAKING: _HANDSHAKE, _TRANSFERRING: _REPORT}


class MasterFrameDecoder:
    """A master's bytes -> answers, heads and pieces of bodies, in order.

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
        """How many bytes the body still lacks whose head was read; 0 when a frame comes next."""
        return self._body_left

    def feed(self, data: bytes | bytearray | memoryview) -> list[Answer | TermHead | memoryview]:
        """Frames; a head is followed by the pieces of its body that have arrived, never empty ones.

        Raises:  RemoteProtocolError for an unknown state and for impossible sizes and offsets.
        """
        view = memoryview(data)
        events: list[Answer | TermHead | memoryview] = []
        while view:
            if self._body_left:
                piece, view = view[: self._body_left], view[self._body_left :]
                events.append(piece)
                self._body_left -= len(piece)
                continue
            wanted = _frame_bytes(self._rest)
            taken = wanted - len(self._rest)
            self._rest += bytes(view[:taken])
            view = view[taken:]
            if len(self._rest) < wanted or _frame_bytes(self._rest) > wanted:
                continue
            frame, self._rest = self._rest, b""
            event = _decode(frame)
            events.append(event)
            if isinstance(event, TermHead):
                self._body_left = event.size_bytes
        return events


def _frame_bytes(begun: bytes) -> int:
    """How many bytes a frame needs that begins so, as far as can be told now."""
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
    if size % _ENTRY.size or not 0 <= size <= EPOCH_COUNT_MAX * _ENTRY.size:
        raise RemoteProtocolError(f"the master's list of terms has {size} bytes")
    return int(_ANSWER.size + size)


def _decode(frame: bytes) -> Answer | TermHead:
    if _STATE.unpack_from(frame)[0] == _HANDSHAKING:
        log_end = _ANSWER.unpack_from(frame)[2]
        if log_end < 0:
            raise RemoteProtocolError(f"the master's log ends at {log_end}")
        return Answer(log_end, told_epochs(_ENTRY.iter_unpack(frame[_ANSWER.size :])))
    _, size, log_offset, epoch, start, confirm_offset = _HEAD.unpack(frame)
    if not 0 <= size <= TERM_BODY_BYTES_MAX:
        raise RemoteProtocolError(
            f"a frame of {size} bytes at {log_offset}; allowed are 0..{TERM_BODY_BYTES_MAX}"
        )
    if log_offset < (0 if size else NO_FILE):
        raise RemoteProtocolError(f"the master sent the negative offset {log_offset}")
    return TermHead(log_offset, size, EpochEntry(epoch, start), confirm_offset)
