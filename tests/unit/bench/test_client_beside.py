"""The comparison of clients: the order of the rounds, absent clients, the table and the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from bench import client_beside
from bench.client_beside import (
    JAVA_CASES,
    JAVA_HERE,
    OURS,
    PAGE,
    Beside,
    ClientReading,
    MeasuredClient,
    parse_peer,
    peer_version,
    render_clients,
    render_page,
    run_clients,
)
from tandemmq.errors import TandemError

SEND, *_, POP = JAVA_CASES


def reading(client: str, case: str, per_second: float, client_us: float) -> ClientReading:
    return ClientReading(client, case, per_second, client_us, broker_us=12.34)


def test_clients_take_turns_after_a_round_that_does_not_count() -> None:
    measured: list[tuple[str, float]] = []

    @contextmanager
    def opened(name: str) -> Iterator[MeasuredClient]:
        def measure(seconds: float) -> list[ClientReading]:
            measured.append((name, seconds))
            return [reading(name, SEND, 100.0 * len(measured), 10.0)]

        yield MeasuredClient(name, measure)

    openers = {name: partial(opened, name) for name in ("a", "b")}
    found = run_clients(openers, rounds=2, seconds=3.0, on_progress=lambda _: None)
    assert measured == [("a", 3.0), ("b", 3.0), ("b", 3.0), ("a", 3.0), ("a", 3.0), ("b", 3.0)]
    assert [one.per_second for one in found.readings] == [300, 400, 500, 600]
    assert found.notes == []


def test_a_client_that_is_absent_or_fails_is_left_out() -> None:
    @contextmanager
    def absent() -> Iterator[MeasuredClient]:
        raise TandemError("nats-server is missing")
        yield

    calls = 0

    @contextmanager
    def failing() -> Iterator[MeasuredClient]:
        def measure(_: float) -> list[ClientReading]:
            nonlocal calls
            calls += 1
            if calls > 2:
                raise TandemError("the broker is gone")
            return [reading("b", SEND, 1.0, 1.0)]

        yield MeasuredClient("b", measure)

    progress: list[str] = []
    found = run_clients({"a": absent, "b": failing}, rounds=3, seconds=0.1, on_progress=progress.append)
    assert found.notes == [
        "a is left out: nats-server is missing",
        "b is left out from round 2 on: the broker is gone",
    ]
    assert set(found.notes) <= set(progress)
    assert len(found.readings) == 1, "of the round before it failed"
    assert calls == 3, "it is not tried again"


def test_the_table_has_medians_by_case_and_ours_first() -> None:
    readings = [reading("aiokafka", SEND, 50.0, 40.0)]
    readings += [reading(OURS, SEND, rate, 20.0) for rate in (1_000.0, 3_000.0, 2_000.0)]
    readings += [reading(JAVA_HERE, POP, 10.0, 25.0)]
    lines = render_clients(Beside(readings, ["nats.py is left out: it is missing"]))
    assert lines[:2] == ["", "- nats.py is left out: it is missing"]
    assert lines[5:] == [
        f"| {SEND} | {OURS} | 2,000 | 50,000 | 20.0 | 12.3 |",
        "|  | aiokafka | 50 | 25,000 | 40.0 | 12.3 |",
        f"| {POP} | {JAVA_HERE} | 10 | 40,000 | 25.0 | 12.3 |",
    ]
    page = render_page(Beside(readings, []), "2 processors.", 3)
    assert page.startswith(PAGE)
    assert "2 processors. Medians of 3 rounds." in page
    assert len(page.splitlines()) <= 120


def test_what_a_peer_prints_is_read() -> None:
    spent = {"client": 5.0, "broker": 7.0}
    rows = [
        {"case": "send", "in_flight": 64, "per_second": 9.0, "processor_us": spent},
        {"case": "consume, pull", "in_flight": 1, "per_second": 8.0, "processor_us": spent},
    ]
    assert parse_peer("nats.py", "".join(json.dumps(row) + "\n" for row in rows)) == [
        ClientReading("nats.py", "send, 64 in flight", 9.0, 5.0, 7.0),
        ClientReading("nats.py", "consume, pull", 8.0, 5.0, 7.0),
    ]


def test_peers_need_their_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_beside, "ROOT", tmp_path)
    monkeypatch.setattr(client_beside, "PEERS", tmp_path / ".venv-clients" / "bin" / "python")
    with pytest.raises(TandemError, match=r"\.venv-clients/bin/python is missing: run scripts/setup peers"):
        peer_version("aiokafka")
    monkeypatch.setattr(client_beside, "PEERS", tmp_path)
    assert peer_version("nats-py").count(".") == 2
    with pytest.raises(LookupError, match=r"peers\.txt lacks pika"):
        peer_version("pika")


def test_the_page_of_the_repository_is_of_the_tool() -> None:
    page = Path(__file__).parents[3] / "docs" / "client" / "speed.md"
    assert page.read_text().startswith(PAGE)
