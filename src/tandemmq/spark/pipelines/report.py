"""Collects what a pipeline tells into its HTML report, written when the pipeline ends.

Bounded: a run of days keeps some thousand points of its curves, and its first and last remarks.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tandemmq.spark.pipelines.audit_events import AuditDone
from tandemmq.spark.pipelines.events import BatchDone, Event, Started, Stopped, render_bytes
from tandemmq.spark.pipelines.exhibits import BarChart, Exhibit, Line, LineChart, Table
from tandemmq.spark.pipelines.report_page import Tile, render_page

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
        self._every = 1
        self._batches = 0
        self._rows = 0
        self._remarks: deque[tuple[str, str]] = deque(maxlen=REMARKS_MAX)
        self._records: dict[str, list[dict[str, Any]]] = {}
        self._exhibits: dict[str, Exhibit] = {}
        self._verdict, self._is_good = "ended before anything was done", False

    def report(self, event: Event) -> None:
        if isinstance(event, (Table, LineChart, BarChart)):
            self._exhibits[event.title] = event
        elif isinstance(event, BatchDone):
            self._sample(event)
        elif isinstance(event, Started):
            self._verdict = event.render()
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

        def chart(title: str, unit: str, read: Any) -> LineChart:
            points = tuple((at, float(v)) for at, e in self._samples if (v := read(e)) is not None)
            return LineChart(title=title, unit=unit, lines=(Line(title, points),))

        return [
            chart("Rate", "rows/s of each batch", lambda event: event.rate),
            chart("Lag", "messages left", lambda event: event.lag),
            chart("Batches", "seconds each", lambda event: event.seconds),
            chart("Total", "rows", lambda event: event.rows_total),
        ]

    def _tables(self) -> list[Exhibit]:
        tables: list[Exhibit] = [
            Table(
                title=title,
                columns=tuple(name.replace("_", " ") for name in records[0]),
                rows=tuple(tuple(map(_plain, record.values())) for record in records),
            )
            for title, records in self._records.items()
        ]
        if self._remarks:
            tables.append(Table(title="Remarks", columns=("UTC", "what"), rows=tuple(self._remarks)))
        tables.append(Table(title="Command", columns=("arguments",), rows=((self._command,),)))
        return tables


def _plain(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, (tuple, list)) else value


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S")
