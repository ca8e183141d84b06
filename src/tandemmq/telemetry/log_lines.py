"""The format of a log event, one line with its facts as key=value, and the destination of such lines.

`2026-01-31T12:00:00.000Z INFO tandemmq.store segment.rolled path=/d/0 size_bytes=1024`

In the project's own processes `KeyValueFormatter` renders such lines, or `JsonFormatter` an object for each.
The client library runs in other processes, whose handlers show only the message: loggers of `event_logger`
add the facts to it.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Hashable, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
FORMATS: Final = ("text", "json")

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN: Final = re.compile(r"[^\s\"=]+")


class KeyValueFormatter(logging.Formatter):
    """Renders the `extra` fields of a record after its event, then `common` facts of the process; a traceback
    follows on separate lines.
    """

    def __init__(self, common: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._common = _render_facts(common or {})

    def format(self, record: logging.LogRecord) -> str:
        pieces = [_time_of(record), record.levelname, record.name, _event_of(record)]
        line = " ".join([*pieces, *_render_facts(_facts_of(record)), *self._common])
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """Renders a record as one JSON object in one line: time, level, logger and event, then the facts of the
    record and the `common` ones of the process, and a traceback as `traceback`.

    Numbers, booleans, lists and None keep their type. The four names win over a fact of the same name.
    """

    def __init__(self, common: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._common = dict(common or {})

    def format(self, record: logging.LogRecord) -> str:
        facts = {**_facts_of(record), **self._common}
        fields = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "event": _event_of(record),
        }
        members = {
            **fields,
            **{name: _json_value(value) for name, value in facts.items() if name not in fields},
        }
        if record.exc_info:
            members["traceback"] = self.formatException(record.exc_info)
        return json.dumps(members)


def _time_of(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


def _event_of(record: logging.LogRecord) -> str:
    return record.msg.event if isinstance(record.msg, EventText) else record.getMessage()


def _json_value(value: Any) -> Any:
    """Returns a value of which every JSON parser makes the same: text, unless JSON has its type."""
    if value is None or isinstance(value, bool | str) or (type(value) is int):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _json_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and not _is_address(value):
        return [_json_value(one) for one in value]
    return _text_of(value)


class EventText:
    """A message that shows its facts after the event, rendered when a handler requests it."""

    __slots__ = ("_facts", "event")

    def __init__(self, event: str, facts: Mapping[str, Any]) -> None:
        self.event = event
        self._facts = facts

    def __str__(self) -> str:
        return " ".join([self.event, *_render_facts(self._facts)])


def event_logger(name: str) -> logging.Logger:
    """Returns a logger whose messages include the facts of `extra`, for handlers of other programs."""
    log = logging.getLogger(name)
    log.addFilter(_append_facts)
    return log


def _append_facts(record: logging.LogRecord) -> bool:
    if isinstance(record.msg, str) and not record.args:
        record.msg = EventText(record.msg, _facts_of(record))
    return True


class Outages:
    """Limits warnings to one per outage: the first failure of a key is a warning, later ones are DEBUG until
    it works again. Keys identify what can fail: addresses, broker names, topics.
    """

    def __init__(self) -> None:
        self._failing: set[tuple[str, Hashable]] = set()

    def record_failure(
        self,
        log: logging.Logger,
        event: str,
        key: Hashable,
        facts: Mapping[str, Any],
        *,
        exc_info: BaseException | None = None,
    ) -> None:
        """Writes a line; `exc_info`: an exception whose traceback follows."""
        is_new = (event, key) not in self._failing
        self._failing.add((event, key))
        level = logging.WARNING if is_new else logging.DEBUG
        log.log(level, event, extra=dict(facts), exc_info=exc_info)

    def record_success(self, event: str, key: Hashable) -> None:
        if self._failing:
            self._failing.discard((event, key))


def make_handler(common: Mapping[str, Any] | None = None, form: str = "text") -> logging.Handler:
    """Returns a handler that writes such lines to standard error, with the facts of the process.

    `form` is one of `FORMATS`.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(common) if form == "json" else KeyValueFormatter(common))
    return handler


def show_warnings() -> None:
    """Sends TandemMQ's warnings to standard error in a process without logging handlers.

    Python would write them there without their facts.
    """
    ours = logging.getLogger("tandemmq")
    if not ours.hasHandlers():
        ours.addHandler(make_handler())


def _facts_of(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _render_facts(facts: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_render(value)}" for name, value in facts.items()]


def _is_address(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], int)


def _text_of(value: Any) -> str:
    if _is_address(value):
        host, port = value
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(value)


def _render(value: Any) -> str:
    text = _text_of(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def configure_logging(level: str, common: Mapping[str, Any] | None = None, form: str = "text") -> None:
    """Sends every logger's lines of `level` and above to standard error, with the facts of the process.

    `form` is one of `FORMATS`.
    """
    root = logging.getLogger()
    root.handlers[:] = [make_handler(common, form)]
    root.setLevel(level)
