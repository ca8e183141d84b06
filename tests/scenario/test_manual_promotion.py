"""A slave is made the master manually: docs/operations/runbooks.md, "How do I make a slave the master?"."""

from __future__ import annotations

import shutil

from broker_rig import Peer, records_of
from replica_group import Group, rows_at
from replica_pair import log_bytes, queue_contents

from tandemmq.api.broker_admin import create_topic, delete_topic
from tandemmq.api.broker_consume import commit_offset
from tandemmq.protocol.bodies.tables import TopicConfig
from waits import until


async def test_a_slave_is_made_master_and_the_old_master_its_slave(group: Group) -> None:
    master, slave = await group.start(0), await group.start(1)
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        for number in range(5):
            await to_master.send_ok("T", b"copied %d" % number)
        await commit_offset(to_master.client, to_master.address, "G", "T", 0, 2)
        await group.caught_up()
        tables = slave._tables
        await until(lambda: tables.offsets.committed("G", "T", 0) == 2, "offset")
        await group.stop(1)
        await to_master.send_ok("T", b"only the old master has it")
    await group.stop(0)

    master = await group.start(0, directory="1")
    async with Peer(master) as to_master:
        await to_master.send_ok("T", b"new")
        await to_master.send_ok("T", b"newer")
        bodies = [record.body for record in records_of(await to_master.pull("T"))]
        assert bodies == [*(b"copied %d" % number for number in range(5)), b"new", b"newer"]
        assert master._tables.offsets.committed("G", "T", 0) == 2

    slave = await group.start(1, directory="0")
    refused = [[("group:1", "AHEAD", "SLAVE_AHEAD")], [("group:1", "HALTED", "DIVERGED")]]
    await until(lambda: rows_at(master) in refused, "its own tail is not the master's")
    await group.stop(1)
    shutil.rmtree(group.root / "0")
    slave = await group.start(1, directory="0")
    await group.caught_up()
    assert slave.store is not None
    assert master.store is not None
    assert log_bytes(slave.store) == log_bytes(master.store)
    await until(lambda: rows_at(master) == [("group:1", "TRANSFERRING", None)], "an empty one follows")


async def test_a_relieved_master_follows_as_it_is(group: Group) -> None:
    master, slave = await group.start(0), await group.start(1)
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        for number in range(5):
            await to_master.send_ok("T", b"copied %d" % number)
        await group.caught_up()
        await until(lambda: slave._tables.topics.get("T") is not None, "topic")
    for broker_id in (0, 1):
        await group.stop(broker_id)
    master, slave = await group.start(0, directory="1"), await group.start(1, directory="0")
    async with Peer(master) as to_master:
        await to_master.send_ok("T", b"new")
    await group.caught_up()
    assert slave.store is not None
    assert master.store is not None
    assert log_bytes(slave.store) == log_bytes(master.store)


async def test_a_topic_made_again_is_the_same_on_a_slave_and_once_it_is_master(group: Group) -> None:
    master, slave = await group.start(0), await group.start(1)
    assert master.store is not None
    assert slave.store is not None
    new = [b"new %d" % number for number in range(3)]
    tables = slave._tables
    async with Peer(master) as to_master:
        for topic in ("T", "Gone"):
            await create_topic(to_master.client, to_master.address, TopicConfig(name=topic))
            for number in range(5):
                await to_master.send_ok(topic, b"old %d" % number)
            await commit_offset(to_master.client, to_master.address, "G", topic, 0, 4)
        await group.caught_up()
        await until(lambda: tables.offsets.committed("G", "T", 0) == 4, "offset")
        for topic in ("T", "Gone"):
            await delete_topic(to_master.client, to_master.address, topic)
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        for body in new:
            await to_master.send_ok("T", body)
        await group.caught_up()
    await until(lambda: slave.store.deletions.ends == master.store.deletions.ends != {}, "deletions")
    await until(lambda: tables.offsets.groups_of("T") == tables.offsets.groups_of("Gone") == [], "offsets")
    await until(lambda: tables.topics.get("T") is not None and tables.topics.get("Gone") is None, "topics")
    # A deletion is on disk, and known, before a queue is deleted.
    await until(lambda: queue_contents(slave.store) == queue_contents(master.store), "queues")
    assert {topic for topic, _ in slave.store.queue_keys()} == {"T"}
    await group.stop(1)
    await group.stop(0)
    master = await group.start(0, directory="1")
    async with Peer(master) as to_master:
        assert [record.body for record in records_of(await to_master.pull("T"))] == new
        await to_master.send_ok("T", b"newer")
        assert [record.body for record in records_of(await to_master.pull("T"))] == [*new, b"newer"]


async def test_progress_before_a_deletion_that_no_table_brought_is_forgotten(group: Group) -> None:
    """The records of the recreated topic show the deletion; then the slave becomes the master."""
    master, slave = await group.start(0), await group.start(1)
    assert slave.store is not None
    slave._replica.config_sync._apply_deletions = None
    tables = slave._tables
    async with Peer(master) as to_master:
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        for number in range(5):
            await to_master.send_ok("T", b"old %d" % number)
        await commit_offset(to_master.client, to_master.address, "G", "T", 0, 4)
        await group.caught_up()
        await until(lambda: tables.offsets.committed("G", "T", 0) == 4, "offset")
        await delete_topic(to_master.client, to_master.address, "T")
        await create_topic(to_master.client, to_master.address, TopicConfig(name="T"))
        await to_master.send_ok("T", b"new")
        await group.caught_up()
    await until(lambda: tables.offsets.groups_of("T") == [], "offsets")
    topics = master._tables.topics
    await until(lambda: tables.topics.snapshot() == topics.snapshot(), "topics")
    await group.stop(0)
    await group.stop(1)
    master = await group.start(0, directory="1")
    async with Peer(master) as to_master:
        assert [record.body for record in records_of(await to_master.pull("T"))] == [b"new"]
    assert master._tables.offsets.committed("G", "T", 0) is None


async def test_a_deletion_behind_the_end_of_a_copy_hides_nothing_of_what_comes_there(group: Group) -> None:
    """The master reported a deletion, and lost the end of its log before the slave had copied up to there."""
    master, slave = await group.start(0), await group.start(1)
    assert slave.store is not None
    new = [b"new %d" % number for number in range(3)]
    async with Peer(master) as to_master:
        for topic in ("T", "Other"):
            await create_topic(to_master.client, to_master.address, TopicConfig(name=topic))
        await to_master.send_ok("Other")
    await group.caught_up()
    end = slave.store.max_log_offset
    assert await slave.store.deletions.apply({"T": end + 100_000}) == ["T"]
    ports = master.address[1], master.ha_address[1]
    await group.stop(0)
    master = await group.start(0, ports=ports)
    async with Peer(master) as to_master:
        for body in new:
            await to_master.send_ok("T", body)
    await group.caught_up()
    async with Peer(slave) as to_slave:
        assert [record.body for record in records_of(await to_slave.pull("T"))] == new
    await group.stop(1)
    slave = await group.start(1)
    assert slave.store is not None
    assert slave.store.deletions.ends == {"T": end}
    assert slave.store.queue_max("T", 0) == 3
