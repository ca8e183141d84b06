"""`tandemmq pipeline deadletters`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandemmq.spark.command_options import (
    EverySeconds,
    Master,
    MetricsPort,
    NameServers,
    Progress,
    ReportFile,
    SinkOptions,
)
from tandemmq.spark.command_progress import ProgressKind, parse_time, split_pairs
from tandemmq.spark.command_watch import Watch, run_pipeline
from tandemmq.spark.pipelines.events import Reporter


def deadletters(
    namesrv: NameServers,
    group: Annotated[str, typer.Option(help="The consumer group whose dead letters are meant.")],
    from_time: Annotated[
        str, typer.Option(help="They died at or after: milliseconds, or 2025-01-31T12:00:00 (UTC).")
    ] = "",
    until_time: Annotated[str, typer.Option(help="They died before; as above.")] = "",
    id: Annotated[
        list[str] | None, typer.Option("--id", help="Of the dead letter or its message; repeatable.")
    ] = None,
    key: Annotated[list[str] | None, typer.Option(help="One of its keys; repeatable.")] = None,
    where: Annotated[
        str, typer.Option(help="A condition in SQL; error, age, origin and originId are columns too.")
    ] = "",
    error_property: Annotated[
        str, typer.Option(help="The property in which consumers say why they gave up.")
    ] = "error",
    show: Annotated[int, typer.Option(help="Show so many of the oldest.", min=0)] = 20,
    resend: Annotated[
        bool, typer.Option("--resend", help="Send the chosen ones to their topics again, each once.")
    ] = False,
    to: Annotated[str, typer.Option(help="Send them to this topic instead of their own.")] = "",
    state: Annotated[
        Path | None, typer.Option(help="File that says what was sent again; needed with --resend.")
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous/--once", help="Again and again, or once.")
    ] = False,
    every_seconds: EverySeconds = 60.0,
    option: SinkOptions = None,
    source_option: Annotated[
        list[str] | None, typer.Option(help="Any option of the source, as name=value; repeatable.")
    ] = None,
    master: Master = "local[*]",
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Show the dead letters of a group by error and age, and send chosen ones to their topics again."""
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are only imported when a pipeline really runs.
        from tandemmq.spark.pipelines.dead_letters import DeadLetterOptions, run_dead_letters

        options = DeadLetterOptions(
            name_servers=namesrv,
            group=group,
            begin_ms=parse_time("--from-time", from_time),
            end_ms=parse_time("--until-time", until_time),
            ids=tuple(id or ()),
            keys=tuple(key or ()),
            where=where,
            error_property=error_property,
            shown=show,
            resend=resend,
            to_topic=to,
            state=state,
            every_s=every_seconds if continuous else None,
            master=master,
            source=split_pairs(source_option, "--source-option"),
            sink=split_pairs(option, "--option"),
        )
        return run_dead_letters(options, reporter)

    run_pipeline("deadletters", group, watch, work)
