"""How a log event looks, one line with its facts as key=value, and where such lines go.

`2026-01-31T12:00:00.000Z INFO tandemmq.store segment.rolled path=/d/0 size_bytes=1024`
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN: Final = re.compile(r"[^\s\"=]+")


class KeyValueFormatter(logging.Formatter):
    """Renders the `extra` fields of a record behind its event; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        pieces = [moment.replace("+00:00", "Z"), record.levelname, record.name, record.getMessage()]
        pieces += [
            f"{name}={_render(value)}" for name, value in vars(record).items() if name not in _STANDARD
        ]
        line = " ".join(pieces)
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


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
