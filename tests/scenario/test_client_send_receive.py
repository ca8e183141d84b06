"""The client against a real name server and a real broker: sending, reading, offsets, administration."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from client_rig import numbers, running_cluster, running_rig, take

from tandemmq.api import broker_admin, broker_consume
from tandemmq.client import (
    Admin,
    Message,
    PopConsumer,
    PopOptions,
    Producer,
    ProducerOptions,
    StartFrom,
    allocate_by_circle,
)
from tandemmq.client.consumer.membership import queue_of
from tandemmq.errors import BadRequest, BrokerUnreachable, ClientError, RequestRejected, TopicNotFound
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.bodies.client import Assignments, QueueAssignment, RequestMode
from tandemmq.protocol.codes import ResponseCode
from tandemmq.remoting.client import RemotingClient
from tandemmq.remoting.options import render_address
from waits import until


async def test_every_way_of_sending_arrives_once(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig:
        async with Producer("P", rig.namesrv, options=ProducerOptions(batch_linger_ms=0)) as producer:
            results = [await producer.send(Message(topic="T", body=b"0", tags="a", keys=("k0",)))]
            results += await asyncio.gather(
                *(producer.send(Message(topic="T", body=b"%d" % i)) for i in range(1, 300))
            )
            results += await producer.send_batch(
                [Message(topic="T", body=b"%d" % i) for i in range(300, 400)]
            )
            await producer.send_oneway(Message(topic="T", body=b"400"))
        assert all(result.is_ok for result in results)
        async with rig.consumer() as consumer:
            messages = await take(consumer, 401)
            assert numbers(messages) == list(range(401))
            by_key = {message.message_id: message for message in messages}
            for number, result in enumerate(results):
                message = by_key[result.unique_key]
                assert int(message.body) == number
                assert message.queue_id == result.queue.queue_id
                assert message.queue_offset == result.queue_offset
                assert message.record.message_id == result.message_id
            assert await consumer.poll(timeout_s=0.1) == []


async def test_a_client_knows_whether_its_servers_answer(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig, Producer("P", rig.namesrv) as producer:
        assert producer.is_connected
        assert list(await producer.ping()) == [rig.namesrv]
        await producer.send(Message(topic="T", body=b"1"))
        times = await producer.ping()
        assert len(times) == 2
        assert all(0 <= time_s < 60 for time_s in times.values())
        await rig.stop_broker("broker-a")
        with pytest.raises(ConnectionError):
            await producer.ping()
        await rig.start_broker("broker-a")
    assert not producer.is_connected


async def test_wrong_numbers_are_refused_by_name_and_break_nothing(tmp_path: Path) -> None:
    wrong: Any = float("nan")
    message = Message(topic="T", body=b"1")
    async with (
        running_cluster(tmp_path) as rig,
        Producer("P", rig.namesrv) as producer,
        PopConsumer("pops", rig.namesrv, options=PopOptions(start_from=StartFrom.FIRST)) as pops,
        rig.consumer(auto_ack=False) as consumer,
    ):
        pops.subscribe("T")
        await rig.fill("T", 1)
        (received,) = await take(consumer, 1)
        (popped,) = await pops.receive()
        calls: dict[str, list[Callable[[], Awaitable[Any]]]] = {
            "timeout_s nan": [
                lambda: producer.send(message, timeout_s=wrong),
                lambda: producer.start_send(message, timeout_s=wrong),
                lambda: producer.send_batch([message], timeout_s=wrong),
                lambda: producer.request(message, timeout_s=wrong),
                lambda: producer.reply(received, b"", timeout_s=wrong),
                lambda: producer.flush(wrong),
                lambda: consumer.poll(timeout_s=wrong),
                lambda: pops.receive(timeout_s=wrong),
                lambda: pops.wait_for_message(wrong),
            ],
            "count_max nan": [lambda: consumer.poll(wrong), lambda: consumer.fetch(wrong)],
            "delay_level nan": [lambda: consumer.retry_later(received, delay_level=wrong)],
            "delay_s nan": [
                lambda: consumer.retry_later(received, delay_s=wrong),
                lambda: pops.nack(popped, delay_s=wrong),
                lambda: pops.retry_later(popped, delay_s=wrong),
            ],
            "invisible_s nan": [lambda: pops.change_invisible(popped, wrong)],
            "time_ms nan": [
                lambda: consumer.seek(queue_of(received), StartFrom.TIMESTAMP, time_ms=wrong),
            ],
        }
        for text, refused in calls.items():
            for call in refused:
                with pytest.raises(BadRequest, match=text):
                    await call()
        wrong = None
        with pytest.raises(BadRequest, match="count_max 0: must be a whole number from 1"):
            await consumer.fetch(0)
        assert await consumer.poll(0) == []
        with pytest.raises(BadRequest, match=r"invisible_s 0: must be a number from 0\.001"):
            await pops.receive(invisible_s=0)
        with pytest.raises(ClientError, match="seek to True: must be an offset"):
            await consumer.seek(queue_of(received), True)
        first: Any = np.int64(0)
        assert await consumer.seek(queue_of(received), first) == 0
        with pytest.raises(BadRequest, match="delay_level None"):  # once it broke the consumer for good
            await consumer.retry_later(received, delay_level=wrong)
        short: Any = np.int16(60)  # its milliseconds would overflow
        await pops.change_invisible(popped, short)
        await pops.nack(popped, delay_s=short)
        assert await pops.receive(np.int8(1), timeout_s=0, invisible_s=short) == []  # type: ignore[arg-type]
        await producer.send(message, timeout_s=float("inf"))
        assert len(await take(consumer, 1)) == 1


async def test_a_consumer_measures_its_lag(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig:
        await rig.fill("T", 10)
        async with rig.consumer(auto_ack=False) as consumer:
            messages = await take(consumer, 10)
            (queue,) = [queue for queue in consumer.assigned if queue.topic == "T"]
            assert (await consumer.lag())[queue].messages == 10
            consumer.ack(*messages[:4])
            assert await consumer.commit()
            lag = (await consumer.lag())[queue]
            assert lag.messages == 6
            assert 0 < lag.seconds < 600
            consumer.ack(*messages)
            assert (await consumer.lag())[queue] == (0, 0.0)


async def test_unknown_topic_is_created_by_the_first_send(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        await rig.start_broker()
        async with Producer("P", rig.namesrv) as producer:
            assert (await producer.send(Message(topic="Fresh", body=b"x"))).is_ok
        async with rig.consumer(topic="Fresh") as consumer:
            assert (await take(consumer, 1))[0].body == b"x"


async def test_large_and_compressed_bodies_come_back_as_they_were(tmp_path: Path) -> None:
    bodies = [b"text " * 100_000, bytes(range(256)) * 4000, b"x"]
    async with running_cluster(tmp_path) as rig:
        async with Producer("P", rig.namesrv) as producer:
            for body in bodies:
                await producer.send(Message(topic="T", body=body))
        async with rig.consumer() as consumer:
            assert {message.body for message in await take(consumer, 3)} == set(bodies)


async def test_tags_select_and_offsets_pass_what_is_left_out(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=2) as rig:
        async with Producer("P", rig.namesrv) as producer:
            await producer.send_many(
                Message(topic="T", body=b"%d" % i, tags="even" if i % 2 == 0 else "odd") for i in range(500)
            )
        async with rig.consumer(tags="even || none") as consumer, Admin(rig.namesrv) as admin:
            assert numbers(await take(consumer, 250)) == list(range(0, 500, 2))
            await consumer.poll(timeout_s=0.1)
            await until(lambda: sum(consumer.positions.values()) == 500, "the filtered offsets are passed")
            await consumer.commit()
            assert await admin.lag("CG", "T") == 0


async def test_a_restarted_group_goes_on_where_it_was(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig:
        await rig.fill("T", 100)
        async with rig.consumer(auto_ack=False) as consumer:
            messages = await take(consumer, 100)
            consumer.ack(*(message for message in messages if message.queue_id != 0))
        unfinished = [int(message.body) for message in messages if message.queue_id == 0]
        await rig.stop_broker()
        await rig.start_broker()
        async with rig.consumer() as consumer:
            if unfinished:
                assert numbers(await take(consumer, len(unfinished))) == sorted(unfinished)
            await rig.fill("T", 10, first=100)
            assert numbers(await take(consumer, 10)) == list(range(100, 110))


@pytest.mark.parametrize("server_assignment", [False, True])
async def test_two_members_share_and_the_left_one_takes_over(tmp_path: Path, server_assignment: bool) -> None:
    async with running_cluster(tmp_path, queue_count=8) as rig:
        seen: set[int] = set()

        async def read(consumer) -> None:  # type: ignore[no-untyped-def]
            async for message in consumer:
                seen.add(int(message.body))

        async with rig.consumer(server_assignment=server_assignment) as first:
            readers = [asyncio.ensure_future(read(first))]
            async with rig.consumer(server_assignment=server_assignment) as second:
                readers.append(asyncio.ensure_future(read(second)))
                await until(lambda: own(first) == own(second) == 4, "each has half of the queues")
                await rig.fill("T", 1000)
                await until(lambda: len(seen) == 1000, "everything is read")
            await until(lambda: own(first) == 8, "the first has all queues")
            await rig.fill("T", 1000, first=1000)
            await until(lambda: len(seen) == 2000, "everything is read by the one that is left")
        await asyncio.gather(*readers)


async def test_the_broker_deals_queues_or_lets_the_group_pop_them(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig, Admin(rig.namesrv) as admin:
        broker = await rig.start_broker()
        await admin.create_topic("T", queue_count=4)
        settings = {"server_assignment": True, "allocate": allocate_by_circle, "rebalance_s": 0.2}
        async with rig.consumer(**settings) as first, rig.consumer(**settings) as second:
            await until(lambda: own(first) == own(second) == 2)
            dealt = [{one.queue_id for one in each.assigned if one.topic == "T"} for each in (first, second)]
            assert sorted(dealt, key=min) == [{0, 2}, {1, 3}]
            mode = RequestMode(topic="T", group="CG", mode="POP")
            await broker_admin.set_request_mode(admin._remoting, render_address(broker.address), mode)
            await until(lambda: own(first) == own(second) == 0)


@pytest.mark.parametrize("is_old", [True, False], ids=["none_can_deal", "one_does_not_answer"])
async def test_queues_are_shared_whether_or_not_a_broker_deals_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_old: bool
) -> None:
    real, refused = broker_consume.query_assignment, set()

    async def query(client: RemotingClient, address: str, *rest: Any, **named: Any) -> Any:
        if is_old:
            refused.add(address)
            raise RequestRejected("what is this?", code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        if not refused or address in refused:
            refused.add(address)
            raise BrokerUnreachable(f"{address} is away")
        return await real(client, address, *rest, **named)

    monkeypatch.setattr(broker_consume, "query_assignment", query)
    async with running_rig(tmp_path) as rig, Admin(rig.namesrv) as admin:
        await rig.start_broker()
        await rig.start_broker("broker-b")
        await admin.create_topic("T", queue_count=2)
        async with rig.consumer(server_assignment=True) as consumer:
            await until(lambda: own(consumer) == 4)
    assert refused


async def test_of_a_topic_that_the_group_pops_no_queue_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The assignment of such a topic names no queue: reading it would fail for ever."""

    async def query(*_: Any, **named: Any) -> Assignments:
        return Assignments(queues=[QueueAssignment(queue=MessageQueue("T", "broker-a", -1), mode="POP")])

    monkeypatch.setattr(broker_consume, "query_assignment", query)
    async with running_cluster(tmp_path) as rig, rig.consumer(server_assignment=True) as consumer:
        await rig.fill("T", 1)
        view = await consumer.instance.routes.refresh("T")
        assert view is not None
        assert await consumer._member.assignment._assigned_by_broker(view, ()) == ()


def own(consumer) -> int:  # type: ignore[no-untyped-def]
    return sum(queue.topic == "T" for queue in consumer.assigned)


async def test_a_new_group_may_start_at_the_end_or_at_a_time(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig:
        await rig.fill("T", 10)
        async with rig.consumer("first") as consumer:
            last_ms = max(message.stored_at_ms for message in await take(consumer, 10))
        async with (
            rig.consumer("last", start_from=StartFrom.LAST) as last,
            rig.consumer("timed", start_from=StartFrom.TIMESTAMP, start_time_ms=last_ms + 1) as timed,
        ):
            await until(lambda: own(last) == own(timed) == 1)
            await rig.fill("T", 1, first=10)
            assert numbers(await take(last, 1)) == [10]
            assert numbers(await take(timed, 1)) == [10]


async def test_a_handed_back_message_is_kept_for_later_and_finished_here(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig, Admin(rig.namesrv) as admin:
        await rig.fill("T", 1)
        async with rig.consumer(auto_ack=False) as consumer:
            (message,) = await take(consumer, 1)
            await consumer.retry_later(message, delay_level=1)
            await consumer.commit()
            assert await admin.lag("CG", "T") == 0
            assert await admin.message_count("SCHEDULE_TOPIC_XXXX") == 1


@pytest.mark.parametrize(("delay_level", "topic"), [(1, "%RETRY%CG"), (-1, "%DLQ%CG")])
async def test_a_message_that_its_broker_has_lost_is_handed_back_by_its_content(
    tmp_path: Path, delay_level: int, topic: str
) -> None:
    """Another message is stored at its log offset and must not be delivered instead."""
    async with running_cluster(tmp_path) as rig, Admin(rig.namesrv) as admin:
        await rig.fill("T", 2)
        async with rig.consumer(auto_ack=False) as consumer:
            one, other = await take(consumer, 2)
            lost = msgspec.structs.replace(one.record, log_offset=other.record.log_offset)
            consumer.ack(one)
            one.record = lost
            await consumer.retry_later(one, delay_level=delay_level)
            if delay_level > 0:
                again = await take(consumer, 1)
                assert [(m.body, m.retry_count, m.topic) for m in again] == [(one.body, 1, "T")]

            async def is_handed_back() -> bool:
                return await admin.message_count(topic) == 1

            await until(is_handed_back, "the name server knows the topic", not_yet=(TopicNotFound,))


async def test_a_message_handed_back_for_good_is_a_dead_letter(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig, Admin(rig.namesrv) as admin:
        await rig.fill("T", 1)
        async with rig.consumer(auto_ack=False) as consumer:
            (message,) = await take(consumer, 1)
            await consumer.retry_later(message, delay_level=-1)

            async def is_dead() -> bool:
                return await admin.message_count("%DLQ%CG") == 1

            await until(is_dead, "the name server knows the topic of dead letters", not_yet=(TopicNotFound,))


async def test_administration_sees_and_changes_the_cluster(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=2) as rig, Admin(rig.namesrv) as admin:
        info = await admin.cluster_info()
        assert list(info.clusters.values()) == [("broker-a",)]
        assert "T" in await admin.topics()
        route = await admin.topic_route("T")
        assert route.queues[0].write_queue_count == 2
        with pytest.raises(TopicNotFound):
            await admin.topic_route("Nothing")
        with pytest.raises(BadRequest, match="cluster"):
            await admin.create_topic("U", cluster="elsewhere")
        async with Producer("P", rig.namesrv) as producer:
            result = await producer.send(Message(topic="T", body=b"x", keys=("order-1",)))
        assert await admin.message_count("T") == 1
        assert sorted(one.max_offset for one in (await admin.topic_offsets("T")).values()) == [0, 1]
        record = await admin.find_by_id(result.message_id)
        assert record is not None
        assert record.body == b"x"
        assert [found.unique_key for found in await admin.find_by_key("T", "order-1")] == [result.unique_key]
        assert len(await admin.find_by_unique_key("T", result.unique_key)) == 1
        (address,) = info.brokers["broker-a"].addresses.values()
        assert "putTps" in await admin.runtime_info(address)
        await admin.delete_topic("T")
        with pytest.raises(TopicNotFound):
            await admin.topic_route("T")


async def test_offsets_of_a_running_group_are_reset(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=2) as rig, Admin(rig.namesrv) as admin:
        await rig.fill("T", 20)
        async with rig.consumer() as consumer:
            assert len(await take(consumer, 20)) == 20
            await consumer.poll(timeout_s=0)
            await consumer.commit()
            assert await admin.lag("CG", "T") == 0
            await admin.reset_offsets("CG", "T", 0)
            await rig.fill("T", 2, first=20)
            assert set(numbers(await take(consumer, 22))) == set(range(22))
