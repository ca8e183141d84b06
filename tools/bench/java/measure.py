"""Measures the cases on all sides in turns: one case on ours, ours with the kernel and Java's, then the next.

All clusters of a setting run at the same time, and those that are not measured are paused. In every other
round Java is first. Java is warmed up before its first case, and each load warms up its own client before it
counts. Processor time is read from the kernel at the begin and the end of the counted time.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from bench.java.clusters import (
    BROKER_NAME,
    JAVA,
    KERNEL,
    OURS,
    BrokerSetting,
    JavaTools,
    MeasuredCluster,
    make_home,
    paused_cluster,
    running_java,
    running_ours,
)
from bench.processes import private_bytes
from tandemmq.api.controller import read_sync_states
from tandemmq.bench.generator import LoadResult, run_load, send_frames
from tandemmq.bench.process_stats import processor_seconds, resident_bytes
from tandemmq.errors import TandemError
from tandemmq.remoting.client import RemotingClient
from tandemmq.runtime.machine import LoopClock, TcpNetwork

ASYNC: Final = BrokerSetting("ASYNC_FLUSH")
SYNC: Final = BrokerSetting("SYNC_FLUSH", flush="SYNC_FLUSH")
PAIR: Final = BrokerSetting("ASYNC_FLUSH, synchronous slave", has_slave=True)
SAFE: Final = BrokerSetting("SYNC_FLUSH, synchronous slave", flush="SYNC_FLUSH", has_slave=True)
ELECTED: Final = BrokerSetting("ASYNC_FLUSH, elected master and slave", has_slave=True, is_elected=True)
READ: Final = BrokerSetting("ASYNC_FLUSH, backlogs")
"""A setting with separate clusters for reads: after the sends of the other settings the page cache would have
no room for the backlogs.
"""
TRANSACTIONS: Final = BrokerSetting("ASYNC_FLUSH, transactions")
"""A setting with separate clusters: from its first transaction on, a thread of Java's broker 5.5 keeps a
processor busy for good, which would spoil the cases of later rounds.
"""
ROLLING: Final = BrokerSetting("ASYNC_FLUSH, a new log file every 16 MiB", log_file_bytes=16 << 20)

WARM_UP_S: Final = 20.0
CLIENT_WARM_UP_S: Final = 2.0
Runner = Callable[[Path, BrokerSetting], AbstractContextManager[MeasuredCluster]]
LOAD_S_MAX: Final = 120.0
"""The time in seconds beyond its warm-up and its measured time after which a load is stopped with an
error.
"""
READS: Final = ("read", "filter", "sql", "pop")
OF_KERNEL: Final = ("send", "light", "rate")
"""The kinds of cases that are also measured with the kernel, which takes part in sends only."""
FILLING_S: Final = 5.0
"""The duration in seconds of the batches sent before the first read of a side: about half a million messages
of 1 KiB.
"""
OUTPUT_CHARS: Final = 1000
"""The length of each end of a load's output in an error: how it began to fail, and what ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One load. `kind`: a load of the load program; `light`, our generator of prepared frames; or an action
    on a separate cluster: `start`, `failover`.
    """

    setting: BrokerSetting
    kind: str
    body_bytes: int = 1024
    in_flight: int = 1
    batch: int = 1
    rate: int = 0

    @property
    def name(self) -> str:
        """The name in tables and for the selection of cases."""
        size = f"{self.body_bytes} B" if self.body_bytes < 1024 else f"{self.body_bytes // 1024} KiB"
        match self.kind:
            case "rate":
                return f"{self.rate:,} sends/s of {size}"
            case "rate-read":
                return f"{self.rate:,} sends/s of {size} while a backlog is read"
            case "deliver":
                return f"{self.rate:,} sends/s of {size}, until each is consumed"
            case "light":
                return f"light generator, {size}, {self.in_flight} in flight"
            case "send" if self.batch > 1:
                return f"batches of {self.batch} x {size}, {self.in_flight} in flight"
            case "send":
                return f"sends of {size}, {self.in_flight} in flight"
            case "read" | "filter" | "sql":
                chosen = {"read": "", "filter": ", one tag of four", "sql": ", SQL92 for one of four"}
                return f"backlog of {size}{chosen[self.kind]}"
            case "push":
                return f"backlog of {size} by a listener"
            case "start":
                return "start of all servers to the first acknowledged send"
            case "failover":
                return "death of an elected master to the first send that its successor acknowledges"
            case "pop":
                return f"pops of up to 32 of {size}, each acknowledged, {self.in_flight} in flight"
            case "delay":
                return f"sends of {size} delayed by a second, {self.in_flight} in flight"
            case _:
                return f"{self.kind}s of {size}, {self.in_flight} in flight"


def _all_cases() -> Iterator[Case]:
    for in_flight in (1, 16, 64, 256):
        yield Case(setting=ASYNC, kind="send", in_flight=in_flight)
    yield Case(setting=ASYNC, kind="send", body_bytes=128, in_flight=64)
    yield Case(setting=ASYNC, kind="send", body_bytes=64 << 10, in_flight=16)
    for batch in (16, 256):
        yield Case(setting=ASYNC, kind="send", in_flight=16 if batch < 100 else 4, batch=batch)
    yield Case(setting=ASYNC, kind="light", in_flight=64)
    for rate in (1_000, 5_000, 10_000):
        yield Case(setting=ASYNC, kind="rate", rate=rate)
    yield Case(setting=ASYNC, kind="rate-read", rate=5_000)
    yield Case(setting=ASYNC, kind="deliver", rate=1_000)
    yield Case(setting=ASYNC, kind="delay", in_flight=16)
    yield Case(setting=ASYNC, kind="start")
    yield Case(setting=TRANSACTIONS, kind="transaction", in_flight=16)
    for kind in ("read", "filter", "sql"):
        yield Case(setting=READ, kind=kind)
    yield Case(setting=READ, kind="pop", in_flight=4)
    for setting in (SYNC, PAIR, SAFE, ELECTED):
        for in_flight in (1, 64):
            yield Case(setting=setting, kind="send", in_flight=in_flight)
    yield Case(setting=ELECTED, kind="failover")
    yield Case(setting=ROLLING, kind="rate", rate=5_000)


CASES: Final = tuple(_all_cases())


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFigures:
    """The figures of one case on one side in one round. Latencies in microseconds; 0 if a case has none."""

    case: Case
    side: str
    per_second: float
    p50_us: float
    p99_us: float
    p999_us: float
    failed: int
    """The number of sends at a fixed rate that a broker could not accept in time."""
    processor_us: dict[str, float]
    """The processor time per message, by process of the cluster."""
    private_bytes: dict[str, int]
    resident_bytes: dict[str, int]
    client_us: float = 0.0
    """The processor time per message of a load by RocketMQ's client."""


def choose_cases(wanted: Sequence[str], *, elsewhere: Sequence[str] = ()) -> list[Case]:
    """Returns the cases whose setting or name contains one of the texts; without texts, all. `elsewhere`:
    names of other things that can be selected, for the error.

    Raises:  TandemError for a text without a match, with the possible names.
    """
    known = {case: f"{case.setting.name}: {case.name}" for case in CASES}
    for text in wanted:
        if not any(text in name for name in known.values()):
            names = "; ".join([*known.values(), *elsewhere])
            raise TandemError(f"no case has {text!r} in its name; there are: {names}")
    return [case for case, name in known.items() if not wanted or any(text in name for text in wanted)]


def measure_pairs(
    cases: Sequence[Case],
    *,
    rounds: int,
    seconds: float,
    warm_up_s: float,
    tools: JavaTools,
    has_kernel: bool,
    directory: Path | None,
    on_progress: Callable[[str], None],
) -> list[CaseFigures]:
    """Runs all rounds of all cases on all sides. `on_progress` receives the next case, and each round of a
    case that is left out because a load failed, or a send was not answered with SEND_OK.

    Raises:  TandemError if a server does not start, or nothing is left.
    """
    readings: list[CaseFigures] = []
    failure: TandemError | None = None
    for setting, group in groupby(cases, key=lambda case: case.setting):
        chosen = list(group)
        with (
            tempfile.TemporaryDirectory(prefix="tandemmq-bench-", dir=directory) as name,
            ExitStack() as stack,
        ):
            root = Path(name)
            on_progress(f"starting all clusters, {setting.name}")
            runners: dict[str, Runner] = {OURS: running_ours}
            if has_kernel and any(case.kind in OF_KERNEL for case in chosen):
                runners[KERNEL] = partial(running_ours, has_kernel=True)
            runners[JAVA] = partial(running_java, tools=tools)
            clusters = [stack.enter_context(run(root / side, setting)) for side, run in runners.items()]
            loads = Loads(tools, root / "load", seconds)
            for cluster in clusters:
                on_progress(f"warming up {cluster.side}, {setting.name}")
                warming = Case(setting=setting, kind="send", in_flight=64)
                loads.run(cluster, warming, warm_up_s=warm_up_s, seconds=0.5)
            for number in range(rounds):
                for case in chosen:
                    what = f"round {number + 1} of {rounds}, {setting.name}: {case.name}"
                    found: list[CaseFigures] = []
                    try:
                        for cluster in clusters[:: -1 if number % 2 else 1]:
                            if cluster.side == KERNEL and case.kind not in OF_KERNEL:
                                continue
                            on_progress(f"{what}, {cluster.side}")
                            with paused_clusters(clusters, cluster, CLIENT_WARM_UP_S + seconds):
                                if case.kind in _TIMED:
                                    folder = root / f"{cluster.side}-{case.kind}-{number}"
                                    found.append(_TIMED[case.kind](runners[cluster.side], case, folder))
                                else:
                                    found.append(loads.run(cluster, case))
                    except TandemError as error:
                        failure = error
                        on_progress(f"{what} is left out: {error}")
                    else:
                        readings += found
    if not readings:
        raise failure or TandemError("no case was measured")
    return readings


@contextmanager
def paused_clusters(
    clusters: Sequence[MeasuredCluster], measured: MeasuredCluster, seconds: float
) -> Iterator[None]:
    """Pauses all clusters but the measured one (`paused_cluster`)."""
    with ExitStack() as stack:
        for cluster in clusters:
            if cluster is not measured:
                stack.enter_context(paused_cluster(cluster, seconds))
        yield


def time_start(run: Runner, case: Case, folder: Path) -> CaseFigures:
    """Times the start of a separate cluster, from its first process. The processor time covers the whole
    start.

    Raises:  TandemError if no send is accepted within LOAD_S_MAX.
    """
    frames = send_frames(topic_of(case), 1, case.body_bytes, 1)
    begun = time.monotonic()
    with run(folder, case.setting) as cluster:
        _wait_until(
            lambda: _accepts_sends(cluster.master, frames), f"{cluster.side} takes no send after its start"
        )
        nothing = dict.fromkeys(cluster.pids, 0.0)
        return reading_of_once(cluster, case, time.monotonic() - begun, nothing)


def _time_failover(run: Runner, case: Case, folder: Path) -> CaseFigures:
    """Times a failover from SIGKILL of a master whose slave is in sync. The processor time is that of the
    remaining processes.

    Raises:  TandemError if the slave does not catch up, or does not take over, within LOAD_S_MAX.
    """
    frames = send_frames(topic_of(case), 1, case.body_bytes, 1)
    with run(folder, replace(case.setting, acks_min=1)) as cluster:
        side = cluster.side
        _wait_until(lambda: _accepts_sends(cluster.master, frames), f"{side} takes no send after its start")
        _wait_until(
            lambda: asyncio.run(_count_in_sync(cluster.controller)) == 2, f"{side}'s slave is not in sync"
        )
        left = replace(cluster, pids={name: pid for name, pid in cluster.pids.items() if name != "master"})
        before = processor_of(left)
        os.kill(cluster.pids["master"], signal.SIGKILL)
        begun = time.monotonic()
        _wait_until(lambda: _accepts_sends(cluster.slave, frames), f"{side}'s slave does not take over")
        return reading_of_once(left, case, time.monotonic() - begun, before)


_TIMED: Final = {"start": time_start, "failover": _time_failover}


async def _count_in_sync(controller: str) -> int:
    """Returns the number of in-sync brokers that the controller reports; 0 while it does not answer."""
    client = RemotingClient(network=TcpNetwork(), clock=LoopClock())
    try:
        group = (await read_sync_states(client, controller, [BROKER_NAME])).get(BROKER_NAME)
        return 0 if group is None else len(group.in_sync)
    except TandemError:
        return 0
    finally:
        await client.close()


def _accepts_sends(address: str, frames: list[bytes]) -> bool:
    try:
        return not run_load(address, frames, in_flight=1, seconds_max=0.001).failed
    except OSError:
        return False


def _wait_until(holds: Callable[[], bool], failure: str) -> None:
    """Waits until `holds` returns True. Raises:  TandemError with `failure` and the time, after
    LOAD_S_MAX.
    """
    deadline = time.monotonic() + LOAD_S_MAX
    while not holds():
        if time.monotonic() > deadline:
            raise TandemError(f"{failure}, {LOAD_S_MAX:.0f} s long")
        time.sleep(0.01)


def reading_of_once(
    cluster: MeasuredCluster, case: Case, seconds: float, before: dict[str, float]
) -> CaseFigures:
    """Returns the figures of an event that happens once per cluster, and took `seconds`."""
    load: dict[str, Any] = {"count": 1, "seconds": seconds, "failed": 0}
    load |= dict.fromkeys(("p50_us", "p99_us", "p999_us"), seconds * 1e6)
    return reading_of(cluster, case, load, before, processor_of(cluster))


class Loads:
    """Runs loads on clusters."""

    def __init__(self, tools: JavaTools, home: Path, seconds: float) -> None:
        self._tools = tools
        self._flags = ["-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", *make_home(home)]
        self._seconds = seconds
        self._frames: dict[int, list[bytes]] = {}
        self._filled: set[str] = set()

    def run(
        self,
        cluster: MeasuredCluster,
        case: Case,
        *,
        warm_up_s: float = CLIENT_WARM_UP_S,
        seconds: float | None = None,
        topic: str = "",
    ) -> CaseFigures:
        """Runs one load. Raises:  TandemError for a load that fails, or takes too long."""
        seconds = self._seconds if seconds is None else seconds
        if case.kind in READS and not topic and cluster.side not in self._filled:
            self._filled.add(cluster.side)
            filling = replace(case, kind="send", in_flight=16, batch=16)
            self.run(cluster, filling, warm_up_s=0.0, seconds=FILLING_S, topic=topic_of(case))
        if case.kind == "light":
            return self._run_light(cluster, case, warm_up_s, seconds)
        values = (case.body_bytes, case.in_flight, case.batch, case.rate, warm_up_s, seconds)
        command = [self._tools.java, *self._flags, "-cp", self._tools.class_path, "Load"]
        command += [cluster.name_server, topic or topic_of(case), case.kind, *map(str, values)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            watchdog = threading.Timer(warm_up_s + seconds + LOAD_S_MAX, process.kill)
            watchdog.start()
            load: dict[str, Any] = {}
            printed: list[str] = []
            before: dict[str, float] = {}
            after: dict[str, float] = {}
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith("BEGIN"):
                        before = processor_of(cluster)
                    elif line.startswith("END "):
                        after = processor_of(cluster)
                        load = json.loads(line[4:])
                    else:
                        printed.append(line.strip())
            finally:
                watchdog.cancel()
        if not load:
            code, text = process.returncode, " ".join(printed)
            if len(text) > 2 * OUTPUT_CHARS:
                text = f"{text[:OUTPUT_CHARS]} ... {text[-OUTPUT_CHARS:]}"
            raise TandemError(f"{case.name} on {cluster.side} ended with {code} and without figures: {text}")
        if not load["count"] or (load["failed"] and not case.rate):
            reason = load["reason"] or "no message came"
            raise TandemError(
                f"{case.name} on {cluster.side}: {load['count']} messages, {load['failed']} failed: {reason}"
            )
        return reading_of(cluster, case, load, before, after)

    def _run_light(
        self, cluster: MeasuredCluster, case: Case, warm_up_s: float, seconds: float
    ) -> CaseFigures:
        frames = self._frames.get(case.body_bytes)
        if frames is None:
            frames = self._frames[case.body_bytes] = send_frames(topic_of(case), 4, case.body_bytes, 4096)
        run_load(cluster.master, frames, in_flight=case.in_flight, seconds_max=warm_up_s)
        before = processor_of(cluster)
        result = run_load(cluster.master, frames, in_flight=case.in_flight, seconds_max=seconds)
        after = processor_of(cluster)
        if result.failed:
            raise TandemError(f"{case.name} on {cluster.side}: {result.failed} sends were refused")
        # Java's broker answers the sends of one connection in any order, so latencies cannot be computed.
        return reading_of(cluster, case, load_figures(result, has_order=cluster.side != JAVA), before, after)


def topic_of(case: Case) -> str:
    """Returns the topic that a case sends to or reads from. Backlogs have separate topics, which fit into the
    page cache on both sides. All other sent messages do not fit, and reading those would measure the disk.
    """
    return f"{'Backlog' if case.kind in READS else 'Bench'}{case.body_bytes}"


def load_figures(result: LoadResult, *, has_order: bool = True) -> dict[str, Any]:
    """Returns the figures of our own load in the form of the load program. `has_order`: True if the answers
    are in order.
    """
    shares = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}
    times = {name: result.percentile_us(share) if has_order else 0.0 for name, share in shares.items()}
    return {"count": result.count, "seconds": result.seconds, "failed": result.failed, **times}


def processor_of(cluster: MeasuredCluster) -> dict[str, float]:
    """Returns the processor time that each process has used so far, in seconds."""
    return {name: processor_seconds(pid) for name, pid in cluster.pids.items()}


def reading_of(
    cluster: MeasuredCluster,
    case: Case,
    load: dict[str, Any],
    before: dict[str, float],
    after: dict[str, float],
) -> CaseFigures:
    """Returns the figures of a load, with the processor time that it used and the current memory."""
    count = load["count"]
    return CaseFigures(
        case=case,
        side=cluster.side,
        per_second=count / load["seconds"],
        p50_us=load["p50_us"],
        p99_us=load["p99_us"],
        p999_us=load["p999_us"],
        failed=load["failed"],
        processor_us={name: (after[name] - before[name]) * 1e6 / count for name in after},
        private_bytes={name: private_bytes(pid) for name, pid in cluster.pids.items()},
        resident_bytes={name: resident_bytes(pid) for name, pid in cluster.pids.items()},
        client_us=load.get("client_seconds", 0.0) * 1e6 / count,
    )
