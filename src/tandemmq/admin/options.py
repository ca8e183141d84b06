"""What the commands of `tandemmq admin` share: their options, and the frame in which each of them runs.

A command is a function whose parameters are its options, and which returns its work:

    @command(app, "deleteUser")
    def delete_user(user: UserName, place: Place) -> Work:
        return lambda tools: access.remove_user(tools, user, place)
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, get_type_hints

import typer

from tandemmq.admin.render import Answer, print_answer
from tandemmq.admin.targets import Place, Tools, open_tools

Work = Callable[[Tools], Awaitable[Answer]]

NameServers = Annotated[
    str,
    typer.Option("-n", "--namesrvAddr", envvar="NAMESRV_ADDR", help="Name servers, separated by ;"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Address = Annotated[str, typer.Option("-b", "--brokerAddr", help="One broker.", metavar="HOST:PORT")]
Cluster = Annotated[str, typer.Option("-c", "--clusterName", help="The brokers of this cluster.")]
SettingKey = Annotated[str, typer.Option("-k", "--key", help="The setting.")]
NewValue = Annotated[str, typer.Option("-v", "--value", help="Its new value.")]


def command(
    app: typer.Typer, name: str, *, names: bool = True
) -> Callable[[Callable[..., Work]], Callable[..., Work]]:
    """Registers a function as the command `name`, with the options that all share behind its own.

    These are -n, --json, and for a parameter `place` -b and -c, of which exactly one must be named unless the
    parameter has a default. mqadmin takes -n everywhere; without `names`, or when `place` or a parameter
    `broker` is an address, name servers are not asked.
    """

    def register(function: Callable[..., Work]) -> Callable[..., Work]:
        hints = get_type_hints(function, include_extras=True)
        own = inspect.signature(function).parameters
        has_place = "place" in own
        options = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
            for parameter in own.values()
            if parameter.name != "place"
        ]
        options.append(_shared("namesrv", NameServers, ""))
        options += [_shared("broker", Address, ""), _shared("cluster", Cluster, "")] if has_place else []
        options.append(_shared("as_json", AsJson, False))

        def run_command(**values: Any) -> None:
            as_json, name_servers = values.pop("as_json"), values.pop("namesrv")
            address = values.get("broker", "")
            if has_place:
                place = Place(values.pop("broker"), values.pop("cluster"))
                if own["place"].default is inspect.Parameter.empty:
                    demand_place(place.address, place.cluster)
                values["place"] = place
            run(name_servers, function(**values), as_json=as_json, needs_names=names and not address)

        run_command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
        run_command.__annotations__ = {one.name: one.annotation for one in options}
        run_command.__doc__ = function.__doc__
        app.command(name)(run_command)
        return function

    return register


def _shared(name: str, kind: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def run(name_servers: str, work: Work, *, as_json: bool, needs_names: bool = True) -> None:
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
