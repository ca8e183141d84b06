"""Reading and dispatching many records at once gives the same result as one by one, for all kinds of
records.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from store_rig import options

from sim.memory import ManualClock, MemoryDisk, NoFault
from tandemmq.protocol.hashes import key_hash
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.record import NewRecord, RecordCheck, RecordOutcome, check_record, encode_record
from tandemmq.store.consume_queues import OffsetVerifier
from tandemmq.store.core import StoreCore
from tandemmq.store.dispatcher import Dispatcher
from tandemmq.store.options import StoreOptions
from tandemmq.store.record_block import read_block

HOSTS = [encode_host("10.0.0.1", 5), encode_host("2001:db8::1", 6)]
TOPICS = ["a", "orders", "%RETRY%" + "g" * 200, "SCHEDULE_TOPIC_XXXX", "tó", *(f"many{n}" for n in range(30))]
PROPERTIES = [
    b"",
    b"TAGS\x01red\x02",
    b"TAGS\x01red",
    b"TAGS\x01\x02",
    b"TAGS\x01old\x02TAGS\x01new\x02TAGS\x01\x02",
    b"XTAGS\x01no\x02KEYS\x01a  b a \x02UNIQ_KEY\x017F0000010000\x02TAGS\x01blau\x02",
    b"UNIQ_KEY\x01\xf0\x9f\x98\x80\x02KEYS\x01\xc3\xa9t\xc3\xa9 k\x02TAGS\x01\xff\xfe\x02",
    b"KEYS\x01 \x02",
    b"DELAY\x013\x02TAGS\x01t\x02",
    b"DELAY\x01999999999\x02",
    b"DELAY\x019999999999\x02TAGS\x01t\x02",
    b"DELAY\x01" + b"9" * 5000 + b"\x02",
    b"DELAY\x010\x02DELAY\x01x\x02",
    b"UNIQ_KEY\x01" + b"u" * 5000 + b"\x02",
    b"\x02\x02\x01\x02KEYS\x01k\x01k\x02",
    b"plain text",
    b"TAGS\x01zero\x00",
]


def raise_error(error: BaseException) -> None:
    raise error


class Tables:
    """The tables of one store and their dispatcher."""

    def __init__(self, settings: StoreOptions) -> None:
        self.disk = MemoryDisk()
        core = StoreCore.make(settings, disk=self.disk, clock=ManualClock(), fail=raise_error)
        assert core.indexes is not None
        self.queues, self.keys = core.queues, core.indexes
        self.dispatcher = Dispatcher(core)

    def put_one_by_one(self, log: bytes, checks: Sequence[RecordCheck], base: int) -> None:
        units = []
        for checked in checks:
            queue = None
            if self.dispatcher.is_queued(checked):
                queue = self.queues.get_or_create((checked.topic, checked.queue_id))
                self.dispatcher.put_checked(queue, checked, memoryview(log), checked.log_offset - base)
            units.append((queue, checked.log_offset, checked.size, checked, checked.stored_at_ms))
        self.dispatcher.add_keys(units)
        self.keys.build()

    def content(self) -> tuple[dict[str, bytes], list[object]]:
        """Returns every file, without the time in its name, and the attributes of the queues."""
        for queue in self.queues:
            queue.write()
        for index in self.keys._files:
            index.snapshot().write_and_sync()
        files = {}
        for path in self._paths(Path("/store")):
            name = str(path)
            if path.parent.name == "index":
                name = f"index {len([n for n in files if n.startswith('index')])}"
            files[name] = self.disk.read_bytes(path)
        queues: list[object] = [
            (q.key, q.min_offset, q.max_offset, q.next_offset, q.end_log_offset) for q in self.queues
        ]
        return files, [*queues, self.dispatcher.stored_at_ms]

    def _paths(self, directory: Path) -> list[Path]:
        found = []
        for path in (directory / name for name in self.disk.list(directory)):
            try:
                self.disk.size(path)
            except FileNotFoundError:
                found += self._paths(path)  # a directory
            else:
                found.append(path)
        return found


def make_log(dice: Random, count: int, base: int) -> bytes:
    """Returns records of every kind; queue offsets mostly continue, some repeat, some leave gaps."""
    log = bytearray()
    offsets: dict[tuple[str, int], int] = {}
    topics = TOPICS[: dice.choice((1, 5, len(TOPICS)))]
    for number in range(count):
        key = dice.choice(topics), dice.randrange(3)
        offset = offsets.get(key, dice.choice((0, 0, 7)))
        if dice.random() < 0.05:
            offset = max(0, offset + dice.choice((-2, 1, 3, 40)))
        new = NewRecord(
            topic=key[0],
            queue_id=key[1],
            body=bytes([number % 256]) * dice.choice((0, 1, 60, 300)),
            properties=dice.choice(PROPERTIES),
            born_at_ms=1,
            born_host=dice.choice(HOSTS),
            sys_flag=dice.choice((0, 0, 0, 1, 0x4, 0x8, 0xC)),
        )
        if not new.sys_flag & 0x4:
            offsets[key] = offset + 1
        log += encode_record(
            new,
            queue_offset=offset,
            log_offset=base + len(log),
            stored_at_ms=1_700_000_000_000 + number * dice.randrange(2),
            store_host=dice.choice(HOSTS),
        )
    return bytes(log)


def leading(log: bytes, base: int) -> list[RecordCheck]:
    """Returns the checks by `check_record` of the records before the first that is not OK."""
    found = []
    at = 0
    while (one := check_record(log, at, log_offset=base + at)).outcome is RecordOutcome.OK:
        found.append(one)
        at += one.size
    return found


@pytest.mark.parametrize("seed", range(60))
def test_a_block_is_what_looking_at_each_record_finds(seed: int) -> None:
    dice = Random(seed)
    base = dice.choice((0, 4096 * 3))
    log = bytearray(make_log(dice, dice.randrange(1, 80), base) + bytes(dice.randrange(40)))
    for _ in range(seed % 4):
        log[dice.randrange(len(log))] ^= 1 << dice.randrange(8)
    raw = bytes(log[: len(log) - dice.choice((0, 0, 9))])
    checks = leading(raw, base)
    block = read_block(memoryview(raw), log_offset=base, check_crc=True)
    assert len(block) == len(checks)
    assert block.end == sum(one.size for one in checks)
    columns = block.columns
    for name in ("size", "queue_id", "queue_offset", "log_offset", "stored_at_ms", "sys_flag"):
        assert getattr(columns, name).tolist() == [getattr(one, name) for one in checks], name
    tags = block.tag_hash.copy()
    groups = list(block.queues(0, len(block)))
    for key, rows in groups:
        assert all((checks[row].topic, checks[row].queue_id) == key for row in rows)
        if key[0] == "SCHEDULE_TOPIC_XXXX":
            tags[rows] = block.due_times(rows)
    queued = [row for row, one in enumerate(checks) if not one.sys_flag & 0x4]
    assert sorted(int(row) for _, rows in groups for row in rows) == queued
    assert [int(tags[row]) for row in queued] == [checks[row].tag_hash for row in queued]
    wanted = []
    for row, one in enumerate(checks):
        if one.sys_flag & 0xC != 0xC:
            names = [one.unique_key, *one.keys.split(" ")]
            wanted += [(key_hash(one.topic, name), row) for name in names if name]
    hashes, rows = block.keys(0, len(block))
    assert list(zip(hashes.tolist(), rows.tolist(), strict=True)) == wanted


@pytest.mark.parametrize("seed", range(60))
def test_tables_fed_with_blocks_are_those_fed_one_by_one(seed: int) -> None:
    dice = Random(seed)
    base = 4096
    levels = {"delay_levels_ms": (5, 6)} if seed % 3 == 0 else {}
    settings = options(consume_queue_file_bytes=dice.choice((200, 2000)), **levels)
    log = make_log(dice, dice.randrange(1, 200), base)
    checks = leading(log, base)
    one_by_one, by_block = Tables(settings), Tables(settings)
    known = dice.randrange(len(checks)) if seed % 2 else 0
    for tables in (one_by_one, by_block):
        tables.put_one_by_one(log, checks[:known], base)
        tables.keys._record_end()
    again = dice.randrange(known + 1)
    one_by_one.put_one_by_one(log, checks[again:], base)
    begin = checks[again].log_offset - base
    while begin < len(log):
        block = read_block(
            memoryview(log), begin, log_offset=base, check_crc=False, count_max=dice.randrange(1, 60)
        )
        middle = dice.randrange(len(block) + 1)
        touched = [
            *by_block.dispatcher.put_block(block, 0, middle),
            *by_block.dispatcher.put_block(block, middle, len(block)),
        ]
        assert {queue.key for queue in touched} == {key for key, _ in block.queues(0, len(block))}
        begin = block.end
    assert by_block.content() == one_by_one.content()


def test_a_used_number_waits_in_a_block_as_it_does_alone() -> None:
    """The queue offset of a rejected last record is assigned again: then both are in one run."""
    log = bytearray()
    for offset in (*range(9), 8, 9, 10, 11, 9, 13):
        new = NewRecord(
            topic="a", queue_id=0, body=b"x", properties=b"", born_at_ms=1, born_host=HOSTS[0], sys_flag=0
        )
        log += encode_record(
            new, queue_offset=offset, log_offset=len(log), stored_at_ms=1, store_host=HOSTS[0]
        )
    one_by_one, by_block = Tables(options()), Tables(options())
    for tables in (one_by_one, by_block):
        tables.queues.verifier = OffsetVerifier(0, lambda _begin, _end: False)
    one_by_one.put_one_by_one(bytes(log), leading(bytes(log), 0), 0)
    block = read_block(memoryview(bytes(log)), log_offset=0, check_crc=True)
    by_block.dispatcher.put_block(block, 0, len(block))
    for tables in (one_by_one, by_block):
        tables.queues.settle_unverified()
    assert by_block.content() == one_by_one.content()
    assert by_block.queues.table["a", 0].min_offset == 0


class NoRoom(NoFault):
    """A full disk: no file is created."""

    def on_create(self, path: Path, size: int) -> None:
        raise OSError(28, "no room")


@pytest.mark.parametrize("seed", range(20))
def test_entries_that_cannot_be_written_wait_in_memory(seed: int) -> None:
    log = make_log(Random(seed), 150, 0)
    settings = options(consume_queue_file_bytes=200)
    one_by_one, by_block = Tables(settings), Tables(settings)
    for tables in (one_by_one, by_block):
        tables.disk.fault = NoRoom()
    one_by_one.put_one_by_one(log, leading(log, 0), 0)
    block = read_block(memoryview(log), log_offset=0, check_crc=True)
    by_block.dispatcher.put_block(block, 0, len(block))
    for tables in (one_by_one, by_block):
        tables.disk.fault = NoFault()
    assert by_block.content() == one_by_one.content()


def test_no_records_make_an_empty_block() -> None:
    for raw in (b"", bytes(500), b"\x7f" * 500):
        block = read_block(memoryview(raw), log_offset=0, check_crc=True)
        assert (len(block), block.end, list(block.queues(0, 0))) == (0, 0, [])
