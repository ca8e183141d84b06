"""The producer against brokers that answer, refuse, hang and die."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from client_fakes import FakeBroker, running_cluster

from tandemmq.client import (
    ClientOptions,
    Compression,
    Json,
    Message,
    Producer,
    ProducerOptions,
    ReceivedMessage,
    SendResult,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from tandemmq.client.producer import request_reply, sender
from tandemmq.errors import (
    BadRequest,
    BrokerUnreachable,
    ClientError,
    ConfigError,
    MessageIllegal,
    NoRoute,
    NotServed,
    QueueNotFound,
    RequestRejected,
    RequestTimeout,
    ServiceNotAvailable,
)
from tandemmq.protocol.bodies import MessageQueue
from tandemmq.protocol.codes import VERSION_TIMERS
from tandemmq.protocol.command import Command
from tandemmq.protocol.record import decode_record
from tandemmq.protocol.sys_flag import TRANSACTION_PREPARED
from tandemmq.remoting.channel import Channel
from waits import PATIENCE_S, until

MESSAGE = Message(topic="T", body=b"x")


def options(**kwargs: object) -> ProducerOptions:
    return ProducerOptions(**kwargs)  # type: ignore[arg-type]


async def test_send_says_where_the_message_lies():
    async with running_cluster(T=2) as cluster, Producer("g", cluster.namesrv) as producer:
        result = await producer.send(
            Message(topic="T", body=b"x", tags="A", keys=("k",), properties={"p": "1"})
        )
        assert result.status is SendStatus.SEND_OK
        assert result.is_ok
        assert len(result.unique_key) == 32
        queue = cluster[0].queue("T", result.queue.queue_id)
        record = decode_record(queue.records[result.queue_offset][0])
        assert record.body == b"x"
        assert record.unique_key == result.unique_key
        assert record.properties == {
            "p": "1",
            "KEYS": "k",
            "TAGS": "A",
            "UNIQ_KEY": result.unique_key,
            "WAIT": "true",
        }


@pytest.mark.parametrize("linger_ms", [None, 0])
async def test_wrong_types_cost_one_send_and_no_room(linger_ms: float | None):
    async with (
        running_cluster(T=2) as cluster,
        Producer("g", cluster.namesrv, options=options(batch_linger_ms=linger_ms)) as producer,
    ):
        with pytest.raises(MessageIllegal, match="body must be bytes, not str"):
            await producer.send(Message(topic="T", body="text"))  # type: ignore[arg-type]
        no_body: Any = Message(topic="T", body=None)  # type: ignore[arg-type]
        no_topic: Any = Message(topic=None, body=b"x")  # type: ignore[arg-type]
        no_message: Any = "text"
        faults = (
            (no_body, "body must be bytes"),
            (no_topic, "topic must be str"),
            (no_message, "expected a Message"),
        )
        for wrong, fault in faults:
            with pytest.raises(MessageIllegal, match=fault):
                await producer.send(wrong)
            with pytest.raises(MessageIllegal, match=fault):
                await producer.send_batch([wrong, wrong])
            with pytest.raises(MessageIllegal, match=fault):
                await producer.send_many([wrong])
        with pytest.raises(ClientError, match="queue must be a MessageQueue, not 1"):
            await producer.send(Message(topic="T", body=b"x"), queue=1)  # type: ignore[arg-type]
        assert producer.in_flight == 0
        assert (await producer.send(Message(topic="T", body=b"x"))).is_ok


async def test_queues_take_turns():
    async with running_cluster(T=3) as cluster, Producer("g", cluster.namesrv) as producer:
        ids = [(await producer.send(Message(topic="T", body=b"x"))).queue.queue_id for _ in range(6)]
        assert sorted(ids[:3]) == [0, 1, 2]
        assert ids[:3] == ids[3:]


async def test_equal_keys_go_to_the_same_queue():
    async with running_cluster(T=4) as cluster, Producer("g", cluster.namesrv) as producer:
        queue = await producer.queue_for("T", "order-17")
        assert queue == await producer.queue_for("T", "order-17")
        result = await producer.send(Message(topic="T", body=b"x"), queue=queue)
        assert result.queue == queue


async def test_unknown_topic_is_sent_along_the_template():
    async with running_cluster() as cluster, Producer("g", cluster.namesrv) as producer:
        result = await producer.send(Message(topic="New", body=b"x"))
        assert result.queue.topic == "New"
        assert len(await producer.queues("New")) == 4


async def test_a_topic_that_is_gone_while_its_broker_had_no_master_is_sent_along_the_template():
    slave, master = FakeBroker("a", broker_id=1), FakeBroker("a")
    async with running_cluster(slave, master, T=2) as cluster, Producer("g", cluster.namesrv) as producer:
        cluster.hidden.add(master)
        with pytest.raises(NoRoute, match="no broker with a master accepts writes"):
            await producer.send(Message(topic="T", body=b"1"), timeout_s=0.5)
        cluster.hidden.clear()
        del cluster.topics["T"]
        result = await producer.send(Message(topic="T", body=b"2"))
        raw, _ = master.queue("T", result.queue.queue_id).records[result.queue_offset]
        assert decode_record(raw).body == b"2"
        assert await producer.queues("T")
        assert not slave.queues


async def test_no_route_without_template():
    async with running_cluster() as cluster, Producer("g", cluster.namesrv) as producer:
        del cluster.topics["TBW102"]
        with pytest.raises(NoRoute, match="New"):
            await producer.send(Message(topic="New", body=b"x"), timeout_s=0.5)


async def test_no_name_server_fails_the_start():
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
        await Producer("g", "127.0.0.1:1").start()


async def test_a_client_starts_once():
    async with running_cluster(T=1) as cluster:
        producer = await Producer("g", cluster.namesrv).start()
        with pytest.raises(ClientError, match="clients are single-use"):
            await producer.start()
        assert (await producer.send(Message(topic="T", body=b"x"))).is_ok
        await producer.close()
        with pytest.raises(ClientError, match="clients are single-use"):
            await producer.start()


async def test_before_send_must_return_a_message():
    async with running_cluster(T=1) as cluster:
        wrong = options(before_send=lambda message: None)
        async with Producer("g", cluster.namesrv, options=wrong) as producer:
            for sending in (producer.send(MESSAGE), producer.send_batch([MESSAGE, MESSAGE])):
                with pytest.raises(MessageIllegal, match="before_send returned None"):
                    await sending
            assert cluster[0].queue("T", 0).records == []


@pytest.mark.parametrize("linger_ms", [None, 0])
async def test_values_are_encoded_and_their_bodies_need_room(linger_ms: float | None):
    """Before a hook could make a body longer than its room, and a batch released more than it had."""
    numbers = options(
        serializer=Json(list[int]),
        before_send=lambda message: msgspec.structs.replace(message, body=message.body + b" "),
        batch_linger_ms=linger_ms,
    )
    value = Message(topic="T", value=[1, 2])
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=numbers) as producer:
        await producer.send(value)
        await producer.send_batch([value, MESSAGE])
        await producer.send_many([value, MESSAGE])
        await producer.send_oneway(value)
        await (await producer.start_send(value))
        records = cluster[0].queue("T", 0).records
        await until(lambda: len(records) == 7)
        bodies = sorted(decode_record(record).body for record, *_ in records)
        assert bodies == [b"[1,2] "] * 5 + [b"x "] * 2
        with pytest.raises(MessageIllegal, match="the value cannot be encoded"):
            await producer.send(Message(topic="T", value=object()))
        wrong = [Message(topic="T", value=object())]
        assert (await producer.send_many(wrong, stop_on_error=False)).failed_count == 1
        assert (producer.in_flight, producer._window.bytes) == (0, 0)
    assert value == Message(topic="T", value=[1, 2])
    assert repr(value) == "Message(topic='T', body=b'', value=[1, 2])"


async def test_a_value_needs_a_serializer():
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        with pytest.raises(MessageIllegal, match="the producer has no serializer"):
            await producer.send(Message(topic="T", value=1))
    with pytest.raises(ConfigError, match=r"ProducerOptions.serializer .* must have a method encode"):
        options(serializer=Json)


async def test_large_values_are_sent_alone():
    texts = options(serializer=Json(str))
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=texts) as producer:
        summary = await producer.send_many(Message(topic="T", value="x" * size) for size in (1, 9_000, 1))
        assert summary.ok_count == 3
        assert sorted(cluster[0].send_codes) == [310, 320]


@pytest.mark.parametrize(("kind", "sys_flag"), [("ZLIB", 0x301), ("LZ4", 0x101), ("ZSTD", 0x201)])
async def test_large_bodies_travel_compressed(kind: str, sys_flag: int):
    pytest.importorskip({"ZLIB": "zlib", "LZ4": "lz4.frame", "ZSTD": "zstandard"}[kind])
    body = b"abc" * 5000
    told = options(compression=Compression(kind))
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=told) as producer:
        await producer.send(Message(topic="T", body=body))
        record = decode_record(cluster[0].queue("T", 0).records[0][0])
        assert len(record.body) < 1000
        assert record.sys_flag == sys_flag
        assert record.content == body


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_stored_with_a_broken_promise_is_a_result(code: int):
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        cluster[0].refuse = lambda _: code
        result = await producer.send(Message(topic="T", body=b"x"))
        expected = {10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT"}
        assert result.status.value == expected[code]
        assert not result.is_ok
        assert cluster[0].sends == 1


async def test_broken_promise_is_retried_only_when_asked():
    async with running_cluster(FakeBroker("a"), FakeBroker("b"), T=1) as cluster:
        for broker in cluster.brokers:
            broker.refuse = lambda _, name=broker.name: (
                12 if cluster.brokers[0].sends + cluster.brokers[1].sends < 2 else 0
            )
        async with Producer("g", cluster.namesrv, options=options(retry_when_not_stored_ok=True)) as producer:
            assert (await producer.send(Message(topic="T", body=b"x"))).is_ok
        assert cluster[0].sends == cluster[1].sends == 1


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
async def test_retriable_refusal_goes_to_another_broker(code: int):
    async with running_cluster(FakeBroker("a"), FakeBroker("b"), T=2) as cluster:
        cluster[0].refuse = lambda _: code
        async with Producer("g", cluster.namesrv) as producer:
            for _ in range(4):
                assert (await producer.send(Message(topic="T", body=b"x"))).queue.broker_name == "b"


async def test_other_refusals_are_raised_at_once():
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        cluster[0].refuse = lambda _: 13
        with pytest.raises(MessageIllegal, match="refused by the test"):
            await producer.send(Message(topic="T", body=b"x"))
        assert cluster[0].sends == 1


@pytest.mark.parametrize("is_pinned", [True, False])
async def test_queue_that_is_gone_fails_only_a_pinned_send_and_refreshes_the_route(is_pinned: bool):
    async with running_cluster(T=2) as cluster:
        rarely = options(client=ClientOptions(route_refresh_s=3600))
        async with Producer("g", cluster.namesrv, options=rarely) as producer:
            gone = next(queue for queue in await producer.queues("T") if queue.queue_id == 1)
            cluster.topics["T"] = 1
            cluster[0].refuse = lambda header: 29 if header.queue_id == 1 else 0
            cluster[0].refusal = "request queueId[1] is illegal"
            if is_pinned:
                with pytest.raises(QueueNotFound):
                    await producer.send(MESSAGE, queue=gone)
                assert cluster[0].sends == 1
            else:
                for _ in range(2):
                    assert (await producer.send(MESSAGE)).queue.queue_id == 0

            async def has_new_route() -> bool:
                return len(await producer.queues("T")) == 1

            await until(has_new_route)


async def test_pinned_send_is_retried_at_its_broker_after_a_pause():
    async with running_cluster(FakeBroker("a"), FakeBroker("b"), T=1) as cluster:
        busy, pinned = cluster[0], MessageQueue(topic="T", broker_name="a", queue_id=0)
        busy.refuse = lambda _: 2 if busy.sends < 3 else 0
        async with Producer("g", cluster.namesrv) as producer:
            begun_s = time.monotonic()
            assert (await producer.send(MESSAGE, queue=pinned)).queue == pinned
        assert time.monotonic() - begun_s >= 3 * sender.RETRY_PAUSE_S
        assert (busy.sends, cluster[1].sends) == (3, 0)


async def test_attempts_are_bounded():
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        cluster[0].refuse = lambda _: 1
        with pytest.raises(RequestRejected):
            await producer.send(Message(topic="T", body=b"x"))
        assert cluster[0].sends == 3


async def test_dead_broker_is_passed_over():
    async with running_cluster(FakeBroker("a"), FakeBroker("b"), T=2) as cluster:
        async with Producer("g", cluster.namesrv) as producer:
            await producer.send(Message(topic="T", body=b"x"))
            await cluster[0].server.stop()
            results = await asyncio.gather(*(producer.send(Message(topic="T", body=b"x")) for _ in range(50)))
        assert {result.queue.broker_name for result in results} == {"b"}


async def test_silent_broker_times_out():
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        cluster[0].hang = True
        with pytest.raises(RequestTimeout):
            await producer.send(Message(topic="T", body=b"x"), timeout_s=0.1)
        assert producer.in_flight == 0


async def test_sends_beyond_the_bound_wait():
    limits = options(in_flight_count_max=4)
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv, options=limits) as producer:
        cluster[0].hang = True
        hanging = [await producer.start_send(Message(topic="T", body=b"x"), timeout_s=1.0) for _ in range(4)]
        assert producer.in_flight == 4
        await until(lambda: cluster[0].sends == 4)
        with pytest.raises(TimeoutError, match="4 sends are still in flight after 0 s"):
            await producer.flush(0.0)
        cluster[0].hang = False
        waiting = asyncio.ensure_future(producer.send(Message(topic="T", body=b"y")))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert (await waiting).is_ok
        assert all(
            isinstance(e, RequestTimeout) for e in await asyncio.gather(*hanging, return_exceptions=True)
        )
        await producer.flush(0.0)


async def test_batch_gives_each_message_its_result():
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        results = await producer.send_batch([Message(topic="T", body=b"%d" % i, tags="x") for i in range(5)])
        assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]
        assert len({result.unique_key for result in results}) == 5
        assert len({result.message_id for result in results}) == 5
        assert cluster[0].send_codes == [320]
        records = [decode_record(raw) for raw, _ in cluster[0].queue("T", 0).records]
        assert [record.unique_key for record in records] == [result.unique_key for result in results]


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message(topic="T", body=b"x"), Message(topic="U", body=b"x")],
        [Message(topic="T", body=b"x"), Message(topic="T", body=b"x", wait_stored=False)],
        [Message(topic="T", body=b"x"), Message(topic="T", body=b"x", delay_level=3)],
        [Message(topic="T", body=b"x", priority=0)] * 2,
        [Message(topic="T", body=b"")],
        [Message(topic="%RETRY%g", body=b"x")] * 2,
        [Message(topic="T", body=bytes(3 << 20)), Message(topic="T", body=bytes(3 << 20))],
    ],
)
async def test_impossible_batches_are_refused(messages: list[Message]):
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        with pytest.raises(MessageIllegal):
            await producer.send_batch(messages)
        assert producer.in_flight == 0
        assert cluster[0].sends == 0


@pytest.mark.parametrize(
    "message",
    [
        Message(topic="T", body=b""),
        Message(topic="", body=b"x"),
        Message(topic="T/U", body=b"x"),
        Message(topic="T", body=bytes((4 << 20) + 1)),
        Message(topic="T", body=b"x", properties={"KEYS": "k"}),
        Message(topic="SCHEDULE_TOPIC_XXXX", body=b"x"),
    ],
)
@pytest.mark.parametrize("linger", [None, 0.0])
async def test_illegal_messages_are_refused_before_sending(message: Message, linger: float | None):
    async with running_cluster(T=1) as cluster:
        async with Producer("g", cluster.namesrv, options=options(batch_linger_ms=linger)) as producer:
            with pytest.raises(MessageIllegal):
                await producer.send(message)
            assert producer.in_flight == 0
        assert cluster[0].sends == 0


@pytest.mark.parametrize("linger", [0.0, 5.0])
async def test_concurrent_sends_share_requests(linger: float):
    async with running_cluster(T=2) as cluster:
        async with Producer("g", cluster.namesrv, options=options(batch_linger_ms=linger)) as producer:
            messages = [Message(topic="T", body=b"%d" % i) for i in range(200)]
            results = await asyncio.gather(*(producer.send(message) for message in messages))
        assert cluster[0].stored("T") == 200
        assert cluster[0].sends <= 3
        for index, result in enumerate(results):
            raw, _ = cluster[0].queue("T", result.queue.queue_id).records[result.queue_offset]
            record = decode_record(raw)
            assert record.body == b"%d" % index
            assert record.unique_key == result.unique_key


async def test_batches_leave_when_full_and_keep_apart_what_differs():
    limits = options(batch_linger_ms=10_000.0, batch_count_max=3)
    async with (
        running_cluster(T=1, U=1) as cluster,
        Producer("g", cluster.namesrv, options=limits) as producer,
    ):
        pinned = MessageQueue(topic="T", broker_name="a", queue_id=0)
        sends = [producer.start_send(Message(topic=topic, body=b"x")) for topic in "TUTUTU"]
        sends += [producer.start_send(Message(topic="T", body=b"x"), queue=pinned) for _ in range(3)]
        sends += [producer.start_send(Message(topic="T", body=b"x", wait_stored=False)) for _ in range(3)]
        results = await asyncio.gather(*[await send for send in sends])
        assert all(result.is_ok for result in results)
        assert cluster[0].send_codes == [320] * 4


async def test_lone_send_does_not_wait_for_company():
    async with running_cluster(T=1) as cluster:
        async with Producer("g", cluster.namesrv, options=options(batch_linger_ms=0.0)) as producer:
            assert (await producer.send(Message(topic="T", body=b"x"))).is_ok
        assert cluster[0].send_codes == [310]


async def test_closing_sends_what_lingers():
    async with running_cluster(T=1) as cluster:
        async with Producer("g", cluster.namesrv, options=options(batch_linger_ms=10_000.0)) as producer:
            future = await producer.start_send(Message(topic="T", body=b"x"))
        assert (await future).is_ok


async def test_send_many_reports_every_message_in_order():
    seen: list[bytes] = []
    async with running_cluster(T=4) as cluster, Producer("g", cluster.namesrv) as producer:
        messages = (Message(topic="T", body=b"%d" % i) for i in range(5000))
        summary = await producer.send_many(messages, on_result=lambda message, _: seen.append(message.body))
        assert summary.ok_count == summary.stored_count == 5000
        assert seen == [b"%d" % i for i in range(5000)]
        assert cluster[0].stored("T") == 5000
        assert cluster[0].sends <= 8


async def test_send_many_mixes_what_travels_alone():
    async with running_cluster(T=1, U=1) as cluster, Producer("g", cluster.namesrv) as producer:
        messages = [
            Message(
                topic="TU"[i % 2],
                body=b"x" * (9000 if i == 3 else 1),
                delay_level=i == 5,
                priority=0 if i == 8 else None,
            )
            for i in range(10)
        ]
        summary = await producer.send_many(messages)
        assert summary.ok_count == 10
        assert sorted(cluster[0].send_codes) == [310, 310, 310, 320, 320]


async def test_a_message_with_a_priority_names_no_queue() -> None:
    message = Message(topic="T", body=b"x", priority=1)
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        [queue] = await producer.queues("T")
        for call in (
            producer.send(message, queue=queue),
            producer.send_batch([message], queue=queue),
            producer.send_oneway(message, queue=queue),
        ):
            with pytest.raises(MessageIllegal, match="must not name a queue"):
                await call
        assert cluster[0].sends == 0
        await producer.send_oneway(message)
        await until(lambda: cluster[0].stored("T") == 1)


async def test_send_many_stops_at_the_first_error():
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        cluster[0].refuse = lambda _: 13
        with pytest.raises(MessageIllegal):
            await producer.send_many(Message(topic="T", body=b"x") for _ in range(100_000))
        assert cluster[0].sends <= 17
        summary = await producer.send_many(
            (Message(topic="T", body=b"x") for _ in range(3000)), stop_on_error=False
        )
        assert summary.failed_count == 3000
        assert isinstance(summary.first_error, MessageIllegal)
        assert producer.in_flight == 0


async def test_oneway_arrives():
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.send_oneway(Message(topic="T", body=b"x"))
        await producer.send(Message(topic="T", body=b"y"))
        assert cluster[0].stored("T") == 2


async def test_producer_is_known_to_its_brokers():
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.send(Message(topic="T", body=b"x"))
        await until(lambda: cluster[0].heartbeats)
        groups = {data.group for data in cluster[0].heartbeats[-1].producers}
        assert groups == {"g", "CLIENT_INNER_PRODUCER"}


async def test_second_name_server_takes_over():
    async with running_cluster(T=1) as cluster, Producer("g", f"127.0.0.1:1;{cluster.namesrv}") as producer:
        assert (await producer.send(Message(topic="T", body=b"x"))).is_ok


async def test_route_of_a_moved_master_is_found():
    async with running_cluster(FakeBroker("a"), FakeBroker("a"), T=1) as cluster:
        cluster.hidden = {cluster[1]}
        async with Producer("g", cluster.namesrv) as producer:
            await producer.send(Message(topic="T", body=b"x"))
            await cluster[0].server.stop()
            cluster.hidden = {cluster[0]}
            assert (await producer.send(Message(topic="T", body=b"x"))).is_ok
            assert cluster[1].stored("T") == 1


@pytest.mark.parametrize("code", [0, 2, 14])
async def test_a_group_without_master_is_waited_for_within_the_deadline(
    code: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sender, "RETRY_PAUSE_S", 0.01)
    monkeypatch.setattr(sender, "OUTAGE_PAUSE_MS", (5, 20))
    async with running_cluster(FakeBroker("a"), FakeBroker("a"), T=1) as cluster:
        cluster.hidden = {cluster[1]}
        async with Producer("g", cluster.namesrv) as producer:
            await producer.send(Message(topic="T", body=b"x"))
            if code:
                cluster[0].refuse = lambda _: code
                cluster[0].refusal = "[REJECTREQUEST] it is a slave now"
            else:
                await cluster[0].server.stop()
            with pytest.raises((BrokerUnreachable, NotServed, ServiceNotAvailable)):
                await producer.send(Message(topic="T", body=b"x"), timeout_s=0.5)
            sending = asyncio.ensure_future(producer.send(Message(topic="T", body=b"x")))
            await until(lambda: cluster[0].sends > 6 or not code, "it is tried again and again")
            assert not sending.done()
            cluster.hidden = {cluster[0]}
            assert (await sending).is_ok
            assert cluster[1].stored("T") == 1


async def test_a_silent_master_is_left_for_its_successor(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sender, "SILENT_S", 0.05)
    monkeypatch.setattr(sender, "WATCH_S", 0.02)
    async with running_cluster(FakeBroker("a"), FakeBroker("a"), T=1) as cluster:
        cluster.hidden = {cluster[1]}
        async with Producer("g", cluster.namesrv) as producer:
            await producer.send(Message(topic="T", body=b"x"))
            cluster[0].hang = True
            sending = asyncio.ensure_future(producer.send(Message(topic="T", body=b"x")))
            await until(lambda: cluster[0].sends == 2, "it is under way")
            cluster.hidden = {cluster[0]}
            assert (await sending).is_ok
            assert (cluster[0].sends, cluster[1].stored("T")) == (2, 1)
            assert producer.in_flight == 0


async def test_closed_producer_refuses():
    async with running_cluster(T=1) as cluster:
        producer = Producer("g", cluster.namesrv)
        with pytest.raises(ClientError):
            await producer.send(Message(topic="T", body=b"x"))
        await producer.start()
        await producer.close()
        await producer.close()
        with pytest.raises(ClientError):
            await producer.send(Message(topic="T", body=b"x"))


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_send_without_answer_ends_with_its_producer(is_cancelled: bool):
    """The producer's connection is closed then, and no further attempt can be made."""
    told = options(timeout_s=0.3)
    async with running_cluster(T=1) as cluster:
        producer = await Producer("g", cluster.namesrv, options=told).start()
        assert (await producer.send(MESSAGE)).is_ok
        cluster[0].hang = True
        sending = asyncio.ensure_future(producer.send(MESSAGE, timeout_s=2 * PATIENCE_S))
        await until(lambda: cluster[0].sends == 2)
        closing = asyncio.ensure_future(producer.close())
        if is_cancelled:
            await asyncio.sleep(0)
            closing.cancel()
        await asyncio.wait([closing])
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ClientError):
                await sending
        assert producer.in_flight == 0


async def test_a_send_that_pauses_before_another_try_ends_with_its_producer():
    told = options(timeout_s=0.1, retry_count_max=100)
    async with running_cluster(T=1) as cluster:
        producer = await Producer("g", cluster.namesrv, options=told).start()
        cluster[0].refuse = lambda _: 2
        sending = asyncio.ensure_future(producer.send(MESSAGE, timeout_s=2 * PATIENCE_S))
        await until(lambda: cluster[0].sends > 1)
        await producer.close()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(ClientError, match="closed"):
                await sending


@pytest.mark.parametrize("group", ["no group", None, 5, ["g"]])
def test_bad_group_is_refused(group: Any):
    with pytest.raises(BadRequest, match="the group"):
        Producer(group, "127.0.0.1:9876")


def test_a_tls_option_of_another_type_is_refused():
    with pytest.raises(ConfigError, match="tls = True: must be TlsClientOptions"):
        ClientOptions(tls=True)  # type: ignore[arg-type]


async def test_only_a_delayed_message_has_a_recall_handle():
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        with pytest.raises(ClientError, match="a delayed message has one"):
            await producer.recall("T", (await producer.send(MESSAGE)).recall_handle)


async def test_a_full_batch_leaves_once_and_the_next_one_waits_for_its_own_time():
    """The timer of a batch that was already sent, because it was full, finds another batch open."""
    limits = options(batch_linger_ms=50.0, batch_count_max=2)
    async with running_cluster(T=1) as cluster:
        async with Producer("g", cluster.namesrv, options=limits) as producer:
            async with asyncio.timeout(PATIENCE_S):
                sends = [producer.send(Message(topic="T", body=b"%d" % number)) for number in range(3)]
                results = await asyncio.gather(*sends)
        assert all(result.is_ok for result in results)
        assert cluster[0].stored("T") == 3


async def test_the_answer_of_an_attempt_that_was_given_up_decides_nothing():
    """The broker of that attempt may have been replaced, and the message that it confirms may be lost."""
    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        await producer.send(Message(topic="T", body=b"x"))
        cluster[0].hang = True
        sending = asyncio.ensure_future(producer.send(Message(topic="T", body=b"x")))
        await until(lambda: cluster[0].sends == 2, "it is under way")
        attempts = producer._outbox.sender
        [(shipment, (number, _, _))] = attempts._in_flight.items()
        attempts._on_answer(shipment, number - 1, Command(code=0, extra_fields={}))
        assert shipment in attempts._in_flight
        assert not sending.done()
        attempts._on_answer(shipment, number, MessageIllegal("this attempt says so"))
        with pytest.raises(MessageIllegal, match="this attempt"):
            await sending


@pytest.mark.parametrize("fields", [{"delay_ms": 5_000}, {"deliver_at_ms": 1 << 41}, {"priority": 3}])
async def test_old_brokers_get_no_message_with_a_field_that_they_ignore(fields: dict[str, int]) -> None:
    timed = Message(topic="T", body=b"x", **fields)  # type: ignore[arg-type]  # real fields
    old, new = FakeBroker("a"), FakeBroker("b")
    old.version = VERSION_TIMERS - 2
    async with running_cluster(old, new, T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        queues = {queue.broker_name: queue for queue in await producer.queues("T")}
        at_old = timed if "priority" not in fields else None
        if at_old is not None:
            for _ in range(2):  # before and after the version is known
                with pytest.raises(MessageIllegal, match="'a' has RocketMQ V4_9_9, which ignores"):
                    await producer.send(at_old, queue=queues["a"])
            with pytest.raises(MessageIllegal, match="V4_9_9"):
                await producer.send_oneway(at_old, queue=queues["a"])
            assert (await producer.send(at_old, queue=queues["b"])).is_ok
        else:
            outcomes = await asyncio.gather(*(producer.send(timed) for _ in range(2)), return_exceptions=True)
            assert sorted(map(type, outcomes), key=str) == sorted((MessageIllegal, SendResult), key=str)
        assert (old.sends, new.sends) == (0, 1)
        level = Message(topic="T", body=b"x", delay_level=3)
        assert (await producer.send(level, queue=queues["a"])).is_ok


async def test_a_timed_message_is_sent_if_the_version_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def learn_nothing(address: str) -> None: ...

    async with running_cluster(T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        monkeypatch.setattr(producer.instance, "learn_version", learn_nothing)
        monkeypatch.setattr(producer.instance, "broker_versions", {})
        assert (await producer.send(Message(topic="T", body=b"x", delay_ms=5_000))).is_ok


class RememberingBroker(FakeBroker):
    """A broker that remembers the connections of heartbeats and of sends."""

    def __init__(self) -> None:
        super().__init__("a")
        self.introduced: list[Channel] = []
        self.senders: list[Channel] = []

    def _heartbeat(self, channel: Channel, command: Command) -> Command:
        self.introduced.append(channel)
        return super()._heartbeat(channel, command)

    def _send(self, channel: Channel, command: Command) -> Command | None:
        self.senders.append(channel)
        return super()._send(channel, command)


@pytest.mark.parametrize("opener", ["the send", "another call"])
async def test_a_request_over_a_new_connection_introduces_the_client_again(opener: str) -> None:
    """A broker forgets its clients with their connections, and delivers a reply only to a client it knows."""
    broker = RememberingBroker()
    async with running_cluster(broker, T=1) as cluster, Producer("g", cluster.namesrv) as producer:
        remoting = producer.instance.remoting
        for _ in range(2):
            if opener == "another call":
                await remoting.channel(broker.address)
            else:
                await producer.send(Message("T", b"before"))
            with pytest.raises(RequestTimeout):
                await producer.request(Message("T", b"ping"), timeout_s=0.2)
            await until(lambda: broker.senders[-1] in broker.introduced)
            broker.senders[-1].close()
            await until(lambda: remoting.open_channel(broker.address) is None, "the connection is closed")


async def test_a_waiting_request_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a connection the broker could not deliver the reply."""
    monkeypatch.setattr(request_reply, "SILENT_S", 0.02)
    broker = RememberingBroker()
    told = ProducerOptions(client=ClientOptions(heartbeat_s=3600))
    async with (
        running_cluster(broker, T=1) as cluster,
        Producer("g", cluster.namesrv, options=told) as producer,
    ):
        stored = asyncio.Event()
        question = producer.request(Message("T", b"ping"), PATIENCE_S, on_stored=lambda _: stored.set())
        asking = asyncio.ensure_future(question)
        await stored.wait()
        broker.senders[0].close()
        await until(lambda: broker.introduced[-1] is not broker.senders[0], "the client is known again")
        asking.cancel()


async def test_a_half_message_is_never_part_of_a_batch() -> None:
    async def check(message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT

    batched = options(batch_linger_ms=1)
    async with (
        running_cluster(T=1) as cluster,
        TransactionProducer("g", cluster.namesrv, check=check, options=batched) as producer,
    ):
        await producer.send_half(MESSAGE)
        ((raw, _),) = cluster[0].queue("T", 0).records
        record = decode_record(raw)
        assert record.sys_flag & TRANSACTION_PREPARED
        assert record.properties["TRAN_MSG"] == "true"
