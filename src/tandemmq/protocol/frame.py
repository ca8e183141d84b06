"""Frames: the encoding of successive commands in a byte stream (spec remoting 1).

`FrameDecoder` accepts the stream in pieces of any size and keeps at most one unfinished frame. Announced
sizes are checked before a byte is kept, so no peer can make us hold more than the frame limit. Complete
frames inside a piece are split in place; only the tail is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TypeAlias

from tandemmq.errors import LocalProtocolError, RemoteProtocolError
from tandemmq.protocol import speedups
from tandemmq.protocol.codes import SERIALIZE_JSON, SERIALIZE_ROCKETMQ
from tandemmq.protocol.command import Command
from tandemmq.protocol.header_compact import decode_header_compact, encode_header_compact
from tandemmq.protocol.header_json import decode_header_json, encode_header_json
from tandemmq.units import Buffer

FRAME_BYTES_MAX = 16_777_216
"""Java's limit on both sides, counting the 4 length bytes."""

_HEAD = struct.Struct(">iI")
_LENGTH = struct.Struct(">i")
HEADER_BYTES_MAX = 0x3FFFF
"""Our own limit: six times the 32,767 bytes allowed for properties, the size in JSON with every character
escaped, with room for the other fields.
"""

_HEADER_SIZE = 0xFFFFFF
_IMPOSSIBLE = 0xFFFFFFFF ^ (SERIALIZE_ROCKETMQ << 24 | HEADER_BYTES_MAX)
"""The bits that no valid mark has: of an unknown serialize type, or of a header that is too long."""


Frame: TypeAlias = "tuple[bytes, bytes, int]"
"""The header, the body and the serialize type of a whole frame, not decoded yet."""


def decode_frames(frames: Iterable[Frame]) -> list[Command]:
    """Returns the commands of these frames. Raises RemoteProtocolError when a header is invalid."""
    return [
        decode_header_compact(header, body) if kind else decode_header_json(header, body)
        for header, body, kind in frames
    ]


class FrameDecoder:
    """Splits one direction of one connection into frames, and decodes their commands, in order."""

    __slots__ = ("_buffer", "_bytes_max", "_is_broken", "unfinished_count")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.unfinished_count = 0
        """The number of frames split between pieces; the last may still be unfinished."""
        self._bytes_max = frame_bytes_max
        self._buffer = bytearray()
        self._is_broken = False

    @property
    def buffered_bytes(self) -> int:
        """The number of bytes held of an unfinished frame."""
        return len(self._buffer)

    def feed(self, data: Buffer) -> list[Command]:
        """Returns the commands that `data` completes, oldest first.

        Raises:  RemoteProtocolError when the stream is invalid; from then on every call raises, and commands
                 before the fault in the same piece are lost with the connection.
        """
        frames = self.split(data)
        try:
            return decode_frames(frames)
        except RemoteProtocolError:
            self._break()
            raise

    def split(self, data: Buffer) -> list[Frame]:
        """Returns the frames that `data` completes, oldest first, for `decode_frames`. Raises as `feed` does,
        but for invalid headers.
        """
        if self._is_broken:
            raise RemoteProtocolError("the stream was broken before")
        piece = data if type(data) is bytes else bytes(data)
        frames: list[Frame] = []
        try:
            position = self._finish_frame(piece, frames) if self._buffer else 0
            end = len(piece)
            if speedups.kernel is not None:
                found, position = speedups.kernel.split_frames(
                    piece, position, self._bytes_max, HEADER_BYTES_MAX
                )
                frames += found
            while end - position >= 8:
                length, mark = _HEAD.unpack_from(piece, position)
                header_end = position + 8 + (mark & HEADER_BYTES_MAX)
                frame_end = position + 4 + length
                if mark & _IMPOSSIBLE or not (4 <= length <= self._bytes_max - 4 and header_end <= frame_end):
                    raise RemoteProtocolError(_explain_head(length, mark))
                if frame_end > end:
                    break
                frames.append((piece[position + 8 : header_end], piece[header_end:frame_end], mark >> 24))
                position = frame_end
            if position < end:
                self._keep(piece, position)
        except RemoteProtocolError:
            self._break()
            raise
        return frames

    def _break(self) -> None:
        self._is_broken = True
        self._buffer.clear()

    def close(self) -> None:
        """Drops an unfinished frame, because the connection is closed."""
        self._buffer.clear()

    def _finish_frame(self, piece: bytes, frames: list[Frame]) -> int:
        """Adds the rest of the unfinished frame; returns the position in `piece` after it."""
        buffer, used = self._buffer, 0
        if len(buffer) < 8:
            used = min(8 - len(buffer), len(piece))
            buffer += piece[:used]
            self._check_head()
            if len(buffer) < 8:
                return used
        length: int
        mark: int
        length, mark = _HEAD.unpack_from(buffer)
        missing = 4 + length - len(buffer)
        taken = min(missing, len(piece) - used)
        buffer += memoryview(piece)[used : used + taken]
        if taken == missing:
            header_end = 8 + (mark & HEADER_BYTES_MAX)
            with memoryview(buffer) as view:
                header, body = bytes(view[8:header_end]), bytes(view[header_end:])
            buffer.clear()
            frames.append((header, body, mark >> 24))
        return used + taken

    def _keep(self, piece: bytes, position: int) -> None:
        """Holds the start of the next frame; an invalid head is refused as early as possible."""
        self.unfinished_count += 1
        self._buffer += memoryview(piece)[position:]
        self._check_head()

    def _check_head(self) -> None:
        """Refuses an impossible head from as many of its bytes as have arrived."""
        buffer = self._buffer
        if len(buffer) < 4:
            return
        (length,) = _LENGTH.unpack_from(buffer)
        is_length_bad = not 4 <= length <= self._bytes_max - 4
        if is_length_bad or (len(buffer) > 4 and buffer[4] > SERIALIZE_ROCKETMQ):
            raise RemoteProtocolError(_explain_head(length, buffer[4] << 24 if len(buffer) > 4 else 0))
        if len(buffer) >= 8:
            _, mark = _HEAD.unpack_from(buffer)
            if mark & _IMPOSSIBLE or (mark & HEADER_BYTES_MAX) > length - 4:
                raise RemoteProtocolError(_explain_head(length, mark))


def encode_frame(command: Command) -> bytes:
    """Returns the whole frame of a command.

    Raises:  LocalProtocolError when it cannot be encoded or is longer than peers accept.
    """
    if command.serialize_type == SERIALIZE_JSON:
        header = encode_header_json(command)
    else:
        header = encode_header_compact(command)
    body = command.body
    return b"".join((_encode_head(command, len(header), len(body)), header, body))


def encode_frame_head(command: Command, body_size: int) -> bytes:
    """Returns the frame up to its body, for a body of `body_size` bytes that the caller sends next.

    Raises:  LocalProtocolError as `encode_frame`.
    """
    if command.serialize_type == SERIALIZE_JSON:
        header = encode_header_json(command)
    else:
        header = encode_header_compact(command)
    return _encode_head(command, len(header), body_size) + header


def join_headers(headers: Sequence[bytes]) -> bytes:
    """Returns the frames of these JSON headers, in one buffer. The frames have no bodies."""
    sizes = list(map(len, headers))
    heads = {size: _HEAD.pack(size + 4, size) for size in set(sizes)}
    return b"".join(chain.from_iterable(zip(map(heads.__getitem__, sizes), headers, strict=True)))


def _encode_head(command: Command, header_size: int, body_size: int) -> bytes:
    length = 4 + header_size + body_size
    if header_size > HEADER_BYTES_MAX:
        raise LocalProtocolError(
            f"a header of {header_size} bytes (code {command.code}) exceeds the limit of {HEADER_BYTES_MAX}"
        )
    if length > FRAME_BYTES_MAX - 4:
        raise LocalProtocolError(
            f"a frame of {length + 4} bytes (code {command.code}) exceeds the limit of {FRAME_BYTES_MAX}"
        )
    return _HEAD.pack(length, command.serialize_type << 24 | header_size)


def _explain_head(length: int, mark: int) -> str:
    if mark >> 24 > SERIALIZE_ROCKETMQ:
        return f"serialize type {mark >> 24} is unknown"
    if length < 4:
        return f"a frame cannot be {length} bytes long"
    if (mark & _HEADER_SIZE) > length - 4:
        return f"a header of {mark & _HEADER_SIZE} bytes does not fit a frame of {length}"
    if (mark & _HEADER_SIZE) > HEADER_BYTES_MAX:
        return f"a header of {mark & _HEADER_SIZE} bytes is longer than the limit of {HEADER_BYTES_MAX}"
    return f"a frame of {length} bytes is longer than the limit"
