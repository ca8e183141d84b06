"""Log lines of the client library: readable through anybody's handlers, one per outage."""

from __future__ import annotations

import logging

import pytest

from tandemmq.telemetry.log_lines import KeyValueFormatter, Outages, event_logger

FACTS = {"topic": "T", "address": ("10.0.0.1", 9876), "error": "no route"}


def test_the_message_carries_the_facts(caplog: pytest.LogCaptureFixture) -> None:
    event_logger("tandemmq.test.facts").warning("pull.failed", extra=FACTS)
    (record,) = caplog.records
    assert record.getMessage() == 'pull.failed topic=T address=10.0.0.1:9876 error="no route"'
    assert record.topic == "T", "handlers that read the fields find them"  # type: ignore[attr-defined]


def test_our_own_lines_have_each_fact_once(caplog: pytest.LogCaptureFixture) -> None:
    for log in (event_logger("tandemmq.test.ours"), logging.getLogger("tandemmq.test.plain")):
        log.warning("pull.failed", extra=FACTS)
    ours, plain = (KeyValueFormatter().format(record).split(" ", 3)[3] for record in caplog.records)
    assert ours == plain == 'pull.failed topic=T address=10.0.0.1:9876 error="no route"'


def test_an_outage_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    log, outages = event_logger("tandemmq.test.outages"), Outages()
    with caplog.at_level(logging.DEBUG, log.name):
        for key in ("a", "a", "b", "a"):
            outages.record_failure(log, "pull.failed", key, {"broker": key})
        outages.record_success("commit.failed", "a")
        outages.record_failure(log, "pull.failed", "a", {"broker": "a"})
        outages.record_success("pull.failed", "a")
        outages.record_failure(log, "pull.failed", "a", {"broker": "a"})
    levels = [(record.levelname, record.broker) for record in caplog.records]  # type: ignore[attr-defined]
    assert levels == [
        ("WARNING", "a"),
        ("DEBUG", "a"),
        ("WARNING", "b"),
        ("DEBUG", "a"),
        ("DEBUG", "a"),
        ("WARNING", "a"),
    ]
