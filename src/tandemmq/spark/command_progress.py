"""What the pipeline commands have in common: how progress is told, and how option texts are split."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import typer
from rich.console import Console

from tandemmq.errors import ConfigError
from tandemmq.spark.pipelines.events import JsonReporter, Reporter, SilentReporter, TextReporter


class ProgressKind(Enum):
    """How a pipeline tells its progress."""

    TEXT = "text"
    JSON = "json"
    NONE = "none"


def make_reporter(kind: ProgressKind) -> Reporter:
    """What tells progress on standard output."""
    if kind is ProgressKind.JSON:
        return JsonReporter(sys.stdout, sys.stderr)
    return TextReporter(Console()) if kind is ProgressKind.TEXT else SilentReporter()


def split_list(text: str) -> tuple[str, ...]:
    """The names between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def split_pairs(texts: Sequence[str] | None, option: str) -> tuple[tuple[str, str], ...]:
    """Names and values of `name=value`; none for None, which is what a repeatable option is without a value.

    Raises:  typer.BadParameter, which names the option.
    """
    return tuple(_split_pair(text, option) for text in texts or ())


def _split_pair(text: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise typer.BadParameter(f"expected name=value, got {text!r}", param_hint=option)
    return name.strip(), value


def read_text_option(option: str, text: str) -> str:
    """The text, or what the file behind an `@` holds."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text().strip()
    except OSError as error:
        raise ConfigError(f"{option}: {text[1:]}: {error.strerror}") from error


def parse_time(option: str, text: str) -> int | None:
    """Milliseconds; None for no text. A time without a zone is UTC.

    Raises:  ConfigError for what is neither a number nor a time.
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
