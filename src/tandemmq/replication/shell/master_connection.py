"""A slave's connection to its master. `Dialler` makes attempts to reach it, one at a time. `MasterConnection`
is the socket: it performs the handshake, reads into one buffer and passes the data to its owner.

Knows not: the meaning of the bytes, when to retry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, cast

from tandemmq.errors import ConfigError, RemoteProtocolError
from tandemmq.remoting.options import parse_address
from tandemmq.replication.core.frames import HEAD_BYTES, NONCE_BYTES, TANDEM_BODY_BYTES_MAX, SlaveHandshake
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.runtime.machine import unpredictable_bytes
from tandemmq.runtime.ports import Address, Network
from tandemmq.runtime.tasks import TaskScope
from tandemmq.telemetry import events
from tandemmq.units import Buffer

log = logging.getLogger(__name__)

REPORT_BUFFER_BYTES_MAX = 64 * 1024
"""The most bytes of reports that the master has not read; above it the connection counts as broken."""
RECEIVE_BYTES_MAX = HEAD_BYTES + TANDEM_BODY_BYTES_MAX
"""The size of one frame, which is parsed at once. With 2 MiB the fixed cost of a parse weighs half as much as
with 1 MiB; more gains little and blocks the loop for longer.
"""
ROOM_BYTES = 64 * 1024
"""The space in front of the read bytes, for the beginning of a record that they complete, unless it is
longer.
"""
BUSY_BYTES_MIN = RECEIVE_BYTES_MAX // 2
"""The size of a read from which the loop runs other callbacks before the next read."""
assert 0 < BUSY_BYTES_MIN <= RECEIVE_BYTES_MAX, "a full read is one of so much"


class ConnectionOwner(Protocol):
    """The interface of the slave that owns a connection and its `Dialler`."""

    @property
    def frame_left(self) -> int:
        """The most bytes to read next."""

    def on_connected(self, connection: MasterConnection) -> None: ...

    def on_data(self, data: Buffer, room: int) -> None:
        """Handles bytes of the stream. The first `room` bytes of `data` carry no data and may be
        overwritten.
        """

    def on_broken(self, reason: str) -> None:
        """Handles a connection that ended without having been closed by this side."""

    def on_unreachable(self, reason: str, *, is_first: bool) -> None:
        """Handles a failed attempt to connect. `is_first`: the previous attempt, if any, had not failed."""

    def call_soon(self, fn: Callable[[], None]) -> None:
        """Runs `fn` in the next turn of the loop."""


class MasterConnection(asyncio.BufferedProtocol):
    """The socket to the master; it makes no more calls to its owner after it was closed.

    `is_ready`: the owner was notified, after the master has proven the secret, if there is one.
    Strategy: one reused buffer. A read takes at most the rest of a frame, so that the bytes of the log end up
              contiguous. A slave that copies a lot fills it with each read; it then yields to other callbacks
              before it reads again.
    """

    __slots__ = ("_buffer", "_handshake", "_owner", "_transport", "is_ready", "local")

    def __init__(self, owner: ConnectionOwner, handshake: SlaveHandshake | None = None) -> None:
        self._owner: ConnectionOwner | None = owner
        self._handshake = handshake
        self.is_ready = asyncio.Event()
        self.local: Address = ("", 0)
        """The local address of the connection. The master sees the same one, unless a device in between
        translates addresses.
        """
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(ROOM_BYTES + RECEIVE_BYTES_MAX))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self._transport is None, "a connection is made once"
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
        assert size > 0, "without room nothing more would be read"
        return self._buffer[ROOM_BYTES : ROOM_BYTES + size]

    def buffer_updated(self, nbytes: int) -> None:
        assert 0 < nbytes <= RECEIVE_BYTES_MAX, nbytes
        data: Buffer = self._buffer[: ROOM_BYTES + nbytes]
        room = ROOM_BYTES
        if self._handshake is not None:
            data, room = self._receive_handshake(self._handshake, bytes(data[ROOM_BYTES:])), 0
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
        self._abort("the master does not read reports")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._abort("the master closed the connection" if exc is None else str(exc))

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Closes the connection without notifying the owner."""
        self._owner = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _join(self, owner: ConnectionOwner) -> None:
        assert not self.is_ready.is_set(), "the owner is notified once"
        assert self._handshake is None, "the master has proven the secret, if there is one"
        self.is_ready.set()
        owner.on_connected(self)

    def _receive_handshake(self, handshake: SlaveHandshake, data: bytes) -> bytes:
        """Returns the part of `data` that belongs to the stream."""
        if self._owner is None:
            return b""
        try:
            answer, rest = handshake.feed(data)
        except RemoteProtocolError as error:
            self._abort(str(error))
            return b""
        if answer:
            self.write(answer)
        if rest is None:
            return b""
        self._handshake = None
        self._join(self._owner)
        return rest

    def _abort(self, reason: str) -> None:
        owner, self._owner = self._owner, None
        if self._transport is not None:
            self._transport.abort()
        if owner is not None:
            owner.on_broken(reason)


class Dialler:
    """Connects to the master: `dial` ends in `on_connected` or `on_unreachable` of the owner, unless it is
    cancelled.
    """

    def __init__(
        self, owner: ConnectionOwner, options: ReplicationOptions, *, network: Network, tasks: TaskScope
    ) -> None:
        self._owner = owner
        self._options = options
        self._network = network
        self._tasks = tasks
        self._attempt: tuple[asyncio.Task[None], MasterConnection] | None = None
        self._failure_count = 0

    def dial(self, address: str) -> None:
        """Starts an attempt; the previous one must have ended."""
        assert self._attempt is None, "one attempt at a time"
        connection = MasterConnection(self._owner, self._new_handshake())
        task = self._tasks.start("dial", self._run(address, connection))
        self._attempt = task, connection

    def release_connection(self) -> None:
        """Hands the connection over to the owner, which closes it."""
        assert self._attempt is not None, "a connection follows a dial"
        assert self._attempt[1].is_ready.is_set(), "and its owner is notified"
        self._attempt = None
        self._failure_count = 0

    def cancel(self) -> None:
        """Cancels a running attempt and closes its socket if it is already connected, so that it sends
        nothing more.
        """
        if self._attempt is not None:
            task, connection = self._attempt
            self._attempt = None
            connection.close()
            task.cancel()

    async def _run(self, address: str, connection: MasterConnection) -> None:
        try:
            host, port = parse_address(address)
            timeout_s = self._options.connect_timeout_ms / 1000
            await self._network.connect(host, port, lambda: connection, timeout_s)
            async with asyncio.timeout(timeout_s):
                await connection.is_ready.wait()
        except (OSError, ConfigError) as error:
            # A TimeoutError is an OSError: the master did not answer the handshake.
            self._attempt = None  # this task: it ends by itself
            connection.close()
            self._record_failure(address, str(error) or type(error).__name__)

    def _record_failure(self, address: str, reason: str) -> None:
        """Logs one line per outage, not one per attempt."""
        self._failure_count += 1
        is_first = self._failure_count == 1
        if is_first:
            log.warning(events.MASTER_UNREACHABLE, extra={"master": address, "reason": reason})
        self._owner.on_unreachable(reason, is_first=is_first)

    def _new_handshake(self) -> SlaveHandshake | None:
        secret = self._options.shared_secret
        return SlaveHandshake(secret, unpredictable_bytes(NONCE_BYTES)) if secret else None
