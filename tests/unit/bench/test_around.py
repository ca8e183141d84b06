"""The measurements around the loads: their lines and chapter."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path

import pytest

from bench import around
from bench.around import measure_around, render_catchup, render_reopened
from bench.catchup import CatchUp
from bench.catchup_node import CopyState
from bench.reopen import Reopened
from tandemmq.units import GIB, MIB


def copied(seconds: float, processor_seconds: float) -> CopyState:
    return CopyState(
        log_end=GIB,
        dispatched=GIB,
        message_count=1_000_000,
        seconds=seconds,
        processor_seconds=processor_seconds,
        resident_bytes=70 * MIB,
        peak_bytes=80 * MIB,
    )


CAUGHT_UP = CatchUp(
    log_bytes=GIB,
    message_count=1_000_000,
    copied=copied(1.0, 2.0),
    dispatched=copied(2.0, 3.0),
    master_seconds=0.5,
    master_peak_bytes=60 * MIB,
    loopback_rate=4 * GIB,
    loopback_file_rate=2 * GIB,
)
REOPENED = Reopened(
    log_bytes=GIB,
    message_count=9_000,
    seconds=0.25,
    processor_seconds=0.5,
    resident_bytes=70 * MIB,
    peak_bytes=90 * MIB,
)


def test_catch_up_and_reopening_are_told_with_their_rates() -> None:
    loopback, log, tables, processes = render_catchup(CAUGHT_UP)
    assert loopback.endswith("received and written to a file 2,147 MB/s")
    assert "1,000,000 messages in 1.0 s: 1,074 MB/s (50% of the loopback with a file)" in log
    assert "in 2.0 s: 537 MB/s (25%" in tables
    assert "slave 3.0 s of processor time, 3.00 us per message" in tables
    assert processes.endswith("master 60 MiB, slave 80 MiB")
    assert render_reopened(REOPENED).startswith("1.0 GiB, 9,000 messages: open in 0.2 s (0.5 s of processor")


def test_the_chapter_has_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def told() -> CatchUp:
        return CAUGHT_UP

    def catch_up(directory: Path, *_: object) -> Coroutine[None, None, CatchUp]:
        assert directory.is_dir(), "it puts a file beside its stores"
        return told()

    monkeypatch.setattr(around, "measure_catchup", catch_up)
    monkeypatch.setattr(around, "measure_reopening", lambda *_: REOPENED)
    lines = measure_around(directory=tmp_path, on_progress=lambda _: None)
    assert lines[0] == "## Around the broker"
    assert all(f"- {line}" in lines for line in (*render_catchup(CAUGHT_UP), render_reopened(REOPENED)))
    assert list(tmp_path.iterdir()) == []
