"""`tandemmq pipeline audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandemmq.errors import TandemError
from tandemmq.spark.command_progress import ProgressKind, make_reporter, split_pair


def audit(
    topic: Annotated[str, typer.Option(help="The topic to audit; several with commas.")],
    namesrv: Annotated[
        str, typer.Option(help="Name servers: host:port[;host:port]; compares all replicas.")
    ] = "",
    lake: Annotated[list[Path] | None, typer.Option(help="A lake that a landing wrote; repeatable.")] = None,
    store: Annotated[
        list[str] | None, typer.Option(help="The files of a store, as BROKER=DIRECTORY; repeatable.")
    ] = None,
    master: Annotated[str, typer.Option(help="Spark master: local[*] or spark://host:port.")] = "local[*]",
    piece_size: Annotated[
        int, typer.Option(help="Offsets of a queue that are folded into one digest.", min=1)
    ] = 100_000,
    settle_seconds: Annotated[
        float, typer.Option(help="How long slaves may take to reach the master's present end.", min=0.0)
    ] = 10.0,
    repeated_keys: Annotated[
        bool, typer.Option(help="Count messages that producers sent more than once.")
    ] = True,
    spark_log: Annotated[Path | None, typer.Option(help="Spark's own log; none by default.")] = None,
    progress: Annotated[ProgressKind, typer.Option(help="How progress is told.")] = ProgressKind.TEXT,
) -> None:
    """Prove that master, slaves, lakes and stores hold the same messages, each exactly once.

    Names the first differences and the loss in messages and seconds. Exit codes: 0 all equal, 1 not,
    2 refused, 3 stopped by a signal.
    """
    # Spark and pyarrow are only imported when a pipeline really runs.
    from tandemmq.spark.pipelines.audit import AuditOptions, run_audit

    reporter = make_reporter(progress)
    try:
        stores = [split_pair(text, "--store") for text in store or []]
        options = AuditOptions(
            topic=topic,
            name_servers=namesrv,
            lakes=tuple(lake or ()),
            stores=tuple((broker, Path(path)) for broker, path in stores),
            master=master,
            piece_size=piece_size,
            settle_s=settle_seconds,
            count_repeated_keys=repeated_keys,
            spark_log=spark_log or Path("/dev/null"),
        )
        code = run_audit(options, reporter)
    except TandemError as error:
        typer.echo(f"error: {error}", err=True)
        code = 2
    finally:
        reporter.close()
    raise typer.Exit(code)
