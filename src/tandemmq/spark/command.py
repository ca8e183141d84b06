"""`tandemmq pipeline ...`: the ready-made pipelines as commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandemmq.errors import TandemError
from tandemmq.spark.command_lake import app as lake_app
from tandemmq.spark.command_lake import audit, history, rollup
from tandemmq.spark.command_topics import deadletters, rebuild, replay
from tandemmq.spark.command_watch import (
    EXIT_REFUSED,
    BatchRows,
    Master,
    MetricsPort,
    NameServers,
    Progress,
    ProgressKind,
    Replica,
    ReportFile,
    SourceOptions,
    TriggerSeconds,
    Watch,
    read_text_option,
    run_pipeline,
    split_list,
    split_pairs,
)
from tandemmq.spark.option_text import parse_enum
from tandemmq.spark.options import ReadFrom
from tandemmq.spark.pipelines.events import Reporter
from tandemmq.units import MIB

app = typer.Typer(no_args_is_help=True, help="Run a Spark pipeline over topics.")


@app.callback()
def pipeline() -> None:
    """Run a Spark pipeline over topics."""


@app.command()
def landing(
    namesrv: NameServers,
    topic: Annotated[str, typer.Option(help="The topic to land; several with commas.")],
    out: Annotated[Path, typer.Option(help="Directory of the Parquet files; made when missing.")],
    master: Master = "local[*]",
    once: Annotated[
        bool, typer.Option("--once/--continuous", help="Stop when everything there is now is read, or go on.")
    ] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Spark's checkpoint; default OUT/_checkpoint.")
    ] = None,
    partition_by: Annotated[
        str, typer.Option(help="Columns for directories, with commas; also dt and hour of the store time.")
    ] = "",
    read_from: Replica = ReadFrom.SUGGESTED,
    starting_offsets: Annotated[
        str, typer.Option(help="earliest, latest or JSON; first run only.")
    ] = "earliest",
    tags: Annotated[str, typer.Option(help="Land only these tags: 'a || b'.")] = "*",
    columns: Annotated[str, typer.Option(help="Columns to land, with commas.")] = "",
    body_as_text: Annotated[bool, typer.Option("--body-as-text", help="Land bodies as strings.")] = False,
    batch_rows: BatchRows = 500_000,
    trigger_seconds: TriggerSeconds = 1.0,
    compression: Annotated[str, typer.Option(help="zstd, snappy or none.")] = "zstd",
    lake_format: Annotated[
        str, typer.Option("--format", help="parquet, delta (a Delta table) or iceberg (an Iceberg table).")
    ] = "parquet",
    data: Annotated[
        str,
        typer.Option(
            help="With delta and iceberg: an address for the files of the table, as s3://bucket/orders; "
            "OUT then holds the checkpoint and the bad records.",
            metavar="ADDRESS",
        ),
    ] = "",
    catalog: Annotated[
        str, typer.Option(help="With iceberg: a catalog from the settings of pyiceberg.", metavar="NAME")
    ] = "",
    table: Annotated[
        str, typer.Option(help="With --catalog: the table in it.", metavar="NAMESPACE.NAME")
    ] = "",
    option: SourceOptions = None,
    json_schema: Annotated[
        str,
        typer.Option(
            help="Parse bodies as JSON into the column json: Spark's DDL ('id bigint, name string'), "
            "@FILE with that or Spark's JSON form, or infer."
        ),
    ] = "",
    avro_schema: Annotated[
        str, typer.Option(help="Read bodies as Avro into the column record: the schema, or @FILE.")
    ] = "",
    protobuf: Annotated[
        str,
        typer.Option(
            help="Read bodies as Protobuf into the column record: FILE:MESSAGE, with the descriptors that "
            "protoc --include_imports -o FILE writes.",
            metavar="FILE:MESSAGE",
        ),
    ] = "",
    registry_header: Annotated[
        bool, typer.Option("--registry-header", help="Bodies begin with the header of a schema registry.")
    ] = False,
    registry: Annotated[
        str,
        typer.Option(help="Fetch the Avro schemas of the writers there: http://host:port.", metavar="URL"),
    ] = "",
    bad_topic: Annotated[
        str, typer.Option(help="With a schema of the bodies: bad records are sent to this topic, too.")
    ] = "",
    json_changes: Annotated[
        str,
        typer.Option(
            help="Names that the schema has not got and values that do not fit: keep (pass over, and bad "
            "record), rescue (into the column jsonRescue), or grow (the same, and such names become fields)."
        ),
    ] = "keep",
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Land a topic in a directory of Parquet files, each message exactly once.

    Ends after the current batch on SIGTERM or Ctrl-C, and goes on where it was when started again.
    """
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are only imported when a pipeline really runs.
        from tandemmq.spark.pipelines.binary_bodies import make_reader
        from tandemmq.spark.pipelines.json_bodies import JsonChanges
        from tandemmq.spark.pipelines.landing import DEFAULT_COLUMNS, LandingOptions, run_landing

        options = LandingOptions(
            name_servers=namesrv,
            topic=topic,
            out=out,
            checkpoint=checkpoint,
            master=master,
            is_continuous=not once,
            trigger_s=trigger_seconds,
            batch_records_max=batch_rows,
            partition_by=split_list(partition_by),
            compression=compression,
            lake_format=lake_format,
            data=data,
            catalog=catalog,
            table=table,
            columns=split_list(columns) or DEFAULT_COLUMNS,
            is_body_text=body_as_text,
            json_schema=read_text_option("--json-schema", json_schema),
            records=make_reader(
                read_text_option("--avro-schema", avro_schema),
                protobuf,
                is_framed=registry_header or bool(registry),
                registry=registry,
            ),
            bad_topic=bad_topic,
            json_changes=parse_enum(
                {"--json-changes": json_changes}, "--json-changes", JsonChanges, JsonChanges.KEEP
            ),
            source=(
                ("readFrom", read_from.value),
                ("startingOffsets", starting_offsets),
                ("tags", tags),
                *split_pairs(option, "--option"),
            ),
        )
        return run_landing(options, reporter)

    run_pipeline("landing", topic, watch, work)


@app.command()
def prepare() -> None:
    """Make sessions start with half of the processor time, once for each Java and Spark on this machine.

    Writes an archive of Java's classes (some 180 MB) to the cache directory of this user, in half a minute.
    """
    try:
        from tandemmq.spark.java import make_archive
        from tandemmq.spark.pipelines.sessions import NO_LOG
        from tandemmq.spark.session import build_session

        path = make_archive(
            lambda options: build_session("prepare", "local[2]", log_file=NO_LOG, java_options=options)
        )
    except TandemError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_REFUSED) from error
    typer.echo(f"{path}: {path.stat().st_size // MIB} MiB; sessions of this user map it from now on")


app.command()(audit)
app.command()(replay)
app.command()(rollup)
app.command()(history)
app.command()(deadletters)
app.command()(rebuild)
app.add_typer(lake_app, name="lake")
