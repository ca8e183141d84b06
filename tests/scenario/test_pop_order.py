"""Ordered pops, resets, server-side assignment, and the data that slaves copy (spec semantics 14.5, 20.1)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from broker_rig import Peer, consumer, copy_as_killed, running_broker
from client_rig import running_rig
from pop_rig import Popped, ack, ack_in_batch, change, pop, pop_all, pop_header, popped_of

from tandemmq.broker.broker import Broker
from tandemmq.protocol.bodies.client import (
    AssignmentQuery,
    Assignments,
    RequestMode,
)
from tandemmq.protocol.bodies.codec import decode_body, encode_body
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.requests.admin import DeleteTopicRequest, ResetOffsetRequest
from tandemmq.protocol.requests.consume import (
    NotificationRequest,
    NotificationResponse,
    PopResponse,
    QueryOffsetRequest,
    QueryOffsetResponse,
    UpdateOffsetRequest,
)
from tandemmq.store.options import FlushMode
from waits import until


async def fill(peer: Peer, count: int, queue_id: int = 0) -> None:
    for number in range(count):
        await peer.send_ok("T", b"%d" % number, queue_id=queue_id)


async def test_an_ordered_queue_is_closed_until_its_messages_are_done(peer: Peer) -> None:
    await fill(peer, 4)
    order = {"is_ordered": True, "queue_id": 0}
    first, second = await pop_all(peer, "T", 2, count_max=2, **order)
    assert first.handle.split(" ")[3] == "999"
    assert await pop(peer, "T", **order) == []
    waiting = asyncio.create_task(pop(peer, "T", poll_ms=50_000, **order))
    assert await ack(peer, first) == 0
    assert not waiting.done()
    assert await ack(peer, second) == 0
    assert [message.body for message in await waiting] == [b"2", b"3"]


async def committed(peer: Peer) -> int:
    header = QueryOffsetRequest(consumer_group="CG", topic="T", queue_id=0, zero_if_missing=True)
    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer.decode(QueryOffsetResponse).offset


@pytest.mark.parametrize("acknowledge", [ack, ack_in_batch])
async def test_acks_out_of_order_move_the_group_up_to_the_first_open_message(
    peer: Peer, acknowledge: Callable[[Peer, Popped], Awaitable[int]]
) -> None:
    await fill(peer, 4)
    first, second, third = await pop_all(peer, "T", 3, is_ordered=True, count_max=3)
    assert await acknowledge(peer, third) == 0
    assert await committed(peer) == 0
    assert await acknowledge(peer, first) == 0
    assert await committed(peer) == 1
    assert await acknowledge(peer, second) == 0
    assert await committed(peer) == 3


@pytest.mark.parametrize("acknowledge", [ack, ack_in_batch])
async def test_an_ack_in_order_does_not_take_back_a_commit(
    peer: Peer, acknowledge: Callable[[Peer, Popped], Awaitable[int]]
) -> None:
    await fill(peer, 4)
    first, _ = await pop_all(peer, "T", 2, is_ordered=True, count_max=2)
    header = UpdateOffsetRequest(consumer_group="CG", topic="T", queue_id=0, committed_offset=4)
    answer = await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert await acknowledge(peer, first) == 0
    assert await committed(peer) == 4


async def test_an_ordered_message_comes_again_in_its_place_with_a_count(peer: Peer) -> None:
    await fill(peer, 3)
    order = {"is_ordered": True, "count_max": 2, "invisible_ms": 60_000}
    first, second = await pop_all(peer, "T", 2, **order)
    assert await ack(peer, first) == 0
    await change(peer, second, 100)
    answer = await peer.ask(RequestCode.POP_MESSAGE, pop_header("T", poll_ms=50_000, **order))
    assert answer.code == ResponseCode.SUCCESS
    assert [message.body for message in popped_of(answer, "T")] == [b"1", b"2"]
    assert answer.decode(PopResponse).order_count_info == "0 qo0%1 1;0 0 0"


async def test_the_same_attempt_gets_the_same_messages(peer: Peer) -> None:
    await fill(peer, 2)
    order = {"is_ordered": True, "count_max": 1}
    [first] = await pop_all(peer, "T", 1, attempt_id="a", **order)
    assert await pop(peer, "T", attempt_id="b", **order) == []
    [again] = await pop(peer, "T", attempt_id="a", **order)
    assert again.body == first.body == b"0"
    assert await ack(peer, first) in (0, ResponseCode.MESSAGE_ILLEGAL)  # of the earlier pop: ignored
    assert await ack(peer, again) == 0
    [second] = await pop(peer, "T", attempt_id="b", **order)
    assert second.body == b"1"


async def test_ordered_progress_outlives_a_kill(tmp_path: Path) -> None:
    store = {"flush_mode": FlushMode.SYNC_FLUSH}
    async with running_broker(tmp_path / "a", store=store) as broker, Peer(broker) as peer:
        await fill(peer, 5)
        for _ in range(3):
            [message] = await pop_all(peer, "T", 1, count_max=1, is_ordered=True)
            assert await ack(peer, message) == 0
        copy_as_killed(tmp_path / "a", tmp_path / "b")
    async with running_broker(tmp_path / "b", store=store) as broker, Peer(broker) as peer:
        rest = await pop_all(peer, "T", 2, is_ordered=True)
        assert [message.body for message in rest] == [b"3", b"4"]


async def test_a_reset_moves_pops_back(peer: Peer) -> None:
    await fill(peer, 3)
    await pop_all(peer, "T", 3)
    reset = ResetOffsetRequest(group="CG", topic="T", timestamp_ms=0, is_forced=True, queue_id=0, offset=1)
    answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert sorted(message.body for message in await pop_all(peer, "T", 2)) == [b"1", b"2"]


async def test_a_reset_frees_a_queue_that_is_open_in_order(peer: Peer, broker: Broker) -> None:
    await fill(peer, 4)
    order = {"is_ordered": True, "queue_id": 0}
    first, *_ = await pop_all(peer, "T", 2, count_max=2, **order)
    waiting = asyncio.create_task(pop(peer, "T", poll_ms=50_000, count_max=1, **order))
    assert broker._parts is not None
    polls = broker._parts.pop.polls
    await until(lambda: len(polls) == 1, "the pop is held")
    reset = ResetOffsetRequest(group="CG", topic="T", timestamp_ms=0, is_forced=True, queue_id=0, offset=1)
    answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    [again] = await asyncio.wait_for(waiting, 20)  # the reset wakes it, not the timeout
    assert again.body == b"1"
    assert await ack(peer, first) == 0
    assert await pop(peer, "T", **order) == []  # the ack of the old pop freed nothing
    assert await ack(peer, again) == 0
    assert [message.body for message in await pop(peer, "T", **order)] == [b"2", b"3"]


async def test_a_reset_is_not_undone_by_acks_that_come_before_the_next_pop(peer: Peer) -> None:
    await fill(peer, 2)
    order = {"is_ordered": True, "queue_id": 0}
    popped = await pop_all(peer, "T", 2, **order)
    reset = ResetOffsetRequest(group="CG", topic="T", timestamp_ms=0, is_forced=True, queue_id=0, offset=0)
    await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    assert [await ack(peer, message) for message in popped] == [0, 0]
    asked = NotificationRequest(consumer_group="CG", topic="T", queue_id=0, is_ordered=True)
    told = await peer.ask(RequestCode.NOTIFICATION, asked)
    assert told.decode(NotificationResponse).has_message
    assert [message.body for message in await pop(peer, "T", **order)] == [b"0", b"1"]


async def ask_assignment(peer: Peer, client_id: str, **changes: str) -> Assignments:
    query = AssignmentQuery(**{"client_id": client_id, "group": "CG", "topic": "T", **changes})  # type: ignore[arg-type]
    answer = await peer.ask(RequestCode.QUERY_ASSIGNMENT, body=encode_body(query))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return decode_body(answer.body, Assignments)


async def set_mode(peer: Peer, mode: str, *, topic: str = "T", group: str = "CG", share: int = 0) -> int:
    body = RequestMode(topic=topic, group=group, mode=mode, pop_share_queue_count=share)
    answer = await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=encode_body(body))
    return answer.code


async def test_queues_are_assigned_by_the_group_s_members_and_mode(peer: Peer, broker: Broker) -> None:
    await fill(peer, 1)
    assert (await ask_assignment(peer, "c1")).queues is None  # no member is online
    await peer.heartbeat("c1", consumer("CG", "T"))
    async with Peer(broker) as other:
        await other.heartbeat("c2", consumer("CG", "T"))
        pulled = (await ask_assignment(peer, "c2")).queues or []
        assert [(row.queue.queue_id, row.mode) for row in pulled] == [(2, "PULL"), (3, "PULL")]
        assert await set_mode(peer, "POP") == 0
        popped = (await ask_assignment(peer, "c2")).queues or []
        assert [(row.queue.queue_id, row.mode) for row in popped] == [(-1, "POP")]
        assert (await ask_assignment(peer, "c1", strategy_name="nonsense")).queues is None
    assert await set_mode(peer, "POP", topic="%RETRY%CG") == ResponseCode.NO_PERMISSION
    assert await set_mode(peer, "POP", topic="Nowhere") == ResponseCode.TOPIC_NOT_EXIST
    assert await set_mode(peer, "POP", group="no-group-yet") == 0
    assert broker._tables.groups.get("no-group-yet") is not None
    assert await set_mode(peer, "POP", group="no/slash") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert await set_mode(peer, "PUSH") == ResponseCode.INVALID_PARAMETER


async def test_modes_are_saved_and_copied_by_slaves(tmp_path: Path) -> None:
    async with running_rig(tmp_path) as rig:
        master = await rig.start_broker()
        async with Peer(master) as peer:
            await peer.send_ok("T")
            await peer.heartbeat("c1", consumer("CG", "T"))
            assert await set_mode(peer, "POP", share=3) == 0
            saved = json.loads((tmp_path / "broker-a-0/config/messageRequestMode.json").read_text())
            row = {"topic": "T", "consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 3}
            assert saved["messageRequestModeMap"]["T"]["CG"] == row
            slave = await rig.start_broker(broker_id=1)
            await until(
                lambda: slave._tables.request_modes.get("T", "CG") is not None, "the mode at the slave"
            )


async def test_a_deleted_topic_takes_what_came_back_with_it(peer: Peer, broker: Broker) -> None:
    await fill(peer, 1)
    await pop_all(peer, "T", 1, invisible_ms=0)
    store = broker.store
    assert store is not None
    await until(lambda: store.queue_max("%RETRY%CG_T", 0) == 1, "the message is back")
    await until(lambda: "T" in broker._tables.offsets.topics_of("CG"), "the offset is committed")
    answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic="T"))
    assert answer.code == ResponseCode.SUCCESS
    await peer.send_ok("T", b"new")
    assert [message.body for message in await pop_all(peer, "T", 1)] == [b"new"]


async def test_pops_are_filtered_by_properties(tmp_path: Path) -> None:
    async with running_broker(tmp_path, property_filter_enable=True) as broker, Peer(broker) as peer:
        for number in range(6):
            await peer.send_ok("T", b"%d" % number, queue_id=0, properties={"a": str(number)})
        wish = {"expression_type": "SQL92", "expression": "a > 3"}
        got = await pop_all(peer, "T", 2, **wish)
        assert [message.body for message in got] == [b"4", b"5"]
        assert [await ack(peer, message) for message in got] == [0, 0]
        bad = pop_header("T", **{**wish, "expression": "a >"})
        answer = await peer.ask(RequestCode.POP_MESSAGE, bad)
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
