"""`tandemmq pipeline rollup`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandemmq.spark.command_options import (
    BatchRows,
    Master,
    MetricsPort,
    NameServers,
    Progress,
    Replica,
    ReportFile,
    SourceOptions,
    TriggerSeconds,
)
from tandemmq.spark.command_progress import ProgressKind, split_pairs
from tandemmq.spark.command_watch import Watch, run_pipeline
from tandemmq.spark.options import ReadFrom
from tandemmq.spark.pipelines.events import Reporter


def rollup(
    namesrv: NameServers,
    out: Annotated[Path, typer.Option(help="Directory of the table; made when missing.")],
    topic: Annotated[str, typer.Option(help="Topics, separated by commas.")] = "",
    topic_pattern: Annotated[str, typer.Option(help="All topics whose whole name matches.")] = "",
    once: Annotated[
        bool, typer.Option("--once/--continuous", help="Stop when everything there now is counted, or go on.")
    ] = False,
    read_from: Replica = ReadFrom.SUGGESTED,
    batch_rows: BatchRows = 1_000_000,
    trigger_seconds: TriggerSeconds = 10.0,
    option: SourceOptions = None,
    master: Master = "local[*]",
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Count messages, bytes and latencies per topic, tag and minute, each message exactly once.

    Ends after the current batch on SIGTERM or Ctrl-C, and goes on where it was when started again.
    """
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are only imported when a pipeline really runs.
        from tandemmq.spark.pipelines.rollup import RollupOptions, run_rollup

        options = RollupOptions(
            name_servers=namesrv,
            topic=topic,
            pattern=topic_pattern,
            out=out,
            master=master,
            is_continuous=not once,
            trigger_s=trigger_seconds,
            batch_records_max=batch_rows,
            source=(
                ("readFrom", read_from.value),
                *split_pairs(option, "--option"),
            ),
        )
        return run_rollup(options, reporter)

    run_pipeline("rollup", topic or topic_pattern, watch, work)
