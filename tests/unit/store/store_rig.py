"""A store on an in-memory disk and a clock that stands still, for the tests of this folder."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from sim.memory import ManualClock, MemoryDisk
from tandemmq.protocol.hashes import tag_hash
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord, decode_record, decode_records
from tandemmq.store import GetStatus, MessageStore, PutStatus, StoreOptions
from tandemmq.store.checkpoint import decode_checkpoint, encode_checkpoint

ROOT = Path("/store")
BORN_HOST = b"\x0a\x00\x00\x01\x00\x00\xd4\x31"
STORE_HOST = b"\xc0\xa8\x00\x0a\x00\x00\x2a\x9f"

SMALL: dict[str, Any] = {
    "commit_log_file_bytes": 4096,
    "consume_queue_file_bytes": 200,
    "key_index_slot_count": 64,
    "key_index_entry_count": 64,
    "store_host": STORE_HOST,
}


def options(**changes: Any) -> StoreOptions:
    return StoreOptions(**{"root": ROOT, **SMALL, **changes})


def record(
    body: bytes = b"body",
    *,
    topic: str = "T",
    queue_id: int = 0,
    tags: str = "",
    keys: str = "",
    unique_key: str = "",
    properties: dict[str, str] | None = None,
    sys_flag: int = 0,
    waits: bool = True,
) -> NewRecord:
    pairs = {"KEYS": keys, "UNIQ_KEY": unique_key, "TAGS": tags, **(properties or {})}
    return NewRecord(
        topic=topic,
        queue_id=queue_id,
        body=body,
        properties=encode_properties(pairs),
        born_at_ms=1_700_000_000_000,
        born_host=BORN_HOST,
        tag_hash=tag_hash(tags) if tags else 0,
        keys=keys,
        unique_key=unique_key,
        sys_flag=sys_flag,
        wait_stored=waits,
    )


class Rig:
    """One machine: its disk and its clock; stores are opened on it one after the other."""

    def __init__(self, **changes: Any) -> None:
        self.disk = MemoryDisk()
        self.clock = ManualClock()
        self.changes = changes
        self.fatal: list[BaseException] = []
        self.stores: list[MessageStore] = []  # the stores that a test opened

    async def open(self, **changes: Any) -> MessageStore:
        return await MessageStore.open(
            options(**{**self.changes, **changes}),
            disk=self.disk,
            clock=self.clock,
            on_fatal=self.fatal.append,
        )

    def kill(self) -> None:
        """Kills the process: its locks and timers are gone, its written bytes stay in the page cache."""
        self.disk._locks.clear()
        self.clock = ManualClock(now_ms=self.clock.now_ms())

    def power_cut(self, *, keeps_all: bool = False) -> None:
        """Cuts the power: unsynced bytes are lost too, unless the disk happened to write them."""
        self.disk.power_cut((lambda _path, _at: True) if keeps_all else None)
        self.kill()

    def note_durable(self, end: int | None) -> None:
        """Sets the checkpoint's durable log end to `end`; None removes it."""
        path = ROOT / "checkpoint"
        times = decode_checkpoint(self.disk.read_bytes(path))
        times = msgspec.structs.replace(times, durable_log_offset=end)
        self.disk.write_atomically(path, encode_checkpoint(times))

    def put(self, store: MessageStore, *records: NewRecord) -> list[PutStatus]:
        """Appends records one by one and runs the write; returns the statuses reported so far."""
        statuses: list[PutStatus] = []
        for item in records:
            store.appender.append([item], statuses.append)
        self.clock.run_soon()
        return statuses


def bodies(
    store: MessageStore, topic: str = "T", queue_id: int = 0, offset: int | None = None
) -> list[bytes]:
    """Returns every body of a queue from `offset` (default: its min) on, read by gets."""
    found: list[bytes] = []
    at = store.queue_min(topic, queue_id) if offset is None else offset
    while True:
        result = store.reader.get(topic, queue_id, at, count_max=32)
        if result.status is not GetStatus.FOUND:
            assert result.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE), result
            return found
        records = [r for piece in result.slices for r in decode_records(piece)]
        assert [r.queue_offset for r in records] == list(range(at, result.next_offset))
        assert len(records) == result.count
        found += [r.body for r in records]
        at = result.next_offset


@contextmanager
def unremovable(rig: Rig, *paths: Path) -> Iterator[None]:
    """Makes these files undeletable inside the context."""
    remove = rig.disk.remove

    def refuse(path: Path) -> None:
        if path in paths:
            raise OSError(errno.EIO, "the disk refuses", str(path))
        remove(path)

    rig.disk.remove = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        rig.disk.remove = remove  # type: ignore[method-assign]


async def turn_until(is_met: Callable[[], bool]) -> None:
    """Runs the loop until the condition holds, and no further."""
    for _ in range(100):
        if is_met():
            return
        await asyncio.sleep(0)
    raise AssertionError("it is never so")


async def heal_disturbed(
    rig: Rig, store: MessageStore, sound: bytes, turn: int, disturb: Callable[[], Awaitable[object]]
) -> int:
    """Returns how many damaged ranges remain after a heal from `sound`, the bytes of the log.

    After the fetch, `disturb` runs before the disk operation number `turn`, if that many follow.
    """
    offload = rig.disk.offload
    turns_left = -1

    async def fetch(log_offset: int, size: int) -> bytes:
        nonlocal turns_left
        turns_left = turn
        return sound[log_offset : log_offset + size]

    async def disturb_in_turn(fn: Callable[..., object], *args: Any) -> object:
        nonlocal turns_left
        turns_left -= 1
        if turns_left == -1:
            await disturb()
        return await offload(fn, *args)

    rig.disk.offload = disturb_in_turn  # type: ignore[method-assign,assignment]
    try:
        return await store.healer.heal_all(fetch)
    finally:
        rig.disk.offload = offload  # type: ignore[method-assign]


def stored(store: MessageStore, log_offset: int) -> Any:
    """Returns the decoded record at a log offset."""
    view = store.read_record(log_offset)
    assert view is not None
    return decode_record(view, log_offset=log_offset)
