"""The pages /health/live and /health/ready of the HTTP servers of commands: `console` and `mcp --listen`.

They are answered before the checks of the application, so they need no log-in, no token and no known host
name. They therefore reveal only the names of conditions, and reasons without addresses.
Strategy: a probe asks the name servers periodically, so that a request of a page reaches no other server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tandemmq.errors import NotPermitted, TandemError
from tandemmq.manage.tools import UNSIGNED, open_tools
from tandemmq.remoting.health import Condition, Conditions, live_page, ready_page
from tandemmq.remoting.http import HttpAnswer
from tandemmq.runtime.ports import Clock

PERIOD_S: Final = 5.0
ANSWER_S: Final = 2.0


class ClusterProbe:
    """The newest answer of the name servers. `run` is a task of the server."""

    def __init__(self, name_servers: str, *, clock: Clock) -> None:
        self._name_servers = name_servers
        self._clock = clock
        self.condition = Condition("cluster", "no name server has answered yet")

    async def run(self) -> None:
        """Asks every `PERIOD_S`. Never returns."""
        while True:
            self.condition = Condition("cluster", await self._find_fault())
            await self._clock.sleep(PERIOD_S)

    async def _find_fault(self) -> str:
        try:
            async with asyncio.timeout(ANSWER_S), open_tools(self._name_servers, UNSIGNED) as tools:
                await tools.cluster_admin.cluster_info()
        except NotPermitted:  # the probe is unsigned, and the refusal is an answer
            return ""
        except (TandemError, OSError):  # TimeoutError is an OSError
            return "no name server answers"
        return ""


class HealthPages:
    """Answers the two pages, and passes all other requests to the application."""

    def __init__(self, app: ASGIApp, read_ready: Conditions) -> None:
        self._app = app
        self._pages: dict[str, Callable[[], HttpAnswer]] = {
            "/health/live": live_page,
            "/health/ready": lambda: ready_page(read_ready()),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request of the ASGI server."""
        page = None
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            page = self._pages.get(scope["path"])
        if page is None:
            await self._app(scope, receive, send)
            return
        answer = page()
        response = Response(
            answer.body, answer.status, {"Cache-Control": "no-store"}, media_type=answer.content_type
        )
        await response(scope, receive, send)
