"""Masters and slaves as whole brokers: roles from the name server, tables, reads, states.

Source: spec replication 4.10, 6, 7.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from broker_rig import Peer, pull_response, records_of
from replica_group import REPLICATION, Group, rows_at
from replica_pair import log_bytes, wait_for_slaves

from ports import free_port
from tandemmq.api.broker_admin import create_topic, delete_topic, query_ha_status
from tandemmq.api.broker_consume import commit_offset
from tandemmq.api.replica import HeldTable, fetch_topics, read_log
from tandemmq.broker.broker import Broker
from tandemmq.client import Admin
from tandemmq.errors import ConfigError, TopicNotFound
from tandemmq.protocol.bodies.codec import DataVersion, decode_kv_table
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.requests.replica import ReadLogRequest
from tandemmq.replication.core.effects import HaltReason
from tandemmq.replication.core.progress import SlaveState
from tandemmq.replication.core.verifier import TailOutcome
from tandemmq.replication.shell import ReplicationSlaveStatus
from tandemmq.store import BrokerRole
from waits import until


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
        facts = decode_kv_table((await to_slave.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
        assert (facts["putMessageTimesTotal"], facts["msgPutTotalTodayNow"]) == ("10", "10")
        assert float(facts["putTps"].split()[0]) > 0
        assert int(facts["putMessageSizeTotal"]) > 1_000


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


async def test_a_slow_reader_is_sent_only_to_a_slave_that_has_what_comes_next(group: Group) -> None:
    """A slave that was cut off does not know that a topic was deleted, and would return its old messages."""
    master = await group.start(0, memory_bytes=1)
    await group.start(1)
    await group.start(2)

    def followers() -> list[str | None]:
        return sorted(name or "" for name, state, _ in rows_at(master) if state == "TRANSFERRING")

    async with Peer(master) as to_master:

        async def suggested() -> int:
            return pull_response(await to_master.pull("T", count_max=1)).suggested_broker_id

        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        for number in range(3):
            await to_master.send_ok("T", b"old %d" % number)
        await until(lambda: followers() == ["group:1", "group:2"], "both have told their names")
        await until(suggested, "a slave that has everything")
        await group.stop(1)
        await until(lambda: followers() == ["group:2"], "one is gone")
        await delete_topic(to_master.client, to_master.address, "T")
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        for number in range(3):
            await to_master.send_ok("T", b"new %d" % number)
        await group.caught_up(2)
        assert await suggested() == 0
        slave = await group.start(1)
        await until(suggested, "it has them now")
        await until(lambda: slave._tables.topics.get("T") is not None, "topic")
        async with Peer(slave) as to_slave:
            records = records_of(await to_slave.pull("T", queue_offset=1))
            assert [record.body for record in records] == [b"new 1", b"new 2"]


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


@pytest.mark.parametrize("broker_id", [0, 1])
@pytest.mark.parametrize("number", [3, 9])
async def test_damage_is_healed_from_the_other_copy(group: Group, broker_id: int, number: int) -> None:
    """A bit flips while a broker is down; the broker fetches the record, and continues as if nothing had
    happened.
    """
    master = await group.start(0)
    await group.start(1)
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T", write_queue_count=1))
        for count in range(10):
            await to_master.send_ok("T", b"message %d" % count)
        await group.caught_up()
    assert master.store is not None
    end = master.store.max_log_offset
    ports = master.address[1], master.ha_address[1]
    await group.stop(broker_id)
    path = group.root / str(broker_id) / "commitlog" / ("0" * 20)
    sound = path.read_bytes()
    at = sound.index(b"message %d" % number)
    path.write_bytes(sound[:at] + b"M" + sound[at + 1 :])
    again = await group.start(broker_id, ports=(0, 0) if broker_id else ports)
    store = again.store
    assert store is not None
    await until(lambda: not store.damaged_ranges, "healed")
    assert path.read_bytes()[:end] == sound[:end]
    # A slave copies the tables separately from the log: it may have been stopped before it had the topic.
    await until(lambda: again._tables.topics.get("T") is not None, "the topic is copied")
    async with Peer(again) as peer, Peer(group.brokers[0]) as to_master:
        bodies = [record.body for record in records_of(await peer.pull("T"))]
        assert bodies == [b"message %d" % count for count in range(10)]
        await to_master.send_ok("T", b"one more")
    await group.caught_up()


@pytest.mark.parametrize("broker_id", [0, 1])
async def test_damage_that_a_running_broker_finds_is_healed_at_once(
    group: Group, broker_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a restart and without a rejected send."""
    monkeypatch.setattr("tandemmq.store.scrub.FIRST_DELAY_S", 0.05)
    # What is not flushed is not read.
    master = await group.start(0, scrub_interval_ms=50, flush_least_pages=0)
    await group.start(1, scrub_interval_ms=50, flush_least_pages=0)
    store = group.brokers[broker_id].store
    assert store is not None
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T", write_queue_count=1))
        for count in range(10):
            await to_master.send_ok("T", b"message %d" % count)
        await group.caught_up()
        path = group.root / str(broker_id) / "commitlog" / ("0" * 20)
        end = store.max_log_offset
        sound = path.read_bytes()[:end]
        at = sound.index(b"message 3")
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"M")
        await until(lambda: any((group.root / str(broker_id) / "damaged").glob("*.bad")), "found")
        await until(lambda: not store.damaged_ranges, "healed")
        assert path.read_bytes()[:end] == sound
        await to_master.send_ok("T", b"one more")
    await group.caught_up()


async def test_a_slave_whose_log_differs_looks_for_damage_before_it_halts(group: Group) -> None:
    """The damage is still unknown when the ends of the logs are compared."""
    master, slave = await group.start(0), await group.start(1)
    assert slave.store is not None
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T", write_queue_count=1))
        for count in range(10):
            await to_master.send_ok("T", b"message %d" % count)
        await group.caught_up()
    ports = master.address[1], master.ha_address[1]
    await group.stop(0)
    path = group.root / "1" / "commitlog" / ("0" * 20)
    end = slave.store.max_log_offset
    sound = path.read_bytes()[:end]
    with path.open("r+b") as file:
        for text in (b"message 3", b"message 7"):
            file.seek(sound.index(text))
            file.write(b"M")
    master = await group.start(0, ports=ports)
    async with Peer(master) as to_master:
        await to_master.send_ok("T", b"one more")
    await group.caught_up()
    assert path.read_bytes()[:end] == sound
    assert slave._replica.slave.status().halt is None
    assert not slave.store.damaged_ranges


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
        acks = master.store.replies.acks

        async def are_told_apart() -> bool:
            """Two slaves of one host count as one until both acknowledge a message sent since they report."""
            await to_master.send_ok("T", b"x" * 100)
            return len(acks.positions()) == 2

        await until(are_told_apart)
        end = master.store.appended.value
        await until(lambda: list(acks.positions().values()) == [end, end])
        status = await query_ha_status(to_master.client, to_master.address)
        assert (status.is_master, status.max_log_offset, status.in_sync_count) == (True, end, 2)
        assert [(c.acknowledged_offset, c.lag_bytes, c.is_in_sync) for c in status.connections] == [
            (end, 0, True),
            (end, 0, True),
        ]
        status = await query_ha_status(to_slave.client, to_slave.address)
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


async def test_topics_and_groups_are_pushed_without_waiting_for_a_round(group: Group) -> None:
    group.replication = replace(REPLICATION, config_sync_interval_ms=600_000)
    master, slave = await group.start(0), await group.start(1)
    replica = slave._replica
    assert replica is not None
    await until(lambda: replica.config_sync.complete_round > 0, "first round")
    async with Peer(master) as to_master:
        for number in range(3):
            await create_topic(to_master.client, to_master.address, TopicConfig(name=f"T{number}"))
            await until(lambda name=f"T{number}": slave._tables.topics.get(name) is not None, "topic")  # type: ignore[misc]  # default binds
        await to_master.pull("T0", consumer_group="made-by-use")
        await until(lambda: slave._tables.groups.get("made-by-use") is not None, "group")


async def test_topic_is_deleted_at_the_master_whichever_replicas_are_asked(group: Group) -> None:
    master, slave = await group.start(0), await group.start(1)
    tables = slave._tables.topics
    async with Peer(master) as to_master, Peer(slave) as to_slave, Admin(group.name_server) as admin:
        for topic in ("ByAdmin", "ByReplica"):
            await create_topic(to_master.client, to_master.address, TopicConfig(name=topic))
            await to_master.send_ok(topic, b"x")
            await until(lambda topic=topic: tables.get(topic) is not None, "topic")  # type: ignore[misc]  # default binds
        await admin.delete_topic("ByAdmin")
        await delete_topic(to_slave.client, to_slave.address, "ByReplica")
        assert tables.get("ByReplica") is not None
        await delete_topic(to_master.client, to_master.address, "ByReplica")
        await until(lambda: tables.get("ByAdmin") is None and tables.get("ByReplica") is None, "deletion")
        with pytest.raises(TopicNotFound):
            await admin.topic_route("ByAdmin")


async def test_each_broker_gives_its_log_as_it_is(group: Group) -> None:
    master, slave = await group.start(0), await group.start(1)
    async with Peer(master) as to_master, Peer(slave) as to_slave:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        for number in range(50):
            await to_master.send_ok("T", bytes([number]) * 30_000)
        await group.caught_up()
        assert master.store is not None
        whole, end = log_bytes(master.store), master.store.max_log_offset
        for peer in (to_master, to_slave):
            read = bytearray()
            while len(read) < end:
                part = await read_log(peer.client, peer.address, len(read), 64 << 20)
                assert 0 < len(part.data) <= 1 << 20
                assert (part.min_log_offset, part.max_log_offset) == (0, end)
                read += part.data
            assert read == whole
            assert (await read_log(peer.client, peer.address, end - 7, 100)).data == whole[-7:]
            for log_offset in (end, end + 1):
                assert (await read_log(peer.client, peer.address, log_offset, 100)).data == b""
        header = ReadLogRequest(log_offset=-1, size_bytes=5)
        nowhere = await to_master.ask(RequestCode.TANDEM_READ_LOG, header)
        assert nowhere.code != ResponseCode.SUCCESS


async def test_codes_that_only_slaves_of_rocketmq_ask_have_whole_answers(group: Group) -> None:
    master = await group.start(0)
    async with Peer(master) as to_master:
        modes = await to_master.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert (modes.code, bytes(modes.body)) == (ResponseCode.SUCCESS, b'{"messageRequestModeMap":{}}')
        metrics = await to_master.ask(RequestCode.GET_TIMER_METRICS)
        assert metrics.code == ResponseCode.SUCCESS
        assert bytes(metrics.body).startswith(b'{"timingCount":{},"dataVersion":{')


def state_of(slave: Broker) -> ReplicationSlaveStatus:
    assert slave._replica is not None
    return slave._replica.slave.status()


async def halted(slave: Broker) -> HaltReason:
    await until(lambda: state_of(slave).halt is not None, "halted")
    halt = state_of(slave).halt
    assert halt is not None
    return halt.reason


async def test_master_with_a_lost_disk_takes_no_tables_with_it(group: Group) -> None:
    """The slave rejects the master's log, so it must not apply the master's topics, groups and progress."""
    master, slave = await group.start(0), await group.start(1)
    ports = master.address[1], master.ha_address[1]
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="Orders"))
        await to_master.send_ok("Orders", b"kept")
        await to_master.pull("Orders", consumer_group="billing")
        await commit_offset(to_master.client, to_master.address, "billing", "Orders", 0, 1)
    await group.caught_up()
    tables = slave._tables
    await until(lambda: tables.offsets.committed("billing", "Orders", 0) == 1, "tables")
    await until(lambda: tables.groups.get("billing") is not None, "group")
    await group.stop(0)
    master = await group.start(0, ports=ports, directory="empty")
    assert await halted(slave) is HaltReason.SLAVE_AHEAD
    async with Peer(master) as to_master:
        assert "Orders" not in await held_topics(to_master)
        assert slave._replica is not None
        assert not await slave._replica.config_sync.sync_once(to_master.address)
    assert tables.topics.get("Orders") is not None
    assert tables.groups.get("billing") is not None
    assert tables.offsets.committed("billing", "Orders", 0) == 1


async def test_topics_of_an_empty_log_stay_when_the_master_comes_back_without_them(group: Group) -> None:
    master, slave = await group.start(0), await group.start(1)
    ports = master.address[1], master.ha_address[1]
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="Orders"))
    await until(lambda: slave._tables.topics.get("Orders") is not None, "topic")
    await group.stop(0)
    master = await group.start(0, ports=ports, directory="empty")
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="Later"))
    await until(lambda: slave._tables.topics.get("Later") is not None, "topic of the new life")
    assert slave._tables.topics.get("Orders") is not None


async def other_history(group: Group, ports: tuple[int, int]) -> Broker:
    """Stops a master and a slave registered at a name server; returns a master with another log at the same
    ports.
    """
    master = await group.start(0, ports=ports)
    slave = await group.start(1)
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        for number in range(3):
            await to_master.send_ok("T", b"tail %d" % number)
    await group.caught_up()
    assert slave.store is not None
    await group.stop(1)
    await group.stop(0)
    master = await group.start(0, ports=ports, directory="other")
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        for number in range(6):
            await to_master.send_ok("T", b"news %d" % number)
    return master


@pytest.mark.parametrize("is_named", [False, True])
async def test_slave_without_name_server_compares_before_it_follows(group: Group, is_named: bool) -> None:
    """The slave asks the master at the configured address, or next to the master's replication port."""
    port = free_port(neighbours=(1, 2))
    ports = (port, port + 2) if is_named else (port, port + 1)
    master = await other_history(group, ports)
    alone = {"name_servers": (), "ha_master_address": f"127.0.0.1:{ports[1]}"}
    if is_named:
        alone["ha_master_remoting_address"] = f"127.0.0.1:{port}"
    slave = await group.start(1, broker=alone)
    assert await halted(slave) is HaltReason.DIVERGED
    assert master.store is not None
    assert master.store.replies.acks.positions() == {}


async def test_slave_that_cannot_ask_reports_nothing(group: Group) -> None:
    port = free_port(neighbours=(1, 2))
    master = await other_history(group, (port, port + 2))
    slave = await group.start(1, broker={"name_servers": (), "ha_master_address": f"127.0.0.1:{port + 2}"})

    def has_failed() -> bool:
        tail = state_of(slave).tail
        return tail is not None and tail.outcome is TailOutcome.FAILED

    await until(has_failed, "asked in vain")
    assert state_of(slave).state in (SlaveState.PAUSED, SlaveState.DIALING, SlaveState.CHECKING)
    assert master.store is not None
    assert master.store.replies.acks.positions() == {}


async def test_a_second_master_of_one_name_does_not_start(group: Group) -> None:
    master = await group.start(0)
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
    with pytest.raises(ConfigError, match="is the master of group and answers"):
        await group.start(0, directory="second")
    await group.stop(0)  # the rejected one
    allowed = await group.start(0, directory="second", broker={"refuse_second_master": False})
    assert allowed.address != master.address
    await master.stop()


async def test_a_master_that_no_longer_answers_is_replaced(group: Group) -> None:
    master = await group.start(0)
    await cut_off(master)
    other = await group.start(0, directory="second")
    assert other.address != master.address
    await master.stop()


async def cut_off(broker: Broker) -> None:
    """Makes the broker unreachable while it is still registered."""
    for server in broker._servers:
        await server.stop()
    broker._servers.clear()
