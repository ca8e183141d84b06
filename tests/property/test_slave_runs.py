"""A slave that reads its master's records in runs of the kernel against one that reads them one by one.

Two stores in memory get the same bytes in the same pieces; only one of them uses the kernel. Whatever the
bytes contain, both store the same, call listeners with the same queues, and refuse the same bytes for the
same reason.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from log_writer import HOST, SEGMENT, TOPICS, LogWriter

from sim.dice import Dice
from sim.fuzz.mutate import flip
from sim.memory import ManualClock, MemoryDisk
from tandemmq.errors import StoreError
from tandemmq.protocol import speedups
from tandemmq.protocol.hashes import crc32
from tandemmq.protocol.record import NewRecord, RecordOutcome, check_record, encode_record
from tandemmq.protocol.record_layout import CRC_MASK
from tandemmq.protocol.record_run import RecordRun, read_run
from tandemmq.protocol.sys_flag import HOSTS_V6_MASK, TRANSACTION_PREPARED
from tandemmq.protocol.topic_names import SCHEDULE_TOPIC
from tandemmq.replication.core import verifier
from tandemmq.replication.core.verifier import BadRecord, RecordVerifier
from tandemmq.store import BrokerRole, MessageStore, StoreOptions
from tandemmq.store.consume_queues import QueueKey

kernel: Any = pytest.importorskip("tandemmq_speedups", reason="`make speedups` builds it")

SEEDS = range(int(os.environ.get("TANDEMMQ_TWIN_SEEDS", "300")))
ROOT = Path("/slave")
BYTES_MAX = 2048


@pytest.fixture(autouse=True)
def _without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedups, "kernel", None)


def run_of(
    view: memoryview, position: int, end: int, log_offset: int, bytes_max: int = BYTES_MAX
) -> RecordRun | None:
    """Returns the longest run that `read_run` may return: its definition by `check_record`."""
    rows: list[tuple[Any, ...]] = []
    topic = ""
    while end - position >= 8:
        found = check_record(view[:end], position, log_offset=log_offset)
        is_plain = found.outcome is RecordOutcome.OK and found.size <= bytes_max and found.message_count == 1
        if not is_plain or found.sys_flag & (TRANSACTION_PREPARED | HOSTS_V6_MASK):
            break
        if found.topic in ("", SCHEDULE_TOPIC) or (rows and found.topic != topic):
            break
        topic = found.topic
        rows.append(
            (
                found.size,
                found.log_offset,
                found.queue_id,
                found.queue_offset,
                found.tag_hash,
                found.stored_at_ms,
                found.unique_key,
                found.keys,
            )
        )
        position += found.size
        log_offset += found.size
    return RecordRun(topic, *map(list, zip(*rows, strict=True))) if rows else None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_has_the_values_of_its_records(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = Dice(seed)
    log = LogWriter(dice, dice.pick((0, 10, 60))).write(60)
    raw = flip(log, dice) if dice.happens(40) else log
    view = memoryview(raw)
    monkeypatch.setattr(speedups, "kernel", kernel)
    starts = [0]
    while starts[-1] < len(log):
        starts.append(starts[-1] + check_record(log, starts[-1]).size)
    for start in starts[:-1]:
        end = dice.pick((len(raw), min(len(raw), start + dice.below(600))))
        for position in (start, min(end, start + dice.below(9))):
            found = read_run(view, position, max(position, end), log_offset=start, record_bytes_max=BYTES_MAX)
            if found is None:
                continue
            whole = run_of(view, position, end, start)
            assert whole is not None, (start, found)
            assert found == whole.head(len(found.sizes))


def test_a_run_takes_all_ordinary_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speedups, "kernel", kernel)
    writer = LogWriter(Dice(1), 0)
    for _ in range(40):
        writer.add({"topic": "T", "properties": b"UNIQ_KEY\x01a\x02TAGS\x01A"}, 0)
    view = memoryview(bytes(writer.log))
    found = read_run(view, 0, len(view), log_offset=0, record_bytes_max=BYTES_MAX)
    assert found == run_of(view, 0, len(view), 0)
    assert found is not None
    assert len(found.sizes) == 40


def _record(topic: bytes, properties: bytes, log_offset: int) -> bytes:
    """Returns a record of the older format, in which the length of a topic has one byte."""
    body, host = b"body", HOST
    size = 88 + len(body) + 1 + len(topic) + 2 + len(properties)
    return b"".join(
        (
            struct.pack(">iIIii", size, 0xDAA320A7, crc32(body) & CRC_MASK, 0, 0),
            struct.pack(">qqiq8sq8siqi", 7, log_offset, 0, 1, host, 1, host, 0, 0, len(body)),
            body + bytes([len(topic)]) + topic + len(properties).to_bytes(2, "big") + properties,
        )
    )


def _check_run(records: list[tuple[bytes, bytes]], monkeypatch: pytest.MonkeyPatch) -> int:
    """Returns the length of the run at the first of the records, (topic, properties) each; checks it."""
    raw = b""
    for topic, properties in records:
        raw += _record(topic, properties, len(raw))
    view = memoryview(raw)
    monkeypatch.setattr(speedups, "kernel", kernel)
    found = read_run(view, 0, len(view), log_offset=0, record_bytes_max=len(raw))
    if found is None:
        return 0
    whole = run_of(view, 0, len(view), 0, len(raw))
    assert whole is not None, "another record is there"
    assert found == whole.head(len(found.sizes))
    return len(found.sizes)


def test_a_run_ends_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _check_run([(b"T", b"UNIQ_KEY\x01a")] * 600, monkeypatch) == 256


@pytest.mark.parametrize(("size", "is_taken"), [(32_767, True), (32_768, False), (65_535, False)])
def test_a_run_takes_no_record_whose_properties_are_too_long(
    size: int, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"note\x01" + b"x" * (size - 5)
    assert _check_run([(b"T", text), (b"T", b"")], monkeypatch) == 2 * is_taken
    assert _check_run([(b"T", b""), (b"T", text)], monkeypatch) == 1 + is_taken


@pytest.mark.parametrize(("size", "is_taken"), [(127, True), (128, False), (255, False)])
def test_a_run_takes_no_record_whose_topic_is_too_long(
    size: int, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _check_run([(b"t" * size, b"UNIQ_KEY\x01a")], monkeypatch) == is_taken


@dataclass
class Slave:
    """A store that receives a master's bytes. `calls`: all calls of its listener."""

    store: MessageStore
    disk: MemoryDisk
    uses_kernel: bool
    verifier: RecordVerifier
    calls: list[list[tuple[QueueKey, int]]] = field(default_factory=list)
    run_count: int = 0

    @classmethod
    async def open(cls, *, uses_kernel: bool) -> Slave:
        disk = MemoryDisk()
        options = StoreOptions(
            root=ROOT,
            commit_log_file_bytes=SEGMENT,
            consume_queue_file_bytes=200,
            key_index_slot_count=64,
            key_index_entry_count=64,
            store_host=HOST,
            role=BrokerRole.SLAVE,
        )
        store = await MessageStore.open(options, disk=disk, clock=ManualClock(), on_fatal=pytest.fail)
        checked = RecordVerifier(0, segment_bytes=SEGMENT, record_bytes_max=BYTES_MAX)
        slave = cls(store, disk, uses_kernel, checked)
        store.dispatcher.on_dispatch(slave.on_dispatch)
        return slave

    def on_dispatch(self, changed: Mapping[QueueKey, int]) -> None:
        self.calls.append(list(changed.items()))

    def feed(self, piece: bytes) -> BadRecord | str | None:
        """Returns the fault, or the error of a topic that no directory can be named after."""
        speedups.kernel = kernel if self.uses_kernel else None
        buffer = bytearray(piece)
        runs, bad = self.verifier.feed([memoryview(buffer)])
        for run in runs:
            if not isinstance(run.parsed, list):
                continue
            self.run_count += sum(isinstance(one, RecordRun) for one in run.parsed)
        try:
            for run in runs:
                self.store.append_raw(run.log_offset, run.data, run.parsed)
        except StoreError as error:
            return str(error)
        finally:
            speedups.kernel = None
        buffer[:] = bytes(len(buffer))  # as a buffer that is reused
        return bad

    def state(self) -> dict[str, Any]:
        """Returns what both slaves must have in common after each piece."""
        store = self.store
        return {
            "log": (store.max_log_offset, self.verifier.log_offset, self.verifier.held_bytes),
            "dispatched": (store.dispatched.value, store.dispatcher.dispatched_count),
            "stored at": store.dispatcher.stored_at_ms,
            "calls": self.calls,
            "queues": [(q.key, q.min_offset, q.max_offset, q.next_offset) for q in store.queues],
            "ends": [q.end_log_offset for q in store.queues],
            "deleted": store.queues.deletions.ends,
            "keys": store.query_keys("T", "shared", 16, 0, 2**62),
        }

    def files(self, directory: Path = ROOT) -> dict[str, bytes]:
        """Returns every file except the checkpoint, whose times are those of this run."""
        found: dict[str, bytes] = {}
        for name in self.disk.list(directory):
            path = directory / name
            if self.disk.list(path):
                found |= self.files(path)
            elif name != "checkpoint":
                found[str(path)] = self.disk.read_bytes(path)
        return found


async def compare(seed: int) -> int:
    """Feeds both slaves with the same pieces; returns the number of runs that one of them used."""
    dice = Dice(seed)
    log = LogWriter(dice, dice.pick((0, 3, 20, 60))).write(250)
    if dice.happens(30):
        at = dice.below(len(log))
        log = log[:at] + flip(log[at : at + 300], dice) + log[at + 300 :]
    alone, beside = await Slave.open(uses_kernel=False), await Slave.open(uses_kernel=True)
    position, bad = 0, None
    while position < len(log) and bad is None:
        size = dice.pick((50, 700, 3000, 3000, 9000))
        size = 1 + dice.below(size)
        if dice.happens(8):
            topic, drops = dice.pick(TOPICS[:2]), dice.happens(50)
            end = max(0, alone.store.max_log_offset + dice.pick((0, -900, 2000)))
            for slave in (alone, beside):
                slave.store.queues.deletions.note(topic, end)
                if drops:
                    slave.store.queues.drop_deleted()
        if dice.happens(10):
            limit = dice.pick((None, alone.store.max_log_offset + dice.below(1000)))
            for slave in (alone, beside):
                slave.store.dispatcher.set_read_limit(limit)
        bad = alone.feed(log[position : position + size])
        assert beside.feed(log[position : position + size]) == bad
        assert beside.state() == alone.state()
        if isinstance(bad, str):
            return beside.run_count  # nor can the queues be written at the end
        position += size
    for slave in (alone, beside):
        await slave.store.close()
    ours, theirs = alone.files(), beside.files()
    assert list(theirs) == list(ours)
    assert [path for path in ours if theirs[path] != ours[path]] == []
    assert alone.run_count == 0
    return beside.run_count


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_slave_with_runs_is_equal_to_one_without(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier, "COLUMNS_BYTES_MIN", 1 << 30)
    await compare(seed)


async def test_the_slaves_of_these_tests_use_runs() -> None:
    assert sum([await compare(seed) for seed in range(20)]) > 50


async def test_records_before_the_end_of_a_queue_do_not_continue_it() -> None:
    slave = await Slave.open(uses_kernel=False)
    queues = slave.store.queues
    assert queues.continued("T", [0, 1, 0], [0, 0, 2], 4096) is None
    assert not list(queues)
    found = queues.continued("T", [0, 1, 0], [0, 0, 1], 4096)
    assert found is not None
    assert found == [*queues, found[0]]
    found[0].put_at(0, 4096, 100, 7)
    assert queues.continued("T", [0], [1], 4195) is None
    assert queues.continued("T", [0], [1], 4196) == [found[0]]
    queues.remove_all()
    await slave.store.close()


@pytest.mark.parametrize("uses_kernel", [False, True])
async def test_no_run_reaches_into_the_room_for_the_filler(uses_kernel: bool) -> None:
    writer = LogWriter(Dice(1), 0)
    for _ in range(6):
        writer.add({"topic": "T", "properties": b"UNIQ_KEY\x01a", "body": b"x" * 900}, 0)
    whole = len(writer.log)
    head = check_record(bytes(writer.log), 0).size - 900
    room = SEGMENT - whole
    last = NewRecord(
        topic="T",
        queue_id=0,
        body=b"x" * (room - head - 4),
        properties=b"UNIQ_KEY\x01a",
        born_at_ms=1_700_000_000_000,
        born_host=HOST,
    )
    writer.log += encode_record(last, queue_offset=99, log_offset=whole, stored_at_ms=1, store_host=HOST)
    assert len(writer.log) == SEGMENT - 4
    slave = await Slave.open(uses_kernel=uses_kernel)
    slave.verifier = RecordVerifier(0, segment_bytes=SEGMENT, record_bytes_max=SEGMENT)
    size = SEGMENT - 4 - whole
    reason = f"a record of {size} bytes, {room} bytes before the end of its file; are file sizes equal?"
    assert slave.feed(bytes(writer.log)) == BadRecord(whole, reason)
    assert slave.store.max_log_offset == whole
    assert bool(slave.run_count) == uses_kernel
    await slave.store.close()
