"""The HTML report of a pipeline: collected from what the pipeline tells (`ReportReporter`), written when it
ends as a page (`render_page`) with charts (`draw_lines`, `draw_bars`).

One file without anything outside it, for light and dark screens. Bounded: a run of days keeps some thousand
points of its curves, and its first and last remarks.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from tandemmq.spark.pipelines.audit_events import AuditDone
from tandemmq.spark.pipelines.events import (
    BarChart,
    BatchDone,
    Cell,
    Event,
    Exhibit,
    Line,
    LineChart,
    ReportTable,
    Started,
    Stopped,
    render_bytes,
)

SAMPLES_MAX = 4096
REMARKS_MAX = 200
BAD_REASONS = ("error", "different")


class ReportReporter:
    """Takes events; `close` writes the report to `path`, which is replaced as a whole."""

    def __init__(self, path: Path, *, title: str, command: str) -> None:
        self._path = path
        self._title = title
        self._command = command
        self._began_at = time.time()
        self._samples: list[tuple[float, BatchDone]] = []
        self._begun: tuple[float, float] | None = None
        """When the first query started, and what there was already: where the curve of the total begins."""
        self._every = 1
        self._batches = 0
        self._rows = 0
        self._remarks: deque[tuple[str, str]] = deque(maxlen=REMARKS_MAX)
        self._records: dict[str, list[dict[str, Any]]] = {}
        self._exhibits: dict[str, Exhibit] = {}
        self._verdict, self._is_good = "ended before anything was done", False

    def report(self, event: Event) -> None:
        if isinstance(event, (ReportTable, LineChart, BarChart)):
            self._exhibits[event.title] = event
        elif isinstance(event, BatchDone):
            self._sample(event)
        elif isinstance(event, Started):
            self._verdict = event.render()
            if self._begun is None:
                self._begun = (time.time() - self._began_at, float(event.rows_total))
        elif isinstance(event, (Stopped, AuditDone)):
            self._verdict = event.render()
            self._is_good = event.reason not in BAD_REASONS
        elif event.is_lasting:
            self._remarks.append((_clock(time.time()), event.render()))
        if event.table and len(self._records.setdefault(event.table, [])) < SAMPLES_MAX:
            self._records[event.table].append(asdict(event))

    def close(self) -> None:
        page = render_page(
            title=self._title,
            when=f"{_moment(self._began_at)} to {_moment(time.time())} UTC",
            verdict=self._verdict,
            is_good=self._is_good,
            tiles=self._tiles(),
            exhibits=[*self._exhibits.values(), *self._tables()],
            curves=self._curves(),
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        staged = self._path.with_name(f"{self._path.name}.new")
        staged.write_text(page, encoding="utf-8")
        os.replace(staged, self._path)

    def _sample(self, event: BatchDone) -> None:
        self._rows += event.rows
        self._batches += 1
        if self._batches % self._every == 0:
            self._samples.append((time.time() - self._began_at, event))
        if len(self._samples) > SAMPLES_MAX:
            self._samples = self._samples[1::2]
            self._every *= 2

    def _tiles(self) -> list[Tile]:
        seconds = time.time() - self._began_at
        tiles = [("time", f"{seconds:.0f} s")]
        if self._samples:
            last = self._samples[-1][1]
            busy = sum(event.seconds for _, event in self._samples) * self._every
            tiles = [
                ("rows in this run", f"{self._rows:,}"),
                ("rows in all", f"{last.rows_total:,}"),
                *([("bad records in all", f"{last.bad_total:,}")] if last.bad_total else []),
                ("bytes in all", render_bytes(last.bytes_total)),
                ("batches", f"{self._batches:,}"),
                ("rows/s while busy", f"{self._rows / busy:,.0f}" if busy else "–"),
                ("lag at the end", "–" if last.lag is None else f"{last.lag:,}"),
                *tiles,
            ]
        return tiles

    def _curves(self) -> list[LineChart]:
        if not self._samples:
            return []

        def chart(title: str, unit: str, read: Any, *begun: tuple[float, float]) -> LineChart:
            points = tuple((at, float(v)) for at, e in self._samples if (v := read(e)) is not None)
            return LineChart(title=title, unit=unit, lines=(Line(title, (*begun, *points)),))

        return [
            chart("Rate", "rows/s of each batch", lambda event: event.rate),
            chart("Lag", "messages left", lambda event: event.lag),
            chart("Batches", "seconds each", lambda event: event.seconds),
            chart("Total", "rows", lambda event: event.rows_total, *([self._begun] if self._begun else [])),
        ]

    def _tables(self) -> list[Exhibit]:
        tables: list[Exhibit] = [
            ReportTable(
                title=title,
                columns=tuple(name.replace("_", " ") for name in records[0]),
                rows=tuple(tuple(map(_plain, record.values())) for record in records),
            )
            for title, records in self._records.items()
        ]
        if self._remarks:
            tables.append(ReportTable(title="Remarks", columns=("UTC", "what"), rows=tuple(self._remarks)))
        tables.append(ReportTable(title="Command", columns=("arguments",), rows=((self._command,),)))
        return tables


def _plain(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else value


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S")


# The page: tiles, curves, exhibits.

ROWS_SHOWN_MAX = 500
CELL_CHARS_MAX = 400

Tile = tuple[str, str]
"""A name and what it says, large."""

_STYLE = """
:root { color-scheme: light dark; --bg: #fbfbf9; --card: #fff; --ink: #1d2228; --soft: #69727d;
  --rule: #e2e4e6; --good: #1a7f4b; --bad: #b42318; --c0: #2563a8; --c1: #c2571a; --c2: #2f855a;
  --c3: #7c4dab; --c4: #a8842a; --c5: #b0416e; }
@media (prefers-color-scheme: dark) { :root { --bg: #15181c; --card: #1d2126; --ink: #e6e8ea;
  --soft: #98a1ab; --rule: #31373e; --good: #4cc38a; --bad: #ff7a6b; --c0: #6aa8ea; --c1: #f09a5f;
  --c2: #62c492; --c3: #b592e6; --c4: #d9b65a; --c5: #ea83ad; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
main { max-width: 880px; margin: 0 auto; padding: 32px 20px 56px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 0 0 10px; }
.when { color: var(--soft); margin: 0 0 18px; }
.verdict { border-left: 4px solid var(--good); background: var(--card); padding: 10px 14px;
  margin: 0 0 18px; overflow-wrap: anywhere; }
.verdict.bad { border-color: var(--bad); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 0 0 18px; }
.tiles div, section { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
.tiles div { padding: 10px 14px; }
.tiles dt { color: var(--soft); font-size: 13px; }
.tiles dd { margin: 0; font-size: 22px; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
section { padding: 16px 18px; margin: 0 0 18px; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 12px; fill: var(--soft); }
.grid { stroke: var(--rule); }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke: currentColor; }
.dot { fill: currentColor; }
.bar { fill: var(--c0); }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); }
.c3 { color: var(--c3); } .c4 { color: var(--c4); } .c5 { color: var(--c5); }
.legend { list-style: none; margin: 8px 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: 4px 16px;
  font-size: 13px; }
.legend li::before { content: ""; display: inline-block; width: 14px; height: 3px; margin-right: 6px;
  vertical-align: middle; background: currentColor; }
.pairs { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 0 18px; }
.pairs svg text { font-size: 20px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; overflow-wrap: break-word; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
td:first-child:not(:only-child) { white-space: nowrap; }
td:only-child { overflow-wrap: anywhere; }
.num { text-align: right; }
td.num { white-space: nowrap; }
.none, .note { color: var(--soft); font-size: 13px; margin: 8px 0 0; }
"""


def render_page(
    *,
    title: str,
    when: str,
    verdict: str,
    is_good: bool,
    tiles: Sequence[Tile],
    exhibits: Sequence[Exhibit],
    curves: Sequence[LineChart],
) -> str:
    """The whole file. `curves`: of the run itself, half as wide."""
    tone = "verdict" if is_good else "verdict bad"
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in tiles)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="when">{escape(when)}</p>'
        f'<p class="{tone}">{escape(verdict)}</p><dl class="tiles">{shown}</dl>'
        f'<div class="pairs">{"".join(map(render_exhibit, curves))}</div>'
        f"{''.join(map(render_exhibit, exhibits))}</main></body></html>\n"
    )


def render_exhibit(exhibit: Exhibit) -> str:
    """A plot or table as a section of HTML."""
    if isinstance(exhibit, LineChart):
        body = draw_lines(exhibit)
    elif isinstance(exhibit, BarChart):
        body = draw_bars(exhibit)
    else:
        body = _render_table(exhibit)
    unit = f" ({exhibit.unit})" if isinstance(exhibit, LineChart) and exhibit.unit else ""
    note = f'<p class="note">{escape(exhibit.note)}</p>' if exhibit.note else ""
    return f"<section><h2>{escape(exhibit.title + unit)}</h2>{body}{note}</section>"


def _render_table(table: ReportTable) -> str:
    if not table.rows:
        return '<p class="none">none</p>'
    is_number = [
        all(isinstance(row[index], (int, float, type(None))) for row in table.rows)
        for index in range(len(table.columns))
    ]
    marks = [' class="num"' if numeric else "" for numeric in is_number]
    head = "".join(f"<th{m}>{escape(name)}</th>" for m, name in zip(marks, table.columns, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{m}>{_cell(cell)}</td>' for m, cell in zip(marks, row, strict=True))}</tr>"
        for row in table.rows[:ROWS_SHOWN_MAX]
    )
    hidden = len(table.rows) - ROWS_SHOWN_MAX
    more = f'<p class="none">and {hidden:,} more</p>' if hidden > 0 else ""
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>{more}'


def _cell(value: Cell) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    text = value if len(value) <= CELL_CHARS_MAX else value[:CELL_CHARS_MAX] + "…"
    return escape(text)


# Charts as inline SVG: no library, no script, colours by class names that the page defines.

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
    # Seconds since the start are drawn from the start on: the first batch is no beginning.
    x_low, x_high = min(xs) if chart.is_clock else min(0.0, *xs), max(xs)
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
