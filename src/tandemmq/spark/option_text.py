"""Options as Spark hands them over: names and single values out of text.

Spark lower-cases the keys (spec spark SP-39). Pure: no Spark, no network, no clock.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from tandemmq.errors import ConfigError
from tandemmq.spark.option_table import OptionRow
from tandemmq.units import KIB, MIB

_E = TypeVar("_E", bound=Enum)

_OF_KAFKA: Final = {
    "kafka.bootstrap.servers": "give nameServer, the addresses of name servers: host:9876[;host:9876]",
    "kafka.group.id": "give group",
    "kafkaconsumer.polltimeoutms": "give pullTimeoutMs",
}
_OTHER_OF_KAFKA: Final = "settings of Kafka's clients mean nothing here; see docs/coming-from-kafka.md"

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def name_options(raw: Mapping[str, str], table: Sequence[OptionRow]) -> dict[str, str]:
    """The same options under their documented names.

    Raises:  ConfigError for a name that is unknown, or given twice under two spellings.
    """
    names = {spelling.lower(): row.name for row in table for spelling in (row.name, *row.aliases)}
    values: dict[str, str] = {}
    for key, value in raw.items():
        name = names.get(key.lower())
        if name is None and key.lower().startswith("kafka"):
            raise ConfigError(f"option {key}: {_OF_KAFKA.get(key.lower(), _OTHER_OF_KAFKA)}")
        if name is None:
            near = difflib.get_close_matches(key.lower(), list(names), n=1, cutoff=0.5)
            hint = f"; did you mean {names[near[0]]}?" if near else "."
            raise ConfigError(
                f"unknown option {key!r}{hint} Known options: {', '.join(r.name for r in table)}"
            )
        if name in values:
            raise ConfigError(f"option {name} is given twice under different names")
        values[name] = str(value).strip()
    return values


def parse_name_servers(values: Mapping[str, str]) -> tuple[str, ...]:
    """The addresses `host:port` of the option nameServer.

    Raises:  ConfigError when there is none, or for what is no address.
    """
    text = values.get("nameServer", "")
    servers = tuple(part.strip() for part in re.split(r"[;,]", text) if part.strip())
    if not servers:
        raise ConfigError("option nameServer is required: host:port[;host:port]")
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"option nameServer: expected host:port, got {server!r}")
    return servers


def parse_list(text: str) -> tuple[str, ...]:
    """The names between commas, each once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def parse_bool(values: Mapping[str, str], name: str, default: bool) -> bool:
    """Raises ConfigError for anything but true and false, in any case."""
    text = values.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"option {name}: expected true or false, got {text!r}")
    return text.lower() == "true"


def parse_int(values: Mapping[str, str], name: str, default: int | None, *, least: int) -> int | None:
    """The number; the default for no text. Raises ConfigError below `least`."""
    text = values.get(name)
    if text is None or text == "":
        return default
    try:
        number = int(text)
    except ValueError:
        raise ConfigError(f"option {name}: expected an integer, got {text!r}") from None
    if number < least:
        raise ConfigError(f"option {name}: expected at least {least}, got {number}")
    return number


def parse_size(values: Mapping[str, str], name: str, default: int | None) -> int | None:
    """Bytes of `1048576`, `512k`, `8m`, `1g`; the default for no text. Raises ConfigError."""
    text = values.get(name)
    if text is None or text == "":
        return default
    match = re.fullmatch(r"(\d+)\s*([kKmMgG]?)[bB]?", text)
    if match is None or int(match[1]) == 0:
        raise ConfigError(f"option {name}: expected a size such as 1048576, 512k or 8m, got {text!r}")
    return int(match[1]) * {"": 1, "k": KIB, "m": MIB, "g": 1024 * MIB}[match[2].lower()]


def parse_duration_s(values: Mapping[str, str], name: str, default_s: float) -> float:
    """Seconds of `500ms`, `30s`, `15m`, `2h`; a bare number is milliseconds."""
    text = values.get(name)
    if text is None or text == "":
        return default_s
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|)", text.lower())
    if match is None:
        raise ConfigError(f"option {name}: expected a time such as 500ms, 30s or 15m, got {text!r}")
    return int(match[1]) * {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


class Moment(NamedTuple):
    """A time in milliseconds, or, when `is_ago`, so many milliseconds before whenever it is asked for."""

    ms: int
    is_ago: bool = False

    def resolve(self, now_ms: int) -> int:
        return max(now_ms - self.ms, 0) if self.is_ago else self.ms


def parse_moment(values: Mapping[str, str], name: str) -> Moment | None:
    """What `1700000000000`, `2025-01-31T12:00:00+01:00`, `now` or `now-1h30m` mean; None for no text.

    A time without a zone is UTC.
    """
    text = values.get(name, "")
    if not text:
        return None
    if text.isdecimal():
        return Moment(int(text))
    match = re.fullmatch(r"now\s*(?:-\s*((?:\d+\s*(?:ms|s|m|h|d)\s*)+))?", text.lower())
    if match:
        parts = re.findall(r"(\d+)\s*(ms|s|m|h|d)", match[1] or "")
        return Moment(sum(int(count) * _UNITS_MS[unit] for count, unit in parts), is_ago=True)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"option {name}: expected milliseconds, a time such as 2025-01-31T12:00:00+01:00, or now-1h; "
            f"got {text!r}"
        ) from None
    return Moment(round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))


def parse_enum(values: Mapping[str, str], name: str, kind: type[_E], default: _E) -> _E:
    """The member with that value, in any case. Raises ConfigError, which lists all of them."""
    text = values.get(name)
    if text is None:
        return default
    for member in kind:
        if member.value == text.lower():
            return member
    raise ConfigError(f"option {name}: expected {', '.join(str(m.value) for m in kind)}, got {text!r}")


def require(number: int | None) -> int:
    """The number, where a default made sure that there is one."""
    assert number is not None
    return number
