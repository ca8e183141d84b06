"""Numbered sends: a send that the store refused has not happened, and a stored one is not stored again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from sim.memory import ManualClock, MemoryDisk, NoFault
from tandemmq.broker.send.numbered import Claim, NumberedSends
from tandemmq.broker.send.reply import SendReply
from tandemmq.errors import Busy
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewBatch, NewRecord, decode_records
from tandemmq.store import FlushMode, MessageStore, PutStatus, StoreOptions

KEY = "0" * 31 + "1"
NEXT_KEY = "0" * 31 + "2"


class NoRoomOnce(NoFault):
    def __init__(self) -> None:
        self.failures = 1

    def on_write(self, path: Path, offset: int, size: int) -> int:
        if self.failures and path.parent.name == "commitlog":
            self.failures -= 1
            return 0
        return size


async def open_store(
    clock: ManualClock, disk: MemoryDisk, *, flush_mode: FlushMode = FlushMode.ASYNC_FLUSH
) -> MessageStore:
    options = StoreOptions(
        root=Path("/store"),
        commit_log_file_bytes=65_536,
        key_index_slot_count=64,
        key_index_entry_count=64,
        flush_mode=flush_mode,
        store_host=b"\x0a\x00\x00\x01\x00\x00\x2a\x9f",
    )
    return await MessageStore.open(options, disk=disk, clock=clock)


def row(clock: ManualClock, key: str = KEY) -> NewRecord:
    return NewRecord(
        topic="T",
        queue_id=0,
        body=b"row",
        properties=encode_properties({"UNIQ_KEY": key}),
        born_at_ms=clock.now_ms(),
        born_host=b"\x0a\x00\x00\x01\x00\x00\xd4\x31",
        unique_key=key,
    )


async def test_a_send_that_was_not_stored_is_stored_by_the_next_attempt() -> None:
    clock, disk = ManualClock(), MemoryDisk()
    store = await open_store(clock, disk)
    sends = NumberedSends(store)
    told: list[PutStatus] = []
    reply = cast(SendReply, SimpleNamespace(done=told.append, appended=None))

    def attempt() -> bool:
        is_new = sends.append(Claim("p", 1, ""), "T", 0, [row(clock)], reply)
        clock.run_soon()
        return is_new

    disk.fault = NoRoomOnce()
    assert attempt()
    await clock.pass_time(1.1)
    assert told == [PutStatus.SERVICE_NOT_AVAILABLE]
    assert attempt()
    assert told[1:] == [PutStatus.PUT_OK]
    assert store.queue_max("T", 0) == 1
    await store.close()


async def unflushed(
    clock: ManualClock, *, producer_queues_max: int, disk: MemoryDisk | None = None
) -> tuple[MessageStore, NumberedSends]:
    """Returns a store with a slow disk: the row of producer p, epoch 1, is stored and answered, but not in
    the queues.
    """
    disk = disk or MemoryDisk()
    store = await open_store(clock, disk, flush_mode=FlushMode.SYNC_FLUSH)
    sends = NumberedSends(store, producer_queues_max=producer_queues_max)
    offload = disk.offload

    async def slow(fn: Callable[..., object], *args: object) -> object:
        await clock.sleep(7)
        return await offload(fn, *args)

    disk.offload = slow  # type: ignore[method-assign,assignment]
    told: list[PutStatus] = []
    assert send(sends, clock, Claim("p", 1, ""), told)
    await clock.pass_time(5.1)
    assert told == [PutStatus.FLUSH_DISK_TIMEOUT]
    assert store.dispatched.value == 0
    disk.offload = offload  # type: ignore[method-assign]
    return store, sends


def send(
    sends: NumberedSends, clock: ManualClock, claim: Claim, told: list[PutStatus], key: str = KEY
) -> bool:
    reply = cast(SendReply, SimpleNamespace(done=told.append, appended=None))
    return sends.append(claim, "T", 0, [row(clock, key)], reply)


async def test_a_place_is_not_forgotten_before_its_messages_are_found_by_their_keys() -> None:
    """Before the queue entries exist, only the place knows the messages: a repeated send would be stored
    again.
    """
    clock = ManualClock()
    store, sends = await unflushed(clock, producer_queues_max=1)
    told: list[PutStatus] = []
    with pytest.raises(Busy, match="1 producers and queues are running"):
        send(sends, clock, Claim("q", 1, ""), told)
    assert not send(sends, clock, Claim("p", 1, ""), told)
    await clock.pass_time(10)
    assert told == [PutStatus.PUT_OK]
    assert store.queue_max("T", 0) == 1
    assert not send(sends, clock, Claim("q", 1, ""), told)  # the key is found now
    await store.close()


async def test_a_send_that_fails_takes_nothing_with_it_that_only_the_place_knows() -> None:
    """The preceding message is stored but not yet found by its key."""
    clock, disk = ManualClock(), MemoryDisk()
    store, sends = await unflushed(clock, producer_queues_max=8, disk=disk)
    offload = disk.offload

    async def later(fn: Callable[..., object], *args: object) -> object:
        await clock.sleep(7)
        return await offload(fn, *args)

    told: list[PutStatus] = []
    disk.offload = later  # type: ignore[method-assign,assignment]
    disk.fault = NoRoomOnce()
    assert send(sends, clock, Claim("p", 1, KEY), told, NEXT_KEY)
    clock.run_soon()
    disk.offload = offload  # type: ignore[method-assign]
    await clock.pass_time(1.5)
    assert told == [PutStatus.SERVICE_NOT_AVAILABLE]
    assert store.dispatched.value == 0
    assert not send(sends, clock, Claim("p", 1, ""), told)
    await clock.pass_time(10)
    assert told[1:] == [PutStatus.PUT_OK]
    assert store.queue_max("T", 0) == 1
    await store.close()


async def test_the_next_epoch_does_not_store_again_what_is_not_found_by_its_key_yet() -> None:
    """A producer that starts again after FLUSH_DISK_TIMEOUT waits until its stored messages are known."""
    clock = ManualClock()
    store, sends = await unflushed(clock, producer_queues_max=8)
    told: list[PutStatus] = []
    with pytest.raises(Busy, match="its earlier sends are not in the key index yet"):
        send(sends, clock, Claim("p", 2, ""), told)
    await clock.pass_time(10)
    assert not send(sends, clock, Claim("p", 2, ""), told)
    await clock.pass_time(1)
    assert told == [PutStatus.PUT_OK]
    assert store.queue_max("T", 0) == 1
    await store.close()


async def test_a_new_master_does_not_store_again_what_its_log_has_and_nobody_can_find_yet() -> None:
    """It remembers no producer; the end of its log is dispatched once it is confirmed."""
    clock = ManualClock()
    store, _ = await unflushed(clock, producer_queues_max=8)
    of_new_term = NumberedSends(store)
    told: list[PutStatus] = []
    with pytest.raises(Busy, match="the key index is not complete yet"):
        send(of_new_term, clock, Claim("p", 1, ""), told)
    await clock.pass_time(10)
    assert not send(of_new_term, clock, Claim("p", 1, ""), told)
    await clock.pass_time(1)
    assert told == [PutStatus.PUT_OK]
    assert store.queue_max("T", 0) == 1
    await store.close()


async def test_what_was_stored_before_the_wall_clock_went_back_is_found() -> None:
    clock, disk = ManualClock(), MemoryDisk()
    store = await open_store(clock, disk)
    told: list[PutStatus] = []
    assert send(NumberedSends(store), clock, Claim("p", 1, ""), told)
    clock.run_soon()
    await store.close()
    earlier = ManualClock(clock.now_ms() - 3 * 86_400_000)
    store = await open_store(earlier, disk)
    assert not send(NumberedSends(store), earlier, Claim("p", 1, ""), told)
    earlier.run_soon()
    assert told == [PutStatus.PUT_OK] * 2
    assert store.queue_max("T", 0) == 1
    await store.close()


def rows(clock: ManualClock, keys: list[str]) -> NewBatch:
    """Returns rows with these keys, as a producer sends them together."""
    count = len(keys)
    return NewBatch(
        topic="T",
        queue_ids=[0] * count,
        bodies=[key[-2:].encode() for key in keys],
        properties=[encode_properties({"UNIQ_KEY": key}) for key in keys],
        born_times_ms=[clock.now_ms()] * count,
        born_host=b"\x0a\x00\x00\x01\x00\x00\xd4\x31",
        tag_hashes=[0] * count,
        flags=[0] * count,
        sys_flag=0,
        retry_count=0,
        keys=[""] * count,
        unique_keys=keys,
        wait_stored=True,
    )


@pytest.mark.parametrize("held_count", range(7))
async def test_of_a_batch_whose_beginning_is_in_the_log_the_rest_is_stored(held_count: int) -> None:
    """A crash may have lost the end of a batch, and a new master remembers no producer."""
    clock = ManualClock()
    store = await open_store(clock, MemoryDisk())
    keys = [f"{number:032X}" for number in range(1, 8)]
    told: list[PutStatus] = []
    reply = cast(SendReply, SimpleNamespace(done=told.append, appended=None))

    def attempt(sends: NumberedSends, after: str, keys: list[str]) -> bool:
        is_new = sends.append(Claim("p", 1, after), "T", 0, rows(clock, keys), reply)
        clock.run_soon()
        return is_new

    if held_count:
        assert attempt(NumberedSends(store), "", keys[:held_count])
    sends = NumberedSends(store)
    assert attempt(sends, "", keys[:6]) == (held_count < 6)
    assert attempt(sends, keys[5], keys[6:])  # this follows the batch
    assert told == [PutStatus.PUT_OK] * len(told)
    found = store.reader.get("T", 0, 0, count_max=32, bytes_max=65_536)
    held = [record.unique_key for part in found.slices for record in decode_records(part)]
    assert held == keys
    assert not attempt(sends, "", keys[:6])
    assert store.queue_max("T", 0) == len(keys)
    await store.close()
