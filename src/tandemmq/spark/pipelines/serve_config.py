"""The configuration of `tandemmq pipeline serve`, a YAML file: the topics and how each of them is landed.

    nameServer: 127.0.0.1:9876
    out: /data/lake
    defaults: {format: delta}
    topics:
      - name: Orders
        ttlDays: 30
      - pattern: Shop.*

Each topic gets the settings of the first entry that matches its whole name, over the defaults. The file is
read once and becomes a frozen value; a wrong file is refused before anything is started. Pure but for reading
the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tandemmq.errors import ConfigError
from tandemmq.protocol.topic_names import is_dlq_topic, is_retry_topic, is_system_topic, topic_fault
from tandemmq.spark.columns import find_column
from tandemmq.spark.lake.files import CONTROL_DIR
from tandemmq.spark.lake.home import Lake, LakeFormat, parse_format
from tandemmq.spark.lake.upsert import check_key
from tandemmq.spark.option_table import read_enum, suggest
from tandemmq.spark.options import ReadPreference, parse_options
from tandemmq.spark.pipelines.options import LandingOptions

TOPIC = "{topic}"
"""The placeholder for the topic's name in `data` and `table`."""


class _Setting(NamedTuple):
    """A key of an entry: the field that it sets, and the type of its value."""

    field: str
    kind: type


_LANDING = {
    "format": _Setting("lake_format", str),
    "data": _Setting("data", str),
    "catalog": _Setting("catalog", str),
    "table": _Setting("table", str),
    "partitionBy": _Setting("partition_by", list),
    "columns": _Setting("columns", list),
    "compression": _Setting("compression", str),
    "bodyAsText": _Setting("is_body_text", bool),
    "tags": _Setting("tags", str),
    "startingOffsets": _Setting("starting_offsets", str),
    "batchRows": _Setting("batch_records_max", int),
    "readFrom": _Setting("read_from", str),
    "options": _Setting("source", dict),
}
"""The settings that are options of a landing."""

_TOPIC = {
    **_LANDING,
    "key": _Setting("key", str),
    "ttlDays": _Setting("ttl_days", int),
    "compact": _Setting("is_compacted", bool),
}
_ENTRY = {"name": _Setting("name", str), "pattern": _Setting("pattern", str), **_TOPIC}
_SERVICE = {
    "nameServer": _Setting("name_servers", str),
    "out": _Setting("out", str),
    "batchesAtOnce": _Setting("batches_at_once", int),
    "pollSeconds": _Setting("poll_s", float),
    "defaults": _Setting("defaults", dict),
    "topics": _Setting("topics", list),
}
_KINDS = {
    str: "a text",
    int: "a whole number of at least 1",
    float: "a number above 0",
    bool: "true or false",
    list: "a list",
    dict: "a mapping of names to values",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRule:
    """An entry of `topics`: the topics that it names, and their settings. `landing`: the options of their
    landings; `key`: the column that identifies the rows of a table, empty for one row per message;
    `ttl_days`: rows stored longer ago are deleted, None for never.
    """

    name: str = ""
    pattern: str = ""
    landing: Mapping[str, Any]
    key: str = ""
    ttl_days: int | None = None
    is_compacted: bool = False

    def matches(self, topic: str) -> bool:
        if self.name:
            return topic == self.name
        is_internal = is_system_topic(topic) or is_retry_topic(topic) or is_dlq_topic(topic)
        return not is_internal and re.fullmatch(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """The whole configuration. `batches_at_once`: the number of topics that are at work at the same time;
    `poll_s`: the pause before a topic without new messages is looked at again.
    """

    name_servers: str
    out: Path
    rules: tuple[TopicRule, ...]
    batches_at_once: int = 4
    poll_s: float = 2.0

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that entries name; they are served even if they do not exist yet."""
        return tuple(rule.name for rule in self.rules if rule.name)

    def find_rule(self, topic: str) -> TopicRule | None:
        """Returns the first entry that matches the topic; None if the topic is not served."""
        return next((rule for rule in self.rules if rule.matches(topic)), None)

    def check_topics(self, topics: Iterable[str]) -> None:
        """Raises ConfigError for a topic that is not served."""
        for topic in topics:
            if self.find_rule(topic) is None:
                raise ConfigError(f"no entry of the configuration matches the topic {topic!r}")

    def make_options(self, topic: str, rule: TopicRule) -> LandingOptions:
        """Returns the options of the topic's landing."""
        given = {
            name: value.replace(TOPIC, topic) if name in ("data", "table") else value
            for name, value in rule.landing.items()
        }
        return ServedLanding(name_servers=self.name_servers, topic=topic, out=self.out / topic, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLanding(LandingOptions):
    """The options of a served topic's landing: its batches are smaller, because topics take turns."""

    batch_records_max: int = 100_000


def read_config(path: Path, name_servers: str = "") -> ServeConfig:
    """Returns the configuration in a file. `name_servers`: takes precedence over those of the file.

    Raises:  ConfigError that names the file, the key, the wrong value and what is allowed.
    """
    import yaml

    try:
        document = yaml.safe_load(path.read_text())
        return parse_config(document, name_servers)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ConfigError) as error:
        text = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise ConfigError(f"{path}: {text}") from error


def parse_config(document: Any, name_servers: str = "") -> ServeConfig:
    """Returns the configuration in the content of a file; see `read_config`."""
    given = _read_mapping("the file", document, _SERVICE)
    given["name_servers"] = name_servers or given.get("name_servers", "")
    for key in ("nameServer", "out", "topics"):
        if not given.get(_SERVICE[key].field):
            raise ConfigError(f"{key} is required")
    defaults = _read_mapping("defaults", given.pop("defaults", {}), _TOPIC)
    entries = given.pop("topics")
    rules = tuple(_read_rule(f"topics[{at}]", entry, defaults) for at, entry in enumerate(entries))
    names = [rule.name for rule in rules if rule.name]
    if len(set(names)) < len(names):
        raise ConfigError(f"topics: {max(names, key=names.count)} is named twice")
    config = ServeConfig(**{**given, "out": Path(given["out"])}, rules=rules)
    for at, rule in enumerate(rules):
        _check_rule(f"topics[{at}]", rule, config.make_options(rule.name or "AnyTopic", rule))
    return config


def _check_rule(place: str, rule: TopicRule, options: LandingOptions) -> None:
    """Raises ConfigError for settings with which the landing of a topic could not begin."""
    try:
        parse_options(options.source_options(), is_streaming=True)
        for name in options.columns:
            find_column(name)
        kind = parse_format(options.lake_format)
        lake = Lake(options.out, kind, options.data, options.catalog, options.table)
        if rule.key:
            check_key(rule.key, options.columns)
            if lake.kind is LakeFormat.PARQUET or options.partition_by or rule.ttl_days is not None:
                raise ConfigError(
                    f"key {rule.key}: needs the format delta or iceberg, and no partitionBy and no ttlDays:"
                    " rows leave the table when a message deletes their key"
                )
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error


def _read_rule(place: str, entry: Any, defaults: Mapping[str, Any]) -> TopicRule:
    values = _read_mapping(place, entry, _ENTRY)
    name, pattern = values.pop("name", ""), values.pop("pattern", "")
    if bool(name) == bool(pattern):
        raise ConfigError(f"{place}: expected either name or pattern")
    fault = topic_fault(name) if name else ""
    if name == CONTROL_DIR:
        fault = f"{CONTROL_DIR} is the directory of the service's own state"
    if fault:
        raise ConfigError(f"{place}.name: {fault}")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{place}.pattern: {error}") from error
    values = {**defaults, **values}
    for key in ("data", "table"):
        if pattern and values.get(key) and TOPIC not in values[key]:
            raise ConfigError(f"{place}.{key}: topics cannot share it: put {TOPIC} into {values[key]!r}")
    upkeep = {key: values.pop(key) for key in ("key", "ttl_days", "is_compacted") if key in values}
    return TopicRule(name=name, pattern=pattern, landing=_convert(place, values), **upkeep)


def _convert(place: str, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values with the types of the landing's fields."""
    if "read_from" in values:
        values["read_from"] = read_enum(ReadPreference)(f"{place}.readFrom", values["read_from"])
    for name in ("columns", "partition_by"):
        if name in values:
            values[name] = tuple(_read_value(f"{place}.{name}", one, str) for one in values[name])
    if "source" in values:
        values["source"] = tuple((str(name), _render(value)) for name, value in values["source"].items())
        if any(name.lower() == "namespace" for name, _ in values["source"]):
            raise ConfigError(f"{place}.options: no namespace: write the whole names of topics")
    return values


def _render(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_mapping(place: str, document: Any, known: Mapping[str, _Setting]) -> dict[str, Any]:
    """Returns the values by their fields."""
    values = {}
    for key, value in _read_value(place, document, dict).items():
        setting = known.get(key)
        if setting is None:
            hint = suggest(str(key).lower(), {name.lower(): name for name in known})
            raise ConfigError(f"{place}: unknown key {key!r}{hint} There are {', '.join(known)}")
        values[setting.field] = _read_value(f"{place}.{key}".removeprefix("the file."), value, setting.kind)
    return values


def _read_value(place: str, value: Any, kind: type) -> Any:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is float and is_number and value > 0:
        return float(value)
    is_wrong_number = kind is float or (kind is int and (not is_number or value < 1))
    if is_wrong_number or not isinstance(value, kind):
        raise ConfigError(f"{place}: expected {_KINDS[kind]}, got {value!r}")
    return value
