"""`python -m sim.raft.run`: runs many random histories of a Raft group, and reports violated rules.

The last line is `RAFT OK seeds=N confirmed=N leaders=N`, or `RAFT FAILED ...`. After a failure the lines
before it contain the commands that replay the failed seeds, and the exit code is 1. With --seed K --trace one
run is printed event by event.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console

from sim.raft.simulation import SeedResult, run_seed
from sim.seeds import SeedRun, new_processes, progress_on, run_command, without_logging

FAILED_SEEDS_SHOWN = 10


@dataclass(slots=True)
class Summary:
    """The combined results of all seeds."""

    seed_count: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[int, list[str]] = field(default_factory=dict)

    def add(self, result: SeedResult) -> None:
        self.seed_count += 1
        self.counts.update(result.counts)
        if result.findings:
            self.failed[result.seed] = result.findings

    @property
    def is_ok(self) -> bool:
        return not self.failed

    def lines(self) -> Iterator[str]:
        """Yields the lines of the report; the verdict is last."""
        yield ", ".join(f"{name}: {count}" for name, count in sorted(self.counts.items()))
        for seed, findings in list(self.failed.items())[:FAILED_SEEDS_SHOWN]:
            for text in findings:
                yield f"seed {seed}: {text}"
            yield f"  replay: python -m sim.raft.run --seed {seed} --trace"
        verdict = (
            f"seeds={self.seed_count} confirmed={self.counts['confirmed entries']} "
            f"leaders={self.counts['leaders']}"
        )
        if self.is_ok:
            yield f"RAFT OK {verdict}"
        else:
            yield f"RAFT FAILED {verdict} seeds: {','.join(map(str, sorted(self.failed)))}"


def _run_quietly(seed: int) -> SeedResult:
    with without_logging():
        result = run_seed(seed)
    result.trace.clear()
    return result


def run_many(seeds: range, console: Console) -> Summary:
    """Runs all seeds."""
    summary = Summary()
    with progress_on(console) as progress, new_processes() as processes:
        bar = progress.add_task("running groups", total=len(seeds))
        for result in processes.map(_run_quietly, seeds, chunksize=16):
            summary.add(result)
            failed = f", failed: {len(summary.failed)}" if summary.failed else ""
            progress.update(bar, advance=1, description=f"running groups{failed}")
    return summary


def run_one(seed: int) -> SeedRun:
    """Runs one seed."""
    with without_logging():
        result = run_seed(seed)
    summary = Summary()
    summary.add(result)
    return SeedRun(trace=result.trace, findings=result.findings, report=summary)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    return run_command(
        arguments,
        module="sim.raft.run",
        description=__doc__,
        seed_count=2000,
        run_many=run_many,
        run_one=run_one,
    )


if __name__ == "__main__":
    sys.exit(main())
