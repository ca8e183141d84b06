"""The format of log lines."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tandemmq.telemetry.log_lines import JsonFormatter, KeyValueFormatter, event_logger


def line(
    *,
    error: bool = False,
    common: Mapping[str, object] | None = None,
    form: type[logging.Formatter] = KeyValueFormatter,
    **facts: object,
) -> str:
    record = logging.LogRecord("tandemmq.store", logging.INFO, "f.py", 1, "segment.rolled", None, None)
    record.created = 1_700_000_000.25
    vars(record).update(facts)
    if error:
        try:
            raise ValueError("broken")
        except ValueError:
            record.exc_info = sys.exc_info()
    return form(common).format(record)


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


def members(**given: Any) -> dict[str, Any]:
    text = line(form=JsonFormatter, **given)
    assert "\n" not in text
    found: dict[str, Any] = json.loads(text)
    return found


def test_json_has_the_event_and_its_facts_as_members() -> None:
    assert members(path=Path("/d/0"), size_bytes=1024, is_full=False, reason=None, common={"worker": 2}) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "INFO",
        "logger": "tandemmq.store",
        "event": "segment.rolled",
        "path": "/d/0",
        "size_bytes": 1024,
        "is_full": False,
        "reason": None,
        "worker": 2,
    }


def test_json_survives_every_value() -> None:
    found = members(
        text='a "b"\nc\udc80é',
        peer=("::1", 81),
        peers=[("10.0.0.1", 80), "x"],
        sync_set=frozenset({3}),
        by_code={7: 1.5},
        ratio=float("nan"),
        cause=ValueError("broken"),
        time="a fact cannot replace the time",
    )
    assert found["text"] == 'a "b"\nc\udc80é'
    assert (found["peer"], found["peers"], found["sync_set"]) == ("[::1]:81", ["10.0.0.1:80", "x"], [3])
    assert (found["by_code"], found["ratio"], found["cause"]) == ({"7": 1.5}, "nan", "broken")
    assert found["time"] == "2023-11-14T22:13:20.250Z"


def test_json_has_the_traceback_in_the_same_line() -> None:
    assert members(error=True)["traceback"].startswith("Traceback")


def test_json_of_the_clients_loggers_has_the_facts_once() -> None:
    record = logging.LogRecord("c", logging.INFO, "f.py", 1, "send.retried", None, None)
    record.broker = "b"
    event_logger("tandemmq.test_json").filter(record)
    found = json.loads(JsonFormatter().format(record))
    assert (found["event"], found["broker"]) == ("send.retried", "b")
