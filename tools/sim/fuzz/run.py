"""`python -m sim.fuzz.run`: sends mutated real frames to a name server, a broker and its HA port, and mutated
HTTP/2 and requests to a gRPC proxy in memory.

The last line is `FUZZ OK frames=N crashes=0`, or `FUZZ FAILED ...` with exit code 1; then the lines before it
show the log excerpts and the commands that send the same bytes again. A crash is a process that exits, logs
an error, or leaves a request without an answer. Unbounded memory growth counts as one, too. A session is one
batch of mutated frames over one connection, up to the answer that shows that all of it was handled.
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

from sim.dice import Dice
from sim.fuzz.corpus import HA_REPORT, prologue_of, reports, requests_of
from sim.fuzz.grpc_proxy import ProxyVictim, run_http2_batch, run_rpc_batch
from sim.fuzz.mutate import fence, flip, mutate
from sim.fuzz.victims import Ended, Subject, Victim, Victims, victims
from sim.seeds import print_text, progress_on
from tandemmq.protocol.catalogue import ServingRole
from tandemmq.protocol.frame import FrameDecoder, encode_frame

FRAMES_PER_BATCH = 250
PIECE_BYTES_MAX = 8_192
FENCE_OPAQUE = 0x5EED
FENCE_SECONDS_MAX = 30.0
HA_REPORTS_PER_BATCH = 50
HA_REPORT_BYTES = HA_REPORT.size


async def run_remoting_batch(victim: Victim, role: ServingRole, dice: Dice) -> Ended:
    """Sends mutated requests in random pieces. Returns when the fence after them is answered, or the
    connection ends. A frame that nothing can follow is sent after the fence, and the connection is closed.
    """
    data, tail, frame_count = _make_stream(role, dice)
    reader, writer = await asyncio.open_connection(victim.host, victim.port)
    reading = asyncio.create_task(_read_to_fence(reader))
    try:
        await _write_in_pieces(writer, data, dice)
        async with asyncio.timeout(FENCE_SECONDS_MAX):
            is_fenced = await reading
            if is_fenced and tail:
                writer.write(tail)
                writer.write_eof()
                await _read_to_end(reader)
        return Ended(frame_count, is_closed_by_server=not is_fenced)
    except TimeoutError:
        return Ended(frame_count, is_silent=True)
    except OSError:  # the server closed the connection during a write
        return Ended(frame_count, is_closed_by_server=True)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        writer.close()


async def run_ha_batch(victim: Victim, dice: Dice) -> Ended:
    """Sends mutated reports of a slave; the master closes the connection or continues to send, both are
    valid.
    """
    frame_count, pieces = 0, []
    for _ in range(dice.between(1, HA_REPORTS_PER_BATCH)):
        report = dice.pick(reports())
        if dice.happens(60):
            report = flip(report, dice)
        elif dice.happens(20):
            report = HA_REPORT.pack(dice.between(-(2**62), 2**62))
        pieces.append(report)
        frame_count += len(report) // HA_REPORT_BYTES
    data = b"".join(pieces)[dice.below(3) :]
    reader, writer = await asyncio.open_connection(victim.host, victim.port)
    try:
        await _write_in_pieces(writer, data, dice)
        writer.write_eof()
        async with asyncio.timeout(FENCE_SECONDS_MAX):
            await _read_to_end(reader)
        return Ended(frame_count, is_closed_by_server=True)
    except TimeoutError:
        return Ended(frame_count, is_silent=True)
    except OSError:  # the server closed the connection during a write
        return Ended(frame_count, is_closed_by_server=True)
    finally:
        writer.close()


def _make_stream(role: ServingRole, dice: Dice) -> tuple[bytes, bytes, int]:
    """Returns the readable frames of a batch with a fence, an unreadable one or b"", and their number."""
    corpus = requests_of(role)
    parts = [encode_frame(command) for command in prologue_of(role)]
    tail = b""
    while len(parts) < FRAMES_PER_BATCH and not tail:
        sent = mutate(dice.pick(corpus), corpus, dice)
        if sent.is_last:
            tail = sent.data
        elif sent.data:
            parts.append(sent.data)
    frame_count = len(parts) + bool(tail)
    return b"".join([*parts, fence(FENCE_OPAQUE)]), tail, frame_count


async def _write_in_pieces(writer: asyncio.StreamWriter, data: bytes, dice: Dice) -> None:
    position = 0
    while position < len(data):
        size = dice.between(1, PIECE_BYTES_MAX)
        writer.write(data[position : position + size])
        await writer.drain()
        position += size


async def _read_to_end(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


async def _read_to_fence(reader: asyncio.StreamReader) -> bool:
    """Returns True at the fence's answer, False if the server ends the connection first."""
    decoder = FrameDecoder()
    while data := await reader.read(262_144):
        for command in decoder.feed(data):
            if command.is_response and command.opaque == FENCE_OPAQUE:
                return True
    return False


TARGETS = ("broker", "namesrv", "ha", "http2", "rpc")
CRASHES_SHOWN = 10
GROWTH_MIB_MAX = 64
"""The most MiB that a process may grow after the first quarter; invented names are kept, so some growth is
normal.
"""

RunBatch = Callable[[Dice], Coroutine[Any, Any, Ended]]
Advance = Callable[[int], None]


@dataclass(slots=True)
class Target:
    """One port, its share of the frames in percent, and the results."""

    name: str
    victim: Subject
    run_batch: RunBatch
    percent: int
    frame_count: int = 0
    batch_count: int = 0
    hang_up_count: int = 0
    early_mib: int = 0
    crashes: list[str] = field(default_factory=list)

    async def run(self, seed: int, frame_count: int, advance: Advance) -> None:
        """Sends `frame_count` frames, batch by batch; stops if the process has exited."""
        while self.frame_count < frame_count:
            await self.run_one(seed, self.batch_count)
            advance(self.frame_count)
            if not self.early_mib and self.frame_count * 4 >= frame_count:
                self.early_mib = self.victim.resident_mib()
            if self.crashes and not self.victim.is_alive:
                return

    async def run_one(self, seed: int, batch: int) -> None:
        """Runs one batch; the same seed and number yield the same bytes."""
        self.batch_count += 1
        try:
            ended = await self.run_batch(Dice(crc32(f"{seed}/{self.name}/{batch}".encode())))
        except OSError as error:
            self._record_crash(batch, f"no connection: {error}")
            return
        self.frame_count += ended.frame_count
        self.hang_up_count += ended.is_closed_by_server
        if ended.is_silent:
            self._record_crash(batch, "no answer to a request behind the batch")
        fault = self.victim.fault()
        if fault is not None:
            self._record_crash(batch, fault)

    def check_memory(self) -> str:
        """Returns a line with the memory growth; too much counts as a crash."""
        if not self.victim.is_alive:
            return f"{self.name}: gone"
        now_mib = self.victim.resident_mib()
        if now_mib - self.early_mib > GROWTH_MIB_MAX:
            self.crashes.append(f"{self.name}: memory grew from {self.early_mib} to {now_mib} MiB")
        return (
            f"{self.name}: frames={self.frame_count} batches={self.batch_count} "
            f"hung_up={self.hang_up_count} resident={self.early_mib}..{now_mib} MiB"
        )

    def _record_crash(self, batch: int, text: str) -> None:
        replay = f"--target {self.name} --batch {batch}"
        self.crashes.append(f"{self.name} batch {batch}: {text}\n  replay with: {replay}")


def make_targets(three: Victims) -> list[Target]:
    http2, rpc = ProxyVictim(), ProxyVictim()
    return [
        Target("broker", three.broker, partial(run_remoting_batch, three.broker, ServingRole.BROKER), 65),
        Target(
            "namesrv",
            three.name_server,
            partial(run_remoting_batch, three.name_server, ServingRole.NAME_SERVER),
            20,
        ),
        Target("ha", three.ha, partial(run_ha_batch, three.ha), 8),
        Target("http2", http2, partial(run_http2_batch, http2), 4),
        Target("rpc", rpc, partial(run_rpc_batch, rpc), 3),
    ]


async def fuzz(seed: int, frame_count: int, directory: Path, console: Console) -> list[Target]:
    """Sends all frames and returns the targets."""
    with victims(directory) as three, progress_on(console) as progress:
        targets = make_targets(three)
        async with asyncio.TaskGroup() as group:
            for target in targets:
                share = frame_count * target.percent // 100
                bar = progress.add_task(target.name, total=share)
                group.create_task(target.run(seed, share, partial(_update_progress, progress, bar)))
        for target in targets:
            print_text(console, target.check_memory())
        return targets


def _update_progress(progress: Progress, bar: TaskID, done: int) -> None:
    progress.update(bar, completed=done)


async def replay(seed: int, name: str, batch: int, directory: Path) -> list[Target]:
    """Runs one batch alone, against fresh servers."""
    with victims(directory) as three:
        (target,) = (target for target in make_targets(three) if target.name == name)
        await target.run_one(seed, batch)
        return [target]


def report(targets: list[Target], seed: int, console: Console) -> int:
    """Prints the verdict and returns the exit code."""
    crashes = [text for target in targets for text in target.crashes]
    for text in crashes[:CRASHES_SHOWN]:
        print_text(console, text)
    counts = f"frames={sum(target.frame_count for target in targets)} crashes={len(crashes)}"
    print_text(console, f"FUZZ OK {counts}" if not crashes else f"FUZZ FAILED {counts} seed={seed}")
    return 1 if crashes else 0


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m sim.fuzz.run", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many frames in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", choices=TARGETS, help="with --batch: replay it alone")
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
