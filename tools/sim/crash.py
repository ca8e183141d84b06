"""`python -m sim.crash`: runs many random histories of a store, and reports what was lost.

The last line is `CRASH OK seeds=N acknowledged=N lost=0 phantom=0 divergent=0`, or `CRASH FAILED ...`. After
a failure the lines before it contain the commands that replay the failed seeds, and the exit code is 1. With
--seed K --trace one run is printed operation by operation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console

from sim.bit_flips import FlipResult, run_flips
from sim.checks import Faults
from sim.run import SeedResult, run_seed
from sim.seeds import SeedRun, new_processes, progress_on, run_command, without_logging

SEEDS_PER_FLIP_SEED = 10
FAILED_SEEDS_SHOWN = 10
FAULTS_SHOWN = 3


@dataclass(slots=True)
class Summary:
    """The combined results of all seeds."""

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
        """The damaged records that were returned as intact."""
        return [text for result in self.flips for text in result.returned]

    @property
    def lost_by_damage(self) -> list[str]:
        """The intact records that were lost because another one was damaged."""
        return [text for result in self.flips for text in result.lost]

    @property
    def is_ok(self) -> bool:
        return not self.failed and not self.returned and not self.lost_by_damage

    def lines(self) -> Iterator[str]:
        """Yields the lines of the report; the verdict is last."""
        flipped = sum(result.flipped_count for result in self.flips)
        cut = sum(result.cut_count for result in self.flips)
        refused = sum(result.refused_count for result in self.flips)
        fenced = sum(result.fenced_count for result in self.flips)
        entries = sum(result.entry_count for result in self.flips)
        yield f"starts={self.start_count} crashes={self.crash_count}"
        yield (
            f"bit flips: seeds={len(self.flips)} flipped={flipped} of_entries={entries} "
            f"cut_by_recovery={cut} fenced={fenced} refused_by_checksum={refused} "
            f"returned={len(self.returned)} lost={len(self.lost_by_damage)}"
        )
        yield from self.returned[:FAULTS_SHOWN]
        yield from self.lost_by_damage[:FAULTS_SHOWN]
        for seed, faults in list(self.failed.items())[:FAILED_SEEDS_SHOWN]:
            for text in faults.lines()[:FAULTS_SHOWN]:
                yield f"seed {seed}: {text}"
            yield f"  replay: python -m sim.crash --seed {seed} --trace"
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
    with without_logging():
        result = run_seed(seed)
    result.trace.clear()
    return result


def _flip_quietly(seed: int) -> FlipResult:
    with without_logging():
        return run_flips(seed)


def run_many(seeds: range, console: Console) -> Summary:
    """Runs all seeds, and bit flips for some of them."""
    summary = Summary()
    flip_seeds = seeds[::SEEDS_PER_FLIP_SEED]
    with progress_on(console) as progress, new_processes() as processes:
        bar = progress.add_task("crashing stores", total=len(seeds) + len(flip_seeds))
        for result in processes.map(_run_quietly, seeds, chunksize=4):
            summary.add(result)
            failed = f", failed: {len(summary.failed)}" if summary.failed else ""
            progress.update(bar, advance=1, description=f"crashing stores{failed}")
        for flips in processes.map(_flip_quietly, flip_seeds, chunksize=4):
            summary.flips.append(flips)
            progress.update(bar, advance=1, description="flipping bits")
    return summary


def run_one(seed: int) -> SeedRun:
    """Runs one seed, without bit flips."""
    with without_logging():
        result = run_seed(seed)
    summary = Summary()
    summary.add(result)
    return SeedRun(trace=result.trace, findings=result.faults.lines(), report=summary)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    return run_command(
        arguments,
        module="sim.crash",
        description=__doc__,
        seed_count=1000,
        run_many=run_many,
        run_one=run_one,
    )


if __name__ == "__main__":
    sys.exit(main())
