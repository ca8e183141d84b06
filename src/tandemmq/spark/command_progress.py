"""What the pipeline commands have in common: how progress is told, and how option texts are split."""

from __future__ import annotations

import sys
from enum import Enum

import typer
from rich.console import Console

from tandemmq.spark.pipelines.events import JsonReporter, Reporter, SilentReporter, TextReporter


class ProgressKind(Enum):
    """How a pipeline tells its progress."""

    TEXT = "text"
    JSON = "json"
    NONE = "none"


def make_reporter(kind: ProgressKind) -> Reporter:
    if kind is ProgressKind.JSON:
        return JsonReporter(sys.stdout, sys.stderr)
    return TextReporter(Console()) if kind is ProgressKind.TEXT else SilentReporter()


def split_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def split_pair(text: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise typer.BadParameter(f"expected name=value, got {text!r}", param_hint=option)
    return name.strip(), value
