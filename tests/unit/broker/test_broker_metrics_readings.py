"""The readings that are made from the parts' counters, without sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.memory import ManualClock, MemoryDisk
from tandemmq.broker.metrics import count_sends, count_topics
from tandemmq.broker.replica.ha_status import lag_seconds
from tandemmq.broker.stats import TOPICS_COUNTED_MAX, BrokerStats, TopicCounts
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.record import NewRecord
from tandemmq.store import MessageStore, PutStatus, StoreOptions

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
FILE_BYTES = 4096


async def open_store(clock: ManualClock) -> MessageStore:
    options = StoreOptions(root=Path("/s"), commit_log_file_bytes=FILE_BYTES, key_index_enable=False)
    return await MessageStore.open(options, disk=MemoryDisk(), clock=clock)


def put(store: MessageStore, clock: ManualClock, body: bytes, topic: str = "T", queue_id: int = 0) -> int:
    """Appends a record and returns its log offset."""
    new = NewRecord(topic=topic, queue_id=queue_id, body=body, properties=b"", born_at_ms=1, born_host=HOST)
    appended = store.appender.append([new], lambda _status: None)
    clock.run_soon()
    return appended.log_offsets[0]


def test_sends_are_summed_by_code() -> None:
    outcomes = dict.fromkeys(PutStatus, 0) | {PutStatus.PUT_OK: 3, PutStatus.UNKNOWN_ERROR: 2}
    refusals = {int(ResponseCode.SYSTEM_ERROR): 1, int(ResponseCode.MESSAGE_ILLEGAL): 4}
    assert count_sends(outcomes, refusals) == {
        ResponseCode.SUCCESS: 3,
        ResponseCode.SYSTEM_ERROR: 3,
        ResponseCode.MESSAGE_ILLEGAL: 4,
    }


def test_success_is_there_before_the_first_send() -> None:
    assert count_sends(dict.fromkeys(PutStatus, 0), {}) == {ResponseCode.SUCCESS: 0}


def test_refusals_and_ends_of_pulls_are_counted_by_code() -> None:
    stats = BrokerStats(0.0)
    for code in (14, 14, 17):
        stats.count_send_refusal(code)
    stats.count_pull_ending(19)
    assert (stats.send_refusals, stats.refused_count) == ({14: 2, 17: 1}, 3)
    assert stats.pull_endings == {19: 1}


def test_topics_are_counted_up_to_the_bound() -> None:
    counts = TopicCounts()
    for number in range(TOPICS_COUNTED_MAX + 1):
        counts.add(f"T{number}", 1)
    counts.add("T0", 4)
    assert counts.counts["T0"] == 5
    assert len(counts.counts) == TOPICS_COUNTED_MAX
    counts.keep({"T0"})
    counts.add("new", 2)
    assert counts.counts == {"T0": 5, "new": 2}


async def test_messages_of_topics_are_the_ends_of_their_queues() -> None:
    clock = ManualClock()
    store = await open_store(clock)
    for queue_id in (0, 1, 1):
        put(store, clock, b"x", "B", queue_id)
    put(store, clock, b"x", "A")
    assert list(count_topics(store).items()) == [("B", 3), ("A", 1)]
    await store.close()


async def test_lag_is_the_age_of_the_first_record_that_is_missing() -> None:
    clock = ManualClock()
    store = await open_store(clock)
    first = put(store, clock, b"x" * 100)
    await clock.pass_time(2.0)
    second = put(store, clock, b"x" * 100)
    await clock.pass_time(3.0)
    now_ms = clock.now_ms()
    assert lag_seconds(store, first, now_ms) == 5.0
    assert lag_seconds(store, second, now_ms) == 3.0
    assert lag_seconds(store, store.appended.value, now_ms) == 0.0
    assert lag_seconds(store, store.appended.value + 1, now_ms) == 0.0
    await store.close()


@pytest.mark.parametrize("topic", ["T", "%DLQ%" + "t" * 130], ids=["V1", "V2"])
async def test_lag_of_a_place_within_a_record_is_that_of_the_next_one(topic: str) -> None:
    clock = ManualClock()
    store = await open_store(clock)
    first = put(store, clock, b"\xda\xa3\x20\xa7" * 50)
    await clock.pass_time(2.0)
    second = put(store, clock, b"x", topic)
    for place in range(first + 1, second + 1):
        assert lag_seconds(store, place, clock.now_ms()) == 0.0
    last = put(store, clock, b"x")
    # Only a part of the last record is missing, and no later one has a time.
    assert lag_seconds(store, last + 1, clock.now_ms()) is None
    await store.close()


async def test_lag_at_the_end_of_a_file_is_that_of_the_next_files_first_record() -> None:
    clock = ManualClock()
    store = await open_store(clock)
    put(store, clock, b"x" * 3000)
    blank = store.appended.value
    await clock.pass_time(4.0)
    assert put(store, clock, b"x" * 3000) == FILE_BYTES
    await clock.pass_time(1.0)
    for place in (blank, blank + 1, FILE_BYTES - 1, FILE_BYTES):
        assert lag_seconds(store, place, clock.now_ms()) == 1.0
    await store.close()
