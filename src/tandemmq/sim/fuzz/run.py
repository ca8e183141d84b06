"""`python -m tandemmq.sim.fuzz.run`: mutated real frames against a name server, a broker and its HA port.

The last line is `FUZZ OK frames=N crashes=0`, or `FUZZ FAILED ...` with exit code 1; then the lines before it
show what was logged and the commands that send the same bytes again. A crash is a process that ends, logs an
error, or leaves a request without an answer. Memory that keeps growing counts as one, too.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from rich.console import Console
from rich.progress import Progress, TaskID

from tandemmq.protocol.catalogue import Role
from tandemmq.sim.dice import Dice
from tandemmq.sim.fuzz.sessions import Ended, run_ha_batch, run_remoting_batch
from tandemmq.sim.fuzz.victims import Victim, Victims, victims
from tandemmq.sim.seeds import progress_on, say

CRASHES_SHOWN = 10
GROWTH_MIB_MAX = 64
"""How much a process may grow from a quarter of the way on; names that were made up are kept, so a little."""

RunBatch = Callable[[Dice], Coroutine[Any, Any, Ended]]
Advance = Callable[[int], None]


@dataclass(slots=True)
class Target:
    """One port, its share of the frames in percent, and what came of them."""

    name: str
    victim: Victim
    run_batch: RunBatch
    percent: int
    frame_count: int = 0
    batch_count: int = 0
    hang_up_count: int = 0
    early_mib: int = 0
    crashes: list[str] = field(default_factory=list)

    async def run(self, seed: int, frame_count: int, advance: Advance) -> None:
        """Sends so many frames, batch by batch; stops when the process is gone."""
        while self.frame_count < frame_count:
            await self.run_one(seed, self.batch_count)
            advance(self.frame_count)
            if not self.early_mib and self.frame_count * 4 >= frame_count:
                self.early_mib = self.victim.resident_mib()
            if self.crashes and not self.victim.server.is_alive:
                return

    async def run_one(self, seed: int, batch: int) -> None:
        """One batch; the same seed and number give the same bytes."""
        self.batch_count += 1
        try:
            ended = await self.run_batch(Dice(crc32(f"{seed}/{self.name}/{batch}".encode())))
        except OSError as error:
            self._note(batch, f"no connection: {error}")
            return
        self.frame_count += ended.frame_count
        self.hang_up_count += ended.is_closed_by_server
        if ended.is_silent:
            self._note(batch, "no answer to a request behind the batch")
        fault = self.victim.fault()
        if fault is not None:
            self._note(batch, fault)

    def check_memory(self) -> str:
        """How much it grew; too much is a crash."""
        if not self.victim.server.is_alive:
            return f"{self.name}: gone"
        now_mib = self.victim.resident_mib()
        if now_mib - self.early_mib > GROWTH_MIB_MAX:
            self.crashes.append(f"{self.name}: memory grew from {self.early_mib} to {now_mib} MiB")
        return (
            f"{self.name}: frames={self.frame_count} batches={self.batch_count} "
            f"hung_up={self.hang_up_count} resident={self.early_mib}..{now_mib} MiB"
        )

    def _note(self, batch: int, text: str) -> None:
        replay = f"--target {self.name} --batch {batch}"
        self.crashes.append(f"{self.name} batch {batch}: {text}\n  replay with: {replay}")


def make_targets(three: Victims) -> list[Target]:
    return [
        Target("broker", three.broker, partial(run_remoting_batch, three.broker, Role.BROKER), 70),
        Target(
            "namesrv", three.name_server, partial(run_remoting_batch, three.name_server, Role.NAME_SERVER), 20
        ),
        Target("ha", three.ha, partial(run_ha_batch, three.ha), 10),
    ]


async def fuzz(seed: int, frame_count: int, directory: Path, console: Console) -> list[Target]:
    """The targets, after all their frames."""
    with victims(directory) as three, progress_on(console) as progress:
        targets = make_targets(three)
        async with asyncio.TaskGroup() as group:
            for target in targets:
                share = frame_count * target.percent // 100
                bar = progress.add_task(target.name, total=share)
                group.create_task(target.run(seed, share, partial(_show, progress, bar)))
        for target in targets:
            say(console, target.check_memory())
        return targets


def _show(progress: Progress, bar: TaskID, done: int) -> None:
    progress.update(bar, completed=done)


async def replay(seed: int, name: str, batch: int, directory: Path) -> list[Target]:
    """One batch alone, against fresh servers."""
    with victims(directory) as three:
        (target,) = (target for target in make_targets(three) if target.name == name)
        await target.run_one(seed, batch)
        return [target]


def report(targets: list[Target], seed: int, console: Console) -> int:
    """The exit code, after the verdict was printed."""
    crashes = [text for target in targets for text in target.crashes]
    for text in crashes[:CRASHES_SHOWN]:
        say(console, text)
    counts = f"frames={sum(target.frame_count for target in targets)} crashes={len(crashes)}"
    say(console, f"FUZZ OK {counts}" if not crashes else f"FUZZ FAILED {counts} seed={seed}")
    return 1 if crashes else 0


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tandemmq.sim.fuzz.run", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many frames in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=["broker", "namesrv", "ha"], help="with --batch: replay it alone")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--keep", type=Path, help="where to leave the logs and the store")
    options = parser.parse_args(arguments)
    if (options.target is None) != (options.batch is None):
        parser.error("--target and --batch go together")
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tandemmq-fuzz-") as temporary:
        directory = options.keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        if options.target is not None:
            targets = asyncio.run(replay(options.seed, options.target, options.batch, directory))
        else:
            targets = asyncio.run(fuzz(options.seed, options.frames, directory, console))
        return report(targets, options.seed, console)


if __name__ == "__main__":
    sys.exit(main())
