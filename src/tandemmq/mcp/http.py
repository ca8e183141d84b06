"""The MCP server over streamable HTTP: a bearer token for every request, and checked Host and Origin headers.

Invariants: a request without the token reaches nothing but the pages of health, whatever else it carries.
            A page of a browser cannot use the server through a name that resolves to a loopback address: its
            Host and Origin headers must name this server.

At a bound: REQUESTS_MAX requests run at once; further ones are answered with status 503.
"""

from __future__ import annotations

import contextlib
import hmac
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mcp.server.mcpserver import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tandemmq.errors import ConfigError
from tandemmq.remoting.options import is_loopback, parse_address, render_address
from tandemmq.shell.web_server import listen, serve_app

TOKEN_VARIABLE: Final = "TANDEMMQ_MCP_TOKEN"
TOKEN_CHARS_MIN: Final = 20
REQUESTS_MAX: Final = 32
REQUEST_BYTES_MAX: Final = 1 << 20
PATH: Final = "/mcp"


@dataclass(frozen=True, slots=True)
class McpHttpOptions:
    """The address and the protection of the HTTP server; `names` are further host names of this server."""

    listen: str
    token: str
    names: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if len(self.token) < TOKEN_CHARS_MIN:
            raise ConfigError(
                f"HTTP needs a bearer token of at least {TOKEN_CHARS_MIN} characters, in {TOKEN_VARIABLE} or"
                " in the file of --token-file; `openssl rand -hex 32` makes one"
            )
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--tls-cert and --tls-key must be given together")
        if not is_loopback(self.host) and self.certificate is None:
            raise ConfigError(
                f"{self.host} is reachable from other machines, which would see the token: give --tls-cert"
                " and --tls-key, or listen on 127.0.0.1 behind a proxy that ends TLS"
            )

    @property
    def host(self) -> str:
        """The host on which the server listens."""
        return parse_address(self.listen)[0]

    @property
    def scheme(self) -> str:
        """The scheme of the server's URL."""
        return "http" if self.certificate is None else "https"


def read_token(path: Path | None) -> str:
    """Returns the token of the file, else that of the environment, else an empty text.

    Raises:  ConfigError for a file that cannot be read.
    """
    if path is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip()
    try:
        return path.read_text().strip()
    except OSError as error:
        raise ConfigError(f"the token file {path} cannot be read: {error.strerror}") from None


class TokenGuard:
    """Passes HTTP requests that carry the bearer token to the application; others are answered with 401."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one connection of the ASGI server."""
        if scope["type"] == "http":
            given = Headers(scope=scope).get("authorization", "").encode()
            if not hmac.compare_digest(given, self._expected):
                refusal = PlainTextResponse(
                    "a bearer token is needed\n", 401, {"WWW-Authenticate": 'Bearer realm="tandemmq"'}
                )
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def build_app(server: MCPServer[Any], options: McpHttpOptions, port: int) -> ASGIApp:
    """Returns the ASGI application, for the port on which it is served."""
    names = {"localhost", "127.0.0.1", "::1", options.host, *options.names}
    hosts = sorted({*(render_address((name, port)) for name in names), *options.names})
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        # No session is kept between requests, so there is nothing to bound and nothing to steal.
        stateless_http=True,
        json_response=True,
        max_request_body_size=REQUEST_BYTES_MAX,
        transport_security=TransportSecuritySettings(
            allowed_hosts=hosts, allowed_origins=[f"{options.scheme}://{host}" for host in hosts]
        ),
    )
    return TokenGuard(app, options.token)


async def serve_http(server: MCPServer[Any], options: McpHttpOptions, name_servers: str) -> None:
    """Serves requests until SIGINT or SIGTERM; ready while a name server answers.

    Raises:  ConfigError when the address cannot be used.
    """
    with contextlib.closing(listen(options.listen)) as listener:
        port = int(listener.getsockname()[1])
        await serve_app(
            build_app(server, options, port),
            listener,
            f"MCP server ready on {options.scheme}://{render_address((options.host, port))}{PATH}",
            name_servers=name_servers,
            requests_max=REQUESTS_MAX,
            tls_cert=options.certificate,
            tls_key=options.key,
        )
