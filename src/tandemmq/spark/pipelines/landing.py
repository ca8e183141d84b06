"""Lands a topic in a directory of Parquet files, each message exactly once (`lake_job`).

With a schema, bodies are parsed as JSON into the column `json`; a body that does not fit goes to
`_bad_records` of the same directory, with the reason, in the same batch. Avro and Protobuf bodies become the
column `record` in the same way. Without a schema only bodies that cannot be decompressed go there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tandemmq.errors import ConfigError
from tandemmq.protocol.topic_names import topic_fault
from tandemmq.spark.columns import BODY_FAULT, Projection, find_column, render_ddl, select_columns
from tandemmq.spark.lake.files import BAD_RECORDS_DIR, CONTROL_DIR
from tandemmq.spark.lake.formats import check_table, make_home, plan_files
from tandemmq.spark.lake.home import TableHome
from tandemmq.spark.option_table import SECURITY_NAMES
from tandemmq.spark.options import parse_options
from tandemmq.spark.pipelines.binary_bodies import BodyReader, check_fields, make_reader, parse_records
from tandemmq.spark.pipelines.events import Reporter
from tandemmq.spark.pipelines.json_bodies import (
    BAD_COLUMN,
    SCHEMA_FILE,
    bad_record_charts,
    choose_schema,
    grow_schema,
    parse_bodies,
    parse_schema,
    read_rescued,
    save_schema,
)
from tandemmq.spark.pipelines.lake_job import run_lake_job
from tandemmq.spark.pipelines.options import JsonChanges, LandingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """A landing whose options are parsed and checked, and whose lake was looked up; made by `plan_landing`.

    `records`: the reader of Avro or Protobuf bodies; `columns`: the landed columns of messages.
    """

    options: LandingOptions
    source: dict[str, str]
    columns: Projection
    records: BodyReader | None
    home: TableHome

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.label for column in self.columns)

    @property
    def is_parsed(self) -> bool:
        return bool(self.options.json_schema) or self.records is not None

    @property
    def has_body(self) -> bool:
        return "body" in self.names

    @property
    def has_bad_records(self) -> bool:
        """True if bodies are read, so that there may be bad records."""
        return self.is_parsed or self.has_body

    @property
    def has_body_faults(self) -> bool:
        return BODY_FAULT.name in self.names

    def sink_options(self) -> dict[str, str]:
        """Returns the options of the lake's sink."""
        options, home = self.options, self.home
        sink = {
            "partitionBy": ",".join(options.partition_by),
            "compression": options.compression,
            "format": home.kind,
            "data": home.address,
            "catalog": home.catalog,
            "table": home.table,
        }
        if self.has_bad_records:
            sink["badColumn"] = BAD_COLUMN
        if self.is_parsed:
            # A bad record keeps its body, even if good rows are landed without bodies.
            sink["badOnly"] = "" if self.has_body else "body"
        if options.bad_topic:
            # The credentials for reading the topic are also used for sending.
            sink |= {name: value for name, value in options.source if name.lower() in SECURITY_NAMES}
            sink |= {"badTopic": options.bad_topic, "nameServer": options.name_servers}
        return sink


def plan_landing(options: LandingOptions) -> Landing:
    """Returns the checked landing. Rejects options that would fail later, somewhere inside Spark.

    Raises:  ConfigError for unusable options, or a directory with another lake.
    """
    source = options.source_options()
    properties_as = parse_options(source, is_streaming=True).properties_as
    records = make_reader(
        options.avro_schema,
        options.protobuf,
        is_framed=options.registry_header or bool(options.registry),
        registry=options.registry,
    )
    if options.json_changes is not JsonChanges.KEEP and not options.json_schema:
        raise ConfigError("--json-changes is about JSON bodies: give --json-schema, too")
    if options.json_schema and records is not None:
        raise ConfigError("bodies are read in one way: --json-schema, --avro-schema or --protobuf")
    if options.bad_topic:
        fault = topic_fault(options.bad_topic)
        is_parsed = bool(options.json_schema) or records is not None
        if fault or not is_parsed or options.bad_topic in options.topic.split(","):
            raise ConfigError(
                f"--bad-topic: {fault or 'it needs a schema of the bodies, and must not be what is landed'}"
            )
    if records is not None:
        records.ddl()
    names = [find_column(name).name for name in options.columns]
    chosen = select_columns(names, properties_as)
    names = [column.label for column in chosen]
    body_type = "string" if options.is_body_text else "binary"
    chosen = tuple(one._replace(type=body_type) if one.name == "body" else one for one in chosen)
    home = make_home(options.lake_format, options.data, options.catalog, options.table)
    check_table(options.out, home)
    plan_files(home.kind, names, options.partition_by, options.compression)
    return Landing(
        options=options,
        source=source,
        columns=chosen,
        records=records,
        home=home,
    )


def run_landing(options: LandingOptions, reporter: Reporter) -> int:
    """Runs until everything is read, or with `is_continuous` until a signal; returns the exit code.

    Raises:  ConfigError before anything is started, for unusable options or an unusable directory.
    """
    landing = plan_landing(options)
    code = run_lake_job(
        options,
        reporter,
        lambda spark: _make_stream(spark, landing, reporter),
        landing.sink_options(),
        is_outdated=partial(_grow, options.out) if options.json_changes is JsonChanges.GROW else None,
    )
    if landing.has_bad_records:
        reporter.report(bad_record_charts(options.out / BAD_RECORDS_DIR))
    return code


def _make_stream(spark: SparkSession, landing: Landing, reporter: Reporter) -> DataFrame:
    options, schema = landing.options, render_ddl(landing.columns)
    if landing.is_parsed and not landing.has_body:
        schema += f", `body` {'string' if options.is_body_text else 'binary'}"
    if landing.has_bad_records and not landing.has_body_faults:
        schema += f", `{BODY_FAULT.name}` {BODY_FAULT.types[0]}"
    stream = spark.readStream.format("tandemmq").schema(schema).options(**landing.source).load()
    if landing.records is not None:
        check_fields(options.out, landing.records)
        stream = parse_records(stream, landing.records)
    elif options.json_schema:
        changes = options.json_changes
        fields, schema_event = choose_schema(spark, options.json_schema, options.out, landing.source, changes)
        reporter.report(schema_event)
        stream = parse_bodies(stream, fields, is_rescued=changes is not JsonChanges.KEEP)
    return _add_faults(stream, landing) if landing.has_bad_records else stream


def _add_faults(frame: DataFrame, landing: Landing) -> DataFrame:
    """Returns the frame with body faults added to the reasons for bad records.

    A body that parses as JSON of the schema counts as good, whatever its flag says. For Avro and Protobuf
    this proves nothing, because compressed bytes may look like a record.
    """
    reason = f.col(BODY_FAULT.name)
    if landing.options.json_schema:
        reason = f.when(f.col(BAD_COLUMN).isNotNull(), f.coalesce(reason, f.col(BAD_COLUMN)))
    elif landing.records is not None:
        reason = f.coalesce(reason, f.col(BAD_COLUMN))
    marked = frame.withColumn(BAD_COLUMN, reason)
    return marked if landing.has_body_faults else marked.drop(BODY_FAULT.name)


def _grow(out: Path, spark: SparkSession, batch_id: int) -> bool:
    """Extends the schema by the values that a batch rescued; returns True if it changed."""
    known = parse_schema((out / CONTROL_DIR / SCHEMA_FILE).read_text())
    grown = grow_schema(spark, known, read_rescued(out, batch_id))
    if grown == known:
        return False
    save_schema(out, grown)
    return True
