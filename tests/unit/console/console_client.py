"""A browser for tests: the console's application and an HTTP client on the test's event loop."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tandemmq.console.app import build_app
from tandemmq.console.command import ConsoleOptions, make_frame
from tandemmq.console.pages import ALL
from tandemmq.console.view import Action, Frame, Page

PORT = 8088


class Browser:
    """One browser with its cookies."""

    def __init__(self, client: httpx.AsyncClient, frame: Frame) -> None:
        self.client = client
        self.frame = frame

    async def get(self, path: str, **headers: str) -> httpx.Response:
        """Requests a page without following redirects."""
        return await self.client.get(path, headers=headers)

    async def csrf(self, path: str = "/login") -> str:
        """Returns the token of this browser's session."""
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', (await self.get(path)).text)
        assert found is not None
        return found[1]

    async def post(self, path: str, fields: Mapping[str, str], **headers: str) -> httpx.Response:
        """Sends a form with the token of the session."""
        return await self.client.post(path, data={"csrf": await self.csrf(), **fields}, headers=headers)

    async def log_in(self, name: str, secret: str, **fields: str) -> httpx.Response:
        return await self.post("/login", {"name": name, "secret": secret, **fields})


@asynccontextmanager
async def open_browser(
    name_servers: str, more: Sequence[Page | Action] = (), **options: Any
) -> AsyncIterator[Browser]:
    """Runs the console of a cluster with these options, and with further pages."""
    given = ConsoleOptions(**options)
    frame = make_frame(name_servers, given)
    frame.pages = [*frame.pages, *(one for one in more if isinstance(one, Page))]
    actions = [one for one in (*ALL, *more) if isinstance(one, Action)]
    is_secure = given.tls_cert is not None
    app = build_app(frame, actions, port=PORT, is_secure=is_secure, host_names=list(given.host_name or ()))
    base = f"{'https' if is_secure else 'http'}://127.0.0.1:{PORT}"
    await frame.sessions.start()
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 50000))
    try:
        async with httpx.AsyncClient(transport=transport, base_url=base) as client:
            yield Browser(client, frame)
    finally:
        await frame.sessions.close()
        frame.audit.close()
