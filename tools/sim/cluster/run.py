"""`python -m sim.cluster.run`: runs many random histories of a cluster, and reports broken promises.

The last line is `SIM OK seeds=N acknowledged=N lost=0 order=0 skipped=0`, or `SIM FAILED ...`. After a
failure the lines before it contain the commands that replay the failed seeds, and the exit code is 1. With
--seed K --trace one run is printed event by event.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console

from sim.cluster.cluster import SETTLE_TIMEOUT_S
from sim.cluster.simulation import CLASSIC, Kind, SeedResult, run_seed
from sim.cluster.world import Findings
from sim.seeds import SeedRun, new_processes, print_text, progress_on, run_command

FAILED_SEEDS_SHOWN = 10
FINDINGS_SHOWN = 3
TRACE_LINES_SHOWN = 30
MODULE = "sim.cluster.run"
EXTREMES_SHOWN = 3
LINE_EVERY = 50
"""The number of seeds between two progress lines, if the output is not a terminal."""


@dataclass(slots=True)
class Summary:
    """The combined results of all seeds. `module`: the module that replays one."""

    module: str = MODULE
    seed_count: int = 0
    acknowledged_count: int = 0
    virtual_s: float = 0.0
    run_s: dict[int, float] = field(default_factory=dict)
    settle_s: dict[int, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failed: dict[int, Findings] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    """The end of the trace of the first seed that failed."""

    def add(self, result: SeedResult) -> None:
        self.seed_count += 1
        self.run_s[result.seed] = result.virtual_s
        self.settle_s[result.seed] = result.settle_s
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
        """Yields the lines of the report; the verdict is last."""
        counts = ", ".join(f"{name}: {count}" for name, count in sorted(self.counts.items()))
        yield f"virtual time: {self.virtual_s / 3600:.1f} h; {counts}"
        yield f"longest runs: {_longest(self.run_s)}"
        bound = f"longest to settle, of {SETTLE_TIMEOUT_S:.0f} s at most"
        yield f"nearest to failing ({bound}): {_longest(self.settle_s)}"
        if self.failed:
            yield f"the end of seed {next(iter(self.failed))}:"
            yield from self.story
        for seed, findings in list(self.failed.items())[:FAILED_SEEDS_SHOWN]:
            for text in findings.lines()[:FINDINGS_SHOWN]:
                yield f"seed {seed}: {text}"
            yield f"  replay: python -m {self.module} --seed {seed} --trace"
        verdict = (
            f"seeds={self.seed_count} acknowledged={self.acknowledged_count} lost={self.kinds['lost']} "
            f"order={self.kinds['order']} skipped={self.kinds['skipped']}"
        )
        if self.is_ok:
            yield f"SIM OK {verdict}"
        else:
            seeds = ",".join(map(str, sorted(self.failed)))
            yield f"SIM FAILED {verdict} broken={self.kinds['broken']} seeds: {seeds}"


def _longest(seconds: dict[int, float]) -> str:
    longest = heapq.nlargest(EXTREMES_SHOWN, seconds.items(), key=lambda pair: pair[1])
    return ", ".join(f"seed {seed} {length:.1f} s" for seed, length in longest)


def _run_without_trace(seed: int, kind: Kind) -> SeedResult:
    result = run_seed(seed, kind=kind)
    del result.trace[: -TRACE_LINES_SHOWN if result.findings else None]
    return result


def run_many(seeds: range, console: Console, *, kind: Kind = CLASSIC, module: str = MODULE) -> Summary:
    """Runs all seeds."""
    summary = Summary(module)
    with progress_on(console) as progress, new_processes() as processes:
        bar = progress.add_task("running clusters", total=len(seeds))
        for result in processes.map(partial(_run_without_trace, kind=kind), seeds):
            summary.add(result)
            progress.update(bar, advance=1, description=_describe(summary))
            if not console.is_terminal and summary.seed_count % LINE_EVERY == 0:
                print_text(console, f"{summary.seed_count} of {len(seeds)} seeds: {_describe(summary)}")
    return summary


def _describe(summary: Summary) -> str:
    counts = summary.counts
    losses = sum(count for name, count in counts.items() if "of the master" in name or "losses" in name)
    failed = f", failed: {_some(summary.failed)}" if summary.failed else ""
    return f"{summary.acknowledged_count:,} sends acknowledged, {losses} brokers lost{failed}"


def _some(seeds: Iterable[int]) -> str:
    """Returns the first seeds, so that a long run can be investigated before it ends."""
    first = list(itertools.islice(seeds, FAILED_SEEDS_SHOWN + 1))
    rest = " ..." if len(first) > FAILED_SEEDS_SHOWN else ""
    return ",".join(map(str, first[:FAILED_SEEDS_SHOWN])) + rest


def run_one(seed: int, *, kind: Kind = CLASSIC, module: str = MODULE) -> SeedRun:
    """Runs one seed."""
    result = run_seed(seed, kind=kind)
    summary = Summary(module)
    summary.add(result)
    return SeedRun(trace=result.trace, findings=result.findings.lines(), report=summary)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    return run_command(
        arguments,
        module=MODULE,
        description=__doc__,
        seed_count=1000,
        run_many=run_many,
        run_one=run_one,
    )


if __name__ == "__main__":
    sys.exit(main())
