"""Waiting messages at an in-process cluster: on delay levels, for a time of their own, and cancelled."""

from __future__ import annotations

import time

import pytest

from managed_cluster import managed_cluster
from tandemmq.client import Message
from tandemmq.errors import BadRequest, NotPermitted
from tandemmq.manage import delayed
from tandemmq.manage.delayed import (
    WaitingMessage,
    WaitingMessages,
    cancel,
    handle_of,
    is_cancelled,
    read_all_waiting,
    read_waiting,
)
from tandemmq.manage.tools import Target, Tools, find_targets
from waits import until


async def waiting(tools: Tools) -> WaitingMessages:
    (target,) = await find_targets(tools, masters_only=True)
    return await read_waiting(tools, target, int(time.time() * 1000))


async def holds(tools: Tools, count: int) -> bool:
    return len((await waiting(tools)).messages) == count


async def test_waiting_messages_are_listed_by_due_time() -> None:
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await cluster.create_topic("orders", queue_count=1)
        assert (await waiting(tools)).messages == ()
        now_ms = int(time.time() * 1000)
        async with cluster.producer() as producer:
            await producer.send(Message("orders", b"hour", delay_level=17, keys=["k"]))
            await producer.send(Message("orders", b"two minutes", delay_level=6))
            await producer.send(Message("orders", b"half an hour", deliver_at_ms=now_ms + 1_800_000))
            await producer.send(Message("orders", b"gone", delay_ms=1))
        await until(lambda: holds(tools, 3))
        found = await waiting(tools)
        assert [(one.level, one.topic) for one in found.messages] == [
            (6, "orders"),
            (None, "orders"),
            (17, "orders"),
        ]
        assert [round((one.due_at_ms - now_ms) / 60_000) for one in found.messages] == [2, 30, 60]
        assert [(one.level, one.waiting, one.delay_ms) for one in found.levels] == [
            (6, 1, 120_000),
            (17, 1, 3_600_000),
        ]
        assert not found.is_cut
        (target,) = await find_targets(tools, masters_only=True)
        away = Target("DefaultCluster", "broker-b", 0, "127.0.0.1:1")
        everything = await read_all_waiting(tools, [target, away], int(time.time() * 1000))
        assert [one.level for one in everything.messages] == [6, None, 17]
        assert [(one, level.level) for one, level in everything.levels] == [(target, 6), (target, 17)]
        assert (set(everything.failed), everything.is_cut) == ({away}, False)
        with pytest.raises(BadRequest, match="delay level"):
            handle_of(found.messages[0])
        with pytest.raises(NotPermitted, match="recallMessageEnable"):
            await cancel(tools, handle_of(found.messages[1]))
        with pytest.raises(BadRequest, match="recall handle"):
            await cancel(tools, "no handle")


async def test_a_timer_message_is_cancelled() -> None:
    async with managed_cluster(settings={"recallMessageEnable": "true"}) as managed:
        cluster, tools = managed.cluster, managed.tools
        await cluster.create_topic("orders", queue_count=1)
        async with cluster.producer() as producer:
            sent = await producer.send(Message("orders", b"later", delay_ms=1_800_000))
            await producer.send(Message("orders", b"stays", delay_ms=1_800_000))
        first = (await waiting(tools)).messages[0]
        both = {one.unique_key: one for one in (await waiting(tools)).messages}
        assert handle_of(both[sent.unique_key]) == sent.recall_handle
        for _ in range(2):
            assert await cancel(tools, handle_of(both[sent.unique_key])) == sent.unique_key

        async def is_cancelled() -> bool:
            left = [one.unique_key for one in (await waiting(tools)).messages]
            return len(left) == 1 and left[0] != sent.unique_key

        await until(is_cancelled)
        assert first.level is None


def test_both_names_of_a_cancelled_message_are_known() -> None:
    message = WaitingMessage("b", "orders", "ID", "KEY", "", "", 1, 2, None)
    assert is_cancelled(message, {"KEY"})
    assert is_cancelled(message, {"orders+KEY"})
    assert not is_cancelled(message, {"other+KEY", "ID"})


async def test_bounds_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed, "LEVEL_COUNT_MAX", 2)
    monkeypatch.setattr(delayed, "TIMER_COUNT_MAX", 2)
    async with managed_cluster() as managed:
        cluster, tools = managed.cluster, managed.tools
        await cluster.create_topic("orders", queue_count=1)
        async with cluster.producer() as producer:
            for _ in range(3):
                await producer.send(Message("orders", b"x", delay_level=17))
        found = await waiting(tools)
        assert (found.levels[0].waiting, len(found.messages), found.is_cut) == (3, 2, True)
