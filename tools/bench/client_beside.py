"""Measures clients of message brokers in turns: ours and RocketMQ's Java client on the same broker, the Java
client on RocketMQ's, aiokafka on Kafka, and nats.py on NATS.

Each client is a process of its own. All servers run at the same time, and those that are not measured are
idle. A client or server that is not installed is left out with a note.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench.java.clusters import (
    VERSION,
    JavaTools,
    MeasuredCluster,
    fetch_jars,
    prepare_java,
    running_java,
    running_ours,
)
from bench.java.measure import ASYNC, LOAD_S_MAX, Case, Loads
from bench.kafka.broker import BROKER, BROKER_VERSION, running_kafka
from bench.nats_load import find_nats, find_version, running_nats
from tandemmq.bench.client_load import QUEUE_COUNT, measure_client
from tandemmq.bench.client_timing import CLIENT
from tandemmq.bench.generator import QuickRow
from tandemmq.client import BlockingAdmin
from tandemmq.errors import TandemError

ROOT: Final = Path(__file__).parents[2]
PEERS: Final = ROOT / ".venv-clients" / "bin" / "python"
"""The interpreter that has aiokafka and nats.py; `scripts/setup peers` makes it."""
OURS: Final = "**ours**, TandemMQ"
JAVA_HERE: Final = f"RocketMQ's Java client {VERSION}, TandemMQ"
JAVA_THERE: Final = f"RocketMQ's Java client, RocketMQ {VERSION}"
JAVA_WARM_UP_S: Final = 5.0
JAVA_CASES: Final = {
    "send, 1 in flight": ("send", 1, 1),
    "send, 64 in flight": ("send", 64, 1),
    "send, batched, 256 in flight": ("send", 16, 16),
    "consume, pull": ("read", 1, 1),
    "consume, push": ("push", 1, 1),
    "consume, pop": ("pop", 4, 1),
}
"""The load of Java's client for each case of ours: its kind, the number in flight, and the batch size."""

PAGE: Final = f"""# How fast is the client?

TandemMQ's Python client beside other clients on the same machine: RocketMQ's Java client, and two Python
clients on their own brokers, aiokafka on Apache Kafka and nats.py on NATS JetStream.

`make bench-client` measures them in turns and writes this page. It takes a quarter of an hour and needs a
JDK, Maven, `apt-get install nats-server`, and an otherwise idle machine. A missing client or broker is left
out.
`tandemmq bench client` measures only ours, on a broker that it starts or on yours (`-n HOST:PORT`).

## What is measured?

Bodies of 1 KiB, one broker without a replica, and sends acknowledged before the disk has the message. That
is ASYNC_FLUSH for TandemMQ and RocketMQ, and the default of Kafka (with acks=1, aiokafka's default) and of
NATS (a stream in files). Topics of TandemMQ, RocketMQ and Kafka have {QUEUE_COUNT} queues.

The calls behind the cases, by client:

- **Ours**: `Producer.send` from 1 or 64 tasks; batched, from 256 tasks with `batch_linger_ms=0`.
  `Consumer.poll(1024)` for pull, `PushConsumer` for push, and for pop `PopConsumer` with four receives of up
  to 32 messages at a time, each message acknowledged.
- **RocketMQ's Java client**: asynchronous `send`; batched, 16 batches of 16 in flight.
  `DefaultLitePullConsumer`, `DefaultMQPushConsumer`, and pops like ours.
- **aiokafka**: `send_and_wait`; it always batches, so 256 tasks are the batched case. `getmany` for pull, and
  `async for`, message by message, for push. It lacks pop.
- **nats.py**: `publish` of JetStream, which has no batches. `fetch(1000)` without acknowledgements for pull,
  an ordered consumer with a callback for push, and for pop `fetch(128)`, each message acknowledged. Unlike
  ours and Java's, it does not wait for an answer to an acknowledgement.

How it is measured:

- Messages per processor second are the messages divided by the processor time (user and system) of the
  client's process while they were sent or read. Client and broker share the processors of the machine, so
  messages per second depend on both.
- The other settings are defaults; RocketMQ's Java client has a heap of 512 MiB. All Python clients run on
  asyncio's own event loop and the same Python.
- A consumer reads what the sends have stored, from the first message on.
- A run takes 3 s, and each round runs every case of every client; the order of the clients alternates. A
  first round does not count. RocketMQ's Java client is warmed up for {JAVA_WARM_UP_S:.0f} s before each run.

## Figures
"""


class ClientReading(NamedTuple):
    """The figures of one case of one client in one round; processor time in microseconds per message."""

    client: str
    case: str
    per_second: float
    client_us: float
    broker_us: float


class MeasuredClient(NamedTuple):
    """A client beside its running broker. `measure` runs all of its cases, each for the given seconds."""

    name: str
    measure: Callable[[float], list[ClientReading]]


class Beside(NamedTuple):
    """The readings, and the reasons for what was left out."""

    readings: list[ClientReading]
    notes: list[str]


Opener = Callable[[], AbstractContextManager[MeasuredClient]]
_FAILURES: Final = (TandemError, OSError, ValueError, LookupError, subprocess.SubprocessError)


def measure_clients(
    *,
    rounds: int,
    seconds: float,
    body_bytes: int,
    cache: Path,
    directory: Path | None,
    on_progress: Callable[[str], None],
) -> Beside:
    """Runs all rounds. Raises:  ProcessFailed if our servers do not start."""
    with (
        tempfile.TemporaryDirectory(prefix="tandemmq-bench-", dir=directory) as name,
        running_ours(Path(name) / "ours", ASYNC) as cluster,
    ):
        root = Path(name)
        openers: dict[str, Opener] = {
            OURS: partial(_open_ours, cluster, body_bytes),
            JAVA_HERE: partial(_open_java, root / "load", cache, body_bytes, cluster),
            JAVA_THERE: partial(_open_java, root / "java", cache, body_bytes, None),
            "aiokafka": partial(_open_kafka, root, cache, body_bytes),
            "nats.py": partial(_open_nats, root, body_bytes),
        }
        return run_clients(openers, rounds=rounds, seconds=seconds, on_progress=on_progress)


def run_clients(
    openers: Mapping[str, Opener], *, rounds: int, seconds: float, on_progress: Callable[[str], None]
) -> Beside:
    """Runs each client in each round, in reverse order in every other one, after a round that does not count.
    A client that fails is noted and not tried again; its readings are kept.
    """
    found = Beside([], [])

    def leave_out(name: str, error: Exception, since: str = "") -> None:
        found.notes.append(f"{name} is left out{since}: {error or type(error).__name__}")
        on_progress(found.notes[-1])

    with ExitStack() as stack:
        clients: list[MeasuredClient] = []
        for name, opener in openers.items():
            on_progress(f"starting {name}")
            try:
                clients.append(stack.enter_context(opener()))
            except _FAILURES as error:
                leave_out(name, error)
        for number in range(rounds + 1):
            for client in clients[:: -1 if number % 2 else 1]:
                on_progress(f"round {number} of {rounds}: {client.name}")
                try:
                    readings = client.measure(seconds)
                except _FAILURES as error:
                    leave_out(client.name, error, f" from round {number} on")
                    clients.remove(client)
                else:
                    found.readings.extend(readings if number else ())
    return found


def _case_name(case: str, in_flight: int) -> str:
    return f"{case}, {in_flight} in flight" if case.startswith("send") else case


@contextmanager
def _open_ours(cluster: MeasuredCluster, body_bytes: int) -> Iterator[MeasuredClient]:
    def measure(seconds: float) -> list[ClientReading]:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            pids = {"broker": cluster.pids["master"]}
            rows = process.submit(_load_ours, cluster.name_server, body_bytes, seconds, pids).result()
        return [
            ClientReading(
                OURS,
                _case_name(row.setting, row.in_flight),
                row.result.per_second,
                row.processor_us[CLIENT],
                row.processor_us["broker"],
            )
            for row in rows
        ]

    yield MeasuredClient(OURS, measure)


def _load_ours(namesrv: str, body_bytes: int, seconds: float, pids: dict[str, int]) -> list[QuickRow]:
    async def collect() -> list[QuickRow]:
        loads = measure_client(namesrv, body_bytes=body_bytes, seconds=seconds, broker_pids=pids)
        return [row async for row in loads]

    return asyncio.run(collect())


@contextmanager
def _open_java(
    home: Path, cache: Path, body_bytes: int, ours: MeasuredCluster | None
) -> Iterator[MeasuredClient]:
    """Opens RocketMQ's client on our cluster, or on a cluster of RocketMQ's that this function runs."""
    tools = prepare_java(cache)
    with ExitStack() as stack:
        cluster = ours or stack.enter_context(running_java(home / "cluster", ASYNC, tools))
        name = JAVA_HERE if ours else JAVA_THERE
        yield MeasuredClient(name, partial(_load_java, name, cluster, tools, home, body_bytes))


def _load_java(
    name: str, cluster: MeasuredCluster, tools: JavaTools, home: Path, body_bytes: int, seconds: float
) -> list[ClientReading]:
    readings = []
    loads, topic = Loads(tools, home, seconds), f"BenchJavaClient-{time.time_ns()}"
    with BlockingAdmin(cluster.name_server) as admin:
        admin.create_topic(topic, queue_count=QUEUE_COUNT)
        try:
            for case_name, (kind, in_flight, batch) in JAVA_CASES.items():
                case = Case(setting=ASYNC, kind=kind, body_bytes=body_bytes, in_flight=in_flight, batch=batch)
                one = loads.run(cluster, case, topic=topic, warm_up_s=JAVA_WARM_UP_S)
                broker_us = one.processor_us["master"]
                readings.append(ClientReading(name, case_name, one.per_second, one.client_us, broker_us))
        finally:
            admin.delete_topic(topic)
    return readings


@contextmanager
def _open_kafka(root: Path, cache: Path, body_bytes: int) -> Iterator[MeasuredClient]:
    name = f"aiokafka {peer_version('aiokafka')}, Apache Kafka {BROKER_VERSION}"
    jars = fetch_jars(cache, "kafka-broker", BROKER, has_dependencies=True)
    with running_kafka(jars, root / "kafka", partition_count=QUEUE_COUNT) as (address, pid):
        yield MeasuredClient(name, partial(_load_peer, name, "kafka", address, pid, body_bytes))


@contextmanager
def _open_nats(root: Path, body_bytes: int) -> Iterator[MeasuredClient]:
    program = find_nats()
    name = f"nats.py {peer_version('nats-py')}, NATS {find_version(program)}"
    with running_nats(root / "nats", program) as cluster:
        pid = cluster.pids["broker"]
        yield MeasuredClient(name, partial(_load_peer, name, "nats", cluster.master, pid, body_bytes))


def peer_version(package: str) -> str:
    """Returns the version of a client in `peers.txt`.

    Raises:  TandemError if the environment of these clients is missing.
    """
    if not PEERS.exists():
        raise TandemError(f"{PEERS.relative_to(ROOT)} is missing: run scripts/setup peers")
    for line in Path(__file__).with_name("peers.txt").read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("==")
        if name == package:
            return version
    raise LookupError(f"peers.txt lacks {package}")


def _load_peer(
    name: str, client: str, address: str, broker_pid: int, body_bytes: int, seconds: float
) -> list[ClientReading]:
    command = [str(PEERS), "-m", "bench.peers", client, address, *map(str, (broker_pid, seconds, body_bytes))]
    seconds_max = len(JAVA_CASES) * seconds + LOAD_S_MAX
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT / "tools")))},
        )
    except subprocess.TimeoutExpired:
        raise TandemError(f"it has not ended after {seconds_max:.0f} s") from None
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise TandemError(f"it ended with {done.returncode}: {reason}")
    return parse_peer(name, done.stdout)


def parse_peer(name: str, printed: str) -> list[ClientReading]:
    """Returns the readings that `bench.peers` printed."""
    readings = []
    for line in printed.splitlines():
        row = json.loads(line)
        spent = row["processor_us"]
        case = _case_name(row["case"], row["in_flight"])
        readings.append(ClientReading(name, case, row["per_second"], spent[CLIENT], spent["broker"]))
    return readings


def render_clients(found: Beside) -> list[str]:
    """Returns the notes and a table in Markdown: medians of all rounds, by case and client."""
    lines = ["", *(f"- {note}" for note in found.notes)] if found.notes else []
    lines += ["", "| case | client and broker | messages/s | messages per processor second of the client |"]
    lines[-1] += " us per message: client | broker |"
    lines += ["|---|---|--:|--:|--:|--:|"]
    grouped: dict[tuple[str, str], list[ClientReading]] = {}
    clients = list(dict.fromkeys(reading.client for reading in found.readings))
    for reading in found.readings:
        grouped.setdefault((reading.case, reading.client), []).append(reading)
    for case in JAVA_CASES:
        shown = case
        for client in sorted(clients, key=_rank):
            readings = grouped.get((case, client))
            if readings:
                lines.append(f"| {shown} | {client} | {_cells(readings)} |")
                shown = ""
    return lines


def _rank(client: str) -> tuple[int, str]:
    """Returns ours first, then RocketMQ's, then the others by name; the order of measuring has no meaning."""
    known = (OURS, JAVA_HERE, JAVA_THERE)
    return (known.index(client) if client in known else len(known), client)


def _cells(readings: Sequence[ClientReading]) -> str:
    rate = median(reading.per_second for reading in readings)
    client_us = median(reading.client_us for reading in readings)
    broker_us = median(reading.broker_us for reading in readings)
    return f"{rate:,.0f} | {1e6 / client_us:,.0f} | {client_us:.1f} | {broker_us:.1f}"


def render_page(found: Beside, machine: str, rounds: int) -> str:
    """Returns the whole page. `machine`: a sentence that describes it."""
    head = f"{machine} Medians of {rounds} round{'s' * (rounds != 1)}."
    return "\n".join([PAGE, head, *render_clients(found), ""])
