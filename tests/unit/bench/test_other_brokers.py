"""The nearest equivalents: what their tools print, what the section makes of it, and what a failure costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import nats_load
from bench.__main__ import app
from bench.java.clusters import JAVA, OURS
from bench.java.measure import CASES as PAIR_CASES
from bench.java.measure import CaseFigures
from bench.java.report import introduction, render_json, write_report
from bench.others import (
    BACKLOG,
    BATCHES,
    CASES,
    CLIENT,
    KAFKA,
    LIGHT,
    PAGE,
    SENDS,
    START,
    Case,
    Contestant,
    Others,
    choose,
    parse_consumed,
    parse_progress,
    producer_figures,
    producer_settings,
    render_others,
    report_absent,
    run_in_turns,
)
from tandemmq.errors import ConfigError, TandemError

NATS = "NATS JetStream 2.9.10, a plain load"
WINDOW = "7075 records sent, 1414.4 records/sec (1.38 MB/sec), 1.2 ms avg latency, 493.0 ms max latency."
WHOLE = (
    "20000 records sent, 2802.7 records/sec (2.74 MB/sec), 0.63 ms avg latency, 493.00 ms max latency,"
    " 0 ms 50th, 3 ms 95th, 7 ms 99th, 14 ms 99.9th."
)


def reading(case: Case, side: str, per_second: float = 1000.0, us: float = 0.0) -> CaseFigures:
    names = ("name server", "master") if side in (CLIENT, LIGHT, OURS, JAVA) else ("broker",)
    return CaseFigures(
        case=case,
        side=side,
        per_second=per_second,
        p50_us=us,
        p99_us=2 * us,
        p999_us=3 * us,
        failed=0,
        processor_us=dict.fromkeys(names, 12.5),
        private_bytes=dict.fromkeys(names, 30 << 20),
        resident_bytes=dict.fromkeys(names, 50 << 20),
    )


def test_producer_tells_windows_and_the_whole_run() -> None:
    window, whole = parse_progress(WINDOW), parse_progress(WHOLE)
    assert window is not None
    assert whole is not None
    assert (window.records, window.per_second, window.percentiles_ms) == (7075, 1414.4, None)
    assert (whole.records, whole.per_second, whole.percentiles_ms) == (20_000, 2802.7, (0, 7, 14))
    assert window.seconds == pytest.approx(5.0, abs=0.01)
    for other in ("", "SLF4J: Defaulting to no-operation (NOP) logger implementation", "5 records"):
        assert parse_progress(other) is None


def test_first_window_of_the_kafka_producer_is_not_counted() -> None:
    window, whole = parse_progress(WINDOW), parse_progress(WHOLE)
    assert window is not None
    assert whole is not None
    told = producer_figures(window, whole)
    assert told["count"] == 20_000 - 7_075
    assert told["seconds"] == pytest.approx(20_000 / 2802.7 - 7_075 / 1414.4)
    assert (told["p50_us"], told["p99_us"], told["p999_us"]) == (0.0, 7_000.0, 14_000.0)


def test_consumer_tells_when_it_had_read_how_much() -> None:
    header = "time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms"
    lines = (
        "2026-11-26 01:58:49:377, 0, 35.7822, 71.5625, 36641, 73280.0000, 0, 500, 71.5625, 73280.0000",
        "2026-11-26 01:58:49:881, 0, 105.9063, 139.1350, 108448, 142474.2063, 0, 504, 139.1350, 142474.2063",
    )
    first, second = map(parse_consumed, lines)
    assert first is not None
    assert second is not None
    assert second[0] - first[0] == pytest.approx(0.504)
    assert (first[1], second[1]) == (36_641, 108_448)
    assert [parse_consumed(line) for line in (header, "", "2026-11-26 01:58:49:377, 0")] == [None] * 3


@pytest.mark.parametrize("case", SENDS, ids=lambda case: case.name)
def test_kafka_without_batches_sends_each_record_in_a_request_of_its_own(case: Case) -> None:
    settings = producer_settings(case)
    assert (settings["acks"], settings["linger.ms"], settings["batch.size"]) == (1, 0, 0)
    assert settings["max.in.flight.requests.per.connection"] == case.in_flight
    # Of a batch, of a record, no key, the body's length and the body, no headers.
    record = 61 + 21 + 1 + 2 + 1024 + 1
    assert settings["buffer.memory"] in range(case.in_flight * record, (case.in_flight + 1) * record)
    assert settings["max.request.size"] in range(record, 2 * record)


def test_kafka_with_batches_has_as_many_of_them_at_a_time_as_ours() -> None:
    settings = producer_settings(BATCHES)
    assert (settings["batch.size"], settings["linger.ms"]) == (16_384, 5)
    assert settings["buffer.memory"] == BATCHES.in_flight * 16_384


def test_section_has_every_case_by_every_server_and_the_servers() -> None:
    found = Others()
    for rate in (900.0, 1000.0, 5000.0):
        for case in CASES:
            for side in (NATS, KAFKA, CLIENT):
                us = 0.0 if side == KAFKA and case != START else 250.0
                found.readings.append(reading(case, side, rate, us))
        found.readings.append(reading(SENDS[0], LIGHT, rate, 60.0))
    lines = render_others(found).splitlines()
    assert lines[0] == "Medians of 3 rounds; memory is the most after a case."
    assert lines[4:8] == [
        f"| {SENDS[0].name} | {CLIENT} | 1,000 | 12.5 | 0.25 | 0.50 |",
        f"|  | {LIGHT} | 1,000 | 12.5 | 0.06 | 0.12 |",
        f"|  | {KAFKA} | 1,000 | 12.5 | <1 | <1 |",
        f"|  | {NATS} | 1,000 | 12.5 | 0.25 | 0.50 |",
    ]
    assert f"| {BACKLOG.name} | {CLIENT} | 1,000 | 12.5 | - | - |" in lines
    assert lines[-3:] == [
        "| ours | 60 | 100 | 0.00 |",
        f"| {KAFKA.partition(',')[0]} | 30 | 50 | 0.00 |",
        "| NATS JetStream 2.9.10 | 30 | 50 | 0.00 |",
    ]


def test_missing_program_is_reported_in_one_line_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nats_load, "FOLDERS", ())
    told: list[str] = []
    report_absent(told.append)
    (line,) = told
    assert "apt-get install nats-server" in line
    monkeypatch.setattr(nats_load, "FOLDERS", (str(tmp_path),))
    (tmp_path / "nats-server").touch(mode=0o755)
    report_absent(told.append)
    assert told == [line]


def opened(*contestants: Contestant) -> Iterator[list[Contestant]]:
    yield list(contestants)


def test_each_case_is_measured_in_turns_by_those_that_have_it() -> None:
    ran: list[tuple[str, Case]] = []

    def contestant(side: str, cases: tuple[Case, ...] = CASES) -> Contestant:
        def run(case: Case) -> CaseFigures:
            ran.append((side, case))
            return reading(case, "whoever")

        return Contestant(side, cases, run)

    openers = {
        "first": contextmanager(lambda: opened(contestant("a"), contestant("b", SENDS))),
        "second": contextmanager(lambda: opened(contestant("c"))),
    }
    found = run_in_turns(openers, rounds=2, on_progress=lambda _: None)
    assert found.notes == []
    assert [(one.side, one.case) for one in found.readings] == ran
    assert [side for side, case in ran if case == SENDS[1]] == ["a", "b", "c", "c", "b", "a"]
    assert [side for side, case in ran if case == BACKLOG] == ["a", "c", "c", "a"]


@pytest.mark.parametrize("kind", [TandemError, ConnectionResetError, ValueError])
def test_failure_of_one_contestant_keeps_the_others_figures(kind: type[Exception]) -> None:
    error = kind("broken")
    stopped: list[str] = []

    def fail_at_backlog(case: Case) -> CaseFigures:
        if case == BACKLOG:
            raise error
        return reading(case, "")

    @contextmanager
    def open_absent() -> Iterator[list[Contestant]]:
        raise error
        yield []

    @contextmanager
    def open_failing() -> Iterator[list[Contestant]]:
        yield [Contestant(KAFKA, CASES, fail_at_backlog)]
        stopped.append(KAFKA)

    @contextmanager
    def open_whole() -> Iterator[list[Contestant]]:
        yield [Contestant(CLIENT, CASES, lambda case: reading(case, ""))]

    openers = {"NATS JetStream": open_absent, "Kafka": open_failing, OURS: open_whole}
    told: list[str] = []
    found = run_in_turns(openers, rounds=2, on_progress=told.append)
    assert found.notes == [
        "NATS JetStream is left out: broken",
        f"{KAFKA}, from {BACKLOG.name!r} on, is left out: broken",
    ]
    assert set(found.notes) < set(told)
    assert len([one for one in found.readings if one.side == CLIENT]) == 2 * len(CASES)
    assert [one.case for one in found.readings if one.side == KAFKA] == [*SENDS, BATCHES]
    assert stopped == [KAFKA]
    text = render_others(found)
    assert text.startswith("NATS JetStream is left out: broken\n")
    assert f"|  | {KAFKA} | 1,000 |" in text


def test_section_without_any_figures_is_its_notes() -> None:
    assert render_others(Others(notes=["Maven is missing"])) == "Maven is missing\n"


def test_page_and_json_hold_the_section_beside_the_pairs(tmp_path: Path) -> None:
    pairs = [reading(SENDS[0], side, us=10.0) for side in (OURS, JAVA)]
    others = Others([reading(SENDS[0], KAFKA)], ["NATS JetStream is left out: why"])
    write_report(pairs, ["A machine."], tmp_path, others, version="5.5.0")
    page = (tmp_path / "benchmarks.md").read_text()
    assert page.startswith(introduction("5.5.0", has_kernel=False))
    assert page.endswith(f"\n{PAGE}\n{render_others(others)}")
    told = json.loads((tmp_path / "benchmarks.json").read_text())
    assert told["others"]["notes"] == others.notes
    assert [one["side"] for one in told["others"]["readings"]] == [KAFKA]
    assert told["readings"] == json.loads(render_json(pairs, []))["readings"]


def test_failure_of_the_last_measurement_keeps_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> list[str]:
        raise OSError("the disk is full")

    pairs = [reading(SENDS[0], side, us=10.0) for side in (OURS, JAVA)]
    others = Others([reading(SENDS[0], KAFKA)])
    monkeypatch.setattr("bench.__main__.prepare_java", lambda *_: None)
    monkeypatch.setattr("bench.java.measure.measure_pairs", lambda *_, **__: pairs)
    monkeypatch.setattr("bench.others.measure_others", lambda **_: others)
    monkeypatch.setattr("bench.__main__.measure_around", fail)
    done = CliRunner().invoke(app, ["java", "--out", str(tmp_path)])
    assert isinstance(done.exception, OSError)
    assert (tmp_path / "benchmarks.md").read_text().endswith(render_others(others))


def test_a_plot_that_cannot_be_drawn_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.__main__.find_spec", lambda _: None)
    monkeypatch.setattr("bench.java.measure.measure_pairs", pytest.fail)
    done = CliRunner().invoke(app, ["java", "--out", str(tmp_path)])
    assert isinstance(done.exception, ConfigError)
    assert "matplotlib" in str(done.exception)


def test_section_is_chosen_by_a_part_of_its_name_and_runs_with_everything() -> None:
    assert choose([]) == (list(PAIR_CASES), True)
    for text in ("Kafka", "NATS", "Nearest equivalents"):
        assert choose([text]) == ([], True)
    cases, has_others = choose(["one tag of four", "Kafka"])
    assert ([case.kind for case in cases], has_others) == (["filter"], True)
    assert choose(["one tag of four"]) == (cases, False)
    with pytest.raises(TandemError, match=r"no case has 'Pulsar' in its name; there are: .*Apache Kafka"):
        choose(["Pulsar"])


def test_readings_of_the_light_generator_are_told_under_the_case_they_stand_beside() -> None:
    light = Contestant(LIGHT, SENDS, lambda case: reading(replace(case, kind="light"), OURS))
    found = run_in_turns({OURS: contextmanager(lambda: opened(light))}, rounds=1, on_progress=lambda _: None)
    assert [(one.case, one.side) for one in found.readings] == [(case, LIGHT) for case in SENDS]
