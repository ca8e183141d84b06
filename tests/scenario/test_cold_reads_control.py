"""Groups that read too much from disk are slowed down (spec semantics 20.3, 23.1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_rig import Peer, consumer, pull_response, records_of, running_broker
from client_rig import numbers, running_rig, take

from tandemmq.broker.broker import Broker
from tandemmq.broker.pull import cold_reads, handlers
from tandemmq.client import Admin
from tandemmq.protocol.bodies.client import ConsumeType
from tandemmq.protocol.bodies.codec import decode_body
from tandemmq.protocol.bodies.stats import ColdControlInfo
from tandemmq.protocol.codes import RequestCode, ResponseCode
from tandemmq.protocol.requests.admin import ReadModeRequest
from waits import until

ALL_IS_COLD = {"access_message_in_memory_ratio": 0}
GROUP = "CG"
SUSPEND = 0x2
WITH_SUBSCRIPTION = 0x4


@pytest.fixture(autouse=True)
def endless_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extends the window so that none ends while a test runs, however slow the machine is."""
    monkeypatch.setattr(cold_reads, "WINDOW_S", 86_400.0)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    settings = {"cold_control_enable": True, "cold_bytes_per_group_max": 1, "property_filter_enable": True}
    async with running_broker(tmp_path, store=ALL_IS_COLD, **settings) as broker:
        yield broker


@pytest.fixture
async def peer(broker: Broker) -> AsyncIterator[Peer]:
    async with Peer(broker) as peer:
        for number in range(4):
            await peer.send_ok("T1", b"%d" % number, properties={"n": str(number)})
        yield peer


async def info(peer: Peer) -> ColdControlInfo:
    answer = await peer.ask(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return decode_body(answer.body, ColdControlInfo)


def held_count(broker: Broker) -> int:
    assert broker._parts is not None
    return len(broker._parts.core.long_polls)


async def test_pushed_group_that_is_over_is_told_to_come_later(peer: Peer) -> None:
    await peer.heartbeat("client-1", consumer(GROUP, "T1"))
    assert len(records_of(await peer.pull("T1", count_max=2))) == 2
    answer = await peer.pull("T1", queue_offset=2)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "coldDataFlowControlEnable" in (answer.remark or "")
    # Without messages to read, no read is cold.
    assert (await peer.pull("T1", queue_offset=4)).code == ResponseCode.PULL_NOT_FOUND
    assert len(records_of(await peer.pull("T1", consumer_group="CG2"))) == 4


@pytest.mark.parametrize("asks_to_be_held", [True, False])
@pytest.mark.parametrize("is_online", [True, False])
async def test_group_that_pulls_for_itself_waits_and_gets_one_message(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, is_online: bool, asks_to_be_held: bool
) -> None:
    names = ["COLD_HOLD_UNASKED_S", "COLD_HOLD_S"]
    monkeypatch.setattr(handlers, names[asks_to_be_held], 0.2)
    monkeypatch.setattr(handlers, names[not asks_to_be_held], 3_600.0)
    sys_flag = WITH_SUBSCRIPTION | (SUSPEND if asks_to_be_held else 0)
    if is_online:
        await peer.heartbeat("client-1", consumer(GROUP, "T1", consume_type=ConsumeType.ACTIVELY))
    await peer.pull("T1", count_max=1)
    answer = await peer.pull("T1", queue_offset=1, bulk_bytes=1 << 20, sys_flag=sys_flag)
    assert [record.body for record in records_of(answer)] == [b"1"]
    assert pull_response(answer).next_offset == 2


async def test_pull_that_waits_is_woken_by_time_alone_and_answered_at_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "COLD_HOLD_UNASKED_S", 3_600.0)
    settings = {"cold_control_enable": True, "cold_bytes_per_group_max": 1}
    async with running_broker(tmp_path, store=ALL_IS_COLD, **settings) as broker, Peer(broker) as peer:
        await peer.send_ok("T1", b"0")
        await peer.pull("T1")
        waiting = asyncio.create_task(peer.pull("T1"))
        await until(lambda: held_count(broker) == 1, "the pull is held")
        await peer.send_ok("T1", b"1")
        assert len(records_of(await peer.pull("T1", consumer_group="another"))) == 2
        assert held_count(broker) == 1
        assert broker._parts is not None
        broker._parts.core.long_polls.wake_all()
        assert [record.body for record in records_of(await waiting)] == [b"0"]


async def test_consumer_that_reads_too_much_gets_everything_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TandemMQ client, rejected until the window is over, and again after each pull."""
    async with running_rig(tmp_path) as rig:
        broker = await rig.start_broker(cold_control_enable=True, cold_bytes_per_group_max=1)
        assert broker.store is not None
        broker.store.reader._memory_window_bytes = 0
        async with Admin(rig.namesrv) as admin:
            await admin.create_topic("T", queue_count=1)
        await rig.fill("T", 40)
        assert broker._parts is not None
        parts = broker._parts
        async with rig.consumer(pull_error_delay_s=0.05) as consumer:
            await until(lambda: ResponseCode.SYSTEM_BUSY in parts.core.stats.pull_endings, "it is refused")
            monkeypatch.setattr(cold_reads, "WINDOW_S", 0.1)
            parts.cold_reads._window_end_s = 0.0
            assert numbers(await take(consumer, 40)) == list(range(40))


async def test_records_that_a_filter_read_in_vain_count(peer: Peer) -> None:
    answer = await peer.pull("T1", subscription="n = 9", expression_type="SQL92")
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert (await info(peer)).groups[GROUP].bytes > 4 * 100


async def test_near_reads_count_for_nothing(tmp_path: Path) -> None:
    async with (
        running_broker(tmp_path, cold_control_enable=True, cold_bytes_per_group_max=1) as broker,
        Peer(broker) as peer,
    ):
        await peer.send_ok("T1")
        for _ in range(3):
            assert len(records_of(await peer.pull("T1"))) == 1
        assert (await info(peer)).groups == {}


async def test_off_by_default_and_switched_on_while_it_runs(tmp_path: Path) -> None:
    async with running_broker(tmp_path, store=ALL_IS_COLD) as broker, Peer(broker) as peer:
        await peer.send_ok("T1")
        await peer.heartbeat("client-1", consumer(GROUP, "T1"))
        await peer.pull("T1")
        assert (await info(peer)).all_bytes == 0
        change = b"coldDataFlowControlEnable=true\ncgColdReadThreshold=1\n"
        answer = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, body=change)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await peer.pull("T1")
        assert (await peer.pull("T1")).code == ResponseCode.SYSTEM_BUSY


async def test_threshold_of_a_group_is_set_shown_and_removed(peer: Peer) -> None:
    await peer.heartbeat("client-1", consumer(GROUP, "T1"))
    answer = await peer.ask(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, body=b"CG=1000000\nother=5\n")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    for _ in range(2):
        assert len(records_of(await peer.pull("T1"))) == 4
    shown = await info(peer)
    assert (shown.thresholds, shown.group_threshold_bytes) == ({"CG": 1_000_000, "other": 5}, 1)
    assert shown.groups[GROUP].bytes == shown.all_bytes > 0
    answer = await peer.ask(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, body=b"CG")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert (await info(peer)).thresholds == {"other": 5}
    assert (await peer.pull("T1")).code == ResponseCode.SYSTEM_BUSY


@pytest.mark.parametrize(
    ("code", "body", "words"),
    [
        (RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, b"good=1\nbad=-5\n", "bad=-5: must be bytes"),
        (RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, b"good=1\nbad=9223372036854775808\n", "must be bytes"),
        (RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, b"good=1\na*b=5\n", "characters other than"),
        (RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, b"good=\\u12", "cannot be read"),
        (RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, b"", "blank"),
        (RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, b"\xff", "characters other than"),
    ],
)
async def test_invalid_threshold_changes_nothing(peer: Peer, code: int, body: bytes, words: str) -> None:
    answer = await peer.ask(code, body=body)
    assert answer.code != ResponseCode.SUCCESS
    assert words in (answer.remark or "")
    assert (await info(peer)).thresholds == {}


async def test_read_mode_of_the_log_changes_at_once_and_is_a_setting(broker: Broker, peer: Peer) -> None:
    async def read_ahead() -> bool:
        shown = bytes((await peer.ask(RequestCode.GET_BROKER_CONFIG)).body)
        return b"dataReadAheadEnable=true" in shown

    for mode, is_enabled in ((1, False), (0, True), (0, True)):
        answer = await peer.ask(RequestCode.SET_COMMITLOG_READ_MODE, ReadModeRequest(mode=mode))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert f"dataReadAheadEnable is {str(is_enabled).lower()}" in (answer.remark or "")
        assert await read_ahead() is is_enabled
    answer = await peer.ask(RequestCode.SET_COMMITLOG_READ_MODE, ReadModeRequest(mode=7))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "must be 0 (read ahead) or 1 (random)" in (answer.remark or "")


async def test_leases_are_in_the_log_already(peer: Peer) -> None:
    assert (await peer.ask(RequestCode.POP_ROLLBACK)).code == ResponseCode.SUCCESS
