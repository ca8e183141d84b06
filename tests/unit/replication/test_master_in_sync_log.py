"""The logging of slaves that enter and leave sync (spec replication 4.8)."""

from __future__ import annotations

import pytest

from tandemmq.replication.core.progress import LogRange
from tandemmq.replication.shell.master import InSyncLog
from tandemmq.telemetry import events
from tandemmq.units import ReplicaId

A, B = ReplicaId("a"), ReplicaId("b")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO", logger="tandemmq.replication.shell.master")
    return caplog


def told(log: pytest.LogCaptureFixture) -> list[tuple[str, str, int]]:
    """Returns the event, slave and count of each line since the last call."""
    lines = [(one.getMessage(), one.slave, one.in_sync_count) for one in log.records]  # type: ignore[attr-defined]  # extra
    log.clear()
    return lines


def test_entry_is_told_with_the_report_that_brings_it(log: pytest.LogCaptureFixture) -> None:
    subject = InSyncLog(100)
    subject.on_report(A, 900, LogRange(0, 1_000))
    assert told(log) == [], "the gap is strict"
    subject.on_report(A, 901, LogRange(0, 1_000))
    assert told(log) == [(events.SLAVE_IN_SYNC, A, 1)]
    subject.on_report(A, 1_000, LogRange(0, 1_000))
    subject.check({A: 1_000}, LogRange(0, 1_000))
    assert told(log) == []


def test_a_slave_at_the_border_is_told_of_once_per_check(log: pytest.LogCaptureFixture) -> None:
    subject = InSyncLog(100)
    for number in range(50):
        subject.on_report(A, number * 10, LogRange(0, number * 10 + 99))  # in
        subject.on_report(A, number * 10, LogRange(0, number * 10 + 100))  # out
    assert told(log) == [(events.SLAVE_IN_SYNC, A, 1)]
    subject.check({A: 0, B: 50}, LogRange(0, 100))
    assert told(log) == [(events.SLAVE_IN_SYNC, B, 1), (events.SLAVE_OUT_OF_SYNC, A, 1)]


def test_a_slave_that_is_gone_is_told_without_a_lag(log: pytest.LogCaptureFixture) -> None:
    subject = InSyncLog(100)
    subject.on_report(A, 0, LogRange(0, 0))
    subject.check({}, LogRange(0, 0))
    assert [one.lag_bytes for one in log.records] == [0, None]  # type: ignore[attr-defined]  # extra
    assert subject.count({}, LogRange(0, 0)) == 0
