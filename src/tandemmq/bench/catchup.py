"""How long an empty slave takes to become a copy of a master with a log, beside what the machine can do.

Master and slave are processes of their own that hold a store and an end of the replication channel each.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tandemmq.bench.catchup_node import Reading, Ready
from tandemmq.bench.log_maker import LogMaker
from tandemmq.bench.loopback import measure_loopback
from tandemmq.bench.process_stats import peak_resident_bytes, processor_seconds
from tandemmq.runtime.clock import LoopClock
from tandemmq.runtime.disk import RealDisk
from tandemmq.store import BrokerRole, MessageStore, StoreOptions
from tandemmq.units import GIB

LOOPBACK_BYTES = 2 * GIB
OnProgress = Callable[[str, int, int], None]
"""What is being done, bytes done, bytes in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """Figures of one run. `copied`: the slave's log was complete; `dispatched`: its tables were too.

    Rates of the loopback in bytes per second; `master_seconds`: processor time while the slave copied.
    """

    log_bytes: int
    message_count: int
    copied: Reading
    dispatched: Reading
    master_seconds: float
    master_peak_bytes: int
    loopback_rate: float
    loopback_file_rate: float


async def measure_catchup(directory: Path, gib: float, body_bytes: int, on_progress: OnProgress) -> CatchUp:
    """Fill a master in `directory`, copy it, and measure the bare loopback before.

    Raises:  subprocess.CalledProcessError when one of the processes fails.
    """
    on_progress("bare loopback", 0, 2 * LOOPBACK_BYTES)
    loopback = measure_loopback(LOOPBACK_BYTES, None)
    on_progress("bare loopback, written to a file", LOOPBACK_BYTES, 2 * LOOPBACK_BYTES)
    loopback_file = measure_loopback(LOOPBACK_BYTES, directory / "loopback")
    await _fill(directory / "master", gib, body_bytes, on_progress)
    with _node("master", str(directory / "master")) as master:
        ready = msgspec.json.decode(_line(master), type=Ready)
        before_s = processor_seconds(master.pid)
        arguments = (str(directory / "slave"), ready.address, str(ready.log_end))
        with _node("slave", *arguments) as slave:
            copied = None
            for reading in _readings(slave):
                on_progress("copying", reading.log_end, ready.log_end)
                if copied is None and reading.log_end >= ready.log_end:
                    copied, master_seconds = reading, processor_seconds(master.pid) - before_s
                    master_peak = peak_resident_bytes(master.pid)
        if copied is None:
            raise subprocess.CalledProcessError(slave.returncode, slave.args)
    return CatchUp(
        log_bytes=ready.log_end,
        message_count=reading.message_count,
        copied=copied,
        dispatched=reading,
        master_seconds=master_seconds,
        master_peak_bytes=master_peak,
        loopback_rate=loopback,
        loopback_file_rate=loopback_file,
    )


async def _fill(directory: Path, gib: float, body_bytes: int, on_progress: OnProgress) -> None:
    """Make the master's store: its log in bulk, its tables by the dispatcher of a slave."""
    options = StoreOptions(root=directory, role=BrokerRole.SLAVE)
    store = await MessageStore.open(options, disk=RealDisk(), clock=LoopClock())
    maker = LogMaker(segment_bytes=options.commit_log_file_bytes, body_bytes=body_bytes)
    total = int(gib * GIB)
    for log_offset, data in maker.pieces(total):
        store.append_raw(log_offset, data)
        on_progress("filling the master", log_offset, total)
    await store.close()


@contextmanager
def _node(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of `catchup_node`; it has ended afterwards. Raises CalledProcessError when it failed."""
    command = [sys.executable, "-m", "tandemmq.bench.catchup_node", *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()  # which ends a master
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, command)
    finally:
        process.kill()
        process.wait()


def _line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def _readings(process: subprocess.Popen[bytes]) -> Iterator[Reading]:
    while line := _line(process):
        yield msgspec.json.decode(line, type=Reading)
