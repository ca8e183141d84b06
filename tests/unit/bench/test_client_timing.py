"""Windows of sends and reads: the counted messages, the seconds, and the errors."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemmq.bench import client_timing
from tandemmq.bench.client_timing import measure_reads, measure_sends
from tandemmq.errors import TandemError

SOURCES = Path(__file__).parents[3] / "src"


async def test_sends_are_counted_without_the_one_that_connects() -> None:
    sent = in_flight = in_flight_max = 0

    async def send() -> None:
        nonlocal sent, in_flight, in_flight_max
        in_flight += 1
        in_flight_max = max(in_flight_max, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        sent += 1

    row = await measure_sends("send", send, in_flight=3, seconds=0.01, broker_pids={})
    assert row.result.count == len(row.result.latencies_us) == sent - 1
    assert in_flight_max == 3
    assert row.result.seconds >= 0.01
    assert row.processor_us.keys() == {"client"}


async def test_the_first_failed_send_ends_the_run() -> None:
    calls = 0

    async def send() -> None:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise TandemError("disk full")
        await asyncio.sleep(0)

    with pytest.raises(TandemError, match="disk full"):
        await measure_sends("send", send, in_flight=3, seconds=60, broker_pids={})


async def test_a_backlog_is_measured_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_timing, "SILENCE_S_MAX", 0.05)
    is_cancelled = False

    async def read(add: Callable[[int], None]) -> None:
        nonlocal is_cancelled
        for _ in range(3):
            add(100)
            await asyncio.sleep(0)
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled = True

    row = await measure_reads("consume", read, seconds=60, broker_pids={})
    assert row.result.count == 300
    assert 0 < row.result.seconds < 60
    assert is_cancelled


async def test_an_endless_backlog_is_measured_for_the_given_time() -> None:
    async def read(add: Callable[[int], None]) -> None:
        while True:
            add(1)
            await asyncio.sleep(0)

    row = await measure_reads("consume", read, seconds=0.05, broker_pids={})
    assert row.result.seconds >= 0.05
    assert row.result.count > 1


async def test_a_reader_that_swallows_a_cancellation_ends() -> None:
    cancellations = 0

    async def read(add: Callable[[int], None]) -> None:
        nonlocal cancellations
        while True:
            add(1)
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                cancellations += 1
                if cancellations == 2:
                    raise

    await measure_reads("consume", read, seconds=0.01, broker_pids={})
    assert cancellations == 2


async def test_a_reader_that_fails_or_gets_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: Callable[[int], None]) -> None:
        raise TandemError("no route")

    with pytest.raises(TandemError, match="no route"):
        await measure_reads("consume", fail, seconds=60, broker_pids={})

    async def get_nothing(_: Callable[[int], None]) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(client_timing, "FIRST_MESSAGE_S_MAX", 0.02)
    with pytest.raises(TandemError, match="consume, pop: no message arrived within 0 s"):
        await measure_reads("consume, pop", get_nothing, seconds=60, broker_pids={})


def test_only_the_standard_library_is_needed() -> None:
    """Else the clients of other brokers could not be measured in an environment without our dependencies."""
    program = f"import sys; sys.path.insert(0, {str(SOURCES)!r}); import tandemmq.bench.client_timing"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
