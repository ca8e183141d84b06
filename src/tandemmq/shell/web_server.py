"""The HTTP server of a command: its listening socket, its ready line, and its end by a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

import typer
import uvicorn
from starlette.types import ASGIApp

from tandemmq.errors import ConfigError
from tandemmq.remoting.options import TlsMode, TlsOptions, parse_address
from tandemmq.remoting.tls import TlsAcceptor
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.runtime.tasks import TaskScope
from tandemmq.shell.web_connections import ConnectionTable, WebConnection, WebTlsConnection
from tandemmq.shell.web_health import ClusterProbe, HealthPages

STOP_S_MAX: Final = 3
"""The longest wait for requests that are running when the server ends."""
TICKS_PER_SWEEP: Final = 10
"""The ticks between two sweeps of waiting connections; Uvicorn ticks ten times a second."""


def listen(address: str) -> socket.socket:
    """Returns the listening socket. Raises ConfigError when the address cannot be used."""
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigError(f"cannot listen on {address}: {error.strerror}") from error
    return listener


async def serve_app(
    app: ASGIApp,
    listener: socket.socket,
    ready_line: str,
    *,
    name_servers: str,
    requests_max: int,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> None:
    """Serves the application and the pages of health until SIGTERM or SIGINT; prints the ready line once
    requests are answered. The server is ready while one of the name servers answers. Above `requests_max`
    requests at once, further ones are answered with status 503.

    Raises:  ConfigError if the application does not start; its log has the reason. Or for a certificate that
             cannot be used.
    """
    probe = ClusterProbe(name_servers, clock=LoopClock())
    pages = HealthPages(app, lambda: (probe.condition,))
    server = WebServer(pages, ready_line, requests_max=requests_max, tls_cert=tls_cert, tls_key=tls_key)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.end)
    scope = TaskScope("web server")
    scope.start("probe", probe.run())
    try:
        await server.serve(sockets=[listener])
    finally:
        await scope.close()
    if not server.started:
        raise ConfigError("the server did not start")


class WebServer(uvicorn.Server):
    """A server with bounded connections, whose signals are handled by the command, which ends with exit code
    0 then.
    """

    def __init__(
        self, app: ASGIApp, ready_line: str, *, requests_max: int, tls_cert: Path | None, tls_key: Path | None
    ) -> None:
        # Uvicorn answers with 503 when as many connections are open as may run requests.
        self._table = ConnectionTable(requests_max - 1, LoopClock())
        self._ready_line = ready_line
        self._context: ssl.SSLContext | None = None
        if tls_cert is not None:
            options = TlsOptions(mode=TlsMode.ENFORCING, cert_path=tls_cert, key_path=tls_key)
            acceptor = TlsAcceptor(options, disk=RealDisk(), clock=self._table.clock)
            acceptor.load()
            self._context = acceptor.context
        super().__init__(
            uvicorn.Config(
                app,
                http=cast("type[asyncio.Protocol]", self._accept),
                ws="none",
                log_config=None,
                log_level="error",  # its warnings are about requests, so strangers could fill the log
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=requests_max,
                timeout_graceful_shutdown=STOP_S_MAX,
            )
        )

    def _accept(self, **uvicorn: Any) -> asyncio.Protocol:
        """Returns the protocol of a new connection."""
        connection = WebConnection(self._table, **uvicorn)
        return (
            connection if self._context is None else WebTlsConnection(self._table, self._context, connection)
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        typer.echo(self._ready_line)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_PER_SWEEP == 0:
            self._table.sweep()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._table.close_waiting()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        """Ends the server; a second call closes open connections at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
