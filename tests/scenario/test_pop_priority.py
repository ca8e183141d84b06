"""Priority messages through a real broker over the loopback: the queue of a send, the order of pops, retries
(spec rocketmq55 5, decision 028).
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from broker_rig import Peer, records_of, running_broker, send_header
from pop_rig import ack, pop, pop_all

from tandemmq.broker.broker import Broker
from tandemmq.protocol.batch import encode_batch
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.properties import PRIORITY, render_claim
from tandemmq.protocol.requests.admin import CreateTopicRequest
from tandemmq.protocol.requests.send import SendResponse
from waits import until

QUEUES = 4
RETRY = "%RETRY%CG_T"


async def create(peer: Peer, topic: str = "T", attributes: str | None = "+message.type=PRIORITY") -> None:
    header = CreateTopicRequest(
        topic=topic,
        default_topic="TBW102",
        read_queue_count=QUEUES,
        write_queue_count=QUEUES,
        permission=6,
        attributes=attributes,
    )
    answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def send(peer: Peer, priority: object, body: bytes, topic: str = "T", **properties: str) -> int:
    """Sends to queue 1 unless the broker decides otherwise; returns the queue of the answer."""
    pairs = {PRIORITY: str(priority), **properties}
    return (await peer.send_ok(topic, body, queue_id=1, properties=pairs)).queue_id


async def queue_of(broker: Broker, topic: str, queue_id: int, count: int) -> None:
    assert broker.store is not None
    store = broker.store
    await until(lambda: store.queue_max(topic, queue_id) == count, f"{topic} has {count} in {queue_id}")


async def test_levels_are_popped_highest_first(peer: Peer) -> None:
    await create(peer)
    for number, priority in enumerate([0, 2, 9, 1, 3, 2]):
        assert await send(peer, priority, b"%d of %d" % (priority, number)) == min(priority, QUEUES - 1)
    await peer.send_ok("T", b"none", queue_id=1)
    found = await pop_all(peer, "T", 7)
    in_queue_3 = [b"9 of 2", b"3 of 4"]
    assert [one.body for one in found] == [
        *in_queue_3,
        *(b"2 of 1", b"2 of 5"),
        *(b"1 of 3", b"none"),
        b"0 of 0",
    ]
    assert [await ack(peer, one) for one in found] == [0] * 7


@pytest.mark.parametrize("value", ["-1", "x", "2147483648", "1.5", ""])
async def test_an_unreadable_priority_is_none(peer: Peer, value: str) -> None:
    await create(peer)
    assert await send(peer, value, b"a") == 1


@pytest.mark.parametrize(
    ("pairs", "topic", "queue_id"),
    [
        ({"__SHARDINGKEY": "k"}, "T", 1),
        ({"DELAY": "1"}, "SCHEDULE_TOPIC_XXXX", 0),
        ({"TRAN_MSG": "true", "PGROUP": "PG"}, "RMQ_SYS_TRANS_HALF_TOPIC", 0),
    ],
)
async def test_a_message_of_another_kind_loses_its_priority(
    broker: Broker, peer: Peer, pairs: dict[str, str], topic: str, queue_id: int
) -> None:
    await create(peer)
    assert await send(peer, 3, b"a", **pairs) == 1
    await queue_of(broker, topic, queue_id, 1)
    [record] = records_of(await peer.pull(topic, queue_id=queue_id))
    assert PRIORITY not in record.properties
    assert record.properties.items() >= pairs.items()


async def test_batches_are_stored_in_the_queue_that_they_name(peer: Peer) -> None:
    pair = f"{PRIORITY}\x013\x02".encode()
    body = encode_batch([(0, b"m", pair), (0, b"n", pair)])
    header = send_header("T", is_batch=True, queue_id=1, properties={PRIORITY: "3"})
    answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, body=body)
    assert answer.decode(SendResponse).queue_id == 1


async def test_a_numbered_send_has_no_priority(peer: Peer) -> None:
    """Its number counts within one queue, and the broker would choose another."""
    text = f"UNIQ_KEY\x01{'0' * 32}\x02{PRIORITY}\x012\x02" + render_claim("P", 1, "")
    answer = await peer.ask(
        RequestCode.SEND_MESSAGE_V2, msgspec.structs.replace(send_header("T"), properties=text), body=b"a"
    )
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "no priority" in (answer.remark or "")


async def test_retries_keep_their_level(broker: Broker, peer: Peer) -> None:
    await create(peer)
    for priority in (1, 3):
        await send(peer, priority, b"retry %d" % priority)
    assert len(await pop_all(peer, "T", 2, invisible_ms=500)) == 2
    for priority in (1, 3):
        await queue_of(broker, RETRY, priority, 1)
    for priority in (0, 1, 2, 3):
        await send(peer, priority, b"new %d" % priority)
    found = await pop_all(peer, "T", 6, invisible_ms=500)
    wanted = [b"retry 3", b"new 3", b"new 2", b"retry 1", b"new 1", b"new 0"]
    assert [one.body for one in found] == wanted
    assert [one.record.properties[PRIORITY] for one in found] == ["3", "3", "2", "1", "1", "0"]
    # A second retry stays where the first one is.
    assert [await ack(peer, one) for one in found if one.body != b"retry 3"] == [0] * 5
    await queue_of(broker, RETRY, 3, 2)
    [again] = await pop_all(peer, "T", 1)
    assert (again.body, again.record.queue_id, again.record.retry_count) == (b"retry 3", 3, 2)
    assert await ack(peer, again) == 0


async def test_a_dead_letter_keeps_its_priority_in_the_one_queue_of_its_topic(
    broker: Broker, peer: Peer
) -> None:
    await create(peer)
    group = broker._tables.groups.find_or_create("CG", 0)
    assert group is not None
    broker._tables.groups.put(msgspec.structs.replace(group, retry_count_max=1), 1)
    await send(peer, 3, b"a")
    for _ in range(2):
        await pop_all(peer, "T", 1, invisible_ms=200)
    await queue_of(broker, "%DLQ%CG", 0, 1)
    [dead] = records_of(await peer.pull("%DLQ%CG", queue_id=0))
    assert (dead.body, dead.properties[PRIORITY]) == (b"a", "3")


async def test_a_retry_is_received_though_a_kill_lost_the_growth_of_its_topic(
    broker: Broker, peer: Peer
) -> None:
    await create(peer)
    await send(peer, 3, b"a")
    await pop_all(peer, "T", 1, invisible_ms=200)
    await queue_of(broker, RETRY, 3, 1)
    topics = broker._tables.topics
    config = topics.get(RETRY)
    assert config is not None
    assert config.read_queue_count == QUEUES
    topics.put(msgspec.structs.replace(config, read_queue_count=1, write_queue_count=1), 1)
    [again] = await pop_all(peer, "T", 1)
    assert await ack(peer, again) == 0
    assert await pop(peer, "T") == []


async def test_a_retry_is_received_while_its_level_and_lower_ones_never_run_dry(
    broker: Broker, peer: Peer
) -> None:
    await create(peer)
    await send(peer, 2, b"retry")
    await pop_all(peer, "T", 1, invisible_ms=200)
    await queue_of(broker, RETRY, 2, 1)
    for number in range(3):
        await send(peer, 2, b"same %d" % number)
        await send(peer, 1, b"lower %d" % number)
    await send(peer, 3, b"higher")
    found = [(await pop_all(peer, "T", 1, count_max=1))[0].body for _ in range(3)]
    assert found == [b"higher", b"retry", b"same 0"]


async def test_a_lower_factor_lets_every_level_be_received(tmp_path: Path) -> None:
    """The highest level never runs dry; of 100 pops 20 begin at any queue."""
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await create(peer)
        group = broker._tables.groups.find_or_create("CG", 0)
        assert group is not None
        broker._tables.groups.put(msgspec.structs.replace(group, attributes={"priority.factor": "80"}), 1)
        await send(peer, 0, b"low")
        for _ in range(100):
            await send(peer, 3, b"high")
        found = [(await pop_all(peer, "T", 1, count_max=1))[0].body for _ in range(100)]
        assert found.count(b"low") == 1
        assert found.count(b"high") == 99


async def test_ordered_pops_and_pulls_read_a_queue_as_ever(peer: Peer) -> None:
    await create(peer)
    for number in range(3):
        for priority in (0, 3):
            await send(peer, priority, b"%d %d" % (priority, number))
    found = [one.body for one in await pop_all(peer, "T", 6, is_ordered=True)]
    assert [body for body in found if body.startswith(b"0")] == [b"0 0", b"0 1", b"0 2"]
    assert [body for body in found if body.startswith(b"3")] == [b"3 0", b"3 1", b"3 2"]
    for priority in (0, 3):
        records = records_of(await peer.pull("T", queue_id=priority))
        assert [record.body for record in records] == [b"%d %d" % (priority, number) for number in range(3)]


@pytest.mark.parametrize("is_separate", [False, True])
async def test_retries_of_other_topics_have_one_queue_or_as_many_as_their_topic(
    tmp_path: Path, is_separate: bool
) -> None:
    async with (
        running_broker(tmp_path, separate_retry_queues=is_separate) as broker,
        Peer(broker) as peer,
    ):
        await create(peer, attributes=None)
        for queue_id in range(QUEUES):
            await peer.send_ok("T", b"%d" % queue_id, queue_id=queue_id)
        await pop_all(peer, "T", QUEUES, invisible_ms=200)
        found = await pop_all(peer, "T", QUEUES)
        assert {one.topic for one in found} == {RETRY}
        wanted = {int(one.body) if is_separate else 0 for one in found}
        assert {one.record.queue_id for one in found} == wanted
        assert [await ack(peer, one) for one in found] == [0] * QUEUES
        assert await pop(peer, "T") == []
