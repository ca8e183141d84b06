"""`tandemmq topics`, `groups` and `lag`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from tandemmq.admin import groups as group_tools
from tandemmq.admin.options import repeat
from tandemmq.admin.render import CommandAnswer, Table, print_answer
from tandemmq.errors import TandemError
from tandemmq.manage.tools import Tools, open_tools
from tandemmq.manage.topics import TopicKind, system_names, topic_kind
from tandemmq.shell.session import AsJson, NameServers, explain, find_name_servers, run


def topics(
    namesrv: NameServers = "",
    all_topics: Annotated[
        bool, typer.Option("--all", help="Include system, retry and dead-letter topics.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List topics with their queues and message counts."""

    async def work(tools: Tools) -> CommandAnswer:
        table = Table("topics", ("topic", "queues", "messages", "brokers"))
        info = await tools.cluster_admin.cluster_info()
        system = system_names(info)
        for name in await tools.cluster_admin.topics():
            if not all_topics and topic_kind(name, system) is not TopicKind.USER:
                continue
            try:
                ends = await tools.cluster_admin.topic_offsets(name)
            except TandemError as error:
                table.rows.append((name, None, None, str(error)))
                continue
            brokers = sorted({queue.broker_name for queue in ends})
            if all_topics or ends:
                count = sum(one.count for one in ends.values())
                table.rows.append((name, len(ends), count, " ".join(brokers)))
        return CommandAnswer(
            [table], [] if table.rows else ["no topic yet: `echo hello | tandemmq produce demo`"]
        )

    _show(namesrv, work, as_json=as_json)


def groups(namesrv: NameServers = "", as_json: AsJson = False) -> None:
    """List consumer groups with their members and their lag."""
    _show(namesrv, lambda tools: group_tools.show_progress(tools, "", ""), as_json=as_json)


def lag(
    group: Annotated[str, typer.Option("--group", "-g", help="The consumer group.")],
    namesrv: NameServers = "",
    topic: Annotated[str, typer.Option("--topic", "-t", help="Only this topic.")] = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[
        float,
        typer.Option("--interval", help="Seconds between repetitions, with --watch.", min=0.1, max=3600),
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show the lag of a group, per queue."""

    def work(tools: Tools) -> Awaitable[CommandAnswer]:
        return group_tools.show_progress(tools, group, topic)

    if not watch:
        _show(namesrv, work, as_json=as_json)
    servers = find_name_servers(namesrv)

    async def looks() -> int:
        async with open_tools(servers) as tools:
            await repeat(tools, work, interval, as_json=as_json, tell=lambda error: str(explain(error)))

    run(looks)


def _show(namesrv: str, work: Callable[[Tools], Awaitable[CommandAnswer]], *, as_json: bool) -> None:
    servers = find_name_servers(namesrv)

    async def main() -> int:
        async with open_tools(servers) as tools:
            answer = await work(tools)
        print_answer(answer, as_json=as_json)
        return answer.exit_code

    run(main)
