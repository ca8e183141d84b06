"""Waiting pops and notifications: none waits while there is a message for it (spec semantics 14.1, 14.6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_rig import Peer, running_broker, send_header
from pop_rig import Popped, ack, ack_in_batch, change, now_ms, pop, pop_all

from tandemmq.broker.broker import Broker
from tandemmq.broker.pop import reading
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.requests.admin import CreateTopicRequest
from tandemmq.protocol.requests.consume import NotificationRequest, NotificationResponse
from tandemmq.store import PutStatus
from waits import until

LONG_MS = 200_000
"""Far beyond the patience of a test: an answered request was woken."""
WOKEN_S = 20


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path, long_poll_ms_max=LONG_MS) as broker:
        yield broker


def in_order(queue_id: int, attempt_id: str = "") -> dict[str, object]:
    return {"is_ordered": True, "queue_id": queue_id, "count_max": 1, "attempt_id": attempt_id}


async def waiting_pop(broker: Broker, peer: Peer, **changes: object) -> asyncio.Task[list[Popped]]:
    """Returns a pop that the broker holds."""
    assert broker._parts is not None
    polls = broker._parts.pop.polls
    before = len(polls)
    task = asyncio.create_task(pop(peer, "T", poll_ms=LONG_MS, **changes))
    await until(lambda: len(polls) > before, "the pop is held")
    return task


async def fill(peer: Peer) -> None:
    for queue_id in (0, 1):
        for number in range(2):
            await peer.send_ok("T", b"%d-%d" % (queue_id, number), queue_id=queue_id)


@pytest.mark.parametrize("how", ["ack", "batch", "change", "expiry"])
async def test_a_queue_that_becomes_free_serves_its_pop_behind_one_for_another_queue(
    broker: Broker, peer: Peer, how: str
) -> None:
    await fill(peer)
    await pop_all(peer, "T", 1, **in_order(0, "a0"))
    [popped] = await pop_all(
        peer, "T", 1, invisible_ms=1_000 if how == "expiry" else 60_000, **in_order(1, "a1")
    )
    first = await waiting_pop(broker, peer, **in_order(0, "b0"))
    second = await waiting_pop(broker, peer, **in_order(1, "b1"))
    if how == "ack":
        assert await ack(peer, popped) == 0
    elif how == "batch":
        assert await ack_in_batch(peer, popped) == 0
    elif how == "change":
        await change(peer, popped, 100)
    [got] = await asyncio.wait_for(second, WOKEN_S)
    assert got.body == (b"1-1" if how in ("ack", "batch") else b"1-0")
    assert not first.done()
    first.cancel()


async def test_a_waiting_attempt_and_its_waiting_retry_get_the_same_message(
    broker: Broker, peer: Peer
) -> None:
    await peer.send_ok("T", b"gone")
    [popped] = await pop_all(peer, "T", 1, **in_order(0, "first"))
    tasks = [await waiting_pop(broker, peer, **in_order(0, attempt)) for attempt in ("x", "y", "z", "x")]
    assert await ack(peer, popped) == 0
    await peer.send_ok("T", b"m")
    for task in (tasks[0], tasks[3]):
        [got] = await asyncio.wait_for(task, WOKEN_S)
        assert got.body == b"m"
    for task in tasks[1:3]:
        assert not task.done()
        task.cancel()


async def test_a_notification_that_finds_nothing_hides_no_pop(broker: Broker, peer: Peer) -> None:
    await fill(peer)
    await pop_all(peer, "T", 1, **in_order(0, "a0"))
    [popped] = await pop_all(peer, "T", 1, **in_order(1, "a1"))
    assert broker._parts is not None
    polls = broker._parts.pop.polls
    asked = NotificationRequest(
        consumer_group="CG", topic="T", queue_id=0, poll_ms=LONG_MS, born_at_ms=now_ms(), is_ordered=True
    )
    notification = asyncio.create_task(peer.ask(RequestCode.NOTIFICATION, asked))
    await until(lambda: len(polls) == 1, "the notification is held")
    second = await waiting_pop(broker, peer, **in_order(1, "b1"))
    assert await ack(peer, popped) == 0
    assert [message.body for message in await asyncio.wait_for(second, WOKEN_S)] == [b"1-1"]
    assert not notification.done()
    notification.cancel()


async def test_a_notification_is_answered_when_the_lease_of_its_queue_ends(
    broker: Broker, peer: Peer
) -> None:
    await peer.send_ok("T", b"m")
    await pop_all(peer, "T", 1, invisible_ms=1_000, **in_order(0, "a"))
    asked = NotificationRequest(
        consumer_group="CG", topic="T", queue_id=0, poll_ms=LONG_MS, born_at_ms=now_ms(), is_ordered=True
    )
    answer = await asyncio.wait_for(peer.ask(RequestCode.NOTIFICATION, asked), WOKEN_S)
    assert answer.decode(NotificationResponse).has_message


async def test_pops_with_other_tags_are_served_behind_one_that_wants_nothing_of_it(
    broker: Broker, peer: Peer
) -> None:
    await peer.send_ok("T", b"first", queue_id=0)
    await pop_all(peer, "T", 1)
    unwanted = await waiting_pop(broker, peer, queue_id=0, expression="other")
    wanted = await waiting_pop(broker, peer, queue_id=1, expression="a")
    assert broker._parts is not None
    broker._parts.pop.polls.touch(("T", "CG"), 0)  # both queues in one turn of the loop
    await peer.send_ok("T", b"m", queue_id=1, properties={"TAGS": "a"})
    assert [message.body for message in await asyncio.wait_for(wanted, WOKEN_S)] == [b"m"]
    assert not unwanted.done()
    unwanted.cancel()


@pytest.mark.parametrize("how", [{}, {"is_ordered": True, "queue_id": 0, "attempt_id": "a"}])
async def test_a_pop_with_rare_matches_reads_on_until_it_has_looked_at_all(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch, how: dict[str, object]
) -> None:
    """A read scans some hundred entries; the answer to a pop never waits for the next message."""
    monkeypatch.setattr(reading, "SCANS_MAX", 0)
    for _ in range(4):
        await send_many(peer, 800, tag="no")
    await peer.send_ok("T", b"here", properties={"TAGS": "yes"})
    popping = pop(peer, "T", poll_ms=LONG_MS, expression="yes", **how)
    assert [message.body for message in await asyncio.wait_for(popping, WOKEN_S)] == [b"here"]


async def send_many(peer: Peer, count: int, *, tag: str) -> None:
    """Sends one batch of small messages with the tag."""
    properties = f"TAGS\x01{tag}\x02".encode()
    one = b"".join(
        [
            (23 + len(properties)).to_bytes(4, "big"),
            bytes(12),
            (1).to_bytes(4, "big"),
            b"x",
            len(properties).to_bytes(2, "big"),
            properties,
        ]
    )
    answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, send_header("T", is_batch=True), body=one * count)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def test_a_notification_says_yes_only_for_what_its_filter_wants(broker: Broker, peer: Peer) -> None:
    await peer.send_ok("T", b"0", properties={"TAGS": "no"})
    asked = NotificationRequest(
        consumer_group="CG", topic="T", queue_id=-1, poll_ms=0, expression_type="TAG", expression="yes"
    )

    async def has_message() -> bool:
        answer = await peer.ask(RequestCode.NOTIFICATION, asked)
        return answer.decode(NotificationResponse).has_message

    assert not await has_message()
    await peer.send_ok("T", b"1", properties={"TAGS": "yes"})
    assert await has_message()
    await pop_all(peer, "T", 1, expression="yes")
    for _ in range(2):  # more than one read: a pop has to find out
        await send_many(peer, 800, tag="no")
    assert await has_message()
    assert await pop(peer, "T", expression="yes") == []
    assert not await has_message()


async def test_a_waiting_notification_hides_none_with_another_filter(broker: Broker, peer: Peer) -> None:
    await peer.send_ok("T", b"gone")
    await ack(peer, (await pop_all(peer, "T", 1))[0])
    assert broker._parts is not None
    polls = broker._parts.pop.polls
    waiting = []
    for tag in ("other", "a"):
        asked = NotificationRequest(
            consumer_group="CG",
            topic="T",
            queue_id=-1,
            poll_ms=LONG_MS,
            born_at_ms=now_ms(),
            expression_type="TAG",
            expression=tag,
        )
        waiting.append(asyncio.create_task(peer.ask(RequestCode.NOTIFICATION, asked)))
        await until(lambda: len(polls) == len(waiting), "the notification is held")
    await peer.send_ok("T", b"m", properties={"TAGS": "a"})
    answer = await asyncio.wait_for(waiting[1], WOKEN_S)
    assert answer.decode(NotificationResponse).has_message
    assert not waiting[0].done()
    waiting[0].cancel()


async def test_a_pop_that_waits_for_room_gets_it_when_leases_end(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, long_poll_ms_max=LONG_MS, pop_lease_count_max=1) as broker,
        Peer(broker) as peer,
    ):
        for body in (b"0", b"1"):
            await peer.send_ok("T", body)
        [first] = await pop_all(peer, "T", 1, count_max=1)
        waiting = await waiting_pop(broker, peer)
        assert await ack(peer, first) == 0
        assert [message.body for message in await asyncio.wait_for(waiting, WOKEN_S)] == [b"1"]


async def test_a_waiting_pop_reads_queues_that_its_topic_gets(broker: Broker, peer: Peer) -> None:
    await peer.send_ok("T", b"gone")
    await ack(peer, (await pop_all(peer, "T", 1))[0])
    waiting = await waiting_pop(broker, peer)
    topic = CreateTopicRequest(
        topic="T",
        default_topic="TBW102",
        read_queue_count=9,
        write_queue_count=9,
        permission=6,
        topic_filter_type="SINGLE_TAG",
    )
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == ResponseCode.SUCCESS
    await peer.send_ok("T", b"m", queue_id=8)
    assert [message.body for message in await asyncio.wait_for(waiting, WOKEN_S)] == [b"m"]


async def test_messages_whose_leases_were_not_stored_go_to_a_pop_that_waits(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await peer.send_ok("T", b"gone")
    await ack(peer, (await pop_all(peer, "T", 1))[0])
    assert broker._parts is not None
    log = broker._parts.pop._lease_log
    store = log._store
    real = store.appender.append
    refused: list[object] = []

    def refusing(records: list, on_done):  # type: ignore[no-untyped-def,type-arg]
        """Writes the first check point of the message, which the test then reports as not stored."""
        if records[0].topic != log.records.topic or refused:
            return real(records, on_done)
        refused.append(on_done)
        return real(records, lambda _status: None)

    monkeypatch.setattr(store.appender, "append", refusing)
    first = await waiting_pop(broker, peer)
    await peer.send_ok("T", b"m")
    await until(lambda: refused, "the first pop has leased it")
    second = await waiting_pop(broker, peer)
    refused[0](PutStatus.UNKNOWN_ERROR)  # type: ignore[operator]
    assert [message.body for message in await asyncio.wait_for(second, WOKEN_S)] == [b"m"]
    with pytest.raises(AssertionError, match="not stored"):
        await first
