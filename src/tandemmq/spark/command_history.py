"""`tandemmq pipeline history`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandemmq.spark.command_options import (
    Master,
    MetricsPort,
    NameServers,
    Progress,
    ReportFile,
    SourceOptions,
)
from tandemmq.spark.command_progress import ProgressKind, split_list, split_pairs
from tandemmq.spark.command_watch import Watch, run_pipeline
from tandemmq.spark.pipelines.events import Reporter


def history(
    lake: Annotated[Path, typer.Option(help="The lake that a landing wrote, or writes.")],
    namesrv: NameServers,
    out: Annotated[Path, typer.Option(help="Directory of the Parquet files; must not exist.")],
    topic: Annotated[str, typer.Option(help="Topics of the lake, with commas; all by default.")] = "",
    where: Annotated[str, typer.Option(help="A condition in SQL over the columns.")] = "",
    columns: Annotated[str, typer.Option(help="Columns to write, with commas.")] = "",
    checkpoint: Annotated[
        Path | None, typer.Option(help="The landing's checkpoint; default LAKE/_checkpoint.")
    ] = None,
    option: SourceOptions = None,
    master: Master = "local[*]",
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Write a lake and what its topic got since to Parquet files, each message once."""
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are only imported when a pipeline really runs.
        from tandemmq.spark.pipelines.history import HistoryOptions, run_history

        options = HistoryOptions(
            lake=lake,
            name_servers=namesrv,
            out=out,
            topic=topic,
            where=where,
            columns=split_list(columns),
            checkpoint=checkpoint,
            master=master,
            source=split_pairs(option, "--option"),
        )
        return run_history(options, reporter)

    run_pipeline("history", str(lake), watch, work)
