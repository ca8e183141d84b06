"""The store on a real directory: locks, unwritable directories, sizes, the real clock."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from store_rig import SMALL, bodies, record

from tandemmq.errors import StoreError, StoreLocked
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.store import FlushMode, MessageStore, PutStatus, StoreOptions
from tandemmq.store.damage import read_range
from tandemmq.store.deletions import Deletions, read_deletions
from tandemmq.store.segmented_log import OpenFiles, SegmentedLog
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
    """Returns the last write time of each file except the lock."""
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
        store.appender.append([record(body)], lambda _: None)
    store.appender.append([record(new[-1])], done.set_result)
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
    store.appender.append([record(b"x", keys="k")], done.set_result)
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
    slices = [store.reader.get("T", 0, n, count_max=1).slices[0] for n in range(60)]
    await store.close()
    assert [bytes(piece).find(b"%03d" % n) > 0 for n, piece in enumerate(slices)] == [True] * 60


def test_a_file_that_was_shortened_is_read_to_its_end_and_no_further(tmp_path: Path) -> None:
    """The recorded length is larger than the file; a reader must not wait for the missing bytes."""
    disk = RealDisk()
    log = SegmentedLog(tmp_path, 4096, OpenFiles(disk, 8), sparse=False)
    for base in (0, 4096):
        log.open_at(base)
    os.truncate(log.segments[1].path, 100)
    parts = read_range(log, 0, 8192)
    assert [len(next(parts)) for _ in range(2)] == [4096, 100]
    with pytest.raises(OSError, match=log.segments[1].path.name):
        next(parts)


async def test_a_cut_leaves_the_deletions_that_are_being_written_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave becomes master while its master's deletions are written; both would write one file."""
    path, disk = tmp_path / "deletedTopics.json", RealDisk()
    is_written, may_end = threading.Event(), threading.Event()
    loop_thread, replace = threading.current_thread(), os.replace

    def hold(source: Path, target: Path) -> None:
        if threading.current_thread() is not loop_thread:
            is_written.set()
            assert may_end.wait(PATIENCE_S)
        replace(source, target)

    monkeypatch.setattr(os, "replace", hold)
    deletions = Deletions(path, disk)
    recording = asyncio.ensure_future(deletions.record({"T": 500}, log_begin=0))
    assert await asyncio.to_thread(is_written.wait, PATIENCE_S)
    try:
        deletions.cut(100)
    finally:
        may_end.set()
    await recording
    assert deletions.ends == read_deletions(path, disk) == {"T": 100}
    assert sorted(names(tmp_path)) == [path.name, path.name + ".bak"]
