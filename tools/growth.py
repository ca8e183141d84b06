"""`python -m growth`: the cost of one operation of a broker or a name server as other numbers grow.

Both run in this process over in-memory connections, on a real disk. The figures are the processor time of the
event loop's thread per operation, the minimum of three measurements, and the private memory of the process. A
curve therefore shows how the work grows, on a busy machine too. For throughput and latency of real processes,
see `tandemmq bench`. Two curves compare our name server with Java's: for these both are processes with real
sockets.

Writes the second part of `docs/costs.md` and its picture with `--out docs`. With `--only text` it measures
the curves whose title has the text, and keeps the page's other curves.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.java.clusters import (
    JAVA,
    OURS,
    MeasuredCluster,
    prepare_java,
    running_java_name_server,
    running_our_name_server,
)
from bench.processes import describe_machine, private_bytes
from costs import PULLED, Asker, Connect, running_broker, send_header
from sim.memory import MemoryNetwork
from tandemmq.bench.generator import run_load
from tandemmq.bench.process_stats import processor_seconds
from tandemmq.errors import TandemError
from tandemmq.nameserver.nameserver import NameServer
from tandemmq.nameserver.options import NameServerOptions
from tandemmq.protocol.bodies.register import RegisterBrokerBody, body_crc32, encode_register_broker_body
from tandemmq.protocol.bodies.tables import TopicConfig, TopicConfigTable
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import encode_frame
from tandemmq.protocol.header_codec import Header
from tandemmq.protocol.properties import TIMER_DELIVER_MS, encode_properties
from tandemmq.protocol.requests.admin import CreateTopicRequest
from tandemmq.protocol.requests.consume import PullRequest, UpdateOffsetRequest
from tandemmq.protocol.requests.route import RegisterBrokerRequest, RouteRequest
from tandemmq.runtime.disk import RealDisk
from tandemmq.runtime.machine import LoopClock
from tandemmq.units import GIB, KIB, MIB

SAMPLES: Final = 3
IN_FLIGHT: Final = 64
OPERATIONS: Final = 3200
BODY: Final = b"x" * KIB
QUEUES_PER_TOPIC: Final = 50_000
TOPICS_PER_BROKER: Final = 50
COLD_MESSAGES: Final = 256 * KIB
SUSPEND, SUBSCRIPTION = 0x2, 0x4
"""Bits of a pull's sysFlag: the broker may hold the pull; the pull contains its subscription."""
DAY_MS: Final = 86_400_000
ROUTES_S: Final = 2.0
WARM_UP_S: Final = 12.0
"""The warm-up in processor seconds of the process, so that it is equally long on a busy machine."""
EXPIRY_S: Final = 0.3
DEATHS: Final = 5
JAVA_CACHE: Final = Path(".interop-cache")

JAVA_SUFFIX: Final = ", Java"
"""The suffix of the names of Java's figures."""
MEMORY: Final = "private MiB"
PLOTS_PER_ROW: Final = 3
HEADING: Final = "## How do the costs grow?"
"""The heading of the part that this program writes. The text before it is written by hand."""
INTRODUCTION: Final = """
The cost of one operation while the number of everything else grows; [performance](performance.md) sums it up.
`make growth` measures all curves and writes this part of the page (a quarter of an hour, 25 GB of disk).
`make growth ARGS="--only topics"` prints the curves with this text in their title, and
`ARGS="--only topics --out docs"` also writes them to this page.

A broker and a name server run in the measuring process, over connections in memory and on a real
disk. A figure in us is the processor time of the event loop's thread per operation, without the kernel's
work for sockets: the minimum of three measurements. Memory is that of the whole process. Both axes of the
plots are logarithmic.

The last two curves compare our name server with Java's. Each is a process of its own with real
connections. Their processor time is that of the whole process with the kernel's work for sockets, and so
more than in the curves above. They need a JDK and Maven; without them the page has only ours.
"""

Figures = dict[str, float]
Points = AsyncIterator[tuple[int, Figures]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The change of figures with the number or size of something. `says`: the conclusion for the reader.

    `has_java`: True if Java's figures are measured too, if Java and Maven exist.
    """

    title: str
    axis: str
    sizes: Sequence[int]
    measure: Callable[[Sequence[int]], Points]
    says: str
    has_java: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """The figures at one size."""

    size: int
    figures: Figures


@dataclass(frozen=True, slots=True)
class Measured:
    """A curve with its points. `machine`: machine and date of the measurement, from `describe_machine`."""

    curve: Curve
    points: Sequence[Point]
    machine: str


def _request(code: RequestCode, header: Header, body: bytes = b"") -> bytes:
    return encode_frame(Command.request(code, header, body=body))


def _send(topic: str, body: bytes = BODY, *, queue: int = 0, number: int = 0, due_ms: int = 0) -> bytes:
    properties = {"UNIQ_KEY": f"7F0000010001{number:020X}", "WAIT": "true", "TAGS": "TagA"}
    if due_ms:
        properties[TIMER_DELIVER_MS] = str(due_ms)
    header = send_header(topic, queue_id=queue, properties=encode_properties(properties))
    return _request(RequestCode.SEND_MESSAGE_V2, header, body)


def _pull(topic: str, *, offset: int = 0, group: str = "growth", held_ms: int = 0) -> bytes:
    header = PullRequest(
        consumer_group=group,
        topic=topic,
        queue_id=0,
        queue_offset=offset,
        count_max=PULLED,
        sys_flag=SUBSCRIPTION | (SUSPEND if held_ms else 0),
        committed_offset=0,
        suspend_timeout_ms=held_ms,
        subscription_version=0,
        subscription="*",
        expression_type="TAG",
    )
    return _request(RequestCode.PULL_MESSAGE, header)


def _topic(name: str, queues: int = 1) -> bytes:
    header = CreateTopicRequest(
        topic=name,
        default_topic="TBW102",
        read_queue_count=queues,
        write_queue_count=queues,
        permission=6,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
    )
    return _request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


# Measuring


async def _exchange_all(asker: Asker, frames: Iterable[bytes], in_flight: int = IN_FLIGHT) -> int:
    """Sends all frames, `in_flight` at a time, and returns the bytes of their answers."""
    together: list[bytes] = []
    size = 0
    for frame in frames:
        together.append(frame)
        if len(together) == in_flight:
            size += await asker.exchange(b"".join(together), in_flight)
            together.clear()
    if together:
        size += await asker.exchange(b"".join(together), len(together))
    return size


async def _microseconds(
    asker: Asker, frames: Sequence[bytes], in_flight: int = IN_FLIGHT, sample_count: int = SAMPLES
) -> float:
    """Returns the processor time of the loop's thread per frame, with the same frames in each measurement."""
    joined = [b"".join(frames[at : at + in_flight]) for at in range(0, len(frames), in_flight)]
    counts = [len(frames[at : at + in_flight]) for at in range(0, len(frames), in_flight)]
    samples = []
    gc.collect()
    for _ in range(sample_count):
        begun_at = time.thread_time()
        for frame, count in zip(joined, counts, strict=True):
            await asker.exchange(frame, count)
        samples.append(time.thread_time() - begun_at)
    return min(samples) / len(frames) * 1e6


def _private_mib() -> float:
    gc.collect()
    return private_bytes(os.getpid()) / MIB


def _spread(count: int, wanted: int = OPERATIONS) -> Iterator[int]:
    """Yields `wanted` numbers below `count`, spread over the whole range."""
    step = max(1, count // wanted)
    return (number * step % count for number in range(wanted))


@asynccontextmanager
async def _broker() -> AsyncIterator[Connect]:
    with tempfile.TemporaryDirectory(prefix="tandemmq-growth-") as directory:
        async with running_broker(Path(directory)) as connect:
            yield connect


# The broker


async def by_message_size(sizes: Sequence[int]) -> Points:
    """Varies the body size, with one topic per size."""
    async with _broker() as connect:
        asker = await connect()
        for size in sizes:
            topic = f"Size{size}"
            count = max(8, min(OPERATIONS, 256 * MIB // size))
            in_flight = max(1, min(IN_FLIGHT, 4 * MIB // size))
            frames = [_send(topic, b"x" * size, number=number) for number in range(count)]
            send = await _microseconds(asker, frames, in_flight)
            pulled = await asker.exchange(_pull(topic), 1) // size
            pull = await _microseconds(asker, [_pull(topic)] * max(4, count // PULLED), 1) / pulled
            yield size, {"send, us": send, "message of a pull, us": pull}


async def by_queues(sizes: Sequence[int]) -> Points:
    """Varies the number of queues; every queue has messages, and sends alternate between them."""
    for size in sizes:
        async with _broker() as connect:
            asker = await connect()
            topics = [f"Queues{number}" for number in range(-(-size // QUEUES_PER_TOPIC))]
            each = min(size, QUEUES_PER_TOPIC)
            await _exchange_all(asker, [_topic(name, each) for name in topics], 1)
            await _exchange_all(asker, (_send(name, queue=queue) for name in topics for queue in range(each)))
            numbers = list(_spread(size))
            frames = [_send(topics[n // each], queue=n % each, number=n) for n in numbers]
            send = await _microseconds(asker, frames)
            pull = await _microseconds(asker, [_pull(name) for name in topics] * 200, 1)
            yield size, {"send, us": send, "pull, us": pull, MEMORY: _private_mib()}


async def by_topics(sizes: Sequence[int]) -> Points:
    """Varies the number of topics of one queue each, created one by one."""
    async with _broker() as connect:
        asker = await connect()
        made = 0
        for size in sizes:
            await _exchange_all(asker, (_topic(f"Topic{number}") for number in range(made, size)))
            made = size
            samples = []
            for look in range(SAMPLES):
                names = [f"New{size}-{look}-{number}" for number in range(8)]
                samples.append(
                    await _microseconds(asker, [_topic(name) for name in names], 1, sample_count=1)
                )
            send = await _microseconds(asker, [_send(f"Topic{number}") for number in _spread(size)])
            yield size, {"send, us": send, "create a topic, us": min(samples), MEMORY: _private_mib()}


async def by_connections(sizes: Sequence[int]) -> Points:
    """Varies the number of connections; one send is in flight, on each connection in turn."""
    async with _broker() as connect:
        askers: list[Asker] = []
        frame = _send("Connections")
        for size in sizes:
            askers += [await connect() for _ in range(size - len(askers))]
            samples = []
            for _ in range(SAMPLES):
                begun_at = time.thread_time()
                for number in _spread(size, OPERATIONS):
                    await askers[number].exchange(frame, 1)
                samples.append(time.thread_time() - begun_at)
            send = min(samples) / OPERATIONS * 1e6
            yield size, {"send, us": send, MEMORY: _private_mib()}


async def by_backlog(sizes: Sequence[int]) -> Points:
    """Varies the size of the log, filled by unread messages of 64 KiB; the measured messages have 1 KiB."""
    async with _broker() as connect:
        asker = await connect()
        body = b"x" * (64 * KIB)
        written = 0
        await _exchange_all(asker, [_send("Oldest", number=number) for number in range(OPERATIONS)])
        for size in sizes:
            count = (size * GIB - written) // len(body)
            await _exchange_all(asker, (_send("Backlog", body) for _ in range(count)))
            written += count * len(body)
            frames = [_send("Newest", number=number) for number in range(OPERATIONS)]
            send = await _microseconds(asker, frames)
            oldest = await _microseconds(asker, [_pull("Oldest")] * 200, 1)
            newest = await _microseconds(asker, [_pull("Newest")] * 200, 1)
            figures = {"send, us": send, "pull of the oldest, us": oldest, "pull of the newest, us": newest}
            yield size, figures | {MEMORY: _private_mib()}


async def by_held_pulls(sizes: Sequence[int]) -> Points:
    """Varies the number of held pulls, a hundred per topic; the measured sends go to another topic."""
    async with _broker() as connect:
        asker, holder = await connect(), await connect()
        held = 0
        for size in sizes:
            for number in range(held, size):
                if number % 100 == 0:
                    await asker.exchange(_send(f"Held{number // 100}"), 1)
                frame = _pull(f"Held{number // 100}", offset=1, group=f"group{number % 100}", held_ms=120_000)
                holder.send(frame)
            held = size
            await asyncio.sleep(0.1)
            send = await _microseconds(asker, [_send("Else", number=number) for number in range(OPERATIONS)])
            yield size, {"send, us": send, MEMORY: _private_mib()}


async def by_groups(sizes: Sequence[int]) -> Points:
    """Varies the number of groups with a committed offset in one queue."""
    async with _broker() as connect:
        asker = await connect()
        await asker.exchange(_send("Groups"), 1)

        def commit(number: int) -> bytes:
            header = UpdateOffsetRequest(
                consumer_group=f"group{number}", topic="Groups", queue_id=0, committed_offset=1
            )
            return _request(RequestCode.UPDATE_CONSUMER_OFFSET, header)

        known = 0
        for size in sizes:
            await _exchange_all(asker, (commit(number) for number in range(known, size)))
            known = size
            us = await _microseconds(asker, [commit(number) for number in _spread(size)])
            pull = await _microseconds(asker, [_pull("Groups", group=f"group{n}") for n in _spread(size)])
            yield size, {"commit, us": us, "pull of one message, us": pull, MEMORY: _private_mib()}


async def by_delayed(sizes: Sequence[int]) -> Points:
    """Varies the number of delayed messages of 64 bytes, due within the second day from now."""
    async with _broker() as connect:
        asker = await connect()
        due_ms, waiting = int(time.time() * 1000) + DAY_MS, 0
        body = b"x" * 64

        def delayed(number: int) -> bytes:
            return _send("Delayed", body, number=number, due_ms=due_ms + number * 7919 % DAY_MS)

        for size in sizes:
            await _exchange_all(asker, (delayed(number) for number in range(waiting, size)))
            waiting = size
            us = await _microseconds(asker, [delayed(number) for number in range(OPERATIONS)])
            send = await _microseconds(asker, [_send("Plain", number=number) for number in range(OPERATIONS)])
            yield size, {"delayed send, us": us, "plain send, us": send, MEMORY: _private_mib()}


async def by_cold_readers(sizes: Sequence[int]) -> Points:
    """Varies the number of cold readers, each always with a pull of old messages in flight; the tail is read
    beside them.
    """
    async with _broker() as connect:
        asker = await connect()
        await _exchange_all(asker, (_send("Cold", number=number) for number in range(COLD_MESSAGES)))
        readers: list[asyncio.Task[None]] = []

        async def read_cold(number: int) -> None:
            own, at = await connect(), number * 4099 % COLD_MESSAGES
            while True:
                await own.exchange(_pull("Cold", offset=at), 1)
                at = (at + PULLED) % (COLD_MESSAGES - PULLED)

        for size in sizes:
            readers += [asyncio.create_task(read_cold(number)) for number in range(len(readers), size)]
            await asyncio.sleep(0.1)
            latencies = []
            for number in range(OPERATIONS // 8):
                begun_at = time.perf_counter()
                await asker.exchange(_send("Tail", number=number), 1)
                await asker.exchange(_pull("Tail", offset=number), 1)
                latencies.append((time.perf_counter() - begun_at) * 1e6)
            latencies.sort()
            yield (
                size,
                {
                    "p50 of send and pull, us": latencies[len(latencies) // 2],
                    "p99, us": latencies[len(latencies) * 99 // 100],
                },
            )
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


# The name server


async def by_brokers(sizes: Sequence[int]) -> Points:
    """Varies the number of brokers, each with a connection and `TOPICS_PER_BROKER` topics of its own."""
    network = MemoryNetwork(LoopClock())
    with tempfile.TemporaryDirectory(prefix="tandemmq-growth-") as directory:
        root = Path(directory)
        server = NameServer(
            NameServerOptions(
                listen_host="127.0.0.1",
                listen_port=0,
                kv_config_path=root / "kv.json",
                config_store_path=root / "kept",
            ),
            network=network,
            disk=RealDisk(),
            clock=LoopClock(),
        )
        _, port = await server.start()
        try:
            brokers: list[Asker] = []
            for size in sizes:
                for number in range(len(brokers), size):
                    asker = Asker()
                    await network.connect("127.0.0.1", port, lambda asker=asker: asker, 10.0)
                    await asker.exchange(_registration(number), 1)
                    brokers.append(asker)
                yield size, await _name_server_figures(brokers)
        finally:
            await server.stop()


async def _name_server_figures(brokers: list[Asker]) -> Figures:
    size = len(brokers)
    numbers = list(_spread(size, 300))
    registrations = [_registration(number) for number in numbers]
    samples = []
    for _ in range(SAMPLES):
        begun_at = time.thread_time()
        for number, frame in zip(numbers, registrations, strict=True):
            await brokers[number].exchange(frame, 1)
        samples.append(time.thread_time() - begun_at)
    register = min(samples) / len(numbers) * 1e6
    routes = [
        _route_query(_topic_of(number, at % TOPICS_PER_BROKER))
        for at, number in enumerate(_spread(size, 3200))
    ]
    route = await _microseconds(brokers[0], routes)
    memory = _private_mib()
    begun_at = time.thread_time()
    brokers[-1].end()
    await asyncio.sleep(0.05)
    forget = (time.thread_time() - begun_at) * 1e6
    del brokers[-1]
    return {
        "registration, us": register,
        "route query, us": route,
        "forget a broker, us": forget,
        MEMORY: memory,
    }


@dataclass(slots=True)
class ComparedNameServer:
    """One side: its process, and the connections of its brokers, which are numbered by position."""

    process: MeasuredCluster
    brokers: list[Asker]
    asker: Asker

    async def connect(self) -> Asker:
        host, port = self.process.name_server.split(":")
        _, asker = await asyncio.get_running_loop().create_connection(Asker, host, int(port))
        return asker

    async def add_broker(self) -> None:
        self.brokers.append(await self.connect())
        await self.brokers[-1].exchange(_registration(len(self.brokers) - 1), 1)

    def spent_s(self) -> float:
        return processor_seconds(self.process.pids["name server"])

    async def register(self) -> Figures:
        """Measures consecutive registrations, each over the connection of its broker."""
        numbers = list(_spread(len(self.brokers), max(8, OPERATIONS // 4)))
        registrations = [_registration(number) for number in numbers]
        samples = []
        for _ in range(SAMPLES):
            begun_s = self.spent_s()
            for number, frame in zip(numbers, registrations, strict=True):
                await self.brokers[number].exchange(frame, 1)
            samples.append(self.spent_s() - begun_s)
        memory = private_bytes(self.process.pids["name server"]) / MIB
        return {"registration, us": min(samples) / len(numbers) * 1e6, MEMORY: memory}

    async def route(self) -> Figures:
        """Measures route queries for topics of all brokers over one connection, and then the deaths of
        brokers, one by one.
        """
        frames = [
            _route_query(_topic_of(number, at % TOPICS_PER_BROKER))
            for at, number in enumerate(_spread(len(self.brokers)))
        ]
        rates, costs = [], []
        for _ in range(SAMPLES):
            begun_s = self.spent_s()
            load = run_load(
                self.process.name_server, frames, in_flight=IN_FLIGHT, seconds_max=ROUTES_S / SAMPLES
            )
            if load.failed:
                raise RuntimeError(f"{self.process.side} knows no route, {load.failed} times")
            costs.append((self.spent_s() - begun_s) / load.count * 1e6)
            rates.append(load.count / load.seconds)
        deaths = [await self.remove_broker() for _ in range(DEATHS)]
        return {
            "route queries/s": max(rates),
            "route query, us": min(costs),
            "broker forgotten after, us": min(after for after, _ in deaths),
            "forget a broker, us": min(spent for _, spent in deaths),
        }

    async def remove_broker(self) -> tuple[float, float]:
        """Returns the microseconds until the last broker's route is gone, and the processor time for that.

        The broker dies twice, because querying its route takes processor time, too.
        """
        number = len(self.brokers) - 1
        begun_s = self.spent_s()
        self.brokers.pop().end()
        await asyncio.sleep(EXPIRY_S)
        spent_s = self.spent_s() - begun_s
        await self.add_broker()
        begun_at = time.perf_counter()
        self.brokers.pop().end()
        while await self.has_route(_topic_of(number, 0)):
            pass
        after_s = time.perf_counter() - begun_at
        await self.add_broker()
        return after_s * 1e6, spent_s * 1e6

    async def has_route(self, topic: str) -> bool:
        try:
            await self.asker.exchange(_route_query(topic), 1)
        except RuntimeError:
            return False
        return True

    async def warm_up(self) -> None:
        """Runs all measurements until Java's compiler has had enough time."""
        enough_s = self.spent_s() + WARM_UP_S
        while self.spent_s() < enough_s:
            await self.register()
            await self.route()


async def by_compared_brokers(
    sizes: Sequence[int], measure: Callable[[ComparedNameServer], Awaitable[Figures]]
) -> Points:
    """Runs each side as a process; both have the same brokers, with connections over the loopback."""
    async with AsyncExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandemmq-growth-")))
        processes = [stack.enter_context(running_our_name_server(root / OURS))]
        try:
            tools = prepare_java(JAVA_CACHE.absolute())
        except TandemError as error:
            Console().print(f"Ours alone: {error}")
        else:
            processes.append(stack.enter_context(running_java_name_server(root / JAVA, tools)))
        sides = [ComparedNameServer(process, [], Asker()) for process in processes]
        for side in sides:
            side.asker = await side.connect()
            await side.add_broker()
            await side.warm_up()
        for size in sizes:
            figures: Figures = {}
            for side in sides:
                while len(side.brokers) < size:
                    await side.add_broker()
                ending = JAVA_SUFFIX if side.process.side == JAVA else ""
                figures |= {f"{name}{ending}": figure for name, figure in (await measure(side)).items()}
            yield size, figures
        for side in sides:
            for asker in (side.asker, *side.brokers):
                asker.end()


def _route_query(topic: str) -> bytes:
    return _request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic))


def _topic_of(broker: int, number: int) -> str:
    return f"Topic{broker}-{number}"


def _registration(number: int) -> bytes:
    names = [_topic_of(number, at) for at in range(TOPICS_PER_BROKER)]
    topics = {name: TopicConfig(name=name, read_queue_count=8, write_queue_count=8) for name in names}
    body = encode_register_broker_body(RegisterBrokerBody(topics=TopicConfigTable(topics=topics)))
    host = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    header = RegisterBrokerRequest(
        broker_name=f"broker-{number}",
        broker_address=f"{host}:10911",
        cluster_name="growth",
        ha_address=f"{host}:10912",
        broker_id=0,
        body_crc=body_crc32(body),
    )
    return _request(RequestCode.REGISTER_BROKER, header, body)


CURVES: Final = (
    Curve(
        title="size of a message",
        axis="bytes of the body",
        sizes=(64, KIB, 16 * KIB, 256 * KIB, MIB, 4 * MIB),
        measure=by_message_size,
        says=(
            "Constant up to some KiB, where the header dominates; then linear, because checksums and "
            "copies of the bytes dominate."
        ),
    ),
    Curve(
        title="queues",
        axis="queues",
        sizes=(1, 10, 100, 1_000, 10_000, 100_000),
        measure=by_queues,
        says=(
            "Constant up to 10,000. With 100,000 queues that all have new entries, the same thread also "
            "opens and writes their files."
        ),
    ),
    Curve(
        title="topics",
        axis="topics",
        sizes=(1, 100, 1_000, 10_000, 50_000),
        measure=by_topics,
        says=(
            "A send is constant. Creating a topic is linear, because its answer waits until the table of all "
            "topics is written, as in RocketMQ; topics that are created together share a write."
        ),
    ),
    Curve(
        title="connections",
        axis="connections",
        sizes=(1, 10, 100, 1_000, 5_000),
        measure=by_connections,
        says="Constant: an idle connection costs some KiB.",
    ),
    Curve(
        title="backlog",
        axis="GiB",
        sizes=(0, 1, 5, 10, 20),
        measure=by_backlog,
        says="Constant: a pull finds its entries by their offset.",
    ),
    Curve(
        title="held pulls",
        axis="held pulls",
        sizes=(1, 100, 1_000, 10_000),
        measure=by_held_pulls,
        says="Constant: a send looks up held pulls of its own queue only.",
    ),
    Curve(
        title="groups",
        axis="groups",
        sizes=(1, 100, 1_000, 10_000, 50_000),
        measure=by_groups,
        says=(
            "Constant: progress is one entry in a table, which is written every five seconds off the "
            "path of requests."
        ),
    ),
    Curve(
        title="delayed messages",
        axis="messages that wait",
        sizes=(1, 10_000, 100_000, 1_000_000, 5_000_000),
        measure=by_delayed,
        says="Constant: delayed messages are on disk, and memory has only the nearest.",
    ),
    Curve(
        title="cold readers",
        axis="cold readers",
        sizes=(0, 1, 4, 16, 64),
        measure=by_cold_readers,
        says=(
            "The loop serves each reader in turn, so the latency is linear in the number of busy readers; "
            "each reader gets the same share."
        ),
    ),
    Curve(
        title="brokers of a name server",
        axis="brokers",
        sizes=(1, 10, 100, 1_000),
        measure=by_brokers,
        says=(
            "A registration and a route are nearly constant. When a connection ends, the name server forgets "
            "the topics of that broker only."
        ),
    ),
    Curve(
        title="registrations, ours and Java's",
        axis="brokers",
        sizes=(1, 10, 100, 1_000),
        measure=partial(by_compared_brokers, measure=ComparedNameServer.register),
        says=(
            "Each broker registers its 50 topics again, as brokers do every 30 s: nearly constant on both "
            "sides. Java's memory is the part of its heap of 1 GiB that it has touched."
        ),
        has_java=True,
    ),
    Curve(
        title="routes and dead brokers, ours and Java's",
        axis="brokers",
        sizes=(1, 10, 100, 1_000),
        measure=partial(by_compared_brokers, measure=ComparedNameServer.route),
        says=(
            "A route is constant. Ours answers on one thread and Java on several, so Java answers more where "
            "processors are free. Ours knows the topics of each broker and forgets only those; Java scans "
            "all topics, which is linear. The time to forget is measured over 0.3 s, so it includes the work "
            "of an idle process, in Java a millisecond."
        ),
        has_java=True,
    ),
)


def render_part(found: Sequence[Measured]) -> str:
    """Returns the part of the page in Markdown: a table and a sentence for each curve.

    The introduction describes the machine of the first curve; a curve measured elsewhere or on another day
    describes its own.
    """
    lines = [HEADING, INTRODUCTION, found[0].machine, "", "![all curves](images/growth.png)"]
    for one in found:
        curve, names = one.curve, list(one.points[0].figures)
        lines += ["", f"### {_heading(curve)}", "", curve.says, ""]
        if one.machine != found[0].machine:
            lines += [one.machine, ""]
        if curve.has_java and not any(name.endswith(JAVA_SUFFIX) for name in names):
            lines += ["Java's was not measured: there was no JDK or Maven.", ""]
        lines += [f"| {curve.axis} | {' | '.join(names)} |", "|--:" * (len(names) + 1) + "|"]
        lines += [
            f"| {point.size:,} | {' | '.join(f'{point.figures[name]:,.1f}' for name in names)} |"
            for point in one.points
        ]
    return "\n".join(lines) + "\n"


def _heading(curve: Curve) -> str:
    return curve.title[0].upper() + curve.title[1:]


def read_page(text: str) -> tuple[str, dict[str, Measured]]:
    """Returns what a page has before `HEADING`, and the curves by title: the inverse of `render_part` as far
    as the page shows them.
    """
    before, heading, part = text.partition(HEADING)
    if not heading:
        raise ValueError(f"the page has no heading {HEADING!r}")
    head, *sections = part.split("\n### ")
    (of_first,) = _MACHINE.findall(head)
    found = {}
    for curve in CURVES:
        for section in sections:
            if not section.startswith(f"{_heading(curve)}\n"):
                continue
            rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
            names = rows[0][1:]
            values = [[float(cell.replace(",", "")) for cell in row] for row in rows[1:]]
            points = [Point(int(size), dict(zip(names, row, strict=True))) for size, *row in values]
            found[curve.title] = Measured(curve, points, next(iter(_MACHINE.findall(section)), of_first))
    return before, found


_MACHINE: Final = re.compile(r"^\d{4}-\d\d-\d\d: .*$", re.MULTILINE)


def draw(found: Sequence[Measured], path: Path) -> None:
    """Draws a plot for each curve with logarithmic axes: constant costs are level, and linear ones rise with
    slope one. Java's figures have the same colours as ours, dotted.
    """
    from matplotlib.figure import Figure as Picture

    rows = -(-len(found) // PLOTS_PER_ROW)
    picture = Picture(figsize=(5 * PLOTS_PER_ROW, 3.4 * rows), layout="constrained")
    every = picture.subplots(rows, PLOTS_PER_ROW, squeeze=False)
    for axes in every.flat[len(found) :]:
        axes.set_visible(False)
    for axes, one in zip(every.flat, found, strict=False):
        curve, points = one.curve, one.points
        sizes = [point.size for point in points]
        colours: dict[str, str] = {}
        for name in points[0].figures:
            ours = name.removesuffix(JAVA_SUFFIX)
            colour = colours.setdefault(ours, f"C{len(colours)}")
            style = ":" if name != ours else "--" if name == MEMORY else "-"
            figures = [point.figures[name] for point in points]
            label = name if name == ours else None
            axes.plot(sizes, figures, style, color=colour, marker="o", ms=3, label=label)
        axes.set_xscale("symlog" if sizes[0] == 0 else "log")
        axes.set_yscale("log")
        axes.set_title(curve.title, fontsize=10)
        axes.set_xlabel(curve.axis, fontsize=8)
        axes.tick_params(labelsize=7)
        has_java = any(name.endswith(JAVA_SUFFIX) for name in points[0].figures)
        axes.legend(fontsize=7, title="dots: Java" if has_java else None, title_fontsize=7)
    picture.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m growth", description=__doc__)
    parser.add_argument("--only", default="", help="the curves whose title has this text")
    parser.add_argument("--out", type=Path, help="write costs.md and its picture into this folder")
    options = parser.parse_args(arguments)
    console = Console()
    chosen = [curve for curve in CURVES if options.only in curve.title]
    if not chosen:
        titles = ", ".join(curve.title for curve in CURVES)
        console.print(f"--only {options.only}: no curve has this in its title; there are: {titles}")
        return 2
    before, every = "", dict[str, Measured]()
    if options.out is not None:
        # Checked before anything is measured: an unreadable or unwritable page must not lose figures.
        page, picture = options.out / "costs.md", options.out / "images" / "growth.png"
        picture.parent.mkdir(parents=True, exist_ok=True)
        if page.exists():
            before, every = read_page(page.read_text(encoding="utf-8"))
    for curve in chosen:
        every[curve.title] = Measured(curve, _measure_alone(curve), " ".join(describe_machine()))
        if options.out is not None:
            # Written at once: a later failure must not lose the previous curves.
            found = [every[curve.title] for curve in CURVES if curve.title in every]
            page.write_text(before + render_part(found), encoding="utf-8")
            draw(found, picture)
    return 0


def _measure_alone(curve: Curve) -> list[Point]:
    """Measures a curve in a separate process, so that its memory does not include that of another curve."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_run, curve.title).result()


def _run(title: str) -> list[Point]:
    return asyncio.run(_collect(next(curve for curve in CURVES if curve.title == title)))


async def _collect(curve: Curve) -> list[Point]:
    console, points = Console(), []
    console.print(f"[bold]{curve.title}[/bold]")
    async for size, figures in curve.measure(curve.sizes):
        rows = "  ".join(f"{name} {figure:,.1f}" for name, figure in figures.items())
        console.print(f"{size:>12,} {curve.axis}  {rows}", soft_wrap=True)
        points.append(Point(size, figures))
    return points


if __name__ == "__main__":
    sys.exit(main())
