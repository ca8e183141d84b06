"""`tandemmq pipeline audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandemmq.spark.command_options import (
    EverySeconds,
    Master,
    MetricsPort,
    Progress,
    ReportFile,
    SourceOptions,
)
from tandemmq.spark.command_progress import ProgressKind, split_pairs
from tandemmq.spark.command_watch import Watch, run_pipeline
from tandemmq.spark.pipelines.events import Reporter


def audit(
    topic: Annotated[str, typer.Option(help="The topic to audit; several with commas.")],
    namesrv: Annotated[
        str, typer.Option(help="Name servers: host:port[;host:port]; compares all replicas.")
    ] = "",
    lake: Annotated[list[Path] | None, typer.Option(help="A lake that a landing wrote; repeatable.")] = None,
    store: Annotated[
        list[str] | None, typer.Option(help="The files of a store, as BROKER=DIRECTORY; repeatable.")
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous/--once", help="Audit again and again, or once.")
    ] = False,
    every_seconds: EverySeconds = 60.0,
    option: SourceOptions = None,
    master: Master = "local[*]",
    piece_size: Annotated[
        int, typer.Option(help="Offsets of a queue that are folded into one digest.", min=1)
    ] = 100_000,
    settle_seconds: Annotated[
        float, typer.Option(help="How long slaves may take to reach the master's present end.", min=0.0)
    ] = 10.0,
    repeated_keys: Annotated[
        bool, typer.Option(help="Count messages that producers sent more than once.")
    ] = True,
    spark_log: Annotated[Path | None, typer.Option(help="Spark's own log; none by default.")] = None,
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Prove that master, slaves, lakes and stores hold the same messages, each exactly once.

    Names the first differences and the loss in messages and seconds. Exit codes: 0 all equal, 1 not,
    2 refused, 3 stopped by a signal.
    """
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are only imported when a pipeline really runs.
        from tandemmq.spark.pipelines.audit import AuditOptions, run_audit

        stores = split_pairs(store, "--store")
        options = AuditOptions(
            topic=topic,
            name_servers=namesrv,
            lakes=tuple(lake or ()),
            stores=tuple((broker, Path(path)) for broker, path in stores),
            master=master,
            piece_size=piece_size,
            settle_s=settle_seconds,
            count_repeated_keys=repeated_keys,
            every_s=every_seconds if continuous else None,
            source=split_pairs(option, "--option"),
            spark_log=spark_log,
        )
        return run_audit(options, reporter)

    run_pipeline("audit", topic, watch, work)
