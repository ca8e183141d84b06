"""Segments, logs of segments, names, checkpoint, queue files."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

import pytest

from sim.memory import MemoryDisk
from tandemmq.errors import ConfigError, Corrupt, StoreError
from tandemmq.store.checkpoint import Checkpoint, CheckpointTimes, decode_checkpoint, encode_checkpoint
from tandemmq.store.consume_queue import FILLER_SIZE, TAIL_BYTES_MAX, ConsumeQueue
from tandemmq.store.options import (
    QUEUE_OFFSET_MAX,
    StoreOptions,
    StorePaths,
    offset_file_name,
    parse_offset_file_name,
    parse_queue_id,
)
from tandemmq.store.segmented_log import OpenFiles, SegmentedLog

DIRECTORY = Path("/log")


def log_of(disk: MemoryDisk, count: int, *, open_max: int = 100, size: int = 100) -> SegmentedLog:
    log = SegmentedLog(DIRECTORY, size, OpenFiles(disk, open_max), sparse=False)
    for n in range(count):
        log.open_at(n * size)
    return log


def test_names_on_disk() -> None:
    assert offset_file_name(1 << 30) == "00000000001073741824"
    assert parse_offset_file_name("00000000001073741824") == 1 << 30
    assert [parse_offset_file_name(n) for n in ("1", "x" * 20, "0" * 19, "0" * 21)] == [None] * 4
    assert [parse_offset_file_name(n) for n in ("9" * 20, offset_file_name(2**63 - 1))] == [None] * 2
    assert [parse_queue_id(n) for n in ("0", "17", "-1", "01", "x", "")] == [0, 17, None, None, None, None]


def test_files_are_found_by_offset() -> None:
    log = log_of(MemoryDisk(), 3)
    found = [log.find(offset) for offset in (0, 99, 100, 299)]
    assert [s.base for s in found if s is not None] == [0, 0, 100, 200]
    assert log.find(300) is None
    assert log.find(-1) is None
    log.drop_oldest()
    assert log.find(99) is None


def test_few_handles_serve_many_files() -> None:
    disk = MemoryDisk()
    files = OpenFiles(disk, 4)
    log = SegmentedLog(DIRECTORY, 100, files, sparse=False)
    for n in range(20):
        log.open_at(n * 100).file.pwrite(0, (bytes([n]),))
        assert len(files) <= 5
    assert [segment.file.pread(0, 1)[0] for segment in log.segments] == list(range(20))
    assert len(files) <= 5
    files.close()
    assert len(files) == 0


def test_a_pinned_file_stays_open_and_a_removed_one_ends_with_its_pin() -> None:
    disk = MemoryDisk()
    files = OpenFiles(disk, 1)
    log = SegmentedLog(DIRECTORY, 100, files, sparse=False)
    first = log.open_at(0)
    pinned = first.pin()
    for n in range(1, 5):
        log.open_at(n * 100).file.pwrite(0, (b"x",))
    pinned.sync()
    log.drop_oldest()
    pinned.sync()
    first.unpin()
    with pytest.raises(OSError, match="closed"):
        pinned.sync()


def test_views_outlive_their_file() -> None:
    log = log_of(MemoryDisk(), 2)
    log.segments[0].file.pwrite(0, (b"kept",))
    view = log.segments[0].view()[:4]
    log.drop_oldest()
    assert bytes(view) == b"kept"


def test_truncation_deletes_later_files_and_zeroes_the_rest() -> None:
    disk = MemoryDisk()
    log = log_of(disk, 3)
    for segment in log.segments:
        segment.file.pwrite(0, (b"x" * 100,))
    assert log.truncate(150, zero_bytes_max=100) == 50
    assert disk.list(DIRECTORY) == [offset_file_name(0), offset_file_name(100)]
    assert disk.read_bytes(DIRECTORY / offset_file_name(100)) == b"x" * 50 + bytes(50)
    assert log.truncate(100, zero_bytes_max=100) == 0
    assert [s.base for s in log.segments] == [0]
    assert log.truncate(0, zero_bytes_max=100) == 100
    assert [s.base for s in log.segments] == [0]


def test_a_name_that_is_no_multiple_of_the_size_is_refused() -> None:
    disk = MemoryDisk()
    disk.create(DIRECTORY / offset_file_name(50), 100)
    with pytest.raises(Corrupt):
        SegmentedLog(DIRECTORY, 100, OpenFiles(disk, 9), sparse=False).load()


def test_checkpoint_round_trip() -> None:
    times = CheckpointTimes(1, 2, 3, 4, 5, durable_log_offset=6, queues_digest=7)
    data = encode_checkpoint(times)
    assert len(data) == 4096
    assert decode_checkpoint(data) == times
    assert decode_checkpoint(encode_checkpoint(CheckpointTimes(1))) == CheckpointTimes(1)


def test_the_durable_mark_is_void_once_another_broker_wrote_the_checkpoint() -> None:
    """RocketMQ does not change the bytes after its own fields."""
    data = encode_checkpoint(CheckpointTimes(1, 2, durable_log_offset=6, queues_digest=7))
    theirs = encode_checkpoint(CheckpointTimes(3, 4))[:40] + data[40:]
    assert decode_checkpoint(theirs) == CheckpointTimes(3, 4)


def test_garbage_in_a_checkpoint_says_nothing() -> None:
    assert decode_checkpoint(b"short") == decode_checkpoint(b"\xff" * 4096) == CheckpointTimes()


def test_checkpoint_times_only_rise_and_are_safe_by_a_margin() -> None:
    """spec store 10."""
    disk = MemoryDisk()
    paths = StorePaths(StoreOptions(root=Path("/store")))
    checkpoint = Checkpoint(paths, disk)
    checkpoint.load()
    checkpoint.raise_times(log_ms=10_000, queues_ms=9_000)
    checkpoint.raise_times(log_ms=5_000, index_ms=1)
    assert checkpoint.times == CheckpointTimes(10_000, 9_000, 1)
    assert checkpoint.times.safe_ms == 6_000
    assert CheckpointTimes(2_000, 2_000).safe_ms == 0
    assert checkpoint.write()
    syncs = disk.sync_count
    assert checkpoint.write()
    assert disk.sync_count == syncs
    again = Checkpoint(paths, disk)
    again.load()
    assert again.times == checkpoint.times


def queue_on(disk: MemoryDisk, *, file_bytes: int = 200) -> ConsumeQueue:
    return ConsumeQueue(("T", 0), DIRECTORY, file_bytes, OpenFiles(disk, 9), is_schedule=False)


def reloaded(disk: MemoryDisk, *, file_bytes: int = 200) -> ConsumeQueue:
    queue = queue_on(disk, file_bytes=file_bytes)
    queue.load(stale_bytes_max=file_bytes)
    return queue


def test_queue_entries_survive_writing_in_any_portions() -> None:
    disk = MemoryDisk()
    queue = queue_on(disk)
    for n in range(35):
        queue.put(n * 100, 100, n)
        if n % 9 == 0:
            queue.write()
        if n == 20:
            queue.drop_tail()
            queue.write()
            queue.drop_tail()
    queue.write()
    for again in (queue, reloaded(disk)):
        assert [again.entry(n) for n in range(35)] == [(n * 100, 100, n) for n in range(35)]
        assert again.entry(35) is None
        assert (again.max_offset, again.end_log_offset) == (35, 3500)
        assert again.entries(5, 100)[:20] == again.entries(5, 1)


def test_a_long_tail_is_written_without_being_asked() -> None:
    queue = queue_on(MemoryDisk(), file_bytes=6000)
    for n in range(5000):
        queue.put(n, 1, n)
    assert queue.unwritten_bytes <= TAIL_BYTES_MAX
    assert [queue.entry(n) for n in (0, 2500, 4999)] == [(n, 1, n) for n in (0, 2500, 4999)]


def test_records_that_are_there_already_are_skipped() -> None:
    queue = queue_on(MemoryDisk())
    assert queue.put_at(0, 0, 10, 0) == 0
    assert queue.put_at(0, 0, 10, 0) == 0
    assert queue.put_at(1, 10, 10, 0) == 0
    assert queue.put_at(0, 0, 10, 0) == queue.put_at(1, 10, 10, 0) == queue.put_at(-1, 20, 10, 0) == 0
    assert (queue.max_offset, queue.next_offset) == (2, 2)


def test_the_last_number_that_a_queue_may_have_has_a_file_and_the_next_one_is_no_number() -> None:
    disk = MemoryDisk()
    queue = queue_on(disk)
    queue.put_at(QUEUE_OFFSET_MAX + 1, 0, 10, 0)
    queue.restore(2**63 - 1, 0, 10, 0)
    assert queue.max_offset == 0
    queue.put_at(QUEUE_OFFSET_MAX, 0, 10, 7)
    queue.write()
    assert reloaded(disk).entry(QUEUE_OFFSET_MAX) == (0, 10, 7)


@pytest.mark.parametrize(("before", "first"), [(0, 3), (0, 28), (2, 7), (2, 5000), (30, 3)])
def test_the_entry_that_begins_a_queue_late_is_kept_while_the_disk_is_full(before: int, first: int) -> None:
    disk = MemoryDisk()
    queue = queue_on(disk, file_bytes=20 * 2000)
    for n in range(before):
        queue.put(n * 10, 10, n)
    works = disk.fault.on_write, disk.fault.on_create
    disk.fault.on_write = disk.fault.on_create = no_room  # type: ignore[method-assign, assignment]
    with suppress(OSError):
        queue.put_at(first, 1000, 10, 100)
    with suppress(OSError):
        queue.put_at(first + 1, 1010, 10, 101)
    assert (queue.entry(first), queue.entry(first + 1)) == ((1000, 10, 100), (1010, 10, 101))
    assert queue.begin_log_offset in {0, 1000}
    disk.fault.on_write, disk.fault.on_create = works  # type: ignore[method-assign]
    queue.write()
    for again in (queue, reloaded(disk, file_bytes=20 * 2000)):
        again.raise_min(0)
        assert again.min_offset == (0 if first == 7 else first)
        assert (again.max_offset, again.end_log_offset) == (first + 2, 1020)
        assert (again.entry(first), again.entry(first + 1)) == ((1000, 10, 100), (1010, 10, 101))


@pytest.mark.parametrize("first", [0, 7])
def test_numbers_are_taken_though_the_files_take_no_writes(first: int) -> None:
    disk = MemoryDisk()
    queue = queue_on(disk)
    works = disk.fault.on_write, disk.fault.on_create
    disk.fault.on_write = disk.fault.on_create = no_room  # type: ignore[method-assign, assignment]
    failed_count = 0
    for n in range(first, first + TAIL_BYTES_MAX // 20 + 9):
        try:
            queue.put_at(n, n * 10, 10, n)
        except OSError:
            failed_count += 1
        assert queue.next_offset == queue.max_offset == n + 1
    assert failed_count > 1
    disk.fault.on_write, disk.fault.on_create = works  # type: ignore[method-assign]
    queue.write()
    assert reloaded(disk).next_offset == queue.next_offset


def test_a_file_of_before_a_long_gap_that_cannot_be_deleted_is_in_the_way_until_it_can() -> None:
    disk = MemoryDisk()
    queue = queue_on(disk)
    for n in range(3):
        queue.put(n * 10, 10, n)
    queue.write()
    remove = disk.remove

    def refuse(path: Path) -> None:
        raise OSError(errno.EIO, "the disk refuses", str(path))

    disk.remove = refuse  # type: ignore[method-assign]
    with pytest.raises(OSError, match="refuses"):
        queue.put_at(10_000, 1_000, 10, 1)
    with pytest.raises(OSError, match="refuses"):
        queue.write()
    disk.remove = remove  # type: ignore[method-assign]
    queue.write()
    found = reloaded(disk)
    assert (found.first_offset, found.max_offset, found.entry(10_000)) == (10_000, 10_001, (1_000, 10, 1))


@pytest.mark.parametrize("change", ["cut", "begun anew", "mended"])
def test_what_is_changed_while_it_is_synced_is_synced_again(change: str) -> None:
    queue = queue_on(MemoryDisk())
    for n in range(30):
        queue.put(n * 10, 10, n)
    queue.write()
    _, end = queue.unsynced_segments()
    if change == "cut":
        queue.truncate(200)
    elif change == "begun anew":
        queue.put_at(0, 300, 10, 0)
        queue.write()
    else:
        queue.restore(5, 50, 10, 99, replaces=True)
    queue.set_synced(end)
    assert queue.unsynced_bytes > 0
    segments, end = queue.unsynced_segments()
    assert segments
    queue.set_synced(end)
    assert queue.unsynced_bytes == 0


def no_room(*_args: object) -> int:
    raise OSError(errno.ENOSPC, "no room")


@pytest.mark.parametrize("first", [0, 3, 23])
def test_a_queue_offset_that_falls_begins_the_queue_anew(first: int) -> None:
    disk = MemoryDisk()
    queue = queue_on(disk)
    for n in range(40):
        queue.put_at(n, n * 10, 10, n)
    queue.write()
    assert queue.put_at(first, 400, 10, 100) == first - 40
    assert queue.put_at(first + 1, 410, 10, 101) == 0
    assert (queue.min_offset, queue.max_offset, queue.next_offset) == (first, first + 2, first + 2)
    queue.write()
    loaded = queue_on(disk)
    loaded.load(stale_bytes_max=1000)
    loaded.raise_min(0)
    assert (loaded.min_offset, loaded.max_offset, loaded.end_log_offset) == (first, first + 2, 420)
    assert [loaded.entry(first + n) for n in range(2)] == [(400, 10, 100), (410, 10, 101)]


def test_fillers_at_the_end_do_not_hide_which_records_are_there() -> None:
    disk = MemoryDisk()
    queue = queue_on(disk)
    queue.put_at(0, 0, 10, 7)
    queue.put_at(1, 10, 10, 8)
    queue.put_at(5, 20, 10, 9)
    queue.write()
    disk.open(DIRECTORY / offset_file_name(0)).pwrite(100, (bytes(20),))  # a power cut removed the last one
    queue = reloaded(disk)
    assert (queue.max_offset, queue.end_log_offset) == (5, 20)
    assert queue.put_at(1, 10, 10, 8) == queue.put_at(5, 20, 10, 9) == 0
    assert queue.entry(1) == (10, 10, 8)


def test_a_cut_takes_the_fillers_behind_what_is_kept_along() -> None:
    """The next record may have the queue offset of a filler. A queue does begin after its first fillers,
    though.
    """
    disk = MemoryDisk()
    queue = queue_on(disk)
    queue.put_at(0, 0, 10, 7)
    queue.put_at(1, 10, 10, 8)
    queue.put_at(5, 20, 10, 9)
    queue.put_at(6, 30, 10, 9)
    queue.write()
    assert queue.truncate(30) == 1
    assert queue.truncate(29) == 4  # with the fillers 2, 3 and 4
    assert queue.truncate(29) == 0
    assert (queue.max_offset, queue.next_offset, queue.end_log_offset) == (2, 2, 20)
    assert queue.put_at(3, 20, 10, 10) == 1
    assert [queue.entry(n) for n in (0, 1, 3)] == [(0, 10, 7), (10, 10, 8), (20, 10, 10)]
    late = queue_on(MemoryDisk())
    late.put_at(23, 5000, 10, 7)
    late.write()
    assert late.truncate(4000) == 1
    assert (late.min_offset, late.max_offset, late.end_log_offset) == (23, 23, -1)


def test_a_queue_that_begins_late_is_filled_from_the_start_of_its_file() -> None:
    """spec store 5, append step 2."""
    disk = MemoryDisk()
    queue = queue_on(disk)
    assert queue.put_at(23, 5000, 10, 7) == 23
    assert (queue.min_offset, queue.max_offset) == (23, 24)
    queue.write()
    assert disk.list(DIRECTORY) == [offset_file_name(400)]
    assert queue.entry(20) == queue.entry(22) == (0, FILLER_SIZE, 0)
    again = reloaded(disk)
    again.raise_min(0)
    assert (again.min_offset, again.max_offset, again.end_log_offset) == (23, 24, 5010)


def test_a_gap_is_padded_so_that_no_entry_stands_at_a_wrong_place() -> None:
    """spec store 21.5."""
    queue = queue_on(MemoryDisk())
    queue.put_at(0, 0, 10, 1)
    assert queue.put_at(3, 100, 10, 2) == 2
    assert queue.entry(3) == (100, 10, 2)
    assert queue.entry(1) == (0, FILLER_SIZE, 0)
    queue.write()
    queue.raise_min(0)
    assert queue.min_offset == 0
    queue.raise_min(50)
    assert queue.min_offset == 3


def test_a_gap_longer_than_a_file_begins_the_queue_anew() -> None:
    disk = MemoryDisk()
    queue = queue_on(disk)
    queue.put_at(0, 0, 10, 1)
    queue.write()
    queue.put_at(10**15, 100, 10, 2)
    queue.write()
    assert queue.min_offset == 10**15
    assert queue.entry(10**15) == (100, 10, 2)
    assert len(disk.list(DIRECTORY)) == 1


@pytest.mark.parametrize(("log_begin", "first"), [(0, 0), (20, 2), (21, 6), (60, 6), (61, 11), (110, 11)])
def test_a_filler_at_the_end_of_a_file_does_not_speak_for_the_entries_before_it(
    log_begin: int, first: int
) -> None:
    """Their entries could not be rebuilt: the records would be in the log, unreachable for readers."""
    queue = ConsumeQueue(("T", 0), Path("/q"), 100, OpenFiles(MemoryDisk(), 8), is_schedule=False)
    for queue_offset in (0, 1, 2, 6, 11):
        queue.put_at(queue_offset, 10 * queue_offset, 10, 0)
    queue.write()
    queue.drop_tail()
    assert queue.drop_files_below(log_begin) == first // 5
    queue.raise_min(log_begin)
    assert queue.min_offset == first
    entry = queue.entry(first)
    assert entry is not None
    assert entry[0] == 10 * first


def test_entries_behind_the_log_are_cut() -> None:
    disk = MemoryDisk()
    queue = queue_on(disk)
    for n in range(35):
        queue.put(n * 100, 100, n)
    queue.write()
    assert queue.truncate(1550) == 20
    assert (queue.max_offset, queue.next_offset, queue.end_log_offset) == (15, 15, 1500)
    assert reloaded(disk).max_offset == 15
    assert queue.truncate(1500) == 0
    assert queue.truncate(0) == 15
    assert (queue.max_offset, queue.end_log_offset) == (0, -1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store_host", b"123"),
        ("delay_levels_ms", ()),
        ("delay_levels_ms", (1_000, 72 * 3_600_000)),  # as long as the log is kept
    ],
)
def test_options_out_of_range_are_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        StoreOptions(root=Path("/store"), **{name: value})  # type: ignore[arg-type]


def test_queue_file_size_is_rounded_up_to_whole_entries() -> None:
    """spec store 1."""
    assert StoreOptions(root=Path("/store"), consume_queue_file_bytes=70).consume_queue_file_bytes == 80


@pytest.mark.parametrize("topic", ["", ".", "..", "../up", "a/b", "/etc", "a\\b", "nul\0"])
def test_topic_that_names_no_directory_is_refused(tmp_path: Path, topic: str) -> None:
    paths = StorePaths(StoreOptions(root=tmp_path))
    with pytest.raises(StoreError, match="no directory has such a name"):
        paths.consume_queue(topic, 0)
    assert paths.consume_queue("%RETRY%g", 3) == tmp_path / "consumequeue" / "%RETRY%g" / "3"


def test_a_turned_bit_in_the_checkpoint_makes_no_mark() -> None:
    times = CheckpointTimes(1_000, 2_000, 3_000, 4, 5, 77_777, 123)
    data = encode_checkpoint(times)
    for bit in range(8 * 160):
        turned = bytearray(data)
        turned[bit // 8] ^= 1 << bit % 8
        read = decode_checkpoint(bytes(turned))
        assert read.durable_log_offset in (None, 77_777), bit
        assert read.queues_digest in (None, 123), bit
    older = bytearray(data)
    older[112:128] = bytes(16)  # a file of a version without checksum
    assert decode_checkpoint(bytes(older)) == times
