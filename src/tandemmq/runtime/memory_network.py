"""Stream connections inside one process, with the behaviour of `runtime.network` that protocols can see.

Bytes arrive in a later turn, in order, joined as a socket would join them; a reader that paused holds them up
and its writer is told at the high-water mark. Delivery goes through the Clock's `call_soon` only, so a test
clock orders it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any

from tandemmq.runtime.delivery import deliver
from tandemmq.runtime.ports import Address, Buffer, Clock, ProtocolFactory, StreamProtocol

HIGH_WATER_BYTES = 65_536
FIRST_FREE_PORT = 40_000
_ANY_HOST = ("0.0.0.0", "::", "")


class MemoryTransport(asyncio.Transport):
    """One end of a connection; `_peer` is the other."""

    def __init__(self, clock: Clock, protocol: StreamProtocol, local: Address, remote: Address) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self._clock = clock
        self._protocol = protocol
        self._peer: MemoryTransport | None = None  # None: the connection is gone
        self._unsent: list[bytes] = []  # on its way to the peer
        self._unsent_size = 0
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4
        self._is_writer_paused = False
        self._is_reading = True
        self._is_closing = False
        self._is_delivery_due = False

    def join(self, peer: MemoryTransport) -> None:
        """Makes both ends of one connection; the accepting side hears of it first."""
        self._peer, peer._peer = peer, self
        peer._protocol.connection_made(peer)
        self._protocol.connection_made(self)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: Buffer) -> None:
        if self._is_closing or self._peer is None or not len(data):
            return
        self._unsent.append(bytes(data))
        self._unsent_size += len(data)
        self._schedule_delivery()
        if self._unsent_size > self._high and not self._is_writer_paused:
            self._is_writer_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self._unsent_size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        if self._peer is not None:
            self._peer._schedule_delivery()

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._schedule_delivery()

    def abort(self) -> None:
        self._is_closing = True
        self._drop(None, ConnectionResetError("the peer aborted the connection"))

    def _schedule_delivery(self) -> None:
        if not self._is_delivery_due:
            self._is_delivery_due = True
            self._clock.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Hands what is unsent to the peer; when there is nothing left, a closing end goes away."""
        self._is_delivery_due = False
        peer = self._peer
        if peer is None:
            return
        if self._unsent and not peer._is_closing:
            if not peer._is_reading:
                return  # its resume_reading asks again
            data = b"".join(self._unsent)
            self._unsent.clear()
            self._unsent_size = 0
            deliver(peer._protocol, data)
            if self._is_writer_paused and self._peer is not None:
                self._is_writer_paused = False
                self._protocol.resume_writing()
        if self._is_closing and not self._unsent:
            self._drop(None, None)

    def _drop(self, our_error: Exception | None, their_error: Exception | None) -> None:
        """Ends the connection for both; each protocol hears it in a later turn."""
        peer, self._peer = self._peer, None
        if peer is None:
            return
        self._unsent.clear()
        self._unsent_size = 0
        self._clock.call_soon(self._protocol.connection_lost, our_error)
        if peer._peer is not None:
            self._clock.call_soon(peer._hear_end, their_error)

    def _hear_end(self, error: Exception | None) -> None:
        if self._peer is None:
            return
        self._peer = None
        self._is_closing = True
        if error is None:
            self._protocol.eof_received()
        self._protocol.connection_lost(error)


class MemoryListener:
    """An open port of a `MemoryNetwork`."""

    def __init__(self, address: Address, listeners: dict[Address, ProtocolFactory]) -> None:
        self._address = address
        self._listeners = listeners

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        self._listeners.pop(self._address, None)


class MemoryNetwork:
    """All machines of a test; `host` is the address from which connections are seen to come."""

    def __init__(self, clock: Clock, *, host: str = "127.0.0.1") -> None:
        self._clock = clock
        self._host = host
        self._listeners: dict[Address, ProtocolFactory] = {}
        self._ports = itertools.count(FIRST_FREE_PORT)

    async def listen(self, host: str, port: int, protocol_factory: ProtocolFactory) -> MemoryListener:
        address = (host, port or next(self._ports))
        if address in self._listeners:
            raise OSError(f"{address} is in use")
        self._listeners[address] = protocol_factory
        return MemoryListener(address, self._listeners)

    async def connect(
        self, host: str, port: int, protocol_factory: ProtocolFactory, timeout_s: float
    ) -> asyncio.Transport:
        accept = self._find(host, port)
        if accept is None:
            raise ConnectionRefusedError(f"nothing listens on {host}:{port}")
        local, remote = (self._host, next(self._ports)), (host, port)
        near = MemoryTransport(self._clock, protocol_factory(), local, remote)
        far = MemoryTransport(self._clock, accept(), remote, local)
        near.join(far)
        return near

    def _find(self, host: str, port: int) -> ProtocolFactory | None:
        for candidate in (host, *_ANY_HOST):
            accept = self._listeners.get((candidate, port))
            if accept is not None:
                return accept
        return None
