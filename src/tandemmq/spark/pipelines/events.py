"""What a running pipeline tells: one value per event, and how it looks to programs and to people."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Protocol, TextIO, TypeAlias

from rich.console import Console
from rich.live import Live
from rich.text import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The query runs; `rows_total` is what the lake held already."""

    topic: str
    out: str
    rows_total: int
    bytes_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone:
    """A batch is committed and visible.

    `lag`: messages behind the ends of the queues, None when that is not known; `rate`: rows per second.
    """

    batch: int
    rows: int
    bytes: int
    rows_total: int
    bytes_total: int
    lag: int | None
    seconds: float
    rate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """The query failed for a reason that may pass and is started again after `pause_seconds`."""

    error: str
    pause_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The end: `done` (nothing left to read), `signal` or `error`."""

    reason: str
    rows_total: int
    bytes_total: int
    error: str = ""


Event: TypeAlias = Started | BatchDone | Restarted | Stopped

_NAMES: dict[type, str] = {Started: "started", BatchDone: "batch", Restarted: "restarted", Stopped: "stopped"}


class Reporter(Protocol):
    """Takes events as they happen."""

    def report(self, event: Event) -> None: ...

    def close(self) -> None: ...


class JsonReporter:
    """One JSON object per line, flushed at once; the key `event` names its kind.

    What ended the pipeline by force also goes to `errors` as a line for people.
    """

    def __init__(self, stream: TextIO, errors: TextIO) -> None:
        self._stream = stream
        self._errors = errors

    def report(self, event: Event) -> None:
        self._stream.write(json.dumps({"event": _NAMES[type(event)], **asdict(event)}) + "\n")
        self._stream.flush()
        if isinstance(event, Stopped) and event.error:
            self._errors.write(f"error: {event.error}\n")
            self._errors.flush()

    def close(self) -> None:
        """Nothing to close: the streams are the caller's."""


class SilentReporter:
    """Tells nothing."""

    def report(self, event: Event) -> None: ...

    def close(self) -> None: ...


class TextReporter:
    """One line that changes on a terminal; a line per event elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(Text("starting Spark"), console=console, refresh_per_second=8, transient=False)
        if console.is_terminal:
            self._live.start()

    def report(self, event: Event) -> None:
        line = render_event(event)
        if not self._console.is_terminal:
            self._console.print(line, highlight=False, soft_wrap=True)
        elif isinstance(event, Restarted):
            self._live.console.print(line, highlight=False)
        else:
            self._live.update(Text(line))

    def close(self) -> None:
        self._live.stop()


def render_event(event: Event) -> str:
    """The event as a line for people."""
    if isinstance(event, Started):
        return f"{event.topic} -> {event.out}: running, {event.rows_total:,} rows so far"
    if isinstance(event, BatchDone):
        lag = "?" if event.lag is None else f"{event.lag:,}"
        return (
            f"batch {event.batch}: {event.rows:,} rows, {render_bytes(event.bytes)}, {event.rate:,} rows/s, "
            f"lag {lag} | total {event.rows_total:,} rows, {render_bytes(event.bytes_total)}"
        )
    if isinstance(event, Restarted):
        return f"starting again in {event.pause_seconds:g} s: {event.error}"
    total = f"total {event.rows_total:,} rows, {render_bytes(event.bytes_total)}"
    if event.reason == "error":
        return f"stopped by an error: {event.error} | {total}"
    return f"stopped ({'everything is read' if event.reason == 'done' else 'asked to'}) | {total}"


def render_bytes(count: int) -> str:
    """`512 B`, `1.5 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
