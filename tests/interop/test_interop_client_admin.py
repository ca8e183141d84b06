"""Administration by our Python client against our servers and RocketMQ's: topics, groups, offsets, messages;
also in its blocking form.
"""

from __future__ import annotations

import asyncio

import pytest
from client_place import CASES, FAST, Place, bodies, calls, numbers, take
from clusters import Cluster, JavaBroker

from tandemmq.client import (
    Admin,
    BadRequest,
    BlockingAdmin,
    BlockingConsumer,
    BlockingProducer,
    BlockingTransactionProducer,
    ConsumerOptions,
    GroupExists,
    GroupNotFound,
    Message,
    StartFrom,
    TopicExists,
    TopicHasUnread,
    TopicNotFound,
    TransactionState,
    decode_name,
    encode_name,
)
from tandemmq.protocol.bodies.tables import PERMISSION_DEFAULT
from waits import until

pytestmark = CASES
READ_ONLY = 4


@calls(
    *("Admin.create_topic", "Admin.ensure_topic", "Admin.update_topic", "Admin.delete_topic"),
    *("Admin.topic_config", "AdminClient.topics", "AdminClient.topic_route"),
)
async def test_topics_grow_and_never_shrink_by_accident(place: Place) -> None:
    topic, group = f"N{place.topic}", place.group
    async with Admin(place.namesrv) as admin:
        assert await admin.create_topic(topic, queue_count=4)
        assert not await admin.create_topic(topic, queue_count=4)
        with pytest.raises(TopicExists, match="4 read and 4 write queues, not 2"):
            await admin.create_topic(topic, queue_count=2)
        assert not await admin.create_topic(topic, queue_count=2, exist_ok=True)
        assert await admin.ensure_topic(topic, queue_count=6)
        assert not await admin.ensure_topic(topic, queue_count=3)
        assert topic in await admin.topics()
        (entry,) = (await admin.topic_route(topic)).queues
        assert (entry.read_queue_count, entry.write_queue_count) == (6, 6)

        async with place.producer() as producer:
            for queue in await producer.queues(topic):
                await producer.send(Message(topic=topic, body=b"%d" % queue.queue_id), queue=queue)
        with pytest.raises(TopicHasUnread, match="queues 2, 3, 4 and 1 more"):
            await admin.update_topic(topic, queue_count=2)
        (config,) = (await admin.topic_config(topic)).values()
        assert (config.read_queue_count, config.write_queue_count) == (6, 2), "what is unread stays readable"
        async with place.consumer(topic) as consumer:
            assert bodies(await take(consumer, 6)) == numbers(6)
            await consumer.poll(timeout_s=0)
            assert await consumer.commit()
        await admin.update_topic(topic, queue_count=2)
        await admin.update_topic(topic, permission=READ_ONLY)
        (config,) = (await admin.topic_config(topic)).values()
        assert (config.read_queue_count, config.permission) == (2, READ_ONLY)
        await admin.update_topic(topic, queue_count=1, permission=PERMISSION_DEFAULT, force=True)
        assert len(await admin.topic_offsets(topic)) == 1

        await admin.delete_topic(topic)
        with pytest.raises(TopicNotFound):
            await admin.topic_route(topic)
        await admin.delete_topic(topic)
        assert group in await admin.groups()


@calls(
    *("GroupAdmin.create_group", "GroupAdmin.update_group", "GroupAdmin.delete_group"),
    *("GroupAdmin.groups", "GroupAdmin.group_config", "GroupAdmin.describe_group"),
)
async def test_groups_are_created_changed_described_and_deleted(place: Place, cluster: Cluster) -> None:
    group = place.group
    async with Admin(place.namesrv) as admin:
        with pytest.raises(GroupNotFound):
            await admin.group_config(group)
        assert await admin.create_group(group, retry_count_max=5)
        assert not await admin.create_group(group, retry_count_max=5)
        with pytest.raises(GroupExists, match="retry_count_max=5, not 6"):
            await admin.create_group(group, retry_count_max=6)
        assert not await admin.create_group(group, retry_count_max=6, exist_ok=True)
        await admin.update_group(group, retry_count_max=7, is_broadcast_enabled=False)
        assert group in await admin.groups()
        (config,) = (await admin.group_config(group)).values()
        assert (config.retry_count_max, config.is_broadcast_enabled) == (7, False)

        await place.fill(4)
        async with place.consumer(tags="t || u") as consumer:
            await take(consumer, 4)
            await consumer.poll(timeout_s=0)
            found = await admin.describe_group(group)
            assert list(found.members) == [consumer.instance.client_id]
            assert found.subscriptions[place.topic].expression == "t || u"
            assert [one.retry_count_max for one in found.settings.values()] == [7]
            assert not found.problems
        await admin.delete_group(group, keep_offsets=True)
        assert await admin.lag(group, place.topic) == 0, "the offsets are kept"
        await admin.create_group(group, retry_count_max=5, exist_ok=True)
        await admin.delete_group(group)
        if isinstance(cluster.brokers["broker-a"], JavaBroker):
            return  # what such a broker then says of the group differs between its versions
        assert group not in await admin.groups()
        assert set((await admin.committed_offsets(group, place.topic)).values()) == {None}
        with pytest.raises(GroupNotFound):
            await admin.lag(group, place.topic)


@calls(
    *("GroupAdmin.committed_offsets", "GroupAdmin.set_offset", "GroupAdmin.set_offsets"),
    *("GroupAdmin.reset_offsets", "GroupAdmin.skip_to_end", "GroupAdmin.lag"),
    *("AdminClient.topic_offsets", "AdminClient.offsets_at", "AdminClient.message_count"),
)
async def test_a_group_that_is_away_is_moved(place: Place) -> None:
    await place.fill(20)
    async with Admin(place.namesrv) as admin:
        ends = await admin.topic_offsets(place.topic)
        assert [(one.min_offset, one.count) for one in ends.values()] == [(0, 10), (0, 10)]
        assert await admin.message_count(place.topic) == 20
        assert set((await admin.offsets_at(place.topic, 0)).values()) == {0}
        first, second = ends
        await admin.create_group(place.group)
        await admin.set_offset(place.group, first, 3)
        committed = await admin.committed_offsets(place.group, place.topic)
        assert committed[first] == 3
        assert not committed[second], "0 at RocketMQ 4.9 for an offset that is missing"
        assert await admin.set_offsets(place.group, {second: 6}) == {second: 6}
        assert await admin.lag(place.group, place.topic) == 11
        async with place.consumer() as consumer:
            found = await take(consumer, 11)
            assert {(one.queue_id, one.queue_offset) for one in found} == {
                *((first.queue_id, offset) for offset in range(3, 10)),
                *((second.queue_id, offset) for offset in range(6, 10)),
            }
        assert await admin.reset_offsets(place.group, place.topic, 0) == dict.fromkeys(ends, 0)
        assert await admin.lag(place.group, place.topic) == 20
        assert await admin.skip_to_end(place.group, place.topic) == dict.fromkeys(ends, 10)
        assert await admin.lag(place.group, place.topic) == 0


async def test_a_running_group_is_moved(place: Place, cluster: Cluster) -> None:
    await place.fill(6)
    async with Admin(place.namesrv) as admin, place.consumer(suspend_s=0.5) as consumer:
        assert bodies(await take(consumer, 6)) == numbers(6)
        assert await admin.reset_offsets(place.group, place.topic, 0)
        assert bodies(await take(consumer, 6)) == numbers(6)
        queue, _ = await admin.topic_offsets(place.topic)
        version = (await admin.runtime_info(cluster.brokers["broker-a"].address))["brokerVersionDesc"]
        if version.startswith("V4"):
            with pytest.raises(BadRequest, match=f"RocketMQ {version}, which moves one queue only while no"):
                await admin.set_offsets(place.group, {queue: 1})
        else:
            await admin.set_offsets(place.group, {queue: 1})
            assert [one.queue_offset for one in await take(consumer, 2)] == [1, 2]
        consumer.pause()
        await admin.reset_offsets(place.group, place.topic, 0)
        await admin.skip_to_end(place.group, place.topic)

        async def is_at_the_end() -> bool:
            return await admin.lag(place.group, place.topic) == 0

        await until(is_at_the_end)


@calls(
    *("AdminClient.cluster_info", "AdminClient.runtime_info", "AdminClient.name_servers"),
    *("MessageAdmin.find_by_unique_key", "MessageAdmin.find_by_key", "MessageAdmin.find_by_id"),
)
async def test_brokers_and_messages_are_found(place: Place, cluster: Cluster) -> None:
    address = cluster.brokers["broker-a"].address
    async with place.producer() as producer, Admin(place.namesrv) as admin:
        assert admin.name_servers == (place.namesrv,)
        assert set((await admin.cluster_info()).brokers["broker-a"].addresses.values()) == {address}
        assert (await admin.runtime_info(address))["brokerVersionDesc"]
        sent = await producer.send(Message(topic=place.topic, body=b"a", keys=["one", "two"]))

        async def is_found() -> bool:
            return bool(await admin.find_by_unique_key(place.topic, sent.unique_key))

        await until(is_found)
        (record,) = await admin.find_by_unique_key(place.topic, sent.unique_key)
        assert (record.content, record.queue_offset) == (b"a", sent.queue_offset)
        for key in ("one", "two"):
            assert len(await admin.find_by_key(place.topic, key)) == 1
        assert await admin.find_by_key(place.topic, "one", end_at_ms=record.stored_at_ms - 60_000) == []
        found = await admin.find_by_id(sent.message_id)
        assert found is not None
        assert found.unique_key == sent.unique_key


@calls("encode_name", "decode_name")
async def test_names_of_other_systems_are_topics_and_groups(place: Place) -> None:
    name = f"{place.topic}.v1@host"
    topic = encode_name(name)
    async with Admin(place.namesrv) as admin, place.producer() as producer:
        await admin.ensure_topic(topic, queue_count=1)
        assert name in map(decode_name, await admin.topics())
        await producer.send(Message(topic=topic, body=b"a"))
        async with place.consumer(topic, group=encode_name(f"{place.group}.v1")) as consumer:
            assert bodies(await take(consumer, 1)) == [b"a"]


@pytest.mark.usefixtures("rests_after_transactions")
async def test_the_blocking_clients(place: Place) -> None:
    topic, group = place.topic, place.group

    def run() -> None:
        options = ConsumerOptions(client=FAST, start_from=StartFrom.FIRST, auto_ack=False)
        consumer = BlockingConsumer(group, place.namesrv, options=options)
        consumer.subscribe(topic)
        with (
            BlockingAdmin(place.namesrv) as admin,
            BlockingProducer(f"P{group}", place.namesrv) as producer,
            BlockingTransactionProducer(
                f"X{group}", place.namesrv, check=lambda _: TransactionState.COMMIT
            ) as transactions,
            consumer,
        ):
            summary = producer.send_many(Message(topic=topic, body=b"%d" % n) for n in range(4))
            assert summary.ok_count == 4
            done = transactions.send(Message(topic=topic, body=b"4"), lambda _: TransactionState.COMMIT)
            assert done.state is TransactionState.COMMIT
            found = []
            for message in consumer:
                found.append(message)
                message.ack()
                if len(found) == 5:
                    break
            assert sorted(message.body for message in found) == numbers(5)
            assert consumer.commit()
            assert {one.messages for one in consumer.lag().values()} == {0}
            assert admin.lag(group, topic) == 0
            assert admin.describe_group(group).members
            assert producer.is_connected
            assert producer.ping().keys() == admin_addresses(admin)

    await asyncio.to_thread(run)


def admin_addresses(admin: BlockingAdmin) -> set[str]:
    """A name server and every master."""
    brokers = admin.cluster_info().brokers.values()
    return {address for broker in brokers for address in broker.addresses.values()} | {
        admin._running.name_servers[0]
    }
