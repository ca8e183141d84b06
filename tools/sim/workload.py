"""Random records and settings for a store with tiny files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sim.dice import Dice
from tandemmq.protocol.hashes import tag_hash
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewBatch, NewRecord
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.store import FlushMode, StoreOptions

ROOT = Path("/store")
STORE_HOST = b"\xc0\xa8\x00\x0a\x00\x00\x2a\x9f"
BORN_HOST = b"\x0a\x00\x00\x01\x00\x00\xd4\x31"
TOPICS = ("Orders", "Payments", "%RETRY%group", "SCHEDULE_TOPIC_XXXX", "T")
QUEUES_PER_TOPIC = 3
_PREPARED = 0x4
_ROLLBACK = 0xC


def random_options(dice: Dice) -> StoreOptions:
    """Returns options with files so small that they roll constantly; mostly SYNC_FLUSH, else often with the
    pool.
    """
    options = _random_files(dice)
    if options.flush_mode is FlushMode.SYNC_FLUSH or dice.happens(40):
        return options
    return replace(
        options,
        transient_pool_enable=True,
        transient_pool_size=dice.pick((1, 2, 5)),
        fail_fast_without_buffer=dice.happens(30),
        commit_interval_ms=dice.pick((20, 200)),
        commit_least_pages=dice.pick((0, 1, 4)),
        commit_thorough_interval_ms=dice.pick((20, 200)),
    )


def _random_files(dice: Dice) -> StoreOptions:
    return StoreOptions(
        root=ROOT,
        store_host=STORE_HOST,
        flush_mode=FlushMode.ASYNC_FLUSH if dice.happens(25) else FlushMode.SYNC_FLUSH,
        commit_log_file_bytes=dice.pick((1024, 2000, 4096, 8192, 20_000)),
        consume_queue_file_bytes=dice.pick((100, 200, 1000, 2000)),
        key_index_slot_count=dice.pick((3, 16, 64)),
        key_index_entry_count=dice.pick((4, 16, 100)),
        open_file_count_max=dice.pick((8, 16, 512)),
        flush_least_pages=dice.pick((0, 1, 4)),
        flush_thorough_interval_ms=dice.pick((1_000, 10_000)),
        queue_flush_least_pages=dice.pick((0, 2)),
        queue_flush_thorough_interval_ms=dice.pick((1_000, 5_000, 60_000)),
        file_reserved_hours=3,
        delete_at_hours=tuple(range(24)),  # in any time zone
        clean_first_delay_ms=10 * 24 * 3_600_000,  # no cleaning unless a run requests it
        scrub_bytes_per_second=0,
    )


def random_record(dice: Dice, options: StoreOptions, number: int) -> NewRecord:
    """Returns a record of any topic; `number` is in its body and its unique key."""
    topic = dice.pick(TOPICS)
    tags = dice.pick(("", "", "red", "blue", "red||blue"))
    keys = dice.pick(("", "", f"order{dice.below(20)}", f"order{dice.below(20)} customer{dice.below(5)}"))
    unique_key = f"U{number:08d}" if dice.happens(80) else ""
    pairs = {"UNIQ_KEY": unique_key, "TAGS": tags, "KEYS": keys, "n": str(number)}
    if topic == "SCHEDULE_TOPIC_XXXX" and dice.happens(80):
        pairs["DELAY"] = str(dice.between(1, 18))
    if dice.happens(10):
        pairs["note"] = "x" * dice.between(1, min(1500, options.commit_log_file_bytes // 3))
    properties = encode_properties({name: value for name, value in pairs.items() if value})
    if dice.happens(30):
        properties = properties[:-1]  # Java 4.9.1 to 5.1.4 omit the last separator
    return NewRecord(
        topic=topic,
        queue_id=dice.below(QUEUES_PER_TOPIC),
        body=_random_body(dice, options, number),
        properties=properties,
        born_at_ms=1_700_000_000_000 + dice.below(1000),
        born_host=BORN_HOST,
        tag_hash=tag_hash(tags) if tags else 0,
        flag=dice.below(3),
        sys_flag=dice.pick_weighted(((96, 0), (2, _PREPARED), (2, _ROLLBACK))),
        retry_count=dice.below(3),
        keys=keys,
        unique_key=unique_key,
        wait_stored=not dice.happens(15),
    )


def _random_body(dice: Dice, options: StoreOptions, number: int) -> bytes:
    head = b"%08d" % number
    file_bytes = options.commit_log_file_bytes
    size = dice.pick_weighted(
        (
            (10, 0),
            (60, dice.between(0, 200)),
            (25, dice.between(200, 700)),
            (5, dice.between(700, file_bytes)),
            (2, dice.between(file_bytes - 400, file_bytes + 10)),
        )
    )
    filling = dice.pick((b"\0", b"abcdefgh", b"\xda\xa3\x20\xa7"))  # the last one is a record's magic
    return (head + filling * (size // len(filling) + 1))[:size] if size else b""


def random_batch(dice: Dice, options: StoreOptions, number: int) -> list[NewRecord]:
    """Returns records of one queue; those of every second batch can form a `NewBatch`."""
    records = [random_record(dice, options, number + i) for i in range(dice.between(2, 6))]
    first = records[0]
    first.sys_flag = 0
    for record in records[1:]:
        record.topic, record.queue_id, record.sys_flag = first.topic, first.queue_id, 0
        if number % 2:
            record.born_at_ms, record.retry_count = first.born_at_ms, first.retry_count
            record.wait_stored = first.wait_stored
    return records


def make_batch(records: Sequence[NewRecord]) -> NewBatch | None:
    """Returns the messages as a batch; None if they differ in a field that a batch shares, or are delayed."""
    first = records[0]
    if first.topic == SCHEDULE_TOPIC:
        return None
    batch = NewBatch(
        topic=first.topic,
        queue_ids=[record.queue_id for record in records],
        bodies=[record.body for record in records],
        properties=[record.properties for record in records],
        born_times_ms=[record.born_at_ms for record in records],
        born_host=first.born_host,
        tag_hashes=[record.tag_hash for record in records],
        flags=[record.flag for record in records],
        sys_flag=first.sys_flag,
        retry_count=first.retry_count,
        keys=[record.keys for record in records],
        unique_keys=[record.unique_key for record in records],
        wait_stored=first.wait_stored,
    )
    return batch if batch.records() == list(records) else None
