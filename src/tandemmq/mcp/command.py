"""`tandemmq mcp`: serves the cluster's tools to an AI assistant, over stdio or streamable HTTP."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from tandemmq.admin.options import option
from tandemmq.manage.tools import open_tools
from tandemmq.mcp.http import McpHttpOptions, read_token, serve_http
from tandemmq.mcp.server import build_server
from tandemmq.shell.session import NameServers, Pipelines, explained_errors, find_name_servers
from tandemmq.telemetry.log_lines import configure_logging


def mcp(
    namesrv: NameServers = "",
    allow_changes: Annotated[
        bool, option("--allow-changes", "Include tools that change the cluster, each with a confirmation.")
    ] = False,
    pipelines: Pipelines = None,
    listen: Annotated[
        str,
        option("--listen HOST:PORT", "Serve streamable HTTP here instead of stdio; port 0 picks a free one."),
    ] = "",
    token_file: Annotated[
        Path | None,
        option(
            "--token-file", "With --listen: a file with the bearer token.", show_default="$TANDEMMQ_MCP_TOKEN"
        ),
    ] = None,
    host_name: Annotated[
        list[str] | None,
        option("--host-name", "With --listen: another host name of this server; repeatable."),
    ] = None,
    tls_cert: Annotated[
        Path | None, option("--tls-cert", "With --listen: the certificate chain, as PEM.")
    ] = None,
    tls_key: Annotated[Path | None, option("--tls-key", "With --listen: the private key, as PEM.")] = None,
) -> None:
    """Serve the cluster's state, and changes if allowed, as tools for AI assistants.

    Without --listen, an assistant starts the command and talks to it over stdin and stdout. Requests are
    signed as those of the other commands: with $ROCKETMQ_HOME/conf/tools.yml.
    """
    with explained_errors():
        options = None
        if listen:
            names = tuple(host_name or ())
            options = McpHttpOptions(listen, read_token(token_file), names, tls_cert, tls_key)
        elif token_file or host_name or tls_cert or tls_key:
            raise typer.BadParameter("--token-file, --host-name, --tls-cert and --tls-key need --listen")
        # Before the SDK configures its own handler, which leaves out the arguments of changes.
        configure_logging("WARNING")
        for number in (signal.SIGINT, signal.SIGTERM):
            # The thread that reads stdin cannot be interrupted, and nothing is left to write at the end.
            signal.signal(number, signal.SIG_DFL)
        name_servers = find_name_servers(namesrv)
        asyncio.run(_serve(name_servers, options, allows_changes=allow_changes, pipelines=pipelines))


async def _serve(
    name_servers: str, options: McpHttpOptions | None, *, allows_changes: bool, pipelines: Path | None
) -> None:
    async with open_tools(name_servers) as tools:
        server = build_server(tools, allows_changes=allows_changes, pipelines=pipelines)
        if options is None:
            await server.run_stdio_async()
            return
        await serve_http(server, options, name_servers)
