"""The log lines that clients can cause."""

from __future__ import annotations

import logging

import pytest

from sim.manual_clock import ManualClock
from tandemmq.proxy.limited_lines import TEXT_CHARS_MAX, LimitedLines
from tandemmq.remoting.shared_bounds import LINES_MAX, LINES_PERIOD_S

log = logging.getLogger("tandemmq.test")


def test_a_flood_of_one_event_is_cut_and_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    lines = LimitedLines(clock)
    for _ in range(LINES_MAX + 5):
        lines.write(log, "a.failed", {"number": 1})
    lines.write(log, "b.failed", {})
    assert [record.message for record in caplog.records] == ["a.failed"] * LINES_MAX + ["b.failed"]
    clock.advance(LINES_PERIOD_S)
    lines.write(log, "a.failed", {})
    assert vars(caplog.records[-1])["suppressed_lines"] == 5


def test_a_line_is_as_long_as_its_facts_may_be(caplog: pytest.LogCaptureFixture) -> None:
    LimitedLines(ManualClock()).write(log, "a.failed", {"topic": "t" * 5000, "count": 5})
    assert (vars(caplog.records[0])["topic"], vars(caplog.records[0])["count"]) == ("t" * TEXT_CHARS_MAX, 5)


def test_a_bug_has_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    lines = LimitedLines(ManualClock())
    lines.write(log, "a.failed", {}, level=logging.ERROR, error=ValueError("a bug"))
    assert caplog.records[0].levelno == logging.ERROR
    assert "a bug" in caplog.text
