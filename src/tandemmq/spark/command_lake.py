"""The commands over lakes: `tandemmq pipeline lake ...` (upkeep, no Spark), `rollup`, `history`, `audit`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from tandemmq.errors import ConfigError
from tandemmq.spark.command_watch import (
    BatchRows,
    EverySeconds,
    Master,
    MetricsPort,
    NameServers,
    Progress,
    ProgressKind,
    Replica,
    ReportFile,
    SourceOptions,
    TriggerSeconds,
    Watch,
    run_pipeline,
    split_list,
    split_pairs,
)
from tandemmq.spark.options import ReadFrom
from tandemmq.spark.pipelines.events import Reporter

app = typer.Typer(no_args_is_help=True, help="Look after a lake: parquet, delta or iceberg.")

Directory = Annotated[Path, typer.Argument(help="Directory of the lake.")]
_T = TypeVar("_T")


@app.command()
def compact(
    directory: Directory,
    target_mib: Annotated[int, typer.Option(help="About so many MiB per file at most.", min=1)] = 256,
) -> None:
    """Make fewer and larger files; readers see every row once at any time.

    A landing must not run meanwhile, except into a Delta table.
    """
    from tandemmq.spark.lake.upkeep import compact_lake

    before, after = _run(lambda: compact_lake(directory, target_bytes=target_mib << 20))
    typer.echo(f"{directory}: {before} files before, {after} now")


@app.command()
def expire(
    directory: Directory,
    days: Annotated[int, typer.Option(help="Keep the last so many days (UTC), and today.", min=1)],
) -> None:
    """Let rows go that were stored before the last days, and files that no log names."""
    from tandemmq.spark.lake.upkeep import expire_lake

    count = _run(lambda: expire_lake(directory, days))
    typer.echo(f"{directory}: {count} files are gone")


@app.command()
def check(directory: Directory) -> None:
    """Compare all files with what was committed; exit code 1 when something is missing."""
    from tandemmq.spark.lake.upkeep import check_lake

    state = _run(lambda: check_lake(directory))
    typer.echo(f"lake        {directory}")
    typer.echo(f"format      {state.kind.value}")
    typer.echo(f"written by  {state.owner or '-'}")
    typer.echo(f"rows        {state.rows:,}")
    typer.echo(
        f"files       {state.files:,}, {state.small_files:,} of them small; {state.size_bytes:,} bytes"
    )
    typer.echo(f"orphans     {state.orphans:,}")
    for fault in state.faults:
        typer.echo(f"fault: {fault}", err=True)
    raise typer.Exit(1 if state.faults else 0)


def _run(work: Callable[[], _T]) -> _T:
    try:
        return work()
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


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
