"""Values of servers are shared, refreshed, kept over failures, and bounded."""

from __future__ import annotations

import asyncio

import pytest

from sim.manual_clock import ManualClock
from tandemmq.errors import BrokerUnreachable, TandemError
from tandemmq.proxy.cache import Cached, CacheLimits
from tandemmq.runtime.tasks import TaskScope

LIMITS = CacheLimits(fresh_s=20.0, keep_s=300.0, miss_s=1.0, count_max=3)


class Source:
    """A server that answers `value`, or fails; counts the queries."""

    def __init__(self, *, survives_absence: bool = False) -> None:
        self.value: str | None = "one"
        self.failure: TandemError | None = None
        self.count = 0
        self.clock = ManualClock()
        self.tasks = TaskScope("cache")
        self.cached: Cached[str, str] = Cached(
            "value",
            self.query,
            clock=self.clock,
            tasks=self.tasks,
            limits=LIMITS,
            survives_absence=survives_absence,
        )

    async def query(self, key: str) -> str | None:
        self.count += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return self.value

    async def settle(self) -> None:
        """Lets a query in the background end."""
        for _ in range(5):
            await asyncio.sleep(0)


async def test_callers_share_a_query_and_a_fresh_value_needs_none() -> None:
    source = Source()
    assert await asyncio.gather(*(source.cached.get("k") for _ in range(5))) == ["one"] * 5
    source.clock.advance(19.9)
    assert await source.cached.get("k") == "one"
    assert source.count == 1


async def test_an_old_value_is_returned_while_a_query_runs() -> None:
    source = Source()
    await source.cached.get("k")
    source.value = "two"
    source.clock.advance(20.0)
    assert await source.cached.get("k") == "one"
    await source.settle()
    assert await source.cached.get("k") == "two"
    assert source.count == 2


async def test_a_failure_leaves_the_value_until_its_end_and_is_not_repeated_at_once() -> None:
    source = Source()
    await source.cached.get("k")
    source.failure = BrokerUnreachable("gone")
    source.clock.advance(20.0)
    for _ in range(9):
        assert await source.cached.get("k") == "one"
        await source.settle()
    assert source.count == 2
    source.clock.advance(1.0)
    assert await source.cached.get("k") == "one"
    await source.settle()
    assert source.count == 3
    source.clock.advance(279.0)
    with pytest.raises(BrokerUnreachable):
        await source.cached.get("k")


async def test_a_value_that_is_gone_is_gone_and_asked_for_again_soon() -> None:
    source = Source()
    source.value = None
    assert await source.cached.get("k") is None
    assert await source.cached.get("k") is None
    assert source.count == 1
    source.value = "one"
    source.clock.advance(1.0)
    assert await source.cached.get("k") == "one"
    source.value = None
    assert await source.cached.refresh("k") is None


async def test_a_value_may_survive_its_absence_until_its_end() -> None:
    source = Source(survives_absence=True)
    await source.cached.get("k")
    source.value = None
    assert await source.cached.refresh("k") == "one"
    source.clock.advance(299.0)
    assert await source.cached.get("k") == "one"
    await source.settle()
    source.clock.advance(1.0)
    assert await source.cached.get("k") is None


async def test_the_least_recently_used_value_is_dropped() -> None:
    source = Source()
    for key in "abc":
        await source.cached.get(key)
    await source.cached.get("a")
    await source.cached.get("d")
    assert len(source.cached) == 3
    assert source.cached.peek("b") is None
    assert source.cached.peek("a") == "one"
