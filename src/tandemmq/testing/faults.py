"""The network and the disk of one test server, with faults that a test switches on: a slow, cut or
severed network, a full disk.

The server is the real one, on real sockets and files, and does not know of the switches.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, TcpListener, TcpNetwork
from tandemmq.runtime.ports import Address, ProtocolFactory
from tandemmq.units import GIB, Buffer

DISK_BYTES = 1024 * GIB
"""The disk size reported to a server: the fill level of the machine's own disk must not decide a test."""


class SwitchedNetwork:
    """The connections and listening ports of one server, across restarts."""

    def __init__(self) -> None:
        self._tcp = TcpNetwork()
        self._listeners: list[TcpListener] = []
        self._wires: list[Wire] = []
        self._delays: dict[int, float] = {}
        self._is_severed = False

    async def listen(self, host: str, port: int, protocol_factory: ProtocolFactory) -> TcpListener:
        listener = await self._tcp.listen(host, port, lambda: _Junction(self, protocol_factory))
        self._listeners.append(listener)
        return listener

    async def connect(
        self, host: str, port: int, protocol_factory: ProtocolFactory, timeout_s: float
    ) -> asyncio.Transport:
        if self._is_severed:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{host}:{port} cannot be reached")
        junction = _Junction(self, protocol_factory)
        await self._tcp.connect(host, port, lambda: junction, timeout_s)
        assert junction.wire is not None
        return junction.wire

    # The switches

    def delay(self, port: int, seconds: float) -> None:
        """Delays the server's writes on connections of this port, its own or the peer's, by `seconds`."""
        self._delays[port] = seconds

    def cut(self) -> None:
        """Breaks every connection; data in transit is lost."""
        for wire in self._wires:
            wire.abort()
        self._wires.clear()

    async def sever(self) -> None:
        """Blocks all traffic until `restore`, as for a killed process."""
        self._is_severed = True
        for listener in self._listeners:
            await listener.close()
        self._listeners.clear()
        self.cut()

    def restore(self) -> None:
        """Lets the restarted server listen and connect."""
        self._is_severed = False

    # Called by connections

    def delay_of(self, ends: Iterable[Address]) -> float:
        return max((self._delays.get(port, 0.0) for _, port in ends), default=0.0)

    def add(self, wire: Wire) -> None:
        self._wires = [one for one in self._wires if not one.is_closing()]
        self._wires.append(wire)
        if self._is_severed:
            wire.abort()


class _Junction(asyncio.Protocol):
    """A placeholder for a server's protocol until the connection is made; it gives the protocol a `Wire` to
    write to.
    """

    def __init__(self, network: SwitchedNetwork, factory: ProtocolFactory) -> None:
        self._network = network
        self._factory = factory
        self.wire: Wire | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        protocol = self._factory()
        # uvloop's transports are not subclasses of asyncio's.
        wire = self.wire = Wire(self._network, cast(asyncio.Transport, transport))
        wire.set_protocol(protocol)
        protocol.connection_made(wire)
        self._network.add(wire)


class Wire(asyncio.Transport):
    """A connection whose writes may be delayed; their order is kept."""

    def __init__(self, network: SwitchedNetwork, transport: asyncio.Transport) -> None:
        super().__init__()
        self._network = network
        self._transport = transport
        self._clock = LoopClock()
        self._late: deque[Callable[[], object]] = deque()
        names = (transport.get_extra_info(name) for name in ("sockname", "peername"))
        self._ends = [(str(name[0]), int(name[1])) for name in names if name]

    def _do(self, action: Callable[[], object]) -> None:
        seconds = self._network.delay_of(self._ends)
        if seconds <= 0 and not self._late:
            action()
            return
        self._late.append(action)
        self._clock.call_later(seconds, self._do_next)

    def _do_next(self) -> None:
        if self._late:
            self._late.popleft()()

    def write(self, data: Buffer) -> None:
        kept = data if isinstance(data, bytes) else bytes(data)
        self._do(lambda: self._transport.write(kept))

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        kept = [bytes(data) for data in list_of_data]
        self._do(lambda: self._transport.writelines(kept))

    def close(self) -> None:
        self._do(self._transport.close)

    def abort(self) -> None:
        self._late.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._transport.get_protocol()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()


class SwitchedDisk(RealDisk):
    """The files of one server, with a reported disk that is full (`is_full`) or half full."""

    is_full = False

    def usage(self, path: Path) -> tuple[int, int]:
        return DISK_BYTES, 0 if self.is_full else DISK_BYTES // 2
