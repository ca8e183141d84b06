"""The options of the source as data (names, defaults, meaning), for the parser and the documentation, and the
parsers of single values. Pure: no Spark, no network, no clock.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from tandemmq.errors import ConfigError
from tandemmq.units import KIB, MIB


class OptionRow(NamedTuple):
    """One row of the table; `scope` is S (streaming), B (batch) or SB."""

    name: str
    default: str
    scope: str
    text: str
    aliases: tuple[str, ...] = ()


OPTION_TABLE: tuple[OptionRow, ...] = (
    OptionRow(
        "nameServer",
        "required",
        "SB",
        "`host:port[;host:port]`",
        aliases=("endpoints", "namesrv", "nameServerAddress"),
    ),
    OptionRow(
        "subscribe",
        "one of these three",
        "SB",
        "topics, separated by commas",
        aliases=("topic",),
    ),
    OptionRow(
        "subscribePattern",
        "",
        "SB",
        "a regular expression that must match a whole topic name",
    ),
    OptionRow(
        "assign",
        "",
        "SB",
        'queues as JSON: `{"topic": {"broker-a": [0, 1]}}`, or `{"topic": [0, 1]}` of all brokers',
    ),
    OptionRow(
        "tags",
        "*",
        "SB",
        "`a || b`: the broker sends these tags only; fixed per checkpoint",
        aliases=("subExpression", "tag"),
    ),
    OptionRow(
        "filter",
        "",
        "SB",
        "an SQL92 condition over properties, evaluated by the broker: `price > 10 AND region = 'EU'`; "
        "instead of `tags`; fixed per checkpoint; brokers, RocketMQ's and ours, need "
        "`enablePropertyFilter=true`",
        aliases=("sql",),
    ),
    OptionRow(
        "startingOffsets",
        "latest (S), earliest (B)",
        "SB",
        "`earliest`, `latest` (S), `group` or JSON `{topic: {broker: {queue: offset}}}` with -2 earliest, -1 "
        "latest (S); `{topic: {queue: offset}}` where one broker only has that queue",
    ),
    OptionRow(
        "startingTimestamp",
        "",
        "SB",
        "from the first message stored at or after it: milliseconds, `2025-01-31T12:00:00+01:00` (UTC "
        "without a zone), `now`, `now-1h30m`; wins over `startingOffsets`",
        aliases=("startTimeMs",),
    ),
    OptionRow(
        "startingOffsetsByTimestamp",
        "",
        "SB",
        "JSON `{topic: {broker: {queue: milliseconds}}}`; wins over `startingTimestamp`",
    ),
    OptionRow(
        "startingOffsetsByTimestampStrategy",
        "latest",
        "SB",
        "a queue with nothing since the timestamp: `latest` starts at its end, `error` refuses",
    ),
    OptionRow(
        "endingOffsets",
        "latest",
        "B",
        "`latest` or JSON as above, exclusive",
    ),
    OptionRow(
        "endingTimestamp",
        "",
        "B",
        "up to the first message stored at or after it, exclusive; a time as above",
    ),
    OptionRow(
        "endingOffsetsByTimestamp",
        "",
        "B",
        "JSON as above",
    ),
    OptionRow(
        "failOnDataLoss",
        "true",
        "SB",
        "with messages that the broker no longer has: fail, or continue with its first message",
    ),
    OptionRow(
        "maxOffsetsPerTrigger",
        "",
        "S",
        "most messages per batch, shared out by backlog",
    ),
    OptionRow(
        "maxBytesPerTrigger",
        "",
        "S",
        "approximate bytes per batch, by the measured size of messages",
    ),
    OptionRow(
        "minOffsetsPerTrigger",
        "",
        "S",
        "wait for this many messages, at most `maxTriggerDelay`; the first batch of a run, and "
        "`availableNow`, do not wait",
    ),
    OptionRow(
        "maxTriggerDelay",
        "15m",
        "S",
        "longest wait for `minOffsetsPerTrigger`: `500ms`, `30s`, `15m`, `2h`, or milliseconds",
    ),
    OptionRow(
        "minPartitions",
        "",
        "SB",
        "split large ranges into at least about this many tasks",
    ),
    OptionRow(
        "maxRecordsPerPartition",
        "",
        "SB",
        "most messages per task",
    ),
    OptionRow(
        "packRecords",
        "20000",
        "SB",
        "neighbouring small ranges share a task up to this many messages; 0: one range per task",
    ),
    OptionRow(
        "group",
        "",
        "SB",
        "consumer group named in pulls; needed for `startingOffsets=group` and `commitProgress`",
        aliases=("consumerGroup",),
    ),
    OptionRow(
        "commitProgress",
        "true with `group`",
        "S",
        "commit the progress of the query as the group's offsets, so that every console shows its lag",
    ),
    OptionRow(
        "readFrom",
        "suggested",
        "SB",
        "`master`, `suggested` (as the broker says) or `prefer-slave`; falls back to another replica "
        "when one is down or lacks the range",
    ),
    OptionRow(
        "replica",
        "",
        "SB",
        "read this replica and no other: 0 is the master, 1 its first slave; for comparing replicas",
    ),
    OptionRow(
        "maxSlaveLag",
        "",
        "SB",
        "with `prefer-slave`: read from the master while its slave is more than this many bytes behind",
    ),
    OptionRow(
        "columns",
        "all",
        "SB",
        "columns to build, separated by commas; Spark cannot prune by itself; `kafka`: those of Spark's "
        "source for Kafka",
    ),
    OptionRow(
        "includeHeaders",
        "false",
        "SB",
        "with `columns=kafka`: the column `headers`, too",
    ),
    OptionRow(
        "filterPushdown",
        "auto",
        "B",
        "`auto`: read only what the conditions of the query leave, if the session has "
        "`spark.sql.python.filterPushdown.enabled=true`; `off`",
    ),
    OptionRow(
        "propertiesAs",
        "map",
        "SB",
        "`map`, `string` (as stored, cheaper) or `none`",
    ),
    OptionRow(
        "decompress",
        "true",
        "SB",
        "decompress the bodies",
    ),
    OptionRow(
        "verifyCrc",
        "false",
        "SB",
        "check the CRC of every body",
    ),
    OptionRow(
        "explain",
        "false",
        "SB",
        "a line `read.planned` in the driver's log for each batch: what is read, what the conditions skipped,"
        " the lag, the slaves that were skipped; and a line `read.finished` in the executors' for each task:"
        " bytes, answers, retries",
    ),
    OptionRow(
        "arrowRows",
        "5000",
        "SB",
        "most rows per Arrow batch",
    ),
    OptionRow(
        "arrowBytes",
        "2m",
        "SB",
        "approximate bytes per Arrow batch",
    ),
    OptionRow(
        "pullBatchSize",
        "32768",
        "SB",
        "messages asked for in one pull; our brokers answer up to 4 MiB of them, others as they are set up",
    ),
    OptionRow(
        "pullTimeoutMs",
        "3000",
        "SB",
        "deadline of each request",
    ),
    OptionRow(
        "fetchOffset.numRetries",
        "8",
        "SB",
        "attempts per replica round when brokers do not answer",
    ),
    OptionRow(
        "fetchOffset.retryIntervalMs",
        "250",
        "SB",
        "first pause between attempts; each further pause doubles it, up to 16 times this value",
    ),
    OptionRow(
        "namespace",
        "",
        "SB",
        "put before the names of topics and group: `namespace%name`, `%DLQ%namespace%name`; "
        "the column `topic` shows the whole name",
    ),
    OptionRow(
        "accessKey",
        "",
        "SB",
        "ACL: the account that signs every request",
    ),
    OptionRow(
        "secretKey",
        "",
        "SB",
        "ACL: the key that signs requests; never sent, shown or stored in checkpoints",
    ),
    OptionRow(
        "securityToken",
        "",
        "SB",
        "ACL: sent along, for temporary credentials",
    ),
    OptionRow(
        "tls",
        "false",
        "SB",
        "TLS to name servers and brokers",
        aliases=("tlsEnable",),
    ),
    OptionRow(
        "tls.ca",
        "the system's",
        "SB",
        "PEM file with the certificates to trust, on every machine",
    ),
    OptionRow(
        "tls.certificate",
        "",
        "SB",
        "PEM file with the client certificate, and with its key unless `tls.key` is set",
    ),
    OptionRow(
        "tls.key",
        "",
        "SB",
        "PEM file with the key of `tls.certificate`",
    ),
    OptionRow(
        "tls.verify",
        "true",
        "SB",
        "`false`: accept any certificate and host name",
    ),
)


SECURITY_ROWS = tuple(
    row
    for row in OPTION_TABLE
    if row.name in ("accessKey", "secretKey", "securityToken", "tls") or row.name.startswith("tls.")
)
"""The options that source and sink share."""


def render_option_table(table: Sequence[OptionRow] = OPTION_TABLE) -> str:
    """Renders an option table as Markdown; `docs/spark/options.md` contains exactly this text."""
    lines = ["| option | default | for | meaning |", "|---|---|---|---|"]
    for row in table:
        also = f" (also `{'`, `'.join(row.aliases)}`)" if row.aliases else ""
        text = row.text.replace("||", r"\|\|")
        lines.append(f"| `{row.name}`{also} | {row.default or '-'} | {row.scope} | {text} |")
    return "\n".join(lines) + "\n"


# Options as Spark passes them: lower-cased names (spec spark SP-39) and text values.

_E = TypeVar("_E", bound=Enum)

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


def name_options(raw: Mapping[str, str], table: Sequence[OptionRow]) -> dict[str, str]:
    """Returns the options under their documented names.

    Raises:  ConfigError for a name that is unknown, or given twice in two spellings.
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
    """Returns the addresses `host:port` of the option nameServer.

    Raises:  ConfigError if there is none, or one is not an address.
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
    """Returns the comma-separated names without duplicates."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def parse_bool(values: Mapping[str, str], name: str, default: bool) -> bool:
    """Returns the value of true or false, ignoring case; the default if absent. Raises ConfigError for
    others.
    """
    text = values.get(name)
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"option {name}: expected true or false, got {text!r}")
    return text.lower() == "true"


def parse_int(values: Mapping[str, str], name: str, default: int | None, *, least: int) -> int | None:
    """Returns the number; the default for no text. Raises ConfigError below `least`."""
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
    """Returns the bytes of `1048576`, `512k`, `8m` or `1g`; the default for no text. Raises ConfigError for
    others.
    """
    text = values.get(name)
    if text is None or text == "":
        return default
    match = re.fullmatch(r"(\d+)\s*([kKmMgG]?)[bB]?", text)
    if match is None or int(match[1]) == 0:
        raise ConfigError(f"option {name}: expected a size such as 1048576, 512k or 8m, got {text!r}")
    return int(match[1]) * {"": 1, "k": KIB, "m": MIB, "g": 1024 * MIB}[match[2].lower()]


def parse_duration_s(values: Mapping[str, str], name: str, default_s: float) -> float:
    """Returns the seconds of `500ms`, `30s`, `15m` or `2h`; a bare number is milliseconds."""
    text = values.get(name)
    if text is None or text == "":
        return default_s
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|)", text.lower())
    if match is None:
        raise ConfigError(f"option {name}: expected a time such as 500ms, 30s or 15m, got {text!r}")
    return int(match[1]) * {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


class Moment(NamedTuple):
    """A time in milliseconds since 1970, or, if `is_ago`, the number of milliseconds before the time of
    evaluation.
    """

    ms: int
    is_ago: bool = False

    def resolve(self, now_ms: int) -> int:
        return max(now_ms - self.ms, 0) if self.is_ago else self.ms


def parse_moment(values: Mapping[str, str], name: str) -> Moment | None:
    """Returns the moment that `1700000000000`, `2025-01-31T12:00:00+01:00`, `now` or `now-1h30m` names; None
    for no text.

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
    """Returns the member with that value, ignoring case. Raises ConfigError, which lists all members."""
    text = values.get(name)
    if text is None:
        return default
    for member in kind:
        if member.value == text.lower():
            return member
    raise ConfigError(f"option {name}: expected {', '.join(str(m.value) for m in kind)}, got {text!r}")


def require(number: int | None) -> int:
    """Returns the number, where a default guarantees that it is not None."""
    assert number is not None
    return number
