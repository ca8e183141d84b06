"""The events of a running pipeline: one value per event, with a form for programs and one for people; their
receivers (`Reporter`); and the tables and plots of its report (`ReportTable`, `LineChart`, `BarChart`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

TICK_PAUSE_S = 10.0


class Event(Protocol):
    """The type that reporters accept: a frozen dataclass with a name for programs and a line for people."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    kind: ClassVar[str]
    """The key `event` of the JSON line."""
    is_lasting: ClassVar[bool] = False
    """True if its line stays on a terminal, and among the remarks of a report."""
    is_tick: ClassVar[bool] = False
    """True for a repeated progress event, of which an occasional line is enough."""
    is_result: ClassVar[bool] = False
    """True if the event is part of the command's result, which is printed even without progress."""
    is_exhibit: ClassVar[bool] = False
    """True if only a report shows the event."""
    table: ClassVar[str] = ""
    """The title of the report table to which the event's fields are added as a row; empty for none."""

    @property
    def final_error(self) -> str:
        """The error that ended the pipeline; also written to standard error."""
        return ""

    def render(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Delivered rows and their bytes, of one batch or in total; `bad`: bad records."""

    rows: int
    size_bytes: int
    bad: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(Event):
    """The query runs; `rows_total` is the number of rows delivered by earlier runs."""

    kind = "started"

    topic: str
    out: str
    rows_total: int
    bytes_total: int

    def render(self) -> str:
        return f"{self.topic} -> {self.out}: running, {self.rows_total:,} rows so far"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDone(Event):
    """A batch is committed and visible.

    `bad`: rows in `_bad_records`, which the other numbers do not count; `lag`: messages behind the ends of
    the queues, None if unknown; `rate`: rows per second.
    """

    kind = "batch"

    batch: int
    rows: int
    bytes: int
    rows_total: int
    bytes_total: int
    lag: int | None
    seconds: float
    rate: int
    bad: int = 0
    bad_total: int = 0

    def render(self) -> str:
        lag = "?" if self.lag is None else f"{self.lag:,}"
        bad = render_bad(self.bad)
        return (
            f"batch {self.batch}: {self.rows:,} rows, {bad}{render_bytes(self.bytes)}, {self.rate:,} rows/s, "
            f"lag {lag} | total {self.rows_total:,} rows, {render_bad(self.bad_total)}"
            f"{render_bytes(self.bytes_total)}"
        )


def make_batch_done(batch: int, done: Totals, total: Totals, *, lag: int | None, seconds: float) -> BatchDone:
    """Returns the event of a batch that delivered `done`, with the rate computed from its `seconds`."""
    return BatchDone(
        batch=batch,
        rows=done.rows,
        bytes=done.size_bytes,
        rows_total=total.rows,
        bytes_total=total.size_bytes,
        lag=lag,
        seconds=round(seconds, 3),
        rate=round(done.rows / seconds) if seconds else 0,
        bad=done.bad,
        bad_total=total.bad,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted(Event):
    """The query failed for a reason that may pass, and is started again after `pause_seconds`."""

    kind = "restarted"
    is_lasting = True

    error: str
    pause_seconds: float

    def render(self) -> str:
        return f"starting again in {self.pause_seconds:g} s: {self.error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(Event):
    """The end of the query: `done` (nothing left to read), `signal` or `error`."""

    kind = "stopped"

    reason: str
    rows_total: int
    bytes_total: int
    error: str = ""
    bad_total: int = 0

    @property
    def final_error(self) -> str:
        return self.error

    def render(self) -> str:
        bad = render_bad(self.bad_total)
        total = f"total {self.rows_total:,} rows, {bad}{render_bytes(self.bytes_total)}"
        if self.reason == "error":
            return f"stopped by an error: {self.error} | {total}"
        return f"stopped ({'everything is read' if self.reason == 'done' else 'asked to'}) | {total}"


def report_start(reporter: Reporter, topic: str, out: str, total: Totals) -> None:
    """Reports that the pipeline runs, with what earlier runs delivered."""
    reporter.report(Started(topic=topic, out=out, rows_total=total.rows, bytes_total=total.size_bytes))


def report_end(reporter: Reporter, reason: str, total: Totals, error: str = "") -> int:
    """Reports the end of the pipeline; returns its exit code."""
    reporter.report(
        Stopped(
            reason=reason,
            rows_total=total.rows,
            bytes_total=total.size_bytes,
            error=error,
            bad_total=total.bad,
        )
    )
    return 1 if reason == "error" else 0


class Reporter(Protocol):
    """Receives events as they happen."""

    def report(self, event: Event) -> None: ...

    def close(self) -> None: ...


class _LineReporter:
    """Writes lines, flushed at once; the error that ended the pipeline is also written to `errors`."""

    def __init__(self, stream: TextIO, errors: TextIO) -> None:
        self._stream = stream
        self._errors = errors

    def report(self, event: Event) -> None:
        line = self._render(event)
        if line is not None:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        if event.final_error:
            self._errors.write(f"error: {event.final_error}\n")
            self._errors.flush()

    def _render(self, event: Event) -> str | None:
        raise NotImplementedError

    def close(self) -> None:
        """Does nothing: the caller owns the streams."""


class JsonReporter(_LineReporter):
    """Writes one JSON object per event; the key `event` is its kind."""

    def _render(self, event: Event) -> str | None:
        return None if event.is_exhibit else json.dumps({"event": event.kind, **asdict(event)})


class ResultReporter(_LineReporter):
    """Writes results only."""

    def _render(self, event: Event) -> str | None:
        return event.render() if event.is_result else None


class Reporters:
    """Passes events to several reporters."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = tuple(reporters)

    def report(self, event: Event) -> None:
        for reporter in self._reporters:
            reporter.report(event)

    def close(self) -> None:
        for reporter in self._reporters:
            reporter.close()


class TextReporter:
    """Updates one line on a terminal; elsewhere writes a line per event, but only one tick per
    `TICK_PAUSE_S`.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._ticks_from = time.monotonic() + TICK_PAUSE_S
        self._live = Live(Text("starting Spark"), console=console, refresh_per_second=8, transient=False)
        if console.is_terminal:
            self._live.start()

    def report(self, event: Event) -> None:
        if event.is_exhibit:
            return
        line = event.render()
        if not self._console.is_terminal:
            if event.is_tick and time.monotonic() < self._ticks_from:
                return
            self._ticks_from = time.monotonic() + TICK_PAUSE_S
            self._console.print(line, highlight=False, soft_wrap=True)
        elif event.is_lasting:
            self._live.console.print(line, highlight=False)
        else:
            self._live.update(Text(line))

    def close(self) -> None:
        self._live.stop()


def render_bad(count: int) -> str:
    """Renders `3 bad, `; empty for none."""
    return f"{count:,} bad, " if count else ""


def render_bytes(count: int) -> str:
    """Renders bytes as `512 B` or `1.5 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


# Tables and plots of a report, as plain values.
#
# They are events like all others, so a pipeline has a single output; progress reporters ignore them.

Cell = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit(Event):
    """A table or plot; of two with the same title the later replaces the earlier."""

    kind = "exhibit"
    is_exhibit = True

    title: str
    note: str = ""

    def render(self) -> str:
        return self.title


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable(Exhibit):
    """A table."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart; points in ascending x."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart(Exhibit):
    """Values over time. `is_clock`: x is Unix time in seconds, else seconds since the start."""

    unit: str
    lines: tuple[Line, ...]
    is_clock: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart(Exhibit):
    """One bar per label, in the given order."""

    unit: str
    bars: tuple[tuple[str, float], ...]
