"""A master's report on slaves that follow, have left, or have halted (GET_BROKER_HA_STATUS, 907)."""

from __future__ import annotations

import shutil

import pytest
from broker_rig import Peer
from replica_group import Group, rows_at
from replica_pair import log_bytes

from tandemmq.api.broker_admin import create_topic, query_ha_status
from tandemmq.broker.replica import role
from tandemmq.protocol.bodies.tables import TopicConfig
from tandemmq.protocol.codes import LanguageCode, RequestCode
from tandemmq.protocol.command import Command
from tandemmq.replication.core.progress import SlaveState
from waits import until


async def test_slave_of_a_master_that_lost_its_tail_and_grew_past_it_halts(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role, "PERIOD_S", 0.2)  # of the reports to the master
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
    # The tail that only the slave keeps: it copies three more messages, then the master goes back to before
    # them.
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
            told = (await query_ha_status(to_slave.client, to_slave.address)).client
            assert (told.state, told.halt_reason, told.tail) == ("HALTED", "DIVERGED", "DIFFERENT")
            assert told.halt_offset is not None
            assert common_end <= told.halt_offset < common_end + 100
        assert log_bytes(slave.store) == kept
        assert (await query_ha_status(to_master.client, to_master.address)).in_sync_count == 0
        await until(lambda: rows_at(master) == [("group:1", "HALTED", "DIVERGED")], "the master knows why")

        # The master forgets the report when it stops, and receives it again.
        await group.stop(0)
        master = await group.start(0, ports=ports)
        await until(lambda: rows_at(master) == [("group:1", "HALTED", "DIVERGED")], "and is told again")
    await group.stop(1)
    shutil.rmtree(group.root / "1")
    await group.start(1)
    await until(lambda: rows_at(master) == [("group:1", "TRANSFERRING", None)], "an empty slave follows")


async def test_slaves_of_one_host_have_rows_of_their_own(group: Group) -> None:
    master = await group.start(0)
    for broker_id in (1, 2):
        await group.start(broker_id)
    following = {("group:1", "TRANSFERRING", None), ("group:2", "TRANSFERRING", None)}
    await until(lambda: set(rows_at(master)) == following, "both follow")
    gone = [("group:1", "CLOSED", None), ("group:2", "CLOSED", None)]  # in the order of departure
    await group.stop(1)
    await until(lambda: rows_at(master)[-1:] == gone[:1], "one is gone")
    await group.stop(2)
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
        (one,) = (await query_ha_status(to_master.client, to_master.address)).connections
        assert (one.state, one.start_rule, one.is_tandem) == ("TRANSFERRING", "FIRST_FILE", True)
        asked = Command.request(RequestCode.GET_BROKER_HA_STATUS)
        asked.language = int(LanguageCode.JAVA)
        answer = await to_master.client.request(to_master.address, asked, 3)
        assert b"tandem" not in bytes(answer.body)
