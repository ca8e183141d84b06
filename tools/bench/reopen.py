"""Measures the time to open a store after its broker was killed under load.

Each half runs in a separate process, because the first ends like a killed one and the memory of the second is
measured: `python -m bench.reopen fill|open DIRECTORY [GIB]`; the second writes JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from bench.processes import peak_resident_bytes
from tandemmq.bench.process_stats import processor_seconds, resident_bytes
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, tag_hash_of
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.store import MessageStore, PutStatus, StoreOptions
from tandemmq.units import GIB

QUEUE_COUNT = 8
SENDS_PER_TURN = 64
KILLED = 9


class Reopened(msgspec.Struct, frozen=True):
    """The cost of opening. `peak_bytes`: the peak resident memory."""

    log_bytes: int
    message_count: int
    seconds: float
    processor_seconds: float
    resident_bytes: int
    peak_bytes: int


def measure_reopening(directory: Path, gib: float, body_bytes: int) -> Reopened:
    """Fills a store of `gib` in `directory`, ends its process without a shutdown, and opens the store in
    another one.

    Raises:  subprocess.CalledProcessError if a half fails.
    """
    command = [sys.executable, "-m", "bench.reopen"]
    filled = subprocess.run([*command, "fill", str(directory), str(gib), str(body_bytes)])
    if filled.returncode != KILLED:
        raise subprocess.CalledProcessError(filled.returncode, filled.args)
    opened = subprocess.run([*command, "open", str(directory)], stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(opened.stdout, type=Reopened)


async def _fill(directory: Path, gib: float, body_bytes: int) -> None:
    options = StoreOptions(root=directory)
    store = await MessageStore.open(options, disk=RealDisk(), clock=LoopClock())
    body = os.urandom(body_bytes)
    number = 0

    def ignore(_status: PutStatus) -> None: ...

    while store.max_log_offset < gib * GIB:
        for _ in range(SENDS_PER_TURN):
            number += 1
            unique_key = f"7F0000010000{number:020X}"
            properties = encode_properties({"UNIQ_KEY": unique_key, "TAGS": "bench", "WAIT": "true"})
            record = NewRecord(
                topic="BenchTopic",
                queue_id=number % QUEUE_COUNT,
                body=body,
                properties=properties,
                tag_hash=tag_hash_of(properties),
                born_at_ms=LoopClock().now_ms(),
                born_host=options.store_host,
                unique_key=unique_key,
            )
            store.appender.append([record], ignore)
        await asyncio.sleep(0)
    os._exit(KILLED)


async def _open(directory: Path) -> None:
    clock = LoopClock()
    begun_at, used_s = clock.monotonic(), processor_seconds(os.getpid())
    store = await MessageStore.open(StoreOptions(root=directory), disk=RealDisk(), clock=clock)
    found = Reopened(
        log_bytes=store.max_log_offset - store.min_log_offset,
        message_count=sum(store.queue_max(*key) for key in store.queue_keys()),
        seconds=clock.monotonic() - begun_at,
        processor_seconds=processor_seconds(os.getpid()) - used_s,
        resident_bytes=resident_bytes(os.getpid()),
        peak_bytes=peak_resident_bytes(os.getpid()),
    )
    sys.stdout.write(json.dumps(msgspec.to_builtins(found)))
    sys.stdout.flush()
    await store.close()


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        asyncio.run(_fill(Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
    else:
        asyncio.run(_open(Path(sys.argv[2])))
