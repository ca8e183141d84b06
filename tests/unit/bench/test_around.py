"""The measurements around the loads: their lines, tables and chapter."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import around
from bench.around import client_rows, measure_around, render_catchup, render_reopened
from bench.catchup import CatchUp
from bench.catchup_node import CopyState
from bench.client_bench import ClientFigures
from bench.java.clusters import JAVA, MeasuredCluster
from bench.java.measure import ASYNC, Case, CaseFigures
from bench.reopen import Reopened
from tandemmq.units import GIB, MIB

SEND, READ = "send, 1 in flight", "consume, poll"
OURS = [ClientFigures(SEND, 300, 3.0, 50.0, 90.0), ClientFigures(READ, 600, 2.0)]


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


def of_java(case: str, per_second: float) -> CaseFigures:
    return CaseFigures(
        case=Case(setting=ASYNC, kind="send"),
        side=JAVA,
        per_second=per_second,
        p50_us=70.0,
        p99_us=110.0,
        p999_us=200.0,
        failed=0,
        processor_us={},
        private_bytes={},
        resident_bytes={},
    )


def test_catch_up_and_reopening_are_told_with_their_rates() -> None:
    loopback, log, tables, processes = render_catchup(CAUGHT_UP)
    assert loopback.endswith("received and written to a file 2,147 MB/s")
    assert "1,000,000 messages in 1.0 s: 1,074 MB/s (50% of the loopback with a file)" in log
    assert "in 2.0 s: 537 MB/s (25%" in tables
    assert "slave 3.0 s of processor time, 3.00 us per message" in tables
    assert processes.endswith("master 60 MiB, slave 80 MiB")
    assert render_reopened(REOPENED).startswith("1.0 GiB, 9,000 messages: open in 0.2 s (0.5 s of processor")


def test_clients_stand_in_one_row_and_a_reader_has_no_latency() -> None:
    assert client_rows(OURS, {})[1:] == [[SEND, "100", "50", "90"], [READ, "300", "-", "-"]]
    headings, *rows = client_rows(OURS, {SEND: of_java(SEND, 200.0), READ: of_java(READ, 100.0)})
    assert rows == [
        [SEND, "100", "50", "90", "200", "70", "110", "0.50"],
        [READ, "300", "-", "-", "100", "-", "-", "3.00"],
    ]
    assert len(headings) == len(rows[0])
    failed = ClientFigures(SEND, error="no route")
    assert client_rows([failed], {})[1] == [SEND, "no route", "-", "-"]


def test_the_chapter_has_all_of_it_and_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def running_ours(directory: Path, _setting: object) -> Iterator[MeasuredCluster]:
        yield MeasuredCluster("ours", "127.0.0.1:1", "", {})

    async def told() -> CatchUp:
        return CAUGHT_UP

    def catch_up(directory: Path, *_: object) -> Coroutine[None, None, CatchUp]:
        assert directory.is_dir(), "it puts a file beside its stores"
        return told()

    java = {SEND: of_java(SEND, 200.0), READ: of_java(READ, 100.0)}
    monkeypatch.setattr("bench.java.clusters.running_ours", running_ours)
    monkeypatch.setattr(around, "measure_catchup", catch_up)
    monkeypatch.setattr(around, "measure_reopening", lambda *_: REOPENED)
    monkeypatch.setattr(around, "measure_python_client", lambda *_, **__: OURS)
    monkeypatch.setattr(around, "measure_java_beside", lambda *_, **__: java)
    lines = measure_around(cache=tmp_path, directory=tmp_path, on_progress=lambda _: None)
    assert lines[0] == "## Around the broker"
    assert all(f"- {line}" in lines for line in (*render_catchup(CAUGHT_UP), render_reopened(REOPENED)))
    headings, rule, *rows = [line for line in lines if line.startswith("|")]
    assert {line.count("|") for line in (headings, rule, *rows)} == {9}
    assert rows[1] == f"| {READ} | 300 | - | - | 100 | - | - | 3.00 |"
    assert list(tmp_path.iterdir()) == []
