"""Lands a topic in a directory of Parquet files, each message exactly once (`lake_job`).

With a schema, bodies are parsed as JSON into the column `json`; a body that does not fit goes to
`_bad_records` of the same directory, with the reason, in the same batch. Avro and Protobuf bodies become the
column `record` in the same way. Without a schema only bodies that cannot be decompressed go there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from tandemmq.errors import ConfigError
from tandemmq.protocol.topic_names import topic_fault
from tandemmq.spark.columns import BODY_FAULT, Projection, find_column, render_ddl, select_columns
from tandemmq.spark.lake.home import Lake, make_lake
from tandemmq.spark.lake.parquet import plan_files
from tandemmq.spark.option_table import SECURITY_NAMES
from tandemmq.spark.options import SourceOptions, parse_options
from tandemmq.spark.pipelines.binary_bodies import BodyReader, check_fields, make_reader, parse_records
from tandemmq.spark.pipelines.events import Reporter
from tandemmq.spark.pipelines.json_bodies import BAD_COLUMN, JsonBodies, bad_record_charts
from tandemmq.spark.pipelines.lake_job import run_lake_job
from tandemmq.spark.pipelines.options import JsonChanges, LandingOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """A landing whose options are parsed and checked; made by `plan_landing`.

    `source`: the options of the topic's source as Spark gets them, and parsed (`reading`); `columns`: the
    landed columns of messages; `bodies`: the reading of JSON, Avro or Protobuf bodies.
    """

    options: LandingOptions
    lake: Lake
    source: dict[str, str]
    reading: SourceOptions
    columns: Projection
    bodies: JsonBodies | BodyReader | None

    @property
    def has_body(self) -> bool:
        return any(column.label == "body" for column in self.columns)

    @property
    def has_bad_records(self) -> bool:
        """True if bodies are read, so that there may be bad records."""
        return self.bodies is not None or self.has_body

    @property
    def has_body_faults(self) -> bool:
        return any(column.label == BODY_FAULT.name for column in self.columns)

    def sink_options(self) -> dict[str, str]:
        """Returns the options of the lake's sink."""
        options, lake = self.options, self.lake
        sink = {
            "partitionBy": ",".join(options.partition_by),
            "compression": options.compression,
            "format": lake.kind,
            "data": lake.address,
            "catalog": lake.catalog,
            "table": lake.table,
        }
        if self.has_bad_records:
            sink["badColumn"] = BAD_COLUMN
        if self.bodies is not None:
            # A bad record keeps its body, even if good rows are landed without bodies.
            sink["badOnly"] = "" if self.has_body else "body"
        if options.bad_topic:
            # The credentials for reading the topic are also used for sending.
            sink |= {name: value for name, value in options.source if name.lower() in SECURITY_NAMES}
            sink |= {"badTopic": options.bad_topic, "nameServer": options.name_servers}
        return sink


def plan_landing(options: LandingOptions) -> Landing:
    """Returns the checked landing. Rejects options that would fail later, somewhere inside Spark.

    Raises:  ConfigError for unusable options, or a table that its catalog has elsewhere.
    """
    source = options.source_options()
    reading = parse_options(source, is_streaming=True)
    bodies = _plan_bodies(options, source)
    columns = select_columns([find_column(name).name for name in options.columns], reading.properties_as)
    body_type = "string" if options.is_body_text else "binary"
    columns = tuple(one._replace(type=body_type) if one.name == "body" else one for one in columns)
    lake = make_lake(options.out, options.lake_format, options.data, options.catalog, options.table)
    plan_files(lake, [column.label for column in columns], options.partition_by, options.compression)
    return Landing(options=options, lake=lake, source=source, reading=reading, columns=columns, bodies=bodies)


def _plan_bodies(options: LandingOptions, source: dict[str, str]) -> JsonBodies | BodyReader | None:
    """Returns the reading of bodies; raises ConfigError for options that contradict each other."""
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
        has_schema = bool(options.json_schema or records)
        if fault or not has_schema or options.bad_topic in options.topic.split(","):
            raise ConfigError(
                f"--bad-topic: {fault or 'it needs a schema of the bodies, and must not be what is landed'}"
            )
    if options.json_schema:
        return JsonBodies(
            text=options.json_schema, changes=options.json_changes, out=options.out, source=source
        )
    if records is not None:
        records.ddl()
    return records


def run_landing(options: LandingOptions, reporter: Reporter) -> int:
    """Runs until everything is read, or with `is_continuous` until a signal; returns the exit code.

    Raises:  ConfigError before anything is started, for unusable options or an unusable directory.
    """
    landing = plan_landing(options)
    bodies = landing.bodies
    is_outdated = None
    if isinstance(bodies, JsonBodies) and bodies.changes is JsonChanges.GROW:
        is_outdated = partial(bodies.grow, landing.lake)
    code = run_lake_job(
        options,
        reporter,
        landing.lake,
        lambda spark: _make_stream(spark, landing, reporter),
        landing.sink_options(),
        is_outdated=is_outdated,
    )
    if landing.has_bad_records:
        reporter.report(bad_record_charts(landing.lake.bad_records.root))
    return code


def _make_stream(spark: SparkSession, landing: Landing, reporter: Reporter) -> DataFrame:
    options, bodies, schema = landing.options, landing.bodies, render_ddl(landing.columns)
    if bodies is not None and not landing.has_body:
        schema += f", `body` {'string' if options.is_body_text else 'binary'}"
    if landing.has_bad_records and not landing.has_body_faults:
        schema += f", `{BODY_FAULT.name}` {BODY_FAULT.types[0]}"
    stream = spark.readStream.format("tandemmq").schema(schema).options(**landing.source).load()
    if isinstance(bodies, JsonBodies):
        stream = bodies.parse(stream, reporter)
    elif bodies is not None:
        check_fields(landing.lake.root, bodies)
        stream = parse_records(stream, bodies)
    return _add_faults(stream, landing) if landing.has_bad_records else stream


def _add_faults(frame: DataFrame, landing: Landing) -> DataFrame:
    """Returns the frame with body faults added to the reasons for bad records.

    A body that parses as JSON of the schema counts as good, whatever its flag says. For Avro and Protobuf
    this proves nothing, because compressed bytes may look like a record.
    """
    reason = f.col(BODY_FAULT.name)
    if isinstance(landing.bodies, JsonBodies):
        reason = f.when(f.col(BAD_COLUMN).isNotNull(), f.coalesce(reason, f.col(BAD_COLUMN)))
    elif landing.bodies is not None:
        reason = f.coalesce(reason, f.col(BAD_COLUMN))
    marked = frame.withColumn(BAD_COLUMN, reason)
    return marked if landing.has_body_faults else marked.drop(BODY_FAULT.name)
