"""The store on a real directory: locks, directories that cannot be written, sizes, the real clock."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from store_rig import SMALL, bodies, record

from tandemmq.errors import StoreError, StoreLocked
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.store import FlushMode, MessageStore, PutStatus, StoreOptions
from tandemmq.units import MIB
from waits import PATIENCE_S

HOLDER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def times(directory: Path) -> dict[Path, int]:
    """When each file but the lock was written last."""
    return {p: p.stat().st_mtime_ns for p in sorted(directory.rglob("*")) if p.name != "lock"}


@contextmanager
def held_by_another_process(lock: Path) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        yield
        holder.communicate()


async def open_store(root: Path, **changes: object) -> MessageStore:
    options = StoreOptions(root=root, **{**SMALL, **changes})  # type: ignore[arg-type]
    return await MessageStore.open(options, disk=RealDisk(), clock=LoopClock())


async def put(store: MessageStore, *new: bytes) -> None:
    done: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
    for body in new[:-1]:
        store.append([record(body)], lambda _: None)
    store.append([record(new[-1])], done.set_result)
    assert await done is PutStatus.PUT_OK


@pytest.mark.parametrize("mode", list(FlushMode))
async def test_messages_survive_a_restart(tmp_path: Path, mode: FlushMode) -> None:
    numbers = [b"%03d" % n for n in range(200)]
    store = await open_store(tmp_path, flush_mode=mode)
    await put(store, *numbers[:100])
    await store.close()
    store = await open_store(tmp_path, flush_mode=mode)
    await put(store, *numbers[100:])
    assert bodies(store) == numbers
    await store.close()
    assert names(tmp_path) == ["checkpoint", "commitlog", "consumequeue", "lock"]


async def test_a_directory_that_another_process_holds_is_refused_and_left_alone(tmp_path: Path) -> None:
    """The lock that excludes a RocketMQ broker is the record lock of fcntl (spec store 1)."""
    store = await open_store(tmp_path)
    await put(store, b"mine")
    await store.close()
    before = times(tmp_path)
    with held_by_another_process(tmp_path / "lock"):
        with pytest.raises(StoreLocked):
            await open_store(tmp_path)
        assert times(tmp_path) == before
    store = await open_store(tmp_path)
    assert bodies(store) == [b"mine"]
    await store.close()


async def test_a_place_where_no_directory_can_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match=r"file/store cannot be opened"):
        await open_store(tmp_path / "file" / "store")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_read_only_directory_is_named(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    root.chmod(0o555)
    try:
        with pytest.raises(StoreError, match="cannot be opened"):
            await open_store(root)
    finally:
        root.chmod(0o755)


async def test_large_tables_take_little_room_until_they_are_filled(tmp_path: Path) -> None:
    options = StoreOptions(root=tmp_path, commit_log_file_bytes=MIB)
    store = await MessageStore.open(options, disk=RealDisk(), clock=LoopClock())
    done: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
    store.append([record(b"x", keys="k")], done.set_result)
    await done
    assert len(store.query_keys("T", "k", 8, 0, 2**62)) == 1
    await store.close()
    (index,) = files(tmp_path / "index")
    assert index.stat().st_size == 420_000_040
    assert index.stat().st_blocks * 512 < MIB
    (queue,) = files(tmp_path / "consumequeue" / "T" / "0")
    assert queue.stat().st_size == 6_000_000
    assert queue.stat().st_blocks * 512 < MIB


async def test_the_next_file_is_made_ahead_of_need(tmp_path: Path) -> None:
    store = await open_store(tmp_path, commit_log_file_bytes=64 * MIB, staged_bytes_max=2**30)
    body = bytes(MIB)
    for _ in range(52):
        await put(store, body)
    log = tmp_path / "commitlog"
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while len(names(log)) < 2 and asyncio.get_running_loop().time() < deadline:
        await put(store, b"tick")
    assert names(log) == [f"{n * 64 * MIB:020d}" for n in range(2)]
    await store.close()
    assert len(names(log)) == 1


async def test_slices_stay_valid_while_and_after_files_are_closed(tmp_path: Path) -> None:
    store = await open_store(tmp_path, open_file_count_max=8, commit_log_file_bytes=1024)
    await put(store, *(b"%03d" % n + b"x" * 300 for n in range(60)))
    slices = [store.get("T", 0, n, count_max=1).slices[0] for n in range(60)]
    await store.close()
    assert [bytes(piece).find(b"%03d" % n) > 0 for n, piece in enumerate(slices)] == [True] * 60
