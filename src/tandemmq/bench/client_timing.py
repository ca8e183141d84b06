"""Measures sends and reads of a Python client: messages, seconds, and the processor time of this process and
of the brokers.

Imports the standard library only, so that `python -m bench client` measures other projects' clients with this
code in an environment of their own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from tandemmq.bench.generator import LoadResult, QuickRow
from tandemmq.bench.process_stats import processor_seconds, resident_bytes
from tandemmq.errors import TandemError

CLIENT: Final = "client"
"""The name of this process in the figures."""
FIRST_MESSAGE_S_MAX: Final = 30.0
"""The time after which a consumer without any message is given up."""
SILENCE_S_MAX: Final = 1.0
"""The time without another message after which a backlog is at its end."""
_TICK_S: Final = 0.02


class _Reading(NamedTuple):
    """The clocks at one moment, and the number of messages until then."""

    messages: int
    at_s: float
    processor_s: dict[str, float]


class _Meter:
    """Reads the clocks of the machine, of this process and of the brokers."""

    def __init__(self, broker_pids: Mapping[str, int]) -> None:
        self._pids = {CLIENT: os.getpid(), **broker_pids}

    def read(self, count: int = 0) -> _Reading:
        spent_s = {name: processor_seconds(pid) for name, pid in self._pids.items()}
        return _Reading(count, time.perf_counter(), spent_s)

    def row(
        self, case: str, in_flight: int, begun: _Reading, ended: _Reading, latencies_us: list[float]
    ) -> QuickRow:
        count, seconds = ended.messages, ended.at_s - begun.at_s
        spent_s = {name: ended.processor_s[name] - begun.processor_s[name] for name in self._pids}
        return QuickRow(
            setting=case,
            in_flight=in_flight,
            result=LoadResult(count=count, seconds=seconds, latencies_us=latencies_us, failed=0),
            processor_us={name: spent * 1e6 / max(count, 1) for name, spent in spent_s.items()},
            resident_mib={name: resident_bytes(pid) / 2**20 for name, pid in self._pids.items()},
        )


async def measure_sends(
    case: str,
    send: Callable[[], Awaitable[object]],
    *,
    in_flight: int,
    seconds: float,
    broker_pids: Mapping[str, int],
) -> QuickRow:
    """Sends for the given time with a fixed number in flight. Raises the first error of a send."""
    await send()  # establishes route and connection
    latencies_us: list[float] = []
    meter = _Meter(broker_pids)
    begun = meter.read()
    ends_at_s = begun.at_s + seconds

    async def send_on() -> None:
        """Sends at least once: on a busy machine the time may be over before the first send begins."""
        now_s = time.perf_counter()
        is_over = False
        while not is_over:
            sent_s = now_s
            await send()
            now_s = time.perf_counter()
            latencies_us.append((now_s - sent_s) * 1e6)
            is_over = now_s >= ends_at_s

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(send_on())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return meter.row(case, in_flight, begun, meter.read(len(latencies_us)), latencies_us)


async def measure_reads(
    case: str,
    read: Callable[[Callable[[int], None]], Awaitable[object]],
    *,
    seconds: float,
    broker_pids: Mapping[str, int],
) -> QuickRow:
    """Measures a consumer of a backlog, from its first message on, for the given time or to the backlog's
    end.

    read     reads until it is cancelled, and reports each number of received messages to its argument

    Raises:  the error of `read`; TandemError if no message arrives.
    """
    meter = _Meter(broker_pids)
    count = 0
    begun = ended = meter.read()

    def add(received: int) -> None:
        nonlocal count, begun
        if not count:
            begun = meter.read()
        count += received

    reading = asyncio.ensure_future(read(add))
    try:
        while not reading.done():
            await asyncio.wait((reading,), timeout=_TICK_S)
            now = meter.read(count)
            if now.messages > ended.messages:
                ended = now
            silent_s = now.at_s - ended.at_s
            if silent_s > (SILENCE_S_MAX if count else FIRST_MESSAGE_S_MAX):
                break
            if count and now.at_s >= begun.at_s + seconds:
                break
    finally:
        # Before Python 3.12, `asyncio.wait_for` in a client may swallow a cancellation.
        while not reading.done():
            reading.cancel()
            await asyncio.wait((reading,), timeout=_TICK_S)
        (failure,) = await asyncio.gather(reading, return_exceptions=True)
    if isinstance(failure, Exception):
        raise failure
    if not count:
        raise TandemError(f"{case}: no message arrived within {FIRST_MESSAGE_S_MAX:.0f} s")
    return meter.row(case, 1, begun, ended, [])
