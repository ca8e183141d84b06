"""Reading queues: statuses, limits, filters, times, ids (spec store 13)."""

from __future__ import annotations

import asyncio
import copy
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from store_rig import ROOT, Rig, bodies, record, stored

from tandemmq.protocol.hashes import tag_hash
from tandemmq.protocol.record import decode_records
from tandemmq.protocol.sql92 import compile_filter
from tandemmq.store import BrokerRole, GetResult, GetStatus, MessageStore, reader
from tandemmq.store.consume_queue import FILLER, UNIT, ConsumeQueue
from tandemmq.store.damage import DamagedRange
from tandemmq.store.outcomes import RecordFilter
from tandemmq.store.reader import Reader
from tandemmq.units import MIB

BIG: dict[str, Any] = {"commit_log_file_bytes": MIB, "consume_queue_file_bytes": 6000}


def read(result: GetResult) -> list[bytes]:
    return [r.body for piece in result.slices for r in decode_records(piece)]


async def filled(rig: Rig, count: int, **changes: Any) -> MessageStore:
    store = await rig.open(**changes)
    rig.put(store, *(record(b"%03d" % n) for n in range(count)))
    return store


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (5, GetStatus.OFFSET_OVERFLOW_ONE, 5),
        (6, GetStatus.OFFSET_OVERFLOW_BADLY, 5),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (4, GetStatus.FOUND, 5),
    ],
)
async def test_an_offset_outside_the_queue_is_named_and_corrected(
    offset: int, status: GetStatus, next_offset: int
) -> None:
    store = await filled(Rig(), 5)
    result = store.reader.get("T", 0, offset, count_max=32)
    assert (result.status, result.next_offset) == (status, next_offset)
    assert (result.min_offset, result.max_offset) == (0, 5)
    await store.close()


@pytest.mark.parametrize("offset", [0, 7])
async def test_a_queue_that_nobody_wrote_to_is_empty(offset: int) -> None:
    rig = Rig()
    store = await filled(rig, 1)
    result = store.reader.get("other", 3, offset, count_max=32)
    assert (result.status, result.next_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    await store.close()


async def test_a_slave_leaves_the_correction_of_offsets_to_its_master() -> None:
    rig = Rig()
    store = await filled(rig, 5)
    await store.close()
    store = await rig.open(role=BrokerRole.SLAVE)
    assert store.reader.get("T", 0, 9, count_max=1).next_offset == 9
    assert store.reader.get("none", 0, 9, count_max=1).next_offset == 9
    await store.close()
    store = await rig.open(role=BrokerRole.SLAVE, offset_check_in_slave=True)
    assert store.reader.get("T", 0, 9, count_max=1).next_offset == 5
    await store.close()


async def test_neighbours_in_the_log_share_one_slice() -> None:
    rig = Rig()
    store = await rig.open(**BIG)
    rig.put(store, record(b"a"), record(b"b"), record(b"other", queue_id=1), record(b"c"))
    result = store.reader.get("T", 0, 0, count_max=32)
    assert [len(list(decode_records(piece))) for piece in result.slices] == [2, 1]
    assert read(result) == [b"a", b"b", b"c"]
    assert result.bytes == sum(map(len, result.slices))
    await store.close()


async def test_slices_never_reach_over_a_file_end() -> None:
    rig = Rig()
    store = await rig.open(commit_log_file_bytes=1024, consume_queue_file_bytes=6000)
    rig.put(store, *(record(b"x" * 300) for _ in range(8)))
    result = store.reader.get("T", 0, 0, count_max=32)
    assert read(result) == [b"x" * 300] * 8
    await store.close()


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"count_max": 3}, 3),
        ({"count_max": 100}, 32),
        ({"count_max": 32, "bytes_max": 300}, 3),
        ({"count_max": 32, "bytes_max": 1}, 1),
        ({"count_max": 0}, 1),
    ],
)
async def test_a_get_stops_at_each_limit(limits: dict[str, int], count: int) -> None:
    store = await filled(Rig(), 50, **BIG)
    result = store.reader.get("T", 0, 0, **limits)
    assert (result.status, result.count, result.next_offset) == (GetStatus.FOUND, count, count)
    await store.close()


async def test_a_record_is_far_beyond_the_share_of_memory() -> None:
    rig = Rig(memory_bytes=1_000, access_message_in_memory_ratio=40, **BIG)
    store = await filled(rig, 20)
    distances = [store.max_log_offset - entry[0] for entry in store.queue_entries("T", 0, 0, 20)]
    assert distances[0] > 400 > distances[-1]
    assert [store.reader.is_far("T", 0, n) for n in range(20)] == [distance > 400 for distance in distances]
    assert not any(
        (store.reader.is_far("T", 0, -1), store.reader.is_far("T", 0, 20), store.reader.is_far("other", 0, 0))
    )
    await store.close()


async def test_records_far_behind_the_end_are_read_in_smaller_portions() -> None:
    """The in-memory estimate of spec store 13.1, with an injected memory size."""
    store = await filled(Rig(), 50, **BIG, memory_bytes=1000)
    result = store.reader.get("T", 0, 0, count_max=32)
    assert (result.count, result.suggest_slave) == (8, True)
    assert result.lag_bytes > 400
    near = store.reader.get("T", 0, 48, count_max=32)
    assert (near.count, near.suggest_slave) == (2, False)
    await store.close()


async def test_one_get_ends_at_the_end_of_its_queue_file() -> None:
    store = await filled(Rig(), 25, commit_log_file_bytes=MIB, consume_queue_file_bytes=200)
    assert [store.reader.get("T", 0, at, count_max=32).next_offset for at in (0, 5, 10, 20)] == [
        10,
        10,
        20,
        25,
    ]
    await store.close()


async def test_tags_are_filtered_by_their_hash() -> None:
    rig = Rig()
    store = await rig.open(**BIG)
    rig.put(store, *(record(b"%d" % n, tags="AB"[n % 2]) for n in range(6)), record(b"untagged"))
    wanted = frozenset({tag_hash("B")})
    result = store.reader.get("T", 0, 0, count_max=32, tag_hashes=wanted)
    assert (result.status, read(result), result.next_offset) == (GetStatus.FOUND, [b"1", b"3", b"5"], 7)
    none = store.reader.get("T", 0, 0, count_max=32, tag_hashes=frozenset({12345}))
    assert (none.status, none.next_offset, none.count) == (GetStatus.NO_MATCHED_MESSAGE, 7, 0)
    everything = store.reader.get(
        "T", 0, 0, count_max=32, tag_hashes=frozenset({tag_hash("A"), tag_hash("B"), 0})
    )
    assert everything.count == 7
    await store.close()


async def test_a_negative_tag_hash_matches() -> None:
    tags = next(f"tag-{n}" for n in range(10_000) if tag_hash(f"tag-{n}") < 0)
    rig = Rig()
    store = await rig.open()
    rig.put(store, record(tags=tags))
    assert store.reader.get("T", 0, 0, count_max=1, tag_hashes=frozenset({tag_hash(tags)})).count == 1
    await store.close()


async def test_a_filter_that_matches_little_scans_a_bounded_stretch() -> None:
    """16,000 bytes of entries, which is 800 (spec store 13.1 step 1)."""
    rig = Rig()
    store = await rig.open(commit_log_file_bytes=MIB, consume_queue_file_bytes=60_000)
    rig.put(store, *(record() for _ in range(1000)))
    result = store.reader.get("T", 0, 0, count_max=32, tag_hashes=frozenset({1}))
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 800)
    result = store.reader.get("T", 0, 0, count_max=900, tag_hashes=frozenset({1}))
    assert result.next_offset == 900
    await store.close()


async def test_a_filter_scans_a_bounded_stretch_whatever_count_a_peer_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader, "BULK_COUNT_MAX", 850)
    rig = Rig()
    store = await rig.open(commit_log_file_bytes=MIB, consume_queue_file_bytes=60_000)
    rig.put(store, *(record(tags="b") for _ in range(1000)))
    compiled = compile_filter("TAGS = 'a'")
    record_filter = RecordFilter(compiled.matches_properties, 1_000, compiled.tag_hashes)
    for count_max, next_offset in ((1, 800), (840, 840), (2**31 - 1, 850)):
        result = store.reader.get("T", 0, 0, count_max=count_max, record_filter=record_filter, is_bulk=True)
        assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, next_offset)
    await store.close()


async def test_entries_are_the_same_from_memory_and_from_files() -> None:
    rig = Rig()
    store = await filled(rig, 4000, commit_log_file_bytes=MIB, consume_queue_file_bytes=6000)
    everything = bodies(store)
    assert everything == [b"%03d" % n for n in range(4000)]
    await store.close()
    store = await rig.open(commit_log_file_bytes=MIB, consume_queue_file_bytes=6000)
    assert bodies(store) == everything
    rig.put(store, record(b"new"))
    assert bodies(store) == [*everything, b"new"]
    await store.close()


async def test_a_record_is_read_by_its_log_offset_only_where_one_begins() -> None:
    rig = Rig()
    store = await filled(rig, 3)
    second = store.reader.get("T", 0, 1, count_max=1).slices[0]
    size = len(second)
    assert bytes(store.read_record(size) or b"") == bytes(second)
    for offset in (-1, 1, size - 1, size + 1, store.max_log_offset, 10**12):
        assert store.read_record(offset) is None
    await store.close()


async def test_a_record_that_another_one_carries_is_none_of_the_log() -> None:
    rig = Rig()
    store = await filled(rig, 1, **BIG)
    whole = bytes(store.reader.get("T", 0, 0, count_max=1).slices[0])
    rig.put(store, record(whole))
    at = store.queue_entries("T", 0, 1, 1)[0][0]
    inner = at + bytes(store.log.valid_view(at, MIB)).index(whole)
    assert bytes(store.read_record(at) or b"").count(whole) == 1
    assert store.read_record(inner) is None
    await store.close()


async def test_offset_by_time_finds_the_first_and_the_last_of_equal_times() -> None:
    """spec store 13.2."""
    rig = Rig()
    store = await rig.open(**BIG)
    start = rig.clock.now_ms()
    for _ in range(3):
        rig.put(store, record(), record())
        await rig.clock.pass_time(10)
    assert [store.reader.stored_at("T", 0, n) - start for n in range(6)] == [
        0,
        0,
        10_000,
        10_000,
        20_000,
        20_000,
    ]
    lower = {-1: 0, 0: 0, 1: 2, 10_000: 2, 10_001: 4, 20_000: 4, 20_001: 6}
    upper = {-1: 0, 0: 1, 1: 1, 10_000: 3, 19_999: 3, 20_000: 5, 99_999: 5}
    assert {t: store.reader.offset_by_time("T", 0, start + t) for t in lower} == lower
    assert {t: store.reader.offset_by_time("T", 0, start + t, upper=True) for t in upper} == upper
    assert store.reader.earliest_stored_at("T", 0) == start
    await store.close()


async def test_offset_beyond_finds_the_first_record_that_begins_after_a_log_offset() -> None:
    store = await filled(Rig(), 4)
    begins = [place[0] for n in range(4) if (place := store.reader.find_record("T", 0, n)) is not None]
    assert [store.reader.offset_beyond("T", 0, begin - 1) for begin in begins] == [0, 1, 2, 3]
    assert [store.reader.offset_beyond("T", 0, begin) for begin in begins] == [1, 2, 3, 4]
    assert store.reader.offset_beyond("X", 0, 0) == 0
    await store.close()


async def test_times_of_what_is_not_there_are_unknown() -> None:
    store = await filled(Rig(), 1)
    assert (
        store.reader.stored_at("T", 0, 1)
        == store.reader.stored_at("T", 0, -1)
        == store.reader.stored_at("X", 0, 0)
        == -1
    )
    assert store.reader.earliest_stored_at("X", 0) == -1
    assert store.reader.offset_by_time("X", 0, 0) == store.queue_min("X", 0) == store.queue_max("X", 0) == 0
    await store.close()


async def test_store_times_of_records_from_ipv6_producers_are_read() -> None:
    rig = Rig()
    store = await rig.open()
    new = record()
    new.born_host = bytes(16) + b"\x00\x00\x00\x50"
    rig.put(store, new)
    assert store.reader.stored_at("T", 0, 0) == rig.clock.now_ms() == stored(store, 0).stored_at_ms
    await store.close()


async def test_listeners_hear_which_queues_grew() -> None:
    rig = Rig()
    store = await rig.open()
    heard: list[dict[tuple[str, int], int]] = []
    store.dispatcher.on_dispatch(lambda changed: heard.append(dict(changed)))
    rig.put(store, record(), record(), record(topic="U", queue_id=2))
    assert heard == [{("T", 0): 2, ("U", 2): 1}]
    await store.close()


async def test_a_dropped_topic_begins_again_at_zero() -> None:
    rig = Rig()
    store = await filled(rig, 5)
    await rig.clock.pass_time(2)
    old = store.reader.get("T", 0, 0, count_max=1)
    await store.deletions.drop(["T"])
    assert store.queue_keys() == ()
    assert read(old) == [b"000"]
    rig.put(store, record(b"again"))
    assert bodies(store) == [b"again"]
    await store.close()
    store = await rig.open()
    assert bodies(store) == [b"again"]
    await store.close()


async def test_log_view_gives_every_written_byte_once() -> None:
    rig = Rig()
    store = await rig.open(commit_log_file_bytes=1024)
    rig.put(store, *(record(b"x" * 200) for _ in range(10)))
    at = 0
    pieces = []
    while piece := bytes(store.log.valid_view(at, 100)):
        pieces.append(piece)
        at += len(piece)
    assert at == store.max_log_offset
    assert all(len(piece) <= 100 for piece in pieces)
    assert bytes(store.log.valid_view(-1, 10)) == b""
    await store.close()


@pytest.mark.parametrize("shown", [1, 5, 31])
async def test_a_get_by_tags_ends_before_the_record_with_which_the_hidden_ones_begin(shown: int) -> None:
    rig = Rig()
    store = await rig.open(**BIG)
    rig.put(store, *(record(b"%d" % n, tags="a") for n in range(shown + 1)))
    entry = store.reader._queues.table["T", 0].entry(shown)
    assert entry is not None
    store.reader.limit = entry[0]
    got = store.reader.get("T", 0, 0, count_max=100, bytes_max=MIB, tag_hashes=frozenset([tag_hash("a")]))
    assert (got.next_offset, got.count) == (shown, shown)
    await store.close()


class EachEntry(Reader):
    """A reader that examines each entry, even where all are ordinary."""

    def _ordinary(self, *_: object) -> None:
        return None


def seen(reader: Reader, offset: int, **asked: Any) -> tuple[Any, ...]:
    """Returns all results of a get, and the entries it reports as wrong."""
    doubted: list[int] = []

    def doubt(_queue: ConsumeQueue, queue_offset: int) -> bool:
        doubted.append(queue_offset)
        return queue_offset % 2 == 0

    reader._on_wrong_entry = doubt
    got = reader.get("T", 0, offset, **asked)
    slices = list(map(bytes, got.slices))
    return (
        got.status,
        got.next_offset,
        slices,
        got.count,
        got.bytes,
        got.lag_bytes,
        got.rejected_bytes,
        doubted,
    )


NUMBERS_MAX = 120
HOST, HOST_V6 = bytes(8), bytes(16) + b"\x00\x00\x00\x50"
EXPRESSIONS = (
    "TAGS = 'a'",
    "TAGS IN ('a', 'b') AND n > 5",
    "n > 7 AND m = 'x'",
    "TAGS = 'a' OR n < 3",
    "TRUE",
)
FAULTS = (
    FILLER,
    UNIT.pack(1 << 40, 200, 0),
    UNIT.pack(-5, 200, 0),
    UNIT.pack(0, -1, 1),
    UNIT.pack((1 << 63) - 1, 200, tag_hash("a")),
)


@settings(deadline=None, max_examples=60)
@given(st.randoms(use_true_random=False))
@example(Random(120))  # nothing is requested: the first record is returned all the same
def test_a_get_tells_the_same_whether_it_looks_at_each_entry_or_passes_over_those_of_other_tags(
    chance: Random,
) -> None:
    async def check() -> None:
        rig = Rig(
            commit_log_file_bytes=chance.choice((4096, 16_384, MIB)),
            consume_queue_file_bytes=2_000,
            memory_bytes=chance.choice((1_000, 10_000, 40_000, 1 << 30)),
        )
        store = await rig.open()
        size_max = chance.choice((10, 300, 3_000))
        hosts = chance.choice(((HOST,), (HOST,), (HOST_V6,), (HOST, HOST_V6)))
        for number in range(NUMBERS_MAX):
            properties = {"n": str(number % 10), "m": chance.choice("xy")}
            body, queue_id = bytes(chance.randrange(size_max)), chance.choice((0, 0, 0, 1))
            new = record(body, queue_id=queue_id, tags=chance.choice("abc "), properties=properties)
            new.born_host = chance.choice(hosts)
            rig.put(store, new)
        queue = store.reader._queues.table["T", 0]
        for _ in range(chance.choice((0, 0, 1, 3))):
            at = chance.randrange(queue.max_offset)
            entry = queue.entry(at)
            assert entry is not None
            tagged = UNIT.pack(*entry[:2], chance.choice((1 << 40, tag_hash("a") - (1 << 32), 1)))
            shorter = UNIT.pack(entry[0], entry[1] - 1, entry[2])
            queue._tail[at * UNIT.size : (at + 1) * UNIT.size] = chance.choice((tagged, shorter, *FAULTS))
        if chance.random() < 0.3:
            begin = chance.randrange(store.max_log_offset)
            store.reader._log.damaged.add(DamagedRange(begin, begin + 50, "a test"), ROOT)
        if chance.random() < 0.5:  # entries of the files are compared with their records
            queue.write()
            if chance.random() < 0.6:
                queue.drop_tail()
        edges = [queue.entry(at) for at in range(queue.max_offset)]
        limits = [None, chance.randrange(store.max_log_offset), *(edge[0] for edge in edges if edge)]
        each = copy.copy(store.reader)
        each.__class__ = EachEntry
        for _ in range(30):
            compiled = compile_filter(chance.choice(EXPRESSIONS))
            filters = [None, RecordFilter(compiled.matches_properties, chance.choice((1, 5, 1_000)))]
            filters.append(filters[1]._replace(tag_hashes=compiled.tag_hashes))  # type: ignore[union-attr]
            filters.append(filters[2]._replace(select=compiled.select))  # type: ignore[union-attr]
            tags = chance.choice((None, "a", "ab", "abc", "z", "abdefghijklmnopqrst"))
            store.reader.limit = each.limit = chance.choice(limits[: chance.choice((1, 2, len(limits)))])
            asked = {
                "count_max": chance.choice((0, 1, 3, 32, 200)),
                "bytes_max": chance.choice((1, 500, 4_000, MIB)),
                "tag_hashes": None if tags is None else frozenset(map(tag_hash, tags)),
                "record_filter": chance.choice(filters),
            }
            offset = chance.randrange(queue.max_offset)
            # In a file this short all entries would be examined together.
            with patch.object(reader, "FIRST_ENTRIES_TAGGED", chance.choice((1, 7, 256))):
                passed = seen(store.reader, offset, **asked)
            assert passed == seen(each, offset, **asked), (offset, asked)
        await store.close()

    asyncio.run(check())


@pytest.mark.parametrize("at", [4, 5])
@pytest.mark.parametrize("is_far_off", [False, True])
async def test_a_get_by_tags_meets_an_entry_of_a_file_that_does_not_name_its_record(
    at: int, is_far_off: bool
) -> None:
    """The get ends there during a repair (4), and skips an entry that cannot be repaired (5)."""
    rig = Rig()
    store = await rig.open(**BIG)
    rig.put(store, *(record(b"%d" % n, tags="a") for n in range(10)))
    queue = store.reader._queues.table["T", 0]
    entry = queue.entry(at)
    assert entry is not None
    log_offset = (1 << 63) - 1 if is_far_off else entry[0]
    queue._tail[at * UNIT.size : (at + 1) * UNIT.size] = UNIT.pack(log_offset, entry[1] - 1, entry[2])
    queue.write()
    queue.drop_tail()
    each = copy.copy(store.reader)
    each.__class__ = EachEntry
    for offset in range(10):
        asked: dict[str, Any] = {"count_max": 32, "bytes_max": MIB, "tag_hashes": frozenset([tag_hash("a")])}
        status, next_offset, _, count, *_ = got = seen(store.reader, offset, **asked)
        assert got == seen(each, offset, **asked)
        if offset > at:
            assert (status, next_offset, count) == (GetStatus.FOUND, 10, 10 - offset)
        elif at == 5:
            assert (status, next_offset, count) == (GetStatus.FOUND, 10, 9 - offset)
        elif offset < at:
            assert (status, next_offset, count) == (GetStatus.FOUND, at, at - offset)
        else:
            assert (status, next_offset, count) == (GetStatus.OFFSET_OVERFLOW_ONE, at, 0)
    await store.close()


async def test_a_filter_is_not_asked_for_records_of_tags_that_it_never_wants() -> None:
    rig = Rig()
    store = await rig.open(**BIG)
    rig.put(store, *(record(b"%d" % n, tags="abcd"[n % 4], properties={"n": str(n)}) for n in range(100)))
    compiled = compile_filter("TAGS = 'b' AND n > 20")
    asked: list[bytes] = []

    def matches(properties: bytes) -> bool:
        asked.append(properties)
        return compiled.matches_properties(properties)

    record_filter = RecordFilter(matches, 1_000, compiled.tag_hashes)
    result = store.reader.get("T", 0, 0, count_max=32, record_filter=record_filter)
    assert read(result) == [b"%d" % n for n in range(21, 100, 4)]
    assert (result.next_offset, len(asked)) == (100, 25)
    await store.close()


async def test_a_filter_takes_records_from_ipv6_producers_too() -> None:
    rig = Rig()
    store = await rig.open(**BIG)
    for number in range(4):
        new = record(b"%d" % number, tags="a", properties={"n": str(number)})
        if number % 2:
            new.born_host = HOST_V6
        rig.put(store, new)
    compiled = compile_filter("TAGS = 'a' AND n > 1")
    for select in (None, compiled.select):
        record_filter = RecordFilter(compiled.matches_properties, 1_000, compiled.tag_hashes, select)
        assert read(store.reader.get("T", 0, 0, count_max=32, record_filter=record_filter)) == [b"2", b"3"]
    await store.close()


async def test_an_entry_whose_tag_is_no_hash_is_looked_at_for_a_filter() -> None:
    """RocketMQ's extended entries are an example: their tag field holds an address."""
    rig = Rig()
    store = await rig.open(**BIG)
    rig.put(store, *(record(b"%d" % n, tags="a") for n in range(3)))
    queue = store.reader._queues.table["T", 0]
    log_offset, size, _tag = store.queue_entries("T", 0, 1, 1)[0]
    queue._tail[UNIT.size : 2 * UNIT.size] = UNIT.pack(log_offset, size, -(1 << 31) - 5)
    compiled = compile_filter("TAGS = 'a'")
    for hashes in (None, compiled.tag_hashes):
        record_filter = RecordFilter(compiled.matches_properties, 1_000, hashes, compiled.select)
        assert store.reader.get("T", 0, 0, count_max=32, record_filter=record_filter).count == 3
    await store.close()
