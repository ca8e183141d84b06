"""`python -m tandemmq.sim.crash`: many random lives of a store, and what of them was lost.

The last line is `CRASH OK seeds=N acknowledged=N lost=0 phantom=0 divergent=0`, or `CRASH FAILED ...`; then
the lines before it have the commands that replay the failed seeds, and the exit code is 1. With --seed K
--trace one life is told operation by operation.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tandemmq.sim.bit_flips import FlipResult, run_flips
from tandemmq.sim.checks import Faults
from tandemmq.sim.run import SeedResult, run_seed

PROCESSES = 2
SEEDS_PER_FLIP_SEED = 10
FAILED_SEEDS_SHOWN = 10
FAULTS_SHOWN = 3


@dataclass(slots=True)
class Summary:
    """What all seeds did together."""

    seed_count: int = 0
    acknowledged_count: int = 0
    start_count: int = 0
    crash_count: int = 0
    lost_count: int = 0
    phantom_count: int = 0
    divergent_count: int = 0
    broken_count: int = 0
    failed: dict[int, Faults] = field(default_factory=dict)
    flips: list[FlipResult] = field(default_factory=list)

    def add(self, result: SeedResult) -> None:
        self.seed_count += 1
        self.acknowledged_count += result.acknowledged_count
        self.start_count += result.start_count
        self.crash_count += result.crash_count
        self.lost_count += len(result.faults.lost)
        self.phantom_count += len(result.faults.phantom)
        self.divergent_count += len(result.faults.divergent)
        self.broken_count += len(result.faults.broken)
        if result.faults:
            self.failed[result.seed] = result.faults

    @property
    def returned(self) -> list[str]:
        """Damaged records that were given out as intact."""
        return [text for result in self.flips for text in result.returned]

    @property
    def is_ok(self) -> bool:
        return not self.failed and not self.returned

    def lines(self) -> Iterator[str]:
        """The report; the verdict last."""
        flipped = sum(result.flipped_count for result in self.flips)
        cut = sum(result.cut_count for result in self.flips)
        refused = sum(result.refused_count for result in self.flips)
        yield f"starts={self.start_count} crashes={self.crash_count}"
        yield (
            f"bit flips: seeds={len(self.flips)} flipped={flipped} cut_by_recovery={cut} "
            f"refused_by_checksum={refused} returned={len(self.returned)}"
        )
        yield from self.returned[:FAULTS_SHOWN]
        for seed, faults in list(self.failed.items())[:FAILED_SEEDS_SHOWN]:
            for text in faults.lines()[:FAULTS_SHOWN]:
                yield f"seed {seed}: {text}"
            yield f"  replay: python -m tandemmq.sim.crash --seed {seed} --trace"
        counts = (
            f"seeds={self.seed_count} acknowledged={self.acknowledged_count} lost={self.lost_count} "
            f"phantom={self.phantom_count} divergent={self.divergent_count}"
        )
        if self.is_ok:
            yield f"CRASH OK {counts}"
        else:
            seeds = ",".join(map(str, sorted(self.failed)))
            yield f"CRASH FAILED {counts} broken={self.broken_count} seeds: {seeds}"


def _run_quietly(seed: int) -> SeedResult:
    logging.disable(logging.CRITICAL)  # failing is what these stores do
    result = run_seed(seed)
    result.trace.clear()
    return result


def _flip_quietly(seed: int) -> FlipResult:
    logging.disable(logging.CRITICAL)
    return run_flips(seed)


def run_many(first_seed: int, seed_count: int, console: Console) -> Summary:
    """All seeds, on PROCESSES processors."""
    summary = Summary()
    seeds = range(first_seed, first_seed + seed_count)
    flip_seeds = seeds[::SEEDS_PER_FLIP_SEED]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
        ProcessPoolExecutor(PROCESSES) as pool,
    ):
        bar = progress.add_task("crashing stores", total=len(seeds) + len(flip_seeds))
        for result in pool.map(_run_quietly, seeds, chunksize=4):
            summary.add(result)
            failed = f", failed: {len(summary.failed)}" if summary.failed else ""
            progress.update(bar, advance=1, description=f"crashing stores{failed}")
        for flips in pool.map(_flip_quietly, flip_seeds, chunksize=4):
            summary.flips.append(flips)
            progress.update(bar, advance=1, description="flipping bits")
    return summary


def run_one(seed: int, *, has_trace: bool, console: Console) -> bool:
    """One seed, with its trace if wanted; True when it found nothing."""
    logging.disable(logging.CRITICAL)
    result = run_seed(seed)
    for line in result.trace if has_trace else ():
        _say(console, line)
    for line in result.faults.lines():
        _say(console, line)
    summary = Summary()
    summary.add(result)
    for line in summary.lines():
        _say(console, line)
    return summary.is_ok


def _say(console: Console, line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tandemmq.sim.crash", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--trace", action="store_true", help="tell what the seed does, with --seed")
    options = parser.parse_args(arguments)
    console = Console()
    if options.seed is not None:
        return 0 if run_one(options.seed, has_trace=options.trace, console=console) else 1
    summary = run_many(options.first_seed, options.seeds, console)
    for line in summary.lines():
        _say(console, line)
    return 0 if summary.is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
