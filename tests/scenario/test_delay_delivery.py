"""Delayed and timed messages through a real broker over the loopback (spec semantics 18)."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from broker_rig import Peer, consumer, records_of, running_broker
from client_rig import FLUSHED_SOON, running_cluster, take
from pop_rig import pop, pop_all
from transaction_rig import COMMIT, TransactionPeer

from tandemmq.broker.broker import Broker
from tandemmq.broker.delay.recall import decode_recall_handle
from tandemmq.client import Message, Producer
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.message_id import decode_message_id
from tandemmq.protocol.record import Record, decode_records
from tandemmq.protocol.requests.consume import PullResponse
from tandemmq.protocol.requests.send import RecallRequest, RecallResponse, SendBackRequest, SendResponse
from waits import until

FAST_LEVELS = {"delay_levels_ms": (200, 400, 2_500, 100_000)}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path, store=FAST_LEVELS, recall_enable=True) as broker:
        yield broker


async def wait_for_bodies(peer: Peer, topic: str, count: int, queue_id: int = 0) -> list[Record]:
    """Returns the first `count` messages of a queue; long polling waits for them."""
    records: list[Record] = []
    while len(records) < count:
        answer = await peer.pull(
            topic, queue_id=queue_id, queue_offset=len(records), sys_flag=0x6, suspend_timeout_ms=5_000
        )
        if answer.code == ResponseCode.SUCCESS:
            records += records_of(answer)
    return records


def bodies(records: Iterable[Record]) -> list[bytes]:
    return [record.body for record in records]


async def test_delayed_message_comes_back_after_its_delay_and_not_before(broker: Broker, peer: Peer) -> None:
    before_ms = time.time() * 1000
    sent = await peer.send_ok(
        "T1", b"later", queue_id=2, properties={"DELAY": "2", "TAGS": "a", "KEYS": "k", "x": "y"}
    )
    assert sent.queue_id == 2
    [record] = await wait_for_bodies(peer, "T1", 1, queue_id=2)
    assert record.stored_at_ms - before_ms >= 400
    assert record.body == b"later"
    assert (record.tags, record.keys, record.properties["x"]) == ("a", "k", "y")
    assert record.unique_key == sent.transaction_id
    assert (record.properties["REAL_TOPIC"], record.properties["REAL_QID"]) == ("T1", "2")
    assert record.born_at_ms == 1_700_000_000_000


async def test_one_level_keeps_its_order_and_short_levels_overtake_long_ones(peer: Peer) -> None:
    for number in range(3):
        await peer.send_ok("T1", b"long %d" % number, properties={"DELAY": "3"})
    for number in range(3):
        await peer.send_ok("T1", b"short %d" % number, properties={"DELAY": "1"})
    records = await wait_for_bodies(peer, "T1", 6)
    assert bodies(records) == [
        b"short 0", b"short 1", b"short 2", b"long 0", b"long 1", b"long 2",
    ]  # fmt: skip


async def test_many_messages_of_a_level_come_back_once_each(peer: Peer) -> None:
    for number in range(300):
        await peer.send_ok("T1", b"%d" % number, properties={"DELAY": "1"})
    records = await wait_for_bodies(peer, "T1", 300)
    assert bodies(records) == [b"%d" % number for number in range(300)]
    after = await peer.pull("T1", queue_offset=300)
    assert after.code == ResponseCode.PULL_NOT_FOUND


async def test_waiting_messages_survive_a_restart_and_none_comes_twice(tmp_path: Path) -> None:
    async with running_broker(tmp_path, store=FAST_LEVELS) as broker, Peer(broker) as peer:
        await peer.send_ok("T1", b"first", properties={"DELAY": "1"})
        await wait_for_bodies(peer, "T1", 1)
        await peer.send_ok("T1", b"second", properties={"DELAY": "3"})
        await peer.send_ok("T1", b"third", properties={"DELAY": "3"})
    saved = json.loads((tmp_path / "config" / "delayOffset.json").read_text())
    assert saved["offsetTable"] == {"1": 1}
    async with running_broker(tmp_path, store=FAST_LEVELS) as broker, Peer(broker) as peer:
        assert bodies(await wait_for_bodies(peer, "T1", 3)) == [b"first", b"second", b"third"]
        answer = await peer.pull("T1", queue_offset=3)
        assert answer.decode(PullResponse).max_offset == 3


async def test_messages_given_back_are_tried_again_later(peer: Peer) -> None:
    sent = await peer.send_ok("T1", b"failed")
    answer = await peer.ask(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        SendBackRequest(log_offset=int(sent.message_id[-16:], 16), group="CG", delay_level=1),
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    [record] = await wait_for_bodies(peer, "%RETRY%CG", 1)
    assert (record.body, record.retry_count, record.properties["RETRY_TOPIC"]) == (b"failed", 1, "T1")


@pytest.mark.parametrize("wish", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
async def test_timed_message_comes_at_its_time_and_not_before(peer: Peer, wish: str) -> None:
    now_ms = int(time.time() * 1000)
    value = {"TIMER_DELAY_SEC": 1, "TIMER_DELAY_MS": 900, "TIMER_DELIVER_MS": now_ms + 900}[wish]
    sent = await peer.send_ok("T1", b"timed", queue_id=1, properties={wish: str(value)})
    assert sent.recall_handle
    [record] = await wait_for_bodies(peer, "T1", 1, queue_id=1)
    assert record.stored_at_ms >= now_ms + 900
    assert record.properties["REAL_TOPIC"] == "T1"
    assert int(record.properties["TIMER_DEQUEUE_MS"]) >= int(record.properties["TIMER_ENQUEUE_MS"])


async def test_time_that_has_come_is_no_delay(peer: Peer) -> None:
    now_ms = int(time.time() * 1000)
    sent = await peer.send_ok("T1", properties={"TIMER_DELIVER_MS": str(now_ms - 5)})
    assert sent.recall_handle is None
    assert len(records_of(await peer.pull("T1"))) == 1


async def test_timers_can_be_switched_off(tmp_path: Path) -> None:
    async with running_broker(tmp_path, timer_wheel_enable=False) as broker, Peer(broker) as peer:
        answer = await peer.send("T1", properties={"TIMER_DELAY_SEC": "1"})
        assert (answer.code, "timerWheelEnable" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


async def recall(peer: Peer, handle: str, topic: str = "T1") -> tuple[int, str]:
    header = RecallRequest(topic=topic, recall_handle=handle, producer_group="PG")
    answer = await peer.ask(RequestCode.RECALL_MESSAGE, header)
    assert answer.fields["MSG_REGION"] == "DefaultRegion"
    if answer.code != ResponseCode.SUCCESS:
        return answer.code, answer.remark or ""
    return answer.code, answer.decode(RecallResponse).message_id


async def test_recalled_message_never_comes(broker: Broker, peer: Peer) -> None:
    sent = await peer.send_ok("T1", b"recalled", properties={"TIMER_DELAY_SEC": "2"})
    kept = await peer.send_ok("T1", b"kept", properties={"TIMER_DELAY_SEC": "2"})
    assert sent.recall_handle is not None
    assert await recall(peer, sent.recall_handle) == (ResponseCode.SUCCESS, sent.transaction_id)
    later = await peer.send_ok("T1", b"later", properties={"TIMER_DELAY_SEC": "3"})
    assert bodies(await wait_for_bodies(peer, "T1", 2)) == [b"kept", b"later"]
    assert kept.recall_handle != later.recall_handle


async def test_a_sender_cancels_no_message_of_another_topic(broker: Broker, peer: Peer) -> None:
    sent = await peer.send_ok("T1", b"kept", properties={"TIMER_DELAY_SEC": "3"})
    handle = decode_recall_handle(sent.recall_handle or "")
    assert handle is not None
    foreign = {"TIMER_DELIVER_MS": str(handle.at_ms), "TIMER_DEL_UNIQKEY": f"T1+{handle.unique_key}"}
    await peer.send_ok("T2", b"foreign", properties=foreign)
    sent = await peer.send_ok("T1", b"gone", properties={"TIMER_DELIVER_MS": str(handle.at_ms)})
    own = {"TIMER_DELIVER_MS": str(handle.at_ms), "TIMER_DEL_UNIQKEY": f"T1+{sent.transaction_id}"}
    await peer.send_ok("T1", b"own", properties=own)
    await peer.send_ok("T1", b"last", properties={"TIMER_DELIVER_MS": str(handle.at_ms)})
    assert bodies(await wait_for_bodies(peer, "T1", 2)) == [b"kept", b"last"]
    assert bodies(await wait_for_bodies(peer, "T2", 1)) == [b"foreign"]


async def test_a_recall_says_who_took_back_what_and_when(broker: Broker, peer: Peer) -> None:
    sent = await peer.send_ok("T1", properties={"TIMER_DELAY_SEC": "60"})
    assert sent.recall_handle is not None
    before_ms = int(time.time() * 1000)
    assert (await recall(peer, sent.recall_handle))[0] == ResponseCode.SUCCESS
    assert broker.store is not None
    got = broker.store.reader.get("rmq_sys_wheel_timer", 0, 1, count_max=1)
    [record] = decode_records(b"".join(got.slices))
    assert record.properties["PGROUP"] == "PG"
    assert before_ms <= int(record.properties["BORN_TIMESTAMP"]) <= time.time() * 1000
    assert b"\x02TRACE_CONTEXT\x01\x02" in record.raw_properties
    assert record.properties["TIMER_DEL_UNIQKEY"] == f"T1+{sent.transaction_id}"


async def test_recalls_that_make_no_sense_are_refused(broker: Broker, peer: Peer) -> None:
    sent = await peer.send_ok("T1", properties={"TIMER_DELAY_SEC": "60"})
    assert sent.recall_handle is not None
    await peer.send_ok("T2")
    illegal = ResponseCode.ILLEGAL_OPERATION
    assert (await recall(peer, "nonsense"))[0] == illegal
    assert (await recall(peer, sent.recall_handle, "T2"))[0] == illegal
    assert (await recall(peer, sent.recall_handle, "T3"))[0] == ResponseCode.TOPIC_NOT_EXIST


async def test_recalls_are_off_as_in_rocketmq(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        answer = await peer.send("T1", properties={"TIMER_DELAY_SEC": "60"})
        handle = answer.decode(SendResponse).recall_handle
        assert handle is not None
        assert (await recall(peer, handle))[0] == ResponseCode.NO_PERMISSION


async def test_timed_messages_survive_restarts_and_none_comes_twice(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await peer.send_ok("T1", b"first", properties={"TIMER_DELAY_MS": "1"})
        await wait_for_bodies(peer, "T1", 1)
        await peer.send_ok("T1", b"second", properties={"TIMER_DELAY_SEC": "2"})
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        assert bodies(await wait_for_bodies(peer, "T1", 2)) == [b"first", b"second"]
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await peer.send_ok("T1", b"third", properties={"TIMER_DELAY_MS": "1"})
        assert bodies(await wait_for_bodies(peer, "T1", 3)) == [b"first", b"second", b"third"]


async def test_a_slave_delivers_nothing_and_goes_on_when_it_is_master(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, with_slave=True, store=FLUSHED_SOON) as rig:
        slave = rig._brokers["broker-a", 1]
        assert slave.store is not None
        async with Producer("PG", rig.namesrv) as producer, rig.consumer() as consumer:
            await producer.send(Message(topic="T", body=b"1", delay_level=1))
            [first] = await take(consumer, 1)
            assert first.body == b"1"
            await producer.send(Message(topic="T", body=b"2", delay_level=2))
        await rig.wait_for_slave("broker-a", "T")
        offsets = slave._tables.delay_offsets
        await until(lambda: offsets.get(1) == 1, "the slave knows how far level 1 was delivered")
        await rig.stop_broker("broker-a")
        end = slave.store.appended.value
        await rig.stop_broker("broker-a", 1)
        # An operator turns the slave's directory into a master's.
        (tmp_path / "broker-a-0").rename(tmp_path / "old")
        (tmp_path / "broker-a-1").rename(tmp_path / "broker-a-0")
        master = await rig.start_broker("broker-a")
        assert master.store is not None
        assert master.store.appended.value >= end
        async with rig.consumer("CG2") as consumer:
            messages = await take(consumer, 2)
            assert sorted(message.body for message in messages) == [b"1", b"2"]


async def test_a_lower_limit_for_bodies_loses_nothing_that_is_stored(tmp_path: Path) -> None:
    """A stored message that waits for its time, its commit or the end of a lease is not a new message."""
    slow, body = {"delay_levels_ms": (100_000,)}, b"x" * 3_000
    async with running_broker(tmp_path, store=slow) as broker, TransactionPeer(broker) as peer:
        await peer.send_ok("Later", body, properties={"DELAY": "1"})
        await peer.send_ok("Popped", body)
        half = await peer.send_half("Paid", body)
        assert len(await pop(peer, "Popped", invisible_ms=1_000)) == 1
        await peer.send_ok("Back", body)
        origin = await peer.send_ok("Back", body)
    small = {"delay_levels_ms": (1,), "message_bytes_max": 100}
    async with running_broker(tmp_path, store=small) as broker, TransactionPeer(broker) as peer:
        assert (await peer.send("Later", body)).code == ResponseCode.MESSAGE_ILLEGAL
        assert bodies(await wait_for_bodies(peer, "Later", 1)) == [body]
        [again] = await pop_all(peer, "Popped", 1)
        assert (again.body, again.record.retry_count) == (body, 1)
        assert (await peer.end(half, COMMIT)).code == ResponseCode.SUCCESS
        assert bodies(await wait_for_bodies(peer, "Paid", 1, queue_id=2)) == [body]
        await peer.heartbeat("c1", consumer("CG", "Back"))
        back = SendBackRequest(
            log_offset=decode_message_id(origin.message_id).log_offset, group="CG", delay_level=1
        )
        assert (await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == ResponseCode.SUCCESS
        assert bodies(await wait_for_bodies(peer, "%RETRY%CG", 1)) == [body]
