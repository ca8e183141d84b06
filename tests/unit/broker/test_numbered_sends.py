"""A numbered send that the store refuses has not happened: the next attempt stores it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from tandemmq.broker.send.numbered import Claim, NumberedSends
from tandemmq.broker.send.reply import SendReply
from tandemmq.protocol.properties import encode_properties
from tandemmq.protocol.record import NewRecord
from tandemmq.runtime.memory import ManualClock, MemoryDisk, NoFault
from tandemmq.store import MessageStore, PutStatus, StoreOptions

KEY = "0" * 31 + "1"


class NoRoomOnce(NoFault):
    def __init__(self) -> None:
        self.failures = 1

    def on_write(self, path: Path, offset: int, size: int) -> int:
        if self.failures and path.parent.name == "commitlog":
            self.failures -= 1
            return 0
        return size


async def test_a_send_that_was_not_stored_is_stored_by_the_next_attempt() -> None:
    clock, disk = ManualClock(), MemoryDisk()
    options = StoreOptions(
        root=Path("/store"),
        commit_log_file_bytes=65_536,
        key_index_slot_count=64,
        key_index_entry_count=64,
        store_host=b"\x0a\x00\x00\x01\x00\x00\x2a\x9f",
    )
    store = await MessageStore.open(options, disk=disk, clock=clock)
    sends = NumberedSends(store, clock)
    told: list[PutStatus] = []
    reply = cast(SendReply, SimpleNamespace(done=told.append, appended=None))

    def attempt() -> bool:
        record = NewRecord(
            topic="T",
            queue_id=0,
            body=b"row",
            properties=encode_properties({"UNIQ_KEY": KEY}),
            born_at_ms=clock.now_ms(),
            born_host=b"\x0a\x00\x00\x01\x00\x00\xd4\x31",
            unique_key=KEY,
        )
        is_new = sends.append(Claim("p", 1, ""), "T", 0, [record], reply)
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
