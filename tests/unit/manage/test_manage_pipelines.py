"""The state of Spark pipelines, from files of progress."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from tandemmq.errors import ConfigError
from tandemmq.manage import pipelines
from tandemmq.manage.pipelines import PipelineState, read_pipelines
from tandemmq.spark.lake.files import Totals
from tandemmq.spark.pipelines.events import (
    AuditDone,
    Event,
    JsonReporter,
    Restarted,
    SideJudged,
    Started,
    Stopped,
    make_batch_done,
)

STARTED = Started(topic="Orders", out="/data/orders", rows_total=100, bytes_total=1_000)


def batch(number: int, *, lag: int | None = 7) -> Event:
    done = Totals(rows=10, size_bytes=100)
    total = Totals(rows=100 + 10 * number, size_bytes=2_000, bad=number)
    return make_batch_done(number, done, total, lag=lag, seconds=2.0)


def write(folder: Path, name: str, *events: Event) -> Path:
    """Writes the events as `--progress json` does."""
    stream = io.StringIO()
    reporter = JsonReporter(stream, io.StringIO())
    for event in events:
        reporter.report(event)
    path = folder / f"{name}.jsonl"
    path.write_text(stream.getvalue())
    return path


def one(folder: Path) -> PipelineState:
    (found,) = read_pipelines(folder)
    return found


def test_the_last_events_decide(tmp_path: Path) -> None:
    write(tmp_path, "orders", STARTED, batch(1), Restarted(error="no route", pause_seconds=1.0))
    found = one(tmp_path)
    assert (found.name, found.topic, found.out) == ("orders", "Orders", "/data/orders")
    assert (found.state, found.error, found.restarts) == ("restarting", "no route", 1)
    write(tmp_path, "orders", STARTED, batch(1), batch(2, lag=None))
    found = one(tmp_path)
    assert (found.state, found.lag, found.rate, found.rows_total, found.bad_total) == (
        "running",
        None,
        5,
        120,
        2,
    )
    assert [event["batch"] for event in found.batches] == [1, 2]


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (Stopped(reason="signal", rows_total=1, bytes_total=1), "stopped"),
        (Stopped(reason="error", rows_total=1, bytes_total=1, error="no disk"), "failed"),
        (AuditDone(reason="different"), "failed"),
        (AuditDone(reason="equal"), "stopped"),
    ],
)
def test_an_end_is_good_or_bad(tmp_path: Path, end: Event, state: str) -> None:
    write(tmp_path, "p", STARTED, SideJudged(side="lake", is_equal=False, missing=3), end)
    found = one(tmp_path)
    assert found.state == state
    assert found.results[0]["missing"] == 3


def test_of_a_long_file_only_the_ends_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "TAIL_BYTES", 1_000)
    write(tmp_path, "long", STARTED, *map(batch, range(1_000)))
    found = one(tmp_path)
    assert found.topic == "Orders"
    assert found.rows_total == 100 + 9_990
    assert len(found.batches) < 50


def test_other_lines_and_files_are_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, "odd", STARTED)
    lines = [
        b"[1]",
        b"\xff",
        b"{",
        json.dumps({"event": "batch", "lag": "many", "rows_total": True}).encode(),
    ]
    path.write_bytes(path.read_bytes() + b"\n".join(lines))
    (tmp_path / "notes.txt").write_text("no pipeline")
    (tmp_path / "folder.jsonl").mkdir()
    found = one(tmp_path)
    assert (found.state, found.lag, found.rows_total) == ("running", None, 100)


def test_only_the_newest_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "PIPELINES_MAX", 2)
    for number in range(4):
        os.utime(write(tmp_path, f"p{number}", STARTED), (number, number))
    assert [found.name for found in read_pipelines(tmp_path)] == ["p2", "p3"]
    with pytest.raises(ConfigError, match="cannot be read"):
        read_pipelines(tmp_path / "missing")
