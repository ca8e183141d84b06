"""The store against a list: any sequence of appends, reads, restarts, kills and power cuts.

The model is the list of written records in log order. A kill loses no written record. A power cut
leaves a prefix that holds at least the flushed records, whichever unsynced writes survive. Whole records of a
failed write, answered as failed, may reappear at the end after a crash.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sim.memory import ManualClock, MemoryDisk
from tandemmq.errors import Busy, MessageIllegal, ServiceNotAvailable
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, decode_record, decode_records
from tandemmq.store import FlushMode, GetStatus, MessageStore, PutStatus, StoreOptions

QUEUES = [("A", 0), ("A", 1), ("B", 0)]
FILE_BYTES = 1024


@dataclass
class Written:
    """A record that the store accepted."""

    topic: str
    queue_id: int
    body: bytes
    key: str
    log_offset: int
    end_offset: int
    queue_offset: int


@dataclass
class World:
    """The store under test, its machine and the model."""

    flush_mode: FlushMode
    seed: int
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    clock: ManualClock = field(default_factory=ManualClock)
    written: list[Written] = field(default_factory=list)
    refused: list[Written] = field(default_factory=list)
    number: int = 0
    store: MessageStore = field(init=False)
    fails_writes: bool = False

    # The faults of the disk (see runtime.memory_disk.DiskFault).

    def on_create(self, path: Path, size: int) -> None:
        if self.fails_writes and self.number % 2 and path.parent.name != "index":
            raise OSError(28, "no room")

    def on_write(self, path: Path, offset: int, size: int) -> int:
        if self.fails_writes and path.parent.name == "commitlog":
            return min(size, Random(self.number).randrange(0, 300))
        return size

    def on_sync(self, path: Path) -> None: ...

    async def open(self) -> None:
        self.disk.fault = self
        options = StoreOptions(
            root=Path("/s"),
            flush_mode=self.flush_mode,
            commit_log_file_bytes=FILE_BYTES,
            consume_queue_file_bytes=100,
            key_index_slot_count=8,
            key_index_entry_count=16,
            open_file_count_max=8,
        )
        self.store = await MessageStore.open(options, disk=self.disk, clock=self.clock)

    def _new(self, queue: int, size: int) -> NewRecord:
        topic, queue_id = QUEUES[queue]
        self.number += 1
        key = f"k{self.number}"
        return NewRecord(
            topic=topic,
            queue_id=queue_id,
            body=b"%06d" % self.number + b"x" * size,
            properties=encode_properties({"UNIQ_KEY": key}),
            born_at_ms=0,
            born_host=bytes(8),
            unique_key=key,
        )

    def append(self, queue: int, sizes: list[int]) -> None:
        """Appends once; the records enter the model when the store reports them as written."""
        records = [self._new(queue, size) for size in sizes]
        told: list[PutStatus] = []
        end_before = self.store.max_log_offset
        try:
            placed = self.store.appender.append(records, told.append)
        except (MessageIllegal, ServiceNotAvailable, Busy):
            return
        self.clock.run_soon()
        taken = []
        for index, (record, log_offset) in enumerate(zip(records, placed.log_offsets, strict=True)):
            end = [*placed.log_offsets, placed.end_offset][index + 1]
            offset = placed.queue_offset + index
            body = bytes(record.body)
            taken.append(
                Written(record.topic, record.queue_id, body, record.unique_key, log_offset, end, offset)
            )
        if self.store.max_log_offset == end_before:
            assert told in ([PutStatus.SERVICE_NOT_AVAILABLE], [PutStatus.UNKNOWN_ERROR])
            self.refused += taken
        else:
            assert told in ([], [PutStatus.PUT_OK])
            self.written += taken

    async def close(self) -> None:
        await self.store.close()
        assert not self.disk.exists(Path("/s/abort"))

    async def power_cut(self) -> None:
        flushed = self.store.flushed.value
        chance = Random(self.seed)
        self.disk.power_cut(lambda path, index: chance.random() < 0.5)
        self.clock = ManualClock(now_ms=self.clock.now_ms())
        await self.open()
        kept = [w for w in self.written if w.end_offset <= self.store.max_log_offset]
        assert all(w.end_offset > flushed for w in self.written[len(kept) :])
        # If a refused record reappeared, the record written over it is lost.
        while kept and not self._is_there(kept[-1]):
            assert kept.pop().end_offset > flushed
        self.written = kept
        self._take_refused()

    def _is_there(self, written: Written) -> bool:
        view = self.store.read_record(written.log_offset)
        return view is not None and decode_record(view).body == written.body

    def _take_refused(self) -> None:
        """Checks that records after the model's end are some that were refused."""
        at = self.written[-1].end_offset if self.written else 0
        while at < self.store.max_log_offset:
            back = [w for w in self.refused if w.log_offset == at and self._is_there(w)]
            assert back or self.store.read_record(at) is None
            self.written += back[-1:]
            at = back[-1].end_offset if back else at - at % FILE_BYTES + FILE_BYTES

    async def kill(self) -> None:
        self.disk._locks.clear()
        self.clock = ManualClock(now_ms=self.clock.now_ms())
        await self.open()
        self._take_refused()

    def check(self) -> None:
        """Checks that everything readable equals the model, by queue, by log offset and by key."""
        store = self.store
        readable = [w for w in self.written if w.end_offset <= store.dispatched.value]
        for topic, queue_id in QUEUES:
            expected = [w for w in readable if (w.topic, w.queue_id) == (topic, queue_id)]
            assert [w.queue_offset for w in expected] == list(range(len(expected)))
            assert store.queue_max(topic, queue_id) == len(expected)
            assert read_queue(store, topic, queue_id) == [w.body for w in expected]
        for w in readable[-40:]:
            view = store.read_record(w.log_offset)
            assert view is not None
            assert decode_record(view, log_offset=w.log_offset).body == w.body
            assert w.log_offset in store.query_keys(w.topic, w.key, 64, 0, 2**62)
        assert store.dispatched.value <= store.confirmed.value <= store.appended.value
        assert store.flushed.value <= store.appended.value


def read_queue(store: MessageStore, topic: str, queue_id: int) -> list[bytes]:
    bodies: list[bytes] = []
    at = 0
    while (result := store.reader.get(topic, queue_id, at, count_max=7)).status is GetStatus.FOUND:
        bodies += [r.body for piece in result.slices for r in decode_records(piece)]
        assert result.next_offset > at
        at = result.next_offset
    assert result.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE)
    return bodies


SIZES = st.integers(min_value=0, max_value=500)
STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 2), st.lists(SIZES, min_size=1, max_size=4)),
    st.tuples(st.just("append"), st.integers(0, 2), st.lists(st.integers(0, 30), min_size=1, max_size=8)),
    st.tuples(st.just("time"), st.sampled_from([0.0, 0.3, 1.2, 12.0, 65.0])),
    st.tuples(st.just("restart")),
    st.tuples(st.just("kill")),
    st.tuples(st.just("power_cut")),
    st.tuples(st.just("faults"), st.booleans()),
    st.tuples(st.just("check")),
)


async def run(flush_mode: FlushMode, seed: int, steps: list[tuple[Any, ...]]) -> None:
    world = World(flush_mode, seed)
    await world.open()
    for name, *arguments in steps:
        match name:
            case "append":
                world.append(*arguments)
            case "time":
                await world.clock.pass_time(arguments[0])
            case "faults":
                world.fails_writes = arguments[0]
            case "check":
                world.check()
            case _:
                world.fails_writes = False
                if name == "restart":
                    await world.close()
                    await world.open()
                elif name == "kill":
                    await world.kill()
                else:
                    await world.power_cut()
                world.check()
    world.fails_writes = False
    await world.clock.pass_time(2)
    world.check()
    await world.close()
    await world.open()
    world.check()
    await world.close()


@settings(max_examples=150)
@given(
    flush_mode=st.sampled_from(list(FlushMode)),
    seed=st.integers(0, 2**32),
    steps=st.lists(STEPS, min_size=1, max_size=25),
)
def test_the_store_is_the_list_of_what_it_took(
    flush_mode: FlushMode, seed: int, steps: list[tuple[Any, ...]]
) -> None:
    asyncio.run(run(flush_mode, seed, steps))
