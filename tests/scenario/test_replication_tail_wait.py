"""A SYNC_MASTER whose machine was restarted serves nothing before it has everything that its slaves have."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from broker_rig import Peer, records_of
from replica_group import Group, running_group
from replica_pair import log_bytes, wait_for_slaves

from ports import free_port
from tandemmq.api.broker_admin import create_topic, query_ha_status
from tandemmq.api.nameserver import query_cluster_info
from tandemmq.api.replica import accept_log
from tandemmq.broker.broker import Broker
from tandemmq.errors import RequestRejected
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import ResponseCode
from tandemmq.remoting.options import render_address
from tandemmq.replication.core.progress import SlaveState
from tandemmq.store import BrokerRole
from waits import until

SYNC = {"role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2, "slave_timeout_ms": 300}


def state_of(slave: Broker) -> SlaveState:
    assert slave._replica is not None
    return slave._replica.slave.status().state


def doubt_of(master: Broker) -> str:
    assert master.store is not None
    return master.store.unverified_reason


def reason_of(master: Broker) -> str:
    assert master._replica is not None
    return master._replica.tail_wait.reason


async def send_all(master: Broker, *bodies: bytes) -> None:
    assert master.store is not None
    wait_for_slaves(master.store)
    async with Peer(master) as peer:
        for body in bodies:
            await peer.send_ok("T", body)


def lose_power(root: Path, kept: Path) -> None:
    """Resets the master's directory to its content on disk at an earlier moment, as after a restart of the
    machine.
    """
    shutil.rmtree(root / "0")
    shutil.copytree(kept, root / "0")
    (root / "0" / "abort").write_text("1 another-boot")


async def shortened(group: Group, ports: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """Runs a pair with ten messages, of which the stopped master has lost five; the slave runs. Returns the
    ports.
    """
    master, slave = await group.start(0, ports=ports, **SYNC), await group.start(1)
    async with Peer(master) as peer:
        await create_topic(peer.client, peer.address, TopicConfig(name="T"))
    await send_all(master, *(b"old %d" % number for number in range(5)))
    await group.caught_up()
    ports = master.address[1], master.ha_address[1]
    await group.stop(0)
    shutil.copytree(group.root / "0", group.root / "kept")
    master = await group.start(0, ports=ports, **SYNC)
    await until(lambda: state_of(slave) is SlaveState.TRANSFERRING, "followed again")
    await send_all(master, *(b"acknowledged %d" % number for number in range(5)))
    await group.caught_up()
    await group.stop(0)
    lose_power(group.root, group.root / "kept")
    return ports


async def test_master_fetches_messages_that_only_its_slave_holds(group: Group) -> None:
    ports = await shortened(group)
    slave = group.brokers[1]
    assert slave.store is not None
    end = slave.store.max_log_offset
    master = await group.start(0, ports=ports, **SYNC)
    await until(lambda: not doubt_of(master), "the master serves")
    assert master.store is not None
    assert master.store.max_log_offset >= end
    await until(lambda: state_of(slave) is SlaveState.TRANSFERRING, "nobody was emptied")
    await send_all(master, b"new")
    async with Peer(master) as peer:
        bodies = [record.body for record in records_of(await peer.pull("T"))]
        assert (await query_ha_status(peer.client, peer.address)).waiting is None
    assert bodies == [
        *(b"old %d" % number for number in range(5)),
        *(b"acknowledged %d" % number for number in range(5)),
        b"new",
    ]
    assert log_bytes(slave.store) == log_bytes(master.store)


async def test_without_a_slave_it_serves_nothing_until_one_comes(group: Group) -> None:
    ports = await shortened(group)
    await group.stop(1)
    for life in range(2):  # a clean stop in between changes nothing
        if life:
            await group.stop(0)
        master = await group.start(0, ports=ports, **SYNC)
        async with Peer(master) as peer:
            for answer in (await peer.send("T", b"too early"), await peer.pull("T")):
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                assert "acknowledged messages that were not flushed" in (answer.remark or "")
            await until(lambda one=master: "no slave is known" in reason_of(one), "asked")  # type: ignore[misc]  # default binds
            status = await query_ha_status(peer.client, peer.address)
            assert "no slave is known" in (status.waiting or "")
            assert (await query_cluster_info(peer.client, group.name_server)).brokers == {}
    slave = await group.start(1)
    await until(lambda: not doubt_of(master), "the master serves")
    await until(lambda: state_of(slave) is SlaveState.TRANSFERRING, "the slave follows")
    await send_all(master, b"new")


async def test_another_history_at_the_slave_is_for_a_person_to_judge(group: Group) -> None:
    ports = await shortened(group)
    await group.stop(1)
    shutil.rmtree(group.root / "kept")
    # The slave of another master: its log begins differently.
    async with running_group(group.root / "elsewhere") as elsewhere:
        other = await elsewhere.start(0)
        async with Peer(other) as peer:
            await create_topic(peer.client, peer.address, TopicConfig(name="T"))
            for number in range(20):
                await peer.send_ok("T", b"other %d" % number)
    shutil.rmtree(group.root / "1")
    shutil.copytree(group.root / "elsewhere" / "0", group.root / "1")
    await group.start(1)
    master = await group.start(0, ports=ports, **SYNC)
    await until(lambda: "its log differs from this one at" in reason_of(master), "it says why")
    assert doubt_of(master)
    async with Peer(master) as peer:
        assert (await peer.send("T", b"too early")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "is accepted as it is" in await accept_log(peer.client, peer.address)
        await until(lambda: not doubt_of(master), "the master serves")
        assert records_of(await peer.pull("T"))[0].body == b"old 0"
        with pytest.raises(RequestRejected, match="nothing to accept"):
            await accept_log(peer.client, peer.address)
    await group.stop(0)
    master = await group.start(0, ports=ports, **SYNC)
    assert not doubt_of(master)


async def test_while_a_slave_was_made_the_master_it_goes_on_waiting(group: Group) -> None:
    """The other slave's log belongs to the new master; serving it here, too, would make two masters."""
    ports = await shortened(group)
    await group.stop(1)
    shutil.copytree(group.root / "1", group.root / "2")
    master = await group.start(0, ports=ports, **SYNC)
    del group.brokers[0]
    try:
        promoted = await group.start(0, directory="1")
        await group.start(2)
        await until(lambda: "is the master of this name" in reason_of(master), "it says why")
        async with Peer(master) as peer:
            await accept_log(peer.client, peer.address)
            assert (await peer.send("T", b"nowhere")).code == ResponseCode.SERVICE_NOT_AVAILABLE
            addresses = (await query_cluster_info(peer.client, group.name_server)).brokers["group"].addresses
        assert addresses[0] == render_address(promoted.address)
        await group.stop(0)
        await until(lambda: not doubt_of(master), "the master serves")
    finally:
        await master.stop()


async def test_a_setting_takes_the_log_as_it_is(group: Group) -> None:
    ports = await shortened(group)
    await group.stop(1)
    master = await group.start(0, ports=ports, accept_log=True, **SYNC)
    assert not doubt_of(master)
    async with Peer(master) as peer:
        assert [record.body for record in records_of(await peer.pull("T"))] == [
            b"old %d" % number for number in range(5)
        ]


async def test_without_name_server_the_slave_tells_where_it_is(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemmq.broker.replica.tail_check.UNLISTED_S", 0.1)
    port = free_port(neighbours=(1,))
    ports = await shortened(group, (port, port + 1))
    await group.stop(1)
    alone: dict[str, object] = {"name_servers": ()}
    master = await group.start(0, ports=ports, broker=alone, **SYNC)
    slave = await group.start(1, broker={**alone, "ha_master_address": f"127.0.0.1:{port + 1}"})
    await until(lambda: not doubt_of(master), "the master serves")
    await until(lambda: state_of(slave) is SlaveState.TRANSFERRING, "the slave follows")
    await send_all(master, b"new")
