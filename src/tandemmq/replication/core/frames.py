"""The bytes of the classic replication channel, both directions, as incremental decoders (spec replication
4.2).

Slave to master: reports of 8 bytes, the slave's max offset. Master to slave: a head of 12 bytes (offset of
the first byte, size; size 0 is a heartbeat), then that many raw bytes of the CommitLog. Any cut of the
stream gives the same values. No decoder holds more than an incomplete head: body bytes are handed on as
they arrive, as views into what was fed. A decoder that raised is spent; its connection must be closed.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from tandemmq.errors import RemoteProtocolError
from tandemmq.replication.core.admission import GREETING_OFFSET
from tandemmq.units import MIB

REPORT_BYTES = 8
HEAD_BYTES = 12
BODY_BYTES_MAX = 4 * MIB - HEAD_BYTES
"""What the receive buffer of a RocketMQ slave can hold."""
TANDEM_BODY_BYTES_MAX = 2 * MIB
"""How long a frame between two of ours may be, where one of RocketMQ gets `transfer_bytes_max`."""

_REPORT = Struct(">q")
_HEAD = Struct(">qi")


def encode_report(log_offset: int) -> bytes:
    """The 8 bytes with which a slave says how much it holds."""
    return _REPORT.pack(log_offset)


def encode_head(log_offset: int, size_bytes: int) -> bytes:
    """The 12 bytes before a body of `size_bytes`; 0 makes a heartbeat."""
    assert 0 <= size_bytes <= BODY_BYTES_MAX
    return _HEAD.pack(log_offset, size_bytes)


class ReportDecoder:
    """A slave's bytes -> its reports."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes | bytearray | memoryview) -> tuple[int, ...]:
        """Every report completed by `data`, oldest first.

        Raises:  RemoteProtocolError for a negative report.
        """
        if self._rest:
            data = self._rest + bytes(data)
        count = len(data) // REPORT_BYTES
        used = count * REPORT_BYTES
        self._rest = bytes(data[used:])
        if not count:
            return ()
        reports: tuple[int, ...] = Struct(f">{count}q").unpack_from(data)
        if min(reports) < 0:
            raise RemoteProtocolError(f"a slave reported the negative offset {min(reports)}")
        return reports


class TransferHead(NamedTuple):
    """A frame begins: `size_bytes` bytes of the log from `log_offset` on will follow."""

    log_offset: int
    size_bytes: int


class TransferDecoder:
    """A master's bytes -> heads and pieces of bodies, in order."""

    __slots__ = ("_body_left", "_head")

    def __init__(self) -> None:
        self._head = b""
        self._body_left = 0

    @property
    def buffered_bytes(self) -> int:
        return len(self._head)

    @property
    def body_left(self) -> int:
        """How many bytes the body still lacks whose head was read; 0 when a head comes next."""
        return self._body_left

    def feed(self, data: bytes | bytearray | memoryview) -> list[TransferHead | memoryview]:
        """Heads, each followed by the pieces of its body that have arrived.

        Shape:   a piece is a view into `data`, never empty; a body may come in any number of pieces.
        Raises:  RemoteProtocolError for an impossible offset or size. What preceded it in the same `data`
                 is lost with it: the slave asks for it again after reconnecting.
        """
        view = memoryview(data)
        events: list[TransferHead | memoryview] = []
        position, end = 0, len(view)
        while position < end:
            if self._body_left:
                size = min(self._body_left, end - position)
                events.append(view[position : position + size])
                self._body_left -= size
                position += size
                continue
            if not self._head and end - position >= HEAD_BYTES:
                head = TransferHead._make(_HEAD.unpack_from(view, position))
                position += HEAD_BYTES
            else:
                size = min(HEAD_BYTES - len(self._head), end - position)
                self._head += bytes(view[position : position + size])
                position += size
                if len(self._head) < HEAD_BYTES:
                    break
                head = TransferHead._make(_HEAD.unpack(self._head))
                self._head = b""
            _check_head(head)
            events.append(head)
            self._body_left = head.size_bytes
        return events


def _check_head(head: TransferHead) -> None:
    if head.log_offset == GREETING_OFFSET:
        raise RemoteProtocolError("the master asks for a shared secret (haSharedSecret)")
    if head.log_offset < 0:
        raise RemoteProtocolError(f"the master sent the negative offset {head.log_offset}")
    if not 0 <= head.size_bytes <= BODY_BYTES_MAX:
        raise RemoteProtocolError(
            f"a frame of {head.size_bytes} bytes at {head.log_offset}; allowed are 0..{BODY_BYTES_MAX}"
        )
