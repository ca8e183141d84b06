"""The loss of a store with pool when the process dies: a tail of whole records, in order."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_rig import Rig, bodies, record

from tandemmq.errors import RequestRejected
from tandemmq.protocol.record import decode_records
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.store import GetStatus, MessageStore, PutStatus, StoreOptions

Steps = list[tuple[str, int]]


def pooled() -> Rig:
    return Rig(transient_pool_enable=True, commit_log_file_bytes=2048, transient_pool_size=3)


def die(rig: Rig) -> None:
    """Kills the process; its remaining commits go to a discarded disk."""
    rig.disk = deepcopy(rig.disk)
    rig.kill()


async def test_a_kill_loses_what_was_not_committed_and_its_queue_offsets_are_used_again() -> None:
    rig = pooled()
    store = await rig.open()
    rig.put(store, record(b"kept"))
    await rig.clock.pass_time(0.01)
    placed = store.appender.append([record(b"lost")], lambda _: None)
    rig.clock.run_soon()
    assert placed.queue_offset == 1
    die(rig)
    store = await rig.open()
    assert bodies(store) == [b"kept"]
    again = store.appender.append([record(b"again")], lambda _: None)
    assert (again.queue_offset, again.log_offsets[0]) == (1, placed.log_offsets[0])
    await store.close()


async def test_files_begun_for_lost_bytes_are_removed() -> None:
    rig = pooled()
    store = await rig.open()
    statuses = rig.put(store, *(record(b"x" * 300) for _ in range(12)))
    assert len(statuses) == 12
    assert len(rig.disk.list(store.options.log_dir)) == 3
    die(rig)
    store = await rig.open()
    assert store.max_log_offset == 0
    assert len(rig.disk.list(store.options.log_dir)) == 1
    rig.put(store, record(b"new"))
    await store.close()
    assert bodies(await rig.open()) == [b"new"]


async def play(steps: Steps) -> None:
    """After each death the store holds the committed records and perhaps more, always a prefix."""
    rig = pooled()
    store = await rig.open()
    accepted: list[bytes] = []
    for number, (step, size) in enumerate(steps):
        if step == "put":
            body = b"%d:" % number + b"x" * size
            try:
                assert rig.put(store, record(body)) == [PutStatus.PUT_OK]
                accepted.append(body)
            except RequestRejected:
                pass
        elif step == "turns":
            for _ in range(size % 5):
                await asyncio.sleep(0)
        elif step == "wait":
            await rig.clock.pass_time(size / 1000)
        else:
            committed = bodies(store)
            if step == "kill":
                die(rig)
            else:
                await store.close()
                committed = accepted
            store = await rig.open()
            found = bodies(store)
            assert found == accepted[: len(found)], (found, accepted)
            assert found[: len(committed)] == committed
            accepted = found
    await store.close()
    assert bodies(await rig.open()) == accepted


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "turns", "wait", "kill", "stop"]), st.integers(0, 700)),
    max_size=30,
)


@settings(max_examples=100)
@given(STEPS)
def test_deaths_leave_a_prefix_of_what_was_accepted(steps: Steps) -> None:
    asyncio.run(play(steps))


WRITER = """
import asyncio, sys
from pathlib import Path
from tandemmq.protocol.record import NewRecord
from tandemmq.runtime.machine import LoopClock
from tandemmq.runtime.disk import RealDisk
from tandemmq.store import MessageStore, PutStatus, StoreOptions

async def main(root):
    options = StoreOptions(root=Path(root), commit_log_file_bytes=65536, consume_queue_file_bytes=2000,
                           key_index_enable=False, transient_pool_enable=True)
    store = await MessageStore.open(options, disk=RealDisk(), clock=LoopClock())
    number = store.queue_max("T", 0)
    print(number, flush=True)
    while True:
        for _ in range(20):
            body = b"%08d" % number + b"x" * (number % 500)
            record = NewRecord(topic="T", queue_id=0, body=body, properties=b"", born_at_ms=0,
                               born_host=bytes(8))
            def done(status, number=number):
                assert status is PutStatus.PUT_OK
                sys.stdout.write(f"{number}\\n")
            store.appender.append([record], done)
            number += 1
        await asyncio.sleep(0.001)
        sys.stdout.flush()

asyncio.run(main(sys.argv[1]))
"""


def run_until_killed(root: Path, answers: int) -> int:
    """Runs a writer and kills it after that many answers or a few more; returns where it began."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        first = int(writer.stdout.readline())
        lines = [writer.stdout.readline() for _ in range(answers)]
        writer.kill()
        lines += [line for line in writer.stdout if line.endswith("\n")]
    told = list(map(int, lines))
    assert told == list(range(first, first + len(told)))
    return first


async def read_all(root: Path) -> list[int]:
    options = StoreOptions(
        root=root, commit_log_file_bytes=65536, consume_queue_file_bytes=2000, key_index_enable=False
    )
    store = await MessageStore.open(options, disk=RealDisk(), clock=LoopClock())
    numbers: list[int] = []
    while (result := store.reader.get("T", 0, len(numbers), count_max=32)).status is GetStatus.FOUND:
        numbers += [int(r.body[:8]) for piece in result.slices for r in decode_records(piece)]
    await store.close()
    return numbers


@pytest.mark.process
def test_kill_9_loses_a_tail_of_that_life_and_nothing_else(tmp_path: Path) -> None:
    for life in range(4):
        first = run_until_killed(tmp_path, 100 + 300 * life)
        stored = asyncio.run(read_all(tmp_path))
        assert stored == list(range(len(stored)))
        assert len(stored) >= first
