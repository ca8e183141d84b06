"""Masters and slaves as whole brokers: roles from the name server, tables, reads, states.

Source: spec replication 4.10, 6, 7.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import (
    MESSAGE_BYTES_MAX,
    Peer,
    pull_response,
    records_of,
    running_name_server,
    until,
)
from replica_pair import log_bytes, wait_for_slaves

from tandemmq.api.broker_offset import commit_offset
from tandemmq.api.broker_topic import create_topic
from tandemmq.api.replica import HeldTable, fetch_ha_status, fetch_topics
from tandemmq.broker.broker import Broker
from tandemmq.broker.options import BrokerOptions
from tandemmq.protocol.bodies.data_version import DataVersion
from tandemmq.protocol.bodies.topic import TopicConfig
from tandemmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.replication.core.options import ReplicationOptions
from tandemmq.replication.core.states import SlaveState
from tandemmq.runtime.chance import SeededRandom
from tandemmq.runtime.clock import LoopClock
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.network import TcpNetwork
from tandemmq.store import BrokerRole, StoreOptions

REPLICATION = ReplicationOptions(
    heartbeat_interval_ms=200, silence_ms_max=20_000, reconnect_delay_ms=20, config_sync_interval_ms=50
)


class Group:
    """The brokers of one name, and their name server."""

    def __init__(self, root: Path, name_server: str) -> None:
        self.root = root
        self.name_server = name_server
        self.brokers: dict[int, Broker] = {}
        self.replication = REPLICATION

    async def start(self, broker_id: int, *, ports: tuple[int, int] = (0, 0), **store: object) -> Broker:
        settings: dict[str, object] = {
            "commit_log_file_bytes": 1 << 20,
            "consume_queue_file_bytes": 20_000,
            "key_index_slot_count": 1_000,
            "key_index_entry_count": 4_000,
            "message_bytes_max": MESSAGE_BYTES_MAX,
            "role": BrokerRole.SLAVE if broker_id else BrokerRole.ASYNC_MASTER,
            **store,
        }
        broker = Broker(
            BrokerOptions(
                broker_name="group",
                broker_id=broker_id,
                listen_host="127.0.0.1",
                listen_port=ports[0],
                ha_listen_port=ports[1],
                fast_listen=False,
                name_servers=(self.name_server,),
                slave_read_enable=True,
            ),
            StoreOptions(root=self.root / str(broker_id), **settings),  # type: ignore[arg-type]  # real fields
            self.replication,
            network=TcpNetwork(),
            disk=RealDisk(),
            clock=LoopClock(),
            chance=SeededRandom(broker_id),
        )
        self.brokers[broker_id] = broker
        await broker.start()
        return broker

    async def stop(self, broker_id: int) -> None:
        await self.brokers.pop(broker_id).stop()

    async def caught_up(self, broker_id: int = 1) -> None:
        master, slave = self.brokers[0].store, self.brokers[broker_id].store
        assert master is not None
        assert slave is not None
        await until(lambda: slave.dispatched.value == master.appended.value, "caught up")


@pytest.fixture
async def group(tmp_path: Path) -> AsyncIterator[Group]:
    async with AsyncExitStack() as stack:
        subject = Group(tmp_path, await stack.enter_async_context(running_name_server(tmp_path)))
        yield subject
        for broker_id in sorted(subject.brokers, reverse=True):
            await subject.stop(broker_id)


async def held_topics(peer: Peer) -> dict[str, TopicConfig]:
    held = HeldTable(data_version=DataVersion(), entry_count=0)
    return (await fetch_topics(peer.client, peer.address, held)).entries


async def test_slave_learns_its_master_and_copies_log_and_tables(group: Group) -> None:
    master, slave = await group.start(0), await group.start(1)
    async with Peer(master) as to_master, Peer(slave) as to_slave:
        topic = TopicConfig(name="Orders", read_queue_count=2, write_queue_count=2)
        await create_topic(to_master.client, to_master.address, topic)
        for number in range(10):
            await to_master.send_ok("Orders", b"order %d" % number)
        await commit_offset(to_master.client, to_master.address, "G", "Orders", 0, 7)
        await group.caught_up()
        assert slave.store is not None
        assert master.store is not None
        assert log_bytes(slave.store) == log_bytes(master.store)

        versions = master._tables.topics, slave._tables.topics
        await until(lambda: versions[0].data_version == versions[1].data_version, "topics")
        assert await held_topics(to_slave) == await held_topics(to_master)
        assert "Orders" in await held_topics(to_slave)
        records = records_of(await to_slave.pull("Orders"))
        assert [record.body for record in records] == [b"order %d" % number for number in range(10)]


async def test_offsets_and_groups_arrive_within_a_moment(group: Group) -> None:
    master, slave = await group.start(0), await group.start(1)
    async with Peer(master) as to_master, Peer(slave):
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        await to_master.send_ok("T")
        answer = await to_master.pull("T", consumer_group="made-by-use")
        assert answer.code == ResponseCode.SUCCESS
        await commit_offset(to_master.client, to_master.address, "made-by-use", "T", 0, 1)
        tables = slave._tables
        await until(lambda: tables.groups.get("made-by-use") is not None, "group")
        await until(lambda: tables.offsets.committed("made-by-use", "T", 0) == 1, "offset")
        await until(lambda: tables.topics.data_version == master._tables.topics.data_version, "version")


async def test_slave_refuses_sends_and_keeps_serving_after_its_master_died(group: Group) -> None:
    master, slave = await group.start(0), await group.start(1)
    async with Peer(master) as to_master, Peer(slave) as to_slave:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        await to_master.send_ok("T", b"kept")
        await group.caught_up()
        await until(lambda: slave._tables.topics.get("T") is not None, "topic")
        refused = await to_slave.send("T", b"never")
        assert refused.code != ResponseCode.SUCCESS
    await group.stop(0)
    async with Peer(slave) as to_slave:
        (record,) = records_of(await to_slave.pull("T"))
        assert record.body == b"kept"


async def test_master_that_comes_back_is_followed_again(group: Group) -> None:
    master, slave = await group.start(0), await group.start(1)
    ports = master.address[1], master.ha_address[1]
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        await to_master.send_ok("T", b"one")
        await group.caught_up()
    await group.stop(0)
    replica = slave._replica
    assert replica is not None
    await until(lambda: replica.slave.status().state is not SlaveState.TRANSFERRING, "lost")
    master = await group.start(0, ports=ports)
    async with Peer(master) as to_master:
        await to_master.send_ok("T", b"two")
        await create_topic(to_master.client, to_master.address, TopicConfig(name="Later"))
    await group.caught_up()
    await until(lambda: slave._tables.topics.get("Later") is not None, "topic of the new life")


async def test_synchronous_send_over_the_wire(group: Group) -> None:
    settings = {"role": BrokerRole.SYNC_MASTER, "in_sync_replicas": 2, "slave_timeout_ms": 200}
    master = await group.start(0, **settings)
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        answer = await to_master.send("T", b"alone")
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        slave = await group.start(1)
        await group.caught_up()
        assert slave.store is not None
        assert master.store is not None
        wait_for_slaves(master.store)
        await to_master.send_ok("T", b"together")
        assert slave.store.appended.value == master.store.appended.value


async def test_state_of_replication_is_told_by_both_sides(group: Group) -> None:
    master = await group.start(0)
    slaves = [await group.start(1), await group.start(2)]
    async with Peer(master) as to_master, Peer(slaves[0]) as to_slave:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        for _ in range(5):
            await to_master.send_ok("T", b"x" * 100)
        await group.caught_up(1)
        await group.caught_up(2)
        assert master.store is not None
        end = master.store.appended.value
        await until(lambda: list(master.store.acks.positions().values()) == [end, end])  # type: ignore[union-attr]  # started
        status = await fetch_ha_status(to_master.client, to_master.address)
        assert (status.is_master, status.max_log_offset, status.in_sync_count) == (True, end, 2)
        assert [(c.acknowledged_offset, c.lag_bytes, c.is_in_sync) for c in status.connections] == [
            (end, 0, True),
            (end, 0, True),
        ]
        status = await fetch_ha_status(to_slave.client, to_slave.address)
        assert not status.is_master
        assert status.client.max_log_offset == end
        assert status.client.master_address.endswith(f":{master.ha_address[1]}")
        assert status.client.read_at_ms > 0


async def test_slave_that_starts_first_waits_for_a_master(group: Group) -> None:
    slave = await group.start(1)
    replica = slave._replica
    assert replica is not None
    assert replica.slave.status().state is SlaveState.UNASSIGNED
    assert not replica.is_master_known
    async with Peer(slave) as to_slave:
        answer = await to_slave.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert answer.code == ResponseCode.SUCCESS
        assert b"dataVersion" in bytes(answer.body)


async def test_tables_of_a_slave_survive_its_restart_without_the_master(group: Group) -> None:
    master, slave = await group.start(0), await group.start(1)
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T", read_queue_count=3))
        await to_master.send_ok("T", b"kept")
        await commit_offset(to_master.client, to_master.address, "G", "T", 0, 1)
        await group.caught_up()
        tables = slave._tables
        await until(lambda: tables.topics.get("T") is not None, "topic")
        await until(lambda: tables.offsets.committed("G", "T", 0) == 1, "offset")
    await group.stop(0)
    await group.stop(1)
    slave = await group.start(1)
    config = slave._tables.topics.get("T")
    assert config is not None
    assert config.read_queue_count == 3
    assert slave._tables.offsets.committed("G", "T", 0) == 1
    async with Peer(slave) as to_slave:
        answer = await to_slave.pull("T")
        assert pull_response(answer).next_offset == 1


async def test_slave_of_a_master_that_lost_its_tail_and_grew_past_it_halts(group: Group) -> None:
    master, slave = await group.start(0), await group.start(1)
    ports = master.address[1], master.ha_address[1]
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        for number in range(5):
            await to_master.send_ok("T", b"common %d" % number)
        await group.caught_up()
        await group.stop(1)
        assert master.store is not None
        common_end = master.store.appended.value
    await group.stop(0)
    # The tail that only the slave keeps: it copies three more, then the master goes back to before them.
    shutil.copytree(group.root / "0", group.root / "before")
    master, slave = await group.start(0, ports=ports), await group.start(1)
    async with Peer(master) as to_master:
        for number in range(3):
            await to_master.send_ok("T", b"lost %d" % number)
        await group.caught_up()
    assert slave.store is not None
    kept = log_bytes(slave.store)
    await group.stop(1)
    await group.stop(0)
    shutil.rmtree(group.root / "0")
    shutil.move(group.root / "before", group.root / "0")
    master = await group.start(0, ports=ports)
    async with Peer(master) as to_master:
        for number in range(9):
            await to_master.send_ok("T", b"instead %d" % number)
        slave = await group.start(1)
        assert slave.store is not None
        assert master.store is not None
        assert master.store.appended.value > slave.store.appended.value
        replica = slave._replica
        assert replica is not None
        await until(lambda: replica.slave.status().state is SlaveState.HALTED, "halted")
        async with Peer(slave) as to_slave:
            told = (await fetch_ha_status(to_slave.client, to_slave.address)).client
            assert (told.state, told.halt_reason, told.tail) == ("HALTED", "DIVERGED", "DIFFERENT")
            assert told.halt_offset is not None
            assert common_end <= told.halt_offset < common_end + 100
        assert log_bytes(slave.store) == kept
        assert (await fetch_ha_status(to_master.client, to_master.address)).in_sync_count == 0
        await until(lambda: rows_at(master) == [("group:1", "HALTED", "DIVERGED")], "the master knows why")

        # The master forgets it with its own end, and is told again.
        await group.stop(0)
        master = await group.start(0, ports=ports)
        await until(lambda: rows_at(master) == [("group:1", "HALTED", "DIVERGED")], "and is told again")
    await group.stop(1)
    shutil.rmtree(group.root / "1")
    await group.start(1)
    await until(lambda: rows_at(master) == [("group:1", "TRANSFERRING", None)], "an empty slave follows")


def rows_at(master: Broker) -> list[tuple[str | None, str | None, str | None]]:
    """Name, state and told reason of each slave in the master's status."""
    assert master._replica is not None
    return [(one.slave, one.state, one.halt_reason) for one in master._replica.status().connections]


async def test_slaves_of_one_host_have_rows_of_their_own(group: Group) -> None:
    master = await group.start(0)
    for broker_id in (1, 2):
        await group.start(broker_id)
    following = {("group:1", "TRANSFERRING", None), ("group:2", "TRANSFERRING", None)}
    await until(lambda: set(rows_at(master)) == following, "both follow")
    for broker_id in (1, 2):
        await group.stop(broker_id)
    gone = [("group:1", "CLOSED", None), ("group:2", "CLOSED", None)]
    await until(lambda: rows_at(master) == gone, "both are gone")
    await group.start(2)
    left = [("group:2", "TRANSFERRING", None), ("group:1", "CLOSED", None)]
    await until(lambda: rows_at(master) == left, "one is missing")


async def test_only_ours_are_told_more_than_rocketmqs_fields(group: Group) -> None:
    master = await group.start(0)
    await group.start(1)
    async with Peer(master) as to_master:
        await to_master.send_ok("TBW102", b"x")
        await group.caught_up()
        (one,) = (await fetch_ha_status(to_master.client, to_master.address)).connections
        assert (one.state, one.start_rule, one.is_tandem) == ("TRANSFERRING", "FIRST_FILE", True)
        asked = Command.request(RequestCode.GET_BROKER_HA_STATUS)
        asked.language = int(LanguageCode.JAVA)
        answer = await to_master.client.request(to_master.address, asked, 3)
        assert b"tandem" not in bytes(answer.body)


async def test_topics_and_groups_are_pushed_without_waiting_for_a_round(group: Group) -> None:
    group.replication = replace(REPLICATION, config_sync_interval_ms=600_000)
    master, slave = await group.start(0), await group.start(1)
    replica = slave._replica
    assert replica is not None
    await until(lambda: replica.config_sync.round_count > 0, "first round")
    async with Peer(master) as to_master:
        for number in range(3):
            await create_topic(to_master.client, to_master.address, TopicConfig(name=f"T{number}"))
            await until(lambda name=f"T{number}": slave._tables.topics.get(name) is not None, "topic")  # type: ignore[misc]  # default binds
        await to_master.pull("T0", consumer_group="made-by-use")
        await until(lambda: slave._tables.groups.get("made-by-use") is not None, "group")


async def test_codes_that_only_slaves_of_rocketmq_ask_have_whole_answers(group: Group) -> None:
    master = await group.start(0)
    async with Peer(master) as to_master:
        modes = await to_master.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert (modes.code, bytes(modes.body)) == (ResponseCode.SUCCESS, b'{"messageRequestModeMap":{}}')
        metrics = await to_master.ask(RequestCode.GET_TIMER_METRICS)
        assert metrics.code == ResponseCode.SUCCESS
        assert bytes(metrics.body).startswith(b'{"timingCount":{},"dataVersion":{')
