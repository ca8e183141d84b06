"""What all pipeline commands have in common: their options, how they are watched, and how they end."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from tandemmq.errors import TandemError
from tandemmq.spark.command_progress import ProgressKind, make_reporter
from tandemmq.spark.options import ReadFrom
from tandemmq.spark.pipelines.events import Reporter, Reporters

NameServers = Annotated[str, typer.Option("--namesrv", help="Name servers: host:port[;host:port].")]
Master = Annotated[str, typer.Option("--master", help="Spark master: local[*] or spark://host:port.")]
Progress = Annotated[ProgressKind, typer.Option("--progress", help="How progress is told.")]
ReportFile = Annotated[
    Path | None, typer.Option("--report", help="HTML report with plots, written at the end.", metavar="FILE")
]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", help="Serve Prometheus metrics there; 0: a free port.", min=0, max=65_535),
]
EverySeconds = Annotated[
    float, typer.Option("--every-seconds", help="With --continuous: pause between rounds.", min=0.1)
]
Replica = Annotated[ReadFrom, typer.Option("--read-from", help="Which replica is read.")]
BatchRows = Annotated[int, typer.Option("--batch-rows", help="At most so many messages per batch.", min=1)]
TriggerSeconds = Annotated[float, typer.Option("--trigger-seconds", help="Pause between batches.", min=0.0)]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option("--option", help="Any other option of the source, as name=value; repeatable."),
]
SinkOptions = Annotated[
    list[str] | None,
    typer.Option("--option", help="Any other option of the sink, as name=value; repeatable."),
]


EXIT_REFUSED = 2

_SECRET = re.compile(r"^([\w.-]*(?:secret|password|token|access_?key)[\w.-]*)=.*$", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """How one run is watched."""

    progress: ProgressKind = ProgressKind.TEXT
    report: Path | None = None
    metrics_port: int | None = None


def run_pipeline(name: str, subject: str, watch: Watch, work: Callable[[Reporter], int]) -> NoReturn:
    """Runs `work` with a reporter and ends the command with its exit code; 2 when it was refused."""
    code = EXIT_REFUSED
    reporter: Reporter | None = None
    try:
        reporter = build_reporters(name, subject, watch, _render_command(sys.argv[1:]))
        code = work(reporter)
    except TandemError as error:
        typer.echo(f"error: {error}", err=True)
    finally:
        if reporter is not None:
            reporter.close()
    raise typer.Exit(code)


def build_reporters(name: str, subject: str, watch: Watch, command: str) -> Reporter:
    """Progress, metrics and report as one reporter.

    Raises:  ConfigError for a port that cannot be had.
    """
    reporters: list[Reporter] = []
    if watch.metrics_port is not None:
        from tandemmq.spark.pipelines.meters import MetricsReporter

        metrics = MetricsReporter(name, watch.metrics_port)
        reporters.append(metrics)
        if not watch.metrics_port:
            typer.echo(f"metrics: http://localhost:{metrics.port}/metrics", err=True)
    if watch.report is not None:
        from tandemmq.spark.pipelines.report import ReportReporter

        title = f"{name.capitalize()} {subject}"
        reporters.append(ReportReporter(watch.report, title=title, command=command))
    return Reporters([make_reporter(watch.progress), *reporters])


def _render_command(arguments: Sequence[str]) -> str:
    """The command as it was given, without what is secret in it."""
    return shlex.join(_SECRET.sub(r"\1=...", text) for text in arguments)
