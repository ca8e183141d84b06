"""After a crash only data covered by the checkpoint is trusted; the crash simulation found each case."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
from store_rig import ROOT, Rig, bodies, record

from sim.memory import MemoryDisk
from tandemmq.errors import MessageIllegal, StoreError
from tandemmq.store import FlushMode, MessageStore
from tandemmq.store.consume_queue import FILLER, UNIT, ConsumeQueue
from tandemmq.store.key_index import KeyIndex
from tandemmq.store.segmented_log import OpenFiles
from tandemmq.store.table_flusher import TableFlusher

LOG = ROOT / "commitlog" / ("0" * 20)
QUEUE = ROOT / "consumequeue" / "T" / "0"
ALWAYS = (0, 2**62)


def entry(rig: Rig, number: int) -> tuple[int, int, int]:
    content = b"".join(rig.disk.read_bytes(QUEUE / name) for name in rig.disk.list(QUEUE))
    found: tuple[int, int, int] = UNIT.unpack_from(content, number * UNIT.size)
    return found


async def crashed(rig: Rig, count: int = 30) -> list[tuple[int, int, int]]:
    """Returns a killed store with `count` records whose tables are in the files, and their entries."""
    store = await rig.open()
    rig.put(store, *(record(b"%03d" % n, tags="red") for n in range(count)))
    await rig.clock.pass_time(2)
    rig.kill()
    await (await rig.open()).close()
    rig.disk.write_atomically(ROOT / "abort", b"1")
    return [entry(rig, n) for n in range(count)]


def overwrite(disk: MemoryDisk, path: Path, offset: int, data: bytes) -> None:
    file = disk.open(path)
    file.pwrite(offset, (data,))
    file.close()


@pytest.mark.parametrize("number", [0, 7, 12, 29])
@pytest.mark.parametrize("begin", [4, 8, 12, 16])
async def test_an_entry_cut_at_a_sector_boundary_is_made_again(number: int, begin: int) -> None:
    """Its form may be valid although half of its tag or its size is missing."""
    rig = Rig()
    entries = await crashed(rig)
    path = QUEUE / f"{number * 20 // 200 * 200:020d}"
    overwrite(rig.disk, path, number * 20 % 200 + begin, bytes(20 - begin))
    store = await rig.open()
    assert [entry(rig, n) for n in range(30)] == entries
    await store.close()


async def test_a_hole_many_files_before_the_end_of_a_queue_is_filled() -> None:
    rig = Rig(consume_queue_file_bytes=20)
    await crashed(rig, 30)
    overwrite(rig.disk, QUEUE / f"{3 * 20:020d}", 0, bytes(20))
    store = await rig.open()
    assert [int(body) for body in bodies(store)] == list(range(30))
    await store.close()


@pytest.mark.parametrize(("is_clean", "is_missing"), [(True, True), (True, False), (False, True)])
async def test_queues_that_a_start_could_not_build_are_built_by_the_next(
    *, is_clean: bool, is_missing: bool
) -> None:
    """The first start ends after each number of writes. Its checkpoint says that the queues were on disk."""
    is_built = False
    for count in range(100):
        rig = Rig(commit_log_file_bytes=2048)
        store = await rig.open()
        for number in range(30):
            rig.put(store, record(b"%03d" % number + b"x" * 100))
            await rig.clock.pass_time(10)
        await store.close()
        if not is_clean:
            store = await rig.open()
            await rig.clock.pass_time(20)
            rig.kill()
        for name in rig.disk.list(QUEUE):
            if is_missing:
                rig.disk.remove(QUEUE / name)
            else:
                overwrite(rig.disk, QUEUE / name, 100, bytes(100))
        left = count

        def write(path: Path, offset: int, size: int) -> int:
            nonlocal left
            left -= 1
            return size if left >= 0 else 0

        rig.disk.fault.on_write = write  # type: ignore[method-assign]
        try:
            await (await rig.open()).close()
            is_built = left >= 0
        except StoreError:
            rig.kill()
        rig.disk.fault.on_write = lambda path, offset, size: size  # type: ignore[method-assign]
        store = await rig.open()
        assert [int(body[:3]) for body in bodies(store)] == list(range(30)), count
        await store.close()
        if is_built:
            break
    assert is_built
    assert count > 3


def queue_with(*files: bytes) -> ConsumeQueue:
    disk = MemoryDisk()
    for number, entries in enumerate(files):
        disk.create(QUEUE / f"{number * 200:020d}", 200).pwrite(0, (entries,))
    queue = ConsumeQueue(("T", 0), QUEUE, 200, OpenFiles(disk, 8), is_schedule=False)
    queue.load(stale_bytes_max=200)
    return queue


def test_entries_of_records_above_the_limit_are_dropped() -> None:
    queue = queue_with(b"".join(UNIT.pack(100 * n, 100, 0) for n in range(6)))
    queue.distrust(300)
    assert (queue.max_offset, queue.end_log_offset) == (3, 300)
    assert queue.unsynced_bytes > 0


def test_a_torn_offset_that_looks_small_ends_the_trust() -> None:
    """Above 4 GiB the first half of an offset may be lost and the rest of its entry kept."""
    base = 5 << 32
    good = [UNIT.pack(base + 100 * n, 100, 0) for n in range(4)]
    queue = queue_with(b"".join(good[:3]) + bytes(4) + good[3][4:])
    queue.distrust(base + 10_000)
    assert queue.max_offset == 3


def test_a_torn_entry_hides_no_entry_before_it() -> None:
    """A failed write of zeros leaves an offset of 0, which seems to be below the begin of the log."""
    real = [UNIT.pack(1_000 + 100 * n, 100, 0) for n in range(5)]
    queue = queue_with(b"".join(real[:2]) + bytes(9) + real[2][9:] + b"".join(real[3:]))
    queue.raise_min(900)
    assert queue.min_offset == 3
    queue.distrust(1_200)
    queue.raise_min(900)
    assert (queue.min_offset, queue.max_offset) == (0, 2)


def test_fillers_are_no_reason_for_distrust() -> None:
    queue = queue_with(UNIT.pack(100, 100, 0) + FILLER * 2 + UNIT.pack(200, 100, 0))
    queue.distrust(10_000)
    assert (queue.max_offset, queue.end_log_offset) == (4, 300)


def test_fillers_before_a_dropped_entry_are_no_reason_for_trust() -> None:
    """Neither within a file, nor at the beginning of one."""
    real = [UNIT.pack(100 * n, 100, 0) for n in range(30)]
    within = queue_with(b"".join(real[:3]) + FILLER * 2 + real[5])
    within.distrust(300)
    assert (within.max_offset, within.end_log_offset) == (3, 300)
    file_of_others = queue_with(b"".join(real[:10]), FILLER * 2 + b"".join(real[12:15]))
    file_of_others.distrust(400)
    assert (file_of_others.max_offset, file_of_others.end_log_offset) == (4, 400)
    begun_there = queue_with(FILLER * 2 + b"".join(real[2:4]))
    begun_there.distrust(100)
    assert (begun_there.max_offset, begun_there.end_log_offset) == (2, -1)


async def test_bytes_that_were_perhaps_never_synced_are_written_again() -> None:
    """After a failed fsync the page cache may treat pages as clean that the disk does not hold."""
    rig = Rig(flush_mode=FlushMode.SYNC_FLUSH)
    await crashed(rig)
    content = rig.disk.read_bytes(LOG)
    written: list[tuple[int, int]] = []

    class Watch:
        def on_create(self, path: Path, size: int) -> None: ...

        def on_write(self, path: Path, offset: int, size: int) -> int:
            if path == LOG:
                written.append((offset, offset + size))
            return size

        def on_sync(self, path: Path) -> None: ...

    rig.disk.fault = Watch()
    store = await rig.open()
    assert written == [(0, min(store.max_log_offset, 4096))]
    assert rig.disk.read_bytes(LOG) == content
    await store.close()


def index_entries(rig: Rig) -> list[tuple[str, int]]:
    """Returns (file, entry count by its header) of every index file."""
    directory = ROOT / "index"
    found = []
    for name in rig.disk.list(directory):
        index = KeyIndex(directory / name, 64, 4, rig.disk)
        assert index.load_header()
        found.append((name, index.header.next_entry - 1))
        index.close()
    return found


async def test_index_files_begun_since_the_last_flush_are_filled_once() -> None:
    """Their headers count nothing; if they were taken for the end, every key since then would count twice."""
    rig = Rig(key_index_entry_count=4)
    store = await rig.open()
    rig.put(store, record(b"0", keys="k0"))
    await rig.clock.pass_time(61)
    rig.put(store, *(record(b"%d" % n, keys=f"k{n}") for n in range(1, 9)))
    await rig.clock.pass_time(1)
    rig.kill()
    assert [count for _, count in index_entries(rig)] == [1, 0, 0]
    store = await rig.open()
    assert [count for _, count in index_entries(rig)] == [3, 3, 3]
    for n in range(9):
        assert len(store.query_keys("T", f"k{n}", 8, *ALWAYS)) == 1
    await store.close()


async def test_keys_of_one_record_in_two_index_files_are_completed() -> None:
    rig = Rig(key_index_entry_count=4)
    store = await rig.open()
    rig.put(store, record(b"0", keys="a b"), record(b"1", keys="c d"))
    await store.close()
    rig.disk.write_atomically(ROOT / "abort", b"1")
    overwrite(rig.disk, ROOT / "checkpoint", 0, bytes(40))
    (_, last) = rig.disk.list(ROOT / "index")
    overwrite(rig.disk, ROOT / "index" / last, 0, struct.pack(">qqqqii", 0, 0, 0, 0, 0, 0))
    store = await rig.open()
    assert len(store.query_keys("T", "d", 8, *ALWAYS)) == 1
    assert sum(count for _, count in index_entries(rig)) == 4
    await store.close()


async def test_a_failed_store_does_not_even_tidy_up() -> None:
    rig = Rig(flush_mode=FlushMode.SYNC_FLUSH)
    store: MessageStore = await rig.open()

    class Broken:
        writes = 0

        def on_create(self, path: Path, size: int) -> None: ...

        def on_write(self, path: Path, offset: int, size: int) -> int:
            self.writes += 1
            return 0

        def on_sync(self, path: Path) -> None:
            raise OSError(5, "input/output error")

    rig.put(store, record(b"a"))
    broken = rig.disk.fault = Broken()
    rig.put(store, record(b"b"))
    await rig.clock.pass_time(0.1)
    assert len(rig.fatal) == 1
    before = broken.writes
    await rig.clock.pass_time(5)
    with pytest.raises(Exception, match=r"accepts no writes|has failed"):
        store.appender.append([record(b"c")], lambda _: None)
    assert broken.writes == before
    await store.close()


@pytest.mark.parametrize("properties", [b"n\x01v\0", b"n\x01" + bytes(512) + b"v\x02"])
async def test_properties_that_look_like_a_torn_write_are_refused(properties: bytes) -> None:
    rig = Rig()
    store = await rig.open()
    odd = record(b"a")
    odd.properties = properties
    for records in ([odd], [record(b"b"), odd]):
        with pytest.raises(MessageIllegal, match="zero byte"):
            store.appender.append(records, lambda _: None)
    assert store.appender.append([record(b"c")], lambda _: None).queue_offset == 0
    await store.close()


async def test_a_record_that_lost_a_sector_of_its_properties_ends_the_log() -> None:
    """The checksum covers the body only, and intact records may follow."""
    rig = Rig(commit_log_file_bytes=16_384)
    store = await rig.open()
    long = record(b"1", properties={"note": "x" * 2_000})
    rig.put(store, record(b"0"), long, record(b"2"))
    await rig.clock.pass_time(11)
    rig.power_cut(keeps_all=True)
    rig.note_durable(0)
    overwrite(rig.disk, LOG, 1024, bytes(512))
    store = await rig.open()
    assert bodies(store) == [b"0"]
    await store.close()


@pytest.mark.parametrize("is_all", [True, False])
async def test_a_rebuild_of_the_queues_that_a_power_cut_ends_begins_again(
    is_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint says that the old entries are on disk, which is no longer true."""
    rig = Rig(commit_log_file_bytes=1024)
    store = await rig.open()
    for begin in (0, 20):
        rig.put(
            store, *(record(b"%03d" % number, queue_id=number % 2) for number in range(begin, begin + 20))
        )
        await rig.clock.pass_time(60)
    await store.close()
    for queue in rig.disk.list(QUEUE.parent)[: 2 if is_all else 1]:
        for name in rig.disk.list(QUEUE.parent / queue):
            rig.disk.remove(QUEUE.parent / queue / name)

    async def fail(self: TableFlusher, tables_end: int) -> None:
        raise OSError(errno.EIO, "the power is about to fail")

    with monkeypatch.context() as patch:
        patch.setattr(TableFlusher, "begin", fail)
        with pytest.raises(StoreError, match="about to fail"):
            await rig.open()
    rig.power_cut()
    again = await rig.open()
    for queue_id in (0, 1):
        assert bodies(again, queue_id=queue_id) == [b"%03d" % number for number in range(queue_id, 40, 2)]
    await again.close()
