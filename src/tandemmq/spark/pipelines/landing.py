"""Lands a topic in a directory of Parquet files, each message exactly once (`lake_job`).

With a schema, bodies are parsed as JSON into the column `json`; a body that does not fit goes to
`_bad_records` of the same directory, with the reason, in the same batch. Avro and Protobuf bodies become the
column `record` in the same way. Without a schema only bodies that cannot be decompressed go there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tandemmq.errors import ConfigError
from tandemmq.protocol.topic_names import topic_fault
from tandemmq.spark.columns import BODY_FAULT, find_column, select_columns
from tandemmq.spark.lake.files import BAD_RECORDS_DIR, CONTROL_DIR
from tandemmq.spark.lake.formats import check_kind, check_table, parse_format, plan_files
from tandemmq.spark.lake.home import TableHome, make_home
from tandemmq.spark.lake.parquet import check_partition_columns
from tandemmq.spark.option_table import SECURITY_ROWS
from tandemmq.spark.options import PropertiesAs, parse_options
from tandemmq.spark.pipelines.binary_bodies import BodyReader, check_fields, parse_records
from tandemmq.spark.pipelines.events import Reporter
from tandemmq.spark.pipelines.json_bodies import (
    BAD_COLUMN,
    SCHEMA_FILE,
    JsonChanges,
    bad_record_charts,
    choose_schema,
    parse_bodies,
    parse_schema,
    save_schema,
)
from tandemmq.spark.pipelines.lake_job import CHECKPOINT_DIR, LakeTarget, run_lake_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEFAULT_COLUMNS = (
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "msgId",
    "tags",
    "keys",
    "body",
    "bornTimestamp",
    "storeTimestamp",
    "properties",
)
TASKS_PER_BATCH = 4
"""The approximate number of tasks for a full batch of one queue; four equal queues are not split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LandingOptions:
    """The options of `tandemmq pipeline landing`. `json_schema`: Spark's DDL or JSON form, or `infer`."""

    name_servers: str
    topic: str
    out: Path
    checkpoint: Path | None = None
    master: str = "local[*]"
    is_continuous: bool = True
    trigger_s: float = 1.0
    batch_records_max: int = 500_000
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    lake_format: str = "parquet"
    data: str = ""
    """An address for the files of a Delta or Iceberg table."""
    catalog: str = ""
    table: str = ""
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    is_body_text: bool = False
    json_schema: str = ""
    json_changes: JsonChanges = JsonChanges.KEEP
    records: BodyReader | None = None
    """The reader of Avro or Protobuf bodies."""
    bad_topic: str = ""
    source: tuple[tuple[str, str], ...] = ()
    """Further options of the source: name and value."""

    @property
    def checkpoint_dir(self) -> Path:
        return self.checkpoint or self.out / CHECKPOINT_DIR

    @property
    def is_parsed(self) -> bool:
        return bool(self.json_schema) or self.records is not None

    @property
    def has_body(self) -> bool:
        return self._names("body")

    @property
    def has_bad_records(self) -> bool:
        """True if bodies are read, so that there may be bad records."""
        return self.is_parsed or self.has_body

    @property
    def has_body_faults(self) -> bool:
        return self._names(BODY_FAULT.name)

    def _names(self, column: str) -> bool:
        return any(find_column(name).name == column for name in self.columns)

    def source_options(self) -> dict[str, str]:
        """Returns the options of the source; those of the user take precedence."""
        return {
            "nameServer": self.name_servers,
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.batch_records_max),
            "maxRecordsPerPartition": str(self.batch_records_max // TASKS_PER_BATCH * 5 // 4 + 1),
            **dict(self.source),
        }

    def schema(self) -> str:
        """Returns the columns to land as Spark DDL."""
        properties_as = parse_options(self.source_options(), is_streaming=True).properties_as
        chosen = select_columns(self.columns, properties_as)
        types = {"body": "string"} if self.is_body_text else {}
        return ", ".join(f"`{column.label}` {types.get(column.name, column.type)}" for column in chosen)

    def home(self) -> TableHome:
        return make_home(parse_format(self.lake_format).value, self.data, self.catalog, self.table)

    def target(self) -> LakeTarget:
        sink = {
            "partitionBy": ",".join(self.partition_by),
            "compression": self.compression,
            "format": self.lake_format,
        }
        home = self.home()
        sink |= {"data": home.address, "catalog": home.catalog, "table": home.table}
        if self.has_bad_records:
            sink["badColumn"] = BAD_COLUMN
        if self.is_parsed:
            # A bad record keeps its body, even if good rows are landed without bodies.
            sink["badOnly"] = "" if self.has_body else "body"
        if self.bad_topic:
            # The credentials for reading the topic are also used for sending.
            names = {name.lower() for row in SECURITY_ROWS for name in (row.name, *row.aliases)}
            sink |= {name: value for name, value in self.source if name.lower() in names}
            sink |= {"badTopic": self.bad_topic, "nameServer": self.name_servers}
        return LakeTarget(
            out=self.out,
            checkpoint_dir=self.checkpoint_dir,
            is_continuous=self.is_continuous,
            trigger_s=self.trigger_s,
            sink=sink,
        )


def run_landing(options: LandingOptions, reporter: Reporter) -> int:
    """Runs until everything is read, or with `is_continuous` until a signal; returns the exit code.

    Raises:  ConfigError before anything is started, for unusable options or an unusable directory.
    """
    check_landing(options)
    target = options.target()
    code = run_lake_job(
        "landing",
        options.topic,
        options.master,
        target,
        lambda spark: _make_stream(spark, options, reporter),
        reporter,
        is_outdated=partial(_grow, options.out) if options.json_changes is JsonChanges.GROW else None,
    )
    if options.has_bad_records:
        reporter.report(bad_record_charts(options.out / BAD_RECORDS_DIR))
    return code


def check_landing(options: LandingOptions) -> None:
    """Rejects options that would fail later, somewhere inside Spark."""
    parse_options(options.source_options(), is_streaming=True)
    if options.json_changes is not JsonChanges.KEEP and not options.json_schema:
        raise ConfigError("--json-changes is about JSON bodies: give --json-schema, too")
    if options.bad_topic:
        fault = topic_fault(options.bad_topic)
        if fault or not options.is_parsed or options.bad_topic in options.topic.split(","):
            raise ConfigError(
                f"--bad-topic: {fault or 'it needs a schema of the bodies, and must not be what is landed'}"
            )
    if options.records is not None:
        if options.json_schema:
            raise ConfigError("bodies are read in one way: --json-schema, --avro-schema or --protobuf")
        options.records.ddl()
    names = [find_column(name).name for name in options.columns]
    if parse_options(options.source_options(), is_streaming=True).properties_as is PropertiesAs.NONE:
        names = [name for name in names if name != "properties"]
    kind = parse_format(options.lake_format)
    check_kind(kind, options.out)
    check_table(options.out, options.home())
    files = plan_files(kind, names, options.partition_by, options.compression)
    check_partition_columns(names, files.partition_by)


def _make_stream(spark: SparkSession, options: LandingOptions, reporter: Reporter) -> DataFrame:
    schema, body = options.schema(), "string" if options.is_body_text else "binary"
    if options.is_parsed and not options.has_body:
        schema += f", `body` {body}"
    if options.has_bad_records and not options.has_body_faults:
        schema += f", `{BODY_FAULT.name}` {BODY_FAULT.types[0]}"
    stream = spark.readStream.format("tandemmq").schema(schema).options(**options.source_options()).load()
    if options.records is not None:
        check_fields(options.out, options.records)
        return _add_faults(parse_records(stream, options.records), options)
    if not options.json_schema:
        return _add_faults(stream, options)
    changes = options.json_changes
    fields, schema_event = choose_schema(
        spark, options.json_schema, options.out, options.source_options(), changes
    )
    reporter.report(schema_event)
    return _add_faults(parse_bodies(stream, fields, is_rescued=changes is not JsonChanges.KEEP), options)


def _add_faults(frame: DataFrame, options: LandingOptions) -> DataFrame:
    """Returns the frame with body faults added to the reasons for bad records.

    A body that parses as JSON of the schema counts as good, whatever its flag says. For Avro and Protobuf
    this proves nothing, because compressed bytes may look like a record.
    """
    if not options.has_bad_records:
        return frame
    from pyspark.sql import functions as f

    reason = f.col(BODY_FAULT.name)
    if options.json_schema:
        reason = f.when(f.col(BAD_COLUMN).isNotNull(), f.coalesce(reason, f.col(BAD_COLUMN)))
    elif options.records is not None:
        reason = f.coalesce(reason, f.col(BAD_COLUMN))
    marked = frame.withColumn(BAD_COLUMN, reason)
    return marked if options.has_body_faults else marked.drop(BODY_FAULT.name)


def _grow(out: Path, spark: SparkSession, batch_id: int) -> bool:
    """Extends the schema by the values that a batch rescued; returns True if it changed."""
    from tandemmq.spark.pipelines.json_bodies import grow_schema, read_rescued

    known = parse_schema((out / CONTROL_DIR / SCHEMA_FILE).read_text())
    grown = grow_schema(spark, known, read_rescued(out, batch_id))
    if grown == known:
        return False
    save_schema(out, grown)
    return True
