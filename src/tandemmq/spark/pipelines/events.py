"""The events of a running pipeline: one value per event, with a form for programs and one for people; their
receivers (`Reporter`); and the tables and plots of its report (`ReportTable`, `LineChart`, `BarChart`).
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TextIO

import msgspec
from msgspec.structs import asdict
from rich.console import Console
from rich.live import Live
from rich.text import Text

from tandemmq.spark.lake.files import Totals

TICK_PAUSE_S = 10.0


class Event(msgspec.Struct, frozen=True):
    """The type that reporters accept: a frozen value with a name for programs and a line for people."""

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

    def render(self) -> str:
        """Returns the line for people."""
        raise NotImplementedError


class Started(Event, frozen=True, kw_only=True):
    """The query runs; `rows_total` is the number of rows delivered by earlier runs."""

    kind = "started"

    topic: str
    out: str
    rows_total: int
    bytes_total: int

    def render(self) -> str:
        return f"{self.topic} -> {self.out}: running, {self.rows_total:,} rows so far"


class BatchDone(Event, frozen=True, kw_only=True):
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


class Restarted(Event, frozen=True, kw_only=True):
    """The query failed for a reason that may pass, and is started again after `pause_seconds`."""

    kind = "restarted"
    is_lasting = True

    error: str
    pause_seconds: float

    def render(self) -> str:
        return f"starting again in {self.pause_seconds:g} s: {self.error}"


class Stopped(Event, frozen=True, kw_only=True):
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


class _LineReporter(Reporter):
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

    @abstractmethod
    def _render(self, event: Event) -> str | None:
        """Returns the line of an event; None for none."""

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


# The events of a service of many topics.


class TopicEvent(Event, frozen=True, kw_only=True):
    """An event of one of the topics."""

    topic: str


class TopicBatch(TopicEvent, frozen=True, kw_only=True):
    """A batch of a topic is committed and visible.

    `lost`: messages of the topic that were gone before they were read, since the service began; `p50_seconds`
    and `p99_seconds`: from the birth of a message until its row was visible, None without rows.
    """

    kind = "topic_batch"
    is_tick = True

    batch: int
    rows: int
    bad: int
    rows_total: int
    bytes_total: int
    bad_total: int
    lag: int
    lost: int
    seconds: float
    p50_seconds: float | None
    p99_seconds: float | None

    def render(self) -> str:
        fresh = "" if self.p99_seconds is None else f", 99 % after at most {self.p99_seconds:.1f} s"
        return f"{self.topic}: batch {self.batch}, {self.rows:,} rows{fresh}, lag {self.lag:,}"


class TopicChanged(TopicEvent, frozen=True, kw_only=True):
    """The state of a topic changed: running, paused or failing. A failing topic is tried again after
    `next_try_seconds`. The numbers are known after a turn that did not fail.
    """

    kind = "topic"
    is_lasting = True

    state: str
    error: str = ""
    next_try_seconds: float = 0.0
    rows_total: int | None = None
    bad_total: int | None = None
    lag: int | None = None
    lost: int | None = None

    @property
    def is_failing(self) -> bool:
        return bool(self.error)

    def render(self) -> str:
        why = f", next try in {self.next_try_seconds:g} s: {self.error}" if self.error else ""
        return f"{self.topic}: {self.state}{why}"


# The events of an audit.


class AuditStarted(Event, frozen=True, kw_only=True):
    """The compared sides and columns; `reference` is the side with which the others are compared."""

    kind = "started"
    is_lasting = True

    topic: str
    reference: str
    sides: tuple[str, ...]
    columns: tuple[str, ...]
    queues: int
    messages: int

    def render(self) -> str:
        return (
            f"{self.topic}: {self.messages:,} messages in {self.queues} queues; {', '.join(self.sides)} "
            f"compared by {', '.join(self.columns)}"
        )


class SideReading(Event, frozen=True, kw_only=True):
    """A side is being read."""

    kind = "reading"
    is_tick = True

    side: str
    tasks_done: int
    tasks: int
    seconds: float

    def render(self) -> str:
        return f"reading {self.side}: {self.tasks_done} of {self.tasks} tasks, {self.seconds:.0f} s"


class SideRead(Event, frozen=True, kw_only=True):
    """A side has been read, with its number of rows in the ranges."""

    kind = "side"
    is_lasting = True
    table = "Sides"

    side: str
    rows: int
    seconds: float
    rate: int

    def render(self) -> str:
        return f"{self.side}: {self.rows:,} rows read in {self.seconds:.1f} s ({self.rate:,} rows/s)"


class Difference(Event, frozen=True, kw_only=True):
    """A position at which a side differs from the reference: `problem` is missing, repeated, differs, extra,
    behind or unreadable.
    """

    kind = "difference"
    is_lasting = True
    is_result = True
    table = "Differences"

    side: str
    problem: str
    topic: str = ""
    broker: str = ""
    queue: int = -1
    offset: int = -1
    columns: tuple[str, ...] = ()
    detail: str = ""

    def render(self) -> str:
        place = f"{self.topic}@{self.broker}:{self.queue} from offset {self.offset}"
        if self.problem == "unreadable":
            return f"{self.side} cannot be read: {self.detail}"
        what = f" in {', '.join(self.columns)}" if self.columns else ""
        more = f" ({self.detail})" if self.detail else ""
        return f"{self.side}, {place}: {self.problem}{what}{more}"


class SideJudged(Event, frozen=True, kw_only=True):
    """The verdict on one side, in numbers of messages. `loss_seconds`: the span of store time that is
    missing.
    """

    kind = "verdict"
    is_lasting = True
    is_result = True
    table = "Verdicts"

    side: str
    is_equal: bool
    missing: int = 0
    behind: int = 0
    repeated: int = 0
    differing: int = 0
    loss_seconds: float = 0.0
    pieces_not_searched: int = 0

    def render(self) -> str:
        if self.is_equal:
            return f"{self.side}: OK"
        parts = [
            f"{count:,} {name}"
            for count, name in (
                (self.missing, "missing"),
                (self.behind, "of them not there yet"),
                (self.repeated, "repeated"),
                (self.differing, "different"),
            )
            if count
        ]
        more = f"; {self.pieces_not_searched} further ranges differ" if self.pieces_not_searched else ""
        return f"{self.side}: NOT EQUAL, {', '.join(parts)}; {self.loss_seconds:.1f} s lost{more}"


class RepeatedKeys(Event, frozen=True, kw_only=True):
    """Messages that producers sent more than once; not a difference between sides."""

    kind = "repeated_keys"
    is_lasting = True
    table = "Unique keys"

    side: str
    messages: int
    keys: int
    example: str

    def render(self) -> str:
        if not self.messages:
            return f"{self.side}: every unique key once"
        return (
            f"{self.side}: {self.messages:,} messages repeat one of {self.keys:,} unique keys, "
            f"for example {self.example}"
        )


class AuditDone(Event, frozen=True, kw_only=True):
    """The end of an audit: `equal`, `different`, `signal` or `error`."""

    kind = "stopped"
    is_lasting = True
    is_result = True

    reason: str
    error: str = ""

    @property
    def final_error(self) -> str:
        return self.error

    def render(self) -> str:
        if self.reason == "equal":
            return "OK: all sides are equal"
        if self.reason == "different":
            return "NOT EQUAL: see above"
        return "stopped before the end" if self.reason == "signal" else f"stopped by an error: {self.error}"


# Tables and plots of a report, as plain values.
#
# They are events like all others, so a pipeline has a single output; progress reporters ignore them.

Cell = str | int | float | None


class Exhibit(Event, frozen=True, kw_only=True):
    """A table or plot; of two with the same title the later replaces the earlier."""

    kind = "exhibit"
    is_exhibit = True

    title: str
    note: str = ""

    def render(self) -> str:
        return self.title


class ReportTable(Exhibit, frozen=True, kw_only=True):
    """A table."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart; points in ascending x."""

    name: str
    points: tuple[tuple[float, float], ...]


class LineChart(Exhibit, frozen=True, kw_only=True):
    """Values over time. `is_clock`: x is Unix time in seconds, else seconds since the start."""

    unit: str
    lines: tuple[Line, ...]
    is_clock: bool = False


class BarChart(Exhibit, frozen=True, kw_only=True):
    """One bar per label, in the given order."""

    unit: str
    bars: tuple[tuple[str, float], ...]
