"""The memory of answers that wait until their clients read them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from sim.manual_clock import ManualClock
from tandemmq.proxy.answer_budget import STALL_S, AnswerBudget
from tandemmq.proxy.meters import Limit, Traffic
from tandemmq.proxy.rpc import GrpcFailure, GrpcStatus
from tandemmq.proxy.statuses import Code, RpcRefused
from waits import until


class World:
    """A budget of 100 bytes, and clients that read when they are let."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.traffic = Traffic()
        self.budget = AnswerBudget(self.clock, self.traffic, bytes_max=100)
        self.reads = asyncio.Event()

    async def send(self, _elements: Iterable[Any]) -> None:
        await self.reads.wait()

    async def answer(self, size: int, message_count: int = 1) -> None:
        async with self.budget.hold(size, self.send) as send:
            for _ in range(message_count):
                await send([b""])

    def begin(self, size: int, message_count: int = 1) -> asyncio.Task[None]:
        return asyncio.ensure_future(self.answer(size, message_count))


async def test_answers_that_were_read_use_nothing() -> None:
    world = World()
    world.reads.set()
    for _ in range(3):
        await world.answer(60)
    assert world.budget.byte_count == 0


async def test_what_exceeds_the_bound_is_refused_until_clients_read() -> None:
    world = World()
    first = world.begin(60)
    await until(lambda: world.budget.byte_count == 60)
    world.budget.check_room()
    for size in (41, 1_000):
        with pytest.raises(RpcRefused) as refused:
            await world.answer(size)
        assert refused.value.code == Code.TOO_MANY_REQUESTS
    assert world.traffic.refusals[Limit.ANSWER_BYTES] == 2
    second = world.begin(40)
    empty = world.begin(0)
    await until(lambda: world.budget.byte_count == 100)
    with pytest.raises(RpcRefused):
        world.budget.check_room()
    world.reads.set()
    await asyncio.gather(first, second, empty)
    assert world.budget.byte_count == 0
    await world.answer(1_000)  # a single answer always fits


async def test_an_answer_of_which_nothing_is_read_makes_room_for_others() -> None:
    world = World()
    stalled = world.begin(60)
    await until(lambda: world.budget.byte_count == 60)
    world.clock.advance(STALL_S / 2)
    reading = world.begin(40, message_count=1_000)
    await until(lambda: world.budget.byte_count == 100)
    world.clock.advance(STALL_S / 2)
    world.budget.check_room(60)
    assert world.budget.byte_count == 40
    with pytest.raises(GrpcFailure) as ended:
        await stalled
    assert ended.value.status is GrpcStatus.RESOURCE_EXHAUSTED
    world.reads.set()
    await reading
    assert world.budget.byte_count == 0


async def test_a_client_that_reads_slowly_is_not_ended() -> None:
    world = World()
    parts: asyncio.Queue[None] = asyncio.Queue()
    read: list[Any] = []

    async def send(elements: Iterable[Any]) -> None:
        for element in elements:
            await parts.get()
            read.append(element)

    async def answer() -> None:
        async with world.budget.hold(100, send) as watched:
            await watched(range(3))

    slow = asyncio.ensure_future(answer())
    await until(lambda: world.budget.byte_count == 100)
    for count in (1, 2):
        world.clock.advance(STALL_S - 1)
        parts.put_nowait(None)
        await until(lambda count=count: len(read) == count)
        with pytest.raises(RpcRefused):
            world.budget.check_room()
    parts.put_nowait(None)
    await slow


async def test_a_time_limit_of_the_body_itself_stays_what_it_is() -> None:
    world = World()
    with pytest.raises(TimeoutError):
        async with world.budget.hold(10, world.send) as send, asyncio.timeout(0):
            await send([b""])
    assert world.budget.byte_count == 0
