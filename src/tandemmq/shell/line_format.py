"""The line of a printed message by the user's template, such as `{keys}: {body}`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import typer

from tandemmq.admin.options import Text
from tandemmq.client import ReceivedMessage

PROPERTY: Final = "property."
_PART: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|\\[nt\\]|[{}]")
_ESCAPES: Final = {"{{": "{", "}}": "}", r"\n": "\n", r"\t": "\t", r"\\": "\\"}


def _time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")


FIELDS: Final[Mapping[str, Callable[[ReceivedMessage], str]]] = {
    "topic": lambda one: one.topic,
    "broker": lambda one: one.broker_name,
    "queue": lambda one: str(one.queue_id),
    "offset": lambda one: str(one.queue_offset),
    "id": lambda one: one.message_id,
    "tags": lambda one: one.tags,
    "keys": lambda one: " ".join(one.keys),
    "properties": lambda one: json.dumps(one.properties, ensure_ascii=False),
    "born_at": lambda one: _time(one.born_at_ms),
    "stored_at": lambda one: _time(one.stored_at_ms),
    "retries": lambda one: str(one.retry_count),
    "size": lambda one: str(len(one.body)),
}
"""The fields of a template beside `body` and `property.NAME`."""


@dataclass(frozen=True, slots=True)
class LineTemplate:
    """A template, cut into its texts and its fields in turn: the first part is a text."""

    parts: tuple[str, ...]

    def render(self, message: ReceivedMessage) -> bytes:
        """Returns the line of a message, without its line end."""
        line = bytearray()
        for number, part in enumerate(self.parts):
            if number % 2 == 0:
                line += part.encode("utf-8", "surrogateescape")
            elif part == "body":
                line += message.body
            elif part in FIELDS:
                line += FIELDS[part](message).encode()
            else:
                line += message.properties.get(part.removeprefix(PROPERTY), "").encode()
        return bytes(line)


def parse_template(text: str, option: str) -> LineTemplate:
    """Returns the template. Raises typer.BadParameter for an unknown field."""
    parts, begin = [""], 0
    for found in _PART.finditer(text):
        parts[-1] += text[begin : found.start()]
        begin = found.end()
        field = found[1]
        if field is None:
            if found[0] not in _ESCAPES:
                raise typer.BadParameter(f"{option} {text}: a single {found[0]}; write {found[0] * 2} for it")
            parts[-1] += _ESCAPES[found[0]]
        elif field == "body" or field in FIELDS or (field.startswith(PROPERTY) and field != PROPERTY):
            parts += [field, ""]
        else:
            allowed = ", ".join(["body", *FIELDS, f"{PROPERTY}NAME"])
            raise typer.BadParameter(f"{option} {text}: unknown field {field!r}; allowed are {allowed}")
    parts[-1] += text[begin:]
    return LineTemplate(tuple(parts))


TEMPLATE: Final = Text(parse_template)
