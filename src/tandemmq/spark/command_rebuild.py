"""`tandemmq pipeline rebuild`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandemmq.spark.command_options import Master, MetricsPort, Progress, ReportFile
from tandemmq.spark.command_progress import ProgressKind
from tandemmq.spark.command_watch import Watch, run_pipeline
from tandemmq.spark.pipelines.events import Reporter


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
