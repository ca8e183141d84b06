"""Frames out of a blocking socket, large ones received straight into the buffer that Arrow will read.

An answer to a bulk pull has megabytes. Received piece by piece it would be copied three times before the
first column is made; here only what came with its first bytes is copied.

Invariants: what a peer announces is checked before room is made for it (spec remoting 1).
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.codes import SERIALIZE_ROCKETMQ
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FRAME_BYTES_MAX
from tandemmq.protocol.header_compact import decode_header_compact
from tandemmq.protocol.header_json import decode_header_json
from tandemmq.units import KIB

READ_BYTES: Final = 64 * KIB

_HEAD: Final = Struct(">iI")
_HEADER_BYTES_MAX: Final = 0xFFFFFF

ReceiveInto = Callable[[memoryview], int]
"""Fills the view from its start with at least one byte and returns how many; raises when there are none."""


class FrameReader:
    """The commands of one connection, in order; never holds more than one unfinished frame."""

    def __init__(self) -> None:
        self._read = bytearray(READ_BYTES)
        self._begin = 0
        self._end = 0

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the next frames that are here already."""
        return self._end - self._begin

    def next_command(self, receive_into: ReceiveInto) -> Command:
        """The next command; its body may be a view of a buffer of its own.

        Raises:  RemoteProtocolError when the stream cannot be followed, and whatever `receive_into` raises;
                 the connection is of no use afterwards.
        """
        while self.buffered_bytes < _HEAD.size:
            self._read_more(receive_into)
        length, mark = _HEAD.unpack_from(self._read, self._begin)
        header_size = mark & _HEADER_BYTES_MAX
        if not 4 + header_size <= length <= FRAME_BYTES_MAX - 4 or mark >> 24 > SERIALIZE_ROCKETMQ:
            raise RemoteProtocolError(
                f"no frame begins with a length of {length} and the header mark {mark:#x}"
            )
        frame = memoryview(bytearray(4 + length))
        filled = min(len(frame), self.buffered_bytes)
        frame[:filled] = memoryview(self._read)[self._begin : self._begin + filled]
        self._begin += filled
        while filled < len(frame):
            filled += receive_into(frame[filled:])
        decode = decode_header_compact if mark >> 24 else decode_header_json
        command = decode(bytes(frame[8 : 8 + header_size]), b"")
        command.body = frame[8 + header_size :]
        return command

    def _read_more(self, receive_into: ReceiveInto) -> None:
        kept = self.buffered_bytes
        if self._begin:
            self._read[:kept] = self._read[self._begin : self._end]
            self._begin, self._end = 0, kept
        self._end += receive_into(memoryview(self._read)[kept:])
