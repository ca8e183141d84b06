"""`tandemmq pipeline lake ...`: upkeep of lakes, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from tandemmq.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Look after a lake: parquet, delta or iceberg.")

Directory = Annotated[Path, typer.Argument(help="Directory of the lake.")]
_T = TypeVar("_T")


@app.command()
def compact(
    directory: Directory,
    target_mib: Annotated[int, typer.Option(help="About so many MiB per file at most.", min=1)] = 256,
) -> None:
    """Make fewer and larger files; readers see every row once at any time.

    A landing must not run meanwhile, except into a Delta table.
    """
    from tandemmq.spark.lake.upkeep import compact_lake

    before, after = _run(lambda: compact_lake(directory, target_bytes=target_mib << 20))
    typer.echo(f"{directory}: {before} files before, {after} now")


@app.command()
def expire(
    directory: Directory,
    days: Annotated[int, typer.Option(help="Keep the last so many days (UTC), and today.", min=1)],
) -> None:
    """Let rows go that were stored before the last days, and files that no log names."""
    from tandemmq.spark.lake.upkeep import expire_lake

    count = _run(lambda: expire_lake(directory, days))
    typer.echo(f"{directory}: {count} files are gone")


@app.command()
def check(directory: Directory) -> None:
    """Compare all files with what was committed; exit code 1 when something is missing."""
    from tandemmq.spark.lake.upkeep import check_lake

    state = _run(lambda: check_lake(directory))
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


def _run(work: Callable[[], _T]) -> _T:
    try:
        return work()
    except ConfigError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
