"""A master whose slave connections are pumped within its store's write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sim.memory import ManualClock, MemoryDisk, MemoryNetwork
from tandemmq.protocol.record import NewRecord
from tandemmq.replication.core.frames import encode_report
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.shell import ReplicationMaster
from tandemmq.store import BrokerRole, MessageStore, PutStatus, StoreOptions

RECORD = NewRecord(topic="T", queue_id=0, body=b"x", properties=b"", born_at_ms=1, born_host=bytes(8))


class Slave(asyncio.Protocol):
    def __init__(self) -> None:
        self.heard_bytes = 0
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self.heard_bytes += len(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


class Rig:
    """A SYNC_MASTER that waits for one of its two slaves."""

    async def start(self) -> None:
        self.clock = ManualClock()
        self.network = MemoryNetwork(self.clock)
        self.faults: list[BaseException] = []
        self.store = await MessageStore.open(
            StoreOptions(
                root=Path("/store"),
                role=BrokerRole.SYNC_MASTER,
                in_sync_replicas=2,
                commit_log_file_bytes=1 << 16,
                key_index_enable=False,
            ),
            disk=MemoryDisk(),
            clock=self.clock,
            on_fatal=self.faults.append,
        )
        self.master = ReplicationMaster(
            self.store,
            ReplicationOptions(),
            network=self.network,
            clock=self.clock,
            on_fatal=self.faults.append,
        )
        self.address = await self.master.start("10.0.0.1", 10912)

    async def stop(self) -> None:
        await self.master.stop()
        await self.store.close()

    async def come(self) -> Slave:
        slave = Slave()
        transport = await self.network.connect(*self.address, lambda: slave, 1.0)
        transport.write(encode_report(0) * 2)
        await self.clock.pass_time(0.1)
        return slave


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    subject = Rig()
    await subject.start()
    yield subject
    await subject.stop()


async def test_bytes_that_a_send_waits_for_are_sent_within_its_write(rig: Rig) -> None:
    await rig.come()
    rig.store.appender.append([RECORD], lambda _status: None)
    sent: list[int] = []
    rig.clock.call_soon(lambda: sent.append(rig.master.status().slaves[0].next_offset))
    rig.clock.run_soon()
    assert sent == [rig.store.appended.value]


async def test_an_error_of_one_connection_costs_neither_the_store_nor_another_slave(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, sound = await rig.come(), await rig.come()
    heard_bytes = sound.heard_bytes
    log_view, asked = rig.master.log_view, []

    def fail_once(log_offset: int, bytes_max: int) -> memoryview:
        asked.append(log_offset)
        if len(asked) == 1:
            raise ValueError("mmap length is greater than file size")
        return log_view(log_offset, bytes_max)

    monkeypatch.setattr(rig.master, "log_view", fail_once)
    statuses: list[PutStatus] = []
    rig.store.appender.append([RECORD], statuses.append)
    await rig.clock.pass_time(0.1)
    assert not rig.faults
    assert not rig.store.facts().is_failed
    assert statuses == []
    assert broken.is_lost
    assert not sound.is_lost
    assert sound.heard_bytes > heard_bytes


async def test_slave_resumes_at_once_when_damage_before_it_is_healed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    slave = await rig.come()
    heard_bytes = slave.heard_bytes
    with monkeypatch.context() as damaged:
        damaged.setattr(rig.master, "log_view", lambda _log_offset, _bytes_max: memoryview(b""))
        rig.store.appender.append([RECORD], lambda _status: None)
        rig.clock.run_soon()
        assert slave.heard_bytes == heard_bytes
    rig.master.wake()
    rig.clock.run_soon()
    assert slave.heard_bytes > heard_bytes


async def test_a_slave_that_is_far_behind_takes_its_part_of_a_turn_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_bytes = 1024
    monkeypatch.setattr("tandemmq.replication.shell.slave_connection.TURN_BYTES_MAX", turn_bytes)
    await rig.come()
    with monkeypatch.context() as unread:
        unread.setattr(rig.master, "log_view", lambda _log_offset, _bytes_max: memoryview(b""))
        rig.store.appender.append([RECORD] * 100, lambda _status: None)
        rig.clock.run_soon()
    before = rig.master.status().slaves[0].next_offset
    for _ in range(5):
        rig.master.wake()
    sent_bytes = rig.master.status().slaves[0].next_offset - before
    assert turn_bytes <= sent_bytes < 2 * turn_bytes
    rig.clock.run_soon()
    assert rig.master.status().slaves[0].next_offset == rig.store.appended.value > 5 * turn_bytes
