"""Charts as inline SVG: no library, no script, colours by class names that the page defines. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape

from tandemmq.spark.pipelines.events import render_bytes
from tandemmq.spark.pipelines.exhibits import BarChart, Line, LineChart

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
COLOURS = 6
LINES_MAX = 12
BARS_MAX = 20
POINTS_MAX = 720
"""More than one point per unit of width cannot be seen."""

_BAR_HEIGHT, _BAR_GAP, _LABEL_WIDTH, _CHAR_WIDTH = 20, 8, 220, 6.6
_Place = Callable[[float], float]
_TIME_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400)


def draw_lines(chart: LineChart) -> str:
    """The SVG of a line chart; a sentence when it has no points."""
    lines = [line for line in chart.lines if line.points][:LINES_MAX]
    if not lines:
        return '<p class="none">nothing to plot</p>'
    xs = [x for line in lines for x, _ in line.points]
    x_low, x_high = min(xs), max(xs)
    if x_high <= x_low:
        x_high = x_low + 1
    y_ticks = find_ticks(0, max(y for line in lines for _, y in line.points))
    y_high = y_ticks[-1]

    def place_x(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def place_y(y: float) -> float:
        return HEIGHT - BOTTOM - y / y_high * (HEIGHT - TOP - BOTTOM)

    parts = [_open(HEIGHT, chart.title)]
    for tick in y_ticks:
        at = place_y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text(LEFT - 8, at + 4, render_number(tick), "end"))
    for tick in find_time_ticks(x_low, x_high):
        label = _render_clock(tick, x_high - x_low) if chart.is_clock else render_seconds(tick)
        parts.append(_text(place_x(tick), HEIGHT - 8, label, "middle"))
    for index, line in enumerate(lines):
        parts.append(_draw_line(line, index, place_x, place_y))
    return "".join(parts) + "</svg>" + _legend(lines)


def _draw_line(line: Line, index: int, place_x: _Place, place_y: _Place) -> str:
    points = thin(line.points, POINTS_MAX)
    path = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in points)
    colour = index % COLOURS
    mark = f"<title>{escape(line.name)}</title>"
    if len(points) == 1:
        x, y = points[0]
        at = f'cx="{place_x(x):.1f}" cy="{place_y(y):.1f}"'
        return f'<circle class="dot c{colour}" {at} r="3">{mark}</circle>'
    return f'<polyline class="line c{colour}" points="{path}">{mark}</polyline>'


def draw_bars(chart: BarChart) -> str:
    """The SVG of a bar chart; a sentence when it has no bars."""
    bars = chart.bars[:BARS_MAX]
    if not bars:
        return '<p class="none">nothing to plot</p>'
    height = len(bars) * (_BAR_HEIGHT + _BAR_GAP) + _BAR_GAP
    longest = max(value for _, value in bars) or 1
    room = WIDTH - _LABEL_WIDTH - RIGHT - 90
    parts = [_open(height, chart.title)]
    for index, (label, value) in enumerate(bars):
        y = _BAR_GAP + index * (_BAR_HEIGHT + _BAR_GAP)
        width = max(value / longest * room, 1)
        parts.append(_text(_LABEL_WIDTH - 8, y + 14, shorten(label, int(_LABEL_WIDTH / _CHAR_WIDTH)), "end"))
        parts.append(
            f'<rect class="bar" x="{_LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{_BAR_HEIGHT}">'
            f"<title>{escape(label)}</title></rect>"
        )
        parts.append(_text(_LABEL_WIDTH + width + 6, y + 14, _render_value(value, chart.unit), "start"))
    if len(chart.bars) > BARS_MAX:
        return "".join(parts) + f'</svg><p class="none">and {len(chart.bars) - BARS_MAX} more</p>'
    return "".join(parts) + "</svg>"


def find_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to at least `high`, about `count` steps."""
    span = high - low
    if span <= 0:
        return [low, low + 1]
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    steps = math.ceil(span / step - 1e-9)
    return [round(low + index * step, 12) for index in range(steps + 1)]


def find_time_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round times within the range."""
    step = next((s for s in _TIME_STEPS_S if s * count >= high - low), 0) or math.ceil((high - low) / count)
    first = math.ceil(low / step)
    return [float(index * step) for index in range(first, math.floor(high / step) + 1)]


def thin(points: Sequence[tuple[float, float]], count_max: int) -> Sequence[tuple[float, float]]:
    """At most about `count_max` of the points: of each piece the first, the lowest and the highest."""
    if len(points) <= count_max:
        return points
    size = -(-len(points) * 3 // count_max)
    kept: list[tuple[float, float]] = []
    for begin in range(0, len(points), size):
        piece = points[begin : begin + size]
        chosen = {piece[0], min(piece, key=_height), max(piece, key=_height)}
        kept += sorted(chosen)
    return kept


def render_number(value: float) -> str:
    """`950`, `1.5k`, `20M`."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def _render_value(value: float, unit: str) -> str:
    return render_bytes(round(value)) if unit == "B" else f"{render_number(value)} {unit}".rstrip()


def render_seconds(value: float) -> str:
    """`45 s`, `2:05`, `1:00:00`."""
    whole = round(value)
    if whole < 60:
        return f"{value:g} s"
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def shorten(text: str, length: int) -> str:
    """At most `length` characters, with an ellipsis where some are left out."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _render_clock(moment_s: float, span_s: float) -> str:
    form = "%H:%M:%S" if span_s < 600 else "%H:%M" if span_s < 86_400 else "%m-%d %H:%M"
    return datetime.fromtimestamp(moment_s, UTC).strftime(form)


def _open(height: int, title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(lines: Sequence[Line]) -> str:
    if len(lines) < 2:
        return ""
    items = (f'<li class="c{index % COLOURS}">{escape(line.name)}</li>' for index, line in enumerate(lines))
    return f'<ul class="legend">{"".join(items)}</ul>'


def _height(point: tuple[float, float]) -> float:
    return point[1]
