"""An assistant for tests: the SDK's client of a server in this process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp.client import Client

from tandemmq.manage.tools import Tools, open_tools
from tandemmq.mcp.server import build_server
from tandemmq.testing import Cluster


@asynccontextmanager
async def connect(cluster: Cluster, *, allows_changes: bool) -> AsyncIterator[Client]:
    """Opens a client of a server in this process."""
    async with open_tools(cluster.name_servers) as tools:
        server = build_server(tools, allows_changes=allows_changes)
        async with Client(server) as client:
            yield client


async def ask(cluster: Cluster, tool: str, /, allows_changes: bool = False, **arguments: Any) -> Any:
    """Returns the answer of a tool; the text of an error."""
    async with connect(cluster, allows_changes=allows_changes) as client:
        return await ask_client(client, tool, arguments)


async def read(tools: Tools, tool: str, /, pipelines: Path | None = None, **arguments: Any) -> Any:
    """Returns the answer of a tool over these connections; the text of an error."""
    async with Client(build_server(tools, pipelines=pipelines)) as client:
        return await ask_client(client, tool, arguments)


async def ask_client(client: Client, tool: str, arguments: dict[str, Any]) -> Any:
    """Returns the answer of a tool; the text of an error."""
    result = await client.call_tool(tool, arguments)
    if result.is_error:
        return result.content[0].text  # type: ignore[union-attr]
    assert json.loads(result.content[0].text) == result.structured_content  # type: ignore[union-attr]
    return result.structured_content
