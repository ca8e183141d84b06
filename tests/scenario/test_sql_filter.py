"""SQL92 subscriptions through a real broker over the loopback (spec semantics 9.2 and 9.3, spec remoting
9.4).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_rig import Peer, consumer, held_count, pull_response, records_of, running_broker

from tandemmq.broker.broker import Broker
from tandemmq.broker.pull import filters
from tandemmq.protocol.bodies.client import (
    ClientConfigCheck,
    ConsumerData,
    SubscriptionData,
)
from tandemmq.protocol.bodies.codec import encode_body
from tandemmq.protocol.codes import RequestCode, ResponseCode
from waits import until

VERSION = 1_700_000_000_000
SQL = {"expression_type": "SQL92"}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path, property_filter_enable=True) as broker:
        yield broker


def sql_consumer(group: str, expression: str, version: int = VERSION) -> ConsumerData:
    subscription = SubscriptionData(
        topic="T1", expression=expression, expression_type="SQL92", version=version
    )
    return consumer(group, subscriptions=(subscription,))


async def check(peer: Peer, expression: str, expression_type: str = "SQL92") -> tuple[int, str]:
    body = ClientConfigCheck(
        client_id="c",
        group="CG",
        subscription=SubscriptionData(
            topic="T1", expression=expression, expression_type=expression_type, version=1
        ),
    )
    answer = await peer.ask(RequestCode.CHECK_CLIENT_CONFIG, body=encode_body(body))
    return answer.code, answer.remark or ""


async def test_pull_brings_what_the_expression_in_its_header_takes(peer: Peer) -> None:
    for number in range(10):
        await peer.send_ok("T1", b"%d" % number, properties={"n": str(number), "TAGS": "t"})
    answer = await peer.pull("T1", subscription="n >= 3 AND n < 6 AND TAGS = 't'", **SQL)
    assert [record.body for record in records_of(answer)] == [b"3", b"4", b"5"]
    assert pull_response(answer).next_offset == 10
    bulk = await peer.pull("T1", subscription="n > 8", bulk_bytes=1 << 20, **SQL)
    assert [record.body for record in records_of(bulk)] == [b"9"]
    nothing = await peer.pull("T1", subscription="n > 100", **SQL)
    assert nothing.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert pull_response(nothing).next_offset == 10


async def test_pull_without_expression_uses_the_one_of_the_heartbeat(peer: Peer) -> None:
    for number in range(4):
        await peer.send_ok("T1", b"%d" % number, properties={"n": str(number)})
    await peer.heartbeat("c1", sql_consumer("CG", "n IN ('1', '3')"))
    answer = await peer.pull("T1", sys_flag=0, subscription=None, subscription_version=VERSION)
    assert [record.body for record in records_of(answer)] == [b"1", b"3"]
    early = await peer.pull("T1", sys_flag=0, subscription=None, subscription_version=VERSION + 1)
    assert early.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_a_filter_beyond_the_budget_of_its_heartbeat_is_compiled_by_the_first_pull(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "BUDGET_CHARACTERS", 0)
    for number in range(4):
        await peer.send_ok("T1", b"%d" % number, properties={"n": str(number)})
    await peer.heartbeat("c1", sql_consumer("CG", "n IN ('0', '3') AND 'late' = 'late'"))
    answer = await peer.pull("T1", sys_flag=0, subscription=None, subscription_version=VERSION)
    assert [record.body for record in records_of(answer)] == [b"0", b"3"]
    await peer.heartbeat("c1", sql_consumer("CG", "n > 'late' >", VERSION + 1))
    answer = await peer.pull("T1", sys_flag=0, subscription=None, subscription_version=VERSION + 1)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST


async def test_heartbeat_with_a_broken_filter_is_taken_and_its_pulls_are_told(peer: Peer) -> None:
    await peer.send_ok("T1")
    beat = await peer.heartbeat("c1", sql_consumer("CG", "n >"))
    assert beat.code == ResponseCode.SUCCESS
    answer = await peer.pull("T1", sys_flag=0, subscription=None, subscription_version=VERSION)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "ends too early" in (answer.remark or "")
    await peer.heartbeat("c1", sql_consumer("CG", "n IS NULL", VERSION + 1))
    answer = await peer.pull("T1", sys_flag=0, subscription=None, subscription_version=VERSION)
    assert answer.code == ResponseCode.SUCCESS
    await peer.heartbeat("c1", sql_consumer("CG", "n >", VERSION + 2))
    answer = await peer.pull("T1", sys_flag=0, subscription=None, subscription_version=VERSION)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_LATEST


async def test_broken_expression_in_a_pull_is_refused_with_its_place(peer: Peer) -> None:
    await peer.send_ok("T1")
    answer = await peer.pull("T1", subscription="a = = 1", **SQL)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "character 5" in (answer.remark or "")
    unknown = await peer.pull("T1", subscription="a", expression_type="XPATH")
    assert unknown.code == ResponseCode.SYSTEM_ERROR


async def test_client_config_check_answers_as_in_rocketmq(peer: Peer) -> None:
    assert await check(peer, "a > 5 AND b = 'x'") == (ResponseCode.SUCCESS, "")
    code, remark = await check(peer, "a > 'x'")
    assert code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "only numbers" in remark
    assert (await check(peer, "TagA || TagB", "TAG"))[0] == ResponseCode.SUCCESS


async def test_filters_by_property_are_refused_when_off(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, Peer(broker) as peer:
        await peer.send_ok("T1")
        code, remark = await check(peer, "a > 5")
        assert code == ResponseCode.SYSTEM_ERROR
        assert "enablePropertyFilter" in remark
        assert (await peer.pull("T1", subscription="a > 5", **SQL)).code == ResponseCode.SYSTEM_ERROR
        await peer.heartbeat("c1", sql_consumer("CG", "a > 5"))
        answer = await peer.pull("T1", sys_flag=0, subscription=None, subscription_version=VERSION)
        assert answer.code == ResponseCode.SYSTEM_ERROR


async def test_held_pull_wakes_for_a_message_that_matches_only(broker: Broker, peer: Peer) -> None:
    await peer.send_ok("T1", properties={"n": "1"})
    held = asyncio.ensure_future(
        peer.pull("T1", queue_offset=1, sys_flag=0x6, subscription="n = 7", suspend_timeout_ms=100_000, **SQL)
    )
    await until(lambda: held_count(broker) == 1, "the pull is held")
    for number in range(2, 7):
        await peer.send_ok("T1", properties={"n": str(number)})
    assert not held.done()
    await peer.send_ok("T1", b"seven", properties={"n": "7"})
    answer = await held
    assert [record.body for record in records_of(answer)] == [b"seven"]


async def test_costly_expression_looks_at_fewer_messages_at_a_time(peer: Peer) -> None:
    for _ in range(60):
        await peer.send_ok("T1", properties={"n": "1"})
    expression = " AND ".join(["n = 1"] * 240) + " AND n = 2"
    answer = await peer.pull("T1", subscription=expression, **SQL)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert 0 < pull_response(answer).next_offset < 60
