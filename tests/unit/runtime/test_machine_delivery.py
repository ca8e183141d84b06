"""The delivery of in-memory networks to a protocol with its own buffer."""

from __future__ import annotations

import asyncio

from tandemmq.runtime.machine import deliver


class Small(asyncio.BufferedProtocol):
    """A protocol that receives three bytes at a time, into the same buffer."""

    def __init__(self) -> None:
        self.buffer = bytearray(3)
        self.taken: list[bytes] = []

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.taken.append(bytes(self.buffer[:nbytes]))


class Plain(asyncio.Protocol):
    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        self.taken.append(data)


def test_bytes_fill_the_buffer_as_often_as_they_must() -> None:
    subject = Small()
    deliver(subject, b"abcdefgh")
    assert subject.taken == [b"abc", b"def", b"gh"]


def test_a_protocol_without_buffer_gets_all_at_once() -> None:
    subject = Plain()
    deliver(subject, b"abcdefgh")
    assert subject.taken == [b"abcdefgh"]
