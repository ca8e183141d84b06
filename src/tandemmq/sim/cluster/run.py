"""`python -m tandemmq.sim.cluster.run`: many random lives of a cluster, and what of its promises was broken.

The last line is `SIM OK seeds=N acknowledged=N lost=0 order=0 skipped=0`, or `SIM FAILED ...`; then the lines
before it have the commands that replay the failed seeds, and the exit code is 1. With --seed K --trace one
life is told event by event.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tandemmq.sim.cluster.simulation import SeedResult, run_seed
from tandemmq.sim.cluster.world import Findings

PROCESSES = 2
FAILED_SEEDS_SHOWN = 10
FINDINGS_SHOWN = 3
TRACE_LINES_SHOWN = 30
LINE_EVERY = 50
"""Seeds, when the output is no terminal."""


@dataclass(slots=True)
class Summary:
    """What all seeds did together."""

    seed_count: int = 0
    acknowledged_count: int = 0
    virtual_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failed: dict[int, Findings] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    """The end of the trace of the first seed that failed."""

    def add(self, result: SeedResult) -> None:
        self.seed_count += 1
        self.acknowledged_count += result.acknowledged_count
        self.virtual_s += result.virtual_s
        self.counts.update(result.counts)
        findings = result.findings
        self.kinds.update(
            lost=len(findings.lost),
            order=len(findings.order),
            skipped=len(findings.skipped),
            broken=len(findings.broken),
        )
        if findings:
            self.story = self.story or result.trace[-TRACE_LINES_SHOWN:]
            self.failed[result.seed] = findings

    @property
    def is_ok(self) -> bool:
        return not self.failed

    def lines(self) -> Iterator[str]:
        """The report; the verdict last."""
        counts = ", ".join(f"{name}: {count}" for name, count in sorted(self.counts.items()))
        yield f"virtual time: {self.virtual_s / 3600:.1f} h; {counts}"
        if self.failed:
            yield f"the end of seed {next(iter(self.failed))}:"
            yield from self.story
        for seed, findings in list(self.failed.items())[:FAILED_SEEDS_SHOWN]:
            for text in findings.lines()[:FINDINGS_SHOWN]:
                yield f"seed {seed}: {text}"
            yield f"  replay: python -m tandemmq.sim.cluster.run --seed {seed} --trace"
        verdict = (
            f"seeds={self.seed_count} acknowledged={self.acknowledged_count} lost={self.kinds['lost']} "
            f"order={self.kinds['order']} skipped={self.kinds['skipped']}"
        )
        if self.is_ok:
            yield f"SIM OK {verdict}"
        else:
            seeds = ",".join(map(str, sorted(self.failed)))
            yield f"SIM FAILED {verdict} broken={self.kinds['broken']} seeds: {seeds}"


def _run_without_trace(seed: int) -> SeedResult:
    result = run_seed(seed)
    del result.trace[: -TRACE_LINES_SHOWN if result.findings else None]
    return result


def run_many(first_seed: int, seed_count: int, console: Console) -> Summary:
    """All seeds, on PROCESSES processors."""
    summary = Summary()
    seeds = range(first_seed, first_seed + seed_count)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
        ProcessPoolExecutor(PROCESSES) as pool,
    ):
        bar = progress.add_task("running clusters", total=len(seeds))
        for result in pool.map(_run_without_trace, seeds):
            summary.add(result)
            progress.update(bar, advance=1, description=_describe(summary))
            if not console.is_terminal and summary.seed_count % LINE_EVERY == 0:
                _say(console, f"{summary.seed_count} of {seed_count} seeds: {_describe(summary)}")
    return summary


def _describe(summary: Summary) -> str:
    counts = summary.counts
    losses = sum(count for name, count in counts.items() if "of the master" in name or "losses" in name)
    failed = f", {len(summary.failed)} failed" if summary.failed else ""
    return f"{summary.acknowledged_count:,} sends acknowledged, {losses} brokers lost{failed}"


def run_one(seed: int, *, has_trace: bool, console: Console) -> bool:
    """One seed, with its trace if wanted; True when it found nothing."""
    result = run_seed(seed)
    for line in result.trace if has_trace else ():
        _say(console, line)
    for line in result.findings.lines():
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
    parser = argparse.ArgumentParser(prog="python -m tandemmq.sim.cluster.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many seeds")
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
