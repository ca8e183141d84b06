"""The parts that all pipeline commands share: their options and the parsing of them, progress reporters,
metrics and report, and exit codes.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from tandemmq.errors import ConfigError, TandemError, install_hint
from tandemmq.spark.options import ReadPreference
from tandemmq.spark.pipelines.events import JsonReporter, Reporter, Reporters, ResultReporter, TextReporter


class ProgressKind(Enum):
    """The format in which a pipeline reports its progress."""

    TEXT = "text"
    JSON = "json"
    NONE = "none"


def make_reporter(kind: ProgressKind) -> Reporter:
    """Returns a reporter that writes to standard output; with `none`, it writes only the results."""
    if kind is ProgressKind.JSON:
        return JsonReporter(sys.stdout, sys.stderr)
    return TextReporter(Console()) if kind is ProgressKind.TEXT else ResultReporter(sys.stdout, sys.stderr)


def split_list(text: str) -> tuple[str, ...]:
    """Returns the comma-separated names."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def split_pairs(texts: Sequence[str] | None, option: str) -> tuple[tuple[str, str], ...]:
    """Returns the names and values of `name=value` texts; an empty tuple for None, the value of an unused
    repeatable option.

    Raises:  typer.BadParameter, which names the option.
    """
    return tuple(_split_pair(text, option) for text in texts or ())


def _split_pair(text: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise typer.BadParameter(f"expected name=value, got {text!r}", param_hint=option)
    return name.strip(), value


def read_text_option(option: str, text: str) -> str:
    """Returns the text itself, or, after an `@`, the content of the named file."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text().strip()
    except OSError as error:
        raise ConfigError(f"{option}: {text[1:]}: {error.strerror}") from error


def parse_time(option: str, text: str) -> int | None:
    """Returns milliseconds; None for an empty text. A time without a zone is UTC.

    Raises:  ConfigError if the text is neither a number nor a time.
    """
    if not text:
        return None
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{option}: expected milliseconds or a time such as 2025-01-31T12:00:00, got {text!r}"
        ) from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


NameServers = Annotated[str, typer.Option("--namesrv", help="Name servers: host:port[;host:port].")]
Master = Annotated[str, typer.Option("--master", help="Spark master: local[*] or spark://host:port.")]
Progress = Annotated[ProgressKind, typer.Option("--progress", help="How to report progress.")]
ReportFile = Annotated[
    Path | None, typer.Option("--report", help="Write an HTML report with plots at the end.", metavar="FILE")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port", help="Serve Prometheus metrics on this port; 0: a free port.", min=0, max=65_535
    ),
]
EverySeconds = Annotated[
    float, typer.Option("--every-seconds", help="With --continuous: pause between rounds.", min=0.1)
]
Replica = Annotated[ReadPreference, typer.Option("--read-from", help="Replica to read from.")]
BatchRows = Annotated[int, typer.Option("--batch-rows", help="Largest number of messages per batch.", min=1)]
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
    """The reporting of one run: progress, report and metrics."""

    progress: ProgressKind = ProgressKind.TEXT
    report: Path | None = None
    metrics_port: int | None = None


def run_pipeline(name: str, subject: str, watch: Watch, work: Callable[[Reporter], int]) -> NoReturn:
    """Runs `work` with a reporter and exits with its exit code; 2 if it was refused."""
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
    """Returns progress, metrics and report as one reporter.

    Raises:  ConfigError if the metrics port cannot be bound, or matplotlib is missing for the report.
    """
    reporters: list[Reporter] = []
    if watch.report is not None and find_spec("matplotlib") is None:
        raise ConfigError(f"--report needs matplotlib: {install_hint('spark')}")
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
    """Returns the command line as it was typed, with secrets masked."""
    return shlex.join(_SECRET.sub(r"\1=...", text) for text in arguments)
