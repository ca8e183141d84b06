"""Processes that die, are frozen or lose each other: promises are kept, and the state is reported correctly
meanwhile.

Every test runs a producer and a consumer throughout and compares their records at the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_ledger import ClientLedger, consumer_of, consuming, sending
from fault_cluster import FaultCluster
from fault_waits import (
    NOT_YET,
    committed,
    create_topic,
    ha_status,
    traffic,
    until_delivered,
    until_in_sync,
    until_more,
)

from tandemmq.client import ReadFrom
from waits import until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    """A synchronous master with its slave. Each test has a topic of its own and leaves the cluster intact."""
    cluster = FaultCluster(tmp_path_factory.mktemp("faults"))
    yield cluster
    cluster.close()


async def begin(cluster: FaultCluster, topic: str) -> None:
    await create_topic(cluster, topic)
    await until_in_sync(cluster)


async def test_a_killed_slave_and_a_killed_master_come_back(shared: FaultCluster) -> None:
    await begin(shared, "Kill")
    ledger = ClientLedger()
    async with traffic(shared, ledger, "Kill"):
        await until_more(ledger, "SEND_OK", 50)
        shared.slave.kill()
        await until_more(ledger, "FLUSH_SLAVE_TIMEOUT", 2)
        await asyncio.to_thread(shared.slave.start)
        await until_more(ledger, "SEND_OK", 50)
        shared.master.kill()
        await asyncio.to_thread(shared.master.start)
        await until_more(ledger, "SEND_OK", 50)
        # Both at once: the contents of their page caches survive.
        shared.master.kill()
        shared.slave.kill()
        await asyncio.to_thread(shared.slave.start)
        await asyncio.to_thread(shared.master.start)
        await until_more(ledger, "SEND_OK", 50)
    ledger.check().check()


async def test_a_slave_that_stands_still_is_dropped_and_taken_back(shared: FaultCluster) -> None:
    await begin(shared, "Frozen")
    ledger = ClientLedger()
    async with traffic(shared, ledger, "Frozen"):
        await until_more(ledger, "SEND_OK", 20)
        shared.freeze(shared.slave)
        await until_more(ledger, "FLUSH_SLAVE_TIMEOUT", 2)

        async def is_dropped() -> bool:
            status = await ha_status(shared.master_address)
            return status.in_sync_count == 0 and not any(
                one.state == "TRANSFERRING" for one in status.connections
            )

        await until(
            is_dropped, "the master gives the silent slave up (haHousekeepingInterval)", not_yet=NOT_YET
        )
        shared.thaw(shared.slave)
        await until_more(ledger, "SEND_OK", 50)
    ledger.check().check()


async def test_a_master_that_stands_still_goes_on_where_it_was(shared: FaultCluster) -> None:
    await begin(shared, "Still")
    ledger = ClientLedger()
    async with traffic(shared, ledger, "Still"):
        await until_more(ledger, "SEND_OK", 20)
        shared.freeze(shared.master)
        await until_more(ledger, "RequestTimeout", 2)

        async def has_given_up() -> bool:
            return (await ha_status(shared.slave_address)).client.state != "TRANSFERRING"

        await until(has_given_up, "the slave gives the silent master up", not_yet=NOT_YET)
        await until_delivered(ledger)
        shared.thaw(shared.master)
        await until_more(ledger, "SEND_OK", 50)
    ledger.check().check()


@pytest.mark.parametrize("fault", ["cut", "hold"])
async def test_without_the_way_of_the_log_sends_say_so(shared: FaultCluster, fault: str) -> None:
    """Spec replication 11, "network cut master-slave only"; spec replication 5.4."""
    topic = f"Ha-{fault}"
    await begin(shared, topic)
    ledger = ClientLedger()
    async with traffic(shared, ledger, topic):
        await until_more(ledger, "SEND_OK", 20)
        getattr(shared.to_master_ha, fault)()
        await until_more(ledger, "FLUSH_SLAVE_TIMEOUT", 4)
        before = ledger.statuses["SEND_OK"]
        await until_more(ledger, "FLUSH_SLAVE_TIMEOUT", 2)
        assert ledger.statuses["SEND_OK"] == before, "nothing is promised without the slave"
        shared.to_master_ha.heal()
        await until_more(ledger, "SEND_OK", 50)
    ledger.check().check()
    status = await ha_status(shared.master_address)
    assert status.in_sync_count == 1


async def test_consumers_cut_from_the_master_go_on_at_the_slave_and_come_back(shared: FaultCluster) -> None:
    """Spec replication 9: progress goes to the slave, and back to the master without a repetition."""
    topic = "Cut"
    await begin(shared, topic)
    ledger = ClientLedger()
    names = shared.namesrv.address
    async with consuming(names, ledger, topic) as consumer:
        async with sending(names, ledger, topic):
            await until_more(ledger, "SEND_OK", 100)
            shared.to_master.cut()
            await until_more(ledger, "BrokerUnreachable", 2)
        await until_delivered(ledger)
        reached = {queue.queue_id: offset for queue, offset in consumer.positions.items()}

        async def is_at_slave() -> bool:
            return all(
                [
                    await committed(shared.slave_address, topic, queue_id) >= reached[queue_id]
                    for queue_id in (0, 1)
                ]
            )

        await until(is_at_slave, "the progress is committed at the slave", not_yet=NOT_YET)
        shared.to_master.heal()

        async def is_at_master() -> bool:
            return all(
                [
                    await committed(shared.master_address, topic, queue_id) >= reached[queue_id]
                    for queue_id in (0, 1)
                ]
            )

        await until(is_at_master, "the progress comes back to the master", not_yet=NOT_YET)
        async with sending(names, ledger, topic):
            await until_more(ledger, "SEND_OK", 20)
        await until_delivered(ledger)
    findings = ledger.check()
    findings.check()
    assert findings.duplicates == 0, "a consumer that runs through the outage repeats nothing"


async def test_a_killed_master_comes_back_with_old_offsets_and_nothing_is_repeated(
    shared: FaultCluster,
) -> None:
    """Spec replication 9.3: the consumer's memory and the offset in its pulls outlive the master's table."""
    topic = "Return"
    await begin(shared, topic)
    ledger = ClientLedger()
    names = shared.namesrv.address
    async with sending(names, ledger, topic):
        await until_more(ledger, "SEND_OK", 100)
    # No periodic commits: progress that reaches the master again was carried by pulls.
    async with consuming(names, ledger, topic, commit_s=3600) as consumer:
        await until_delivered(ledger)
        await consumer.commit()
        shared.master.kill()
        await asyncio.to_thread(shared.master.start)
        await until_in_sync(shared)
        async with sending(names, ledger, topic):
            await until_more(ledger, "SEND_OK", 20)
        await until_delivered(ledger)
        reached = sum(consumer.positions.values())

        async def is_at_master() -> bool:
            return sum([await committed(shared.master_address, topic, queue_id) for queue_id in (0, 1)]) >= (
                reached - 2
            )

        await until(is_at_master, "pulls have brought the offsets to the master", not_yet=NOT_YET)
    findings = ledger.check()
    findings.check()
    assert findings.duplicates == 0
    # And a new member continues from there.
    async with consumer_of(names, topic) as late:
        assert all(message.queue_offset >= 0 for message in await late.poll(32, 0.5))
        assert sum(late.positions.values()) >= reached


async def test_a_link_that_is_too_slow_for_slave_timeout_is_told(shared: FaultCluster) -> None:
    topic = "TooSlow"
    await begin(shared, topic)
    ledger = ClientLedger()
    names = shared.namesrv.address
    async with consuming(names, ledger, topic):
        async with sending(names, ledger, topic, body_bytes=30_000):
            await until_more(ledger, "SEND_OK", 10)
            shared.to_master_ha.slow(20_000)
            await until_more(ledger, "FLUSH_SLAVE_TIMEOUT", 2)
            shared.to_master_ha.heal()
            await until_more(ledger, "SEND_OK", 10)
        await until_delivered(ledger)
    ledger.check().check()


async def test_prefer_slave_reads_the_master_while_the_slave_is_cut_off(shared: FaultCluster) -> None:
    topic = "Prefer"
    await begin(shared, topic)
    ledger = ClientLedger()
    names = shared.namesrv.address
    async with consuming(names, ledger, topic, read_from=ReadFrom.PREFER_SLAVE):
        async with sending(names, ledger, topic):
            await until_more(ledger, "SEND_OK", 20)
        before = shared.to_slave.passed_bytes
        await until_delivered(ledger)
        async with sending(names, ledger, topic):
            await until_more(ledger, "SEND_OK", 20)
        await until_delivered(ledger)
        assert shared.to_slave.passed_bytes > before, "the slave was read"
        shared.to_slave.cut()
        async with sending(names, ledger, topic):
            await until_more(ledger, "SEND_OK", 20)
        await until_delivered(ledger)
    shared.to_slave.heal()
    ledger.check().check()


async def test_master_only_consumer_waits_for_the_master(shared: FaultCluster) -> None:
    topic = "OnlyMaster"
    await begin(shared, topic)
    ledger = ClientLedger()
    names = shared.namesrv.address
    async with sending(names, ledger, topic):
        await until_more(ledger, "SEND_OK", 20)
    async with consumer_of(names, topic, read_from=ReadFrom.MASTER) as consumer:
        for message in await consumer.poll(8, 10):
            ledger.record_delivery(message)
        shared.to_master.cut()
        while messages := await consumer.poll(256, 1.0):
            for message in messages:
                ledger.record_delivery(message)
        shared.to_master.heal()
        while ledger.missing:
            for message in await consumer.poll(256, 5.0):
                ledger.record_delivery(message)
    ledger.check().check()


async def test_a_slow_link_is_used_to_its_limit_and_the_copy_catches_up(tmp_path: Path) -> None:
    cluster = FaultCluster(
        tmp_path,
        brokerRole="ASYNC_MASTER",
        inSyncReplicas=1,
        haFlowControlEnable="true",
        maxHaTransferByteInSecond=400_000,
    )
    try:
        await begin(cluster, "Slow")
        ledger = ClientLedger()
        names = cluster.namesrv.address
        cluster.to_master_ha.slow(200_000)
        async with consuming(names, ledger, "Slow"):
            async with sending(names, ledger, "Slow", body_bytes=8_000):
                await until_more(ledger, "SEND_OK", 150)
                status = await ha_status(cluster.master_address)
                assert status.connections[0].lag_bytes > 0
            await until_delivered(ledger)

            async def is_even() -> bool:
                (slave,) = (await ha_status(cluster.master_address)).connections
                assert slave.bytes_per_second <= 420_000, "the master keeps its own limit too"
                return slave.lag_bytes == 0

            await until(is_even, "the slave has caught up over the slow link", not_yet=NOT_YET)
            cluster.to_master_ha.heal()
            cluster.master.kill()
        # The copy alone has everything.
        copy = ClientLedger()
        copy.promised = dict(ledger.promised)
        async with consuming(names, copy, "Slow", group="Copy"):
            await until_delivered(copy)
        copy.check().check()
    finally:
        cluster.close()


async def test_compatibility_with_4_x_says_at_once_that_no_slave_is_there(tmp_path: Path) -> None:
    """Spec replication 5.4: SLAVE_NOT_AVAILABLE without a wait; the message is stored all the same."""
    cluster = FaultCluster(tmp_path, inSyncReplicas=1, syncMasterCompat4="true")
    try:
        await begin(cluster, "Four")
        ledger = ClientLedger()
        async with traffic(cluster, ledger, "Four"):
            await until_more(ledger, "SEND_OK", 20)
            cluster.to_master_ha.cut()
            await until_more(ledger, "SLAVE_NOT_AVAILABLE", 20)
            cluster.to_master_ha.heal()
            await until_more(ledger, "SEND_OK", 20)
        ledger.check().check()
    finally:
        cluster.close()


def lose_power(store: Path, lost_bytes: int = 8_192) -> None:
    """Leaves the state after a restart of the machine: the end of the log was not flushed and never reached
    the disk.
    """
    path = min((store / "commitlog").iterdir())
    with path.open("r+b") as file:
        data = file.read(16 << 20)
        end = len(data.rstrip(b"\0"))
        assert end > lost_bytes
        file.seek(end - lost_bytes)
        file.write(bytes(lost_bytes))
    (store / "abort").write_text("1 another-boot")


async def test_a_master_that_lost_power_takes_back_what_its_slave_holds(tmp_path: Path) -> None:
    """Its supervisor restarts it without an operator: nothing promised is missing, and no copy is emptied."""
    never = 3_600_000
    cluster = FaultCluster(tmp_path, flushIntervalCommitLog=never, flushCommitLogThoroughInterval=never)
    try:
        await begin(cluster, "Power")
        ledger = ClientLedger()
        async with traffic(cluster, ledger, "Power"):
            await until_more(ledger, "SEND_OK", 100)
            cluster.master.kill()
            lose_power(tmp_path / "master")
            await asyncio.to_thread(cluster.master.start)
            await until_more(ledger, "SEND_OK", 50)
        ledger.check().check()
        assert "log_tail.fetched" in cluster.log_text("master")
        assert "log_tail.accepted" in cluster.log_text("master")
        assert "replica.halted" not in cluster.log_text("slave")
    finally:
        cluster.close()
