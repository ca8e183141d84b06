from __future__ import annotations

import asyncio

from sim.manual_clock import START_MS, ManualClock
from tandemmq.runtime.machine import LoopClock


def test_manual_timers_run_in_order_of_due_time_then_of_asking() -> None:
    clock = ManualClock()
    seen: list[tuple[str, int]] = []

    def note(name: str) -> None:
        seen.append((name, clock.now_ms() - START_MS))

    clock.call_later(2, note, "late")
    clock.call_later(1, note, "first")
    clock.call_later(1, note, "second")
    clock.call_later(1.5, note, "cancelled").cancel()
    clock.call_soon(note, "soon")
    clock.advance(1.9)
    assert seen == [("soon", 0), ("first", 1000), ("second", 1000)]
    assert clock.monotonic() == 1.9
    clock.advance(5)
    assert seen[3:] == [("late", 2000)]


def test_manual_timer_may_ask_for_more() -> None:
    clock = ManualClock()
    ticks: list[float] = []

    def tick() -> None:
        ticks.append(clock.monotonic())
        if clock.monotonic() < 3:
            clock.call_later(1, tick)
            clock.call_soon(ticks.append, -1.0)

    clock.call_later(1, tick)
    clock.advance(10)
    assert ticks == [1.0, -1.0, 2.0, -1.0, 3.0]


async def test_soon_calls_run_by_themselves_in_a_loop() -> None:
    clock = ManualClock()
    done = asyncio.Event()
    clock.call_soon(clock.call_soon, done.set)
    await done.wait()


async def test_manual_sleepers_wake_as_time_passes() -> None:
    clock = ManualClock()
    woken: list[float] = []

    async def sleeper() -> None:
        for _ in range(3):
            await clock.sleep(1)
            woken.append(clock.monotonic())

    task = asyncio.ensure_future(sleeper())
    await clock.pass_time(2.5)
    assert woken == [1.0, 2.0]
    await clock.pass_time(2.5)
    assert woken == [1.0, 2.0, 3.0]
    await task


async def test_cancelled_sleeper_leaves_nothing_behind() -> None:
    clock = ManualClock()
    task = asyncio.ensure_future(clock.sleep(1))
    await clock.pass_time(0)
    task.cancel()
    await asyncio.wait([task])
    await clock.pass_time(2)
    assert task.cancelled()


async def test_loop_clock_runs_and_cancels() -> None:
    clock = LoopClock()
    before = clock.monotonic()
    seen: list[str] = []
    done = asyncio.Event()
    clock.call_later(0, seen.append, "cancelled").cancel()
    clock.call_soon(seen.append, "soon")
    clock.call_later(0.001, done.set)
    await done.wait()
    await clock.sleep(0)
    assert seen == ["soon"]
    assert clock.monotonic() > before
    assert clock.now_ms() > START_MS
