"""What all pipeline commands have in common: how they are watched, and how they end."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import typer

from tandemmq.errors import TandemError
from tandemmq.spark.command_progress import ProgressKind, make_reporter
from tandemmq.spark.pipelines.events import Reporter, Reporters

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
