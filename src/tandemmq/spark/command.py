"""`tandemmq pipeline ...`: the ready-made pipelines as commands.

`pipelines.options` holds the options of each. Each command imports its pipeline only when it is called, so
that `--help` is quick.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandemmq.spark.command_watch import pipeline_command, refusals
from tandemmq.spark.pipelines.events import Reporter
from tandemmq.spark.pipelines.options import (
    AuditOptions,
    DeadLetterOptions,
    HistoryOptions,
    LandingOptions,
    ReplayOptions,
    RollupOptions,
    ServeOptions,
)
from tandemmq.units import MIB

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Run a Spark pipeline over topics.")


@app.callback()
def pipeline() -> None:
    """Run a Spark pipeline over topics."""


@pipeline_command(app, LandingOptions)
def landing(options: LandingOptions, reporter: Reporter) -> int:
    """Land a topic in a directory of Parquet files, each message exactly once.

    On SIGTERM or Ctrl-C it stops after the current batch. The next start resumes there.
    """
    from tandemmq.spark.pipelines.landing import run_landing

    return run_landing(options, reporter)


@pipeline_command(app, ServeOptions)
def serve(options: ServeOptions, reporter: Reporter) -> int:
    """Land many topics in one session, a lake each, each message exactly once; new topics while it runs.

    On SIGTERM or Ctrl-C it stops after the running batches. The next start resumes there.
    """
    from tandemmq.spark.pipelines.serve import run_serve

    return run_serve(options, reporter)


Topics = Annotated[list[str] | None, typer.Option(help="A topic; repeatable.")]


@app.command()
def served(
    config: Annotated[Path, typer.Option(help="The YAML file of `serve`.")],
    pause: Topics = None,
    resume: Topics = None,
    redo: Annotated[
        list[str] | None, typer.Option(help="A topic to land anew from its start; its lake is moved aside.")
    ] = None,
    cancel_redo: Annotated[
        list[str] | None, typer.Option(help="A topic whose redo is withdrawn, if it has not begun.")
    ] = None,
) -> None:
    """Show the topics of a `serve` with state, lag, freshness and errors; pause, resume or redo some."""
    from tandemmq.spark.pipelines.serve_config import read_config
    from tandemmq.spark.pipelines.served import order, render_status

    with refusals():
        service = read_config(config)
        orders = {"pause": pause, "resume": resume, "redo": redo, "cancel-redo": cancel_redo}
        service.check_topics([topic for topics in orders.values() for topic in topics or ()])
        for what, topics in orders.items():
            for topic in topics or ():
                order(service.out, topic, what)
        for line in render_status(service.out):
            typer.echo(line)


@app.command()
def prepare() -> None:
    """Halve the processor time that Spark sessions need to start. Run it once per Java and Spark version on
    this machine.

    Writes an archive of Java's classes (about 180 MB) to this user's cache directory, in half a minute.
    Prints the SPARK_HOME with which other programs' sessions start their Python processes faster, too.
    """
    from tandemmq.spark.java import link_home, make_archive
    from tandemmq.spark.pipelines.runner import NO_LOG
    from tandemmq.spark.session import build_session

    with refusals():
        path = make_archive(
            lambda options: build_session("prepare", "local[2]", log_file=NO_LOG, java_options=options)
        )
        home = link_home()
    typer.echo(f"{path}: {path.stat().st_size // MIB} MiB; sessions of this user map it from now on")
    if home is not None:
        typer.echo(f"for sessions of other programs: export SPARK_HOME={home}")


@pipeline_command(app, AuditOptions)
def audit(options: AuditOptions, reporter: Reporter) -> int:
    """Prove that master, slaves, lakes and stores hold the same messages, each exactly once.

    Reports the first differences, and the loss in messages and seconds. Exit codes: 0 all equal, 1 not equal,
    2 refused to start, 3 stopped by a signal.
    """
    from tandemmq.spark.pipelines.audit import run_audit

    return run_audit(options, reporter)


@pipeline_command(app, ReplayOptions)
def replay(options: ReplayOptions, reporter: Reporter) -> int:
    """Send messages of a lake to a topic again, filtered by time and condition, at a bounded rate.

    After a signal, an error or a kill, the next start resumes with the lake's batch that was in progress.
    """
    from tandemmq.spark.pipelines.replay import run_replay

    return run_replay(options, reporter)


@pipeline_command(app, RollupOptions)
def rollup(options: RollupOptions, reporter: Reporter) -> int:
    """Count messages, bytes and latencies per topic, tag and minute, each message exactly once.

    On SIGTERM or Ctrl-C it stops after the current batch. The next start resumes there.
    """
    from tandemmq.spark.pipelines.rollup import run_rollup

    return run_rollup(options, reporter)


@pipeline_command(app, HistoryOptions)
def history(options: HistoryOptions, reporter: Reporter) -> int:
    """Export a lake and the messages that its topic received since, as Parquet files, each message once."""
    from tandemmq.spark.pipelines.history import run_history

    return run_history(options, reporter)


@pipeline_command(app, DeadLetterOptions)
def deadletters(options: DeadLetterOptions, reporter: Reporter) -> int:
    """Show the dead letters of a group by error and age, and resend selected ones to their topics."""
    from tandemmq.spark.pipelines.dead_letters import run_dead_letters

    return run_dead_letters(options, reporter)


# `tandemmq pipeline lake ...`: maintenance, without Spark.

lake_app = typer.Typer(no_args_is_help=True, help="Maintain a lake: parquet, delta or iceberg.")

Directory = Annotated[Path, typer.Argument(help="Directory of the lake.")]


@lake_app.command()
def compact(
    directory: Directory,
    target_mib: Annotated[
        int, typer.Option(help="Approximate size of the merged files, in MiB.", min=1)
    ] = 256,
) -> None:
    """Merge small files into fewer, larger ones; readers see every row exactly once at all times.

    No landing may run meanwhile, except into a Delta table.
    """
    from tandemmq.spark.lake.upkeep import compact_lake

    with refusals():
        before, after = compact_lake(directory, target_bytes=target_mib << 20)
    typer.echo(f"{directory}: {before} files before, {after} now")


@lake_app.command()
def expire(
    directory: Directory,
    days: Annotated[int, typer.Option(help="Keep the last N days (UTC), and today.", min=1)],
) -> None:
    """Delete rows older than --days, and files that belong to no batch or table version."""
    from tandemmq.spark.lake.upkeep import expire_lake

    with refusals():
        count = expire_lake(directory, days)
    typer.echo(f"{directory}: deleted {count} files")


@lake_app.command()
def check(directory: Directory) -> None:
    """Compare all files with the committed batches; exit code 1 if something is missing."""
    from tandemmq.spark.lake.check import check_lake

    with refusals():
        state = check_lake(directory)
    small = f"{state.small_files:,} of them small"
    for name, fact in (
        ("lake", directory),
        ("format", state.kind),
        ("written by", state.owner or "-"),
        ("rows", f"{state.rows:,}"),
        ("files", f"{state.files:,}, {small}; {state.size_bytes:,} bytes"),
        ("orphans", f"{state.orphans:,}"),
    ):
        typer.echo(f"{name:12}{fact}")
    for fault in state.faults:
        typer.echo(f"fault: {fault}", err=True)
    raise typer.Exit(1 if state.faults else 0)


app.add_typer(lake_app, name="lake")
