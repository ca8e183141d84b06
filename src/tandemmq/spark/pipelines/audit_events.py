"""The events of an audit: JSON for programs, lines for people."""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.spark.pipelines.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditStarted(Event):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SideReading(Event):
    """A side is being read."""

    kind = "reading"
    is_tick = True

    side: str
    tasks_done: int
    tasks: int
    seconds: float

    def render(self) -> str:
        return f"reading {self.side}: {self.tasks_done} of {self.tasks} tasks, {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class SideRead(Event):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Event):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SideJudged(Event):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedKeys(Event):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditDone(Event):
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
