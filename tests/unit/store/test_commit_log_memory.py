"""Log files created ahead and warmed, how they are read, and how much of them stays in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from store_rig import ROOT, STORE_HOST, Rig, bodies, record

from sim.memory import MemoryDisk
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.runtime.ports import Advice
from tandemmq.store import FlushMode, MessageStore, StoreOptions
from tandemmq.store.commit_log import AHEAD_SEGMENT_BYTES_MIN, Warmth, warm
from tandemmq.units import MIB
from waits import until

LOG = ROOT / "commitlog"


def count_writes(rig: Rig) -> list[tuple[str, int, int]]:
    writes: list[tuple[str, int, int]] = []
    rig.disk.fault.on_write = (  # type: ignore[method-assign]
        lambda path, offset, size: (writes.append((path.name, offset, size)), size)[1]
    )
    return writes


@pytest.mark.parametrize("is_warm", [False, True])
async def test_the_next_large_file_is_made_ahead_of_need(is_warm: bool) -> None:
    rig = Rig(commit_log_file_bytes=AHEAD_SEGMENT_BYTES_MIN, warm_segments=is_warm)
    store = await rig.open()
    writes = count_writes(rig)
    body = b"x" * (2 * MIB)
    while store.max_log_offset < AHEAD_SEGMENT_BYTES_MIN * 4 // 5:
        assert len(rig.disk.list(LOG)) <= 1
        rig.put(store, record(body))
    assert not store.log.needs_segment_ahead()  # it is asked for once
    await rig.clock.pass_time(0)
    assert len(rig.disk.list(LOG)) == 2
    zeros = [size for name, _, size in writes if name == f"{AHEAD_SEGMENT_BYTES_MIN:020d}"]
    assert sum(zeros) == (AHEAD_SEGMENT_BYTES_MIN if is_warm else 0)
    while store.max_log_offset < AHEAD_SEGMENT_BYTES_MIN:
        rig.put(store, record(body))
    assert len(set(bodies(store))) == 1
    await store.close()


async def test_small_files_are_made_ahead_only_to_be_warmed() -> None:
    rig = Rig(commit_log_file_bytes=4096, warm_segments=True)
    store = await rig.open()
    rig.put(store, record(b"x" * 3500))
    await rig.clock.pass_time(0)
    assert len(rig.disk.list(LOG)) == 2
    rig.put(store, *(record(b"%d" % n * 1000) for n in range(9)))
    await rig.clock.pass_time(0)
    assert len(bodies(store)) == 10
    await store.close()
    assert len(bodies(await rig.open())) == 10


async def test_a_file_that_cannot_be_warmed_is_used_all_the_same() -> None:
    rig = Rig(commit_log_file_bytes=4096, warm_segments=True)
    store = await rig.open()
    rig.disk.fault.on_write = lambda path, offset, size: size if path.name.endswith("0000") else 10  # type: ignore[method-assign]
    rig.put(store, record(b"x" * 3500))
    await rig.clock.pass_time(0)
    rig.disk.fault.on_write = lambda path, offset, size: size  # type: ignore[method-assign]
    rig.put(store, record(b"y" * 3500))
    assert len(bodies(store)) == 2
    await store.close()


@pytest.mark.parametrize(("sync_bytes", "syncs"), [(None, 0), (MIB, 4), (3 * MIB, 2), (100 * MIB, 1)])
def test_warming_syncs_as_it_goes_where_sends_wait_for_the_disk(sync_bytes: int | None, syncs: int) -> None:
    disk = MemoryDisk()
    file = disk.create(Path("/f"), 4 * MIB - 5)
    warm(file, Warmth(sync_bytes=sync_bytes))
    assert disk.sync_count == syncs
    assert not any(file.pread(0, file.size))


async def test_the_step_between_syncs_is_configured_in_pages() -> None:
    rig = Rig(warm_segments=True, warm_flush_pages=7, flush_mode=FlushMode.SYNC_FLUSH)
    store = await rig.open()
    assert store.log._warmth == Warmth(sync_bytes=7 * 4096)
    await store.close()


@pytest.mark.parametrize("read_ahead", [True, False])
async def test_without_read_ahead_each_log_file_is_read_at_random(read_ahead: bool) -> None:
    rig = Rig(commit_log_file_bytes=1024, read_ahead_enable=read_ahead)
    store = await rig.open()
    rig.put(store, *(record(b"x" * 300) for _ in range(8)))
    names = rig.disk.list(LOG)
    assert len(names) > 2

    def told() -> set[str]:
        return {path.name for path, advice in rig.disk.advised if advice is Advice.RANDOM}

    assert told() == (set() if read_ahead else set(names))
    await store.close()
    rig.disk.advised.clear()
    store = await rig.open()
    assert len(bodies(store)) == 8
    assert told() == (set() if read_ahead else set(names))
    await store.close()


async def test_read_ahead_is_switched_for_files_that_are_there_and_that_come() -> None:
    rig = Rig(commit_log_file_bytes=1024, open_file_count_max=8)
    store = await rig.open()
    rig.put(store, *(record(b"x" * 300) for _ in range(20)))
    store.set_read_ahead(False)
    rig.put(store, *(record(b"x" * 300) for _ in range(4)))
    # A file closed to keep the bound gets the advice when it is opened again.
    assert len(bodies(store)) == 24
    names = set(rig.disk.list(LOG))
    assert {path.name for path, advice in rig.disk.advised if advice is Advice.RANDOM} >= names
    rig.disk.advised.clear()
    store.set_read_ahead(True)
    assert len(bodies(store)) == 24
    told = {path.name for path, advice in rig.disk.advised if advice is Advice.NORMAL}
    assert told == names
    assert Advice.RANDOM not in {advice for _, advice in rig.disk.advised}
    await store.close()


async def test_pages_read_by_consumers_are_released_beyond_a_bound() -> None:
    rig = Rig(commit_log_file_bytes=4 * MIB, mapped_bytes_max=4 * MIB)
    store = await rig.open()
    rig.put(store, *(record(b"x" * MIB) for _ in range(19)))
    rig.disk.advised.clear()

    def look(*offsets_mib: int) -> list[str]:
        """Returns the files whose pages were released while these positions were read."""
        rig.disk.advised.clear()
        for offset in offsets_mib:
            assert len(store.log.valid_view(offset * MIB, 10)) == 10
        return sorted(path.name.lstrip("0")[:-6] for path, _ in rig.disk.advised)

    look(0)
    store.log.release_pages()
    assert look(0, 1, 3, 2, 0, 1, 3) == []
    assert look(9) == [""], "the third block"
    assert look(8, 9, 10, 11, 9) == []
    assert look(16) == ["8"]
    assert look(5, 17) == []
    assert look(0) == ["16", "4"]
    assert len(bodies(store)) == 19
    await store.close()


def mapped_bytes(path: Path) -> int:
    """Returns how many bytes of a file's maps are in this process's memory."""
    total = 0
    is_ours = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_ours = line.endswith(str(path))
        elif is_ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


async def open_real(root: Path, **changes: Any) -> MessageStore:
    options = StoreOptions(
        root=root,
        **{
            "commit_log_file_bytes": 8 * MIB,
            "key_index_enable": False,
            "store_host": STORE_HOST,
            "mapped_bytes_max": 4 * MIB,
            **changes,
        },
    )
    return await MessageStore.open(options, disk=RealDisk(), clock=LoopClock())


async def test_pages_of_a_large_read_leave_the_process_and_slices_stay_valid(tmp_path: Path) -> None:
    store = await open_real(tmp_path)
    for number in range(64):
        store.appender.append([record(b"%02d" % number * 50_000)], lambda _: None)
    await until(lambda: store.appended.value >= 64 * 100_000)
    slices = []
    sums = []
    at = 0
    while at < store.max_log_offset:
        slices.append(store.log.valid_view(at, 65_536))
        sums.append(hash(bytes(slices[-1])))
        at += len(slices[-1])
        log_file = tmp_path / "commitlog" / "00000000000000000000"
        assert mapped_bytes(log_file) <= 4 * MIB
    assert [hash(bytes(piece)) for piece in slices] == sums
    store.log.release_pages()
    assert len(bodies(store)) == 64
    await store.close()
    assert [hash(bytes(piece)) for piece in slices] == sums, "also when the file is closed"


@pytest.mark.parametrize("has_abort", [False, True])
async def test_pages_read_by_recovery_are_released(tmp_path: Path, has_abort: bool) -> None:
    store = await open_real(tmp_path)
    for number in range(64):
        store.appender.append([record(b"%02d" % number * 50_000)], lambda _: None)
    await store.close()
    if has_abort:
        (tmp_path / "abort").touch()
    store = await open_real(tmp_path)
    assert mapped_bytes(tmp_path / "commitlog" / "00000000000000000000") <= 4 * MIB
    assert len(bodies(store)) == 64
    await store.close()
