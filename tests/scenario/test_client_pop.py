"""Pop consumers against real brokers: each message once, and again when it is released.

Source: spec semantics 14.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from client_rig import FAST, Rig, running_cluster

from tandemmq.api import broker_consume
from tandemmq.api.broker_consume import read_popped
from tandemmq.client import (
    Admin,
    BlockingPopConsumer,
    ClientInstance,
    Json,
    Message,
    PopConsumer,
    PopOptions,
    PoppedMessage,
    Producer,
    ProducerOptions,
    StartFrom,
)
from tandemmq.errors import BadRequest, Busy, ClientError, ConfigError, RemoteProtocolError, RequestRejected
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.pop_receipts import parse_handle
from tandemmq.protocol.record import NewRecord, encode_record
from tandemmq.protocol.requests.consume import PopResponse
from tandemmq.runtime.machine import LoopClock
from tandemmq.units import EpochMs
from waits import PATIENCE_S, until

FIRST = PopOptions(start_from=StartFrom.FIRST)
HELD_S_MAX = 10.0
"""A request that was held in vain is answered later than this."""


def pops(rig: Rig, **changes: object) -> PopConsumer:
    settings: dict[str, object] = {"client": FAST, "start_from": StartFrom.FIRST, **changes}
    consumer = PopConsumer("PG", rig.namesrv, options=PopOptions(**settings))  # type: ignore[arg-type]  # real fields
    consumer.subscribe("T")
    return consumer


async def receive(consumer: PopConsumer, count: int, **how: float | str) -> list[PoppedMessage]:
    messages: list[PoppedMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(messages) < count:
            messages += await consumer.receive(**how)  # type: ignore[arg-type]  # real parameters
    return messages


def bodies(messages: list[PoppedMessage]) -> list[bytes]:
    return sorted(message.body for message in messages)


async def test_two_members_get_each_message_once_and_what_is_let_go_again(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig, pops(rig) as one:
        other = PopConsumer("PG", rig.namesrv, options=PopOptions(start_from=StartFrom.FIRST))
        other.subscribe("T")
        async with other:
            await rig.fill("T", 40)
            found = [await receive(one, 1), await receive(other, 1)]
            while sum(map(len, found)) < 40:
                found[0] += await one.receive(8, timeout_s=0.05)
                found[1] += await other.receive(8, timeout_s=0.05)
            assert bodies(found[0] + found[1]) == sorted(b"%d" % number for number in range(40))
            *done, let_go = found[0]
            await one.ack(*done)
            await other.ack(*found[1])
            before = let_go.handle
            await one.change_invisible(let_go, 0.5)
            assert let_go.handle != before
            (again,) = await receive(other, 1)
            assert (again.body, again.retry_count, again.topic) == (let_go.body, 1, "T")
            await other.ack(again)
            assert await one.receive(timeout_s=0.1) == []


async def test_a_batch_of_acks_ends_every_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_consume, "ack", None)  # a single one would fail
    async with running_cluster(tmp_path) as rig, pops(rig) as consumer:
        await rig.fill("T", 40)
        found = await receive(consumer, 40)
        (broker,) = {broker for (_, broker_id), broker in rig._brokers.items() if broker_id == 0}
        assert broker._parts is not None
        leases = broker._parts.pop.revive.lease_log.leases
        assert len(leases) > 1
        await consumer.ack(*found[:30])
        assert len(leases) > 0
        await consumer.ack(*found)  # the first 30 once more, which changes nothing
        assert len(leases) == 0


async def test_an_invalid_handle_is_named_and_leaves_the_other_acks_alone(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig, pops(rig) as consumer:
        await rig.fill("T", 3)
        found = await receive(consumer, 3, invisible_s=1)
        found[1].handle = "torn"
        with pytest.raises(BadRequest, match="torn"):
            await consumer.ack(*found)
        (again,) = await receive(consumer, 1)
        assert (again.body, await consumer.receive(timeout_s=0.1)) == (b"1", [])


async def test_a_receive_of_one_topic_leaves_the_others_alone(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig, pops(rig) as consumer:
        async with Admin(rig.namesrv) as admin:
            await admin.create_topic("U", queue_count=1)
        consumer.subscribe("U", ["red", "blue"])
        async with Producer("P", rig.namesrv) as producer:
            await producer.send(Message(topic="T", body=b"t"))
            waiting = asyncio.ensure_future(receive(consumer, 1, topic="U", timeout_s=PATIENCE_S))
            for tags in ("green", "red"):
                await producer.send(Message(topic="U", body=tags.encode(), tags=tags))
            (red,) = await waiting
            assert (red.topic, red.body) == ("U", b"red")
            (other,) = await receive(consumer, 1, topic="T")
            assert (other.topic, other.body) == ("T", b"t")
            await consumer.nack(red, other)
            again = await receive(consumer, 2)
            assert {(one.topic, one.retry_count) for one in again} == {("U", 1), ("T", 1)}
            await consumer.ack(*again)
            with pytest.raises(ClientError, match="no subscription to topic 'V'"):
                await consumer.receive(topic="V")


async def test_messages_with_a_priority_come_highest_first(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig:
        async with Admin(rig.namesrv) as admin:
            await admin.update_topic("T", attributes={"message.type": "PRIORITY"})
        options = ProducerOptions(batch_linger_ms=0)
        async with pops(rig) as consumer, Producer("P", rig.namesrv, options=options) as producer:
            sends = [
                await producer.start_send(Message(topic="T", body=b"%d" % level, priority=level))
                for level in (1, 9, 0, 2)
            ]
            assert [(await send).queue.queue_id for send in sends] == [1, 3, 0, 2]
            found = await receive(consumer, 4)
            assert [message.priority for message in found] == [9, 2, 1, 0]
            await consumer.ack(*found)


async def test_a_message_at_any_of_several_brokers_ends_the_wait(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig:
        await rig.start_broker("broker-b")
        async with Admin(rig.namesrv) as admin:
            await admin.create_topic("T", queue_count=1)
        async with pops(rig) as consumer, Producer("P", rig.namesrv) as producer:
            queues = await producer.queues("T")
            assert len(queues) == 2
            for queue in (*queues, *reversed(queues)):
                waiting = asyncio.ensure_future(receive(consumer, 1, timeout_s=PATIENCE_S))
                await until(lambda: all(len(one._parts.pop.polls) for one in rig._brokers.values()))
                assert not waiting.done()
                await producer.send(Message(topic="T", body=queue.broker_name.encode()), queue=queue)
                (message,) = await waiting
                assert message.body == message.broker_name.encode() == queue.broker_name.encode()
                await consumer.ack(message)


async def test_a_broker_that_is_away_is_passed_over_and_refusals_are_raised(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig:
        await rig.start_broker("broker-b")
        async with Admin(rig.namesrv) as admin:
            await admin.create_topic("T", queue_count=1)
        async with pops(rig) as consumer, Producer("P", rig.namesrv) as producer:
            (left,) = [queue for queue in await producer.queues("T") if queue.broker_name == "broker-a"]
            await producer.send(Message(topic="T", body=b"1"), queue=left)
            await rig.stop_broker("broker-b")
            (message,) = await receive(consumer, 1)
            await consumer.ack(message)
            with pytest.raises(RequestRejected, match="32"):
                await consumer.receive(33)
            message.handle = message.handle.rsplit(" ", 1)[0] + " 9999"
            with pytest.raises(RequestRejected):
                await consumer.ack(message)


async def test_brokers_take_turns(tmp_path: Path) -> None:
    """A broker that always has messages must not starve the others."""
    async with running_cluster(tmp_path, queue_count=1) as rig:
        await rig.start_broker("broker-b")
        async with Admin(rig.namesrv) as admin:
            await admin.create_topic("T", queue_count=1)
        async with pops(rig) as consumer, Producer("P", rig.namesrv) as producer:
            for queue in await producer.queues("T"):
                for _ in range(4):
                    await producer.send(Message(topic="T", body=b"1"), queue=queue)
            four = [(await receive(consumer, 1, count_max=1))[0].broker_name for _ in range(4)]
            assert sorted(four) == ["broker-a", "broker-a", "broker-b", "broker-b"]


async def test_a_broker_that_holds_no_question_is_not_asked_again_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def wait_for_message(*_: object) -> bool:
        nonlocal asked
        asked += 1
        return False

    monkeypatch.setattr(broker_consume, "wait_for_message", wait_for_message)
    async with running_cluster(tmp_path, queue_count=1) as rig, pops(rig) as consumer:
        await rig.fill("T", 1)
        await consumer.ack(*await receive(consumer, 1))
        asked = 0
        assert await consumer.receive(timeout_s=0.2) == []
        assert asked <= 1


async def test_a_broker_that_promises_and_gives_nothing_is_asked_ever_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a broker whose table of leases is full, or whose disk accepts no lease."""
    asked = 0

    async def pop(*_: object) -> list[PoppedMessage]:
        nonlocal asked
        asked += 1
        raise Busy("not now")

    async with running_cluster(tmp_path, queue_count=1) as rig, pops(rig) as consumer:
        await rig.fill("T", 1)
        with monkeypatch.context() as patch:
            patch.setattr(broker_consume, "pop", pop)
            assert await consumer.receive(timeout_s=0.3) == []
        assert 1 <= asked <= 8
        assert bodies(await receive(consumer, 1)) == [b"0"]


def test_brokers_are_told_that_no_queue_is_owned() -> None:
    consumer = PopConsumer("PG", "127.0.0.1:1")
    assert consumer.handle_broker_request(Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)) is None
    answer = consumer.handle_broker_request(Command.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT))
    assert answer is not None
    assert "it has no queues" in (answer.remark or "")


async def test_tags_are_compared_by_text(tmp_path: Path) -> None:
    # "Aa" and "BB" have the same Java hash, so the broker lets both through.
    async with running_cluster(tmp_path) as rig:
        consumer = PopConsumer("PG", rig.namesrv, options=PopOptions(start_from=StartFrom.FIRST))
        consumer.subscribe("T", "Aa")
        async with consumer, Producer("P", rig.namesrv) as producer:
            for tag in ("BB", "Aa"):
                await producer.send(Message(topic="T", body=tag.encode(), tags=tag))
            assert bodies(await receive(consumer, 1)) == [b"Aa"]


def waits_at_brokers(consumer: PopConsumer) -> bool:
    """Returns True if the consumer's notification requests wait at all brokers."""
    bells = consumer._bells.values()
    return bool(bells) and not any(bell.done() for bell in bells)


@pytest.mark.parametrize("broker_count", [1, 2])
async def test_a_receive_that_waits_follows_a_change_of_tags(tmp_path: Path, broker_count: int) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig:
        async with Admin(rig.namesrv) as admin:
            if broker_count == 2:
                await rig.start_broker("broker-b")
                await admin.create_topic("T", queue_count=1)
            await admin.create_topic("U", queue_count=1)
        async with pops(rig) as consumer, Producer("P", rig.namesrv) as producer:
            consumer.subscribe("T", "a")
            for topic, tags in (("T", "b"), ("T", "a || c"), ("U", "c")):
                waiting = asyncio.ensure_future(consumer.receive(timeout_s=PATIENCE_S))
                await until(lambda: waits_at_brokers(consumer), "the consumer waits")
                assert not waiting.done()
                consumer.subscribe(topic, tags)
                sent_s = time.monotonic()
                await producer.send(Message(topic=topic, body=tags.encode(), tags=tags[-1]))
                async with asyncio.timeout(PATIENCE_S):
                    (message,) = await waiting
                assert time.monotonic() - sent_s < HELD_S_MAX
                assert (message.topic, message.body) == (topic, tags.encode())
                await consumer.ack(message)


async def test_a_wait_that_is_cancelled_takes_no_message(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig, pops(rig) as consumer:
        waiting = asyncio.ensure_future(consumer.receive(timeout_s=PATIENCE_S))
        await until(lambda: waits_at_brokers(consumer), "the consumer waits")
        waiting.cancel()
        await rig.fill("T", 1)
        (message,) = await receive(consumer, 1)
        assert message.retry_count == 0


async def test_a_wait_for_a_message_receives_none(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig, pops(rig) as consumer:
        assert not await consumer.wait_for_message(timeout_s=0.1)
        async with Producer("P", rig.namesrv, options=ProducerOptions(client=FAST)) as producer:
            await producer.send(Message("T", b"x"))
        async with asyncio.timeout(PATIENCE_S):
            while not await consumer.wait_for_message():
                pass
        assert bodies(await receive(consumer, 1)) == [b"x"]


class SlowClock(LoopClock):
    """A clock that is an hour behind."""

    def now_ms(self) -> EpochMs:
        return EpochMs(super().now_ms() - 3_600_000)


async def test_a_clock_that_is_behind_the_broker_hides_no_message(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as rig:
        instance = ClientInstance(rig.namesrv, FAST, clock=SlowClock())
        await instance.start()
        try:
            async with PopConsumer("PG", options=FIRST, instance=instance) as consumer:
                consumer.subscribe("T")
                began_s = time.monotonic()
                assert await consumer.receive(timeout_s=0) == []
                assert time.monotonic() - began_s < HELD_S_MAX
                await rig.fill("T", 1)
                assert len(await receive(consumer, 1, timeout_s=0.1)) == 1
        finally:
            await instance.close()


async def test_a_receive_that_is_cancelled_at_an_invalid_body_gives_the_others_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as rig, pops(rig, serializer=Json(int)) as consumer:
        async with Producer("P", rig.namesrv, options=ProducerOptions(client=FAST)) as producer:
            (queue, *_) = await producer.queues("T")
            await producer.send_batch([Message("T", body) for body in (b"1", b"x", b"2")], queue=queue)
        asking = asyncio.Event()

        async def ask_forever(message: PoppedMessage, *, reason: str) -> None:
            asking.set()
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(consumer, "dead_letter", ask_forever)
            receiving = asyncio.ensure_future(consumer.receive())
            await asking.wait()
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
        found = await receive(consumer, 2)
        assert sorted(message.value for message in found) == [1, 2]


async def test_tags_change_while_several_receive(tmp_path: Path) -> None:
    count = 300
    seen: set[int] = set()
    done = asyncio.Event()

    async def work(consumer: PopConsumer) -> None:
        while not done.is_set():
            for message in await consumer.receive(8, timeout_s=0.2):
                seen.add(int(message.body))
                await consumer.ack(message)

    async with running_cluster(tmp_path) as rig, pops(rig) as one, Producer("P", rig.namesrv) as producer:
        work_s = [asyncio.ensure_future(work(one)) for _ in range(3)]
        for number in range(count):
            # Every expression matches the tag of all messages, so that no message may be skipped.
            one.subscribe("T", f"t || x{number}")
            await producer.send(Message(topic="T", body=b"%d" % number, tags="t"))
        await until(lambda: len(seen) == count, "all were received")
        done.set()
        await asyncio.gather(*work_s)


async def test_the_blocking_twin(tmp_path: Path) -> None:
    def run(namesrv: str) -> list[bytes]:
        consumer = BlockingPopConsumer("PG", namesrv, options=PopOptions(start_from=StartFrom.FIRST))
        consumer.subscribe("T")
        with consumer:
            messages = consumer.receive(timeout_s=PATIENCE_S)
            consumer.change_invisible(messages[0], 30)
            assert consumer.is_connected
            assert len(consumer.ping()) == 2
            consumer.ack(*messages)
            return bodies(messages)

    async with running_cluster(tmp_path) as rig:
        await rig.fill("T", 3)
        assert await asyncio.to_thread(run, rig.namesrv) == [b"0", b"1", b"2"]


async def test_a_body_that_does_not_decode_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig:
        await rig.send_raw("T", b"before", sys_flag=0)
        await rig.send_raw("T", b"no stream", sys_flag=0x1)
        await rig.send_raw("T", b"behind", sys_flag=0)
        async with pops(rig) as consumer:
            messages = await receive(consumer, 3)
            assert [one.body for one in messages] == [b"before", b"no stream", b"behind"]
            assert [bool(one.body_fault) for one in messages] == [False, True, False]
            await consumer.ack(*messages)


def test_a_popped_body_with_another_checksum_leaves_its_neighbours_alone() -> None:
    records = [bytearray(stored_record(b"body %d" % place, place)) for place in range(3)]
    at = records[1].index(b"body 1")
    records[1][at] ^= 1
    question = Command.request(RequestCode.POP_MESSAGE)
    header = PopResponse(start_offset_info="0 0 0", message_offset_info="0 0 0,1,2")
    answer = question.reply(0, header, body=b"".join(records))
    found = read_popped(answer, "PG", "T", "a")
    assert [one.body for one in found] == [b"body 0", b"body 2"]
    assert [parse_handle(one.handle).offset for one in found] == [0, 2]


def stored_record(body: bytes, queue_offset: int) -> bytes:
    record = NewRecord(topic="T", queue_id=0, body=body, properties=b"", born_at_ms=1, born_host=bytes(8))
    place = {"queue_offset": queue_offset, "log_offset": 0, "stored_at_ms": 2}
    return encode_record(record, store_host=bytes(8), **place)


def test_an_answer_without_a_place_for_its_message_is_refused() -> None:
    with pytest.raises(ConfigError, match="TIMESTAMP"):
        PopOptions(start_from=StartFrom.TIMESTAMP)
    question = Command.request(RequestCode.POP_MESSAGE)
    answer = question.reply(0, PopResponse(start_offset_info="0 0", message_offset_info=""))
    with pytest.raises(RemoteProtocolError):
        read_popped(answer, "PG", "T", "a")


async def test_ordered_pops_close_a_queue_until_its_messages_are_done(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, queue_count=1) as rig:
        await rig.fill("T", 6)
        async with pops(rig, ordered=True) as one, pops(rig, ordered=True) as other:
            first, second = await receive(one, 2, count_max=2, invisible_s=30)
            assert [first.body, second.body] == [b"0", b"1"]
            assert await other.receive(timeout_s=0.2) == []
            await first.ack()
            await second.retry_later(delay_s=0.1)
            again, third = await receive(other, 2, count_max=2, invisible_s=30)
            assert [again.body, third.body] == [b"1", b"2"]
            assert again.retry_count == 1
            await other.ack(again, third)
            assert [message.body for message in await receive(one, 3)] == [b"3", b"4", b"5"]
