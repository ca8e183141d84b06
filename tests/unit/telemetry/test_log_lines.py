"""The format of log lines."""

from __future__ import annotations

import logging
import sys

from tandemmq.telemetry.log_lines import KeyValueFormatter


def line(*, error: bool = False, common: dict[str, object] | None = None, **facts: object) -> str:
    record = logging.LogRecord("tandemmq.store", logging.INFO, "f.py", 1, "segment.rolled", None, None)
    record.created = 1_700_000_000.25
    vars(record).update(facts)
    if error:
        try:
            raise ValueError("broken")
        except ValueError:
            record.exc_info = sys.exc_info()
    return KeyValueFormatter(common).format(record)


def test_facts_stand_behind_the_event() -> None:
    assert line(path="/d/0", size_bytes=1024) == (
        "2023-11-14T22:13:20.250Z INFO tandemmq.store segment.rolled path=/d/0 size_bytes=1024"
    )


def test_facts_of_the_process_are_last() -> None:
    assert line(common={"worker": 2}, size_bytes=1).endswith(" segment.rolled size_bytes=1 worker=2")


def test_values_that_would_break_the_line_are_quoted() -> None:
    assert line(reason='a "b"\nc', empty="").endswith(r'reason="a \"b\"\nc" empty=""')


def test_traceback_follows() -> None:
    assert "segment.rolled\nTraceback" in line(error=True)


def test_addresses_are_host_and_port() -> None:
    assert line(peer=("10.0.0.1", 80), other=("::1", 81)).endswith("peer=10.0.0.1:80 other=[::1]:81")
