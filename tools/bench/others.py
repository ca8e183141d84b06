"""Compares the nearest equivalents with ours: Apache Kafka and NATS JetStream, each under its own load,
alternately.

Neither speaks RocketMQ's protocol, so no two of them get the same load; the page describes each one. All
servers run at the same time, and those that are not measured are idle. A case that fails, or a server that is
not installed, is left out with a note, without affecting the figures of others.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from bench.java.clusters import (
    OURS,
    VERSION,
    MeasuredCluster,
    fetch_jars,
    make_home,
    prepare_java,
    running_ours,
)
from bench.java.measure import (
    ASYNC,
    CLIENT_WARM_UP_S,
    LOAD_S_MAX,
    Case,
    CaseFigures,
    Loads,
    choose_cases,
    load_figures,
    processor_of,
    reading_of,
    reading_of_once,
    time_start,
    topic_of,
)
from bench.kafka.broker import BROKER, BROKER_VERSION, running_kafka
from bench.nats_load import find_nats, find_version, read_load, running_nats, send_load
from bench.processes import age_seconds
from tandemmq.errors import TandemError
from tandemmq.spark.java import find_java

CHOSEN_BY: Final = "Nearest equivalents: Apache Kafka, NATS JetStream"
"""The name of the chapter: any part of it selects the chapter, as a part of a case's name selects the
case.
"""
CLIENT: Final = f"ours, RocketMQ's Java client {VERSION}"
LIGHT: Final = "ours, light generator"
KAFKA: Final = f"Apache Kafka {BROKER_VERSION}, its own tools"
SENDS: Final = tuple(Case(setting=ASYNC, kind="send", in_flight=in_flight) for in_flight in (1, 16, 64))
BATCHES: Final = Case(setting=ASYNC, kind="send", in_flight=16, batch=16)
BACKLOG: Final = Case(setting=ASYNC, kind="read")
START: Final = Case(setting=ASYNC, kind="start")
CASES: Final = (*SENDS, BATCHES, BACKLOG, START)
LOAD_S: Final = 2.5
"""The duration of each load beyond its warm-up, shorter than in the other chapters."""
LIGHT_WARM_UP_S: Final = 0.5
"""The warm-up of a load without Java on a server without Java."""

PAGE: Final = f"""## Nearest equivalents

Apache Kafka and NATS JetStream do similar work over different protocols, so the figures below are not
ratios of the same work. All servers were measured in turns on this machine, with the others idle: one
server without a replica, bodies of 1 KiB, sends acknowledged before they are on disk, processor time and
memory as reported by the kernel. `make bench CASES=Kafka` measures only this section. NATS needs
`apt-get install nats-server`; without it the tables have no NATS.

- **Comparable**: the server's processor time per message, its memory, and its time to ready. Our light
  generator is comparable with NATS's load: both replay prepared bytes over one connection.
- **Not comparable**: messages per second and latencies of different loads. Client and servers share the
  processors, so a load that costs more leaves less for its server.
- **Kafka** runs with its default settings, a heap of 1 GiB, G1, and its controller in the same process. It is
  warmed up for 20 s. `ProducerPerformance` sends with acks=1 to four partitions.
  Without batches: linger.ms=0, batch.size=0, and a max.request.size for one record, so each record is a
  request; buffer.memory limits the sends in flight to the number in the case. The broker handles the requests
  of one connection one after another, so more of them in flight gain little.
  With batches: the default batch.size (16 KiB: 15 records), linger.ms=5, and buffer.memory for 16 batches.
  The rate excludes the first 5 s of each run; the percentiles include them, in whole milliseconds.
  `ConsumerPerformance` reads its topic once from the beginning; the first 2 s do not count.
- **NATS** runs with its default settings and a stream in files. Its load is a small Python program of ours.
  NATS has no batches, so the batch case has 256 single sends in flight instead. The backlog is read by a
  pull consumer without acknowledgements, 1,000 messages per request.
- **Ours** is a name server and a broker with ASYNC_FLUSH; the memory is the sum of both. RocketMQ's
  Java client is the load of the sections above.
- Seconds to ready start with the first process. They end with the first acknowledged message for ours and
  NATS, and with the open port for Kafka.
- Loads are counted for {LOAD_S:g} s.
"""


@dataclass(slots=True)
class Others:
    """The readings. `notes`: the parts that were left out, and the reasons."""

    readings: list[CaseFigures] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Returns the readings for programs, in the form of the pairs' readings."""
        progress = [{"name": reading.case.name, **asdict(reading)} for reading in self.readings]
        return {"readings": progress, "notes": self.notes}


class Contestant(NamedTuple):
    """A server and its load. `run` measures one of its cases once."""

    side: str
    cases: Sequence[Case]
    run: Callable[[Case], CaseFigures]


_Opener = Callable[[], AbstractContextManager[list[Contestant]]]
_FAILURES: Final = (TandemError, OSError, ValueError, LookupError, subprocess.SubprocessError)


def choose(wanted: Sequence[str]) -> tuple[list[Case], bool]:
    """Returns the cases of the pairs, and True if this chapter is selected; without texts, everything.

    Raises:  TandemError for a text without a match.
    """
    of_pairs = [text for text in wanted if text not in CHOSEN_BY]
    cases = choose_cases(of_pairs, elsewhere=[CHOSEN_BY]) if of_pairs or not wanted else []
    return cases, len(of_pairs) < max(len(wanted), 1)


def measure_others(
    *, rounds: int, warm_up_s: float, cache: Path, directory: Path | None, on_progress: Callable[[str], None]
) -> Others:
    """Runs all rounds of all cases. A failing case is noted and not tried again; its readings are kept."""
    with tempfile.TemporaryDirectory(prefix="tandemmq-bench-", dir=directory) as name:
        root = Path(name)
        openers: dict[str, _Opener] = {
            OURS: partial(_open_ours, root, cache),
            "Apache Kafka": partial(_open_kafka, root, cache, warm_up_s, on_progress),
            "NATS JetStream": partial(_open_nats, root),
        }
        return run_in_turns(openers, rounds=rounds, on_progress=on_progress)


def run_in_turns(openers: dict[str, _Opener], *, rounds: int, on_progress: Callable[[str], None]) -> Others:
    """Runs each case with each contestant, in reverse order in every other round."""
    found = Others()

    def leave_out(name: str, error: BaseException) -> None:
        found.notes.append(f"{name} is left out: {error or type(error).__name__}")
        on_progress(found.notes[-1])

    with ExitStack() as stack:
        contestants: list[Contestant] = []
        for name, opener in openers.items():
            on_progress(f"starting {name}")
            try:
                contestants += stack.enter_context(opener())
            except _FAILURES as error:
                leave_out(name, error)
        for number in range(rounds):
            for case in CASES:
                for contestant in contestants[:: -1 if number % 2 else 1]:
                    if case not in contestant.cases:
                        continue
                    on_progress(f"round {number + 1} of {rounds}, {case.name}: {contestant.side}")
                    try:
                        reading = contestant.run(case)
                    except _FAILURES as error:
                        leave_out(f"{contestant.side}, from {case.name!r} on,", error)
                        contestants.remove(contestant)
                    else:
                        found.readings.append(replace(reading, case=case, side=contestant.side))
    return found


def report_absent(on_progress: Callable[[str], None]) -> None:
    """Reports what will be left out before an hour of measuring."""
    try:
        find_nats()
    except TandemError as error:
        on_progress(f"NATS JetStream will be left out: {error}")


@contextmanager
def _open_ours(root: Path, cache: Path) -> Iterator[list[Contestant]]:
    tools = prepare_java(cache)
    with running_ours(root / "ours", ASYNC) as cluster:
        loads = Loads(tools, root / "load", LOAD_S)

        def run_client(case: Case) -> CaseFigures:
            if case is START:
                return time_start(running_ours, case, _new_folder(root))
            return loads.run(cluster, case)

        def run_light(case: Case) -> CaseFigures:
            return loads.run(cluster, replace(case, kind="light"), warm_up_s=LIGHT_WARM_UP_S)

        yield [Contestant(CLIENT, CASES, run_client), Contestant(LIGHT, SENDS, run_light)]


def _new_folder(root: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=root)) / "start"


def _read_start(cluster: MeasuredCluster, pid: int) -> CaseFigures:
    """Returns the figures of the start of a server that has just become ready."""
    return reading_of_once(cluster, START, age_seconds(pid), dict.fromkeys(cluster.pids, 0.0))


# NATS.


@contextmanager
def _open_nats(root: Path) -> Iterator[list[Contestant]]:
    program = find_nats()
    side = f"NATS JetStream {find_version(program)}, a plain load"
    with running_nats(root / "nats", program) as cluster:

        def run(case: Case) -> CaseFigures:
            if case is START:
                with running_nats(_new_folder(root), program) as started:
                    send_load(started.master, body_bytes=case.body_bytes, in_flight=1, seconds=0.0)
                    return _read_start(started, started.pids["broker"])
            if case is BACKLOG:
                load = partial(read_load, cluster.master)
            else:
                in_flight = case.in_flight * case.batch
                load = partial(send_load, cluster.master, body_bytes=case.body_bytes, in_flight=in_flight)
            load(seconds=LIGHT_WARM_UP_S)
            before = processor_of(cluster)
            result = load(seconds=LOAD_S)
            after = processor_of(cluster)
            if result.failed or not result.count:
                raise TandemError(f"{result.failed} sends of {result.count} were refused")
            return reading_of(
                cluster, case, load_figures(result, has_order=case is not BACKLOG), before, after
            )

        yield [Contestant(side, CASES, run)]


# Kafka, with its own tools.

WINDOW_S: Final = 5.0
"""The interval in seconds at which the producer's tool prints its progress. The first interval is the
client's warm-up.
"""
COUNTED_S_MIN: Final = 1.0
ATTEMPTS_MAX: Final = 3
ENDLESS: Final = 2**31 - 1
COLD: Final = 1.5
"""The maximum factor by which a client may become faster than in its first window."""
RECORD_BYTES_MAX: Final = 1110
"""The bytes that the producer reserves in its buffer for a record of 1 KiB without a key in a separate
batch.
"""
REQUEST_BYTES_MAX: Final = 1200
"""The maximum request size: larger than one such record, smaller than two."""
BATCH_BYTES: Final = 16384
BACKLOG_RECORDS_MIN: Final = 2_000_000
"""The number of records for the consumer's tool in its warm-up and its measured time: it reads a topic only
once.
"""
TOOL_ARTIFACTS: Final = (*BROKER, f"org.apache.kafka:kafka-tools:{BROKER_VERSION}")
_PROGRESS: Final = re.compile(
    r"(\d+) records sent, ([\d.]+) records/sec .* ms max latency"
    r"(?:, (\d+) ms 50th, \d+ ms 95th, (\d+) ms 99th, (\d+) ms 99\.9th)?\."
)


class ProducerProgress(NamedTuple):
    """A line of the producer's tool: for one window, or for the whole run, which has percentiles too."""

    records: int
    per_second: float
    percentiles_ms: tuple[int, int, int] | None

    @property
    def seconds(self) -> float:
        """The duration of the window or run."""
        return self.records / self.per_second if self.per_second else 0.0


def parse_progress(line: str) -> ProducerProgress | None:
    """Parses a progress line; returns None for any other line."""
    found = _PROGRESS.match(line)
    if found is None:
        return None
    count, rate, p50, p99, p999 = found.groups()
    return ProducerProgress(int(count), float(rate), None if p50 is None else (int(p50), int(p99), int(p999)))


def producer_figures(first: ProducerProgress, whole: ProducerProgress) -> dict[str, Any]:
    """Returns the figures after the first window; the percentiles are those of the whole run."""
    assert whole.percentiles_ms is not None, "the line of the whole run has percentiles"
    progress: dict[str, Any] = {"count": whole.records - first.records, "failed": 0}
    progress["seconds"] = whole.seconds - first.seconds
    return progress | {
        name: ms * 1e3 for name, ms in zip(("p50_us", "p99_us", "p999_us"), whole.percentiles_ms, strict=True)
    }


def parse_consumed(line: str) -> tuple[float, int] | None:
    """Returns the time in seconds and the number of messages read until then; None for a line without
    both.
    """
    fields = line.split(", ")
    try:
        return datetime.strptime(fields[0], "%Y-%m-%d %H:%M:%S:%f").timestamp(), int(fields[4])
    except (ValueError, IndexError):
        return None


def producer_settings(case: Case) -> dict[str, object]:
    """Returns the producer's settings, except the broker's address."""
    settings: dict[str, object] = {"acks": 1, "enable.idempotence": "false"}
    if case.batch > 1:
        memory = case.in_flight * BATCH_BYTES
        return settings | {"batch.size": BATCH_BYTES, "linger.ms": 5, "buffer.memory": memory}
    return settings | {
        "batch.size": 0,
        "linger.ms": 0,
        "max.request.size": REQUEST_BYTES_MAX,
        "max.in.flight.requests.per.connection": case.in_flight,
        # The producer waits for free space; the remainder is smaller than another record.
        "buffer.memory": case.in_flight * RECORD_BYTES_MAX + RECORD_BYTES_MAX - 1,
    }


@contextmanager
def _open_kafka(
    root: Path, cache: Path, warm_up_s: float, on_progress: Callable[[str], None]
) -> Iterator[list[Contestant]]:
    jars = fetch_jars(cache, "kafka-tools", TOOL_ARTIFACTS, has_dependencies=True)
    flags = ["-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-Duser.language=en", *make_home(root / "tools")]
    java = [str(find_java() / "bin" / "java"), *flags, "-cp", os.pathsep.join(map(str, jars))]
    with running_kafka(jars, root / "kafka", partition_count=4) as (address, pid):
        tools = _KafkaTools(java, MeasuredCluster(KAFKA, "", address, {"broker": pid}))
        on_progress("warming up Apache Kafka")
        tools.warm_up(warm_up_s)

        def run(case: Case) -> CaseFigures:
            if case is START:
                with running_kafka(jars, _new_folder(root), partition_count=4) as (_, started):
                    return _read_start(MeasuredCluster(KAFKA, "", "", {"broker": started}), started)
            return tools.read() if case is BACKLOG else tools.send(case)

        yield [Contestant(KAFKA, CASES, run)]


class _KafkaTools:
    """Runs Kafka's own tools on its broker. The first send creates the topic."""

    def __init__(self, java: Sequence[str], cluster: MeasuredCluster) -> None:
        self._java = java
        self._cluster = cluster
        self._rates: dict[Case, float] = {}
        """The expected rate of each case: the tool needs a number of records, not a duration."""
        self._stored = 0

    def warm_up(self, seconds: float) -> None:
        """Runs all kinds of sends, at least one window of each, for `seconds` in total."""
        cases = (BATCHES, *reversed(SENDS))
        windows = max(1, math.ceil(seconds / WINDOW_S / len(cases)))
        for case in cases:
            with closing(self._progress(case, ENDLESS)) as progress:
                for _ in range(windows):
                    window = next(progress, None)
                    if window is None:
                        raise TandemError("the producer ended in its warm-up")
                    self._stored += window.records
                    self._rates[case] = window.per_second * COLD

    def send(self, case: Case) -> CaseFigures:
        """Measures one send case. Raises:  TandemError if the tool fails."""
        for _ in range(ATTEMPTS_MAX):
            before: dict[str, float] = {}
            first = whole = None
            count = int(self._rates[case] * (WINDOW_S + LOAD_S)) + 1
            with closing(self._progress(case, count)) as lines:
                for progress in lines:
                    if progress.percentiles_ms is not None:
                        whole = progress
                    elif first is None:
                        before = processor_of(self._cluster)
                        first = progress
            after = processor_of(self._cluster)
            if whole is None:
                raise TandemError("the producer ended without figures")
            self._stored += whole.records
            if first is not None and whole.seconds - first.seconds >= COUNTED_S_MIN:
                self._rates[case] = whole.per_second
                return reading_of(self._cluster, case, producer_figures(first, whole), before, after)
            self._rates[case] *= 2
        raise TandemError(f"the producer is done before its warm-up, {ATTEMPTS_MAX} times")

    def read(self) -> CaseFigures:
        """Measures the read of the backlog. Raises:  TandemError if the tool fails, or the topic has too few
        messages.
        """
        if self._stored < BACKLOG_RECORDS_MIN:
            self._stored += sum(
                progress.records
                for progress in self._progress(BATCHES, BACKLOG_RECORDS_MIN - self._stored)
                if progress.percentiles_ms is not None
            )
        command = ["org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", self._cluster.master]
        command += ["--topic", topic_of(BATCHES), "--messages", str(self._stored)]
        command += ["--show-detailed-stats", "--reporting-interval", "250"]
        began: tuple[float, int] | None = None
        warm = last = None
        before: dict[str, float] = {}
        after: dict[str, float] = {}
        with closing(self._tool_lines(command, LOAD_S_MAX)) as lines:
            for line in lines:
                progress = parse_consumed(line)
                if progress is None:
                    continue
                began = began or progress
                if warm is None:
                    if progress[0] >= began[0] + CLIENT_WARM_UP_S:
                        warm, before = progress, processor_of(self._cluster)
                    continue
                last, after = progress, processor_of(self._cluster)
                if last[0] >= warm[0] + LOAD_S:
                    break
        if warm is None or last is None or last[0] < warm[0] + COUNTED_S_MIN:
            raise TandemError(f"{self._stored:,} messages are read before the consumer is warm")
        figures: dict[str, Any] = {"count": last[1] - warm[1], "seconds": last[0] - warm[0], "failed": 0}
        figures |= dict.fromkeys(("p50_us", "p99_us", "p999_us"), 0.0)
        return reading_of(self._cluster, BACKLOG, figures, before, after)

    def _progress(self, case: Case, count: int) -> Generator[ProducerProgress, None, None]:
        settings = {"bootstrap.servers": self._cluster.master, **producer_settings(case)}
        command = ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic_of(case)]
        command += ["--num-records", str(count), "--record-size", str(case.body_bytes), "--throughput", "-1"]
        command += ["--producer-props", *(f"{key}={value}" for key, value in settings.items())]
        with closing(self._tool_lines(command, LOAD_S_MAX)) as lines:
            for line in lines:
                progress = parse_progress(line)
                if progress is not None:
                    yield progress
                elif "Exception" in line:
                    raise TandemError(f"a send failed: {line}")

    def _tool_lines(self, command: Sequence[str], seconds_max: float) -> Generator[str, None, None]:
        """Yields the lines of a tool, which ends together with this iterator.

        Raises:  TandemError if it fails, or takes too long.
        """
        with subprocess.Popen(
            [*self._java, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            watchdog = threading.Timer(seconds_max, process.kill)
            watchdog.start()
            line = ""
            try:
                for line in map(str.strip, process.stdout):
                    yield line
                if process.wait():
                    raise TandemError(f"{command[0]} ended with {process.returncode}: {line[:300]}")
            finally:
                watchdog.cancel()
                process.kill()


# The results on the page and the screen.


def render_others(found: Others) -> str:
    """Returns tables in Markdown: the cases, then the servers."""
    lines = [*found.notes]
    if found.readings:
        rounds = max(len(_find_reading(found, reading.case, reading.side)) for reading in found.readings)
        lines += [f"Medians of {rounds} rounds; memory is the most after a case.", ""]
        lines += ["| case | server and load | messages/s | processor us per message | p50 ms | p99 ms |"]
        lines += ["|---|---|--:|--:|--:|--:|"]
        lines += [line for case in CASES if case is not START for line in _case_lines(found, case)]
        lines += ["", "| server | private MiB | resident MiB | seconds to ready |", "|---|--:|--:|--:|"]
        lines += _server_lines(found)
    return "\n".join(lines) + "\n"


def _find_reading(found: Others, case: Case, side: str) -> list[CaseFigures]:
    return [reading for reading in found.readings if reading.case == case and reading.side == side]


def _sides(found: Others) -> list[str]:
    return list(dict.fromkeys(reading.side for reading in found.readings))


def _case_lines(found: Others, case: Case) -> Iterator[str]:
    name = case.name
    for side in sorted(_sides(found), key=_rank):
        readings = _find_reading(found, case, side)
        if not readings:
            continue
        rate = median(reading.per_second for reading in readings)
        spent = median(_broker_us(reading) for reading in readings)
        times = [
            _milliseconds(median(values), is_whole=side == KAFKA) if case is not BACKLOG else "-"
            for values in (
                [reading.p50_us for reading in readings],
                [reading.p99_us for reading in readings],
            )
        ]
        yield f"| {name} | {side} | {rate:,.0f} | {spent:.1f} | {' | '.join(times)} |"
        name = ""


def _rank(side: str) -> int:
    """Returns ours first, then the others by name; the order of measuring has no meaning."""
    return next((rank for rank, known in enumerate((CLIENT, LIGHT, KAFKA)) if side == known), 3)


def _broker_us(reading: CaseFigures) -> float:
    return sum(spent for name, spent in reading.processor_us.items() if name != "name server")


def _milliseconds(us: float, *, is_whole: bool) -> str:
    if is_whole:
        return f"{us / 1000:,.0f}" if us else "<1"
    return f"{us / 1000:,.2f}"


def _server_lines(found: Others) -> Iterator[str]:
    for side in sorted(_sides(found), key=_rank):
        loads = [reading for reading in found.readings if reading.side == side and reading.case != START]
        starts = [reading.p50_us / 1e6 for reading in _find_reading(found, START, side)]
        if side == LIGHT or not loads:
            continue
        most = [
            max(sum(getattr(reading, kind).values()) for reading in loads) / 2**20
            for kind in ("private_bytes", "resident_bytes")
        ]
        ready = f"{median(starts):.2f}" if starts else "-"
        yield f"| {side.partition(',')[0]} | {most[0]:,.0f} | {most[1]:,.0f} | {ready} |"
