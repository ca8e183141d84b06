"""The HTML report of a pipeline: collected from its events (`ReportReporter`), and written at its end as a
page (`render_page`) with the plots of `charts`.

One self-contained file, for light and dark screens. Bounds: a run of days keeps at most SAMPLES_MAX points of
its curves, the first SAMPLES_MAX rows of each table, and the last REMARKS_MAX remarks.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec.structs import asdict

from tandemmq.spark.pipelines.events import (
    AuditDone,
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
    """Collects events; `close` writes the report to `path` atomically."""

    def __init__(self, path: Path, *, title: str, command: str) -> None:
        self._path = path
        self._title = title
        self._command = command
        self._began_at = time.time()
        self._samples: list[tuple[float, BatchDone]] = []
        self._begun: tuple[float, float] | None = None
        """The time of the first start and the rows delivered before it: the first point of the total's
        curve.
        """
        self._every = 1
        self._batches = 0
        self._rows = 0
        self._remarks: deque[tuple[str, str]] = deque(maxlen=REMARKS_MAX)
        self._records: dict[str, list[dict[str, Any]]] = {}
        self._exhibits: dict[str, Exhibit] = {}
        self._verdict, self._is_good = "ended before anything was done", False

    def report(self, event: Event) -> None:
        if isinstance(event, Exhibit):
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
"""A name and its value, shown large."""


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
    """Returns the whole file. `curves`: the curves of the run itself, at half width."""
    style = files("tandemmq.spark.pipelines").joinpath("report.css").read_text()
    tone = "verdict" if is_good else "verdict bad"
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in tiles)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="when">{escape(when)}</p>'
        f'<p class="{tone}">{escape(verdict)}</p><dl class="tiles">{shown}</dl>'
        f'<div class="pairs">{"".join(render_exhibit(curve, is_half=True) for curve in curves)}</div>'
        f"{''.join(map(render_exhibit, exhibits))}</main></body></html>\n"
    )


def render_exhibit(exhibit: Exhibit, *, is_half: bool = False) -> str:
    """Renders a plot or table as a section of HTML. `is_half`: at half width, for two side by side."""
    if isinstance(exhibit, ReportTable):
        body = _render_table(exhibit)
    else:
        # Imports matplotlib, which a pipeline without a report does not need.
        from tandemmq.spark.pipelines.charts import draw_bars, draw_lines

        if isinstance(exhibit, BarChart):
            body = draw_bars(exhibit)
        else:
            assert isinstance(exhibit, LineChart)
            body = draw_lines(exhibit, is_half=is_half)
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
