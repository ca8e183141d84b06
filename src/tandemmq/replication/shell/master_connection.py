"""The slave's socket to its master: proves the secret, reads into one buffer, tells its owner what came.

Knows not: what the bytes mean, who dials, when to try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from tandemmq.errors import RemoteProtocolError
from tandemmq.replication.core.admission import SlaveHandshake
from tandemmq.replication.core.frames import HEAD_BYTES, TANDEM_BODY_BYTES_MAX
from tandemmq.runtime.ports import Address, Buffer

REPORT_BUFFER_BYTES_MAX = 64 * 1024
"""Reports that the master did not read; above it the connection counts as broken."""
RECEIVE_BYTES_MAX = HEAD_BYTES + TANDEM_BODY_BYTES_MAX
"""One frame, which is looked at together. What a look costs besides its records weighs half as much with
2 MiB as with 1 MiB; more brings little, and the loop is the longer taken."""
ROOM_BYTES = 64 * 1024
"""In front of what is read: the beginning of a record whose end comes next, unless it is longer."""
BUSY_BYTES_MIN = RECEIVE_BYTES_MAX // 2
"""After a read of so much others get the loop before the next one."""


class ConnectionOwner(Protocol):
    """What a connection needs of the slave that dialled it."""

    @property
    def frame_left(self) -> int:
        """How many bytes are best read at most."""

    def on_connected(self, connection: MasterConnection) -> None: ...

    def on_data(self, data: Buffer, room: int) -> None:
        """Bytes of the stream; the first `room` bytes of `data` are none, but may be written over."""

    def on_broken(self, reason: str) -> None:
        """The connection has ended, though nobody here closed it."""

    def call_soon(self, fn: Callable[[], None]) -> None:
        """Run `fn` in the next turn of the loop."""


class MasterConnection(asyncio.BufferedProtocol):
    """The socket to the master; silent once it was given up.

    `is_ready`: the owner was told of it, after the master has proven the secret if there is one.
    Strategy: one buffer that is used again. It takes at most the rest of a frame, so that the bytes of the
              log come to lie behind each other. A slave that copies much finds it full each time; it then
              lets others have the loop before it reads on.
    """

    __slots__ = ("_buffer", "_handshake", "_owner", "_transport", "is_ready", "local")

    def __init__(self, owner: ConnectionOwner, handshake: SlaveHandshake | None = None) -> None:
        self._owner: ConnectionOwner | None = owner
        self._handshake = handshake
        self.is_ready = asyncio.Event()
        self.local: Address = ("", 0)
        """Our end of it, which is what the master sees unless something between translates addresses."""
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(ROOM_BYTES + RECEIVE_BYTES_MAX))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._owner is None:
            self._transport.abort()
            return
        host, port = self._transport.get_extra_info("sockname")[:2]
        self.local = (str(host), int(port))
        self._transport.set_write_buffer_limits(high=REPORT_BUFFER_BYTES_MAX)
        if self._handshake is None:
            self._join(self._owner)

    def get_buffer(self, sizehint: int) -> memoryview:
        size = RECEIVE_BYTES_MAX if self._owner is None else min(self._owner.frame_left, RECEIVE_BYTES_MAX)
        return self._buffer[ROOM_BYTES : ROOM_BYTES + size]

    def buffer_updated(self, nbytes: int) -> None:
        data: Buffer = self._buffer[: ROOM_BYTES + nbytes]
        room = ROOM_BYTES
        if self._handshake is not None:
            data, room = self._shake_hands(self._handshake, bytes(data[ROOM_BYTES:])), 0
        owner = self._owner
        if owner is None or len(data) == room:
            return
        owner.on_data(data, room)
        if nbytes >= BUSY_BYTES_MIN and self._transport is not None:
            self._transport.pause_reading()
            owner.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._give_up("the master does not read reports")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._give_up("the master closed the connection" if exc is None else str(exc))

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close without telling the owner."""
        self._owner = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _join(self, owner: ConnectionOwner) -> None:
        self.is_ready.set()
        owner.on_connected(self)

    def _shake_hands(self, handshake: SlaveHandshake, data: bytes) -> bytes:
        """What of `data` belongs to the stream."""
        if self._owner is None:
            return b""
        try:
            answer, rest = handshake.feed(data)
        except RemoteProtocolError as error:
            self._give_up(str(error))
            return b""
        if answer:
            self.write(answer)
        if rest is None:
            return b""
        self._handshake = None
        self._join(self._owner)
        return rest

    def _give_up(self, reason: str) -> None:
        owner, self._owner = self._owner, None
        if self._transport is not None:
            self._transport.abort()
        if owner is not None:
            owner.on_broken(reason)
