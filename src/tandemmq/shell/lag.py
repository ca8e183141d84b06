"""`tandemmq lag`: the progress of a group, once or repeatedly."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated

import typer

from tandemmq.admin.groups import show_progress
from tandemmq.admin.options import grouped, option
from tandemmq.admin.render import CommandAnswer
from tandemmq.manage.tools import Tools
from tandemmq.shell.positions import SECONDS
from tandemmq.shell.session import GROUP_NAME, AsJson, NameServers, run_tools


@grouped
def lag(
    group: Annotated[
        str, option("--group -g", "The consumer group.", show_default="the sums of all groups"), GROUP_NAME
    ] = "",
    namesrv: NameServers = "",
    topic: Annotated[str, option("--topic -t", "Only this topic.")] = "",
    max_lag: Annotated[
        int | None, option("--max-lag N", "Exit with 3 if a group has a lag above N.", min=0)
    ] = None,
    watch: Annotated[bool, option("--watch -w", "Repeat until Ctrl-C.")] = False,
    interval_s: Annotated[
        float, option("--interval", "The time between repetitions, with --watch: 2s, 1m."), SECONDS
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show the lag of a group, per queue; without --group, that of each group."""
    if topic and not group:
        raise typer.BadParameter("--topic also needs the group: --group")
    if watch and max_lag is not None:
        raise typer.BadParameter("--watch and --max-lag exclude each other: give only one")

    def work(tools: Tools) -> Awaitable[CommandAnswer]:
        return show_progress(tools, group, topic, lag_max=max_lag)

    run_tools(namesrv, work, as_json=as_json, interval_s=interval_s if watch else 0.0)
