"""The options of the sink, parsed and checked, and the table that documents them.

`SinkOptions` is frozen and picklable, because it is sent to every executor. Pure: no Spark, no network, no
clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tandemmq.errors import ConfigError
from tandemmq.protocol.message import MESSAGE_BYTES_MAX
from tandemmq.protocol.topic_names import DEFAULT_PRODUCER_GROUP, topic_fault
from tandemmq.spark.option_table import (
    SECURITY_ROWS,
    OptionRow,
    name_options,
    parse_bool,
    parse_enum,
    parse_int,
    parse_list,
    parse_name_servers,
    parse_size,
    refuse_table,
    require,
)
from tandemmq.spark.wire import OPEN, Security, parse_security
from tandemmq.units import KIB

AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"
TRANSACTIONAL = "transactional"
TRANSACTION_GROUP = "TANDEMMQ_SPARK_SINK"
"""The producer group of half messages. It is separate, so that no other member answers a broker's check of a
half message.
"""


class EmptyBodies(Enum):
    """The handling of rows whose body is null or empty."""

    FAIL = "fail"
    SKIP = "skip"
    DIVERT = "divert"


_STATE_DIR = "tandemmq_sink"
_SEMANTICS = (AT_LEAST_ONCE, EXACTLY_ONCE, TRANSACTIONAL)
_IN_FLIGHT = 4
_HALVES_IN_FLIGHT = 64

_OF_SPARK = frozenset(("queryname", "checkpointlocation", "path"))
"""The names that Spark itself adds to the options of a sink."""

SINK_OPTION_TABLE: tuple[OptionRow, ...] = (
    OptionRow("nameServer", "required", "SB", "`host:port[;host:port]`", aliases=("endpoints", "namesrv")),
    OptionRow("topic", "", "SB", "the topic of every row; takes precedence over the column `topic`"),
    OptionRow(
        "group",
        "DEFAULT_PRODUCER",
        "SB",
        f"producer group named in the sends; with `{TRANSACTIONAL}` {TRANSACTION_GROUP}",
    ),
    OptionRow("batchBytes", "512k", "SB", "approximate bytes per send; a broker accepts at most 4 MiB"),
    OptionRow(
        "inFlight",
        "4",
        "SB",
        f"sends of one task that wait for their answers at the same time; 64 with `{TRANSACTIONAL}`",
    ),
    OptionRow("sendTimeoutMs", "10000", "SB", "deadline of each send, flush and replicas included"),
    OptionRow("retries", "8", "SB", "further attempts of a send that failed for a reason that may pass"),
    OptionRow(
        "retryIntervalMs",
        "250",
        "SB",
        "pause before the first retry; each retry doubles it, up to 16 times this value",
    ),
    OptionRow("taskRowsPerSecond", "", "SB", "most rows per second that each task sends, approximately"),
    OptionRow(
        "semantics",
        AT_LEAST_ONCE,
        "SB",
        f"`{AT_LEAST_ONCE}` (any broker), `{EXACTLY_ONCE}` (brokers of TandemMQ) or `{TRANSACTIONAL}` (any "
        "broker): nothing is visible before the batch is committed",
        aliases=("mode",),
    ),
    OptionRow(
        "topics",
        "",
        "SB",
        "with `exactly-once` and without `topic`: all topics that may be in the column `topic`, separated by"
        " commas",
    ),
    OptionRow(
        "stateDir",
        "tandemmq_sink in the checkpoint",
        "SB",
        "directory of the driver that stores the query's queues (`exactly-once`) or its decisions"
        " (`transactional`)",
    ),
    OptionRow(
        "transactionRows",
        "1000000",
        "SB",
        "with `transactional`: the most rows of one batch; the driver keeps some 50 bytes per row",
    ),
    OptionRow(
        "emptyBodies",
        "fail",
        "SB",
        "rows whose body is null or empty, which no broker stores: `fail`, `skip` (left out), or `divert` (to"
        " the topic `emptyBodiesTopic`); each commit logs the number of these rows",
    ),
    OptionRow(
        "emptyBodiesTopic",
        "",
        "SB",
        "with `emptyBodies=divert`: the topic that gets a message for each such row. Its body is"
        ' `{"topic": "Orders", "body": null}`; tags, keys, properties and delay are those of the row',
    ),
    OptionRow(
        "writeId",
        "one per write",
        "B",
        "name of a batch write: a repetition with the same name and the same rows has the same keys",
    ),
    *SECURITY_ROWS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a write; made by `parse_sink_options`."""

    name_servers: tuple[str, ...]
    topic: str = ""
    group: str = DEFAULT_PRODUCER_GROUP
    batch_bytes: int = 512 * KIB
    in_flight: int = 4
    send_timeout_s: float = 10.0
    retry_count: int = 8
    retry_interval_s: float = 0.25
    task_rows_per_s: int | None = None
    write_id: str = ""
    exactly_once_topics: tuple[str, ...] = ()
    """The topics of an exactly-once write; empty for at-least-once."""
    state_dir: str = ""
    is_state_of_query: bool = False
    """True if the state is in the checkpoint of one query, so that no other write shares the state."""
    is_transactional: bool = False
    transaction_rows_max: int = 1_000_000
    empty_bodies: EmptyBodies = EmptyBodies.FAIL
    empty_bodies_topic: str = ""
    security: Security = OPEN

    @property
    def is_exactly_once(self) -> bool:
        return bool(self.exactly_once_topics)

    @property
    def semantics(self) -> str:
        if self.is_transactional:
            return TRANSACTIONAL
        return EXACTLY_ONCE if self.is_exactly_once else AT_LEAST_ONCE


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Returns the options of a write.

    Raises:  ConfigError naming the option, the wrong value and the allowed ones.
    """
    given = {key: value for key, value in raw.items() if key.lower() not in _OF_SPARK}
    refuse_table(given)
    values = name_options(given, SINK_OPTION_TABLE)
    semantics = _parse_semantics(values)
    is_transactional = semantics == TRANSACTIONAL
    empty_bodies, empty_bodies_topic = _parse_empty_bodies(values)
    batch_bytes = require(parse_size(values, "batchBytes", 512 * KIB))
    if batch_bytes > MESSAGE_BYTES_MAX:
        raise ConfigError(
            f"option batchBytes: {batch_bytes} is too large, brokers accept at most {MESSAGE_BYTES_MAX} bytes"
        )
    return SinkOptions(
        name_servers=parse_name_servers(values),
        topic=values.get("topic", ""),
        group=values.get("group", "") or (TRANSACTION_GROUP if is_transactional else DEFAULT_PRODUCER_GROUP),
        batch_bytes=batch_bytes,
        in_flight=require(
            parse_int(values, "inFlight", _HALVES_IN_FLIGHT if is_transactional else _IN_FLIGHT, least=1)
        ),
        send_timeout_s=require(parse_int(values, "sendTimeoutMs", 10_000, least=1)) / 1000,
        retry_count=require(parse_int(values, "retries", 8, least=0)),
        retry_interval_s=require(parse_int(values, "retryIntervalMs", 250, least=1)) / 1000,
        task_rows_per_s=parse_int(values, "taskRowsPerSecond", None, least=1),
        write_id=values.get("writeId", ""),
        exactly_once_topics=_parse_exactly_once_topics(values, empty_bodies_topic)
        if semantics == EXACTLY_ONCE
        else (),
        state_dir=_find_state_dir(raw, values, semantics) if semantics != AT_LEAST_ONCE else "",
        is_state_of_query=semantics != AT_LEAST_ONCE and not values.get("stateDir", ""),
        is_transactional=is_transactional,
        transaction_rows_max=require(parse_int(values, "transactionRows", 1_000_000, least=1)),
        empty_bodies=empty_bodies,
        empty_bodies_topic=empty_bodies_topic,
        security=parse_security(
            values,
            is_tls=parse_bool(values, "tls", False),
            verifies_peer=parse_bool(values, "tls.verify", True),
        ),
    )


def _parse_semantics(values: Mapping[str, str]) -> str:
    semantics = values.get("semantics", AT_LEAST_ONCE).lower()
    if semantics not in _SEMANTICS:
        raise ConfigError(f"option semantics: expected {', '.join(_SEMANTICS)}, got {semantics!r}")
    return semantics


def _parse_empty_bodies(values: Mapping[str, str]) -> tuple[EmptyBodies, str]:
    """Returns the handling of rows without a body, and the topic to which they are diverted."""
    chosen = parse_enum(values, "emptyBodies", EmptyBodies, EmptyBodies.FAIL)
    topic = values.get("emptyBodiesTopic", "")
    if (chosen is EmptyBodies.DIVERT) != bool(topic):
        raise ConfigError("set both emptyBodies=divert and emptyBodiesTopic, or neither")
    if topic and (topic == values.get("topic") or topic_fault(topic)):
        fault = topic_fault(topic) or "must differ from the option topic"
        raise ConfigError(f"option emptyBodiesTopic: {fault}")
    return chosen, topic


def _parse_exactly_once_topics(values: Mapping[str, str], diverted_topic: str) -> tuple[str, ...]:
    topics = (values["topic"],) if values.get("topic") else parse_list(values.get("topics", ""))
    if not topics:
        raise ConfigError(
            f"semantics {EXACTLY_ONCE} needs the option topic, or the option topics with every topic that the"
            " column may contain"
        )
    return tuple(dict.fromkeys((*topics, diverted_topic))) if diverted_topic else topics


def _find_state_dir(raw: Mapping[str, str], values: Mapping[str, str], semantics: str) -> str:
    """Returns the directory for the state that a replay needs; empty for a write that is never repeated.

    Raises:  ConfigError if the write could be repeated without that state.
    """
    given = values.get("stateDir", "")
    checkpoint = next((value for key, value in raw.items() if key.lower() == "checkpointlocation"), "")
    directory = (given or checkpoint).removeprefix("file://").removeprefix("file:")
    if "://" in directory:
        raise ConfigError(f"semantics {semantics}: {directory} is not a local directory; set stateDir")
    if directory:
        return directory if given else f"{directory.rstrip('/')}/{_STATE_DIR}"
    if values.get("writeId"):
        raise ConfigError(f"semantics {semantics}: writeId needs stateDir, so that a repeat finds its state")
    return ""
