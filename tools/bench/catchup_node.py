"""The two processes of `python -m bench catchup`, without the rest of a broker.

`python -m bench.catchup_node master DIRECTORY` prints the address for slaves as JSON; `slave DIRECTORY
ADDRESS LOG_END` prints readings as JSON lines, the last one when every table is complete.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path

import msgspec
import uvloop

from bench.processes import peak_resident_bytes
from tandemmq.bench.process_stats import processor_seconds, resident_bytes
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.verifier import TailOutcome, TailVerdict
from tandemmq.replication.shell.master import ReplicationMaster
from tandemmq.replication.shell.slave import ReplicationSlave
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock, TcpNetwork
from tandemmq.store import BrokerRole, MessageStore, StoreOptions, Watermark

READING_SECONDS = 0.2


class Ready(msgspec.Struct, frozen=True):
    """The report that the master serves its log."""

    address: str
    log_end: int


class CopyState(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the slave. `seconds` and `processor_seconds` count from the first received byte."""

    log_end: int
    dispatched: int
    message_count: int
    seconds: float
    processor_seconds: float
    resident_bytes: int
    peak_bytes: int


def _print_json(value: msgspec.Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


async def _open(directory: Path, role: BrokerRole) -> MessageStore:
    options = StoreOptions(root=directory, role=role)
    return await MessageStore.open(options, disk=RealDisk(), clock=LoopClock())


async def _master(directory: Path) -> None:
    store = await _open(directory, BrokerRole.ASYNC_MASTER)
    master = ReplicationMaster(store, ReplicationOptions(), network=TcpNetwork(), clock=LoopClock())
    host, port = await master.start("127.0.0.1", 0)
    _print_json(Ready(address=f"{host}:{port}", log_end=store.max_log_offset))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await master.stop()
    await store.close()


async def _reach(mark: Watermark, value: int) -> None:
    """Waits until the mark is at least `value`."""
    is_reached = asyncio.Event()

    def on_rise(risen_to: int) -> None:
        if risen_to >= value:
            is_reached.set()

    unfollow = mark.follow(on_rise)
    try:
        if mark.value < value:
            await is_reached.wait()
    finally:
        unfollow()


async def _compare_nothing(log_end: int) -> TailVerdict:
    return TailVerdict(outcome=TailOutcome.NOT_COMPARED, log_offset=log_end)


async def _slave(directory: Path, address: str, log_end: int) -> None:
    store = await _open(directory, BrokerRole.SLAVE)
    clock = LoopClock()
    slave = ReplicationSlave(store, ReplicationOptions(), _compare_nothing, network=TcpNetwork(), clock=clock)
    slave.set_master(address)
    await slave.start()
    await _reach(store.appended, 1)
    begun_at, used_s = clock.monotonic(), processor_seconds(os.getpid())

    def on_progress() -> None:
        _print_json(
            CopyState(
                log_end=store.max_log_offset,
                dispatched=store.dispatched.value,
                message_count=sum(store.queue_max(*key) for key in store.queue_keys()),
                seconds=clock.monotonic() - begun_at,
                processor_seconds=processor_seconds(os.getpid()) - used_s,
                resident_bytes=resident_bytes(os.getpid()),
                peak_bytes=peak_resident_bytes(os.getpid()),
            )
        )

    for mark in (store.appended, store.dispatched):
        while mark.value < log_end:
            try:
                async with asyncio.timeout(READING_SECONDS):
                    await _reach(mark, log_end)
            except TimeoutError:
                on_progress()
        on_progress()
    await slave.stop()
    await store.close()


def _run(main: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


if __name__ == "__main__":
    if sys.argv[1] == "master":
        _run(_master(Path(sys.argv[2])))
    else:
        _run(_slave(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
