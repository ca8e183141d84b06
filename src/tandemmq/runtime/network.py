"""Real TCP connections of the running event loop."""

from __future__ import annotations

import asyncio

from tandemmq.runtime.ports import Address, ProtocolFactory

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
