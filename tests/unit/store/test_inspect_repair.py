"""Rebuilding derived files: the same bytes as the broker's, whatever the fault, and wherever a kill
happens.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from inspect_rig import (
    LOG_FILE_BYTES,
    QUEUE_FILE_BYTES,
    SIZES,
    change,
    check,
    content,
    damages,
    flip,
    log_files,
    make_store,
    queue_file,
    some_records,
    write_store,
)
from store_rig import record

from sim.memory import ManualClock
from tandemmq.errors import StoreError, StoreLocked
from tandemmq.protocol.record import RecordOutcome, check_record, decode_record, decode_records
from tandemmq.runtime.disk import RealDisk
from tandemmq.store import GetStatus, MessageStore, StoreOptions
from tandemmq.store.consume_queue import FILLER, UNIT
from tandemmq.store.damage import SEALED_BYTES_MIN, seal
from tandemmq.store.inspect import (
    IndexLayout,
    InspectOptions,
    RepairOptions,
    RepairReport,
    StorePart,
    repair_store,
)
from tandemmq.store.options import QUEUE_OFFSET_MAX
from tandemmq.telemetry import events

COUNT = 120


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("inspect") / "store", COUNT)


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "store"))


def repair(root: Path, **changes: object) -> RepairReport:
    options = RepairOptions(inspect=InspectOptions(root=root), **changes)  # type: ignore[arg-type]
    return repair_store(options, RealDisk())


def test_sound_store_stays_as_it_is(root: Path) -> None:
    before = content(root)
    inodes = {path: path.stat().st_ino for path in root.rglob("*")}
    report = repair(root)
    assert report.changes == []
    assert (report.record_count, report.queue_count) == (COUNT, 5)
    assert content(root) == before
    assert {path: path.stat().st_ino for path in root.rglob("*")} == inodes


def remove_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def remove_one_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "A" / "1")


def remove_queue_file(root: Path) -> None:
    queue_file(root, index=1).unlink()


def flip_entry(root: Path) -> None:
    flip(queue_file(root), 47, 2)


def cut_entries(root: Path) -> None:
    path = queue_file(root, index=-1)
    path.write_bytes(bytes(len(path.read_bytes())))


def add_entries(root: Path) -> None:
    path = queue_file(root, "SCHEDULE_TOPIC_XXXX", 2)
    change(path, 360, UNIT.pack(10**6, 200, 3))


def add_foreign_queue(root: Path) -> Path:
    shutil.copytree(root / "consumequeue" / "A" / "0", root / "consumequeue" / "ghost" / "0")
    return queue_file(root, "ghost")


def flip_index(root: Path) -> None:
    flip(sorted((root / "index").iterdir())[0], 60)


def remove_checkpoint(root: Path) -> None:
    (root / "checkpoint").unlink()


def absurd_checkpoint(root: Path) -> None:
    change(root / "checkpoint", 0, b"\x7f" * 40)


FAULTS: list[Callable[[Path], object]] = [
    remove_queues,
    remove_one_queue,
    remove_queue_file,
    flip_entry,
    cut_entries,
    add_entries,
    add_foreign_queue,
    flip_index,
    remove_checkpoint,
    absurd_checkpoint,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_repaired_files_are_those_that_the_broker_wrote(original: Path, root: Path, fault: Callable) -> None:
    fault(root)
    assert content(root) != content(original)
    report = repair(root, queue_file_bytes=QUEUE_FILE_BYTES)
    assert report.changes
    assert content(root) == content(original)
    assert check(root).findings.listed == []
    assert repair(root).changes == []


def test_changes_are_told_by_queue(root: Path) -> None:
    flip_entry(root)
    remove_one_queue(root)
    assert repair(root).changes == ["A/0: 1 entries corrected", "A/1: made, 25 entries"]


def test_lost_index_is_made_anew_under_other_names(original: Path, root: Path) -> None:
    expected = [path.read_bytes() for path in sorted((original / "index").iterdir())]
    shutil.rmtree(root / "index")
    assert not any("index" in line for line in repair(root).changes)
    assert not (root / "index").exists()
    (root / "index").mkdir()
    options = InspectOptions(root=root, index_layout=IndexLayout(16, 64))
    repair_store(RepairOptions(inspect=options), RealDisk())
    made = sorted((root / "index").iterdir())
    assert [path.read_bytes() for path in made] == expected
    assert all(len(path.name) == 17 and path.name.isdigit() for path in made)


def test_queue_files_may_be_given_another_length(root: Path) -> None:
    repair(root, queue_file_bytes=2000)
    assert queue_file(root).stat().st_size == 2000
    assert check(root).is_clean


async def reopened(root: Path) -> MessageStore:
    options = StoreOptions(root=root, **SIZES)
    return await MessageStore.open(options, disk=RealDisk(), clock=ManualClock())


def test_broker_opens_a_repaired_store_and_serves_it(original: Path, root: Path) -> None:
    async def read_all() -> list[bytes]:
        store = await reopened(root)
        found = []
        at = 0
        while (got := store.reader.get("A", 0, at, count_max=4)).status is GetStatus.FOUND:
            found += [bytes(piece) for piece in got.slices]
            at = got.next_offset
        await store.close()
        return found

    before = asyncio.run(read_all())
    assert before
    remove_queues(root)
    repair(root, queue_file_bytes=QUEUE_FILE_BYTES)
    assert asyncio.run(read_all()) == before
    assert content(root) == content(original)


# Values that no checksum covers.


def record_places(path: Path) -> list[tuple[int, int]]:
    """Returns begin and end of each record of a file."""
    data, places, at = path.read_bytes(), [], 0
    while (found := check_record(data, at, check_crc=False)).outcome is RecordOutcome.OK:
        places.append((at, at + found.size))
        at += found.size
    return places


def repair_index(root: Path, **changes: object) -> RepairReport:
    options = InspectOptions(root=root, index_layout=IndexLayout(16, 64))
    return repair_store(RepairOptions(inspect=options, **changes), RealDisk())  # type: ignore[arg-type]


def index_names(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "index").iterdir())


@pytest.mark.parametrize("stored_at_ms", [2**63 - 1, 2**62, 253_402_300_799_999, -1, -(2**63)])
def test_store_time_that_is_no_date_names_no_index_file(root: Path, stored_at_ms: int) -> None:
    names = index_names(root)
    change(log_files(root)[0], 56, struct.pack(">q", stored_at_ms))
    shutil.rmtree(root / "index")
    (root / "index").mkdir()
    repair_index(root)
    made = index_names(root)
    assert len(made) == len(names)
    assert made[0] < made[1]
    assert {f.reason for f in damages(check(root), StorePart.INDEX)} <= {"the header ends before it begins"}


@pytest.mark.parametrize("name", ["2" * 17, "9" * 17, "99981231235959999", "²" * 17])
def test_index_file_whose_name_is_no_date_does_not_name_the_next_one(root: Path, name: str) -> None:
    first, *others = sorted((root / "index").iterdir())
    for path in others:
        path.unlink()
    first.rename(first.with_name(name))
    repair_index(root)
    assert len(index_names(root)) == len(others) + 1
    assert name not in index_names(root)
    assert check(root).is_clean


@pytest.mark.parametrize("key_count", [1, 80])
def test_index_forgets_a_torn_record_whose_keys_fill_its_last_files(tmp_path: Path, key_count: int) -> None:
    root = tmp_path / "store"
    keys = " ".join(f"k{n}" for n in range(key_count))
    asyncio.run(write_store(root, [record(b"x" * 50, keys=keys, properties={"a": "b" * 20})]))
    path = log_files(root)[0]
    change(path, record_places(path)[-1][1] - 4, bytes(4))
    repair_index(root)
    assert index_names(root) == []


def test_index_is_cut_though_the_store_time_of_its_first_record_is_absurd(tmp_path: Path) -> None:
    root = tmp_path / "store"
    records = [record(b"%d" % n * 50, keys=f"k{n}", properties={"a": "b" * 20}) for n in range(2)]
    asyncio.run(write_store(root, records))
    path = log_files(root)[0]
    change(path, 56, struct.pack(">q", 2**63 - 1))
    change(path, record_places(path)[-1][1] - 4, bytes(4))
    repair_index(root)
    assert damages(check(root, index_layout=IndexLayout(16, 64)), StorePart.INDEX) == []


@pytest.mark.parametrize("is_repaired", [True, False])
@pytest.mark.parametrize("queue_offset", [2**63 - 5, QUEUE_OFFSET_MAX + 1, -1])
def test_record_with_a_number_that_no_queue_has_gets_no_entry(
    root: Path, caplog: pytest.LogCaptureFixture, queue_offset: int, is_repaired: bool
) -> None:
    path = log_files(root)[-1]
    begin, _ = record_places(path)[-1]
    found = check_record(path.read_bytes(), begin)
    change(path, begin + 20, struct.pack(">q", queue_offset))
    name = f"{found.topic}/{found.queue_id}"
    if is_repaired:
        assert repair(root).changes[0] == f"{name}: 1 entries dropped"
    else:
        (root / "abort").write_text("1")
        remove_queues(root)
        remove_checkpoint(root)
        asyncio.run(reopened_and_closed(root))
        assert [r.queue_offset for r in caplog.records if r.msg == events.QUEUE_OFFSET_REJECTED] == [  # type: ignore[attr-defined]
            queue_offset
        ]
    assert max(int(file.name) for file in (root / "consumequeue" / name).iterdir()) <= 20 * COUNT
    (jump,) = (f for f in damages(check(root)) if "a record has queue offset" in f.reason)
    assert jump.log_offset == found.log_offset


def test_broker_starts_though_the_store_time_of_a_delayed_message_is_absurd(root: Path) -> None:
    for path in log_files(root):
        data = path.read_bytes()
        for begin, end in record_places(path):
            if b"SCHEDULE_TOPIC_XXXX" in data[begin:end] and b"DELAY\x010" not in data[begin:end]:
                change(path, begin + 56, struct.pack(">q", 2**63 - 1))
    (root / "abort").write_text("1")
    remove_queues(root)
    remove_checkpoint(root)
    asyncio.run(reopened_and_closed(root))
    due = {tag for _, _, tag in UNIT.iter_unpack(queue_file(root, "SCHEDULE_TOPIC_XXXX", 2).read_bytes())}
    assert 2**63 - 1 in due


@pytest.mark.timeout(30)
def test_repair_leaves_out_a_stray_queue_file_with_an_absurd_name(original: Path, root: Path) -> None:
    for path in (queue_file(root), add_foreign_queue(root)):
        (path.parent / f"{10**17:020d}").write_bytes(FILLER + path.read_bytes()[20:])
    repair(root)
    assert content(root) == content(original)


@pytest.mark.timeout(30)
def test_a_filler_at_an_absurd_number_is_not_taken_for_that_of_a_sealed_record(root: Path) -> None:
    begin, _ = record_places(log_files(root)[-1])[-1]
    flip(log_files(root)[-1], begin + 100)
    path = queue_file(root)
    (path.parent / f"{10**17:020d}").write_bytes(FILLER.ljust(QUEUE_FILE_BYTES, b"\0"))
    repair(root, skips_damaged=True)
    assert int(queue_file(root, index=-1).name) <= 20 * COUNT
    assert check(root).is_clean


def test_entry_whose_record_would_end_behind_all_offsets_is_not_that_of_an_expired_one(root: Path) -> None:
    log_files(root)[0].unlink()
    path = queue_file(root, index=-1)
    ghost = root / "consumequeue" / "ghost" / "0"
    ghost.mkdir(parents=True)
    (ghost / f"{0:020d}").write_bytes(UNIT.pack(2**63 - 1, 100, 5).ljust(path.stat().st_size, b"\0"))
    assert "ghost/0: dropped, none of its 1 entries is true" in repair(root).changes


# Damage in the log.


def damage_body(root: Path, file: int = 1) -> int:
    """Flips a bit in the second record of a file; returns its log offset."""
    path = log_files(root)[file]
    at = decode_record(path.read_bytes(), 0).size
    flip(path, at + 100)
    return int(path.name) + at


def test_damage_in_the_middle_is_refused_and_nothing_changes(root: Path) -> None:
    damage_body(root)
    remove_one_queue(root)
    before = content(root)
    report = repair(root)
    assert report.is_refused
    assert [f.reason for f in report.findings.listed] == ["the checksum does not match"]
    assert content(root) == before
    assert sorted(p.name for p in root.iterdir()) == sorted(
        {name.split("/")[0] for name in before} | {"lock", "config"}
    )


def test_accepted_damage_leaves_a_filler_in_the_place_of_the_lost_message(root: Path) -> None:
    log_offset = damage_body(root)
    (found,) = damages(check(root))
    queues = content(root / "consumequeue")
    logs = content(root / "commitlog")
    report = repair(root, accepts_damage=True)
    assert not report.is_refused
    assert len(report.findings.listed) == 1
    assert content(root / "commitlog") == logs
    assert found.topic is not None
    assert found.queue_offset is not None
    name, at = divmod(found.queue_offset * 20, 400)
    path = f"{found.topic}/{found.queue_id}/{name * 400:020d}"
    expected = bytearray(queues[path])
    assert UNIT.unpack_from(expected, at)[0] == log_offset
    expected[at : at + 20] = FILLER
    assert content(root / "consumequeue") == {**queues, path: bytes(expected)}
    assert damages(check(root)) == [found]


def test_damage_in_the_last_file_comes_with_a_warning(root: Path) -> None:
    damage_body(root, -1)
    report = repair(root, accepts_damage=True)
    assert "a broker that starts here takes no messages until it is healed" in report.warnings[0]


@pytest.mark.parametrize("number", [0, 5, -2, -1])
async def test_given_up_damage_is_sealed_and_the_broker_takes_messages_again(
    tmp_path: Path, number: int
) -> None:
    """The last one is the newest of its queue: no other message gets its queue offset."""
    root = tmp_path / "store"
    await write_store(root, [record(b"%02d" % n + b"x" * 90, keys=f"k{n}") for n in range(40)])
    numbers = list(range(40))
    lost = numbers[number]
    files = log_files(root)
    log = b"".join(path.read_bytes() for path in files)
    at = log.index(b"%02dxxx" % lost)
    flip(files[at // LOG_FILE_BYTES], at % LOG_FILE_BYTES + 20)
    report = await asyncio.to_thread(repair, root, skips_damaged=True)
    assert not report.is_refused
    assert damages(check(root)) == []
    (copy,) = (root / "damaged").iterdir()
    assert copy.read_bytes()[88 + 20] == ord("x") ^ 1
    options = StoreOptions(root=root, **SIZES)
    clock = ManualClock()
    store = await MessageStore.open(options, disk=RealDisk(), clock=clock)
    assert not store.damaged_ranges
    placed = store.appender.append([record(b"40")], lambda _: None)
    clock.run_soon()
    assert placed.queue_offset == 40
    found = []
    for offset in range(41):
        result = store.reader.get("T", 0, offset, count_max=1)
        found += [int(r.body[:2]) for piece in result.slices for r in decode_records(piece)][:1]
    assert sorted(set(found)) == [n for n in range(41) if n != lost]
    await store.close()
    assert not (await asyncio.to_thread(repair, root, skips_damaged=True)).is_refused
    assert damages(check(root)) == []


@pytest.mark.parametrize("count", [2, 3])
def test_damaged_records_at_the_end_get_one_seal_and_a_second_repair_changes_nothing(
    root: Path, count: int
) -> None:
    path = log_files(root)[-1]
    places = record_places(path)
    log_end = int(path.name) + places[-1][1]
    for begin, _ in places[-count:]:
        flip(path, begin + 100)
    lost = path.read_bytes()[places[-count][0] : places[-1][1]]
    changes = repair(root, skips_damaged=True).changes
    seals = [line.partition(" are given up")[0] for line in changes if line.startswith("CommitLog")]
    assert seals == [f"CommitLog: bytes {int(path.name) + places[-count][0]} to {log_end}"]
    (copy,) = (root / "damaged").iterdir()
    assert copy.read_bytes() == lost
    report = check(root)
    assert damages(report) == []
    assert report.log_end == log_end
    for _ in range(2):
        assert repair(root, skips_damaged=True).changes == []

    async def read_end() -> int:
        store = await reopened(root)
        assert not store.damaged_ranges
        end = store.max_log_offset
        await store.close()
        return end

    assert asyncio.run(read_end()) == log_end


def test_a_repair_that_was_killed_behind_its_seals_keeps_the_numbers_when_it_is_run_again(
    original: Path, root: Path, tmp_path: Path
) -> None:
    path = log_files(root)[-1]
    flip(path, record_places(path)[-1][0] + 100)
    killed = Path(shutil.copytree(root, tmp_path / "killed"))
    repair(root, skips_damaged=True)
    shutil.copy(path, log_files(killed)[-1])
    repair(killed, skips_damaged=True)
    assert content(killed / "consumequeue") == content(root / "consumequeue")
    assert content(killed / "consumequeue") != content(original / "consumequeue")


@pytest.mark.parametrize(
    "size", [SEALED_BYTES_MIN, SEALED_BYTES_MIN + 1, 200, 1_048_576, 1_048_700, 3_000_000]
)
def test_a_seal_is_whole_records_of_exactly_its_size(size: int) -> None:
    sealed = seal(700, size, reaches_file_end=False, stored_at_ms=5)
    assert len(sealed) == size
    at = 0
    while at < size:
        found = check_record(sealed, at, log_offset=700 + at)
        assert found.outcome is RecordOutcome.OK
        assert found.sys_flag & 0xC == 0xC
        at += found.size


def test_missing_log_file_is_damage_in_the_middle(root: Path) -> None:
    log_files(root)[1].unlink()
    assert repair(root).is_refused
    assert not repair(root, accepts_damage=True).is_refused


def test_unfinished_tail_does_not_stop_the_repair(root: Path) -> None:
    path = log_files(root)[-1]
    end = len(path.read_bytes().rstrip(b"\0"))
    change(path, end, b"\0\0\1\0\xda\xa3\x20\xa7")
    (root / "abort").write_bytes(b"1")
    remove_queues(root)
    report = repair(root)
    assert not report.is_refused
    assert check(root).is_clean
    assert (root / "abort").exists()


def test_last_record_with_torn_properties_gets_no_entry(original: Path, root: Path) -> None:
    path = log_files(root)[-1]
    end = len(path.read_bytes().rstrip(b"\0"))
    change(path, end - 6, bytes(6))
    repair(root)
    assert not check(root).is_clean
    asyncio.run(reopened_and_closed(root))
    report = check(root)
    assert [f.as_dict() for f in damages(report)] == []


async def reopened_and_closed(root: Path) -> None:
    await (await reopened(root)).close()


# Facts that the log alone does not contain.


def test_queue_whose_records_all_expired_keeps_its_offsets(tmp_path: Path) -> None:
    root = tmp_path / "store"
    records = [record(b"old %d" % n, topic="Old") for n in range(45)] + some_records(60)
    asyncio.run(write_store(root, records))
    while decode_record(log_files(root)[0].read_bytes(), 0).topic == "Old":
        log_files(root)[0].unlink()
    asyncio.run(reopened_and_closed(root))
    old = content(root / "consumequeue" / "Old")
    assert check(root).is_clean
    remove_checkpoint(root)
    flip_entry(root)
    report = repair(root)
    assert not any("Old" in line for line in report.changes)
    kept = content(root / "consumequeue" / "Old")
    assert kept == {name: data for name, data in old.items() if name in kept}
    assert max(kept) == max(old)

    async def next_offset() -> int:
        store = await reopened(root)
        appended = store.appender.append([record(b"new", topic="Old")], lambda _: None)
        await store.close()
        return appended.queue_offset

    assert asyncio.run(next_offset()) == 45


def test_topic_that_was_made_again_gets_its_newest_life(tmp_path: Path) -> None:
    async def run() -> None:
        clock = ManualClock()
        store = await MessageStore.open(StoreOptions(root=tmp_path, **SIZES), disk=RealDisk(), clock=clock)
        for number in range(9):
            if number == 5:
                await store.deletions.drop(["T"])
            store.appender.append([record(b"%d" % number)], lambda _: None)
            clock.run_soon()
        await store.close()

    asyncio.run(run())
    before = content(tmp_path / "consumequeue")
    remove_queues(tmp_path)
    assert repair(tmp_path, queue_file_bytes=QUEUE_FILE_BYTES).warnings == []
    assert content(tmp_path / "consumequeue") == before
    # RocketMQ has no such file.
    for copy in (tmp_path / "config").glob("deletedTopics.json*"):
        copy.unlink()
    remove_queues(tmp_path)
    report = repair(tmp_path, queue_file_bytes=QUEUE_FILE_BYTES)
    assert report.warnings == ["T: a queue restarts after the topic was deleted"]
    assert content(tmp_path / "consumequeue") == before


# Refusals.


def test_store_in_use_is_refused(root: Path) -> None:
    lock = RealDisk().lock(root / "lock")
    before = content(root)
    with pytest.raises(StoreLocked):
        repair(root)
    lock.release()
    assert content(root) == before


def test_store_of_unknown_form_is_refused(root: Path) -> None:
    (root / "batchconsumequeue").mkdir()
    (root / "batchconsumequeue" / "T").write_bytes(b"")
    with pytest.raises(StoreError, match="only known to RocketMQ"):
        repair(root)
    shutil.rmtree(root / "batchconsumequeue")
    shutil.rmtree(root / "commitlog")
    with pytest.raises(StoreError, match="is not a store"):
        repair(root)
    (root / "commitlog").mkdir()
    with pytest.raises(StoreError, match="holds no log files"):
        repair(root)


class FullDisk(RealDisk):
    """A disk on which no file can be created."""

    def create(self, path: Path, size: int, *, sparse: bool = False) -> object:  # type: ignore[override]
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


def test_full_disk_leaves_the_old_files(root: Path) -> None:
    flip_entry(root)
    before = content(root)
    with pytest.raises(OSError, match="No space left"):
        repair_store(RepairOptions(inspect=InspectOptions(root=root)), FullDisk())
    assert content(root) == before


# Kills.

KILLED = """
import os, signal, sys
from pathlib import Path
from tandemmq.runtime import disk
from tandemmq.runtime.disk import RealDisk
from tandemmq.store.damage import SEALED_BYTES_MIN, seal
from tandemmq.store.inspect import InspectOptions, RepairOptions, repair_store

root, due = Path(sys.argv[1]), int(sys.argv[2])
count = 0

def step(*_):
    global count
    count += 1
    if count == due:
        os.kill(os.getpid(), signal.SIGKILL)

sync_directory = disk.sync_directory
def stepping(path):
    step()
    sync_directory(path)
    step()
disk.sync_directory = stepping
if sys.argv[3] == "no exchange":
    disk._exchange = lambda one, other: False
repair_store(RepairOptions(inspect=InspectOptions(root=root)), RealDisk(), step)
print("done")
"""


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("way", ["exchange", "no exchange"])
def test_kill_anywhere_leaves_old_or_new_files_and_a_rerun_finishes(
    original: Path, tmp_path: Path, way: str
) -> None:
    faulty = Path(shutil.copytree(original, tmp_path / "faulty"))
    for fault in (remove_one_queue, flip_entry, flip_index, absurd_checkpoint):
        fault(faulty)
    old = [content(faulty / "consumequeue"), content(faulty / "index")]
    new = [content(original / "consumequeue"), content(original / "index")]
    seen = set()
    for due in range(1, 200, 3):
        root = Path(shutil.copytree(faulty, tmp_path / f"killed{due}"))
        command = [sys.executable, "-c", KILLED, str(root), str(due), way]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.stdout == "done\n":
            assert content(root) == content(original)
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        state = [content(root / "consumequeue"), content(root / "index")]
        if way == "exchange":
            assert state[0] in (old[0], new[0])
            assert state[1] in (old[1], new[1])
        seen.add((state[0] == new[0], state[1] == new[1]))
        assert content(root / "commitlog") == content(original / "commitlog")
        repair(root)
        assert content(root) == content(original)
        assert not list(root.glob("*.repair*"))
        shutil.rmtree(root)
    else:
        pytest.fail("the repair never came to its end")
    assert {(False, False), (True, True)} <= seen
