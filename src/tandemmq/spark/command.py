"""`tandemmq pipeline ...`: the ready-made pipelines as commands.

The order is: `landing` and `prepare`; then the commands that send to topics again (`replay`, `deadletters`);
then the commands that read and maintain lakes (`lake`, `rollup`, `history`, `audit`). Each command imports
its pipeline only when it is called, so that `--help` is quick.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from tandemmq.errors import ConfigError, TandemError
from tandemmq.spark.command_watch import (
    EXIT_REFUSED,
    BatchRows,
    EverySeconds,
    Master,
    MetricsPort,
    NameServers,
    Progress,
    ProgressKind,
    Replica,
    ReportFile,
    SinkOptions,
    SourceOptions,
    TriggerSeconds,
    Watch,
    parse_time,
    read_text_option,
    run_pipeline,
    split_list,
    split_pairs,
)
from tandemmq.spark.option_table import parse_enum
from tandemmq.spark.options import ReadPreference
from tandemmq.spark.pipelines.events import Reporter
from tandemmq.units import MIB

app = typer.Typer(no_args_is_help=True, help="Run a Spark pipeline over topics.")


@app.callback()
def pipeline() -> None:
    """Run a Spark pipeline over topics."""


@app.command()
def landing(
    namesrv: NameServers,
    topic: Annotated[str, typer.Option(help="The topic to land; separate several by commas.")],
    out: Annotated[Path, typer.Option(help="Directory for the Parquet files; created if missing.")],
    master: Master = "local[*]",
    once: Annotated[
        bool,
        typer.Option("--once/--continuous", help="Stop at the current end of the topic, or keep running."),
    ] = False,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Spark's checkpoint; default OUT/_checkpoint.")
    ] = None,
    partition_by: Annotated[
        str,
        typer.Option(
            help="Partition by these columns, separated by commas; also dt and hour of the store time."
        ),
    ] = "",
    read_from: Replica = ReadPreference.SUGGESTED,
    starting_offsets: Annotated[
        str, typer.Option(help="Where the first run starts: earliest, latest or JSON.")
    ] = "earliest",
    tags: Annotated[str, typer.Option(help="Land only these tags: 'a || b'.")] = "*",
    columns: Annotated[str, typer.Option(help="Columns to land, separated by commas.")] = "",
    body_as_text: Annotated[
        bool, typer.Option("--body-as-text", help="Land bodies as strings, not as bytes.")
    ] = False,
    batch_rows: BatchRows = 500_000,
    trigger_seconds: TriggerSeconds = 1.0,
    compression: Annotated[str, typer.Option(help="zstd, snappy or none.")] = "zstd",
    lake_format: Annotated[
        str, typer.Option("--format", help="parquet, delta (a Delta table) or iceberg (an Iceberg table).")
    ] = "parquet",
    data: Annotated[
        str,
        typer.Option(
            help="With delta or iceberg: where to store the table's files, such as s3://bucket/orders; "
            "OUT then holds the checkpoint and the bad records.",
            metavar="ADDRESS",
        ),
    ] = "",
    catalog: Annotated[
        str, typer.Option(help="With iceberg: a catalog configured for pyiceberg.", metavar="NAME")
    ] = "",
    table: Annotated[
        str, typer.Option(help="With --catalog: the table's name in the catalog.", metavar="NAMESPACE.NAME")
    ] = "",
    option: SourceOptions = None,
    json_schema: Annotated[
        str,
        typer.Option(
            help="Parse bodies as JSON into the column json. The schema is a DDL string "
            "('id bigint, name string'), @FILE (DDL or Spark's JSON form), or infer."
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
        bool, typer.Option("--registry-header", help="Bodies begin with a schema registry header.")
    ] = False,
    registry: Annotated[
        str,
        typer.Option(help="Schema registry with the writers' Avro schemas: http://host:port.", metavar="URL"),
    ] = "",
    bad_topic: Annotated[
        str, typer.Option(help="With a body schema: also send bad records to this topic.")
    ] = "",
    json_changes: Annotated[
        str,
        typer.Option(
            help="Names that the schema lacks, and values that do not fit: keep (skip the name; a bad value "
            "makes a bad record), rescue (both go to the column jsonRescue), or grow (as rescue, and such "
            "names become fields)."
        ),
    ] = "keep",
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Land a topic in a directory of Parquet files, each message exactly once.

    On SIGTERM or Ctrl-C it stops after the current batch. The next start resumes there.
    """
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are imported only when a pipeline runs.
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
    """Halve the processor time that Spark sessions need to start. Run it once per Java and Spark version on
    this machine.

    Writes an archive of Java's classes (about 180 MB) to this user's cache directory, in half a minute.
    """
    try:
        from tandemmq.spark.java import make_archive
        from tandemmq.spark.pipelines.runner import NO_LOG
        from tandemmq.spark.session import build_session

        path = make_archive(
            lambda options: build_session("prepare", "local[2]", log_file=NO_LOG, java_options=options)
        )
    except TandemError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_REFUSED) from error
    typer.echo(f"{path}: {path.stat().st_size // MIB} MiB; sessions of this user map it from now on")


# The commands that send to topics again: `tandemmq pipeline replay` and `deadletters`.


def replay(
    lake: Annotated[Path, typer.Option(help="The lake that a landing wrote.")],
    namesrv: NameServers,
    to: Annotated[str, typer.Option(help="The topic that gets the messages.")],
    from_time: Annotated[
        str, typer.Option(help="Store time of the first message: milliseconds, or 2025-01-31T12:00:00 (UTC).")
    ] = "",
    until_time: Annotated[str, typer.Option(help="Store time of the end, exclusive; as above.")] = "",
    where: Annotated[str, typer.Option(help="A condition in SQL over the lake's columns.")] = "",
    rate: Annotated[int | None, typer.Option(help="Approximate limit of messages per second.", min=1)] = None,
    keep_keys: Annotated[
        bool, typer.Option("--keep-keys", help="Keep the unique keys instead of making new ones.")
    ] = False,
    keep_queues: Annotated[
        bool, typer.Option("--keep-queues", help="Send each message to the queue number that it had.")
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option(help="File that records the progress; default LAKE/_tandemmq/replay-TOPIC.json."),
    ] = None,
    continuous: Annotated[
        bool,
        typer.Option("--continuous/--once", help="Keep running and send what is landed meanwhile, or stop."),
    ] = False,
    every_seconds: EverySeconds = 5.0,
    master: Master = "local[*]",
    option: SinkOptions = None,
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Send messages of a lake to a topic again, filtered by time and condition, at a bounded rate.

    After a signal, an error or a kill, the next start resumes with the lake's batch that was in progress.
    """
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are imported only when a pipeline runs.
        from tandemmq.spark.pipelines.replay import Keys, ReplayOptions, run_replay

        options = ReplayOptions(
            lake=lake,
            name_servers=namesrv,
            to_topic=to,
            begin_ms=parse_time("--from-time", from_time),
            end_ms=parse_time("--until-time", until_time),
            where=where,
            rate=rate,
            keys=Keys.KEEP if keep_keys else Keys.NEW,
            keep_queues=keep_queues,
            state=state,
            follow_every_s=every_seconds if continuous else None,
            master=master,
            sink=split_pairs(option, "--option"),
        )
        return run_replay(options, reporter)

    run_pipeline("replay", f"{lake} to {to}", watch, work)


def deadletters(
    namesrv: NameServers,
    group: Annotated[str, typer.Option(help="Consumer group of the dead letters.")],
    from_time: Annotated[
        str,
        typer.Option(
            help="Only dead letters stored at or after this time: milliseconds, or 2025-01-31T12:00:00 (UTC)."
        ),
    ] = "",
    until_time: Annotated[
        str, typer.Option(help="Only dead letters stored before this time; as above.")
    ] = "",
    id: Annotated[
        list[str] | None,
        typer.Option("--id", help="Message id of the dead letter or of its original; repeatable."),
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="Only dead letters with this key; repeatable.")
    ] = None,
    where: Annotated[
        str, typer.Option(help="A condition in SQL; error, age, origin and originId are columns too.")
    ] = "",
    error_property: Annotated[
        str, typer.Option(help="Property in which consumers record the reason of a failure.")
    ] = "error",
    show: Annotated[int, typer.Option(help="Number of dead letters to show, oldest first.", min=0)] = 20,
    resend: Annotated[
        bool,
        typer.Option("--resend", help="Send the selected dead letters to their topics again, each once."),
    ] = False,
    to: Annotated[str, typer.Option(help="Send them to this topic instead.")] = "",
    state: Annotated[
        Path | None, typer.Option(help="File that records what was sent again; required by --resend.")
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous/--once", help="Repeat until a signal, or run once.")
    ] = False,
    every_seconds: EverySeconds = 60.0,
    option: SinkOptions = None,
    source_option: Annotated[
        list[str] | None, typer.Option(help="Any option of the source, as name=value; repeatable.")
    ] = None,
    master: Master = "local[*]",
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Show the dead letters of a group by error and age, and resend selected ones to their topics."""
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are imported only when a pipeline runs.
        from tandemmq.spark.pipelines.dead_letters import DeadLetterOptions, run_dead_letters

        options = DeadLetterOptions(
            name_servers=namesrv,
            group=group,
            begin_ms=parse_time("--from-time", from_time),
            end_ms=parse_time("--until-time", until_time),
            ids=tuple(id or ()),
            keys=tuple(key or ()),
            where=where,
            error_property=error_property,
            shown=show,
            resend=resend,
            to_topic=to,
            state=state,
            every_s=every_seconds if continuous else None,
            master=master,
            source=split_pairs(source_option, "--source-option"),
            sink=split_pairs(option, "--option"),
        )
        return run_dead_letters(options, reporter)

    run_pipeline("deadletters", group, watch, work)


# The commands that read and maintain lakes: `tandemmq pipeline lake ...` (maintenance, without Spark),
# `rollup`, `history`, `audit`.

lake_app = typer.Typer(no_args_is_help=True, help="Maintain a lake: parquet, delta or iceberg.")

Directory = Annotated[Path, typer.Argument(help="Directory of the lake.")]
_T = TypeVar("_T")


@lake_app.command()
def compact(
    directory: Directory,
    target_mib: Annotated[
        int, typer.Option(help="Approximate size of the merged files, in MiB.", min=1)
    ] = 256,
) -> None:
    """Merge small files into fewer, larger ones; readers see every row exactly once at all times.

    No landing may run meanwhile, except into a Delta table.
    """
    from tandemmq.spark.lake.upkeep import compact_lake

    before, after = _refuse_wrong(lambda: compact_lake(directory, target_bytes=target_mib << 20))
    typer.echo(f"{directory}: {before} files before, {after} now")


@lake_app.command()
def expire(
    directory: Directory,
    days: Annotated[int, typer.Option(help="Keep the last N days (UTC), and today.", min=1)],
) -> None:
    """Delete rows older than --days, and files that no table log or batch names."""
    from tandemmq.spark.lake.upkeep import expire_lake

    count = _refuse_wrong(lambda: expire_lake(directory, days))
    typer.echo(f"{directory}: deleted {count} files")


@lake_app.command()
def check(directory: Directory) -> None:
    """Compare all files with the committed batches; exit code 1 if something is missing."""
    from tandemmq.spark.lake.upkeep import check_lake

    state = _refuse_wrong(lambda: check_lake(directory))
    typer.echo(f"lake        {directory}")
    typer.echo(f"format      {state.kind.value}")
    typer.echo(f"written by  {state.owner or '-'}")
    typer.echo(f"rows        {state.rows:,}")
    typer.echo(
        f"files       {state.files:,}, {state.small_files:,} of them small; {state.size_bytes:,} bytes"
    )
    typer.echo(f"orphans     {state.orphans:,}")
    for fault in state.faults:
        typer.echo(f"fault: {fault}", err=True)
    raise typer.Exit(1 if state.faults else 0)


def _refuse_wrong(work: Callable[[], _T]) -> _T:
    """Returns the result of `work`; exits with code 2 if the lake or an option is wrong."""
    try:
        return work()
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error


def rollup(
    namesrv: NameServers,
    out: Annotated[Path, typer.Option(help="Directory for the table; created if missing.")],
    topic: Annotated[str, typer.Option(help="Topics, separated by commas.")] = "",
    topic_pattern: Annotated[str, typer.Option(help="All topics whose whole name matches.")] = "",
    once: Annotated[
        bool,
        typer.Option("--once/--continuous", help="Stop at the current end of the topics, or keep running."),
    ] = False,
    read_from: Replica = ReadPreference.SUGGESTED,
    batch_rows: BatchRows = 1_000_000,
    trigger_seconds: TriggerSeconds = 10.0,
    option: SourceOptions = None,
    master: Master = "local[*]",
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Count messages, bytes and latencies per topic, tag and minute, each message exactly once.

    On SIGTERM or Ctrl-C it stops after the current batch. The next start resumes there.
    """
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are imported only when a pipeline runs.
        from tandemmq.spark.pipelines.rollup import RollupOptions, run_rollup

        options = RollupOptions(
            name_servers=namesrv,
            topic=topic,
            pattern=topic_pattern,
            out=out,
            master=master,
            is_continuous=not once,
            trigger_s=trigger_seconds,
            batch_records_max=batch_rows,
            source=(
                ("readFrom", read_from.value),
                *split_pairs(option, "--option"),
            ),
        )
        return run_rollup(options, reporter)

    run_pipeline("rollup", topic or topic_pattern, watch, work)


def history(
    lake: Annotated[Path, typer.Option(help="The lake that a landing wrote, or writes.")],
    namesrv: NameServers,
    out: Annotated[Path, typer.Option(help="Directory of the Parquet files; must not exist.")],
    topic: Annotated[str, typer.Option(help="Topics of the lake, separated by commas; all by default.")] = "",
    where: Annotated[str, typer.Option(help="A condition in SQL over the columns.")] = "",
    columns: Annotated[str, typer.Option(help="Columns to write, separated by commas.")] = "",
    checkpoint: Annotated[
        Path | None, typer.Option(help="The landing's checkpoint; default LAKE/_checkpoint.")
    ] = None,
    option: SourceOptions = None,
    master: Master = "local[*]",
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Write a lake, and the messages its topic received since, to Parquet files, each message once."""
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are imported only when a pipeline runs.
        from tandemmq.spark.pipelines.history import HistoryOptions, run_history

        options = HistoryOptions(
            lake=lake,
            name_servers=namesrv,
            out=out,
            topic=topic,
            where=where,
            columns=split_list(columns),
            checkpoint=checkpoint,
            master=master,
            source=split_pairs(option, "--option"),
        )
        return run_history(options, reporter)

    run_pipeline("history", str(lake), watch, work)


def audit(
    topic: Annotated[str, typer.Option(help="The topic to audit; separate several by commas.")],
    namesrv: Annotated[
        str, typer.Option(help="Name servers: host:port[;host:port]; compares all replicas.")
    ] = "",
    lake: Annotated[list[Path] | None, typer.Option(help="A lake that a landing wrote; repeatable.")] = None,
    store: Annotated[
        list[str] | None, typer.Option(help="The files of a store, as BROKER=DIRECTORY; repeatable.")
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous/--once", help="Audit repeatedly, or once.")
    ] = False,
    every_seconds: EverySeconds = 60.0,
    option: SourceOptions = None,
    master: Master = "local[*]",
    piece_size: Annotated[int, typer.Option(help="Number of queue offsets per digest.", min=1)] = 100_000,
    settle_seconds: Annotated[
        float, typer.Option(help="Seconds that slaves may take to reach the master's current end.", min=0.0)
    ] = 10.0,
    repeated_keys: Annotated[
        bool, typer.Option(help="Count messages that producers sent more than once.")
    ] = True,
    spark_log: Annotated[
        Path | None, typer.Option(help="Write Spark's own log to this file; none by default.")
    ] = None,
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Prove that master, slaves, lakes and stores hold the same messages, each exactly once.

    Reports the first differences, and the loss in messages and seconds. Exit codes: 0 all equal, 1 not equal,
    2 refused, 3 stopped by a signal.
    """
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are imported only when a pipeline runs.
        from tandemmq.spark.pipelines.audit import AuditOptions, run_audit

        stores = split_pairs(store, "--store")
        options = AuditOptions(
            topic=topic,
            name_servers=namesrv,
            lakes=tuple(lake or ()),
            stores=tuple((broker, Path(path)) for broker, path in stores),
            master=master,
            piece_size=piece_size,
            settle_s=settle_seconds,
            count_repeated_keys=repeated_keys,
            every_s=every_seconds if continuous else None,
            source=split_pairs(option, "--option"),
            spark_log=spark_log,
        )
        return run_audit(options, reporter)

    run_pipeline("audit", topic, watch, work)


# Registered here so that `--help` lists these after `landing` and `prepare`, in this order.

app.command()(audit)
app.command()(replay)
app.command()(rollup)
app.command()(history)
app.command()(deadletters)
app.add_typer(lake_app, name="lake")
