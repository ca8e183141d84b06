"""The frame of all pipeline commands: parameters made from an options class (`pipeline_command`), progress
reporters, metrics and report, and exit codes.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import MISSING, Field, dataclass, fields
from enum import Enum
from importlib.util import find_spec
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from rich.console import Console

from tandemmq.errors import ConfigError, TandemError, install_hint
from tandemmq.spark.pipelines.events import JsonReporter, Reporter, Reporters, ResultReporter, TextReporter
from tandemmq.spark.pipelines.options import PipelineOptions, flag


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


EXIT_REFUSED = 2

_SECRET = re.compile(
    r"^((?:--?[\w-]+=)?[\w.-]*(?:secret|password|token|access_?key)[\w.-]*)=.*$", re.IGNORECASE | re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """The reporting of one run: progress, report and metrics. Every pipeline has these options."""

    progress: Annotated[ProgressKind, flag("How to report progress.")] = ProgressKind.TEXT
    report: Annotated[Path | None, flag("Write an HTML report with plots at the end.", metavar="FILE")] = None
    metrics_port: Annotated[
        int | None, flag("Serve Prometheus metrics on this port; 0: a free port.", min=0, max=65_535)
    ] = None


T = TypeVar("T", bound=PipelineOptions)
Run = Callable[[T, Reporter], int]


def pipeline_command(app: typer.Typer, options_type: type[T]) -> Callable[[Run[T]], Run[T]]:
    """Adds the decorated function to `app` as a command with an option for each field of `options_type` and
    of `Watch`.

    The function gets the options and a reporter, and returns the exit code; its docstring is the help.
    """

    def add(run: Run[T]) -> Run[T]:
        def command(**given: Any) -> None:
            watch = _take_fields(Watch, given)
            run_pipeline(run.__name__, watch, lambda: _take_fields(options_type, given), run)

        parameters = [*_list_parameters(options_type), *_list_parameters(Watch)]
        command.__doc__ = run.__doc__
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        app.command(run.__name__)(command)
        return run

    return add


def _list_parameters(options_type: type) -> list[Parameter]:
    """Returns one parameter for each field, in the form in which a user types it: required ones first, those
    of every pipeline last.
    """
    hints = get_type_hints(options_type, include_extras=True)
    own = list(options_type.__annotations__)

    def rank(field: Field[Any]) -> tuple[bool, int]:
        return field.default is not MISSING, own.index(field.name) if field.name in own else len(own)

    parameters = []
    for field in sorted(fields(options_type), key=rank):
        kind, info, *typed = get_args(hints[field.name])
        default = Parameter.empty if field.default is MISSING else field.default
        if typed:
            kind, default, _ = typed[0]
        parameters.append(
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])
        )
    return parameters


def _take_fields(options_type: Any, given: dict[str, Any]) -> Any:
    """Returns the options of that class from the values of all parameters.

    Raises:  ConfigError or typer.BadParameter for a value that its parser or the class rejects.
    """
    hints = get_type_hints(options_type, include_extras=True)
    values = {}
    for field in fields(options_type):
        _, info, *typed = get_args(hints[field.name])
        value = given[field.name]
        if not typed:
            values[field.name] = value
        elif value and value != typed[0].default:
            # Until it builds the command, Typer keeps the first name of an option as the default.
            flag = info.default if isinstance(info.default, str) else f"--{field.name.replace('_', '-')}"
            values[field.name] = typed[0].parse(flag, value)
    return options_type(**values)


def run_pipeline(name: str, watch: Watch, parse: Callable[[], T], run: Run[T]) -> None:
    """Runs a pipeline with a reporter and exits with its exit code; 2 if it was refused."""
    with refusals(), ExitStack() as stack:
        options = parse()
        reporter = build_reporters(name, options.subject, watch, _render_command(sys.argv[1:]))
        stack.callback(reporter.close)
        code = run(options, reporter)
    raise typer.Exit(code)


@contextmanager
def refusals() -> Iterator[None]:
    """Exits with code 2 and the error if the block raises one of ours."""
    try:
        yield
    except TandemError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_REFUSED) from error


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
