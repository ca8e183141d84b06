"""The options that pipeline commands share: each means the same wherever it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tandemmq.spark.command_progress import ProgressKind
from tandemmq.spark.options import ReadFrom

NameServers = Annotated[str, typer.Option("--namesrv", help="Name servers: host:port[;host:port].")]
Master = Annotated[str, typer.Option("--master", help="Spark master: local[*] or spark://host:port.")]
Progress = Annotated[ProgressKind, typer.Option("--progress", help="How progress is told.")]
ReportFile = Annotated[
    Path | None, typer.Option("--report", help="HTML report with plots, written at the end.", metavar="FILE")
]
MetricsPort = Annotated[
    int | None,
    typer.Option("--metrics-port", help="Serve Prometheus metrics there; 0: a free port.", min=0, max=65_535),
]
EverySeconds = Annotated[
    float, typer.Option("--every-seconds", help="With --continuous: pause between rounds.", min=0.1)
]
Replica = Annotated[ReadFrom, typer.Option("--read-from", help="Which replica is read.")]
BatchRows = Annotated[int, typer.Option("--batch-rows", help="At most so many messages per batch.", min=1)]
TriggerSeconds = Annotated[float, typer.Option("--trigger-seconds", help="Pause between batches.", min=0.0)]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option("--option", help="Any other option of the source, as name=value; repeatable."),
]
SinkOptions = Annotated[
    list[str] | None,
    typer.Option("--option", help="Any other option of the sink, as name=value; repeatable."),
]
