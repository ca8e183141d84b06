"""`tandemmq demo`: the main use case, with its files kept or deleted."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tandemmq.admin.options import option
from tandemmq.demo.publish import ROW_COUNT
from tandemmq.demo.run import DemoOptions, run_demo
from tandemmq.errors import TandemError
from tandemmq.spark.java import find_java


def demo(
    rows: Annotated[int, option("--rows", "Flight records to publish.", min=1, max=ROW_COUNT)] = ROW_COUNT,
    directory: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="The directory for --keep; it must be new or empty.",
            show_default="a new one for temporary files",
        ),
    ] = None,
    keep: Annotated[
        bool, option("--keep", "Keep logs, configurations and tables, and leave the cluster running.")
    ] = False,
    chaos: Annotated[
        bool, option("--chaos", "Kill the master twice and the Spark pipeline once while the data flows.")
    ] = False,
) -> None:
    """Run the whole system once: start a replicated cluster, publish flight records, archive them with Spark,
    and count the result. Fails if any record is missing or duplicated. Needs Java 17 or newer.
    """
    console = Console()
    if directory is not None and not keep:
        console.print(f"tandemmq: {directory}: a directory is only useful with --keep", soft_wrap=True)
        raise typer.Exit(2)
    if directory is not None and directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        text = f"tandemmq: --keep {directory}: must be a directory that is new or empty"
        console.print(text, soft_wrap=True)
        raise typer.Exit(2)
    try:
        find_java()
        if keep:
            kept = directory or Path(tempfile.mkdtemp(prefix="tandemmq-demo-"))
            kept.mkdir(parents=True, exist_ok=True)
            is_ok = _run(rows, kept.resolve(), console, is_kept=True, is_chaotic=chaos)
        else:
            with tempfile.TemporaryDirectory(prefix="tandemmq-demo-") as name:
                is_ok = _run(rows, Path(name), console, is_kept=False, is_chaotic=chaos)
    except (TandemError, OSError) as error:
        console.print(f"DEMO FAILED {error}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(1) from error
    if not is_ok:
        raise typer.Exit(1)


def _run(rows: int, directory: Path, console: Console, *, is_kept: bool, is_chaotic: bool) -> bool:
    options = DemoOptions(row_count=rows, directory=directory, is_kept=is_kept, is_chaotic=is_chaotic)
    return run_demo(options, console)
