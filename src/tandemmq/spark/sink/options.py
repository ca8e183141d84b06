"""The options of the sink, parsed and checked, and the table that documents them.

`SinkOptions` is frozen and picklable, because it is sent to every executor. Pure: no Spark, no network, no
clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tandemmq.errors import ConfigError
from tandemmq.protocol.message import MESSAGE_BYTES_MAX
from tandemmq.protocol.topic_names import topic_fault
from tandemmq.spark.option_table import (
    SECURITY_ROWS,
    OptionRow,
    parse_rows,
    read_enum,
    read_int,
    read_name_servers,
    read_names,
    read_size,
    read_text,
    read_word,
    refuse_table,
)
from tandemmq.spark.wire import Security, take_security

AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"
TRANSACTIONAL = "transactional"
GROUP = "DEFAULT_PRODUCER"
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


def _read_batch_bytes(name: str, text: str) -> int | None:
    size = read_size(name, text)
    if size is not None and size > MESSAGE_BYTES_MAX:
        raise ConfigError(
            f"option {name}: {size} is too large, brokers accept at most {MESSAGE_BYTES_MAX} bytes"
        )
    return size


# The formatter would give each value of a row a line of its own.
# fmt: off
SINK_OPTION_TABLE: tuple[OptionRow, ...] = (
    OptionRow(
        "nameServer", "", "SB",
        "`host:port[;host:port]`", "name_servers", read_name_servers,
        aliases=("endpoints", "namesrv"), shown="required",
    ),
    OptionRow(
        "topic", "", "SB",
        "the topic of every row; takes precedence over the column `topic`", "topic", read_text,
    ),
    OptionRow(
        "group", "", "SB",
        "producer group named in the sends; with `transactional` TANDEMMQ_SPARK_SINK",
        "group", read_text, shown=GROUP,
    ),
    OptionRow(
        "batchBytes", "512k", "SB",
        "approximate bytes per send; a broker accepts at most 4 MiB", "batch_bytes", _read_batch_bytes,
    ),
    OptionRow(
        "inFlight", "", "SB",
        "sends of one task that wait for their answers at the same time; 64 with `transactional`",
        "in_flight", read_int(1), shown="4",
    ),
    OptionRow(
        "sendTimeoutMs", "10000", "SB",
        "deadline of each send, flush and replicas included", "send_timeout_s", read_int(1, unit=1000),
    ),
    OptionRow(
        "retries", "8", "SB",
        "further attempts of a send that failed for a reason that may pass", "retry_count", read_int(0),
    ),
    OptionRow(
        "retryIntervalMs", "250", "SB",
        "pause before the first retry; each retry doubles it, up to 16 times this value",
        "retry_interval_s", read_int(1, unit=1000),
    ),
    OptionRow(
        "taskRowsPerSecond", "", "SB",
        "most rows per second that each task sends, approximately", "task_rows_per_s", read_int(1),
    ),
    OptionRow(
        "semantics", "at-least-once", "SB",
        "`at-least-once` (any broker), `exactly-once` (brokers of TandemMQ) or `transactional` (any "
        "broker): nothing is visible before the batch is committed",
        "semantics", read_word({text: text for text in _SEMANTICS}), aliases=("mode",),
    ),
    OptionRow(
        "topics", "", "SB",
        "with `exactly-once` and without `topic`: all topics that may be in the column `topic`, separated "
        "by commas", "exactly_once_topics", read_names,
    ),
    OptionRow(
        "stateDir", "", "SB",
        "directory of the driver that stores the query's queues (`exactly-once`) or its decisions "
        "(`transactional`)", "state_dir", read_text, shown="tandemmq_sink in the checkpoint",
    ),
    OptionRow(
        "transactionRows", "1000000", "SB",
        "with `transactional`: the most rows of one batch; the driver keeps some 50 bytes per row",
        "transaction_rows_max", read_int(1),
    ),
    OptionRow(
        "emptyBodies", "fail", "SB",
        "rows whose body is null or empty, which no broker stores: `fail`, `skip` (left out), or `divert` "
        "(to the topic `emptyBodiesTopic`); each commit logs the number of these rows",
        "empty_bodies", read_enum(EmptyBodies),
    ),
    OptionRow(
        "emptyBodiesTopic", "", "SB",
        "with `emptyBodies=divert`: the topic that gets a message for each such row. Its body is "
        '`{"topic": "Orders", "body": null}`; tags, keys, properties and delay are those of the row',
        "empty_bodies_topic", read_text,
    ),
    OptionRow(
        "writeId", "", "B",
        "name of a batch write: a repetition with the same name and the same rows has the same keys",
        "write_id", read_text, shown="one per write",
    ),
    *SECURITY_ROWS,
)
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of a write; made by `parse_sink_options`."""

    name_servers: tuple[str, ...]
    topic: str
    group: str
    batch_bytes: int
    in_flight: int
    send_timeout_s: float
    retry_count: int
    retry_interval_s: float
    task_rows_per_s: int | None
    write_id: str
    exactly_once_topics: tuple[str, ...]
    """The topics of an exactly-once write; empty for at-least-once."""
    state_dir: str
    is_state_of_query: bool
    """True if the state is in the checkpoint of one query, so that no other write shares the state."""
    semantics: str
    transaction_rows_max: int
    empty_bodies: EmptyBodies
    empty_bodies_topic: str
    security: Security

    @property
    def is_transactional(self) -> bool:
        return self.semantics == TRANSACTIONAL

    @property
    def is_exactly_once(self) -> bool:
        return bool(self.exactly_once_topics)


def parse_sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """Returns the options of a write.

    Raises:  ConfigError naming the option, the wrong value and the allowed ones.
    """
    given = {key: value for key, value in raw.items() if key.lower() not in _OF_SPARK}
    refuse_table(given)
    values = parse_rows(given, SINK_OPTION_TABLE)
    _check_empty_bodies(values)
    semantics, directory = values["semantics"], values["state_dir"]
    is_transactional = semantics == TRANSACTIONAL
    values |= {
        "group": values["group"] or (TRANSACTION_GROUP if is_transactional else GROUP),
        "in_flight": values["in_flight"] or (_HALVES_IN_FLIGHT if is_transactional else _IN_FLIGHT),
        "exactly_once_topics": _list_topics(values) if semantics == EXACTLY_ONCE else (),
        "state_dir": _find_state_dir(raw, values),
        "is_state_of_query": semantics == AT_LEAST_ONCE or not directory,
        "security": take_security(values),
    }
    return SinkOptions(**values)


def _check_empty_bodies(values: Mapping[str, Any]) -> None:
    """Rejects a topic for rows without a body that are not diverted, or that cannot be diverted there."""
    topic = values["empty_bodies_topic"]
    if (values["empty_bodies"] is EmptyBodies.DIVERT) != bool(topic):
        raise ConfigError("set both emptyBodies=divert and emptyBodiesTopic, or neither")
    fault = topic_fault(topic) if topic else None
    if topic and not fault and topic == values["topic"]:
        fault = "must differ from the option topic"
    if fault:
        raise ConfigError(f"option emptyBodiesTopic: {fault}")


def _list_topics(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns all topics of an exactly-once write, the one for rows without a body last."""
    topics = (values["topic"],) if values["topic"] else values["exactly_once_topics"]
    if not topics:
        raise ConfigError(
            f"semantics {EXACTLY_ONCE} needs the option topic, or the option topics with every topic that the"
            " column may contain"
        )
    diverted = values["empty_bodies_topic"]
    return tuple(dict.fromkeys((*topics, diverted) if diverted else topics))


def _find_state_dir(raw: Mapping[str, str], values: Mapping[str, Any]) -> str:
    """Returns the directory for the state that a replay needs; empty for a write that is never repeated.

    Raises:  ConfigError if the write could be repeated without that state.
    """
    given, semantics = values["state_dir"], values["semantics"]
    checkpoint = next((value for key, value in raw.items() if key.lower() == "checkpointlocation"), "")
    if semantics == AT_LEAST_ONCE:
        # Only its semantics are stored, if possible, so that a change is detected.
        given, checkpoint = "", "" if "://" in checkpoint else checkpoint
    directory: str = (given or checkpoint).removeprefix("file://").removeprefix("file:")
    if "://" in directory:
        raise ConfigError(f"semantics {semantics}: {directory} is not a local directory; set stateDir")
    if directory:
        return directory if given else f"{directory.rstrip('/')}/{_STATE_DIR}"
    if values["write_id"] and semantics != AT_LEAST_ONCE:
        raise ConfigError(f"semantics {semantics}: writeId needs stateDir, so that a repeat finds its state")
    return ""
