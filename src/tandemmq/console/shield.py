"""The layer around the application: host names, security headers, and paths whose parts stay apart."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from time import perf_counter
from typing import Final
from urllib.parse import quote, unquote

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""The headers of every answer; pages are never cached in addition."""


class Shield:
    """Refuses requests for foreign host names, adds the security headers, and reports the time that the
    server took (Server-Timing), which browsers show.

    Routes are matched with the encoded path: decoded, the page of a user named `x/delete` would be the
    deletion of user `x`. `Console` decodes each part.

    A page of another site whose name resolves to this address has that name in its Host header. Addresses
    cannot be rebound, so they are always accepted.
    """

    def __init__(self, app: ASGIApp, *, host_names: Sequence[str], is_secure: bool) -> None:
        self._app = app
        self._names = {name.lower() for name in ("localhost", *host_names)}
        self._headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
        if is_secure:
            self._headers.append((b"strict-transport-security", b"max-age=31536000"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        begun = perf_counter()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                took_ms = (perf_counter() - begun) * 1000
                message["headers"] = [
                    *message["headers"],
                    *self._headers,
                    (b"server-timing", b"page;dur=%.1f" % took_ms),
                    *([] if b"cache-control" in given else [(b"cache-control", b"no-store")]),
                ]
            await send(message)

        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) == 1 and self._is_known(hosts[0]):
            await self._app({**scope, "path": _encoded_path(scope)}, receive, send_with_headers)
            return
        text = "This host name is not served here; `tandemmq console --host-name NAME` adds one.\n"
        await PlainTextResponse(text, status_code=421)(scope, receive, send_with_headers)

    def _is_known(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        if not name or not port.isdecimal():
            name = host
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name.lower().rstrip(".") in self._names
        return True


def _encoded_path(scope: Scope) -> str:
    """Returns the path of a request with each part encoded in one way."""
    parts = scope["raw_path"].decode("latin-1").split("/")
    return "/".join(quote(unquote(part), safe=":") for part in parts)
