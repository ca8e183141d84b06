"""Texts of pages: times, sizes, durations and line charts, as filters and functions of the templates.

Everything that a template prints is escaped; only this module creates markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
NOTHING: Final = "–"
"""The text of a value that is unknown or missing."""
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
CHART_WIDTH: Final = 720
CHART_HEIGHT: Final = 160


def make_environment() -> Environment:
    """Returns the templates of the console with their filters."""
    env = Environment(
        loader=PackageLoader("tandemmq.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    env.filters.update(
        time=show_time,
        bytes=show_bytes,
        number=show_number,
        duration=show_duration,
        share=show_share,
        part=quote_part,
    )
    env.globals.update(url=make_url)
    return env


def make_url(path: str, /, **query: object) -> str:
    """Returns the path with this query; empty values are left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def quote_part(name: str) -> str:
    """Returns a name as one part of a path."""
    return quote(name, safe="")


def show_time(at_ms: int | None) -> Markup:
    """Returns a time in UTC, which the page's script shows in the reader's zone; a dash for none."""
    if at_ms is None or at_ms <= 0:
        return Markup(NOTHING)
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return escape(at_ms)
    exact = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    text = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, text, text)


def show_bytes(count: float | None) -> str:
    """Returns a size with a binary unit, such as 1.5 GiB."""
    if count is None:
        return NOTHING
    size, unit = float(count), 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.0f} {_UNITS[unit]}" if unit == 0 or abs(size) >= 100 else f"{size:.1f} {_UNITS[unit]}"


def show_number(count: float | None, digits: int = 1) -> str:
    """Returns a number with thin spaces between thousands; fractions only if there are any."""
    if count is None:
        return NOTHING
    text = f"{count:,.{digits}f}" if count != int(count) else f"{int(count):,}"
    return text.replace(",", "\u202f")


def show_share(part: float | None) -> str:
    """Returns a share of 0 to 1 in percent."""
    return NOTHING if part is None else f"{part * 100:.0f} %"


def show_duration(seconds: float | None) -> str:
    """Returns a duration in its two largest units, such as 3 h 12 min."""
    if seconds is None:
        return NOTHING
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, name, below, lower in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name}" + (f" {rest} {lower}" if rest else "")
    return f"{whole} s"


# Charts


@dataclass(frozen=True, slots=True)
class ChartLine:
    """One line: points (time in ms, value) in order of time."""

    name: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class DrawnChart:
    """A drawn chart for the template's macro `chart`: paths in a box of CHART_WIDTH x CHART_HEIGHT."""

    label: str
    unit: str
    lines: tuple[tuple[str, str, float], ...]
    """Name, path and last value of each line."""
    top: float
    scale: float
    span_s: float
    width: int = CHART_WIDTH
    height: int = CHART_HEIGHT

    @property
    def summary(self) -> str:
        """The text for screen readers."""
        last = ", ".join(f"{name} {show_number(value)}{self.unit}" for name, _, value in self.lines)
        return f"{self.label}: now {last}; highest {show_number(self.top)}{self.unit}"


def draw_lines(label: str, lines: Sequence[ChartLine], *, unit: str = "") -> DrawnChart:
    """Returns a chart of the points up to the newest one, of five minutes at least and an hour at most.
    Values below zero are drawn as zero.
    """
    end = max((line.points[-1][0] for line in lines if line.points), default=0)
    first = min((line.points[0][0] for line in lines if line.points), default=0)
    span_ms = min(max(end - first, 5 * MINUTE_MS), HOUR_MS)
    begin = end - span_ms
    shown = [(line.name, [one for one in line.points if one[0] >= begin]) for line in lines]
    top = max((value for _, points in shown for _, value in points), default=0.0)
    scale = _round_up(top)

    def path(points: Sequence[tuple[int, float]]) -> str:
        pairs = (
            f"{(at - begin) / span_ms * CHART_WIDTH:.1f},"
            f"{CHART_HEIGHT - 4 - max(value, 0.0) / scale * (CHART_HEIGHT - 12):.1f}"
            for at, value in points
        )
        text = " L".join(pairs)
        return f"M{text}" if text else ""

    drawn = tuple((name, path(points), points[-1][1] if points else 0.0) for name, points in shown)
    return DrawnChart(label, unit, drawn, top, scale, span_ms / 1000)


def _round_up(value: float) -> float:
    """Returns the scale of an axis: 1, 2 or 5 times a power of ten, at least 1."""
    scale = 1.0
    while scale < value:
        for factor in (1, 2, 5):
            if scale * factor >= value:
                return scale * factor
        scale *= 10
    return scale
