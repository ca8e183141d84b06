"""What the commands of `tandemmq admin` share: their options, and how one of them is run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from tandemmq.admin.render import Answer, print_answer
from tandemmq.admin.targets import Tools, open_tools

NameServers = Annotated[
    str,
    typer.Option("-n", "--namesrvAddr", envvar="NAMESRV_ADDR", help="Name servers, separated by ;"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Address = Annotated[str, typer.Option("-b", "--brokerAddr", help="One broker.", metavar="HOST:PORT")]
Cluster = Annotated[str, typer.Option("-c", "--clusterName", help="The brokers of this cluster.")]


def run(
    name_servers: str, work: Callable[[Tools], Awaitable[Answer]], *, as_json: bool, needs_names: bool = True
) -> None:
    """Do the work with connections of its own, print its answer, exit with its code."""

    async def main() -> Answer:
        async with open_tools(name_servers if needs_names else "") as tools:
            return await work(tools)

    answer = asyncio.run(main())
    print_answer(answer, as_json=as_json)
    raise typer.Exit(answer.exit_code)


def demand_place(broker: str, cluster: str) -> None:
    """Raises typer.BadParameter unless exactly one of them is named."""
    if bool(broker) == bool(cluster):
        raise typer.BadParameter("name either a broker (-b) or a cluster (-c)")
