"""A slave whose store refuses bytes, while the same read contains more data that ends the copy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from replica_logs import make_log

from no_history import compare_nothing
from sim.memory import ManualClock, MemoryDisk, MemoryNetwork
from tandemmq.broker.replica.log_checksum import LogChecksums
from tandemmq.errors import DiskFull, FlushFailed
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.requests.replica import LogChecksumRequest, LogChecksumResponse
from tandemmq.remoting.channel import Channel
from tandemmq.replication.core.effects import HaltReason
from tandemmq.replication.core.frames import encode_head, encode_report
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.progress import SlaveState
from tandemmq.replication.shell import ReplicationMaster, ReplicationSlave
from tandemmq.store import BrokerRole, FlushMode, MessageStore, StoreOptions

SEGMENT = 64 * 1024
RECORD, _ = make_log([100], segment_bytes=SEGMENT)
DAMAGE = b"\xff" * 100


class Master(asyncio.Protocol):
    """Answers the first report with `answer`."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.heard = b""
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard += data
        self.transport.write(self.answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


@pytest.mark.parametrize(
    ("answer", "reason", "attempt_count"),
    [
        (encode_head(0, len(RECORD + DAMAGE)) + RECORD + DAMAGE, HaltReason.DAMAGED, 2),
        (
            encode_head(0, len(RECORD)) + RECORD + encode_head(SEGMENT - 8, 100),
            HaltReason.FILE_SIZES_DIFFER,
            1,
        ),
    ],
    ids=["damage", "a frame across files"],
)
async def test_a_full_disk_keeps_no_connection_that_what_came_behind_has_ended(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, reason: HaltReason, attempt_count: int
) -> None:
    """The slave requests damaged bytes again once, then halts; for other file sizes it halts at once."""
    clock = ManualClock()
    network = MemoryNetwork(clock)
    options = StoreOptions(root=Path("/store"), role=BrokerRole.SLAVE, commit_log_file_bytes=SEGMENT)
    store = await MessageStore.open(options, disk=MemoryDisk(), clock=clock)

    def refuse(*_: object) -> None:
        raise DiskFull("no room")

    monkeypatch.setattr(store, "append_raw", refuse)
    masters: list[Master] = []

    def accept() -> Master:
        masters.append(Master(answer))
        return masters[-1]

    listener = await network.listen("10.0.0.1", 10912, accept)
    faults: list[BaseException] = []
    halts: list[HaltReason] = []
    slave = ReplicationSlave(
        store, ReplicationOptions(), compare_nothing, network=network, clock=clock, on_fatal=faults.append
    )
    slave.on_halted = lambda: halts.append(reason)
    slave.set_master("10.0.0.1:10912")
    await slave.start()
    for attempt in range(1, attempt_count + 1):
        await clock.pass_time(1.0)
        assert [master.is_lost for master in masters] == [True] * attempt
        is_last = attempt == attempt_count
        assert slave.status().state is (SlaveState.HALTED if is_last else SlaveState.PAUSED)
        await clock.pass_time(4.0)
    assert faults == []
    halt = slave.status().halt
    assert halt is not None
    assert halt.reason is reason
    assert halts == [reason], "told once"
    assert [master.heard for master in masters] == [encode_report(0) * 2] * attempt_count
    await slave.stop()
    await listener.close()
    await store.close()


async def test_nothing_behind_a_store_that_failed_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk has room again before the next file arrives, in the same read: an empty log may begin at
    any file.
    """
    clock = ManualClock()
    network = MemoryNetwork(clock)
    options = StoreOptions(root=Path("/store"), role=BrokerRole.SLAVE, commit_log_file_bytes=SEGMENT)
    store = await MessageStore.open(options, disk=MemoryDisk(), clock=clock)
    append_raw, refused = store.append_raw, list[int]()

    def refuse_once(log_offset: int, *rest: Any) -> None:
        if not refused:
            refused.append(log_offset)
            raise DiskFull("no room")
        append_raw(log_offset, *rest)

    monkeypatch.setattr(store, "append_raw", refuse_once)
    log, _ = make_log([SEGMENT * 3 // 4] * 2, segment_bytes=SEGMENT)
    frames = [log[:SEGMENT], log[SEGMENT:]]
    assert all(frames)
    answer = b"".join(encode_head(at, len(one)) + one for at, one in zip((0, SEGMENT), frames, strict=True))
    listener = await network.listen("10.0.0.1", 10912, lambda: Master(answer))
    slave = ReplicationSlave(store, ReplicationOptions(), compare_nothing, network=network, clock=clock)
    slave.set_master("10.0.0.1:10912")
    await slave.start()
    await clock.pass_time(1.0)
    assert (refused, store.max_log_offset) == ([0], 0)
    await clock.pass_time(5.0)
    assert (store.min_log_offset, store.max_log_offset) == (0, len(log))
    await slave.stop()
    await listener.close()
    await store.close()


@pytest.mark.parametrize(
    "fault", [FlushFailed("sick"), AssertionError("ours")], ids=["sick disk", "assertion"]
)
@pytest.mark.parametrize("behind", [b"", DAMAGE], ids=["nothing behind", "damage behind"])
async def test_a_slave_stops_and_leaves_no_connection_after_a_fault_in_its_store(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, behind: bytes
) -> None:
    """Damage follows: the session has dropped the connection, and the fault occurs before it is closed."""
    clock = ManualClock()
    network = MemoryNetwork(clock)
    options = StoreOptions(root=Path("/store"), role=BrokerRole.SLAVE, commit_log_file_bytes=SEGMENT)
    store = await MessageStore.open(options, disk=MemoryDisk(), clock=clock)

    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(store, "append_raw", fail)
    master = Master(encode_head(0, len(RECORD + behind)) + RECORD + behind)
    listener = await network.listen("10.0.0.1", 10912, lambda: master)
    faults: list[BaseException] = []
    slave = ReplicationSlave(
        store, ReplicationOptions(), compare_nothing, network=network, clock=clock, on_fatal=faults.append
    )
    slave.set_master("10.0.0.1:10912")
    await slave.start()
    await clock.pass_time(1.0)
    assert (faults, master.is_lost) == ([fault], False)
    await slave.stop()
    clock.run_soon()
    assert master.is_lost
    assert slave.status().state is SlaveState.STOPPED
    await listener.close()
    await store.close()


async def test_who_asks_a_slave_whose_first_bytes_are_not_on_disk_yet_gets_nothing() -> None:
    """It listens like a master, and its copy does not begin at 0."""
    clock = ManualClock()
    network = MemoryNetwork(clock)
    options = StoreOptions(
        root=Path("/store"),
        role=BrokerRole.SLAVE,
        commit_log_file_bytes=SEGMENT,
        flush_mode=FlushMode.SYNC_FLUSH,
    )
    disk = MemoryDisk()
    store = await MessageStore.open(options, disk=disk, clock=clock)
    faults: list[BaseException] = []
    hub = ReplicationMaster(store, ReplicationOptions(), network=network, clock=clock, on_fatal=faults.append)
    _, port = await hub.start("127.0.0.1", 0)
    store.append_raw(3 * SEGMENT, RECORD)
    assert (store.min_log_offset, store.confirmed.value) == (3 * SEGMENT, 0)
    asker = Master(b"")
    await network.connect("127.0.0.1", port, lambda: asker, 10.0)
    asker.transport.write(encode_report(0) * 2)
    clock.run_soon()
    assert faults == []
    assert not asker.is_lost
    question = Command.request(
        RequestCode.TANDEM_READ_LOG_CHECKSUM, LogChecksumRequest(log_offset=0, size_bytes=0)
    )
    checksums = LogChecksums(store, disk=disk, run_id="run")
    answer = await checksums.handle_checksum(cast(Channel, None), question)
    ends = answer.decode(LogChecksumResponse)
    assert (ends.min_offset, ends.max_offset) == (3 * SEGMENT, 3 * SEGMENT)
    await hub.stop()
    await store.close()
