"""The options of `tandemmq pipeline ...`: one class per pipeline, one field per option. The field defines the
option's flag, help, default and type.

`command_watch.pipeline_command` makes each command from its class. If a field's type differs from the text
that the user enters, the field names its parser (`Typed`). Imports neither Spark nor pyarrow, so `--help` is
quick.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import typer

from tandemmq.errors import ConfigError
from tandemmq.protocol.topic_names import dlq_topic
from tandemmq.spark.lake.files import CONTROL_DIR, read_owner
from tandemmq.spark.option_table import list_spellings, parse_list, parse_time_ms, read_enum
from tandemmq.spark.options import OPTION_TABLE, ReadPreference


def flag(help: str, *names: str, **more: Any) -> Any:
    """Returns the flag of an option with its help; by default its name is that of the field."""
    return typer.Option(*names, help=help, **more)


class Typed(NamedTuple):
    """The command-line form of an option: its type, its default, and the parser, which receives the flag and
    the value.

    If the user omits the option, the field has its own default and the parser is not called.
    """

    kind: Any
    default: Any
    parse: Callable[[str, Any], Any]


def parse_pairs(flag: str, texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Returns the names and values of `name=value` texts.

    Raises:  typer.BadParameter, which names the flag.
    """
    pairs = []
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise typer.BadParameter(f"expected name=value, got {text!r}", param_hint=flag)
        pairs.append((name.strip(), value))
    return tuple(pairs)


def parse_settings(flag: str, texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Returns the names and values of Spark's settings; raises as `parse_pairs`, and for other names, which
    Spark would ignore.
    """
    pairs = parse_pairs(flag, texts)
    wrong = [name for name, _ in pairs if not name.startswith("spark.")]
    if wrong:
        raise typer.BadParameter(f"settings of Spark begin with 'spark.', got {wrong[0]!r}", param_hint=flag)
    return pairs


def parse_paths(flag: str, texts: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """Returns the names and paths of `name=path` texts; raises as `parse_pairs`."""
    return tuple((name, Path(value)) for name, value in parse_pairs(flag, texts))


def read_text_option(flag: str, text: str) -> str:
    """Returns the text itself, or, after an `@`, the content of the named file."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text().strip()
    except OSError as error:
        raise ConfigError(f"{flag}: {text[1:]}: {error.strerror}") from error


def parse_time(flag: str, text: str) -> int:
    """Returns milliseconds since 1970. A time without a zone is UTC.

    Raises:  ConfigError if the text is neither a number nor a time.
    """
    try:
        return parse_time_ms(text)
    except ValueError:
        raise ConfigError(
            f"{flag}: expected milliseconds or a time such as 2025-01-31T12:00:00, got {text!r}"
        ) from None


class JsonChanges(Enum):
    """The handling of names that the schema lacks, and of values of other types."""

    KEEP = "keep"
    """Unknown names are ignored; a body with a value of another type is a bad record."""
    RESCUE = "rescue"
    """Unknown names and values of other types go to the column `jsonRescue`."""
    GROW = "grow"
    """The same as RESCUE, and unknown names become fields of the schema."""


Pairs = tuple[tuple[str, str], ...]
"""Names and values of options."""

_NAMES = Typed(str, "", lambda _, text: parse_list(text))
_MANY = Typed(list[str] | None, None, lambda _, texts: tuple(texts))
_PAIRS = Typed(list[str] | None, None, parse_pairs)
_TIME = Typed(str, "", parse_time)
_TEXT_OR_FILE = Typed(str, "", read_text_option)

NameServers = Annotated[str, flag("Name servers: host:port[;host:port].", "--namesrv")]
Master = Annotated[
    str, flag("Spark master, such as spark://host:port; default: that of spark-defaults.conf, or local[*].")
]
Settings = Annotated[
    Pairs,
    flag("A setting of Spark, as spark.name=value; wins over spark-defaults.conf; repeatable.", "--conf"),
    _PAIRS._replace(parse=parse_settings),
]
EverySeconds = Annotated[float, flag("With --continuous: pause between rounds.", "--every-seconds", min=0.1)]
BatchRows = Annotated[int, flag("Largest number of messages per batch.", "--batch-rows", min=1)]
TriggerSeconds = Annotated[float, flag("Pause between batches.", "--trigger-seconds", min=0.0)]
Source = Annotated[
    Pairs, flag("Any other option of the source, as name=value; repeatable.", "--option"), _PAIRS
]

DEFAULT_COLUMNS = parse_list(
    "topic,brokerName,queueId,queueOffset,physicalOffset,msgId,tags,keys,body,bornTimestamp,storeTimestamp,"
    "properties"
)
CHECKPOINT_DIR = "_checkpoint"
TASKS_PER_BATCH = 4
"""The approximate number of tasks for a full batch of one queue. With four equal queues, each is one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions(ABC):
    """The options of every pipeline. `name`: of its command; `subject`: the topic, lake or group at work, for
    people.
    """

    name: ClassVar[str]
    name_servers: NameServers
    master: Master = ""
    settings: Settings = ()

    @property
    @abstractmethod
    def subject(self) -> str: ...


_FLAGS = {
    "name_servers": ("nameServer", "--namesrv"),
    "topic": ("subscribe", "--topic"),
    "pattern": ("subscribePattern", "--topic-pattern"),
    "group": ("subscribe", "--group"),
    "tags": ("tags", "--tags"),
    "starting_offsets": ("startingOffsets", "--starting-offsets"),
    "read_from": ("readFrom", "--read-from"),
    "batch_records_max": ("maxOffsetsPerTrigger", "--batch-rows"),
    "columns": ("columns", "--columns"),
}
"""The flags that set an option of the source, by their fields."""


def join_options(
    options: PipelineOptions, own: dict[str, str], more: Pairs, *, fixed: tuple[str, ...] = ("columns",)
) -> dict[str, str]:
    """Returns a pipeline's own options of the source, under the further ones of the user.

    Raises:  ConfigError for a further option that a given flag sets, too, or that the pipeline needs itself
             (`fixed`).
    """
    spellings = list_spellings(OPTION_TABLE)
    given = {spellings.get(key.lower(), key): key for key, _ in more}
    for field in fields(options):
        name, flag = _FLAGS.get(field.name, ("", ""))
        if name in given and (name in fixed or getattr(options, field.name) != field.default):
            raise ConfigError(f"option {given[name]}: {flag} sets the same, use only {flag}")
    for name in fixed:
        if name in given:
            raise ConfigError(f"option {given[name]}: this pipeline sets it itself")
    return {**{name: value for name, value in own.items() if name not in given}, **dict(more)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions(PipelineOptions):
    """The options of the pipelines that follow topics into a lake."""

    out: Path
    is_continuous: Annotated[
        bool, flag("Keep running, or stop at the current end of the topics.", "--continuous/--once")
    ] = True
    read_from: Annotated[ReadPreference, flag("Replica to read from.")] = ReadPreference.SUGGESTED
    batch_records_max: BatchRows
    trigger_s: TriggerSeconds
    source: Source = ()

    @property
    def checkpoint_dir(self) -> Path:
        return self.out / CHECKPOINT_DIR

    def source_options(self) -> dict[str, str]:
        """Returns the options of the source; those of the user take precedence."""
        own = {
            "nameServer": self.name_servers,
            "readFrom": self.read_from.value,
            "maxOffsetsPerTrigger": str(self.batch_records_max),
            **self.selection(),
        }
        return join_options(self, own, self.source)

    @abstractmethod
    def selection(self) -> dict[str, str]:
        """Returns the options of the source that select the messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingOptions(StreamOptions):
    """The options of `tandemmq pipeline landing`."""

    name = "landing"
    topic: Annotated[str, flag("The topic to land; separate several by commas.")]
    out: Annotated[Path, flag("Directory for the Parquet files; created if missing.")]
    checkpoint: Annotated[Path | None, flag("Spark's checkpoint; default OUT/_checkpoint.")] = None
    partition_by: Annotated[
        tuple[str, ...],
        flag("Partition by these columns, separated by commas; also dt and hour of the store time."),
        _NAMES,
    ] = ()
    starting_offsets: Annotated[str, flag("Where the first run starts: earliest, latest or JSON.")] = (
        "earliest"
    )
    tags: Annotated[str, flag("Land only these tags: 'a || b'.")] = "*"
    columns: Annotated[tuple[str, ...], flag("Columns to land, separated by commas."), _NAMES] = (
        DEFAULT_COLUMNS
    )
    is_body_text: Annotated[bool, flag("Land bodies as strings, not as bytes.", "--body-as-text")] = False
    batch_records_max: BatchRows = 500_000
    trigger_s: TriggerSeconds = 1.0
    compression: Annotated[str, flag("zstd, snappy or none.")] = "zstd"
    lake_format: Annotated[
        str, flag("parquet, delta (a Delta table) or iceberg (an Iceberg table).", "--format")
    ] = "parquet"
    data: Annotated[
        str,
        flag(
            "With delta or iceberg: where to store the table's files, such as s3://bucket/orders; "
            "OUT then holds the checkpoint and the bad records.",
            metavar="ADDRESS",
        ),
    ] = ""
    catalog: Annotated[str, flag("With iceberg: a catalog configured for pyiceberg.", metavar="NAME")] = ""
    table: Annotated[
        str, flag("With --catalog: the table's name in the catalog.", metavar="NAMESPACE.NAME")
    ] = ""
    json_schema: Annotated[
        str,
        flag(
            "Parse bodies as JSON into the column json. The schema is a DDL string ('id bigint, "
            "name string'), @FILE (DDL or Spark's JSON form), or infer."
        ),
        _TEXT_OR_FILE,
    ] = ""
    avro_schema: Annotated[
        str, flag("Read bodies as Avro into the column record: the schema, or @FILE."), _TEXT_OR_FILE
    ] = ""
    protobuf: Annotated[
        str,
        flag(
            "Read bodies as Protobuf into the column record: FILE:MESSAGE, with the descriptors "
            "that protoc --include_imports -o FILE writes.",
            metavar="FILE:MESSAGE",
        ),
    ] = ""
    registry_header: Annotated[
        bool, flag("Bodies begin with a schema registry header.", "--registry-header")
    ] = False
    registry: Annotated[
        str, flag("Schema registry with the writers' Avro schemas: http://host:port.", metavar="URL")
    ] = ""
    bad_topic: Annotated[str, flag("With a body schema: also send bad records to this topic.")] = ""
    json_changes: Annotated[
        JsonChanges,
        flag(
            "For unknown fields and values of another type. keep: skip the field; such a value makes "
            "a bad record. rescue: put both into the column jsonRescue. grow: rescue, and add the "
            "unknown fields to the schema."
        ),
        Typed(str, "keep", read_enum(JsonChanges)),
    ] = JsonChanges.KEEP

    @property
    def subject(self) -> str:
        return self.topic

    @property
    def checkpoint_dir(self) -> Path:
        return self.checkpoint or self.out / CHECKPOINT_DIR

    def selection(self) -> dict[str, str]:
        return {
            "subscribe": self.topic,
            "startingOffsets": self.starting_offsets,
            "tags": self.tags,
            "maxRecordsPerPartition": str(self.batch_records_max // TASKS_PER_BATCH * 5 // 4 + 1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions(PipelineOptions):
    """The options of `tandemmq pipeline serve`; those of the topics are in the file."""

    name = "serve"
    config: Annotated[Path, flag("The YAML file that names the topics and how to land them.")]
    name_servers: Annotated[str, flag("Name servers, instead of those in the file.", "--namesrv")] = ""
    is_continuous: Annotated[
        bool, flag("Keep running, or stop at the current ends of the topics.", "--continuous/--once")
    ] = True

    @property
    def subject(self) -> str:
        return str(self.config)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOptions(PipelineOptions):
    """The options of the pipelines that can repeat their work."""

    is_continuous: Annotated[bool, flag("Repeat until a signal, or run once.", "--continuous/--once")] = False
    every_s: EverySeconds = 60.0

    @property
    def pause_s(self) -> float | None:
        """The pause between rounds; None for one round."""
        return self.every_s if self.is_continuous else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepublishOptions(RoundOptions):
    """The options of the pipelines that send messages again. Times: milliseconds of store time, the end
    exclusive.
    """

    begin_ms: Annotated[
        int | None,
        flag(
            "Only messages stored at or after this time: milliseconds, or 2025-01-31T12:00:00 (UTC).",
            "--from-time",
        ),
        _TIME,
    ] = None
    end_ms: Annotated[
        int | None, flag("Only messages stored before this time; as above.", "--until-time"), _TIME
    ] = None
    where: str = ""
    sink: Annotated[
        Pairs, flag("Any other option of the sink, as name=value; repeatable.", "--option"), _PAIRS
    ] = ()


NAME_SERVERS = "namesrv"
"""The plan's key for the name servers of the target cluster. They may change between runs, but not all at
once.
"""

TASKS = 2
"""The number of concurrent senders, which share the rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions(RepublishOptions):
    """The options of `tandemmq pipeline replay`."""

    name = "replay"
    lake: Annotated[Path, flag("The directory written by `landing`.")]
    to_topic: Annotated[str, flag("The target topic.", "--to")]
    where: Annotated[str, flag("A condition in SQL over the lake's columns.")] = ""
    rate: Annotated[int | None, flag("Approximate limit of messages per second.", min=1)] = None
    keep_keys: Annotated[bool, flag("Keep the unique keys instead of making new ones.", "--keep-keys")] = (
        False
    )
    keep_queues: Annotated[bool, flag("Send each message to the queue id that it had.", "--keep-queues")] = (
        False
    )
    state: Annotated[
        Path | None, flag("File that records the progress; default LAKE/_tandemmq/replay-TOPIC.json.")
    ] = None
    every_s: EverySeconds = 5.0

    @property
    def subject(self) -> str:
        return f"{self.lake} to {self.to_topic}"

    @property
    def state_path(self) -> Path:
        return self.state or self.lake / CONTROL_DIR / f"replay-{self.to_topic}.json"

    def plan(self) -> dict[str, str]:
        """Returns the options that decide which messages are sent, and with which keys."""
        return {
            "topic": self.to_topic,
            "from": str(self.begin_ms),
            "until": str(self.end_ms),
            "where": self.where,
            "keys": "keep" if self.keep_keys else "new",
            "lake": read_owner(self.lake) or "",
            NAME_SERVERS: self.name_servers,
        }

    def sink_options(self) -> dict[str, str]:
        options = {"nameServer": self.name_servers, "topic": self.to_topic}
        if self.rate is not None:
            options["taskRowsPerSecond"] = str(max(1, self.rate // TASKS))
        return {**options, **dict(self.sink)}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterOptions(RepublishOptions):
    """The options of `tandemmq pipeline deadletters`."""

    name = "deadletters"
    group: Annotated[str, flag("Consumer group of the dead letters.")]
    ids: Annotated[
        tuple[str, ...], flag("Message id of the dead letter or of its original; repeatable.", "--id"), _MANY
    ] = ()
    keys: Annotated[
        tuple[str, ...], flag("Only dead letters with this key; repeatable.", "--key"), _MANY
    ] = ()
    where: Annotated[str, flag("A condition in SQL; error, age, origin and originId are columns too.")] = ""
    error_property: Annotated[str, flag("Property in which consumers record the reason of a failure.")] = (
        "error"
    )
    shown: Annotated[int, flag("Number of dead letters to show, oldest first.", "--show", min=0)] = 20
    resend: Annotated[
        bool, flag("Send the selected dead letters to their topics again, each once.", "--resend")
    ] = False
    to_topic: Annotated[str, flag("Send them to this topic instead.", "--to")] = ""
    state: Annotated[Path | None, flag("File that records what was sent again; required by --resend.")] = None
    source: Annotated[
        Pairs, flag("Any option of the source, as name=value; repeatable.", "--source-option"), _PAIRS
    ] = ()

    def __post_init__(self) -> None:
        if self.resend and self.state is None:
            raise ConfigError("--resend requires --state FILE, which records what was sent again")

    @property
    def subject(self) -> str:
        return self.group

    @property
    def topic(self) -> str:
        return dlq_topic(self.group)

    def source_options(self) -> dict[str, str]:
        return join_options(self, {"nameServer": self.name_servers, "subscribe": self.topic}, self.source)

    def sink_options(self) -> dict[str, str]:
        return {"nameServer": self.name_servers, **dict(self.sink)}

    def plan(self) -> dict[str, str]:
        """Returns the options that decide the target of a dead letter; the selection may change from run to
        run.
        """
        return {"group": self.group, "topic": self.to_topic, NAME_SERVERS: self.name_servers}


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupOptions(StreamOptions):
    """The options of `tandemmq pipeline rollup`: either `topic` (several with commas) or `pattern`."""

    name = "rollup"
    out: Annotated[Path, flag("Directory for the table; created if missing.")]
    topic: Annotated[str, flag("Topics, separated by commas.")] = ""
    pattern: Annotated[str, flag("All topics whose whole name matches.", "--topic-pattern")] = ""
    batch_records_max: BatchRows = 1_000_000
    trigger_s: TriggerSeconds = 10.0

    def __post_init__(self) -> None:
        if bool(self.topic) == bool(self.pattern):
            raise ConfigError("give either --topic or --topic-pattern")

    @property
    def subject(self) -> str:
        return self.topic or self.pattern

    def selection(self) -> dict[str, str]:
        chosen = {"subscribe": self.topic} if self.topic else {"subscribePattern": self.pattern}
        return {**chosen, "startingOffsets": "earliest"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions(PipelineOptions):
    """The options of `tandemmq pipeline history`."""

    name = "history"
    lake: Annotated[Path, flag("The directory of a finished or running `landing`.")]
    out: Annotated[Path, flag("Directory of the Parquet files; must not exist.")]
    topic: Annotated[str, flag("Topics of the lake, separated by commas; all by default.")] = ""
    where: Annotated[str, flag("A condition in SQL over the columns.")] = ""
    columns: Annotated[tuple[str, ...], flag("Columns to write, separated by commas."), _NAMES] = ()
    checkpoint: Annotated[Path | None, flag("The landing's checkpoint; default LAKE/_checkpoint.")] = None
    source: Source = ()

    @property
    def subject(self) -> str:
        return str(self.lake)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions(RoundOptions):
    """The options of `tandemmq pipeline audit`. `stores`: broker name and directory of each."""

    name = "audit"
    topic: Annotated[str, flag("The topic to audit; separate several by commas.")]
    name_servers: Annotated[
        str, flag("Name servers: host:port[;host:port]; compares all replicas.", "--namesrv")
    ] = ""
    lakes: Annotated[
        tuple[Path, ...],
        flag("A directory written by `landing`; repeatable.", "--lake"),
        _MANY._replace(kind=list[Path] | None),
    ] = ()
    stores: Annotated[
        tuple[tuple[str, Path], ...],
        flag("The files of a store, as BROKER=DIRECTORY; repeatable.", "--store"),
        _PAIRS._replace(parse=parse_paths),
    ] = ()
    source: Source = ()
    piece_size: Annotated[int, flag("Number of queue offsets per digest.", min=1)] = 100_000
    settle_s: Annotated[
        float,
        flag("Seconds that slaves may take to reach the master's current end.", "--settle-seconds", min=0.0),
    ] = 10.0
    count_repeated_keys: Annotated[
        bool, flag("Count messages that producers sent more than once.", "--repeated-keys/--no-repeated-keys")
    ] = True
    spark_log: Annotated[Path | None, flag("Write Spark's own log to this file; none by default.")] = None

    @property
    def subject(self) -> str:
        return self.topic

    @property
    def topics(self) -> tuple[str, ...]:
        return parse_list(self.topic)

    def source_options(self, replica: int | None = None) -> dict[str, str]:
        """Returns the options of the source for one replica; by default for any."""
        chosen = {} if replica is None else {"replica": str(replica)}
        own = {"nameServer": self.name_servers, "subscribe": ",".join(self.topics), **chosen}
        return join_options(self, own, self.source, fixed=("columns", "replica"))

    def __post_init__(self) -> None:
        if not self.name_servers and len(self.lakes) + len(self.stores) < 2:
            raise ConfigError("an audit compares: give --namesrv, or at least two of --lake and --store")
