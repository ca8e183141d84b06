"""A process that is killed while it appends loses no acknowledged message."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tandemmq.protocol.record import decode_records
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.store import FlushMode, GetStatus, MessageStore, StoreOptions

WRITER = """
import asyncio, sys
from pathlib import Path
from tandemmq.protocol.record import NewRecord
from tandemmq.runtime.machine import LoopClock
from tandemmq.runtime.disk import RealDisk
from tandemmq.store import FlushMode, MessageStore, PutStatus, StoreOptions

async def main(root, mode):
    options = StoreOptions(root=Path(root), flush_mode=FlushMode(mode), commit_log_file_bytes=65536,
                           consume_queue_file_bytes=2000, key_index_enable=False)
    store = await MessageStore.open(options, disk=RealDisk(), clock=LoopClock())
    number = store.queue_max("T", 0)
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

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


async def read_all(root: Path, mode: FlushMode) -> list[int]:
    options = StoreOptions(
        root=root,
        flush_mode=mode,
        commit_log_file_bytes=65536,
        consume_queue_file_bytes=2000,
        key_index_enable=False,
    )
    store = await MessageStore.open(options, disk=RealDisk(), clock=LoopClock())
    numbers: list[int] = []
    at = 0
    while (result := store.reader.get("T", 0, at, count_max=32)).status is GetStatus.FOUND:
        records = [r for piece in result.slices for r in decode_records(piece)]
        assert [r.queue_offset for r in records] == list(range(at, result.next_offset))
        numbers += [int(r.body[:8]) for r in records]
        at = result.next_offset
    await store.close()
    return numbers


def run_until_killed(root: Path, mode: FlushMode, *, answers: int) -> list[int]:
    """Returns the numbers that a writer acknowledged before it was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), mode.value], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        numbers = [int(writer.stdout.readline()) for _ in range(answers)]
        writer.kill()
        return numbers + [int(line) for line in writer.stdout if line.endswith("\n")]


@pytest.mark.process
@pytest.mark.parametrize("mode", list(FlushMode))
def test_acknowledged_messages_survive_kill_9_again_and_again(tmp_path: Path, mode: FlushMode) -> None:
    newest = -1
    for life in range(5):
        numbers = run_until_killed(tmp_path, mode, answers=50 + 170 * life)
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert numbers[0] > newest
        newest = numbers[-1]
        assert (tmp_path / "abort").exists()
    stored = asyncio.run(read_all(tmp_path, mode))
    assert stored == list(range(len(stored)))
    assert len(stored) > newest
    assert not (tmp_path / "abort").exists()
    assert asyncio.run(read_all(tmp_path, mode)) == stored
