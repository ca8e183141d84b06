"""A consumer that a broker moves to another offset does not skip messages that it has pulled."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from client_fakes import FakeBroker, running_cluster

from tandemmq.client import ClientOptions, Consumer, ConsumerOptions, StartFrom
from tandemmq.protocol.properties import encode_properties
from waits import PATIENCE_S, until

OPTIONS = ConsumerOptions(
    client=ClientOptions(heartbeat_s=0.2, route_refresh_s=0.2),
    start_from=StartFrom.FIRST,
    rebalance_s=0.3,
    commit_s=0.1,
    suspend_s=0.1,
    pull_error_delay_s=0.05,
    auto_ack=False,
)


async def pulled(consumer: Consumer, count: int) -> None:
    await until(lambda: len(consumer._inbox) >= count)


async def bodies(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += [message.body for message in await consumer.poll(count - len(found), 0.5)]
    return found


async def test_back_before_what_was_pulled_and_not_finished():
    """Like a read from a slave that had more records than its master makes visible yet."""
    async with running_cluster(T=1) as cluster:
        for number in range(6):
            cluster[0].put("T", 0, b"%d" % number)
        consumer = Consumer("g", cluster.namesrv, options=OPTIONS)
        consumer.subscribe("T")
        async with consumer:
            await pulled(consumer, 6)
            del cluster[0].queue("T", 0).records[4:]
            await until(lambda: any(pull.queue_offset == 0 for pull in cluster[0].pulls[2:]))
            await pulled(consumer, 4)
            assert cluster[0].offsets.get(("g", "T", 0), 0) == 0
            assert await bodies(consumer, 4) == [b"0", b"1", b"2", b"3"]


async def test_forward_past_what_was_deleted():
    async with running_cluster(T=1) as cluster:
        for number in range(3):
            cluster[0].put("T", 0, b"%d" % number)
        consumer = Consumer("g", cluster.namesrv, options=OPTIONS)
        consumer.subscribe("T")
        async with consumer:
            await pulled(consumer, 3)
            queue = cluster[0].queue("T", 0)
            queue.records.clear()
            queue.min_offset = 10
            cluster[0].put("T", 0, b"10")
            await pulled(consumer, 4)
            assert cluster[0].offsets.get(("g", "T", 0), 0) == 0
            assert await bodies(consumer, 4) == [b"0", b"1", b"2", b"10"]


async def test_the_master_judges_what_a_slave_that_begins_later_cannot():
    """The record that proves the consumer's offsets precedes the slave's copy, so the slave's records prove
    nothing.
    """
    master, slave = FakeBroker("b"), FakeBroker("b", broker_id=1)
    async with running_cluster(master, slave, T=1) as cluster:
        for number in range(4):
            master.put("T", 0, b"%d" % number)
        slave.queue("T", 0).min_offset = 3
        slave.put("T", 0, b"3")
        master.suggest_id = slave.suggest_id = 1
        consumer = Consumer("g", cluster.namesrv, options=replace(OPTIONS, pull_count_max=3))
        consumer.subscribe("T")
        async with consumer:
            await pulled(consumer, 4)
            assert slave.pulls[0].queue_offset == 3
            await until(lambda: any(pull.queue_offset == 4 for pull in master.pulls))
            proof = next(pull.seen for pull in master.pulls if pull.queue_offset == 4)
            assert proof is not None
            assert proof.startswith("2,")


async def test_a_start_is_shown_with_the_record_before_it():
    """The broker that returned the offset may have a different log than the broker of the next pull."""
    async with running_cluster(T=1) as cluster:
        for number in range(2):
            cluster[0].put("T", 0, b"%d" % number)
        cluster[0].offsets["g", "T", 0] = 1
        cluster[0].proof = "0,17,1700000000001"
        consumer = Consumer("g", cluster.namesrv, options=OPTIONS)
        consumer.subscribe("T")
        async with consumer:
            await pulled(consumer, 1)
            assert cluster[0].pulls[0].seen == cluster[0].proof


async def test_skipped_record_is_presented_as_seen():
    """A broker must also be able to report that its log has another record at a skipped offset."""
    async with running_cluster(T=1) as cluster:
        for number, tag in enumerate(("red", "blue", "blue")):
            cluster[0].put("T", 0, b"%d" % number, encode_properties({"TAGS": tag}))
        consumer = Consumer("g", cluster.namesrv, options=OPTIONS)
        consumer.subscribe("T", "red")
        async with consumer:
            assert await bodies(consumer, 1) == [b"0"]
            await until(lambda: cluster[0].pulls[-1].queue_offset == 3)
            shown = cluster[0].pulls[-1].seen_record()
            assert shown is not None
            assert shown.queue_offset == 2


async def test_acknowledging_a_message_from_before_a_move_finishes_no_other():
    """A different message, which has not been handled yet, is now at the old message's offset."""
    async with running_cluster(T=1) as cluster:
        for number in range(3):
            cluster[0].put("T", 0, b"%d" % number)
        consumer = Consumer("g", cluster.namesrv, options=OPTIONS)
        consumer.subscribe("T")
        async with consumer:
            [old] = await consumer.poll(1, PATIENCE_S)
            await until(lambda: any(pull.queue_offset == 3 for pull in cluster[0].pulls))
            cluster[0].queue("T", 0).records.clear()
            cluster[0].put("T", 0, b"other")
            await until(lambda: any(pull.queue_offset == 0 for pull in cluster[0].pulls[2:]))
            [other] = await consumer.poll(1, PATIENCE_S)
            assert (other.body, other.queue_offset) == (b"other", old.queue_offset)
            consumer.ack(old)
            assert await consumer.commit()
            assert cluster[0].offsets.get(("g", "T", 0), 0) == 0
            consumer.ack(other)
            await consumer.commit()
            await until(lambda: cluster[0].offsets.get(("g", "T", 0), 0) == 1)
