"""Brokers as the proxy sees them: questions to several masters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest

from sim.dice import Dice
from sim.manual_clock import ManualClock
from tandemmq.client.route_cache import NameServers
from tandemmq.errors import BrokerUnreachable, RequestTimeout, TandemError
from tandemmq.proxy.brokers import ASK_S_MIN, CALL_S, Brokers, NoMaster
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.tasks import TaskScope


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    tasks = TaskScope("proxy")
    yield Brokers(
        cast(RemotingClient, None),
        cast(NameServers, None),
        clock=ManualClock(),
        chance=Dice(1),
        tasks=tasks,
    )
    await tasks.close()


async def test_a_silent_master_does_not_hide_the_others(brokers: Brokers) -> None:
    times: list[float] = []

    async def ask(address: str, time_s: float) -> str | None:
        times.append(time_s)
        if address == "silent":
            raise RequestTimeout("no answer")
        return None if address == "ignorant" else f"of {address}"

    assert await brokers.ask_masters(["silent", "ignorant", "good", "other"], ask) == "of good"
    assert times == [CALL_S / 4] * 3
    times.clear()
    assert await brokers.ask_masters(["good"], ask) == "of good"
    assert times == [CALL_S]
    assert await brokers.ask_masters(["ignorant"] * 30, ask) is None
    assert times[-1] == ASK_S_MIN


async def test_no_answer_is_not_the_answer_that_nothing_exists(brokers: Brokers) -> None:
    async def ask(address: str, _time_s: float) -> str | None:
        if address == "down":
            raise BrokerUnreachable("down")
        return None

    with pytest.raises(BrokerUnreachable):
        await brokers.ask_masters(["down", "ignorant"], ask)
    with pytest.raises(NoMaster):
        await brokers.ask_masters([], ask)


async def test_a_master_that_refuses_does_not_hide_the_others(brokers: Brokers) -> None:
    async def ask(address: str, _time_s: float) -> str | None:
        if address == "old":
            raise TandemError("refused")
        return address

    assert await brokers.ask_masters(["old", "new"], ask) == "new"
    with pytest.raises(TandemError, match="refused"):
        await brokers.ask_masters(["old", "old"], ask)
