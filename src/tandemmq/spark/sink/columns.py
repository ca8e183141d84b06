"""Which column of a DataFrame is which part of a message.

A column that neither the sink nor the source knows is refused, because a misspelt `tag` that is silently left
out sends the wrong messages. Columns that only the source has (`queueOffset`, `msgId`, ...) are passed over,
so a topic that was read can be written as it is. Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from tandemmq.errors import ConfigError
from tandemmq.spark.columns import HEADERS_TYPE, MAP_TYPE, SOURCE_COLUMNS

_TEXT = ("string", "binary")
_WHOLE = ("tinyint", "smallint", "int", "bigint")

SINK_COLUMNS: dict[str, tuple[str, ...]] = {
    "body": _TEXT,
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "shardingKey": ("string",),
    "queueId": _WHOLE,
    "delayLevel": _WHOLE,
    "deliverAt": ("timestamp", "bigint"),
    "properties": (MAP_TYPE, "string", HEADERS_TYPE),
    "flag": _WHOLE,
    "uniqueKey": ("string",),
}
"""Each column of the sink and the Spark types that it may have."""

_ALIASES = {"value": "body", "partition": "queueId", "headers": "properties"}
_KEY = "key"
"""Kafka's: what orders rows is also what they are found by."""
_READ_ONLY = frozenset(column.name.lower() for column in SOURCE_COLUMNS)


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The place of each known column in the rows, by its name in SINK_COLUMNS."""

    places: dict[str, int]

    def place(self, name: str) -> int | None:
        return self.places.get(name)


def find_sink_columns(fields: Sequence[tuple[str, str]], *, has_topic_option: bool) -> SinkColumns:
    """The columns of a DataFrame, given as names and Spark types.

    Raises:  ConfigError naming a column that is missing, unknown, doubled or of a wrong type.
    """
    known = {name.lower(): name for name in (*SINK_COLUMNS, *_ALIASES)}
    labels = {label.lower() for label, _ in fields}
    places: dict[str, int] = {}
    for index, (label, type_name) in enumerate(fields):
        if label.lower() == _KEY:
            if type_name not in _TEXT:
                raise ConfigError(f"column {label}: expected {' or '.join(_TEXT)}, got {type_name}; cast it")
            places |= {name: index for name in ("keys", "shardingKey") if name.lower() not in labels}
            continue
        spelled = known.get(label.lower())
        if spelled is None:
            if label.lower() in _READ_ONLY:
                continue
            near = difflib.get_close_matches(label.lower(), list(known), n=1, cutoff=0.5)
            hint = f"; did you mean {known[near[0]]}?" if near else "."
            raise ConfigError(f"the sink knows no column {label!r}{hint} There are {', '.join(SINK_COLUMNS)}")
        name = _ALIASES.get(spelled, spelled)
        if name in places:
            raise ConfigError(f"the column {name} is there twice")
        # A map of strings may or may not hold nulls; its name says the same in both cases.
        if type_name not in SINK_COLUMNS[name]:
            raise ConfigError(
                f"column {label}: expected {' or '.join(SINK_COLUMNS[name])}, got {type_name}; cast it"
            )
        places[name] = index
    if "body" not in places:
        raise ConfigError("a column body (or value) is required")
    if "topic" not in places and not has_topic_option:
        raise ConfigError("either the option topic or a column topic is required")
    return SinkColumns(places)
