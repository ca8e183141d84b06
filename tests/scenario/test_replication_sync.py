"""Sends that wait for slaves (spec replication 5, 16: I8-I11), and resources that remain after a long run."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from replica_pair import FAST, Peers, Proxy, log_bytes, new_record, send, wait_for_slaves

from tandemmq.replication.core.frames import encode_report
from tandemmq.replication.core.progress import MasterState
from tandemmq.runtime.disk import RealDisk
from tandemmq.store import BrokerRole, FlushMode, PutStatus
from waits import until

SYNC = BrokerRole.SYNC_MASTER


class HeldDisk(RealDisk):
    """A disk that syncs only while it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = asyncio.Event()
        self.may_sync.set()

    async def offload(self, fn: Callable[..., Any], *args: Any) -> Any:
        await self.may_sync.wait()
        return await super().offload(fn, *args)


async def subscribed(peers: Peers, count: int = 1) -> None:
    await peers.subscribed(count)


async def test_send_is_confirmed_once_the_slave_has_it(peers: Peers) -> None:
    master = await peers.start_master(SYNC, in_sync_replicas=2)
    slave = await peers.start_slave()
    await subscribed(peers)
    for number in range(20):
        assert await send(master, b"m%d" % number) == [PutStatus.PUT_OK]
        # Immediately, not soon: the master may be lost right after PUT_OK.
        assert slave.appended.value == master.appended.value
    assert log_bytes(slave) == log_bytes(master)


async def test_pipelined_sends_are_confirmed_together(peers: Peers) -> None:
    master = await peers.start_master(SYNC, in_sync_replicas=2)
    slave = await peers.start_slave()
    await subscribed(peers)
    statuses = await send(master, *[b"x" * 500] * 300)
    assert set(statuses) == {PutStatus.PUT_OK}
    assert log_bytes(slave) == log_bytes(master)


async def test_a_slave_gets_nothing_that_its_master_has_not_flushed(peers: Peers) -> None:
    """A power cut of the master would leave the slave with messages that the master never had."""
    disk = HeldDisk()
    master = await peers.start_master(SYNC, in_sync_replicas=2, disk=disk, flush_mode=FlushMode.SYNC_FLUSH)
    slave = await peers.start_slave(flush_mode=FlushMode.SYNC_FLUSH)
    await subscribed(peers)
    assert await send(master, b"flushed") == [PutStatus.PUT_OK]
    flushed = master.appended.value
    disk.may_sync.clear()
    try:
        sending = asyncio.ensure_future(send(master, b"only written"))
        await until(lambda: master.appended.value > flushed)
        # Bytes sent right at the write would overtake those sent to a new slave.
        other = await peers.start_slave("other")
        await subscribed(peers, 2)
        await until(lambda: other.appended.value == flushed, "all that is flushed is copied")
        assert slave.appended.value == flushed
        assert peers.master is not None
        assert peers.master.status().log_end == flushed
    finally:
        disk.may_sync.set()  # otherwise nothing can be stopped
    assert await sending == [PutStatus.PUT_OK]
    await peers.caught_up()
    await peers.caught_up("other")


async def test_send_without_a_slave_times_out_and_is_stored(peers: Peers) -> None:
    master = await peers.start_master(SYNC, in_sync_replicas=2, slave_timeout_ms=150)
    assert await send(master, b"alone") == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    assert master.queue_max("T", 0) == 1
    await peers.start_slave()
    await subscribed(peers)
    await peers.caught_up()
    wait_for_slaves(master)
    assert await send(master, b"together") == [PutStatus.PUT_OK]


async def test_send_that_does_not_wish_to_wait_does_not(peers: Peers) -> None:
    master = await peers.start_master(SYNC, in_sync_replicas=2)
    done: asyncio.Future[PutStatus] = asyncio.get_running_loop().create_future()
    record = new_record(b"careless")
    record.wait_stored = False
    master.appender.append([record], done.set_result)
    assert await asyncio.wait_for(done, 30) is PutStatus.PUT_OK


async def test_losing_the_slave_leaves_later_sends_waiting_until_it_is_back(peers: Peers) -> None:
    master = await peers.start_master(SYNC, in_sync_replicas=2)
    await peers.start_slave()
    await subscribed(peers)
    assert await send(master, b"one") == [PutStatus.PUT_OK]
    await peers.stop_slave()
    await until(lambda: not master.replies.acks.positions())
    waiting = asyncio.ensure_future(send(master, b"two"))
    await until(lambda: master.facts().sends_waiting_for_acks == 1, "it is stored and waits")
    assert not waiting.done()
    await peers.start_slave()
    assert await waiting == [PutStatus.PUT_OK]


async def test_each_slave_counts_once(peers: Peers) -> None:
    master = await peers.start_master(SYNC, in_sync_replicas=3, slave_timeout_ms=300)
    await peers.start_slave("one")
    await subscribed(peers)
    assert await send(master, b"a") == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    await peers.start_slave("two")
    await subscribed(peers, 2)
    wait_for_slaves(master)
    # Both are on this host: the first send proves to the master that they are two.
    assert await send(master, b"b") == [PutStatus.PUT_OK]
    assert len(master.replies.acks.positions()) == 2
    await peers.caught_up("one")
    await peers.caught_up("two")
    for name in ("one", "two"):
        assert log_bytes(peers.store(name)) == log_bytes(master)


async def test_one_slave_with_two_sockets_counts_once(peers: Peers) -> None:
    master = await peers.start_master(SYNC, in_sync_replicas=3, slave_timeout_ms=200)
    slave = await peers.start_slave()
    await subscribed(peers)
    await send(master, b"a")
    # A slave that was cut off and reconnected leaves an old socket with an old report.
    host, _, port = peers.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode_report(slave.appended.value))
    await subscribed(peers, 2)
    before = len(master.replies.acks.positions())
    assert before == 1
    assert await send(master, b"b") == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    writer.close()
    await writer.wait_closed()
    assert reader is not None


async def test_slave_that_is_ahead_confirms_nothing(peers: Peers) -> None:
    master = await peers.start_master(SYNC, in_sync_replicas=2, slave_timeout_ms=200)
    await send(master, b"a")
    host, _, port = peers.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode_report(1 << 40))
    assert peers.master is not None
    replication = peers.master
    await until(lambda: [s.state for s in replication.status().slaves] == [MasterState.AHEAD])
    assert await send(master, b"b") == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    assert replication.status().in_sync_count == 0
    head = await reader.readexactly(12)  # its own end, as a RocketMQ slave expects it
    assert head == (1 << 40).to_bytes(8, "big") + bytes(4)
    writer.close()
    await writer.wait_closed()


async def test_silent_connection_is_dropped(peers: Peers) -> None:
    await peers.start_master(options=replace(FAST, heartbeat_interval_ms=50, silence_ms_max=150))
    host, _, port = peers.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    assert await asyncio.wait_for(reader.read(), 30) == b""  # not a byte before the first report
    writer.close()
    await writer.wait_closed()
    assert peers.master is not None
    replication = peers.master
    await until(lambda: replication.status().slaves == (), "forgotten")


async def test_garbage_on_the_port_does_no_harm(peers: Peers) -> None:
    master = await peers.start_master()
    slave = await peers.start_slave()
    host, _, port = peers.address.rpartition(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0" * 7):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(garbage)
        writer.close()
        await writer.wait_closed()
    await send(master, b"still here")
    await peers.caught_up()
    assert log_bytes(slave) == log_bytes(master)


async def test_connections_beyond_the_bound_are_refused(peers: Peers) -> None:
    await peers.start_master(options=replace(FAST, connection_count_max=1))
    await peers.start_slave()
    await subscribed(peers)
    host, _, port = peers.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 30)
    writer.close()


async def test_slow_slave_does_not_hold_the_others_or_the_memory(peers: Peers) -> None:
    options = replace(FAST, silence_ms_max=60_000, write_buffer_bytes_max=100_000)
    master = await peers.start_master(options=options)
    await peers.start_slave()
    await subscribed(peers)
    host, _, port = peers.address.rpartition(":")
    stuck = socket.create_connection((host, int(port)))
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8_192)
    stuck.sendall(encode_report(0))
    await subscribed(peers, 2)
    for _ in range(12):
        await send(master, *[b"x" * 10_000] * 100)
        await peers.caught_up()
    assert peers.master is not None
    behind = max(status.lag_bytes for status in peers.master.status().slaves)
    sent = min(status.next_offset for status in peers.master.status().slaves)
    assert behind == master.appended.value
    assert sent < master.appended.value - 1_000_000
    stuck.close()


@pytest.fixture
def _only_own_objects() -> None:
    """Freezes other tests' objects: the collector skips them, so counting is fast and excludes them."""
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("_only_own_objects")
async def test_a_thousand_reconnects_leave_nothing_behind(peers: Peers) -> None:
    options = replace(FAST, reconnect_delay_ms=1, silence_ms_max=60_000)
    master = await peers.start_master(options=options)
    proxy = Proxy(peers.address)
    await proxy.start()
    slave = await peers.start_slave(address=proxy.address, options=options)
    assert peers.master is not None
    replication = peers.master
    try:
        await subscribed(peers)
        await until(lambda: proxy.has_pair)
        tasks, objects, sockets = len(asyncio.all_tasks()), _live_connections(), _open_sockets()
        for number in range(1_000):
            if number % 100 == 0:
                await send(master, b"message %d" % number)
            await until(lambda: proxy.has_pair)
            proxy.cut()
        await peers.caught_up()
        assert proxy.connection_count >= 1_000
        await until(lambda: len(replication.status().slaves) == 1)
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        await until(lambda: _live_connections() <= objects, f"{objects} connections as before")
        await until(lambda: _open_sockets() <= sockets, "descriptors closed")
        # A slave counts again after its first report, which comes some time after its connection.
        await until(
            lambda: list(master.replies.acks.positions().values()) == [master.appended.value],
            "one slave, which acknowledged everything",
        )
        assert log_bytes(slave) == log_bytes(master)
    finally:
        await proxy.stop()


def _open_sockets() -> int:
    """Counts open sockets. Files of the stores are left out: the first messages open some."""
    links = Path("/proc/self/fd").iterdir()
    return sum(link.is_symlink() and os.readlink(link).startswith("socket:") for link in links)


def _live_connections() -> int:
    gc.collect()
    names = {"SlaveConnection", "MasterConnection", "MasterSession", "Connection"}
    return sum(
        type(item).__name__ in names and type(item).__module__.startswith("tandemmq.replication")
        for item in gc.get_objects()
    )


async def test_stopping_leaves_no_task_and_no_timer(peers: Peers) -> None:
    before = asyncio.all_tasks()
    await peers.start_master()
    await peers.start_slave()
    await subscribed(peers)
    await peers.stop()
    assert asyncio.all_tasks() == before
