"""Pulling from a real broker: reading, filters, waiting, rejections, offsets (spec semantics 8, 9.1,
11.2).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from broker_rig import Peer, consumer, held_count, pull_header, pull_response, records_of, running_broker

from tandemmq.broker.broker import Broker
from tandemmq.broker.pull import handlers
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.bodies.progress import decode_reset_offsets
from tandemmq.protocol.bodies.tables import SubscriptionGroupConfig
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.command import Command, Header
from tandemmq.protocol.frame import encode_frame
from tandemmq.protocol.requests.admin import CreateTopicRequest, DeleteTopicRequest, ResetOffsetRequest
from tandemmq.protocol.requests.consume import (
    EarliestStoreTimeRequest,
    EarliestStoreTimeResponse,
    ForbiddenResponse,
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    GetMinOffsetRequest,
    GetMinOffsetResponse,
    QueryOffsetRequest,
    QueryOffsetResponse,
    SearchOffsetRequest,
    SearchOffsetResponse,
    UpdateOffsetRequest,
)
from waits import until

SUSPEND = 0x2
WITH_SUBSCRIPTION = 0x4
HELD_MS = 100_000
"""Longer than a request's timeout: an answer therefore never comes from the end of the hold."""


async def test_only_a_reader_that_asks_for_it_gets_more_than_32_messages(peer: Peer) -> None:
    for i in range(100):
        await peer.send_ok("T1", b"m%d" % i)
    usual = await peer.pull("T1", queue_offset=0, count_max=1000)
    assert len(records_of(usual)) == 32
    assert b"tandem" not in encode_frame(Command.request(RequestCode.PULL_MESSAGE, pull_header("T1")))
    bulk = await peer.pull("T1", queue_offset=3, count_max=1000, bulk_bytes=1 << 20)
    assert [record.body for record in records_of(bulk)] == [b"m%d" % i for i in range(3, 100)]
    assert pull_response(bulk).next_offset == 100
    assert pull_response(bulk).sizes_bytes is None
    told = await peer.pull("T1", queue_offset=98, count_max=1000, bulk_bytes=1 << 20, wants_sizes=True)
    assert pull_response(told).sizes_bytes == 8
    first = int.from_bytes(bytes(told.body)[:4], "big")
    assert bytes(told.body)[-8:] == first.to_bytes(4, "big") * 2
    assert len(told.body) == 2 * first + 8


async def test_pull_returns_messages_in_order_and_says_where_to_go_on(peer: Peer) -> None:
    for i in range(5):
        await peer.send_ok("T1", b"m%d" % i)
    answer = await peer.pull("T1", queue_offset=1, count_max=3)
    assert [record.body for record in records_of(answer)] == [b"m1", b"m2", b"m3"]
    response = pull_response(answer)
    assert (response.next_offset, response.min_offset, response.max_offset) == (4, 0, 5)
    assert response.suggested_broker_id == 0
    assert answer.remark == "FOUND"


@pytest.mark.parametrize("count_max", [0, -1])
async def test_a_pull_for_no_message_gets_one(peer: Peer, count_max: int) -> None:
    for i in range(3):
        await peer.send_ok("T1", b"m%d" % i)
    answer = await peer.pull("T1", queue_offset=1, count_max=count_max)
    assert [record.body for record in records_of(answer)] == [b"m1"]
    bulk = await peer.pull("T1", queue_offset=1, count_max=count_max, bulk_bytes=1 << 20)
    assert [record.body for record in records_of(bulk)] == [b"m1"]


@pytest.mark.parametrize(
    ("offset", "code", "next_offset"),
    [
        (2, ResponseCode.PULL_NOT_FOUND, 2),
        (3, ResponseCode.PULL_OFFSET_MOVED, 2),
        (-1, ResponseCode.PULL_OFFSET_MOVED, 0),
    ],
)
async def test_offsets_outside_the_queue_are_corrected(
    peer: Peer, offset: int, code: int, next_offset: int
) -> None:
    await peer.send_ok("T1")
    await peer.send_ok("T1")
    answer = await peer.pull("T1", queue_offset=offset)
    assert (answer.code, pull_response(answer).next_offset) == (code, next_offset)


async def test_empty_queue_is_not_found_at_its_start_and_moved_elsewhere(peer: Peer) -> None:
    await peer.send_ok("T1", queue_id=1)
    assert (await peer.pull("T1")).code == ResponseCode.PULL_NOT_FOUND
    assert (await peer.pull("T1", queue_offset=7)).code == ResponseCode.PULL_OFFSET_MOVED


async def test_tags_filter_by_hash_and_move_on_when_nothing_matches(peer: Peer) -> None:
    for tag in ("a", "b", "a", "c"):
        await peer.send_ok("T1", tag.encode(), properties={"TAGS": tag})
    answer = await peer.pull("T1", subscription="a || c")
    assert [record.tags for record in records_of(answer)] == ["a", "a", "c"]
    answer = await peer.pull("T1", subscription="nothing")
    assert (answer.code, pull_response(answer).next_offset) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 4)


async def test_pull_waits_when_queue_is_empty_and_wakes_on_a_message(broker: Broker, peer: Peer) -> None:
    await peer.send_ok("T1", queue_id=1)
    waiting = asyncio.ensure_future(
        peer.pull("T1", sys_flag=SUSPEND | WITH_SUBSCRIPTION, suspend_timeout_ms=HELD_MS)
    )
    await until(lambda: held_count(broker) == 1, "the pull is held")
    await peer.send_ok("T1", b"other queue", queue_id=1)
    await peer.send_ok("T1", b"wake up")
    assert [record.body for record in records_of(await waiting)] == [b"wake up"]
    assert held_count(broker) == 0


async def test_held_pull_passes_over_messages_of_other_tags(broker: Broker, peer: Peer) -> None:
    await peer.send_ok("T1", queue_id=1)
    waiting = asyncio.ensure_future(
        peer.pull("T1", subscription="b", sys_flag=SUSPEND | WITH_SUBSCRIPTION, suspend_timeout_ms=HELD_MS)
    )
    await until(lambda: held_count(broker) == 1, "the pull is held")
    await peer.send_ok("T1", b"1", properties={"TAGS": "a"})
    await peer.send_ok("T1", b"2", properties={"TAGS": "a"})
    await peer.send_ok("T1", b"3", properties={"TAGS": "b"})
    answer = await waiting
    assert [record.body for record in records_of(answer)] == [b"3"]
    assert pull_response(answer).next_offset == 3


async def test_held_pull_tells_soon_what_it_passed_over(
    broker: Broker, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the group would not commit, and its lag would grow by messages that do not match."""
    monkeypatch.setattr(handlers, "SKIPPED_HOLD_S", 0.1)
    await peer.send_ok("T1", properties={"TAGS": "a"})
    async with asyncio.TaskGroup() as tasks:
        held = tasks.create_task(
            peer.pull(
                "T1",
                queue_offset=1,
                sys_flag=SUSPEND | WITH_SUBSCRIPTION,
                subscription="a",
                suspend_timeout_ms=HELD_MS,
            )
        )
        await until(lambda: held_count(broker) == 1, "the pull is held")
        await peer.send_ok("T1", properties={"TAGS": "b"})
    answer = held.result()
    assert (answer.code, pull_response(answer).next_offset) == (ResponseCode.PULL_NOT_FOUND, 2)


async def test_held_pull_ends_with_not_found(peer: Peer) -> None:
    await peer.send_ok("T1")
    answer = await peer.pull(
        "T1", queue_offset=1, sys_flag=SUSPEND | WITH_SUBSCRIPTION, suspend_timeout_ms=50
    )
    assert (answer.code, pull_response(answer).next_offset) == (ResponseCode.PULL_NOT_FOUND, 1)


async def test_a_held_pull_ends_with_its_topic(broker: Broker, peer: Peer) -> None:
    """If the hold continued, the pull would apply its offset to a recreated topic of the same name."""
    await peer.send_ok("T1")
    async with asyncio.TaskGroup() as tasks:
        flags = SUSPEND | WITH_SUBSCRIPTION
        held = tasks.create_task(peer.pull("T1", queue_offset=1, sys_flag=flags, suspend_timeout_ms=HELD_MS))
        await until(lambda: held_count(broker) == 1, "the pull is held")
        await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest(topic="T1"))
        assert held_count(broker) == 0
    answer = held.result()
    assert (answer.code, pull_response(answer).next_offset) == (ResponseCode.PULL_OFFSET_MOVED, 0)


async def test_pulls_of_a_closed_connection_are_forgotten(broker: Broker, peer: Peer) -> None:
    await peer.send_ok("T1")
    header = pull_header(
        "T1", queue_offset=1, sys_flag=SUSPEND | WITH_SUBSCRIPTION, suspend_timeout_ms=HELD_MS
    )
    async with Peer(broker) as other:
        channel = await other.client.channel(other.address)
        for _ in range(3):
            channel.start_request(Command.request(RequestCode.PULL_MESSAGE, header), lambda _: None, 60.0)
        await until(lambda: held_count(broker) == 3, "the pulls are held")
    await until(lambda: held_count(broker) == 0, "the pulls are dropped")


async def test_number_of_held_pulls_is_bounded(tmp_path: Path) -> None:
    async with running_broker(tmp_path, long_poll_count_max=1) as broker, Peer(broker) as peer:
        await peer.send_ok("T1")
        flags = {"queue_offset": 1, "sys_flag": SUSPEND | WITH_SUBSCRIPTION, "suspend_timeout_ms": HELD_MS}
        first = asyncio.ensure_future(peer.pull("T1", **flags))
        await until(lambda: held_count(broker) == 1, "the pull is held")
        assert (await peer.pull("T1", **flags)).code == ResponseCode.PULL_NOT_FOUND
        await peer.send_ok("T1")
        await first


async def test_stopping_broker_answers_held_pulls(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await peer.send_ok("T1")
        waiting = asyncio.ensure_future(
            peer.pull("T1", queue_offset=1, sys_flag=SUSPEND | WITH_SUBSCRIPTION, suspend_timeout_ms=HELD_MS)
        )
        await until(lambda: held_count(broker) == 1, "the pull is held")
        await broker.stop()
        assert (await waiting).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize(
    ("topic", "changes", "code"),
    [
        ("T1", {"queue_id": 4}, ResponseCode.INVALID_PARAMETER),
        ("T1", {"queue_id": -1}, ResponseCode.INVALID_PARAMETER),
        ("Nowhere", {}, ResponseCode.TOPIC_NOT_EXIST),
        ("T1", {"consumer_group": "no/slash"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ("T1", {"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("T1", {"expression_type": "SQL92", "subscription": "a > 1"}, ResponseCode.SYSTEM_ERROR),
        ("T1", {"sys_flag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST),
    ],
)
async def test_refused_pulls(peer: Peer, topic: str, changes: dict[str, object], code: int) -> None:
    await peer.send_ok("T1")
    answer = await peer.pull(topic, **changes)
    assert answer.code == code
    assert answer.remark


async def test_forbidden_pulls_name_the_kind(peer: Peer) -> None:
    await peer.send_ok("T1")
    group = SubscriptionGroupConfig(name="CG", is_consume_enabled=False)
    await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encode_body(group))
    answer = await peer.pull("T1")
    assert (answer.code, answer.decode(ForbiddenResponse).forbidden_type) == (ResponseCode.NO_PERMISSION, 2)
    topic = CreateTopicRequest(
        topic="T1", default_topic="TBW102", read_queue_count=4, write_queue_count=4, permission=2
    )
    await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
    answer = await peer.pull("T1", consumer_group="Other")
    assert (answer.code, answer.decode(ForbiddenResponse).forbidden_type) == (ResponseCode.NO_PERMISSION, 3)


async def test_pull_without_subscription_uses_the_heartbeat(peer: Peer) -> None:
    await peer.send_ok("T1", b"a", properties={"TAGS": "a"})
    await peer.send_ok("T1", b"b", properties={"TAGS": "b"})
    await peer.heartbeat("c1", consumer("CG", "T1", expression="b"))
    assert [record.body for record in records_of(await peer.pull("T1", sys_flag=0))] == [b"b"]
    newer = await peer.pull("T1", sys_flag=0, subscription_version=1_800_000_000_000)
    assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    assert (await peer.pull("T2", sys_flag=0)).code == ResponseCode.TOPIC_NOT_EXIST
    await peer.send_ok("T2")
    assert (await peer.pull("T2", sys_flag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def offset_of(peer: Peer, group: str = "CG", topic: str = "T1", queue_id: int = 0) -> int | None:
    header = QueryOffsetRequest(consumer_group=group, topic=topic, queue_id=queue_id, zero_if_missing=False)
    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return None
    return answer.decode(QueryOffsetResponse).offset


async def test_pull_commits_the_offset_it_carries(peer: Peer) -> None:
    await peer.send_ok("T1")
    assert await offset_of(peer) is None
    await peer.pull("T1", sys_flag=WITH_SUBSCRIPTION, committed_offset=1)
    assert await offset_of(peer) is None
    await peer.pull("T1", sys_flag=WITH_SUBSCRIPTION | 0x1, committed_offset=1)
    assert await offset_of(peer) == 1


async def test_a_committed_offset_comes_with_the_record_before_it(peer: Peer) -> None:
    for _ in range(2):
        await peer.send_ok("T1")
    header = UpdateOffsetRequest(consumer_group="CG", topic="T1", queue_id=0, committed_offset=2)
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0
    query = QueryOffsetRequest(consumer_group="CG", topic="T1", queue_id=0)
    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, query)
    last = records_of(await peer.pull("T1"))[-1]
    assert answer.decode(QueryOffsetResponse).seen_record() == (1, last.log_offset, last.stored_at_ms)


async def test_committed_offsets_are_kept_over_a_restart(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        for _ in range(5):
            await peer.send_ok("T1")
        header = UpdateOffsetRequest(consumer_group="CG", topic="T1", queue_id=0, committed_offset=4)
        assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == 0
        assert await offset_of(peer) == 4
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        assert await offset_of(peer) == 4


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "Nowhere"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"consumer_group": "no/slash"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queue_id": 4_000_000}, ResponseCode.INVALID_PARAMETER),
        ({"committed_offset": -5}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_refused_offset_updates(peer: Peer, changes: dict[str, object], code: int) -> None:
    await peer.send_ok("T1")
    values: dict[str, object] = {"consumer_group": "CG", "topic": "T1", "queue_id": 0, "committed_offset": 1}
    header = UpdateOffsetRequest(**{**values, **changes})  # type: ignore[arg-type]  # real fields
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code == code


async def test_new_group_starts_at_zero_of_a_young_queue(peer: Peer) -> None:
    await peer.send_ok("T1")
    header = QueryOffsetRequest(consumer_group="CG", topic="T1", queue_id=0)
    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, header)
    assert answer.decode(QueryOffsetResponse).offset == 0


async def test_ends_and_times_of_a_queue(peer: Peer) -> None:
    for _ in range(3):
        await peer.send_ok("T1")

    async def ask(code: RequestCode, header: Header) -> Command:
        answer = await peer.ask(code, header)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    top = await ask(RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest(topic="T1", queue_id=0))
    low = await ask(RequestCode.GET_MIN_OFFSET, GetMinOffsetRequest(topic="T1", queue_id=0))
    first = await ask(
        RequestCode.GET_EARLIEST_MSG_STORETIME, EarliestStoreTimeRequest(topic="T1", queue_id=0)
    )
    assert top.decode(GetMaxOffsetResponse).offset == 3
    assert low.decode(GetMinOffsetResponse).offset == 0
    first_ms = first.decode(EarliestStoreTimeResponse).timestamp_ms
    [record, *_] = records_of(await peer.pull("T1"))
    assert first_ms == record.stored_at_ms
    for time_ms, offset in ((first_ms, 0), (first_ms + 10**9, 3)):
        header = SearchOffsetRequest(topic="T1", queue_id=0, timestamp_ms=time_ms)
        found = await ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)
        assert found.decode(SearchOffsetResponse).offset == offset


async def test_reset_sends_the_next_pull_to_the_new_offset(peer: Peer) -> None:
    for _ in range(4):
        await peer.send_ok("T1")
    await peer.pull("T1", sys_flag=WITH_SUBSCRIPTION | 0x1, committed_offset=4)
    header = ResetOffsetRequest(topic="T1", group="CG", timestamp_ms=0, is_forced=True, queue_id=0, offset=2)
    answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert [*decode_reset_offsets(answer.body).values()] == [2]
    update = UpdateOffsetRequest(consumer_group="CG", topic="T1", queue_id=0, committed_offset=4)
    assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, update)).code == 0
    answer = await peer.pull("T1", queue_offset=4, sys_flag=WITH_SUBSCRIPTION | 0x1, committed_offset=4)
    assert (answer.code, pull_response(answer).next_offset) == (ResponseCode.PULL_OFFSET_MOVED, 2)
    assert await offset_of(peer) == 2
    assert len(records_of(await peer.pull("T1", queue_offset=2))) == 2


async def test_reset_reaches_queues_that_are_being_removed(peer: Peer) -> None:
    for queue_id in range(2):
        await peer.send_ok("T1", queue_id=queue_id)
        await peer.pull(
            "T1", queue_id=queue_id, sys_flag=WITH_SUBSCRIPTION | 0x1, committed_offset=1, queue_offset=1
        )
    topic = CreateTopicRequest(
        topic="T1", default_topic="TBW102", read_queue_count=2, write_queue_count=1, permission=6
    )
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)).code == 0
    header = ResetOffsetRequest(topic="T1", group="CG", timestamp_ms=0, is_forced=True, queue_id=1, offset=0)
    answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert [*decode_reset_offsets(answer.body).values()] == [0]
    header = ResetOffsetRequest(topic="T1", group="CG", timestamp_ms=-1, is_forced=True)
    answer = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert [*decode_reset_offsets(answer.body).values()] == [1, 1]


async def test_reset_ends_the_hold_of_the_groups_pulls(broker: Broker, peer: Peer) -> None:
    for _ in range(4):
        await peer.send_ok("T1")
    async with asyncio.TaskGroup() as tasks:
        flags = WITH_SUBSCRIPTION | SUSPEND
        held = tasks.create_task(peer.pull("T1", queue_offset=4, sys_flag=flags, suspend_timeout_ms=HELD_MS))
        await until(lambda: held_count(broker) == 1, "a held pull")
        header = ResetOffsetRequest(topic="T1", group="CG", timestamp_ms=0, is_forced=True)
        assert (await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)).code == 0
        assert (await held).code == ResponseCode.PULL_NOT_FOUND
    answer = await peer.pull("T1", queue_offset=4, sys_flag=flags, suspend_timeout_ms=HELD_MS)
    assert (answer.code, pull_response(answer).next_offset) == (ResponseCode.PULL_OFFSET_MOVED, 0)
