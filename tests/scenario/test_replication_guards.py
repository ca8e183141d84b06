"""The peers that may take part in replication, over real sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from replica_pair import FAST, Peers, log_bytes, send

from tandemmq.replication.core.frames import encode_report
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.progress import SlaveState
from tandemmq.replication.shell import slave_connection
from tandemmq.store import BrokerRole, PutStatus
from waits import until

SECRET = replace(FAST, shared_secret="correct horse battery", connect_timeout_ms=300)
OTHER = replace(SECRET, shared_secret="wrong horse battery staple")
SYNC = BrokerRole.SYNC_MASTER


async def test_slave_that_knows_the_secret_follows_and_confirms(peers: Peers) -> None:
    master = await peers.start_master(SYNC, SECRET, in_sync_replicas=2)
    slave = await peers.start_slave(options=SECRET)
    await peers.subscribed()
    assert await send(master, *[b"x" * 900] * 100) == [PutStatus.PUT_OK] * 100
    assert log_bytes(slave) == log_bytes(master)
    assert peers.master is not None
    assert peers.master.status().slaves[0].is_tandem


@pytest.mark.parametrize(
    ("role", "options", "is_local", "is_warned"),
    [
        (SYNC, FAST, False, True),
        (SYNC, FAST, True, False),
        (SYNC, SECRET, False, False),
        (SYNC, replace(FAST, allowed_slaves=("127.0.0.1",)), False, False),
        (BrokerRole.ASYNC_MASTER, FAST, False, True),
    ],
)
async def test_master_whose_log_anybody_can_copy_says_so(
    peers: Peers,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    role: BrokerRole,
    options: ReplicationOptions,
    is_local: bool,
    is_warned: bool,
) -> None:
    monkeypatch.setattr(slave_connection, "is_loopback", lambda _host: is_local)
    await peers.start_master(role, options)
    assert ("replication.open_to_everybody" in caplog.messages) is is_warned


async def test_secret_holds_over_reconnects(peers: Peers) -> None:
    master = await peers.start_master(options=SECRET)
    slave = await peers.start_slave(options=SECRET)
    await send(master, b"one")
    await peers.caught_up()
    await peers.stop_master()
    master = await peers.start_master(options=SECRET)
    await send(master, b"two")
    await peers.caught_up()
    assert log_bytes(slave) == log_bytes(master)


@pytest.mark.parametrize(("of_master", "of_slave"), [(SECRET, FAST), (SECRET, OTHER), (FAST, SECRET)])
async def test_pair_without_a_common_secret_copies_nothing(
    peers: Peers, of_master: object, of_slave: object
) -> None:
    master = await peers.start_master(SYNC, of_master, in_sync_replicas=2, slave_timeout_ms=100)  # type: ignore[arg-type]  # options
    slave = await peers.start_slave(options=of_slave)  # type: ignore[arg-type]  # options
    assert await send(master, b"x") == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    await until(lambda: peers.slave().status().state is SlaveState.PAUSED, "refused")
    assert slave.appended.value == 0
    assert not master.replies.acks.positions()


async def test_stranger_cannot_confirm_a_send(peers: Peers) -> None:
    master = await peers.start_master(SYNC, SECRET, in_sync_replicas=2, slave_timeout_ms=200)
    host, _, port = peers.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    greeting = await reader.readexactly(28)
    writer.write(encode_report(0) * 2)
    assert await reader.read() == b""
    writer.close()
    reader, writer = await asyncio.open_connection(host, int(port))
    assert await reader.readexactly(28) != greeting
    sending = asyncio.ensure_future(send(master, b"x"))
    writer.write(encode_report(10**6))
    assert await sending == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    writer.close()


async def test_slave_outside_the_allowed_networks_is_cut_off(peers: Peers) -> None:
    master = await peers.start_master(options=replace(FAST, allowed_slaves=("10.0.0.0/8",)))
    await send(master, b"x")
    slave = await peers.start_slave()
    await until(lambda: peers.slave().status().state is SlaveState.PAUSED, "refused")
    assert slave.appended.value == 0
    await peers.stop_master()
    master = await peers.start_master(options=replace(FAST, allowed_slaves=("10.0.0.0/8", "127.0.0.0/8")))
    await peers.caught_up()
    assert log_bytes(slave) == log_bytes(master)
