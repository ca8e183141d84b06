"""The options of the source: the table that names and documents them, and the parser (`parse_options`).

Spark passes options as text with lower-cased keys (spec spark SP-39). A key that the table does not contain
is rejected with the nearest known name, because a misspelt option that is silently ignored reads the wrong
data.

The result is a frozen, picklable dataclass that is sent to every executor. Pure: no Spark, no network, no
clock.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from tandemmq.errors import ConfigError
from tandemmq.protocol.topic_names import NAMESPACE_SEPARATOR, wrap_name
from tandemmq.spark.offsets import (
    ANY_BROKER,
    EARLIEST,
    FIRST_PACKING,
    LATEST,
    PackingOptions,
    Positions,
    QueueKey,
    flatten_positions,
    render_queues,
)
from tandemmq.spark.option_table import (
    SECURITY_ROWS,
    Moment,
    OptionRow,
    parse_rows,
    read_bool,
    read_duration_s,
    read_enum,
    read_int,
    read_moment,
    read_name_servers,
    read_names,
    read_size,
    read_text,
    read_word,
    refuse_table,
)
from tandemmq.spark.wire import Security, take_security

ALL = "all"
"""The value of the option `columns` that selects every column of a record."""

KAFKA = "kafka"
"""The value of the option `columns` that selects the columns of Spark's Kafka source."""

PULL_GROUP = "TOOLS_CONSUMER"
"""The consumer group in pulls if the user names none; it exists on every broker (spec semantics 2)."""


class ReadPreference(Enum):
    """The replica that answers the pulls."""

    MASTER = "master"
    SUGGESTED = "suggested"
    PREFER_SLAVE = "prefer-slave"


class PropertiesAs(Enum):
    """The form of the column `properties`."""

    MAP = "map"
    STRING = "string"
    NONE = "none"


class StartKind(Enum):
    """The start or end of a queue for which no offset is given."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"
    TIMESTAMP = "timestamp"
    OFFSETS = "offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRule:
    """A rule for finding a start or an end, before any broker is asked.

    `offsets` may contain EARLIEST (-2) and LATEST (-1); queues that it does not name begin at the earliest
    and end at the latest message. `timestamps` contains milliseconds per queue; `moment` applies to queues
    not named there. `is_strict` rejects a timestamp after the last message of a queue; otherwise the end of
    the queue is used.
    """

    kind: StartKind
    offsets: Positions = field(default_factory=dict)
    timestamps: Positions = field(default_factory=dict)
    moment: Moment | None = None
    is_strict: bool = False


def read_tags(name: str, text: str) -> tuple[str, ...]:
    """Returns the tags of `a || b`, without duplicates, in the given order; empty for `*` (everything)."""
    if text.strip() in ("", "*"):
        return ()
    tags = [tag.strip() for tag in text.split("||")]
    if not all(tags) or "*" in tags:
        raise ConfigError(f"option {name}: expected `*` or `a || b`, got {text!r}")
    return tuple(dict.fromkeys(tags))


def _read_pattern(name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigError(f"option {name}: {error}") from error
    return text


def _read_assign(name: str, text: str) -> tuple[QueueKey, ...]:
    queues: set[QueueKey] = set()
    for topic, brokers in _read_json(name, text).items() if text else ():
        named = {ANY_BROKER: brokers} if isinstance(brokers, list) else brokers
        lists = named.values() if isinstance(named, dict) else [None]
        if not all(
            isinstance(ids, list) and all(isinstance(i, int) and i >= 0 for i in ids) for ids in lists
        ):
            raise ConfigError(f'option {name}: expected {{"topic": {{"broker": [0, 1]}}}}')
        queues.update(QueueKey(topic, broker, number) for broker, ids in named.items() for number in ids)
    return tuple(sorted(queues))


def _read_offsets(*kinds: StartKind) -> Callable[[str, str], PositionRule | None]:
    """Returns the parser of the value of one of `kinds`, or of JSON with offsets."""

    def read(name: str, text: str) -> PositionRule | None:
        if not text or text in [kind.value for kind in kinds]:
            return PositionRule(kind=StartKind(text)) if text else None
        if not text.lstrip().startswith("{"):
            words = ", ".join(kind.value for kind in kinds)
            raise ConfigError(f"option {name}: expected {words} or JSON, got {text!r}")
        return PositionRule(kind=StartKind.OFFSETS, offsets=_read_positions(name, text, least=EARLIEST))

    return read


def _read_commits(name: str, text: str) -> bool | None:
    """Returns None for no text: the default depends on the option `group`."""
    return read_bool(name, text) if text else None


def _read_timestamps(name: str, text: str) -> Positions | None:
    return _read_positions(name, text, least=0) if text else None


def _read_positions(name: str, text: str, *, least: int) -> Positions:
    document = _read_json(name, text)
    try:
        positions = flatten_positions(document)
    except ConfigError as error:
        raise ConfigError(f"option {name}: {error}") from error
    for queue, offset in positions.items():
        if offset < least:
            raise ConfigError(
                f"option {name}: {offset} of {render_queues([queue])} is below {least} "
                f"(-2 earliest, {LATEST} latest)"
            )
    return positions


def _read_json(name: str, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"option {name}: expected JSON, got {text!r} ({error})") from error
    if not isinstance(document, dict):
        raise ConfigError(f"option {name}: expected a JSON object, got {text!r}")
    return document


# The formatter would give each value of a row a line of its own.
# fmt: off
OPTION_TABLE: tuple[OptionRow, ...] = (
    OptionRow(
        "nameServer", "", "SB",
        "`host:port[;host:port]`", "name_servers", read_name_servers,
        aliases=("endpoints", "namesrv", "nameServerAddress"), shown="required",
    ),
    OptionRow(
        "subscribe", "", "SB",
        "topics, separated by commas", "topics", read_names, aliases=("topic",), shown="one of these three",
    ),
    OptionRow(
        "subscribePattern", "", "SB",
        "a regular expression that must match a whole topic name", "topic_pattern", _read_pattern,
    ),
    OptionRow(
        "assign", "", "SB",
        'queues as JSON: `{"topic": {"broker-a": [0, 1]}}`, or `{"topic": [0, 1]}` of all brokers',
        "assigned", _read_assign,
    ),
    OptionRow(
        "tags", "*", "SB",
        "`a || b`: the broker sends these tags only; fixed per checkpoint",
        "tags", read_tags, aliases=("subExpression", "tag"),
    ),
    OptionRow(
        "filter", "", "SB",
        "an SQL92 condition over properties, evaluated by the broker: `price > 10 AND region = 'EU'`; "
        "instead of `tags`; fixed per checkpoint; brokers, RocketMQ's and ours, need "
        "`enablePropertyFilter=true`", "sql", read_text, aliases=("sql",),
    ),
    OptionRow(
        "startingOffsets", "", "SB",
        "`earliest`, `latest` (S), `group` or JSON `{topic: {broker: {queue: offset}}}` with -2 earliest, "
        "-1 latest (S); `{topic: {queue: offset}}` where one broker only has that queue",
        "start", _read_offsets(StartKind.EARLIEST, StartKind.LATEST, StartKind.GROUP),
        shown="latest (S), earliest (B)",
    ),
    OptionRow(
        "startingTimestamp", "", "SB",
        "from the first message stored at or after it: milliseconds, `2025-01-31T12:00:00+01:00` (UTC "
        "without a zone), `now`, `now-1h30m`; wins over `startingOffsets`",
        "start_moment", read_moment, aliases=("startTimeMs",),
    ),
    OptionRow(
        "startingOffsetsByTimestamp", "", "SB",
        "JSON `{topic: {broker: {queue: milliseconds}}}`; wins over `startingTimestamp`",
        "start_times", _read_timestamps,
    ),
    OptionRow(
        "startingOffsetsByTimestampStrategy", "latest", "SB",
        "a queue with nothing since the timestamp: `latest` starts at its end, `error` refuses",
        "is_start_strict", read_word({"latest": False, "error": True}),
    ),
    OptionRow(
        "endingOffsets", "", "B",
        "`latest` or JSON as above, exclusive", "end", _read_offsets(StartKind.LATEST), shown="latest",
    ),
    OptionRow(
        "endingTimestamp", "", "B",
        "up to the first message stored at or after it, exclusive; a time as above",
        "end_moment", read_moment,
    ),
    OptionRow("endingOffsetsByTimestamp", "", "B", "JSON as above", "end_times", _read_timestamps),
    OptionRow(
        "limit", "", "B",
        "the most messages to read, from the start of each queue, shared out by size; `tags`, `filter` and "
        "the conditions of the query may leave fewer rows", "count_max", read_int(1),
    ),
    OptionRow(
        "failOnDataLoss", "true", "SB",
        "with messages that the broker no longer has: fail, or continue with its first message",
        "fail_on_data_loss", read_bool,
    ),
    OptionRow(
        "maxOffsetsPerTrigger", "", "S",
        "most messages per batch, shared out by backlog", "trigger_records_max", read_int(1),
    ),
    OptionRow(
        "maxBytesPerTrigger", "", "S",
        "approximate bytes per batch, by the measured size of messages", "trigger_bytes_max", read_size,
    ),
    OptionRow(
        "minOffsetsPerTrigger", "0", "S",
        "wait for this many messages, at most `maxTriggerDelay`; the first batch of a run, and "
        "`availableNow`, do not wait", "trigger_records_min", read_int(0), shown="-",
    ),
    OptionRow(
        "maxTriggerDelay", "15m", "S",
        "longest wait for `minOffsetsPerTrigger`: `500ms`, `30s`, `15m`, `2h`, or milliseconds",
        "trigger_delay_s", read_duration_s,
    ),
    OptionRow(
        "minPartitions", "", "SB",
        "split large ranges into at least about this many tasks", "partitions_min", read_int(0),
    ),
    OptionRow("maxRecordsPerPartition", "", "SB", "most messages per task", "records_max", read_int(0)),
    OptionRow(
        "packRecords", "", "SB",
        "neighbouring small ranges share a task up to this many messages; 0: one range per task",
        "pack_records", read_int(0), shown="20000",
    ),
    OptionRow(
        "group", "", "SB",
        "consumer group named in pulls; needed for `startingOffsets=group` and `commitProgress`",
        "group", read_text, aliases=("consumerGroup",),
    ),
    OptionRow(
        "commitProgress", "", "S",
        "commit the progress of the query as the group's offsets, so that every console shows its lag",
        "commit_progress", _read_commits, shown="true with `group`",
    ),
    OptionRow(
        "readFrom", "suggested", "SB",
        "`master`, `suggested` (as the broker says) or `prefer-slave`; falls back to another replica when "
        "one is down or lacks the range", "read_from", read_enum(ReadPreference),
    ),
    OptionRow(
        "replica", "", "SB",
        "read this replica and no other: 0 is the master, 1 its first slave; for comparing replicas",
        "replica", read_int(0),
    ),
    OptionRow(
        "maxSlaveLag", "", "SB",
        "with `prefer-slave`: read from the master while its slave is more than this many bytes behind",
        "slave_lag_bytes_max", read_size,
    ),
    OptionRow(
        "columns", "", "SB",
        "columns to build, separated by commas; Spark cannot prune by itself; `all`: all 18 of a record; "
        "`kafka`: those of Spark's source for Kafka", "columns", read_names, shown="12 of a record",
    ),
    OptionRow(
        "includeHeaders", "false", "SB",
        "with `columns=kafka`: the column `headers`, too", "has_headers", read_bool,
    ),
    OptionRow(
        "filterPushdown", "auto", "B",
        "`auto`: read only what the conditions of the query leave, if the session has "
        "`spark.sql.python.filterPushdown.enabled=true`; `off`", "can_push_filters",
        read_word({"auto": True, "off": False}),
    ),
    OptionRow(
        "propertiesAs", "map", "SB",
        "`map`, `string` (as stored, cheaper) or `none`", "properties_as", read_enum(PropertiesAs),
    ),
    OptionRow("decompress", "true", "SB", "decompress the bodies", "decompress", read_bool),
    OptionRow("verifyCrc", "false", "SB", "check the CRC of every body", "verify_crc", read_bool),
    OptionRow(
        "explain", "false", "SB",
        "a line `read.planned` in the driver's log for each batch: what is read, what the conditions "
        "skipped, the lag, the slaves that were skipped; and a line `read.finished` in the executors' for "
        "each task: bytes, answers, retries", "is_explained", read_bool,
    ),
    OptionRow("arrowRows", "5000", "SB", "most rows per Arrow batch", "arrow_rows", read_int(1)),
    OptionRow("arrowBytes", "2m", "SB", "approximate bytes per Arrow batch", "arrow_bytes", read_size),
    OptionRow(
        "pullBatchSize", "32768", "SB",
        "messages asked for in one pull; our brokers answer up to 4 MiB of them, others as they are set "
        "up", "pull_batch_size", read_int(1),
    ),
    OptionRow(
        "pullTimeoutMs", "3000", "SB",
        "deadline of each request", "pull_timeout_s", read_int(1, unit=1000),
    ),
    OptionRow(
        "fetchOffset.numRetries", "8", "SB",
        "attempts per replica round when brokers do not answer", "retry_count", read_int(0),
    ),
    OptionRow(
        "fetchOffset.retryIntervalMs", "250", "SB",
        "first pause between attempts; each further pause doubles it, up to 16 times this value",
        "retry_interval_s", read_int(1, unit=1000),
    ),
    OptionRow(
        "namespace", "", "SB",
        "put before the names of topics and group: `namespace%name`, `%DLQ%namespace%name`; the column "
        "`topic` shows the whole name", "namespace", read_text,
    ),
    *SECURITY_ROWS,
)
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options of a reader; made by `parse_options`."""

    name_servers: tuple[str, ...]
    topics: tuple[str, ...]
    topic_pattern: str
    assigned: tuple[QueueKey, ...]
    tags: tuple[str, ...]
    sql: str
    start: PositionRule | None
    end: PositionRule
    count_max: int | None
    fail_on_data_loss: bool
    trigger_records_max: int | None
    trigger_bytes_max: int | None
    trigger_records_min: int
    trigger_delay_s: float
    packing: PackingOptions
    unpinned_packing: PackingOptions
    """The packing of batches whose end offset contains none: the user's options, with the defaults of the
    releases that wrote such offsets.
    """
    group: str
    commit_progress: bool
    read_from: ReadPreference
    replica: int | None
    slave_lag_bytes_max: int | None
    can_push_filters: bool
    columns: tuple[str, ...]
    properties_as: PropertiesAs
    decompress: bool
    verify_crc: bool
    is_explained: bool
    arrow_rows: int
    arrow_bytes: int
    pull_batch_size: int
    pull_timeout_s: float
    retry_count: int
    retry_interval_s: float
    security: Security

    def selects(self, queue: QueueKey) -> bool:
        """Returns True if the query selects that queue, whether or not it exists."""
        if self.assigned:
            return queue in self.assigned or queue._replace(broker=ANY_BROKER) in self.assigned
        if self.topics:
            return queue.topic in self.topics
        return re.fullmatch(self.topic_pattern, queue.topic) is not None

    @property
    def is_filtered(self) -> bool:
        """True if the broker filters messages, so that a gap between offsets is not a loss."""
        return bool(self.tags or self.sql)

    @property
    def subscription(self) -> str:
        """The subscription text of a pull request."""
        return self.sql or " || ".join(self.tags) or "*"

    @property
    def subscription_type(self) -> str:
        """The language of `subscription`."""
        return "SQL92" if self.sql else "TAG"

    @property
    def filter_hash(self) -> str:
        """The identity of the filter in a checkpoint; empty without a filter."""
        if not self.is_filtered:
            return ""
        text = f"\0SQL92\0{self.sql}" if self.sql else "\0".join(sorted(self.tags))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_options(raw: Mapping[str, str], *, is_streaming: bool | None) -> SourceOptions:
    """Returns the options of a query; `is_streaming` is None if the kind of query is not known yet.

    Raises:  ConfigError naming the option, the wrong value and the allowed ones.
    """
    refuse_table(raw)
    values = parse_rows(raw, OPTION_TABLE)
    _check_values(values, is_streaming=bool(is_streaming))
    start = _take_rule(values, "start", StartKind.LATEST if is_streaming else StartKind.EARLIEST)
    end = _take_rule(values, "end", StartKind.LATEST)
    if is_streaming is False and (start.kind is StartKind.LATEST or LATEST in start.offsets.values()):
        raise ConfigError(
            "option startingOffsets: a batch query that begins at latest (-1) reads nothing; name an offset"
        )
    if EARLIEST in end.offsets.values():
        raise ConfigError("option endingOffsets: -2 (earliest) makes no sense as an end")
    if start.kind is StartKind.GROUP and not values["group"]:
        raise ConfigError("startingOffsets=group needs the option group")
    if values.pop("has_headers"):
        values["columns"] = (*values["columns"], "headers")
    security, namespace = take_security(values), values.pop("namespace")
    packing = {name: at for name in PackingOptions.__slots__ if (at := values.pop(name)) is not None}
    is_strict = values.pop("is_start_strict")
    options = SourceOptions(
        **values,
        start=replace(start, is_strict=is_strict),
        end=end,
        packing=PackingOptions(**packing),
        unpinned_packing=replace(FIRST_PACKING, **packing),
        security=security,
    )
    return _enter_namespace(options, namespace) if namespace else options


def _check_values(values: dict[str, Any], *, is_streaming: bool) -> None:
    """Rejects values that contradict each other, and an end of a streaming query."""
    chosen = ("topics", "topic_pattern", "assigned")
    given = [row.name for row in OPTION_TABLE if row.field in chosen and values[row.field]]
    if len(given) != 1:
        raise ConfigError(
            f"exactly one of the options subscribe (topic), subscribePattern, assign is required; got {given}"
        )
    for row in OPTION_TABLE if is_streaming else ():
        if row.field in ("end", "end_moment", "end_times", "count_max") and values[row.field] is not None:
            raise ConfigError(f"option {row.name} belongs to batch queries; a streaming query has no end")
    if values["tags"] and values["sql"]:
        raise ConfigError("give either the option tags or the option filter, which can ask for TAGS too")
    least, most = values["trigger_records_min"], values["trigger_records_max"]
    if most is not None and least > most:
        raise ConfigError(f"option minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {most}")
    if values["commit_progress"] is None:
        values["commit_progress"] = bool(values["group"])
    if values["commit_progress"] and not values["group"]:
        raise ConfigError("commitProgress=true needs the option group")
    if values["has_headers"] and KAFKA not in values["columns"]:
        raise ConfigError(f"option includeHeaders belongs to columns={KAFKA}; else name the column headers")


def _take_rule(values: dict[str, Any], side: str, default: StartKind) -> PositionRule:
    """Returns the start or the end, taken out of the values: times take precedence over offsets."""
    offsets, moment, times = (values.pop(f"{side}{part}") for part in ("", "_moment", "_times"))
    if moment is None and times is None:
        return offsets or PositionRule(kind=default)
    return PositionRule(kind=StartKind.TIMESTAMP, timestamps=times or {}, moment=moment)


def _enter_namespace(options: SourceOptions, namespace: str) -> SourceOptions:
    """Returns the options with the namespace added to every topic and group name."""

    def wrap_rule(rule: PositionRule) -> PositionRule:
        return replace(rule, offsets=wrap_all(rule.offsets), timestamps=wrap_all(rule.timestamps))

    def wrap_all(positions: Positions) -> Positions:
        return {wrap_queue(queue): at for queue, at in positions.items()}

    def wrap_queue(queue: QueueKey) -> QueueKey:
        return queue._replace(topic=wrap_name(namespace, queue.topic))

    pattern = options.topic_pattern
    return replace(
        options,
        topics=tuple(wrap_name(namespace, topic) for topic in options.topics),
        topic_pattern=f"{re.escape(namespace + NAMESPACE_SEPARATOR)}(?:{pattern})" if pattern else "",
        assigned=tuple(wrap_queue(queue) for queue in options.assigned),
        start=wrap_rule(options.start) if options.start is not None else None,
        end=wrap_rule(options.end),
        group=wrap_name(namespace, options.group),
    )
