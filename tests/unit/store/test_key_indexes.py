"""The key index: file format, chains, rolling, crashes (spec store 8)."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from store_rig import ROOT, SMALL, STORE_HOST, Rig, bodies, options, record, stored

from sim.memory import ManualClock, MemoryDisk, NoFault
from sim.workload import make_batch
from tandemmq.protocol.hashes import key_hash
from tandemmq.store import MessageStore, key_indexes, reader
from tandemmq.store.appender import Unit
from tandemmq.store.key_index import KeyIndex, made_at, new_name
from tandemmq.store.key_indexes import KeyIndexes
from tandemmq.store.options import StorePaths

ALWAYS = (0, 2**62)
INDEX = ROOT / "index"


def found(store: MessageStore, key: str, topic: str = "T") -> list[bytes]:
    return [stored(store, offset).body for offset in store.query_keys(topic, key, 64, *ALWAYS)]


async def test_worked_example_is_written_byte_for_byte() -> None:
    """spec store 3.1: default sizes, header, both slots and both entries."""
    rig = Rig(key_index_slot_count=5_000_000, key_index_entry_count=20_000_000, store_host=STORE_HOST)
    rig.clock = ManualClock(now_ms=1_700_000_000_123)
    store = await rig.open()
    unique_key = "0A0000011F9018B4AAC2000000000001"
    rig.put(store, record(topic="TopicTest", queue_id=1, keys="k1", unique_key=unique_key))
    await store.close()
    (name,) = rig.disk.list(INDEX)
    assert len(name) == 17
    assert name.isdigit()
    file = rig.disk.open(INDEX / name)
    assert file.size == 420_000_040
    header = "0000018bcfe5687b 0000018bcfe5687b 0000000000000000 0000000000000000 00000002 00000003"
    assert file.pread(0, 40) == bytes.fromhex(header)
    assert file.pread(13_185_412, 4) == struct.pack(">i", 1)
    assert file.pread(10_984_136, 4) == struct.pack(">i", 2)
    assert file.pread(20_000_060, 20) == bytes.fromhex("05dbe217 0000000000000000 00000000 00000000")
    assert file.pread(20_000_080, 20) == bytes.fromhex("0029e6a8 0000000000000000 00000000 00000000")


async def test_records_are_found_by_each_of_their_keys() -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(
        store,
        record(b"a", keys="red  green", unique_key="U1"),
        record(b"b", keys="green"),
        record(b"c", keys="green", topic="other"),
        record(b"none"),
    )
    assert found(store, "green") == [b"a", b"b"]
    assert found(store, "red") == found(store, "U1") == [b"a"]
    assert found(store, "green", "other") == [b"c"]
    assert found(store, "") == found(store, "absent") == []
    await store.close()


async def test_keys_of_batches_that_are_written_together_are_found_by_their_own_topics() -> None:
    rig = Rig()
    store = await rig.open()
    for topic, keys in (("T", ""), ("other", ""), ("T", "both"), ("third", "both")):
        messages = [record(b"%d" % n, topic=topic, keys=keys, unique_key=f"{keys}{n}") for n in range(3)]
        batch = make_batch(messages)
        assert batch is not None
        store.appender.append_batch(batch, lambda _: None)
    rig.clock.run_soon()
    for topic, key, count in (("T", "1", 1), ("other", "1", 1), ("third", "1", 0), ("other", "both", 0)):
        assert found(store, key, topic) == [b"1", b"1"][:count]
    for topic in ("T", "third"):
        assert found(store, "both1", topic) == [b"1"]
        assert found(store, "both", topic) == [b"0", b"1", b"2"]
    await store.close()


async def test_a_query_gives_the_newest_records_of_its_time_range() -> None:
    rig = Rig()
    store = await rig.open()
    start = rig.clock.now_ms()
    for n in range(10):
        rig.put(store, record(b"%d" % n, keys="k"))
        await rig.clock.pass_time(10)
    offsets = store.query_keys("T", "k", 64, *ALWAYS)
    assert offsets == sorted(offsets)
    assert len(offsets) == 10
    assert store.query_keys("T", "k", 3, *ALWAYS) == offsets[-3:]
    assert store.query_keys("T", "k", 64, start + 20_000, start + 40_000) == offsets[2:5]
    assert store.query_keys("T", "k", 64, 0, start - 1) == []
    await store.close()


async def test_half_messages_are_indexed_and_rollbacks_are_not() -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(b"half", keys="k", sys_flag=0x4), record(b"rolled", keys="k", sys_flag=0xC))
    assert found(store, "k") == [b"half"]
    await store.close()


async def test_a_full_file_is_followed_by_a_new_one() -> None:
    rig = Rig()
    store = await rig.open()
    for n in range(200):
        rig.put(store, record(b"%d" % n, keys=f"k{n % 50}"))
        if n % 40 == 0:
            await rig.clock.pass_time(1)
    assert found(store, "k7") == [b"7", b"57", b"107", b"157"]
    names = rig.disk.list(INDEX)
    assert len(names) == 4
    await store.close()
    store = await rig.open()
    assert found(store, "k7") == [b"7", b"57", b"107", b"157"]
    rig.put(store, record(b"new", keys="k7"))
    assert found(store, "k7")[-1] == b"new"
    assert rig.disk.list(INDEX)[: len(names)] == names
    await store.close()


async def test_collected_records_with_many_bytes_are_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_indexes, "PENDING_BYTES_MAX", 3_000)
    rig = Rig()
    store = await rig.open()
    made = []
    for n in range(3):
        rig.put(store, record(bytes(1_000), keys=f"k{n}"))
        made.append(len(rig.disk.list(INDEX)))
    assert made == [0, 0, 1]
    await store.close()


@pytest.mark.parametrize("dies", ["kill", "power cut"])
@pytest.mark.parametrize("flushed", [0, 5, 20, 100])
async def test_keys_survive_a_crash(dies: str, flushed: int) -> None:
    rig = Rig(flush_interval_ms=100, flush_least_pages=0)
    store = await rig.open()
    for n in range(flushed):
        rig.put(store, record(b"%d" % n, keys=f"k{n % 10}", unique_key=f"u{n}"))
    await rig.clock.pass_time(61)
    for n in range(flushed, flushed + 30):
        rig.put(store, record(b"%d" % n, keys=f"k{n % 10}", unique_key=f"u{n}"))
    await rig.clock.pass_time(5)
    expected = bodies(store)
    if dies == "kill":
        rig.kill()
    else:
        rig.power_cut()
    store = await rig.open()
    assert bodies(store) == expected
    for n in range(flushed + 30):
        assert found(store, f"u{n}") == [b"%d" % n]
    assert found(store, "k3") == [body for body in expected if int(body) % 10 == 3]
    await store.close()


async def test_keys_of_records_that_the_log_lost_are_forgotten() -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(store, *(record(b"%02d" % n + b"x" * 100, keys=f"k{n}") for n in range(20)))
    size = store.max_log_offset // 20
    await store.close()
    rig.note_durable(10 * size)
    rig.disk.write_atomically(ROOT / "abort", b"1")
    file = rig.disk.open(ROOT / "commitlog" / ("0" * 20))
    file.pwrite(10 * size + 100, (b"####",))
    store = await rig.open()
    assert store.max_log_offset == 10 * size
    assert store.query_keys("T", "k9", 8, *ALWAYS) == [9 * size]
    assert store.query_keys("T", "k10", 8, *ALWAYS) == []
    rig.put(store, record(b"again", keys="k10"))
    assert found(store, "k10") == [b"again"]
    await store.close()


async def test_a_file_of_another_size_is_built_again() -> None:
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(b"old", keys="k"))
    await store.close()
    store = await rig.open(key_index_slot_count=128)
    rig.put(store, record(b"new", keys="k"))
    assert found(store, "k") == [b"old", b"new"]
    await store.close()


class NoIndex(NoFault):
    """A disk that accepts no index file."""

    def on_create(self, path: Path, size: int) -> None:
        if path.parent == INDEX:
            raise OSError(errno.ENOSPC, "no room")


class NoIndexWrite(NoFault):
    """A disk that creates index files and accepts no writes to them."""

    def on_write(self, path: Path, offset: int, size: int) -> int:
        return 0 if path.parent == INDEX else size


@pytest.mark.parametrize("is_killed", [False, True])
async def test_keys_that_the_disk_did_not_take_are_found_after_the_next_start(is_killed: bool) -> None:
    """Only indexing ends until then; the files are so small that the log rolls meanwhile."""
    rig = Rig(key_index_entry_count=4, commit_log_file_bytes=1024)
    store = await rig.open()
    rig.put(store, record(b"a", keys="k"))
    await rig.clock.pass_time(70)
    rig.disk.fault = NoIndex()
    for n in range(20):
        rig.put(store, record(b"%d" % n + b"x" * 150, keys=f"k k{n}"))
        await rig.clock.pass_time(5)
    assert len(found(store, "k")) < 20
    assert len(bodies(store)) == 21
    assert rig.fatal == []
    if is_killed:
        rig.kill()
    else:
        await store.close()
    rig.disk.fault = NoFault()
    store = await rig.open()
    assert found(store, "k") == bodies(store)
    rig.put(store, record(b"last", keys="k"))
    assert found(store, "k")[-2:] == bodies(store)[-2:]
    await store.close()


async def test_keys_that_fill_a_file_while_it_is_flushed_are_found() -> None:
    rig = Rig(key_index_entry_count=8)
    store = await rig.open()
    rig.put(store, record(b"before", keys="before"))
    offload = rig.disk.offload
    is_filled = False

    async def fill_behind(fn: Callable[..., object], *args: object) -> object:
        nonlocal is_filled
        result = await offload(fn, *args)
        if not is_filled and getattr(fn, "__name__", "") == "write_and_sync":
            is_filled = True
            rig.put(store, *(record(b"%d" % n, keys=f"k{n}") for n in range(12)))
            assert found(store, "k0") == [b"0"]
        return result

    rig.disk.offload = fill_behind  # type: ignore[method-assign,assignment]
    await rig.clock.pass_time(70)
    assert is_filled
    assert len(rig.disk.list(INDEX)) > 1
    for _ in range(2):
        assert [found(store, f"k{n}") for n in range(12)] == [[b"%d" % n] for n in range(12)]
        assert found(store, "before") == [b"before"]
        await rig.clock.pass_time(70)
    assert rig.fatal == []
    await store.close()
    store = await rig.open()
    assert [found(store, f"k{n}") for n in range(12)] == [[b"%d" % n] for n in range(12)]
    await store.close()


async def test_a_file_without_keys_does_not_stand_before_the_one_that_has_them() -> None:
    """The file was created, and then the disk was full: queries and cuts search the older files."""
    disk, clock, at_ms = MemoryDisk(), ManualClock(), 1_700_000_000_000

    def loaded() -> KeyIndexes:
        indexes = KeyIndexes(options(), StorePaths(options()), disk=disk, clock=clock)
        indexes.load(has_abort=False)
        return indexes

    def put(indexes: KeyIndexes, *numbers: int) -> None:
        hashes = np.array([key_hash("T", f"k{n}") for n in numbers])
        indexes.add_hashes(hashes, np.array(numbers) * 100, np.full(len(numbers), at_ms))

    def found_of(indexes: KeyIndexes, n: int) -> list[int]:
        return indexes.query("T", f"k{n}", 9, at_ms, at_ms + 1000)

    indexes = loaded()
    put(indexes, *range(63))
    await indexes.flush()
    disk.fault = NoIndexWrite()
    put(indexes, 63)
    assert indexes.is_broken
    indexes.close()
    disk.fault = NoFault()
    assert len(disk.list(INDEX)) == 2
    indexes = loaded()
    assert [found_of(indexes, n) for n in (0, 62, 63)] == [[0], [6200], []]
    indexes.cut(3000)
    assert indexes.indexed_to == 2900
    assert [found_of(indexes, n) for n in (29, 30, 62)] == [[2900], [], []]
    put(indexes, 30)
    indexes.cut(50)
    assert [found_of(indexes, n) for n in (0, 1, 30)] == [[0], [], []]
    indexes.cut(0)
    assert indexes.indexed_to == -1
    put(indexes, 0)
    assert found_of(indexes, 0) == [0]
    indexes.close()


@pytest.mark.parametrize(
    "name", ["old-index-2024.gz", "99999999999999999", "20241332250000000", "99991231235959999"]
)
async def test_a_name_that_is_no_time_is_left_alone(name: str) -> None:
    rig = Rig(key_index_entry_count=4)
    rig.disk.write_atomically(INDEX / name, b"not ours")
    for count in (10, 20):
        store = await rig.open()
        rig.put(store, *(record(b"x", keys="k") for _ in range(10)))
        assert len(found(store, "k")) == count
        await store.close()
    assert rig.fatal == []
    assert rig.disk.read_bytes(INDEX / name) == b"not ours"


def test_a_new_file_is_named_behind_all_others() -> None:
    now_ms = 1_700_000_000_123
    now = new_name(now_ms, [])
    assert new_name(now_ms, ["20010101000000000"]) == now
    assert new_name(now_ms, [now]) == now[:14] + "124"
    assert new_name(now_ms, ["20991231235959999", "junk", now]) == "21000101000000000"
    made = made_at(now)
    assert made is not None
    assert round(made.timestamp() * 1000) == now_ms


async def test_indexing_can_be_switched_off() -> None:
    rig = Rig(key_index_enable=False)
    store = await rig.open()
    rig.put(store, record(keys="k"))
    assert store.query_keys("T", "k", 8, *ALWAYS) == []
    await store.close()
    assert not rig.disk.exists(INDEX)


def put_one_by_one(keys: list[int], slot_count: int) -> Iterator[tuple[int, int]]:
    """Returns (previous, number) of each key by the plain rule of the format."""
    slots: dict[int, int] = {}
    for number, key in enumerate(keys, 1):
        yield slots.get(key % slot_count, 0), number
        slots[key % slot_count] = number


def test_putting_many_keys_links_the_same_chains_as_one_by_one() -> None:
    keys = [key_hash("T", f"k{n % 17}") for n in range(60)]
    disk = MemoryDisk()
    index = KeyIndex(Path("/i"), 7, 100, disk)
    index.create(None)
    done = 0
    for count in (1, 2, 5, 30, 22):
        part = np.array(keys[done : done + count], dtype=np.int64)
        offsets = np.arange(done, done + count, dtype=np.int64) * 10
        assert index.put_many(part, offsets, np.full(count, 1_000_000)) == count
        done += count
    entries = [struct.unpack(">iqii", index.file.pread(40 + 28 + 20 * n, 20)) for n in range(1, 61)]
    expected = [
        (key, 10 * (number - 1), 0, previous)
        for key, (previous, number) in zip(keys, put_one_by_one(keys, 7), strict=True)
    ]
    assert entries == expected
    assert index.header.used_slot_count == len({key % 7 for key in keys})
    before = {n: index.find(key_hash("T", f"k{n}"), 64, *ALWAYS) for n in range(17)}
    assert index.rebuild_slots()
    assert {n: index.find(key_hash("T", f"k{n}"), 64, *ALWAYS) for n in range(17)} == before


def test_default_sizes_are_those_of_rocketmq() -> None:
    assert SMALL["key_index_slot_count"] == 64
    assert KeyIndex(Path("/i"), 5_000_000, 20_000_000, MemoryDisk()).size_bytes == 420_000_040


# Tags.


async def test_records_are_found_by_their_tags_in_the_queues() -> None:
    """No index of tags is kept: a query reads the queues, of any release and of RocketMQ."""
    rig = Rig(key_index_enable=False)
    store = await rig.open()
    for number in range(6):
        rig.clock.advance(1)
        rig.put(
            store,
            record(b"r%d" % number, queue_id=number % 2, tags="red"),
            record(b"g%d" % number, tags="green"),
            record(b"o%d" % number, tags="red", topic="other"),
        )
    first_ms = stored(store, store.reader.query_tags("T", "red", 9, *ALWAYS)[0][0]).stored_at_ms

    def tagged(tags: str, count_max: int = 9, begin_ms: int = 0, end_ms: int = ALWAYS[1]) -> list[bytes]:
        offsets, is_complete = store.reader.query_tags("T", tags, count_max, begin_ms, end_ms)
        assert is_complete
        return [stored(store, offset).body for offset in offsets]

    assert tagged("red") == [b"r%d" % number for number in range(6)]
    assert tagged("red", 2) == [b"r4", b"r5"]
    assert tagged("red", 9, first_ms + 1_000, first_ms + 2_000) == [b"r1", b"r2"]
    assert tagged("blue") == []
    assert store.reader.query_tags("absent", "red", 9, *ALWAYS) == ([], True)
    await store.close()


async def test_a_query_by_tags_is_bounded_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "TAG_SCAN_COUNT_MAX", 8)
    monkeypatch.setattr(reader, "TAG_SCAN_BLOCK", 3)
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(b"old", tags="red"))
    rig.put(store, *[record(b"%d" % number, tags="green") for number in range(8)])
    assert store.reader.query_tags("T", "red", 9, *ALWAYS) == ([], False)
    assert len(store.reader.query_tags("T", "green", 9, *ALWAYS)[0]) == 8
    offsets, is_complete = store.reader.query_tags("T", "green", 5, *ALWAYS)
    assert [stored(store, offset).body for offset in offsets] == [b"3", b"4", b"5", b"6", b"7"]
    assert is_complete
    rig.put(store, record(b"new", tags="red"))
    assert len(store.reader.query_tags("T", "red", 1, *ALWAYS)[0]) == 1
    await store.close()


async def test_entries_of_tags_that_rocketmq_wrote_hide_no_key_behind_them() -> None:
    """RocketMQ 5.4 and later index the tags of the last record, too; the next start continues the index
    there.
    """
    disk, clock = MemoryDisk(), ManualClock()

    def loaded() -> KeyIndexes:
        indexes = KeyIndexes(options(), StorePaths(options()), disk=disk, clock=clock)
        indexes.load(has_abort=False)
        return indexes

    def unit(number: int) -> Unit:
        return None, number * 100, 100, record(unique_key=f"U{number}", tags="red"), 1_700_000_000_000

    indexes = loaded()
    indexes.add([unit(1)], 1)
    indexes.build()
    time = np.array([1_700_000_000_000])
    indexes.add_hashes(np.array([key_hash("T", "T#red")]), np.array([100]), time)
    await indexes.flush()
    indexes.close()
    for fill in ("units", "hashes"):
        indexes = loaded()
        assert indexes._indexed_key_count == 2
        if fill == "units":
            indexes.add([unit(1), unit(2)], 2)
        else:
            hashes = np.array([key_hash("T", f"U{number}") for number in (2, 3)])
            indexes.add_hashes(hashes, np.array([200, 300]), np.repeat(time, 2))
        assert indexes.query("T", "U2", 9, *ALWAYS) == [200]
        indexes.close()
