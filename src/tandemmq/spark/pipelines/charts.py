"""Draws the charts of a report as inline SVG (`draw_lines`, `draw_bars`), with matplotlib.

The page supplies font and colours, so charts fit light and dark screens. They contain no ids, links or
scripts, so a page may contain any number of them. Equal charts are equal byte for byte.

Imports matplotlib, so import this module only to write a report. Does not use pyplot, which would keep
figures after drawing.
"""

from __future__ import annotations

import io
import math
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from html import escape
from typing import Any
from xml.etree import ElementTree

from matplotlib import rc_context, rcParamsDefault
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator

from tandemmq.spark.pipelines.events import BarChart, Line, LineChart, render_bytes

WIDTH, HEIGHT = 720, 240
HALF_WIDTH, HALF_HEIGHT = 360, 150
TIME_TICKS, HALF_TIME_TICKS = 6, 4
LINES_MAX = 12
BARS_MAX = 20
POINTS_MAX = 720
"""The maximum number of points per line; more than one per unit of width is invisible."""
LABEL_CHARS_MAX = 33

_TEXT_SIZE, _BAR_HEIGHT = 12, 28
_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
_DAY_S = 86_400
_NOTHING = '<p class="none">nothing to plot</p>'

_COLOURS = ("soft", "rule", "c0", "c1", "c2", "c3", "c4", "c5")
_PAINTS = {f"#00000{number}": f"var(--{name})" for number, name in enumerate(_COLOURS, 1)}
"""The colours passed to matplotlib, and the page's colours that replace them."""
_SOFT, _RULE, *_SERIES = _PAINTS
_NAMED = "named "
"""The prefix of the ids of named elements; the rest of the id is the name."""

_SETTINGS = {name: rcParamsDefault[name] for name in rcParamsDefault.keys() - {"backend"}}
_SETTINGS["svg.fonttype"] = "none"
"""Matplotlib's own defaults, independent of the user's settings, but with text kept as text. Setting the
backend would import pyplot.
"""

_drawing = threading.Lock()
"""Guards the settings, which are global to the process."""


def draw_lines(chart: LineChart, *, is_half: bool = False) -> str:
    """Returns the SVG of a line chart, with a legend if it has several lines; a sentence if it has no
    points.
    """
    lines = [line for line in map(_drop_unknown, chart.lines) if line.points][:LINES_MAX]
    if not lines:
        return _NOTHING
    width, height, time_ticks = (
        (HALF_WIDTH, HALF_HEIGHT, HALF_TIME_TICKS) if is_half else (WIDTH, HEIGHT, TIME_TICKS)
    )
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    # An axis of elapsed seconds begins at 0, not at the first batch.
    x_low = min(xs) if chart.is_clock else min(0.0, *xs)
    span = max(xs) - x_low or 1.0
    with _settings():
        figure, axes = _make_figure(width, height)
        y_high = max(0.0, *ys) if any(ys) else 1.0
        y_ticks = MaxNLocator(5, steps=(1, 2, 5, 10)).tick_values(min(0.0, *ys), y_high)
        axes.set(xlim=(x_low, x_low + span), ylim=(y_ticks[0], y_ticks[-1]), yticks=y_ticks)
        axes.xaxis.set_major_locator(MultipleLocator(find_time_step(span, time_ticks)))
        axes.xaxis.set_major_formatter(
            lambda x, _: _render_clock(x, span) if chart.is_clock else render_seconds(x)
        )
        axes.yaxis.set_major_formatter(lambda y, _: render_number(y))
        axes.yaxis.grid(color=_RULE)
        for index, line in enumerate(lines):
            points = thin(line.points, POINTS_MAX)
            is_alone = len(points) == 1
            axes.plot(
                # A single point is drawn as a line from itself to itself, whose round caps form a dot.
                *zip(*points, *(points if is_alone else ()), strict=True),
                color=_SERIES[index % len(_SERIES)],
                linewidth=6 if is_alone else 1.8,
                solid_capstyle="round",
                gid=_make_id(line.name),
            )
        return _render(figure, chart.title) + _legend(lines)


def draw_bars(chart: BarChart) -> str:
    """Returns the SVG of a bar chart; a sentence if it has no bars."""
    bars = chart.bars[:BARS_MAX]
    if not bars:
        return _NOTHING
    lengths = [value if math.isfinite(value) else 0.0 for _, value in bars]
    longest = max(*lengths, 0.0) or 1.0
    with _settings():
        figure, axes = _make_figure(WIDTH, len(bars) * _BAR_HEIGHT + 8)
        # A bar of length 0 would be invisible.
        drawn = axes.barh(range(len(bars)), [max(one, longest / 500) for one in lengths], color=_SERIES[0])
        axes.set(xlim=(0, longest), ylim=(len(bars) - 0.5, -0.5), xticks=[])
        values = [_render_value(value, chart.unit) for _, value in bars]
        axes.bar_label(drawn, values, padding=6, color=_SOFT, size=_TEXT_SIZE, annotation_clip=False)
        labels = [shorten(label, LABEL_CHARS_MAX) for label, _ in bars]
        axes.set_yticks(range(len(bars)), map(_make_stand_in, labels))
        for (name, _), label, bar, tick in zip(bars, labels, drawn, axes.get_yticklabels(), strict=True):
            bar.set_gid(_make_id(name))
            tick.set_gid(_make_id(label))
        page = _render(figure, chart.title)
    hidden = len(chart.bars) - len(bars)
    return page + (f'<p class="none">and {hidden} more</p>' if hidden else "")


@contextmanager
def _settings() -> Iterator[None]:
    """Applies the settings for the duration of the block, and restores the old ones."""
    with _drawing, rc_context(_SETTINGS):
        yield


def _make_figure(width: int, height: int) -> tuple[Figure, Any]:
    """Returns an empty figure and its axes, without a frame."""
    figure = Figure(figsize=(width / 72, height / 72), frameon=False, layout="constrained")
    axes = figure.subplots(subplot_kw={"frame_on": False})
    axes.tick_params(length=0, pad=6, labelcolor=_SOFT, labelsize=_TEXT_SIZE)
    return figure, axes


def _render(figure: Figure, title: str) -> str:
    """Returns the figure as an SVG element for HTML: its paths and texts, without matplotlib's wrappers."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    drawn = ElementTree.fromstring(file.getvalue())
    svg = ElementTree.Element("svg", {"viewBox": drawn.attrib["viewBox"], "role": "img", "aria-label": title})
    svg.attrib |= {"font-size": str(_TEXT_SIZE), "stroke-linejoin": "round"}
    for group in drawn.iterfind(".//{*}g[@id]"):
        name = group.attrib["id"].removeprefix(_NAMED) if group.attrib["id"].startswith(_NAMED) else None
        for path in group.iterfind("{*}path"):
            shape = ElementTree.SubElement(svg, "path", d=_round(path.attrib["d"]), style=_paint(path))
            if name is not None:
                ElementTree.SubElement(shape, "title").text = name
        for text in group.iterfind("{*}text"):
            place = {axis: _round(text.attrib[axis]) for axis in ("x", "y")}
            ElementTree.SubElement(svg, "text", place, style=_paint(text)).text = name or text.text
    return ElementTree.tostring(svg, encoding="unicode")


def _round(numbers: str) -> str:
    """Rounds numbers to tenths, which is precise enough for a screen."""
    return re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.1f}", " ".join(numbers.split()))


def _paint(element: ElementTree.Element) -> str:
    """Returns the style with the page's colours, and without a font, which the page supplies."""
    parts = [part.split(": ", 1) for part in element.attrib["style"].split("; ")]
    return "; ".join(f"{key}: {_PAINTS.get(to, to)}" for key, to in parts if not key.startswith("font"))


def _make_id(name: str) -> str:
    return _NAMED + "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in name)


def _make_stand_in(label: str) -> str:
    """Returns a text of similar width for matplotlib to measure: its font lacks some letters, and `$` would
    start a formula.
    """
    return re.sub(r"[^ -#%-~]", "W", label)


def _drop_unknown(line: Line) -> Line:
    return Line(line.name, tuple(point for point in line.points if all(map(math.isfinite, point))))


def find_time_step(span: float, count: int) -> float:
    """Returns the seconds between round times, so that about `count` of them fit into `span`."""
    days = math.ceil(span / count / _DAY_S) * _DAY_S
    return next((step for step in _TIME_STEPS_S if step * count >= span), days)


def thin(points: Sequence[tuple[float, float]], count_max: int) -> Sequence[tuple[float, float]]:
    """Returns at most about `count_max` of the points: the first, the lowest and the highest of each
    piece.
    """
    if len(points) <= count_max:
        return points
    size = -(-len(points) * 3 // count_max)
    kept: list[tuple[float, float]] = []
    for begin in range(0, len(points), size):
        piece = points[begin : begin + size]
        chosen = {piece[0], min(piece, key=_height), max(piece, key=_height)}
        kept += sorted(chosen)
    return kept


def _height(point: tuple[float, float]) -> float:
    return point[1]


def render_number(value: float) -> str:
    """Renders a number as `950`, `1.5k` or `20M`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def _render_value(value: float, unit: str) -> str:
    if not math.isfinite(value):
        return "–"
    return render_bytes(round(value)) if unit == "B" else f"{render_number(value)} {unit}".rstrip()


def render_seconds(value: float) -> str:
    """Renders a duration as `45 s`, `2:05` or `1:00:00`."""
    whole = round(value)
    if whole < 60:
        return f"{value:g} s"
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def shorten(text: str, length: int) -> str:
    """Returns at most `length` characters, truncated with an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _render_clock(moment_s: float, span_s: float) -> str:
    form = "%H:%M:%S" if span_s < 600 else "%H:%M" if span_s < 86_400 else "%m-%d %H:%M"
    return datetime.fromtimestamp(moment_s, UTC).strftime(form)


def _legend(lines: Sequence[Line]) -> str:
    if len(lines) < 2:
        return ""
    items = (
        f'<li style="color: {_PAINTS[_SERIES[index % len(_SERIES)]]}">{escape(line.name)}</li>'
        for index, line in enumerate(lines)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'
