"""What a pipeline shows in its report: tables and plots, as plain values. Pure.

They travel as events, so a pipeline has one way out; reporters that tell progress pass over them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tandemmq.spark.pipelines.events import Event

Cell = str | int | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Event):
    """Rows of cells below a title; of two with one title the later stays."""

    kind = "exhibit"
    is_exhibit = True

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def render(self) -> str:
        return self.title


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart; points by rising x."""

    name: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart(Event):
    """Values over time. `is_clock`: x is Unix time in seconds, else seconds since the start."""

    kind = "exhibit"
    is_exhibit = True

    title: str
    unit: str
    lines: tuple[Line, ...]
    is_clock: bool = False
    note: str = ""

    def render(self) -> str:
        return self.title


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart(Event):
    """One bar per label, longest first or in the order that is given."""

    kind = "exhibit"
    is_exhibit = True

    title: str
    unit: str
    bars: tuple[tuple[str, float], ...]
    note: str = ""

    def render(self) -> str:
        return self.title


Exhibit = Table | LineChart | BarChart
