"""The consumer against brokers that hold, move, filter, die and come back."""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from client_fakes import FakeBroker, FakeCluster, running_cluster

from tandemmq.api.broker_consume import GroupProgress
from tandemmq.client import (
    ClientOptions,
    Consumer,
    ConsumerOptions,
    MessageModel,
    PopConsumer,
    StartFrom,
    allocate_by_circle,
)
from tandemmq.client.consumer.offsets import StartOffsets
from tandemmq.errors import (
    BadRequest,
    ClientError,
    ConfigError,
    OffsetOutOfRange,
    RequestRejected,
)
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.progress import decode_consumer_status, encode_reset_offsets
from tandemmq.protocol.codes import ResponseCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.message import ReceivedMessage
from tandemmq.protocol.message_id import encode_host
from tandemmq.protocol.properties import encode_properties
from tandemmq.remoting.channel import Channel
from waits import PATIENCE_S, until

FAST = ClientOptions(heartbeat_s=0.2, route_refresh_s=0.2)
FIRST_MEMBER = ClientOptions(instance_name="a", heartbeat_s=0.2, route_refresh_s=3600)
SECOND_MEMBER = ClientOptions(instance_name="b", heartbeat_s=0.2, route_refresh_s=0.2)


def options(**kwargs: object) -> ConsumerOptions:
    settings = {
        "client": FAST,
        "start_from": StartFrom.FIRST,
        "rebalance_s": 0.3,
        "commit_s": 0.1,
        "suspend_s": 0.5,
        "pull_error_delay_s": 0.05,
    }
    return ConsumerOptions(**(settings | kwargs))  # type: ignore[arg-type]


def consumer_of(cluster: FakeCluster, *, tags: str = "*", topic: str = "T", **kwargs: object) -> Consumer:
    consumer = Consumer("g", cluster.namesrv, options=options(**kwargs))
    consumer.subscribe(topic, tags)
    return consumer


async def take(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    messages: list[ReceivedMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(messages) < count:
            messages += await consumer.poll(count - len(messages), 0.5)
    return messages


def bodies(messages: Iterable[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


async def test_reads_what_is_there_and_what_comes():
    async with running_cluster(T=2) as cluster:
        for i in range(4):
            cluster[0].put("T", i % 2, b"%d" % i)
        async with consumer_of(cluster) as consumer:
            assert sorted(bodies(await take(consumer, 4))) == [b"0", b"1", b"2", b"3"]
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0)
            cluster[0].put("T", 1, b"late")
            message = await asyncio.wait_for(waiting, PATIENCE_S)
            assert (message.body, message.topic, message.queue_id, message.queue_offset) == (
                b"late",
                "T",
                1,
                2,
            )


async def test_messages_of_a_queue_keep_their_order():
    async with running_cluster(T=1) as cluster:
        for i in range(3000):
            cluster[0].put("T", 0, b"%d" % i)
        async with consumer_of(cluster, pull_count_max=100) as consumer:
            assert bodies(await take(consumer, 3000)) == [b"%d" % i for i in range(3000)]


class Farewell(FakeBroker):
    """A broker that records the committed offsets when a member leaves."""

    left_with: dict[tuple[str, str, int], int] | None = None

    def _unregister(self, channel: Channel, command: Command) -> Command:
        self.left_with = dict(self.offsets)
        return super()._unregister(channel, command)


async def test_a_consumer_leaves_after_its_last_commit():
    """The next owner of the queues begins at the last commit."""
    broker = Farewell("a")
    async with running_cluster(broker, T=1) as cluster:
        for i in range(3):
            broker.put("T", 0, b"%d" % i)
        async with consumer_of(cluster, commit_s=1000) as consumer:
            consumer.ack_all(await take(consumer, 3))
        assert broker.left_with is not None
        assert broker.left_with["g", "T", 0] == 3


@pytest.mark.parametrize("turns", range(1, 33, 2))
async def test_a_close_while_queues_are_given_up_commits_them(turns: int):
    """Includes the queue whose commit is in flight when the rebalance is cancelled."""
    async with running_cluster(T=4) as cluster:
        for queue_id in range(4):
            cluster[0].put("T", queue_id, b"x")
        async with consumer_of(cluster, commit_s=1000, auto_ack=False) as consumer:
            consumer.ack_all(await take(consumer, 4))
            consumer.unsubscribe("T")
            for _ in range(turns):
                await asyncio.sleep(0)
        assert [cluster[0].offsets.get(("g", "T", queue_id)) for queue_id in range(4)] == [1] * 4


async def test_queues_are_shared_while_a_slave_of_older_brokers_is_away():
    """The master answers that it assigns nothing, so the slave's answer is not needed."""
    master, slave = FakeBroker("a"), FakeBroker("a", broker_id=1)
    async with running_cluster(master, slave, T=2) as cluster:
        await slave.server.stop()
        async with consumer_of(cluster, server_assignment=True) as consumer:
            await until(lambda: len(consumer.assigned) == 2)


async def test_iteration_finishes_a_message_when_the_next_is_asked_for():
    async with running_cluster(T=1) as cluster:
        for i in range(3):
            cluster[0].put("T", 0, b"%d" % i)
        async with consumer_of(cluster) as consumer:
            seen = []
            async for message in consumer:
                seen.append((message.body, dict(consumer.positions)[MessageQueue("T", "a", 0)]))
                if len(seen) == 3:
                    break
        assert seen == [(b"0", 0), (b"1", 1), (b"2", 2)]
        assert cluster[0].offsets["g", "T", 0] == 2


async def test_poll_finishes_at_the_next_poll():
    async with running_cluster(T=1) as cluster:
        for i in range(4):
            cluster[0].put("T", 0, b"%d" % i)
        async with consumer_of(cluster) as consumer:
            queue = MessageQueue("T", "a", 0)
            await take(consumer, 2)
            assert consumer.positions[queue] == 0
            await take(consumer, 2)
            assert consumer.positions[queue] == 2
            await consumer.poll(timeout_s=0)
            assert consumer.positions[queue] == 4
            await until(lambda: cluster[0].offsets.get(("g", "T", 0)) == 4)


async def test_acknowledged_out_of_order_commits_up_to_the_gap():
    async with running_cluster(T=1) as cluster:
        for i in range(4):
            cluster[0].put("T", 0, b"%d" % i)
        async with consumer_of(cluster, auto_ack=False) as consumer:
            messages = await take(consumer, 4)
            consumer.ack(messages[1], messages[3])
            assert await consumer.commit()
            assert cluster[0].offsets["g", "T", 0] == 0
            consumer.ack(messages[0])
            await consumer.commit()
            assert cluster[0].offsets["g", "T", 0] == 2
            consumer.ack(messages[2], messages[2])
        assert cluster[0].offsets["g", "T", 0] == 4


async def test_unfinished_messages_come_again_after_a_restart():
    async with running_cluster(T=1) as cluster:
        for i in range(3):
            cluster[0].put("T", 0, b"%d" % i)
        async with consumer_of(cluster, auto_ack=False) as consumer:
            first, *_ = await take(consumer, 3)
            consumer.ack(first)
        async with consumer_of(cluster, auto_ack=False) as consumer:
            assert bodies(await take(consumer, 2)) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("start", "expected"), [(StartFrom.FIRST, [b"old", b"new"]), (StartFrom.LAST, [b"new"])]
)
async def test_a_new_group_starts_where_it_is_told(start: StartFrom, expected: list[bytes]):
    async with running_cluster(T=1) as cluster:
        cluster[0].put("T", 0, b"old")
        async with consumer_of(cluster, start_from=start) as consumer:
            await until(lambda: consumer.assigned and cluster[0].pulls)
            cluster[0].put("T", 0, b"new")
            assert bodies(await take(consumer, len(expected))) == expected
        async with consumer_of(cluster, start_from=StartFrom.FIRST) as consumer:
            cluster[0].put("T", 0, b"newer")
            assert bodies(await take(consumer, 2)) == [expected[-1], b"newer"][-2:]


async def test_a_queue_that_appears_is_read_from_its_first_message():
    async with running_cluster(T=1) as cluster:
        cluster[0].put("T", 0, b"from before the group")
        async with consumer_of(cluster, start_from=StartFrom.LAST) as consumer:
            await until(lambda: cluster[0].pulls)
            cluster[0].put("T", 1, b"before anybody knew the queue")
            cluster.topics["T"] = 2
            assert bodies(await take(consumer, 1)) == [b"before anybody knew the queue"]


async def test_reading_without_a_subscription_raises(caplog: pytest.LogCaptureFixture):
    async with (
        running_cluster() as cluster,
        Consumer("g", [cluster.namesrv], options=options()) as consumer,
        PopConsumer("pops", cluster.namesrv) as popping,
    ):
        for reading in (consumer.poll(), consumer.fetch(1), anext(consumer), popping.receive()):
            with pytest.raises(ClientError, match="has no subscription: call subscribe"):
                await reading
        consumer.subscribe("Typo")
        await until(lambda: len(warned(caplog, "subscription.without_route")) == 1)
        asked = cluster.route_questions
        await until(lambda: cluster.route_questions >= asked + 3)
        assert [line.topic for line in warned(caplog, "subscription.without_route")] == ["Typo"]
        assert await consumer.poll(timeout_s=0) == []


def warned(caplog: pytest.LogCaptureFixture, event: str) -> list[Any]:
    return [line for line in caplog.records if line.message.split()[0] == event]


async def test_a_topic_that_appears_is_read_from_its_first_message():
    async with running_cluster() as cluster, consumer_of(cluster, start_from=StartFrom.LAST) as consumer:
        await until(lambda: cluster.route_questions)
        cluster[0].put("T", 0, b"the send that made the topic")
        cluster.topics["T"] = 1
        assert bodies(await take(consumer, 1)) == [b"the send that made the topic"]


async def test_a_queue_that_appeared_while_nobody_of_the_group_ran_is_read_from_its_first_message():
    async with running_cluster(T=2) as cluster:
        cluster[0].put("T", 1, b"from before the group")
        async with consumer_of(cluster, start_from=StartFrom.LAST, commit_s=60) as consumer:
            assert len(owned(consumer)) == 2
            assert cluster[0].offsets == {("g", "T", 0): 0, ("g", "T", 1): 1}
        cluster[0].put("T", 2, b"meanwhile")
        cluster.topics["T"] = 3
        async with consumer_of(cluster, start_from=StartFrom.LAST) as consumer:
            assert bodies(await take(consumer, 1)) == [b"meanwhile"]


async def test_a_queue_that_appears_is_read_from_its_first_message_by_whoever_gets_it():
    """The earlier member has not committed any offset of the queue when another member gets it."""
    async with (
        running_cluster(T=1) as cluster,
        consumer_of(cluster, start_from=StartFrom.LAST, client=FIRST_MEMBER),
    ):
        cluster[0].put("T", 1, b"new")
        cluster.topics["T"] = 2
        async with consumer_of(cluster, start_from=StartFrom.LAST, client=SECOND_MEMBER) as late:
            await until(lambda: owned(late))
            assert [queue.queue_id for queue in owned(late)] == [1]
            assert bodies(await take(late, 1)) == [b"new"]


async def test_members_of_a_new_group_that_start_together_begin_where_they_are_told():
    async with running_cluster(FakeBroker("a"), FakeBroker("b"), T=3) as cluster:
        for broker in cluster.brokers:
            for queue_id in range(3):
                broker.put("T", queue_id, b"old")
        members = [consumer_of(cluster, start_from=StartFrom.LAST) for _ in range(3)]
        await asyncio.gather(*(one.start() for one in members))
        await until(lambda: [len(owned(one)) for one in members] == [2, 2, 2])
        for broker in cluster.brokers:
            assert [broker.offsets["g", "T", queue_id] for queue_id in range(3)] == [1, 1, 1]
            broker.put("T", 2, b"new")
        got: list[bytes] = []

        async def has_all() -> bool:
            for one in members:
                got.extend(bodies(await one.poll(timeout_s=0)))
            return got.count(b"new") == 2

        await until(has_all)
        assert set(got) == {b"new"}
        await asyncio.gather(*(one.close() for one in members))


async def test_an_outage_of_a_broker_is_one_line_for_all_queues(caplog: pytest.LogCaptureFixture):
    async with running_cluster(T=4) as cluster, consumer_of(cluster) as consumer:
        await until(lambda: cluster[0].held_count == 4)
        cluster[0].pull_code = ResponseCode.SYSTEM_ERROR
        for queue_id in range(4):
            cluster[0].put("T", queue_id, b"%d" % queue_id)
        assert len(await take(consumer, 4)) == 4  # from the held pulls
        asked = len(cluster[0].pulls)
        await until(lambda: len(cluster[0].pulls) >= asked + 12)
        assert len(warned(caplog, "client_pull.failed")) == 1
        cluster[0].pull_code = 0
        await until(lambda: cluster[0].held_count)


async def test_a_broker_that_does_not_tell_offsets_holds_up_no_other():
    async with running_cluster(FakeBroker("a"), FakeBroker("b"), T=1) as cluster:
        cluster[0].query_code = ResponseCode.SYSTEM_ERROR
        cluster[1].put("T", 0, b"x")
        async with consumer_of(cluster) as consumer:
            assert bodies(await take(consumer, 1)) == [b"x"]
            cluster[0].query_code = 0
            await until(lambda: len(owned(consumer)) == 2)


async def test_tags_are_compared_by_text():
    # "Aa" and "BB" have the same Java hash, so the broker lets both through.
    async with running_cluster(T=1) as cluster:
        for tag in ("Aa", "BB", "", "C", "Aa"):
            cluster[0].put("T", 0, tag.encode() or b"none", encode_properties({"TAGS": tag}))
        async with consumer_of(cluster, tags="Aa || C") as consumer:
            assert bodies(await take(consumer, 3)) == [b"Aa", b"C", b"Aa"]
            await consumer.poll(timeout_s=0)
            assert consumer.positions[MessageQueue("T", "a", 0)] == 5


async def test_a_queue_without_matches_moves_on():
    async with running_cluster(T=1) as cluster:
        for _ in range(700):
            cluster[0].put("T", 0, b"x", encode_properties({"TAGS": "other"}))
        async with consumer_of(cluster, tags="mine"):
            await until(lambda: cluster[0].offsets.get(("g", "T", 0)) == 700)


async def test_compressed_bodies_are_inflated():
    async with running_cluster(T=1) as cluster:
        cluster[0].put("T", 0, zlib.compress(b"plain"), sys_flag=0x301)
        async with consumer_of(cluster) as consumer:
            assert bodies(await take(consumer, 1)) == [b"plain"]


BAD_BODIES = {
    "no stream": (b"no zlib", 0x301, "not a zlib stream"),
    "a stream cut short": (zlib.compress(b"x" * 5000)[:20], 0x1, "stops before its end"),
    "an unknown kind": (b"who knows", 0x701, "0x700"),
    "no extra": (b"a frame", 0x101, "needs the extra lz4"),
}


@pytest.mark.parametrize(("body", "sys_flag", "fault"), BAD_BODIES.values(), ids=list(BAD_BODIES))
async def test_a_body_that_does_not_decode_comes_as_it_is_stored(
    body: bytes, sys_flag: int, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    async with running_cluster(T=1) as cluster:
        cluster[0].put("T", 0, b"fine")
        cluster[0].put("T", 0, body, sys_flag=sys_flag)
        cluster[0].put("T", 0, b"fine, too")
        async with consumer_of(cluster) as consumer:
            first, bad, last = await take(consumer, 3)
            assert (first.body, first.body_fault) == (b"fine", "")
            assert (last.body, last.body_fault) == (b"fine, too", "")
            assert bad.body == body
            assert fault in bad.body_fault
            assert bad.as_object()["body_fault"] == bad.body_fault
            assert await consumer.poll(timeout_s=0) == []  # acknowledges the three
            await until(lambda: cluster[0].offsets.get(("g", "T", 0)) == 3)
    [line] = warned(caplog, "message_body.undecoded")
    assert (line.topic, line.queue_offset, line.count) == ("T", 1, 1)
    assert fault in str(line.error)
    assert "topic=T" in line.message


async def test_two_members_share_the_queues_and_take_over():
    async with (
        running_cluster(FakeBroker("a"), FakeBroker("b"), T=2) as cluster,
        consumer_of(cluster) as first,
    ):
        await until(lambda: len(owned(first)) == 4)
        async with consumer_of(cluster) as second:
            await until(lambda: len(owned(first)) == len(owned(second)) == 2)
            assert not set(owned(first)) & set(owned(second))
        await until(lambda: len(owned(first)) == 4)


def owned(consumer: Consumer) -> list[MessageQueue]:
    return [queue for queue in consumer.assigned if queue.topic == "T"]


async def test_handing_over_loses_nothing():
    async with running_cluster(T=4) as cluster:
        total = 2000
        for i in range(total):
            cluster[0].put("T", i % 4, b"%d" % i)
        seen: set[bytes] = set()

        async def work(consumer: Consumer) -> None:
            async for message in consumer:
                seen.add(message.body)
                if len(seen) % 50 == 0:
                    await asyncio.sleep(0.001)

        async with consumer_of(cluster, pull_count_max=16) as first:
            tasks = [asyncio.ensure_future(work(first))]
            async with consumer_of(cluster, pull_count_max=16) as second:
                tasks.append(asyncio.ensure_future(work(second)))
                await until(lambda: len(seen) > total // 2)
            await until(lambda: len(seen) == total)
        await asyncio.gather(*tasks)


async def test_offset_below_the_queue_moves_up():
    async with running_cluster(T=1) as cluster:
        cluster[0].queue("T", 0).min_offset = 100
        cluster[0].put("T", 0, b"x")
        cluster[0].offsets["g", "T", 0] = 7
        async with consumer_of(cluster) as consumer:
            assert (await take(consumer, 1))[0].queue_offset == 100
            await until(lambda: cluster[0].offsets["g", "T", 0] == 100)


async def test_offset_beyond_the_queue_moves_back():
    async with running_cluster(T=1) as cluster:
        cluster[0].put("T", 0, b"x")
        cluster[0].offsets["g", "T", 0] = 70
        async with consumer_of(cluster) as consumer:
            await until(lambda: consumer.positions.get(MessageQueue("T", "a", 0)) == 1)
            cluster[0].put("T", 0, b"y")
            assert bodies(await take(consumer, 1)) == [b"y"]


async def test_pulling_stops_at_the_bound_and_goes_on():
    async with running_cluster(T=1) as cluster:
        for i in range(100):
            cluster[0].put("T", 0, b"%d" % i)
        async with consumer_of(cluster, auto_ack=False, cached_count_max=10, pull_count_max=5) as consumer:
            messages = await take(consumer, 10)
            assert await consumer.poll(timeout_s=0.1) == []
            consumer.ack(*messages)
            assert bodies(await take(consumer, 10)) == [b"%d" % i for i in range(10, 20)]


async def test_bytes_bound_holds_over_all_queues():
    async with running_cluster(T=4) as cluster:
        for i in range(40):
            cluster[0].put("T", i % 4, bytes(1000))
        async with consumer_of(cluster, auto_ack=False, cached_bytes_max=5000, pull_count_max=2) as consumer:
            seen: list[ReceivedMessage] = []
            while len(seen) < 40:
                messages = await consumer.poll(timeout_s=PATIENCE_S)
                assert 0 < len(messages) <= 13
                seen += messages
                consumer.ack(*messages)


async def test_reads_from_the_slave_when_the_master_says_so_or_dies():
    shared = FakeBroker("a")
    slave = FakeBroker("a", broker_id=1, log=shared.queues)
    async with running_cluster(shared, slave, T=1) as cluster:
        cluster[0].put("T", 0, b"1")
        async with consumer_of(cluster) as consumer:
            cluster[0].suggest_id = 1
            slave.suggest_id = 1
            await take(consumer, 1)
            await until(lambda: slave.pulls)
            assert not slave.pulls[-1].commits_offset
            slave.suggest_id = 0
            slave.put("T", 0, b"2")
            await take(consumer, 1)
            count = len(cluster[0].pulls)
            await until(lambda: len(cluster[0].pulls) > count)
            await cluster[0].server.stop()
            slave.put("T", 0, b"3")
            assert bodies(await take(consumer, 1)) == [b"3"]
            await consumer.poll(timeout_s=0)
            await until(lambda: slave.offsets.get(("g", "T", 0)) == 3)


async def test_refused_pulls_are_tried_again():
    async with running_cluster(T=1) as cluster:
        cluster[0].pull_code = 2
        cluster[0].put("T", 0, b"x")
        async with consumer_of(cluster) as consumer:
            await until(lambda: len(cluster[0].pulls) > 3)
            cluster[0].pull_code = 0
            assert bodies(await take(consumer, 1)) == [b"x"]


async def test_empty_retry_answers_do_not_spin():
    async with running_cluster(T=1) as cluster, consumer_of(cluster) as consumer:
        await until(lambda: consumer.assigned)
        broker = cluster[0]
        broker._answer_pull = lambda command, header, queue: command.reply(  # type: ignore[method-assign]
            20,
            fields={
                "suggestWhichBrokerId": "0",
                "nextBeginOffset": str(header.queue_offset),
                "minOffset": "0",
                "maxOffset": "0",
            },
        )
        broker.put("Other", 0, b"wake")
        loop, before = asyncio.get_running_loop(), len(broker.pulls)
        began = loop.time()
        # One queue polls, with pauses of 50, 100, 200, 400 ms: five pulls cannot be faster.
        await until(lambda: len(broker.pulls) >= before + 5)
        assert loop.time() - began > 0.3


async def test_a_topic_that_appears_later_is_taken_up():
    async with running_cluster() as cluster, consumer_of(cluster, topic="Later") as consumer:
        assert consumer.assigned == ()
        cluster.topics["Later"] = 2
        cluster[0].put("Later", 1, b"x")
        assert bodies(await take(consumer, 1)) == [b"x"]


async def test_subscriptions_change_while_running():
    async with running_cluster(T=1, U=1) as cluster:
        cluster[0].put("U", 0, b"u")
        async with consumer_of(cluster) as consumer:
            consumer.subscribe("U")
            assert bodies(await take(consumer, 1)) == [b"u"]
            consumer.unsubscribe("U")
            await until(lambda: {queue.topic for queue in consumer.assigned} == {"T"})
            await until(
                lambda: (
                    {s.topic for s in cluster[0].heartbeats[-1].consumers[0].subscriptions}
                    == {"T", "%RETRY%g"}
                )
            )


async def test_retried_messages_show_their_own_topic_and_can_be_handed_back():
    async with running_cluster(**{"T": 1, "%RETRY%g": 1}) as cluster:
        cluster[0].put("%RETRY%g", 0, b"again", encode_properties({"RETRY_TOPIC": "T"}))
        async with consumer_of(cluster, start_from=StartFrom.LAST) as consumer:
            (message,) = await take(consumer, 1)
            assert message.topic == "T"
            await consumer.retry_later(message, delay_level=3)
            (header,) = cluster[0].handed_back
            assert (header.group, header.delay_level, header.original_topic) == ("g", 3, "T")
            assert consumer.positions[MessageQueue("%RETRY%g", "a", 0)] == 1


REQUEST = encode_properties({"CLUSTER": "c", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "asker"})


async def hand_back(consumer: Consumer, message: ReceivedMessage) -> None:
    await consumer.retry_later(message)


async def reply(consumer: Consumer, message: ReceivedMessage) -> None:
    await consumer.reply(message, b"pong", timeout_s=5)


def arrived(broker: FakeBroker) -> int:
    return len(broker.handed_back) + len(broker.replies)


@pytest.mark.parametrize("act", [hand_back, reply])
@pytest.mark.parametrize("fault", ["stopped", "silent", "a slave now"])
async def test_what_is_for_the_master_follows_a_failover(
    act: Callable[[Consumer, ReceivedMessage], Awaitable[None]], fault: str
):
    """The route is outdated and no other call refreshes it; for a while there is no master at all."""
    async with running_cluster(FakeBroker("a"), FakeBroker("a"), T=1) as cluster:
        old, new = cluster.brokers
        cluster.hidden = {new}
        old.put("T", 0, b"ping", REQUEST)
        async with consumer_of(cluster, client=FIRST_MEMBER) as consumer:
            (message,) = await take(consumer, 1)
            cluster.hidden = {old, new}
            match fault:
                case "stopped":
                    await old.server.stop()
                case "silent":
                    old.hang = True
                case _:
                    old.back_code = ResponseCode.SERVICE_NOT_AVAILABLE
                    old.reply_codes = [ResponseCode.SERVICE_NOT_AVAILABLE] * 100
            asked = cluster.route_questions
            acting = asyncio.ensure_future(act(consumer, message))
            await until(lambda: cluster.route_questions > asked)
            cluster.hidden = {old}
            await acting
            assert (arrived(old), arrived(new)) == (0, 1)


async def test_a_reply_waits_until_the_next_master_knows_the_requester():
    """It does not wait at the master that stored the request: a requester missing there has left."""
    async with running_cluster(FakeBroker("a"), T=1) as cluster:
        cluster[0].put("T", 0, b"ping", REQUEST)
        async with consumer_of(cluster) as consumer:
            (message,) = await take(consumer, 1)
            cluster[0].reply_codes = [ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_ERROR]
            await consumer.reply(message, b"pong")
            assert cluster[0].replies == [b"pong"]
            host, _, port = cluster[0].address.rpartition(":")
            message.record.store_host = encode_host(host, int(port))
            cluster[0].reply_codes = [ResponseCode.SYSTEM_ERROR]
            with pytest.raises(RequestRejected, match="refused by the test"):
                await consumer.reply(message, b"pong")


async def test_a_reply_waits_for_the_requester_after_a_restart_of_the_master():
    """The master comes back at its address before the requester has connected to it again."""
    async with running_cluster(FakeBroker("a"), T=1) as cluster:
        (broker,) = cluster.brokers
        broker.put("T", 0, b"ping", REQUEST)
        async with consumer_of(cluster) as consumer:
            (message,) = await take(consumer, 1)
            host, _, port = broker.address.rpartition(":")
            message.record.store_host = encode_host(host, int(port))
            broker.reply_codes = [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR]
            await consumer.reply(message, b"pong", timeout_s=PATIENCE_S)
            assert (broker.replies, broker.reply_codes) == ([b"pong"], [])


async def test_broker_resets_and_asks_for_offsets():
    async with running_cluster(T=1) as cluster:
        for i in range(3):
            cluster[0].put("T", 0, b"%d" % i)
        async with consumer_of(cluster) as consumer:
            await take(consumer, 3)
            queue = MessageQueue("T", "a", 0)
            reset = Command.request(
                220, fields={"topic": "T", "group": "g"}, body=encode_reset_offsets({queue: 1}), oneway=True
            )
            cluster[0].push("g", reset)
            assert bodies(await take(consumer, 2)) == [b"1", b"2"]
            (channel,) = cluster[0].members["g"].values()
            status = Command.request(221, fields={"topic": "T", "group": "g"})
            answer = await channel.request(status, PATIENCE_S)
            assert decode_consumer_status(answer.body).queues == {queue: 1}
            info = await channel.request(
                Command.request(307, fields={"consumerGroup": "g", "clientId": "x"}), PATIENCE_S
            )
            assert info.code == 0
            assert b'"commitOffset":1' in info.body
            direct = await channel.request(Command.request(309, fields={"consumerGroup": "g"}), PATIENCE_S)
            assert direct.code == 1
            stranger = await channel.request(Command.request(307, fields={"consumerGroup": "h"}), PATIENCE_S)
            assert stranger.code == 1


async def test_broadcasting_reads_everything_and_keeps_offsets_in_a_file(tmp_path: Path):
    settings = {
        "model": MessageModel.BROADCASTING,
        "offsets_dir": str(tmp_path),
        "client": ClientOptions(client_ip="10.0.0.1", instance_name="one"),
    }
    async with running_cluster(T=2) as cluster:
        for i in range(4):
            cluster[0].put("T", i % 2, b"%d" % i)
        async with consumer_of(cluster, **settings) as consumer:
            assert len(await take(consumer, 4)) == 4
            await consumer.poll(timeout_s=0)
        assert (tmp_path / "10.0.0.1@one" / "g" / "offsets.json").exists()
        assert not cluster[0].offsets
        cluster[0].put("T", 0, b"next")
        async with consumer_of(cluster, **settings) as consumer:
            assert bodies(await take(consumer, 1)) == [b"next"]


async def test_a_file_of_offsets_that_cannot_be_written_is_written_later(tmp_path: Path):
    """A full disk does not end the consumer; an unusable directory or file is reported at the start."""
    settings: dict[str, Any] = {
        "model": MessageModel.BROADCASTING,
        "offsets_dir": str(tmp_path / "offsets"),
        "client": ClientOptions(client_ip="10.0.0.1", instance_name="one"),
    }
    own = tmp_path / "offsets" / "10.0.0.1@one"
    async with running_cluster(T=1) as cluster:
        cluster[0].put("T", 0, b"0")
        async with consumer_of(cluster, auto_ack=False, commit_s=60, **settings) as consumer:
            consumer.ack(*await take(consumer, 1))
            (own / "g").rmdir()
            own.rmdir()
            own.touch()
            assert not await consumer.commit()
            assert not await consumer.commit()
            own.unlink()
            assert await consumer.commit()
            assert (own / "g" / "offsets.json").exists()
        (own / "g" / "offsets.json").write_text("no offsets")
        with pytest.raises(ConfigError, match=r"offsets\.json.*cannot be read"):
            await consumer_of(cluster, **settings).start()
        settings["offsets_dir"] = str(own / "g" / "offsets.json")
        with pytest.raises(ConfigError, match=r"offsets_dir: .*offsets\.json.* cannot be created"):
            await consumer_of(cluster, **settings).start()


async def test_closing_ends_the_iteration():
    async with running_cluster(T=1) as cluster:
        async with consumer_of(cluster) as consumer:
            waiting = asyncio.ensure_future(anext(consumer))
            await asyncio.sleep(0)
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert await consumer.poll(timeout_s=0) == []
        assert cluster[0].members["g"] == {}


async def test_unstarted_consumer_refuses():
    async with running_cluster(T=1) as cluster:
        consumer = consumer_of(cluster)
        with pytest.raises(ClientError):
            await consumer.poll()


def test_mistakes_are_named():
    with pytest.raises(BadRequest):
        Consumer("", "127.0.0.1:9876")
    with pytest.raises(BadRequest):
        Consumer("g", "127.0.0.1:9876").subscribe("T", " || ")
    with pytest.raises(ConfigError, match="start_time_ms"):
        ConsumerOptions(start_from=StartFrom.TIMESTAMP)
    with pytest.raises(ConfigError, match="pull_count_max"):
        ConsumerOptions(pull_count_max=0)
    with pytest.raises(ConfigError, match="host:port"):
        Consumer("g", "nowhere:port")


async def test_assigned_queues_are_read_whoever_else_is_there():
    async with running_cluster(T=3) as cluster:
        for i in range(6):
            cluster[0].put("T", i % 3, b"%d" % i)
        consumer = Consumer("g", cluster.namesrv, options=options(auto_ack=False))
        consumer.assign(MessageQueue("T", "a", 1), MessageQueue("T", "a", 9))
        with pytest.raises(ClientError, match="assigned"):
            consumer.subscribe("U")
        async with consumer, consumer_of(cluster):
            assert await consumer.queues("T") == tuple(MessageQueue("T", "a", i) for i in range(3))
            assert bodies(await take(consumer, 2)) == [b"1", b"4"]
            consumer.assign(MessageQueue("T", "a", 2))
            assert bodies(await take(consumer, 2)) == [b"2", b"5"]
            assert consumer.assigned == (MessageQueue("T", "a", 2),)


async def test_seek_goes_on_from_anywhere_in_the_queue():
    queue = MessageQueue("T", "a", 0)
    async with running_cluster(T=1) as cluster:
        for i in range(5):
            cluster[0].put("T", 0, b"%d" % i)
        async with consumer_of(cluster, auto_ack=False) as consumer:
            await take(consumer, 5)
            assert await consumer.seek(queue, 3) == 3
            again = await take(consumer, 2)
            assert bodies(again) == [b"3", b"4"]
            consumer.ack(*again)
            assert await consumer.seek(queue, StartFrom.FIRST) == 0
            assert bodies(await take(consumer, 5)) == [b"%d" % i for i in range(5)]
            assert await consumer.seek(queue, StartFrom.LAST) == 5
            assert await consumer.commit()
            assert cluster[0].offsets["g", "T", 0] == 5
            with pytest.raises(OffsetOutOfRange):
                await consumer.seek(queue, 6)
            with pytest.raises(ClientError, match="time_ms"):
                await consumer.seek(queue, StartFrom.TIMESTAMP)
            for other in (MessageQueue("T", "a", 1), MessageQueue("None", "b", 0)):
                with pytest.raises(ClientError, match="not assigned"):
                    await consumer.seek(other, 0)
            for to in ("3", None):
                with pytest.raises(ClientError, match="an offset or a StartFrom"):
                    await consumer.seek(queue, to)  # type: ignore[arg-type]
            with pytest.raises(ClientError, match="has subscriptions"):
                consumer.assign(queue)


async def test_another_strategy_shares_the_queues():
    async with (
        running_cluster(T=4) as cluster,
        consumer_of(cluster, allocate=allocate_by_circle) as one,
        consumer_of(cluster, allocate=allocate_by_circle) as two,
    ):
        shares = lambda: sorted([q.queue_id for q in c.assigned] for c in (one, two))  # noqa: E731
        await until(lambda: shares() == [[0, 2], [1, 3]])
    with pytest.raises(ConfigError, match="allocate"):
        options(allocate="AVG")


async def test_other_tags_are_wanted_from_now_on():
    """A pull held by the broker for the old tags would skip messages with the new ones."""
    async with (
        running_cluster(T=1) as cluster,
        consumer_of(cluster, tags="a", suspend_s=PATIENCE_S, rebalance_s=60) as consumer,
    ):
        await until(lambda: cluster[0].held_count)
        consumer.subscribe("T", "b")
        cluster[0].put("T", 0, b"new", encode_properties({"TAGS": "b"}))
        assert bodies(await take(consumer, 1)) == [b"new"]
        await until(lambda: cluster[0].held_count)
        asked = len(cluster[0].pulls)
        consumer.subscribe("T", "a")
        await until(lambda: any(pull.subscription == "a" for pull in cluster[0].pulls[asked:]))


async def test_a_topic_that_is_left_while_it_is_taken_over(monkeypatch: pytest.MonkeyPatch):
    """The application may unsubscribe between any two steps of the rebalance."""
    async with running_cluster(T=1, U=2) as cluster, consumer_of(cluster) as consumer:
        found = asyncio.Event()

        find_start = StartOffsets.find

        async def find(*args: Any, **how: Any) -> GroupProgress:
            consumer.unsubscribe("U")
            start = await find_start(*args, **how)
            found.set()
            return start

        monkeypatch.setattr(StartOffsets, "find", find)
        consumer.subscribe("U")
        await found.wait()
        for body in (b"goes", b"on"):
            cluster[0].put("T", 0, body)
            assert bodies(await take(consumer, 1)) == [body]
        assert {queue.topic for queue in consumer.assigned} == {"T"}


async def test_messages_after_a_pause_wait_for_resume():
    """Also if the broker held the pull at that moment."""
    async with running_cluster(T=1) as cluster, consumer_of(cluster, suspend_s=PATIENCE_S) as consumer:
        await until(lambda: cluster[0].pulls)
        consumer.pause()
        cluster[0].put("T", 0, b"later")
        await until(lambda: not cluster[0].held_count)
        assert await consumer.poll(timeout_s=0.05) == []
        consumer.resume()
        assert bodies(await take(consumer, 1)) == [b"later"]
        assert consumer.positions == {MessageQueue("T", "a", 0): 0}
