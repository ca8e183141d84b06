"""/health/live and /health/ready of the web console and of the MCP server over HTTP."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tandemmq.console.sessions import hash_password
from tandemmq.errors import NotPermitted
from tandemmq.runtime.machine import LoopClock
from tandemmq.shell import web_health
from tandemmq.shell.web_health import ClusterProbe
from tandemmq.testing import Cluster
from waits import PATIENCE_S, until

ASKS_OFTEN = """
from tandemmq.__main__ import main
from tandemmq.shell import web_health
web_health.PERIOD_S = 0.2
main()
"""
"""The command line, whose servers ask the name servers every 0.2 s."""
TOKEN = "a-token-of-thirty-two-characters"
READY = {"status": "ready", "conditions": [{"name": "cluster", "holds": True}]}
REASON = "no name server answers"


@asynccontextmanager
async def serving(*command: str) -> AsyncIterator[httpx.AsyncClient]:
    """Runs the command on a free port; the client sends the name of another host."""
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ASKS_OFTEN, *command, "--listen", "127.0.0.1:0"),
        env={**os.environ, "TANDEMMQ_MCP_TOKEN": TOKEN},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert server.stdout is not None
        line = (await asyncio.wait_for(server.stdout.readline(), PATIENCE_S)).decode()
        port = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert port is not None, line
        base, headers = f"http://127.0.0.1:{port[1]}", {"Host": "10.0.0.7:8080"}
        async with httpx.AsyncClient(base_url=base, headers=headers, timeout=PATIENCE_S) as client:
            yield client
    finally:
        server.terminate()
        assert await server.wait() == 0


@pytest.mark.parametrize("command", ["console", "mcp"])
async def test_health_is_shown_without_log_in_and_follows_the_name_server(
    command: str, tmp_path: Path
) -> None:
    more: tuple[str, ...] = ()
    if command == "console":
        passwords = tmp_path / "passwords"
        passwords.write_text(f"alice:viewer:{hash_password('secret')}\n")
        more = ("--password-file", str(passwords))
    async with Cluster() as cluster, serving(command, "-n", cluster.name_servers, *more) as client:

        async def is_ready() -> bool:
            answer = await client.get("/health/ready")
            return answer.status_code == 200

        await until(is_ready, "a name server has answered")
        answer = await client.get("/health/ready")
        assert (answer.json(), answer.headers["cache-control"]) == (READY, "no-store")
        assert answer.headers["content-type"] == "application/json"
        assert (await client.head("/health/ready")).status_code == 200
        live = await client.get("/health/live")
        assert (live.status_code, live.json()) == (200, {"status": "live"})
        assert (await client.post("/health/live")).status_code >= 400
        refused = await client.get("/" if command == "console" else "/mcp")
        assert refused.status_code in (303, 401), "all other paths need a log-in or the token"
        await cluster.close()

        async def is_unready() -> bool:
            return (await client.get("/health/ready")).status_code == 503

        await until(is_unready, "the missing name server is noticed")
        failed = {"name": "cluster", "holds": False, "reason": REASON}
        assert (await client.get("/health/ready")).json() == {"status": "not ready", "conditions": [failed]}
        assert (await client.get("/health/live")).status_code == 200


async def test_a_refusal_of_the_name_server_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def refuse(*_: object) -> AsyncIterator[None]:
        raise NotPermitted("no signature")
        yield

    probe = ClusterProbe("127.0.0.1:1", clock=LoopClock())
    assert await probe._find_fault() == REASON
    monkeypatch.setattr(web_health, "open_tools", refuse)
    assert await probe._find_fault() == ""
