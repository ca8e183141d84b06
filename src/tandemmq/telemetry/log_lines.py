"""How a log event looks, one line with its facts as key=value, and where such lines go.

`2026-01-31T12:00:00.000Z INFO tandemmq.store segment.rolled path=/d/0 size_bytes=1024`

In a process of ours `KeyValueFormatter` renders such lines. The client library runs in processes of others,
whose handlers show the message only: loggers of `event_logger` put the facts into it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN: Final = re.compile(r"[^\s\"=]+")


class KeyValueFormatter(logging.Formatter):
    """Renders the `extra` fields of a record behind its event; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        event = record.msg.event if isinstance(record.msg, EventText) else record.getMessage()
        pieces = [moment.replace("+00:00", "Z"), record.levelname, record.name, event]
        line = " ".join([*pieces, *_render_facts(_facts_of(record))])
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class EventText:
    """A message that shows its facts behind the event, rendered when a handler asks for it."""

    __slots__ = ("_facts", "event")

    def __init__(self, event: str, facts: Mapping[str, Any]) -> None:
        self.event = event
        self._facts = facts

    def __str__(self) -> str:
        return " ".join([self.event, *_render_facts(self._facts)])


def event_logger(name: str) -> logging.Logger:
    """A logger whose messages carry the facts of `extra`, for handlers that are not ours."""
    log = logging.getLogger(name)
    log.addFilter(_show_facts)
    return log


def _show_facts(record: logging.LogRecord) -> bool:
    if isinstance(record.msg, str) and not record.args:
        record.msg = EventText(record.msg, _facts_of(record))
    return True


class Outages:
    """One warning per outage: the first failure of a thing is a warning, later ones are DEBUG until it works
    again. The keys are what can fail: addresses, broker names, topics.
    """

    def __init__(self) -> None:
        self._failing: set[tuple[str, Hashable]] = set()

    def note_failure(self, log: logging.Logger, event: str, key: Hashable, facts: Mapping[str, Any]) -> None:
        is_new = (event, key) not in self._failing
        self._failing.add((event, key))
        log.log(logging.WARNING if is_new else logging.DEBUG, event, extra=dict(facts))

    def note_success(self, event: str, key: Hashable) -> None:
        if self._failing:
            self._failing.discard((event, key))


def make_handler() -> logging.Handler:
    """What writes such lines to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(KeyValueFormatter())
    return handler


def show_warnings() -> None:
    """Sends our warnings to standard error in a process where nobody has set up logging.

    Python would write them there without their facts.
    """
    ours = logging.getLogger("tandemmq")
    if not ours.hasHandlers():
        ours.addHandler(make_handler())


def _facts_of(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _render_facts(facts: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_render(value)}" for name, value in facts.items()]


def _render(value: Any) -> str:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], int):
        host, port = value
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def configure_logging(level: str) -> None:
    """Sends every logger's lines of `level` and above to standard error."""
    root = logging.getLogger()
    root.handlers[:] = [make_handler()]
    root.setLevel(level)
