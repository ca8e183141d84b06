"""`tandemmq pipeline replay`."""

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


def replay(
    lake: Annotated[Path, typer.Option(help="The lake that a landing wrote.")],
    namesrv: NameServers,
    to: Annotated[str, typer.Option(help="The topic that gets the messages.")],
    from_time: Annotated[
        str, typer.Option(help="Store time of the first message: milliseconds, or 2025-01-31T12:00:00 (UTC).")
    ] = "",
    until_time: Annotated[str, typer.Option(help="Store time of the end, exclusive; as above.")] = "",
    where: Annotated[str, typer.Option(help="A condition in SQL over the lake's columns.")] = "",
    rate: Annotated[
        int | None, typer.Option(help="At most about so many messages per second.", min=1)
    ] = None,
    keep_keys: Annotated[
        bool, typer.Option("--keep-keys", help="Keep the unique keys instead of making new ones.")
    ] = False,
    keep_queues: Annotated[
        bool, typer.Option("--keep-queues", help="Send each message to the queue number that it had.")
    ] = False,
    state: Annotated[
        Path | None, typer.Option(help="What was done; default LAKE/_tandemmq/replay-TOPIC.json.")
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous/--once", help="Go on with what is landed meanwhile, or end.")
    ] = False,
    every_seconds: EverySeconds = 5.0,
    master: Master = "local[*]",
    option: SinkOptions = None,
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Send messages of a lake to a topic again, by time and filter, at a bounded rate.

    Started again after a signal, an error or a kill, it goes on with the lake's batch at which it was.
    """
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are only imported when a pipeline really runs.
        from tandemmq.spark.pipelines.replay import Keys, ReplayOptions, run_replay

        options = ReplayOptions(
            lake=lake,
            name_servers=namesrv,
            to_topic=to,
            begin_ms=parse_time("--from-time", from_time),
            end_ms=parse_time("--until-time", until_time),
            where=where,
            rate=rate,
            keys=Keys.KEEP if keep_keys else Keys.NEW,
            keep_queues=keep_queues,
            state=state,
            follow_every_s=every_seconds if continuous else None,
            master=master,
            sink=split_pairs(option, "--option"),
        )
        return run_replay(options, reporter)

    run_pipeline("replay", f"{lake} to {to}", watch, work)
