"""Watermarks rise, wake their waiters, and fall at a truncation."""

from __future__ import annotations

import asyncio

import pytest

from tandemmq.errors import StoreClosed, Truncated
from tandemmq.store import Watermark


def test_followers_hear_of_each_raise_in_the_order_they_came() -> None:
    mark = Watermark("appended")
    heard: list[tuple[str, int]] = []
    mark.follow(lambda value: heard.append(("first", value)))
    unfollow = mark.follow(lambda value: heard.append(("second", value)))
    mark.raise_to(5)
    mark.raise_to(5)
    mark.raise_to(3)
    assert heard == [("first", 5), ("second", 5)]
    unfollow()
    unfollow()
    mark.raise_to(6)
    assert heard[2:] == [("first", 6)]
    assert mark.value == 6


async def test_waiting_ends_when_the_mark_is_high_enough() -> None:
    mark = Watermark("flushed")
    low, high = (asyncio.ensure_future(mark.wait_for(value)) for value in (5, 10))
    await asyncio.sleep(0)
    mark.raise_to(7)
    assert await low == 7
    assert not high.done()
    mark.raise_to(12)
    assert await high == 12
    assert await mark.wait_for(12) == 12


async def test_a_cancelled_wait_does_not_disturb_the_others() -> None:
    mark = Watermark("flushed")
    first, second = (asyncio.ensure_future(mark.wait_for(5)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    mark.raise_to(5)
    assert await second == 5


async def test_truncation_ends_the_waits_above_it() -> None:
    mark = Watermark("appended", 10)
    gone = asyncio.ensure_future(mark.wait_for(20))
    await asyncio.sleep(0)
    mark.truncate_to(8)
    with pytest.raises(Truncated):
        await gone
    assert mark.value == 8
    with pytest.raises(AssertionError):
        mark.truncate_to(9)


async def test_closing_ends_every_wait() -> None:
    mark = Watermark("appended")
    waiting = asyncio.ensure_future(mark.wait_for(1))
    await asyncio.sleep(0)
    mark.close()
    with pytest.raises(StoreClosed):
        await waiting
    with pytest.raises(StoreClosed):
        await mark.wait_for(1)
