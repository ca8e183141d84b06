"""Bulk reads return the same records as many small ones, in far fewer answers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from store_rig import Rig, bodies, record

from tandemmq.protocol.hashes import tag_hash
from tandemmq.protocol.record import NewRecord, decode_records
from tandemmq.store import GetResult, GetStatus, MessageStore, bulk_read

BIG = {"commit_log_file_bytes": 4096, "consume_queue_file_bytes": 2000}


def read(result: GetResult) -> list[bytes]:
    assert result.bytes == sum(map(len, result.slices))
    found = [r.body for piece in result.slices for r in decode_records(piece)]
    assert len(found) == result.count
    sizes = [len(piece) and r.size for piece in result.slices for r in decode_records(piece)]
    assert result.sizes == b"".join(size.to_bytes(4, "big") for size in sizes)
    return found


def read_all(store: MessageStore, *, bytes_max: int = 1 << 20, tags: Sequence[str] = ()) -> list[list[bytes]]:
    """Returns every answer of queue 0 of topic T, from its start."""
    hashes = frozenset(map(tag_hash, tags)) or None
    answers, at = [], store.queue_min("T", 0)
    while True:
        result = store.reader.get(
            "T", 0, at, count_max=1 << 15, bytes_max=bytes_max, tag_hashes=hashes, is_bulk=True
        )
        if result.status is GetStatus.OFFSET_OVERFLOW_ONE:
            return answers
        assert result.next_offset > at
        answers.append(read(result))
        at = result.next_offset


def mixed(count: int) -> list[NewRecord]:
    return [
        record(b"%04d" % n, queue_id=0 if n % 7 else 1, tags="abc"[n % 3], keys=f"k{n}") for n in range(count)
    ]


async def test_the_same_records_as_by_small_reads() -> None:
    rig = Rig()
    store = await rig.open(**BIG)
    rig.put(store, *mixed(400))
    answers = read_all(store)
    assert [body for answer in answers for body in answer] == bodies(store)
    # A file of the queue holds 2,000 bytes of entries, which is 100 messages.
    assert max(len(answer) for answer in answers) == 100
    await store.close()


@pytest.mark.parametrize("bytes_max", [1, 300, 1000])
async def test_bytes_bound_an_answer_that_holds_at_least_one(bytes_max: int) -> None:
    rig = Rig()
    store = await rig.open(**BIG)
    rig.put(store, *mixed(60))
    answers = read_all(store, bytes_max=bytes_max)
    assert [body for answer in answers for body in answer] == bodies(store)
    for at in range(10):
        result = store.reader.get("T", 0, at, count_max=99, bytes_max=bytes_max, is_bulk=True)
        assert result.bytes <= bytes_max or result.count == 1
    await store.close()


async def test_slices_bound_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_read, "BULK_SLICES_MAX", 3)
    rig = Rig()
    store = await rig.open(**BIG)
    rig.put(store, *mixed(60))
    result = store.reader.get("T", 0, 0, count_max=99, is_bulk=True)
    assert len(result.slices) == 3
    assert [body for answer in read_all(store) for body in answer] == bodies(store)
    await store.close()


async def test_tags_are_filtered_without_losing_the_place() -> None:
    rig = Rig()
    store = await rig.open(**BIG)
    rig.put(store, *mixed(200))
    wanted = [b"%04d" % n for n in range(200) if n % 7 and n % 3 == 1]
    assert [body for answer in read_all(store, tags=("b",)) for body in answer] == wanted
    result = store.reader.get("T", 0, 0, count_max=99, tag_hashes=frozenset({12345}), is_bulk=True)
    assert (result.status, result.count) == (GetStatus.NO_MATCHED_MESSAGE, 0)
    await store.close()


async def test_entries_in_memory_and_in_files_are_one_answer() -> None:
    rig = Rig()
    store = await rig.open(commit_log_file_bytes=1 << 20, consume_queue_file_bytes=100_000)
    rig.put(store, *(record(b"%04d" % n) for n in range(3000)))
    assert [len(answer) for answer in read_all(store)] == [3000]
    await store.close()
