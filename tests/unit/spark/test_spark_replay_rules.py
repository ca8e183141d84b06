"""Tests the stored progress of a replay, and the parsing of its times and rates."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from io import StringIO
from pathlib import Path
from shutil import rmtree

import pytest

import tandemmq.spark.sink.writer
from tandemmq.errors import ConfigError
from tandemmq.spark.lake.files import SUMMARY_FILE, Totals, batch_dir, claim_lake
from tandemmq.spark.lake.view import view_lake
from tandemmq.spark.pipelines.dead_letters import _make_letter
from tandemmq.spark.pipelines.events import ResultReporter
from tandemmq.spark.pipelines.options import DeadLetterOptions, ReplayOptions, parse_time
from tandemmq.spark.pipelines.replay import Replay, load_state
from tandemmq.spark.pipelines.runner import StopFlag, Workplace
from tandemmq.spark.sink.options import parse_sink_options
from tandemmq.spark.sink.writer import Pace


def make(tmp_path: Path, *, where: str = "", rate: int | None = None) -> ReplayOptions:
    return ReplayOptions(lake=tmp_path, name_servers="h:1", to_topic="T", where=where, rate=rate)


def test_what_is_done_survives_and_adds_up(tmp_path: Path) -> None:
    options = make(tmp_path)
    state = load_state(options.state_path, options.plan())
    assert (state.done, state.total.rows) == ({}, 0)
    state.mark("0", 10, 100)
    state.mark("2", 5, 50)
    again = load_state(options.state_path, options.plan())
    assert (set(again.done), again.total) == ({"0", "2"}, Totals(rows=15, size_bytes=150))


def test_another_plan_is_refused_and_another_rate_is_not(tmp_path: Path) -> None:
    options = make(tmp_path)
    load_state(options.state_path, options.plan()).mark("0", 1, 1)
    load_state(options.state_path, make(tmp_path, rate=7).plan())
    with pytest.raises(ConfigError, match=r"other options \(where\)"):
        load_state(options.state_path, make(tmp_path, where="x = 1").plan())


def test_a_compaction_in_the_middle_of_a_replay_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    monkeypatch.setattr(Replay, "_send", lambda self, view, piece, *args, **more: sent.append(piece.name))
    options = make(tmp_path)
    state = load_state(options.state_path, options.plan())
    place = Workplace(None, ResultReporter(StringIO(), StringIO()), StopFlag())  # type: ignore[arg-type]
    replay = Replay(place, options, state)

    def send_all(*ranges: tuple[int, int]) -> None:
        for batch, last in ranges:
            directory = batch_dir(tmp_path, batch)
            directory.mkdir(exist_ok=True)
            (directory / "part.parquet").touch()
            summary = {"rows": 1, "bytes": 1, "batches": [batch, last]}
            (directory / SUMMARY_FILE).write_text(json.dumps(summary))
        replay._send_all(view_lake(tmp_path))

    for batch in (0, 1):
        state.mark(str(batch), 1, 1)
    send_all((0, 0), (1, 1), (2, 2))
    assert sent == ["2"]
    # Completely sent batches may be merged; batches without rows have no directory.
    rmtree(batch_dir(tmp_path, 1))
    send_all((0, 1), (2, 2))
    with pytest.raises(ConfigError, match="batch 0, which is sent, now holds those up to 2"):
        send_all((0, 2), (3, 3))


def test_another_lake_or_cluster_has_nothing_done(tmp_path: Path) -> None:
    one, other, state = tmp_path / "one", tmp_path / "other", tmp_path / "state.json"
    claim_lake(one, "q1")
    claim_lake(other, "q2")
    base = replace(make(one), name_servers="h:1;i:1", state=state)
    load_state(state, base.plan()).mark("0", 1, 1)
    moved = tmp_path / "moved"
    one.rename(moved)
    for same in (replace(base, lake=moved), replace(base, lake=moved, name_servers="i:1;j:1")):
        assert load_state(state, same.plan()).total.rows == 1
    with pytest.raises(ConfigError, match=r"other options \(lake\)"):
        load_state(state, replace(base, lake=other).plan())
    with pytest.raises(ConfigError, match="belongs to the cluster of h:1;i:1, this is k:1"):
        load_state(state, replace(base, lake=moved, name_servers="k:1").plan())
    # A file of a version that did not store these options.
    document = json.loads(state.read_text())
    del document["plan"]["lake"], document["plan"]["namesrv"]
    state.write_text(json.dumps(document))
    assert load_state(state, replace(base, lake=other, name_servers="k:1").plan()).total.rows == 1


def test_the_dead_letters_of_another_cluster_are_not_sent_yet(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    options = DeadLetterOptions(name_servers="h:1", group="g", resend=True, state=state)
    load_state(state, options.plan()).mark("%DLQ%g/b/0/7", 1, 1)
    with pytest.raises(ConfigError, match="belongs to the cluster of h:1"):
        load_state(state, replace(options, name_servers="i:1").plan())


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as zone:
        zone.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("new_york")
def test_when_a_letter_died_is_told_in_utc() -> None:
    row = dict.fromkeys(("origin", "originId", "keys", "error", "body", "reconsumeTimes"))
    # The form of a time in Spark's rows.
    row["storeTimestamp"] = datetime.fromtimestamp(1_700_000_000)  # type: ignore[assignment]
    assert _make_letter(row).stored_at == "2023-11-14 22:13:20"


def test_times() -> None:
    assert parse_time("--from-time", "1700000000000") == 1_700_000_000_000
    assert parse_time("--from-time", "2023-11-14T22:13:20") == 1_700_000_000_000
    assert parse_time("--from-time", "2023-11-14T23:13:20+01:00") == 1_700_000_000_000
    with pytest.raises(ConfigError, match="--from-time"):
        parse_time("--from-time", "yesterday")


def test_the_rate_is_shared_out_to_the_tasks_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert parse_sink_options(make(tmp_path, rate=5000).sink_options()).task_rows_per_s == 2500
    assert parse_sink_options(make(tmp_path).sink_options()).task_rows_per_s is None
    now = [100.0]
    monkeypatch.setattr(tandemmq.spark.sink.writer.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        tandemmq.spark.sink.writer.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds)
    )
    pace = Pace(50)
    for _ in range(10):
        pace.wait(25)
    assert now[0] == pytest.approx(105.0)
