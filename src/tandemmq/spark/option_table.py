"""The options of the source as data (names, defaults, meaning), for the parser and the documentation, and the
parsers of single values. Pure: no Spark, no network, no clock.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from tandemmq.errors import ConfigError
from tandemmq.units import KIB, MIB

Read = Callable[[str, str], Any]
"""Returns the value of an option from its name and text; None for no text where the default then applies.

Raises:  ConfigError, which names the option and the allowed values.
"""

T = TypeVar("T")
E = TypeVar("E", bound=Enum)


def read_text(name: str, text: str) -> str:
    return text


def read_names(name: str, text: str) -> tuple[str, ...]:
    """Returns the comma-separated names without duplicates."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def parse_list(text: str) -> tuple[str, ...]:
    """Returns the comma-separated names without duplicates."""
    return read_names("", text)


def read_word(values: Mapping[str, T]) -> Callable[[str, str], T]:
    """Returns the parser of the words that name the values, ignoring case; the error lists all words."""

    def read(name: str, text: str) -> T:
        if text.lower() in values:
            return values[text.lower()]
        expected = (" or " if len(values) == 2 else ", ").join(values)
        raise ConfigError(f"option {name}: expected {expected}, got {text!r}")

    return read


def read_enum(kind: type[E]) -> Callable[[str, str], E]:
    """Returns the parser of the member with that value, ignoring case; the error lists all members."""
    return read_word({member.value: member for member in kind})


read_bool = read_word({"true": True, "false": False})
"""Returns the value of true or false, ignoring case."""


class OptionRow(NamedTuple):
    """One row of the table; `scope` is S (streaming), B (batch) or SB.

    `field` is the name of the parsed value. `shown`: the default in the documentation, if it depends on more
    than this option.
    """

    name: str
    default: str
    scope: str
    text: str
    field: str
    read: Read
    aliases: tuple[str, ...] = ()
    shown: str = ""


# The formatter would give each value of a row a line of its own.
# fmt: off
SECURITY_ROWS: tuple[OptionRow, ...] = (
    OptionRow(
        "accessKey", "", "SB", "ACL: the account that signs every request", "access_key", read_text,
    ),
    OptionRow(
        "secretKey", "", "SB",
        "ACL: the key that signs requests; never sent, shown or stored in checkpoints",
        "secret_key", read_text,
    ),
    OptionRow(
        "securityToken", "", "SB",
        "ACL: sent along, for temporary credentials", "security_token", read_text,
    ),
    OptionRow(
        "tls", "false", "SB",
        "TLS to name servers and brokers", "is_tls", read_bool, aliases=("tlsEnable",),
    ),
    OptionRow(
        "tls.ca", "", "SB",
        "PEM file with the certificates to trust, on every machine",
        "ca_path", read_text, shown="the system's",
    ),
    OptionRow(
        "tls.certificate", "", "SB",
        "PEM file with the client certificate, and with its key unless `tls.key` is set",
        "certificate_path", read_text,
    ),
    OptionRow("tls.key", "", "SB", "PEM file with the key of `tls.certificate`", "key_path", read_text),
    OptionRow(
        "tls.verify", "true", "SB",
        "`false`: accept any certificate and host name", "verifies_peer", read_bool,
    ),
)
# fmt: on
"""The options that source and sink share; their fields are those of `wire.Security`."""

SECURITY_NAMES = frozenset(name.lower() for row in SECURITY_ROWS for name in (row.name, *row.aliases))


def render_option_table(table: Sequence[OptionRow]) -> str:
    """Renders an option table as Markdown; `docs/spark/options.md` contains exactly this text."""
    lines = ["| option | default | for | meaning |", "|---|---|---|---|"]
    for row in table:
        also = f" (also `{'`, `'.join(row.aliases)}`)" if row.aliases else ""
        text = row.text.replace("||", r"\|\|")
        lines.append(f"| `{row.name}`{also} | {row.shown or row.default or '-'} | {row.scope} | {text} |")
    return "\n".join(lines) + "\n"


# Options as Spark passes them: lower-cased names (spec spark SP-39) and text values.

_OF_KAFKA: Final = {
    "kafka.bootstrap.servers": "give nameServer, the addresses of name servers: host:9876[;host:9876]",
    "kafka.group.id": "give group",
    "kafkaconsumer.polltimeoutms": "give pullTimeoutMs",
}
_OTHER_OF_KAFKA: Final = "settings of Kafka's clients mean nothing here; see docs/coming-from-kafka.md"

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def refuse_table(raw: Mapping[str, str]) -> None:
    """Raises ConfigError for the options of an SQL table: Spark passes them as `option.NAME` when the table
    is created, and not at all when it is used.
    """
    if raw and not any(key.lower().startswith("option.") for key in raw):
        return
    raise ConfigError(
        "no options were given. Spark keeps none of a table made by CREATE TABLE ... USING: to read, use "
        "CREATE TEMPORARY VIEW name USING tandemmq OPTIONS (nameServer 'host:9876', topic 'Orders') or "
        "spark.read; to write, use DataFrame.write"
    )


def suggest(name: str, known: Mapping[str, str]) -> str:
    """Returns the question whether the nearest known name was meant; `known`: the spellings by their lower
    case.
    """
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean {known[near[0]]}?" if near else "."


def list_spellings(table: Sequence[OptionRow]) -> dict[str, str]:
    """Returns the names of the rows by all their spellings, in lower case."""
    return {spelling.lower(): row.name for row in table for spelling in (row.name, *row.aliases)}


def parse_rows(raw: Mapping[str, str], table: Sequence[OptionRow]) -> dict[str, Any]:
    """Returns the value of each row by its field.

    Raises:  ConfigError for a name that is unknown, or given twice in two spellings, and for a text that a
             row's parser rejects.
    """
    names = list_spellings(table)
    texts: dict[str, str] = {}
    for key, text in raw.items():
        name = names.get(key.lower())
        if name is None and key.lower().startswith("kafka"):
            raise ConfigError(f"option {key}: {_OF_KAFKA.get(key.lower(), _OTHER_OF_KAFKA)}")
        if name is None:
            raise ConfigError(
                f"unknown option {key!r}{suggest(key, names)} Known options: "
                f"{', '.join(r.name for r in table)}"
            )
        if name in texts:
            raise ConfigError(f"option {name} is given twice under different names")
        texts[name] = str(text).strip()
    values = {}
    for row in table:
        value = row.read(row.name, texts.get(row.name, row.default))
        values[row.field] = row.read(row.name, row.default) if value is None else value
    return values


def read_name_servers(name: str, text: str) -> tuple[str, ...]:
    """Returns the addresses `host:port`.

    Raises:  ConfigError if there is none, or one is not an address.
    """
    servers = tuple(part.strip() for part in re.split(r"[;,]", text) if part.strip())
    if not servers:
        raise ConfigError(f"option {name} is required: host:port[;host:port]")
    for server in servers:
        host, _, port = server.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"option {name}: expected host:port, got {server!r}")
    return servers


def read_int(least: int, *, unit: int = 1) -> Read:
    """Returns the parser of a number from `least` on; with a `unit`, its result is divided by that."""

    def read(name: str, text: str) -> float | None:
        if not text:
            return None
        try:
            number = int(text)
        except ValueError:
            raise ConfigError(f"option {name}: expected an integer, got {text!r}") from None
        if number < least:
            raise ConfigError(f"option {name}: expected at least {least}, got {number}")
        return number if unit == 1 else number / unit

    return read


def read_size(name: str, text: str) -> int | None:
    """Returns the bytes of `1048576`, `512k`, `8m` or `1g`."""
    if not text:
        return None
    match = re.fullmatch(r"(\d+)\s*([kKmMgG]?)[bB]?", text)
    if match is None or int(match[1]) == 0:
        raise ConfigError(f"option {name}: expected a size such as 1048576, 512k or 8m, got {text!r}")
    return int(match[1]) * {"": 1, "k": KIB, "m": MIB, "g": 1024 * MIB}[match[2].lower()]


def read_duration_s(name: str, text: str) -> float | None:
    """Returns the seconds of `500ms`, `30s`, `15m` or `2h`; a bare number is milliseconds."""
    if not text:
        return None
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|)", text.lower())
    if match is None:
        raise ConfigError(f"option {name}: expected a time such as 500ms, 30s or 15m, got {text!r}")
    return int(match[1]) * _UNITS_MS[match[2] or "ms"] / 1000


class Moment(NamedTuple):
    """A time in milliseconds since 1970, or, if `is_ago`, the number of milliseconds before the time of
    evaluation.
    """

    ms: int
    is_ago: bool = False

    def resolve(self, now_ms: int) -> int:
        return max(now_ms - self.ms, 0) if self.is_ago else self.ms


def parse_time_ms(text: str) -> int:
    """Returns the milliseconds since 1970 of a number or an ISO time; a time without a zone is UTC.

    Raises:  ValueError for any other text.
    """
    if text.isdecimal():
        return int(text)
    moment = datetime.fromisoformat(text)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def read_moment(name: str, text: str) -> Moment | None:
    """Returns the moment that `1700000000000`, `2025-01-31T12:00:00+01:00`, `now` or `now-1h30m` names; None
    for no text.

    A time without a zone is UTC.
    """
    if not text:
        return None
    match = re.fullmatch(r"now\s*(?:-\s*((?:\d+\s*(?:ms|s|m|h|d)\s*)+))?", text.lower())
    if match:
        parts = re.findall(r"(\d+)\s*(ms|s|m|h|d)", match[1] or "")
        return Moment(sum(int(count) * _UNITS_MS[unit] for count, unit in parts), is_ago=True)
    try:
        return Moment(parse_time_ms(text))
    except ValueError:
        raise ConfigError(
            f"option {name}: expected milliseconds, a time such as 2025-01-31T12:00:00+01:00, or now-1h; "
            f"got {text!r}"
        ) from None
