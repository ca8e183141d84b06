"""Our gRPC proxy beside Java RocketMQ's: the same loads, before the same broker of ours, in turns.

The broker, both proxies and the load share the machine; the proxy that is not measured is stopped. The
processor time of the proxy's process counts: unlike rates and latencies, it says the same on a machine that
other programs use as well.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.java.clusters import (
    JAVA,
    OURS,
    BrokerSetting,
    JavaTools,
    prepare_java,
    prepare_java_proxy,
    running_java,
    running_java_proxy,
    running_ours,
)
from bench.java.report import cells, figure_of, header
from bench.processes import proportional_bytes
from tandemmq.bench.command import BODY_BYTES, GROUP, QUEUE_COUNT, TOPIC, measure_calls, measured_proxy
from tandemmq.bench.process_stats import processor_seconds, resident_bytes
from tandemmq.bench.proxy_load import BATCH, IN_FLIGHT, OPERATIONS, ProxyLoad, wait_until_served
from tandemmq.client import BlockingAdmin
from tandemmq.errors import TandemError

SETTING: Final = BrokerSetting("ASYNC_FLUSH")
PROXIED: Final = "proxy"
WARM_UP_PIECE_S: Final = 3.0
SETTLED_S: Final = 2.0
"""The pause after a start, before the memory of an idle proxy is read."""
NAMES: Final = {
    "send": "sends of 1 KiB",
    "receive": f"receives of up to {BATCH} of 1 KiB",
    "ack": "acknowledgements",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyFigures:
    """The figures of one load of one proxy. Latencies are of calls, in microseconds."""

    side: str
    operation: str
    in_flight: int
    per_second: float
    processor_us: float
    generator_us: float
    p50_us: float
    p99_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyMemory:
    """The memory of one proxy in bytes, and the seconds from its start to its first answer, and the processor
    time until then. `state`: `idle` or `load`.
    """

    side: str
    state: str
    resident: int
    proportional: int
    ready_s: float = 0.0
    start_processor_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProxyReadings:
    """The readings of all rounds."""

    calls: list[ProxyFigures]
    memory: list[ProxyMemory]


Runner = Callable[[Path, str], AbstractContextManager[tuple[str, int, float]]]


@contextmanager
def _run_ours(directory: Path, name_server: str) -> Iterator[tuple[str, int, float]]:
    directory.mkdir(parents=True)
    with measured_proxy(directory, name_server) as (server, ready_s):
        yield server.address, server.pid, ready_s


@contextmanager
def _run_java(directory: Path, name_server: str, tools: JavaTools) -> Iterator[tuple[str, int, float]]:
    directory.mkdir(parents=True)
    begun_s = time.monotonic()
    with running_java_proxy(directory, name_server, tools) as (address, pid):
        wait_until_served(address, TOPIC)
        yield address, pid, time.monotonic() - begun_s


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True, slots=True)
class _Contestant:
    side: str
    pid: int
    load: ProxyLoad


def measure_proxies(
    *,
    rounds: int,
    seconds: float,
    warm_up_s: float,
    cache: Path,
    directory: Path | None,
    on_progress: Callable[[str], None],
    has_java_broker: bool = False,
) -> ProxyReadings:
    """Runs all rounds of all loads on both proxies. `has_java_broker`: before Java's broker instead of ours.

    Raises:  TandemError if a server does not start, or a call fails.
    """
    found = ProxyReadings([], [])
    runners: dict[str, Runner] = {
        OURS: _run_ours,
        JAVA: partial(_run_java, tools=prepare_java_proxy(cache)),
    }
    with tempfile.TemporaryDirectory(prefix="tandemmq-bench-", dir=directory) as name, ExitStack() as stack:
        root = Path(name)
        if has_java_broker:
            cluster = stack.enter_context(running_java(root / "broker", SETTING, prepare_java(cache)))
        else:
            cluster = stack.enter_context(running_ours(root / "broker", SETTING))
        with BlockingAdmin(cluster.name_server) as admin:
            for topic in (TOPIC, *(f"{TOPIC}-{side}" for side in runners)):
                admin.create_topic(topic, queue_count=QUEUE_COUNT)
        for number in range(rounds):
            for side in list(runners)[:: -1 if number % 2 else 1]:
                on_progress(f"start {number + 1} of {rounds}, {side}")
                with runners[side](root / f"{side}-{number}", cluster.name_server) as (_, pid, ready_s):
                    found.memory.append(_memory_of(side, "idle", pid, ready_s))
        contestants = []
        for side, runner in runners.items():
            address, pid, _ = stack.enter_context(runner(root / side, cluster.name_server))
            load = stack.enter_context(ProxyLoad(address, f"{TOPIC}-{side}", f"{GROUP}-{side}", BODY_BYTES))
            contestants.append(_Contestant(side, pid, load))
        for one, other in _orders(contestants, 0):
            on_progress(f"warming up {one.side}")
            with _stopped(other.pid):
                _warm_up(one, warm_up_s)
        for number in range(rounds):
            for in_flight in IN_FLIGHT:
                for operation in OPERATIONS:
                    for one, other in _orders(contestants, number):
                        on_progress(
                            f"round {number + 1} of {rounds}, {operation}, {in_flight} in flight: {one.side}"
                        )
                        with _stopped(other.pid):
                            found.calls.append(_measure(one, operation, in_flight, seconds))
                            found.memory.append(_memory_of(one.side, "load", one.pid))
    return found


def _orders(contestants: Sequence[_Contestant], number: int) -> list[tuple[_Contestant, _Contestant]]:
    """Returns each contestant with the other one, in the order of this round."""
    first, second = contestants
    return [(first, second), (second, first)][:: -1 if number % 2 else 1]


def _warm_up(one: _Contestant, seconds: float) -> None:
    """Runs all loads until the proxy has used so much processor time."""
    ends_at_s = processor_seconds(one.pid) + seconds
    while processor_seconds(one.pid) < ends_at_s:
        for operation in OPERATIONS:
            one.load.prepare(operation)
            one.load.run(operation, in_flight=max(IN_FLIGHT), seconds=WARM_UP_PIECE_S)


def _measure(one: _Contestant, operation: str, in_flight: int, seconds: float) -> ProxyFigures:
    row = measure_calls(one.load, operation, in_flight=in_flight, seconds=seconds, pids={PROXIED: one.pid})
    result = row.result
    if result.failed or not result.count:
        raise TandemError(
            f"{operation}, {in_flight} in flight, {one.side}: {result.failed} of {result.count} failed"
        )
    return ProxyFigures(
        side=one.side,
        operation=operation,
        in_flight=in_flight,
        per_second=result.count / result.seconds,
        processor_us=row.processor_us[PROXIED],
        generator_us=row.processor_us["generator"],
        p50_us=result.percentile_us(0.5),
        p99_us=result.percentile_us(0.99),
    )


def _memory_of(side: str, state: str, pid: int, ready_s: float = 0.0) -> ProxyMemory:
    spent_s = processor_seconds(pid)
    if state == "idle":
        time.sleep(SETTLED_S)
    return ProxyMemory(
        side=side,
        state=state,
        resident=resident_bytes(pid),
        proportional=proportional_bytes(pid),
        ready_s=ready_s,
        start_processor_s=spent_s,
    )


def render_proxies(found: ProxyReadings) -> str:
    """Returns tables in Markdown: the calls, their latencies, memory and starts."""
    pairs = {
        (operation, in_flight): [
            [one for one in found.calls if (one.side, one.operation, one.in_flight) == (side, *case)]
            for side in (OURS, JAVA)
        ]
        for operation in OPERATIONS
        for in_flight in IN_FLIGHT
        for case in [(operation, in_flight)]
    }
    rounds = max(len(ours) for ours, _ in pairs.values())
    lines = [f"Medians of {rounds} rounds; in brackets the smallest and the largest ratio.", ""]
    lines += header("messages/s", "processor us of the proxy")
    latencies = ["", "| calls | ms | ours | Java | ratio |", "|---|---|--:|--:|--:|"]
    for (operation, in_flight), (ours, java) in pairs.items():
        name = f"{NAMES[operation]}, {in_flight} in flight"

        def figure(field: str, ours: Sequence[Any] = ours, java: Sequence[Any] = java) -> Any:
            return figure_of(
                [(getattr(a, field), getattr(b, field)) for a, b in zip(ours, java, strict=True)]
            )

        lines.append(f"| {name} | {cells(figure('per_second'), 0)} | {cells(figure('processor_us'), 1)} |")
        for what in ("p50", "p99"):
            times = figure(f"{what}_us")
            latencies.append(
                f"| {name} | {what} | {times.ours / 1e3:,.2f} | {times.java / 1e3:,.2f} | {times.ratio:.2f} |"
            )
            name = ""
    return "\n".join([*lines, *latencies, "", *_memory_lines(found.memory)]) + "\n"


def _memory_lines(memory: Sequence[ProxyMemory]) -> Iterator[str]:
    """Returns the medians of idle proxies and of their starts, and the most under load."""

    def of(side: str, state: str, field: str) -> list[float]:
        return [getattr(one, field) for one in memory if (one.side, one.state) == (side, state)]

    yield "| | ours | Java | ratio |"
    yield "|---|--:|--:|--:|"
    rows: list[tuple[str, str, str, Callable[[list[float]], float], float, int]] = [
        ("seconds from the start to the first answer", "idle", "ready_s", median, 1.0, 2),
        ("processor seconds until then", "idle", "start_processor_s", median, 1.0, 2),
    ]
    for field, kind in (("resident", "RSS"), ("proportional", "PSS")):
        rows.append((f"MiB of memory, idle ({kind})", "idle", field, median, 2.0**20, 0))
        rows.append((f"MiB of memory, the most under load ({kind})", "load", field, max, 2.0**20, 0))
    for name, state, field, summarize, unit, digits in rows:
        ours, java = (summarize(of(side, state, field)) / unit for side in (OURS, JAVA))
        yield f"| {name} | {ours:,.{digits}f} | {java:,.{digits}f} | **{ours / java:.2f}** |"


def as_json(found: ProxyReadings) -> dict[str, Any]:
    """Returns the readings for programs."""
    return {"calls": [asdict(one) for one in found.calls], "memory": [asdict(one) for one in found.memory]}
