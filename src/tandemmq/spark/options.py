"""The options of the source, parsed and checked; `option_table` holds their names and documentation.

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
    OPTION_TABLE,
    Moment,
    name_options,
    parse_bool,
    parse_duration_s,
    parse_enum,
    parse_int,
    parse_list,
    parse_moment,
    parse_name_servers,
    parse_size,
    refuse_table,
    require,
)
from tandemmq.spark.wire import OPEN, Security, parse_security
from tandemmq.units import MIB

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options of a reader; made by `parse_options`, and by hand only in tests."""

    name_servers: tuple[str, ...]
    topics: tuple[str, ...] = ()
    topic_pattern: str = ""
    assigned: tuple[QueueKey, ...] = ()
    tags: tuple[str, ...] = ()
    sql: str = ""
    start: PositionRule | None = None
    end: PositionRule = field(default_factory=lambda: PositionRule(kind=StartKind.LATEST))
    fail_on_data_loss: bool = True
    trigger_records_max: int | None = None
    trigger_bytes_max: int | None = None
    trigger_records_min: int = 0
    trigger_delay_s: float = 900.0
    packing: PackingOptions = field(default_factory=PackingOptions)
    unpinned_packing: PackingOptions = FIRST_PACKING
    """The packing of batches whose end offset contains none: the user's options, with the defaults of the
    releases that wrote such offsets.
    """
    group: str = ""
    commit_progress: bool = False
    read_from: ReadPreference = ReadPreference.SUGGESTED
    replica: int | None = None
    slave_lag_bytes_max: int | None = None
    can_push_filters: bool = True
    columns: tuple[str, ...] = ()
    properties_as: PropertiesAs = PropertiesAs.MAP
    decompress: bool = True
    verify_crc: bool = False
    is_explained: bool = False
    arrow_rows: int = 5_000
    arrow_bytes: int = 2 * MIB
    pull_batch_size: int = 32_768
    pull_timeout_s: float = 3.0
    retry_count: int = 8
    retry_interval_s: float = 0.25
    security: Security = OPEN

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
    if is_streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name in values:
                raise ConfigError(f"option {name} belongs to batch queries; a streaming query has no end")
    start = _parse_start(values, is_streaming=bool(is_streaming))
    if is_streaming is False and (start.kind is StartKind.LATEST or LATEST in start.offsets.values()):
        raise ConfigError(
            "option startingOffsets: a batch query that begins at latest (-1) reads nothing; name an offset"
        )
    topics, pattern, assigned = _parse_subscription(values)
    tags, sql = parse_tags(values.get("tags", "*")), values.get("filter", "")
    if tags and sql:
        raise ConfigError("give either the option tags or the option filter, which can ask for TAGS too")
    group = values.get("group", "")
    if start.kind is StartKind.GROUP and not group:
        raise ConfigError("startingOffsets=group needs the option group")
    commit_progress = parse_bool(values, "commitProgress", bool(group))
    if commit_progress and not group:
        raise ConfigError("commitProgress=true needs the option group")
    options = SourceOptions(
        name_servers=parse_name_servers(values),
        topics=topics,
        topic_pattern=pattern,
        assigned=assigned,
        tags=tags,
        sql=sql,
        start=start,
        end=_parse_end(values),
        fail_on_data_loss=parse_bool(values, "failOnDataLoss", True),
        trigger_records_max=parse_int(values, "maxOffsetsPerTrigger", None, least=1),
        trigger_bytes_max=parse_size(values, "maxBytesPerTrigger", None),
        trigger_records_min=_parse_minimum(values),
        trigger_delay_s=parse_duration_s(values, "maxTriggerDelay", 900.0),
        packing=_parse_packing(values, PackingOptions()),
        unpinned_packing=_parse_packing(values, FIRST_PACKING),
        group=group,
        commit_progress=commit_progress,
        read_from=parse_enum(values, "readFrom", ReadPreference, ReadPreference.SUGGESTED),
        replica=parse_int(values, "replica", None, least=0),
        slave_lag_bytes_max=parse_size(values, "maxSlaveLag", None),
        can_push_filters=_parse_pushdown(values),
        columns=_parse_columns(values),
        properties_as=parse_enum(values, "propertiesAs", PropertiesAs, PropertiesAs.MAP),
        decompress=parse_bool(values, "decompress", True),
        verify_crc=parse_bool(values, "verifyCrc", False),
        is_explained=parse_bool(values, "explain", False),
        arrow_rows=require(parse_int(values, "arrowRows", 5_000, least=1)),
        arrow_bytes=require(parse_size(values, "arrowBytes", 2 * MIB)),
        pull_batch_size=require(parse_int(values, "pullBatchSize", 32_768, least=1)),
        pull_timeout_s=require(parse_int(values, "pullTimeoutMs", 3000, least=1)) / 1000,
        retry_count=require(parse_int(values, "fetchOffset.numRetries", 8, least=0)),
        retry_interval_s=require(parse_int(values, "fetchOffset.retryIntervalMs", 250, least=1)) / 1000,
        security=parse_security(
            values,
            is_tls=parse_bool(values, "tls", False),
            verifies_peer=parse_bool(values, "tls.verify", True),
        ),
    )
    namespace = values.get("namespace", "")
    return _enter_namespace(options, namespace) if namespace else options


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


def parse_tags(expression: str) -> tuple[str, ...]:
    """Returns the tags of `a || b`, without duplicates, in the given order; empty for `*` (everything)."""
    if expression.strip() in ("", "*"):
        return ()
    tags = [tag.strip() for tag in expression.split("||")]
    if not all(tags) or "*" in tags:
        raise ConfigError(f"option tags: expected `*` or `a || b`, got {expression!r}")
    return tuple(dict.fromkeys(tags))


def _parse_columns(values: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the column names; KAFKA stands for several."""
    names = parse_list(values.get("columns", ""))
    has_headers = parse_bool(values, "includeHeaders", False)
    if KAFKA in names:
        return (*names, "headers") if has_headers else names
    if has_headers:
        raise ConfigError(f"option includeHeaders belongs to columns={KAFKA}; else name the column headers")
    return names


def _parse_pushdown(values: Mapping[str, str]) -> bool:
    text = values.get("filterPushdown", "auto").lower()
    if text not in ("auto", "off"):
        raise ConfigError(f"option filterPushdown: expected auto or off, got {text!r}")
    return text == "auto"


def _parse_packing(values: Mapping[str, str], defaults: PackingOptions) -> PackingOptions:
    return PackingOptions(
        partitions_min=require(parse_int(values, "minPartitions", defaults.partitions_min, least=0)),
        records_max=require(parse_int(values, "maxRecordsPerPartition", defaults.records_max, least=0)),
        pack_records=require(parse_int(values, "packRecords", defaults.pack_records, least=0)),
    )


def _parse_minimum(values: Mapping[str, str]) -> int:
    least = parse_int(values, "minOffsetsPerTrigger", 0, least=0) or 0
    most = parse_int(values, "maxOffsetsPerTrigger", None, least=1)
    if most is not None and least > most:
        raise ConfigError(f"option minOffsetsPerTrigger: {least} is more than maxOffsetsPerTrigger, {most}")
    return least


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
        moment=parse_moment(values, one),
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
