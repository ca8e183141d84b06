"""The commands that send to topics again, or look at a broker's files: `tandemmq pipeline replay`,
`deadletters`, `rebuild`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandemmq.spark.command_watch import (
    EverySeconds,
    Master,
    MetricsPort,
    NameServers,
    Progress,
    ProgressKind,
    ReportFile,
    SinkOptions,
    Watch,
    parse_time,
    run_pipeline,
    split_pairs,
)
from tandemmq.spark.pipelines.events import Reporter


def replay(
    lake: Annotated[Path, typer.Option(help="The lake that a landing wrote.")],
    namesrv: NameServers,
    to: Annotated[str, typer.Option(help="The topic that gets the messages.")],
    from_time: Annotated[
        str, typer.Option(help="Store time of the first message: milliseconds, or 2025-01-31T12:00:00 (UTC).")
    ] = "",
    until_time: Annotated[str, typer.Option(help="Store time of the end, exclusive; as above.")] = "",
    where: Annotated[str, typer.Option(help="A condition in SQL over the lake's columns.")] = "",
    rate: Annotated[
        int | None, typer.Option(help="At most about so many messages per second.", min=1)
    ] = None,
    keep_keys: Annotated[
        bool, typer.Option("--keep-keys", help="Keep the unique keys instead of making new ones.")
    ] = False,
    keep_queues: Annotated[
        bool, typer.Option("--keep-queues", help="Send each message to the queue number that it had.")
    ] = False,
    state: Annotated[
        Path | None, typer.Option(help="What was done; default LAKE/_tandemmq/replay-TOPIC.json.")
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous/--once", help="Go on with what is landed meanwhile, or end.")
    ] = False,
    every_seconds: EverySeconds = 5.0,
    master: Master = "local[*]",
    option: SinkOptions = None,
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Send messages of a lake to a topic again, by time and filter, at a bounded rate.

    Started again after a signal, an error or a kill, it goes on with the lake's batch at which it was.
    """
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are only imported when a pipeline really runs.
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
    group: Annotated[str, typer.Option(help="The consumer group whose dead letters are meant.")],
    from_time: Annotated[
        str, typer.Option(help="They died at or after: milliseconds, or 2025-01-31T12:00:00 (UTC).")
    ] = "",
    until_time: Annotated[str, typer.Option(help="They died before; as above.")] = "",
    id: Annotated[
        list[str] | None, typer.Option("--id", help="Of the dead letter or its message; repeatable.")
    ] = None,
    key: Annotated[list[str] | None, typer.Option(help="One of its keys; repeatable.")] = None,
    where: Annotated[
        str, typer.Option(help="A condition in SQL; error, age, origin and originId are columns too.")
    ] = "",
    error_property: Annotated[
        str, typer.Option(help="The property in which consumers say why they gave up.")
    ] = "error",
    show: Annotated[int, typer.Option(help="Show so many of the oldest.", min=0)] = 20,
    resend: Annotated[
        bool, typer.Option("--resend", help="Send the chosen ones to their topics again, each once.")
    ] = False,
    to: Annotated[str, typer.Option(help="Send them to this topic instead of their own.")] = "",
    state: Annotated[
        Path | None, typer.Option(help="File that says what was sent again; needed with --resend.")
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous/--once", help="Again and again, or once.")
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
    """Show the dead letters of a group by error and age, and send chosen ones to their topics again."""
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and pyarrow are only imported when a pipeline really runs.
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


def rebuild(
    store: Annotated[Path, typer.Option(help="The directory of a stopped broker's store.")],
    out: Annotated[Path, typer.Option(help="Where consumequeue and index are built; not in the store.")],
    commit_log: Annotated[
        Path | None, typer.Option("--commitlog", help="The CommitLog, if it lies elsewhere.")
    ] = None,
    index: Annotated[
        bool | None, typer.Option("--index/--no-index", help="Build a key index. [default: if there is one]")
    ] = None,
    queue_file_bytes: Annotated[
        int | None, typer.Option(help="Length of a ConsumeQueue file. [default: as now]", min=20)
    ] = None,
    index_slots: Annotated[
        int | None, typer.Option(help="maxHashSlotNum of the broker. [default: as now]", min=1)
    ] = None,
    index_entries: Annotated[
        int | None, typer.Option(help="maxIndexNum of the broker. [default: as now]", min=2)
    ] = None,
    master: Master = "local[*]",
    progress: Progress = ProgressKind.TEXT,
    report: ReportFile = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Build ConsumeQueues and key index from CommitLog segments in parallel, byte-equal to a broker's.

    The store is not touched. Started again after a signal or a kill, it goes on with the parts that are
    missing.
    """
    watch = Watch(progress=progress, report=report, metrics_port=metrics_port)

    def work(reporter: Reporter) -> int:
        # Spark and numpy are only imported when a pipeline really runs.
        from tandemmq.spark.pipelines.rebuild import RebuildOptions, run_rebuild
        from tandemmq.store.inspect import IndexLayout

        has_layout = index_slots is not None and index_entries is not None
        if not has_layout and (index_slots or index_entries):
            raise typer.BadParameter("give --index-slots and --index-entries together")
        options = RebuildOptions(
            store=store,
            out=out,
            log_dir=commit_log,
            has_index=index,
            queue_file_bytes=queue_file_bytes,
            index_layout=IndexLayout(index_slots or 0, index_entries or 0) if has_layout else None,
            master=master,
        )
        return run_rebuild(options, reporter)

    run_pipeline("rebuild", str(store), watch, work)
