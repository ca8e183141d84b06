"""The HTTP server of a command: its listening socket, its ready line, and its end by a signal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import typer
import uvicorn
from starlette.types import ASGIApp

from tandemmq.errors import ConfigError
from tandemmq.remoting.options import parse_address

STOP_S_MAX: Final = 3
"""The longest wait for requests that are running when the server ends."""


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
    requests_max: int,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> None:
    """Serves the application until SIGTERM or SIGINT; prints the ready line once requests are answered. Above
    `requests_max` requests at once, further ones are answered with status 503.

    Raises:  ConfigError if the application does not start; its log has the reason.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=requests_max,
        timeout_graceful_shutdown=STOP_S_MAX,
        ssl_certfile=tls_cert,
        ssl_keyfile=None if tls_key is None else str(tls_key),
    )
    server = _Server(config, ready_line)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.end)
    await server.serve(sockets=[listener])
    if not server.started:
        raise ConfigError("the server did not start")


class _Server(uvicorn.Server):
    """A server whose signals are handled by the command, which ends with exit code 0 then."""

    def __init__(self, config: uvicorn.Config, ready_line: str) -> None:
        super().__init__(config)
        self._ready_line = ready_line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        typer.echo(self._ready_line)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        """Ends the server; a second call closes open connections at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
