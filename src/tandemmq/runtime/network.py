"""Real TCP connections of the running event loop; and `deliver`, by which networks in memory hand bytes to a
protocol as these do.
"""

from __future__ import annotations

import asyncio
import socket

from tandemmq.runtime.ports import Address, ProtocolFactory, StreamProtocol

BACKLOG = 1024


class TcpListener:
    """A listening socket."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        host, port = server.sockets[0].getsockname()[:2]
        self._address = (str(host), int(port))

    @property
    def address(self) -> Address:
        return self._address

    async def close(self) -> None:
        # wait_closed would, from Python 3.12 on, also wait for every accepted connection; those have owners.
        self._server.close()


class TcpNetwork:
    """Sockets without delay (TCP_NODELAY) and without keep-alive probes (spec remoting 5)."""

    async def listen(self, host: str, port: int, protocol_factory: ProtocolFactory) -> TcpListener:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(protocol_factory, host, port, backlog=BACKLOG, reuse_address=True)
        return TcpListener(server)

    async def connect(
        self, host: str, port: int, protocol_factory: ProtocolFactory, timeout_s: float
    ) -> asyncio.Transport:
        async with asyncio.timeout(timeout_s):
            transport, _ = await asyncio.get_running_loop().create_connection(protocol_factory, host, port)
        return transport


def reserve_port(host: str) -> socket.socket:
    """A socket that keeps a port of the system's choice from others, and lets servers of ours listen at it.

    It is bound and does not listen. Linux lets another socket bind and listen there, as both say
    SO_REUSEADDR, and gives the port to nobody who does not name it.
    """
    one = socket.socket()
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((host, 0))
    except OSError:
        one.close()
        raise
    return one


def deliver(protocol: StreamProtocol, data: bytes) -> None:
    """Give `data` to a protocol, whole, or piece by piece into the buffer that it offers."""
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return
    rest = memoryview(data)
    while rest:
        room = memoryview(protocol.get_buffer(len(rest)))
        count = min(len(rest), len(room))
        assert count, "a protocol must offer room when bytes come"
        room[:count] = rest[:count]
        protocol.buffer_updated(count)
        rest = rest[count:]
