"""The common part of the simulation commands: run many seeds in two processes, or one with its trace."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PROCESSES = 2


class Report(Protocol):
    """The combined results of seeds."""

    @property
    def is_ok(self) -> bool:
        """True if nothing was found."""

    def lines(self) -> Iterable[str]:
        """Returns the lines of the report; the verdict is last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRun:
    """The trace of one seed, event by event, its findings, and its report."""

    trace: Sequence[str]
    findings: Sequence[str]
    report: Report


def run_command(
    arguments: list[str] | None,
    *,
    module: str,
    description: str | None,
    seed_count: int,
    run_many: Callable[[range, Console], Report],
    run_one: Callable[[int], SeedRun],
) -> int:
    """Runs `python -m MODULE` and returns its exit code; `seed_count` is the default number of seeds."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--seeds", type=int, default=seed_count, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--trace", action="store_true", help="tell what the seed does, with --seed")
    options = parser.parse_args(arguments)
    console = Console()
    if options.seed is None:
        report = run_many(range(options.first_seed, options.first_seed + options.seeds), console)
    else:
        run = run_one(options.seed)
        print_text(console, *(run.trace if options.trace else ()), *run.findings)
        report = run.report
    print_text(console, *report.lines())
    return 0 if report.is_ok else 1


def print_text(console: Console, *lines: str) -> None:
    """Prints the lines unchanged."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def progress_on(console: Console) -> Progress:
    """Returns progress bars that disappear at the end; they are disabled if the output is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def new_processes() -> Executor:
    """Returns an executor with spawned processes, not forks, because this process may have threads."""
    return ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"))


@contextmanager
def without_logging() -> Iterator[None]:
    """Disables logging in runs in which failures are expected."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
