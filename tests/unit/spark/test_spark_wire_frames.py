"""Tests that frames are read whole however the socket splits them, and that invalid ones are rejected before
memory is allocated.
"""

from __future__ import annotations

import pytest

from tandemmq.errors import RemoteProtocolError
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import encode_frame
from tandemmq.spark.wire import READ_BYTES, FrameReader


class Source:
    """A source of bytes that arrive in pieces of at most `step`."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data = data
        self._step = step
        self.at = 0

    def receive_into(self, view: memoryview) -> int:
        count = min(len(view), self._step, len(self._data) - self.at)
        assert count > 0
        view[:count] = self._data[self.at : self.at + count]
        self.at += count
        return count


@pytest.mark.parametrize("step", [1, 7, 4096, READ_BYTES, 1 << 20])
def test_frames_come_whole_and_in_order(step: int) -> None:
    sizes = [0, 5, READ_BYTES - 100, 3, READ_BYTES * 4 + 1, 0] if step > 7 else [0, 5, 300]
    bodies = [bytes([n + 1]) * size for n, size in enumerate(sizes)]
    frames = [encode_frame(Command(code=n, opaque=n, body=body)) for n, body in enumerate(bodies)]
    source, reader = Source(b"".join(frames), step), FrameReader()
    for n, body in enumerate(bodies):
        command = reader.next_command(source.receive_into)
        assert (command.opaque, bytes(command.body)) == (n, body)
    assert reader.buffered_bytes == 0


@pytest.mark.parametrize(
    "head",
    [
        b"\x7f\xff\xff\xff\x00\x00\x00\x00",
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\x00\x08\x00\x00\x00\x09",
        b"\x00\x00\x00\x08\x02\x00\x00\x02",
        b"HTTP/1.1",
    ],
)
def test_what_is_no_frame_is_refused(head: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="invalid frame: length"):
        FrameReader().next_command(Source(head, 100).receive_into)
