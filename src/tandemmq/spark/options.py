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
from collections.abc import Mapping
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
    name_options,
    parse_list,
    parse_name_servers,
    read_bool,
    read_duration_s,
    read_enum,
    read_fields,
    read_int,
    read_moment,
    read_size,
    read_text,
    refuse_table,
)
from tandemmq.spark.wire import Security, parse_security

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


def _read_pushdown(name: str, text: str) -> bool:
    if text.lower() not in ("auto", "off"):
        raise ConfigError(f"option {name}: expected auto or off, got {text.lower()!r}")
    return text.lower() == "auto"


# The formatter would give each value of a row a line of its own.
# fmt: off
OPTION_TABLE: tuple[OptionRow, ...] = (
    OptionRow(
        "nameServer", "required", "SB",
        "`host:port[;host:port]`", aliases=("endpoints", "namesrv", "nameServerAddress"),
    ),
    OptionRow("subscribe", "one of these three", "SB", "topics, separated by commas", aliases=("topic",)),
    OptionRow("subscribePattern", "", "SB", "a regular expression that must match a whole topic name"),
    OptionRow(
        "assign", "", "SB",
        'queues as JSON: `{"topic": {"broker-a": [0, 1]}}`, or `{"topic": [0, 1]}` of all brokers',
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
        "startingOffsets", "latest (S), earliest (B)", "SB",
        "`earliest`, `latest` (S), `group` or JSON `{topic: {broker: {queue: offset}}}` with -2 earliest, "
        "-1 latest (S); `{topic: {queue: offset}}` where one broker only has that queue",
    ),
    OptionRow(
        "startingTimestamp", "", "SB",
        "from the first message stored at or after it: milliseconds, `2025-01-31T12:00:00+01:00` (UTC "
        "without a zone), `now`, `now-1h30m`; wins over `startingOffsets`", aliases=("startTimeMs",),
    ),
    OptionRow(
        "startingOffsetsByTimestamp", "", "SB",
        "JSON `{topic: {broker: {queue: milliseconds}}}`; wins over `startingTimestamp`",
    ),
    OptionRow(
        "startingOffsetsByTimestampStrategy", "latest", "SB",
        "a queue with nothing since the timestamp: `latest` starts at its end, `error` refuses",
    ),
    OptionRow("endingOffsets", "latest", "B", "`latest` or JSON as above, exclusive"),
    OptionRow(
        "endingTimestamp", "", "B",
        "up to the first message stored at or after it, exclusive; a time as above",
    ),
    OptionRow("endingOffsetsByTimestamp", "", "B", "JSON as above"),
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
        "minOffsetsPerTrigger", "", "S",
        "wait for this many messages, at most `maxTriggerDelay`; the first batch of a run, and "
        "`availableNow`, do not wait", "trigger_records_min", read_int(0),
    ),
    OptionRow(
        "maxTriggerDelay", "15m", "S",
        "longest wait for `minOffsetsPerTrigger`: `500ms`, `30s`, `15m`, `2h`, or milliseconds",
        "trigger_delay_s", read_duration_s,
    ),
    OptionRow("minPartitions", "", "SB", "split large ranges into at least about this many tasks"),
    OptionRow("maxRecordsPerPartition", "", "SB", "most messages per task"),
    OptionRow(
        "packRecords", "20000", "SB",
        "neighbouring small ranges share a task up to this many messages; 0: one range per task",
    ),
    OptionRow(
        "group", "", "SB",
        "consumer group named in pulls; needed for `startingOffsets=group` and `commitProgress`",
        "group", read_text, aliases=("consumerGroup",),
    ),
    OptionRow(
        "commitProgress", "true with `group`", "S",
        "commit the progress of the query as the group's offsets, so that every console shows its lag",
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
        "columns", "all", "SB",
        "columns to build, separated by commas; Spark cannot prune by itself; `kafka`: those of Spark's "
        "source for Kafka",
    ),
    OptionRow("includeHeaders", "false", "SB", "with `columns=kafka`: the column `headers`, too"),
    OptionRow(
        "filterPushdown", "auto", "B",
        "`auto`: read only what the conditions of the query leave, if the session has "
        "`spark.sql.python.filterPushdown.enabled=true`; `off`", "can_push_filters", _read_pushdown,
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
        "`topic` shows the whole name",
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
    values = name_options(raw, OPTION_TABLE)
    fields = read_fields(values, OPTION_TABLE)
    fields["trigger_records_min"] = fields["trigger_records_min"] or 0
    start = _parse_start(values, is_streaming=bool(is_streaming))
    _check_ends(values, start, is_streaming=is_streaming)
    _check_fields(fields)
    topics, pattern, assigned = _parse_subscription(values)
    options = SourceOptions(
        **fields,
        name_servers=parse_name_servers(values),
        topics=topics,
        topic_pattern=pattern,
        assigned=assigned,
        start=start,
        end=_parse_end(values),
        packing=_parse_packing(values, PackingOptions()),
        unpinned_packing=_parse_packing(values, FIRST_PACKING),
        commit_progress=_parse_commit(values, start, fields["group"]),
        columns=_parse_columns(values),
        security=parse_security(values),
    )
    namespace = values.get("namespace", "")
    return _enter_namespace(options, namespace) if namespace else options


def _check_ends(values: Mapping[str, str], start: PositionRule, *, is_streaming: bool | None) -> None:
    """Rejects an end of a streaming query, and a batch query that begins at the end."""
    if is_streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name in values:
                raise ConfigError(f"option {name} belongs to batch queries; a streaming query has no end")
    if is_streaming is False and (start.kind is StartKind.LATEST or LATEST in start.offsets.values()):
        raise ConfigError(
            "option startingOffsets: a batch query that begins at latest (-1) reads nothing; name an offset"
        )


def _check_fields(fields: Mapping[str, Any]) -> None:
    """Rejects fields that contradict each other."""
    if fields["tags"] and fields["sql"]:
        raise ConfigError("give either the option tags or the option filter, which can ask for TAGS too")
    least, most = fields["trigger_records_min"], fields["trigger_records_max"]
    if most is not None and least > most:
        raise ConfigError(f"option minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {most}")


def _parse_commit(values: Mapping[str, str], start: PositionRule, group: str) -> bool:
    """Returns True if the query commits its progress for the group."""
    if start.kind is StartKind.GROUP and not group:
        raise ConfigError("startingOffsets=group needs the option group")
    commits = read_bool("commitProgress", values.get("commitProgress", str(bool(group))))
    if commits and not group:
        raise ConfigError("commitProgress=true needs the option group")
    return commits


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


def _parse_columns(values: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the column names; KAFKA stands for several."""
    names = parse_list(values.get("columns", ""))
    has_headers = read_bool("includeHeaders", values.get("includeHeaders", "false"))
    if KAFKA in names:
        return (*names, "headers") if has_headers else names
    if has_headers:
        raise ConfigError(f"option includeHeaders belongs to columns={KAFKA}; else name the column headers")
    return names


def _parse_packing(values: Mapping[str, str], defaults: PackingOptions) -> PackingOptions:
    names = {
        "partitions_min": "minPartitions",
        "records_max": "maxRecordsPerPartition",
        "pack_records": "packRecords",
    }
    given = {field: read_int(0)(name, values.get(name, "")) for field, name in names.items()}
    return replace(defaults, **{field: value for field, value in given.items() if value is not None})


def _parse_subscription(values: Mapping[str, str]) -> tuple[tuple[str, ...], str, tuple[QueueKey, ...]]:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if values.get(name)]
    if len(given) != 1:
        raise ConfigError(
            f"exactly one of the options subscribe (topic), subscribePattern, assign is required; got {given}"
        )
    topics = parse_list(values.get("subscribe", ""))
    pattern = values.get("subscribePattern", "")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"option subscribePattern: {error}") from error
    return topics, pattern, _parse_assign(values.get("assign", ""))


def _parse_assign(text: str) -> tuple[QueueKey, ...]:
    if not text:
        return ()
    document = _parse_json("assign", text)
    queues: list[QueueKey] = []
    for topic, brokers in document.items():
        if isinstance(brokers, list):
            brokers = {ANY_BROKER: brokers}
        if not isinstance(brokers, dict):
            raise ConfigError('option assign: expected {"topic": {"broker": [0, 1]}}')
        for broker, ids in brokers.items():
            if not isinstance(ids, list) or not all(isinstance(i, int) and i >= 0 for i in ids):
                raise ConfigError('option assign: expected {"topic": {"broker": [0, 1]}}')
            queues.extend(QueueKey(topic, broker, queue_id) for queue_id in ids)
    return tuple(sorted(set(queues)))


def _parse_start(values: Mapping[str, str], *, is_streaming: bool) -> PositionRule:
    strategy = values.get("startingOffsetsByTimestampStrategy", "latest")
    if strategy not in ("latest", "error"):
        raise ConfigError(
            f"option startingOffsetsByTimestampStrategy: expected latest or error, got {strategy!r}"
        )
    by_time = _parse_timestamps(
        values, each="startingOffsetsByTimestamp", one="startingTimestamp", is_strict=strategy == "error"
    )
    if by_time is not None:
        return by_time
    text = values.get("startingOffsets", "latest" if is_streaming else "earliest")
    if text in ("earliest", "latest", "group"):
        return PositionRule(kind=StartKind(text))
    return PositionRule(kind=StartKind.OFFSETS, offsets=_parse_positions("startingOffsets", text))


def _parse_end(values: Mapping[str, str]) -> PositionRule:
    by_time = _parse_timestamps(
        values, each="endingOffsetsByTimestamp", one="endingTimestamp", is_strict=False
    )
    if by_time is not None:
        return by_time
    text = values.get("endingOffsets", "latest")
    if text == "latest":
        return PositionRule(kind=StartKind.LATEST)
    positions = _parse_positions("endingOffsets", text)
    if EARLIEST in positions.values():
        raise ConfigError("option endingOffsets: -2 (earliest) makes no sense as an end")
    return PositionRule(kind=StartKind.OFFSETS, offsets=positions)


def _parse_timestamps(
    values: Mapping[str, str], *, each: str, one: str, is_strict: bool
) -> PositionRule | None:
    if each not in values and one not in values:
        return None
    timestamps: Positions = {}
    if each in values:
        timestamps = _parse_positions(each, values[each], least=0)
    return PositionRule(
        kind=StartKind.TIMESTAMP,
        timestamps=timestamps,
        moment=read_moment(one, values.get(one, "")),
        is_strict=is_strict,
    )


def _parse_positions(name: str, text: str, *, least: int = EARLIEST) -> Positions:
    document = _parse_json(name, text)
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


def _parse_json(name: str, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"option {name}: expected a known word or JSON, got {text!r} ({error})") from error
    if not isinstance(document, dict):
        raise ConfigError(f"option {name}: expected a JSON object, got {text!r}")
    return document
